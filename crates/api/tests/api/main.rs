//! All integration tests of this crate, in one binary: one is linked much sooner than many.

mod filters;
mod http;
mod http2;
mod logs;
mod methods;
mod ops;
mod rest;
mod suite;
mod support;
mod upstream;
mod websocket;
