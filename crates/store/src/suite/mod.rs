//! The conformance suite of the raw store traits: every backend runs all of it (law 10).
