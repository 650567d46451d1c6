//! Decoders and processors: what a block means to an explorer.
//!
//! Everything here is pure: a decoded block or derived rows in, rows out; no I/O, no clock. [`decode`] reads what strangers wrote (logs,
//! return data, names) and answers with values or with an error that names the event, never with a panic.

//!
//! * [`tables`]: what is derived, one file a family.
//! * [`processors`]: what derives it, one file each, registered in one place.

pub mod decode;
pub mod names;
pub mod processors;
pub mod tables;
