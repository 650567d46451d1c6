-- Blocks that a service could not process, and left without the rows that it would make of them: holes that are named.
CREATE TABLE quarantined_blocks (
    service_name TEXT NOT NULL,
    height INTEGER NOT NULL,
    PRIMARY KEY (service_name, height)
) STRICT, WITHOUT ROWID;
