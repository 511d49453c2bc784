//! The C interface of a stage and of a data node's store: `libtidegate.so`, `libtidegate.a` and
//! `include/tidegate.h`.
//!
//! The header is generated from the public items of this crate, their documentation included, so
//! they are written for readers of the header. A test compares the two.
//!
//! Three rules hold for every function. No panic crosses: it becomes `TIDEGATE_FAILURE`. Nothing is
//! allocated for a request: an admission lives in memory of the caller. Arguments are checked as
//! far as they can be, and refused as `TIDEGATE_INVALID`: null pointers, numbers without a meaning,
//! text that is not UTF-8, admissions that are not under way.
#![allow(clippy::missing_safety_doc, reason = "the contract stands in the header, for C")]

pub mod admission;
pub mod layered;
pub mod rules;
pub mod scopes;
pub mod stage;
pub mod status;
pub mod store;

mod arguments;
