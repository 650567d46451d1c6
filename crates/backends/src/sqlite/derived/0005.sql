-- Leases under which each commit corrects the state that was folded from the rows it replaces.
ALTER TABLE worker_leases ADD COLUMN corrects_state INTEGER NOT NULL DEFAULT 0 CHECK (corrects_state IN (0, 1));
-- How often that was done to a folder's state: whoever read it at another count doesn't commit.
ALTER TABLE indexing_checkpoints ADD COLUMN corrections INTEGER NOT NULL DEFAULT 0;
