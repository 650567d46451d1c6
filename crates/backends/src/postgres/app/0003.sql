-- Services that make everything anew: what they make is not whole until their checkpoints are where they were when that began.
CREATE TABLE app.rebuilds (
    service_name TEXT COLLATE "C" PRIMARY KEY,
    -- Where it begins.
    first_height BIGINT NOT NULL CHECK (first_height >= 0),
    -- The height after the last that it had done before.
    until_height BIGINT NOT NULL CHECK (until_height >= first_height),
    -- What it made before is being deleted; it has no checkpoint.
    is_clearing BOOLEAN NOT NULL,
    -- Of deleting, so far.
    steps BIGINT NOT NULL,
    paused BOOLEAN NOT NULL,
    begun_at TIMESTAMPTZ NOT NULL
);
-- Resets that were begun before there was this table, and not finished.
INSERT INTO app.rebuilds
    SELECT worker_type,
        coalesce((SELECT min(from_height) FROM app.worker_leases WHERE kind = 'index'), min(from_height)),
        greatest(max(done_to), (SELECT min(from_height) FROM app.worker_leases WHERE kind = 'index')), true, 0, false, now()
    FROM app.worker_leases
    WHERE worker_type NOT IN (SELECT service_name FROM app.indexing_checkpoints)
    GROUP BY worker_type;
