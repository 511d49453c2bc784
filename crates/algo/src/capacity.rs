//! Estimates of a node's capacity and of its tenants' demand while it works; the charge for trims,
//! zeroed ranges and hole queries, whose size says nothing, by their time at the device; and how
//! many requests the device holds at a time.

pub mod depth;
pub mod device_time;
pub mod estimate;
