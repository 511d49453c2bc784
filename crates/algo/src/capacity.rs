//! Estimates of a node's capacity and of its tenants' demand while it works; and the charge for
//! trims, zeroed ranges and hole queries, whose size says nothing, by their time at the device.

pub mod device_time;
pub mod estimate;
