//! How much may pass now: rates, and how a budget is divided over those who want some of it.

pub mod demand;
pub mod fair_share;
pub mod token_bucket;
