-- Version 5: when a checkpoint moved last, in milliseconds since 1970, by the database's clock. Of one that was there before: when this column came.
ALTER TABLE checkpoints ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
UPDATE checkpoints SET updated_at = CAST(unixepoch('subsec') * 1000 AS INTEGER);
