//! How much may pass now: rates, log lines, and how a budget is divided over the tenants with
//! demand.

pub mod demand;
pub mod fair_share;
pub mod log_limiter;
pub mod token_bucket;
