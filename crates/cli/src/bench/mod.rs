//! `tidegate bench`: what the parts of Tidegate cost, beside what others take for the same.
//!
//! Every case is a [`Row`]. A peer is measured in the same run and in turns with ours ([`window`]);
//! where that cannot be, its field is empty and a reason says why. Numbers of another day or
//! another machine are in no row.

use std::path::Path;

use serde::Serialize;

mod bucket;
mod child;
mod layered;
mod machine;
mod peers;
mod shim;
mod stage;
mod window;

pub(crate) use window::Plan;

/// One case, measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// What it belongs to: `machine`, `stage` or `shim`.
    pub(crate) bench: &'static str,
    /// What is measured.
    pub(crate) case: String,
    /// The unit of `value` and `peer_value`.
    pub(crate) unit: &'static str,
    /// What was measured; none if the machine was too busy, or something is missing.
    pub(crate) value: Option<f64>,
    /// Who or what it is compared with.
    pub(crate) peer: Option<String>,
    /// What was measured of the peer.
    pub(crate) peer_value: Option<f64>,
    /// How many times better than the peer's ours is.
    pub(crate) ratio: Option<f64>,
    /// What we promise, in the row's unit.
    pub(crate) promise: Option<String>,
    /// Whether it was kept.
    pub(crate) kept: Option<bool>,
    /// Why something is empty that could be there.
    pub(crate) reason: Option<String>,
}

impl Row {
    /// A row of `value` in nanoseconds, for less is better.
    fn nanoseconds(bench: &'static str, case: impl Into<String>, value: Option<f64>) -> Self {
        let reason = value.is_none().then(|| window::BUSY.to_owned());
        let (case, unit) = (case.into(), "ns");
        let (peer, peer_value, ratio, promise, kept) = (None, None, None, None, None);
        Self { bench, case, unit, value, peer, peer_value, ratio, promise, kept, reason }
    }

    /// A row in another unit, for more is better.
    fn more(
        bench: &'static str,
        case: impl Into<String>,
        unit: &'static str,
        value: Option<f64>,
    ) -> Self {
        Self { unit, ..Self::nanoseconds(bench, case, value) }
    }

    fn less_is_better(&self) -> bool {
        self.unit == "ns"
    }

    /// Adds what it is compared with.
    fn beside(mut self, peer: &str, value: Result<f64, String>) -> Self {
        self.peer = Some(peer.to_owned());
        match value {
            Ok(value) => {
                self.peer_value = Some(value);
                self.ratio = self
                    .value
                    .map(|ours| if self.less_is_better() { value / ours } else { ours / value });
            }
            Err(reason) => self.reason = self.reason.or(Some(reason)),
        }
        self
    }

    /// Adds a promise: at most this for nanoseconds, at least this for everything else.
    fn promised(mut self, bound: f64) -> Self {
        let less = self.less_is_better();
        self.promise = Some(format!("{} {bound}", if less { "<=" } else { ">=" }));
        self.kept = self.value.map(|value| if less { value <= bound } else { value >= bound });
        self
    }

    /// Adds why it is empty.
    fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bench {
    /// The library: deciding, buckets, content
    Stage,
    /// What the shim adds to system calls
    Shim,
}

/// Measures, and gives each row to `tell` as soon as it is there. The shim is at `shim`.
pub(crate) fn run(
    benches: &[Bench],
    plan: Plan,
    shim: Result<&Path, String>,
    tell: &mut dyn FnMut(Row),
) {
    machine::rows(plan, tell);
    if benches.contains(&Bench::Stage) {
        stage::rows(plan, tell);
        bucket::rows(plan, tell);
        layered::rows(plan, tell);
    }
    if benches.contains(&Bench::Shim) {
        shim::rows(plan, shim, tell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bench that is never run rots; this one says nothing about how fast anything is.
    #[test]
    fn every_case_of_the_library_can_be_measured() {
        let mut rows = Vec::new();
        run(&[Bench::Stage], Plan::TINY, Err("not asked for".into()), &mut |row| rows.push(row));
        assert!(rows.len() > 15, "{rows:#?}");
        assert!(rows.iter().all(|row| row.value.is_some() || row.reason.is_some()), "{rows:#?}");
        assert!(rows.iter().any(|row| row.value.is_some()), "{rows:#?}");
    }

    #[test]
    fn promises_and_ratios_look_the_right_way() {
        let fast = Row::nanoseconds("stage", "x", Some(10.0)).promised(12.0);
        let fast = fast.beside("peer", Ok(20.0));
        assert_eq!((fast.kept, fast.ratio), (Some(true), Some(2.0)));
        let wide = Row::more("stage", "x", "MiB/s", Some(10.0)).promised(12.0);
        let wide = wide.beside("peer", Ok(20.0));
        assert_eq!((wide.kept, wide.ratio), (Some(false), Some(0.5)));
        assert_eq!(wide.promise.as_deref(), Some(">= 12"));
        let none = Row::nanoseconds("stage", "x", None).promised(1.0).beside("p", Ok(1.0));
        assert_eq!((none.kept, none.ratio), (None, None));
        assert!(none.reason.is_some());
    }
}
