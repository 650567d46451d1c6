//! REST over stores in memory that the real processors filled, asked through the whole router.

mod world;

mod answered;
mod away;
mod cache;
mod cases;
mod contract_transactions;
mod disabled;
mod endpoints;
mod flow;
mod flow_evm;
mod flow_gaps;
mod forks;
mod gone;
mod hostile;
mod incomplete;
mod middle;
mod nfts;
mod problems;
mod rebuilt;
mod search;
mod status;
mod stream;
