//! Made-up blocks.
