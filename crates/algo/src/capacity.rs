//! How much a device can do: its capacity and its tenants' demand, estimated while it works, and
//! the cost of requests by their time alone.

pub mod device_time;
pub mod estimate;
