//! Rate limits and fair shares: token buckets, limits on log lines, the division of a budget over
//! tenants with demand, and of a tenant's rate over its background work.

pub mod demand;
pub mod fair_share;
pub mod log_limiter;
pub mod tail_latency;
pub mod token_bucket;
