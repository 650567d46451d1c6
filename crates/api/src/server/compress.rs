//! Answers are compressed for those who take it.

use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::{And, NotForContentType, Predicate, SizeAbove};

/// Smaller answers fit into a packet or two as they are.
const LEAST_BYTES: u16 = 1_024;

/// gzip and zstd, quickly rather than tightly. Event streams go out as they are, since a compressor would hold events back.
pub(crate) fn layer() -> CompressionLayer<And<SizeAbove, NotForContentType>> {
    let when = SizeAbove::new(LEAST_BYTES).and(NotForContentType::SSE);
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(when)
}
