//! MQSim's results for some drives and loads, and the same drives and loads here.
//!
//! MQSim as of October 2022, its shipped configuration but for 256 blocks in a plane, all mappings
//! in memory, no preconditioning, and no cache where none is said; random offsets over 80 % of the
//! drive, aligned to the size; the first tenth does not count. Where three seeds differ, both ends
//! are given.

use tidegate_model::{Class, Portion, Span};
use tidegate_netsim::storage::alone::{Arrivals, CommandFlow, DriveReport, Length, run};
use tidegate_netsim::storage::{CommandOrder, Parameters, Shares};

/// One load, and what MQSim gives for its first flow: microseconds, commands per second.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) cache: bool,
    pub(crate) flows: Vec<CommandFlow>,
    pub(crate) milliseconds: u64,
    pub(crate) mean: [f64; 2],
    pub(crate) p50: [f64; 2],
    pub(crate) p95: [f64; 2],
    pub(crate) p99: [f64; 2],
    /// How far the 99th percentile may be off. It is 6 %, but where one seed differs more from
    /// the next.
    pub(crate) noise: f64,
    pub(crate) rates: &'static [f64],
}

/// A flow that keeps so many commands of one size outstanding.
fn flow(class: Class, reads: bool, bytes: u32, depth: u32) -> CommandFlow {
    CommandFlow {
        class,
        arrivals: Arrivals::Closed(depth),
        reads: if reads { Portion::WHOLE } else { Portion(0) },
        sizes: vec![(bytes, 1)],
        spread: Portion(800_000),
    }
}

/// The loads, as short as a mean within 2 % allows.
pub(crate) fn rows() -> Vec<Row> {
    let high = Class::High;
    let row = Row {
        name: "",
        cache: false,
        flows: vec![],
        milliseconds: 100,
        mean: [88.9; 2],
        p50: [88.9; 2],
        p95: [88.9; 2],
        p99: [88.9; 2],
        noise: 0.06,
        rates: &[],
    };
    vec![
        Row {
            name: "R1  4 KiB reads, depth 1",
            flows: vec![flow(high, true, 4_096, 1)],
            rates: &[11_250.0],
            ..row
        },
        Row {
            name: "R2  4 KiB reads, depth 16",
            flows: vec![flow(high, true, 4_096, 16)],
            milliseconds: 400,
            mean: [120.2, 120.4],
            p50: [97.3; 2],
            p95: [223.0, 224.0],
            p99: [304.0, 311.0],
            rates: &[133_000.0],
            ..row
        },
        Row {
            name: "R5  16 KiB writes, depth 16",
            flows: vec![flow(high, false, 16_384, 16)],
            milliseconds: 4_000,
            mean: [1_288.0, 1_303.0],
            p50: [830.0, 835.0],
            p95: [2_689.0, 2_995.0],
            p99: [3_835.0, 3_870.0],
            rates: &[12_300.0],
            ..row
        },
        Row {
            name: "R6  4 KiB writes into the cache, depth 64",
            cache: true,
            flows: vec![flow(high, false, 4_096, 64)],
            milliseconds: 700,
            mean: [1_598.0, 1_599.0],
            p50: [1_587.0; 2],
            p95: [1_730.0, 1_735.0],
            p99: [1_804.0, 1_817.0],
            rates: &[40_000.0],
            ..row
        },
        three(),
    ]
}

/// Three classes that keep a drive busy together.
fn three() -> Row {
    Row {
        name: "R8  4 KiB reads, depth 128 of each class, 4 : 2 : 1",
        flows: [Class::High, Class::Medium, Class::Low]
            .map(|class| flow(class, true, 4_096, 128))
            .to_vec(),
        milliseconds: 3_000,
        mean: [918.0; 2],
        p50: [0.0, f64::MAX],
        p95: [0.0, f64::MAX],
        p99: [4_360.0; 2],
        noise: 0.15,
        rates: &[139_000.0, 74_100.0, 41_500.0],
        cache: false,
    }
}

impl Row {
    /// The drive.
    pub(crate) fn drive(&self) -> Parameters {
        let mut drive = Parameters::default();
        drive.geometry.blocks = 256;
        drive.cache.writes = self.cache;
        if self.flows.len() > 1 {
            let shares = Shares { high: 4, medium: 2, low: 1, burst: 1 };
            drive.chip_queues = CommandOrder::Weighted(shares);
        }
        drive
    }

    /// Runs it `times` as long.
    pub(crate) fn run(&self, times: u64, seed: u64) -> DriveReport {
        let total = Span(self.milliseconds * 1_000_000 * times);
        run(&self.drive(), &self.flows, Length { total, skip: Span(total.0 / 10) }, seed)
    }

    /// Deviations from MQSim beyond the tolerance.
    pub(crate) fn wrong(&self, outcome: &DriveReport) -> Vec<String> {
        let flow = &outcome.flows[0];
        let all: f64 = outcome.flows.iter().map(|flow| flow.per_second).sum();
        let expected: f64 = self.rates.iter().sum();
        let mut checks = vec![
            ("mean", self.mean, flow.mean(), 0.02),
            ("p50", self.p50, flow.percentile(50.0), 0.02),
            ("p95", self.p95, flow.percentile(95.0), 0.04),
            ("p99", self.p99, flow.percentile(99.0), self.noise),
            ("commands per second", [expected; 2], all, 0.02),
        ];
        for (rate, flow) in self.rates.iter().zip(&outcome.flows) {
            checks.push(("share", [rate / expected; 2], flow.per_second / all, 0.05));
        }
        checks
            .into_iter()
            .filter(|(_, expected, measured, tolerance)| off(*expected, *measured) > *tolerance)
            .map(|(what, expected, measured, _)| {
                format!("{}: {what} {measured:.3} for {expected:?}", self.name)
            })
            .collect()
    }
}

/// How far `measured` lies outside of what MQSim gives with its seeds, as a part of it.
fn off([least, most]: [f64; 2], measured: f64) -> f64 {
    (least / measured - 1.0).max(measured / most - 1.0).max(0.0)
}
