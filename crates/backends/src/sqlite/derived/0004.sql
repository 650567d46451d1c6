-- Whether a lease had nothing to do when it was claimed: then its process didn't die over it. Of leases that are held by an older program it isn't known.
ALTER TABLE worker_leases ADD COLUMN claimed_to_wait INTEGER NOT NULL DEFAULT 0 CHECK (claimed_to_wait IN (0, 1));
