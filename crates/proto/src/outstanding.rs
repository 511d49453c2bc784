//! State of a controller that survives its restart: the rates that stages of other hosts may use
//! without it.

use alloc::collections::BTreeMap;
use alloc::string::String;

use serde::{Deserialize, Serialize};
use tidegate_model::Span;

/// The rates that stages of other hosts may enforce without a controller. They must survive the
/// controller, and be stored before messages that follow them are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outstanding {
    /// The longest lease of a stage.
    pub lease: Span,
    /// For each tenant with a stage of another host, what the safe rates of its stages add up to at
    /// most: bytes and operations per second.
    pub safe: BTreeMap<String, [u64; 2]>,
}
