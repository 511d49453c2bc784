//! Division of shared capacity: tokens over nodes (pShift), a link over classes and flows, a
//! gateway's memory and connections over clients; and whether promises can be kept at all.

pub mod admission;
pub mod connection_quota;
pub mod memory_budget;
pub mod pshift;
pub mod shares;
