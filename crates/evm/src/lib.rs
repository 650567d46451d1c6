//! The EVM codec. Pure: bytes and JSON in, facts, checks and views out; no I/O, no clock.
//!
//! A block is kept as consensus bytes ([`canonical`]); what consensus can't carry (unknown transaction types, fields that only RPC
//! has) is kept beside them as an overlay ([`overlay`]) and laid over the view when it is served, so that an answer equals the
//! node's own.

