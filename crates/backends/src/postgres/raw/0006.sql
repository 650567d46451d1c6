-- When a checkpoint moved last, by the server's clock. Of one that was there before: when this column came.
ALTER TABLE raw.checkpoints ADD COLUMN updated_at TIMESTAMPTZ NOT NULL DEFAULT now();
