-- Whether a lease had nothing to do when it was claimed: then its process didn't die over it. Of leases that are held by an older program it isn't known.
ALTER TABLE app.worker_leases ADD COLUMN claimed_to_wait BOOLEAN NOT NULL DEFAULT false;
