//! How much a device can do: its capacity and its tenants' demand, estimated while it works, and
//! the cost of requests that only their time tells.

pub mod device_time;
pub mod estimate;
