//! The measurements of each run of each system.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::plan::LsmSystem;
use crate::experiment::quiet::Quiet;
use crate::lsm::{LsmSecond, LsmTotals};

/// The measurements of a run of one system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LsmRun {
    pub(super) seconds: Vec<LsmSecond>,
    pub(super) totals: LsmTotals,
    pub(super) quiet: Quiet,
    /// Bytes of each channel by its name, of a run under Tidegate.
    pub(super) channels: BTreeMap<String, u64>,
}

/// The runs of one system, or why there are none.
#[derive(Clone, Debug)]
pub(super) struct LsmSystemRuns {
    pub(super) system: LsmSystem,
    pub(super) runs: Result<Vec<LsmRun>, String>,
}
