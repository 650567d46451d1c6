-- Why a range ended last; empty where it didn't, or has moved since.
ALTER TABLE raw.leases ADD COLUMN last_error TEXT NOT NULL DEFAULT '';
