-- Services that make everything anew: what they make is not whole until their checkpoints are where they were when that began.
CREATE TABLE rebuilds (
    service_name TEXT NOT NULL PRIMARY KEY,
    first_height INTEGER NOT NULL, -- where it begins
    until_height INTEGER NOT NULL, -- the height after the last that it had done before
    is_clearing INTEGER NOT NULL CHECK (is_clearing IN (0, 1)), -- what it made before is being deleted; it has no checkpoint
    steps INTEGER NOT NULL, -- of deleting, so far
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    begun_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- Resets that were begun before there was this table, and not finished.
INSERT INTO rebuilds
    SELECT worker_type,
        coalesce((SELECT min(from_height) FROM worker_leases WHERE kind = 'index'), min(from_height)),
        max(max(done_to), coalesce((SELECT min(from_height) FROM worker_leases WHERE kind = 'index'), 0)), 1, 0, 0, unixepoch() * 1000
    FROM worker_leases
    WHERE worker_type NOT IN (SELECT service_name FROM indexing_checkpoints)
    GROUP BY worker_type;
