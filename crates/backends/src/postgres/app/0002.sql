-- Blocks that a service could not process, and left without the rows that it would make of them: holes that are named.
CREATE TABLE app.quarantined_blocks (
    service_name TEXT COLLATE "C" NOT NULL,
    height BIGINT NOT NULL CHECK (height >= 0),
    PRIMARY KEY (service_name, height)
);
