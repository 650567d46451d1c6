//! Object storage: payloads in a local directory, S3, or Google Cloud Storage, chosen by URL.
//!
//! | URL | store |
//! | --- | --- |
//! | a path, `file:///dir` | a local directory, made where it isn't there; every write is on the disk before it is answered |
//! | `s3://bucket/prefix` | S3 and what speaks its protocol; `AWS_…` in the environment as in the crate `object_store` (`AWS_ENDPOINT`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, …) |
//! | `gs://bucket/prefix` | Google Cloud Storage; `GOOGLE_…` in the environment |
//! | `memory:` | memory, for tests |
//!
//! * [`Location`] reads the URL, [`Objects`] is the client, and [`ObjectPayloads`] keeps payloads in it ([`cairn_store::PayloadStore`]).
//! * Whatever a retry may mend is retried here, and only here ([`RetryPolicy`]): the layers below are told not to.
//! * Every answer passes [`http`](self), which notes request ids and codes for error texts, and finds errors that come with status 200.
//!
//! Ordering: none is promised between calls. Atomicity: an object is there whole or not at all. Back-pressure: the caller bounds how many calls
//! run at once; each holds at most one object in memory. Shutdown: a call may be dropped anywhere; what it had sent may still take effect.

mod client;
mod error;
mod http;
mod open;
mod payloads;
mod retry;

pub use client::Objects;
pub use error::ObjectError;
pub use open::{Location, ObjectsConfig};
pub use payloads::ObjectPayloads;
pub use retry::RetryPolicy;
