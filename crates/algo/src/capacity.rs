//! Estimates of a node's capacity and of its tenants' demand while it works; the charge for trims,
//! zeroed ranges and hole queries, whose size says nothing, by their time at the device; how many
//! requests the device holds at a time; and the budget that it serves within a bound of latency.

pub mod depth;
pub mod device_time;
pub mod estimate;
pub mod percentile_limit;
pub mod search;
