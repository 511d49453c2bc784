//! A request to storage, made up by a workload or read from a recording.

use tidegate_model::{Bytes, Class, Operation};

use crate::time::Picoseconds;

/// One request to storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoRequest {
    /// When it is made.
    pub at: Picoseconds,
    /// Where it begins, from the start of the storage that its workload uses.
    pub offset: Bytes,
    /// How much it moves, at least one byte.
    pub bytes: Bytes,
    /// [`Operation::Read`] or [`Operation::Write`].
    pub operation: Operation,
    /// How urgent it is.
    pub class: Class,
}
