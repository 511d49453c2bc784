//! Rate limits and fair shares: token buckets, limits on log lines, and the division of a budget
//! over tenants with demand.

pub mod demand;
pub mod fair_share;
pub mod log_limiter;
pub mod token_bucket;
