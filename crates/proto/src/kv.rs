//! kv
pub use block::{ENTRY_MAX, KEY_MAX, VALUE_MAX};
pub use client::{Answer, Client, Outcome, Refused, Settings, Value};
pub use layout::{Area, BLOCK, HEADER, LAYOUT_VERSION, Layout, LayoutError};
pub use opening::{OpenError, Opening};

mod block;
mod client;
mod layout;
mod locations;
mod opening;
mod slot;
mod supply;
