-- An event's index is the protocol's own: on Flow it begins anew in each transaction, so it tells events of one block apart only together with that.
ALTER TABLE raw.orphan_events DROP CONSTRAINT orphan_events_pkey;
ALTER TABLE raw.orphan_events ADD PRIMARY KEY (reorg_id, block_id, transaction_index, event_index);
