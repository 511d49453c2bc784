//! A network, packet by packet: what hosts send each other, through links and switches.
//!
//! # Parts
//! - [`packet`]: what travels.

pub mod packet;
