-- Leases under which each commit corrects the state that was folded from the rows it replaces.
ALTER TABLE app.worker_leases ADD COLUMN corrects_state BOOLEAN NOT NULL DEFAULT false;
-- How often that was done to a folder's state: whoever read it at another count doesn't commit.
ALTER TABLE app.indexing_checkpoints ADD COLUMN corrections BIGINT NOT NULL DEFAULT 0;
