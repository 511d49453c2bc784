//! Published workloads, by their shape.
//!
//! The recordings themselves are their owners' and large; where a user has them, they are
//! [replayed](crate::trace). The workloads here imitate the published shape: the fraction of reads,
//! the sizes of requests, and their offsets. The plan sets the rate, as papers scale it, too.
//!
//! - `tpcc`: TPC-C on a database server of Microsoft's (SNIA block traces, 130). The short extract
//!   that comes with MQSim has 62.6 % reads and requests of 8.5 kB on average, 51,000 in a second.
//!   *Made*: 62.6 % reads; 8 KiB, and one in 27 of 16 KiB, 8,495 bytes on average; anywhere.
//! - `web-search`: a search engine, from the extract beside it: 99.98 % reads of 15.4 kB on
//!   average, 413 in a second. *Made*: 99.98 % reads; 8, 16, 24 and 32 KiB about as often as there,
//!   15,360 bytes on average; anywhere.
//! - `vdi`: virtual desktops, Fujitsu's (Lee and others, SYSTOR 2017; SNIA block traces, 4964), as
//!   the end-to-end paper describes them (§4.2): read-intensive, of widely varying sizes. *Made*:
//!   70 % reads; 512 bytes to 512 KiB, half of them up to 4 KiB, 31,595 bytes on average; few
//!   places often (Zipf, 0.9).
//!
//! The numbers of `vdi` are chosen by hand after those words, so a figure that uses it shows a
//! shape and no more. Bursts are the load's: give it a `pulse`.

use serde::Deserialize;
use tidegate_model::{Bytes, Portion};

use super::{Offsets, Row, Sizes};

/// A workload that was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Published {
    /// A database under TPC-C.
    Tpcc,
    /// A search engine.
    WebSearch,
    /// Virtual desktops.
    Vdi,
}

/// Operations, sizes and offsets of requests, without their times.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Which part of them read.
    pub reads: Portion,
    /// How much they move.
    pub sizes: Sizes,
    /// Where they go.
    pub offsets: Offsets,
}

/// Sizes in KiB and how often they occur.
const TPCC: &[(u64, u32)] = &[(8, 26), (16, 1)];
/// The same.
const WEB_SEARCH: &[(u64, u32)] = &[(8, 117), (16, 32), (24, 10), (32, 41)];
/// The same, in halves of a KiB.
const VDI: &[(u64, u32)] = &[
    (1, 5),
    (2, 5),
    (4, 5),
    (8, 35),
    (16, 10),
    (32, 10),
    (64, 12),
    (128, 12),
    (256, 4),
    (1024, 2),
];

impl Published {
    /// Its shape.
    pub fn shape(self) -> Shape {
        let table = |unit: u64, rows: &[(u64, u32)]| {
            Sizes::Table(
                rows.iter().map(|(size, weight)| Row(Bytes(size * unit), *weight)).collect(),
            )
        };
        let (reads, sizes, offsets) = match self {
            Self::Tpcc => (Portion(626_000), table(1 << 10, TPCC), Offsets::Uniform),
            Self::WebSearch => (Portion(999_800), table(1 << 10, WEB_SEARCH), Offsets::Uniform),
            Self::Vdi => (Portion(700_000), table(1 << 9, VDI), Offsets::Zipf(0.9)),
        };
        Shape { reads, sizes, offsets }
    }
}
