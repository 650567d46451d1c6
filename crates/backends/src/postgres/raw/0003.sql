-- What of a block and of a transaction's result is too long for a row lies in object storage; the column beside is NULL then. Of a block's parts the
-- object has the packed bytes, as the column would.
ALTER TABLE raw.blocks ADD COLUMN body_payload_ref TEXT, ADD COLUMN receipts_payload_ref TEXT,
  ADD COLUMN extras_payload_ref TEXT, ADD COLUMN traces_payload_ref TEXT;
ALTER TABLE raw.orphan_blocks ADD COLUMN body_payload_ref TEXT, ADD COLUMN receipts_payload_ref TEXT,
  ADD COLUMN extras_payload_ref TEXT, ADD COLUMN traces_payload_ref TEXT;
ALTER TABLE raw.transactions ADD COLUMN result_payload_ref TEXT;
ALTER TABLE raw.orphan_transactions ADD COLUMN result_payload_ref TEXT;

CREATE INDEX blocks_body_payload ON raw.blocks (body_payload_ref) WHERE body_payload_ref IS NOT NULL;
CREATE INDEX blocks_receipts_payload ON raw.blocks (receipts_payload_ref) WHERE receipts_payload_ref IS NOT NULL;
CREATE INDEX blocks_extras_payload ON raw.blocks (extras_payload_ref) WHERE extras_payload_ref IS NOT NULL;
CREATE INDEX blocks_traces_payload ON raw.blocks (traces_payload_ref) WHERE traces_payload_ref IS NOT NULL;
CREATE INDEX transactions_result_payload ON raw.transactions (result_payload_ref) WHERE result_payload_ref IS NOT NULL;
CREATE INDEX orphan_blocks_body_payload ON raw.orphan_blocks (body_payload_ref) WHERE body_payload_ref IS NOT NULL;
CREATE INDEX orphan_blocks_receipts_payload ON raw.orphan_blocks (receipts_payload_ref) WHERE receipts_payload_ref IS NOT NULL;
CREATE INDEX orphan_blocks_extras_payload ON raw.orphan_blocks (extras_payload_ref) WHERE extras_payload_ref IS NOT NULL;
CREATE INDEX orphan_blocks_traces_payload ON raw.orphan_blocks (traces_payload_ref) WHERE traces_payload_ref IS NOT NULL;
CREATE INDEX orphan_transactions_result_payload ON raw.orphan_transactions (result_payload_ref) WHERE result_payload_ref IS NOT NULL;
