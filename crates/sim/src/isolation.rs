//! Isolation at a storage node in virtual time: the latency of a tenant with a reservation beside
//! tenants without one.
//!
//! # Problem
//! A node lets requests with a reservation go first, but a drive works on many requests at a time
//! and knows no reservations. How long such a request then takes depends on the requests that were
//! at the drive before it. The times of a live drive vary with everything else that a machine does;
//! here nothing else disturbs.
//!
//! # Model
//! The *victim* reads 4 KiB at random places, with at most [`VICTIM_DEPTH`] requests in flight, at
//! [`REQUESTED_PERCENT`] of the rate of small reads that the node reaches without control, and has
//! a reservation of [`RESERVED_PERCENT`] of it. Each of ten [aggressors](AGGRESSORS) runs beside it
//! in a run of its own: closed clients without a reservation or limit. The node is the one that
//! ships; its drive is any [`Drive`]. A run *without control* has the same node, which knows no
//! tenants and serves in the order of arrival.
//!
//! # Figures
//! The victim's percentiles are those of its requests from their arrival at the node to the reply,
//! beside the aggressor, divided by those alone. The *used* part of the drive is a sum: the
//! victim's rate of the rate of small reads, and the aggressor's rate of its own rate without
//! control and without the victim. As in `tidegate-lab bench isolation` at live gates, a fixed
//! limit can keep the times and waste the drive.
//!
//! Left out: gateways and networks; the time that a node's threads take; a second tenant with a
//! reservation.

use tidegate_model::Span;

use crate::time::Picoseconds;

mod channels;
mod loads;
mod run;

pub use channels::{ChannelTimes, Channels};
pub use loads::{
    AGGRESSORS, Aggressor, LARGE_READS, LARGE_WRITES, LoadJob, LoadOperation, LoadTenant, READS,
};

/// The victim's requests in flight, at most.
pub const VICTIM_DEPTH: u32 = 4;
/// The rate that the victim requests, and its reservation, in hundredths of the rate of small
/// reads.
pub const REQUESTED_PERCENT: u64 = 20;
/// See [`REQUESTED_PERCENT`].
pub const RESERVED_PERCENT: u64 = 25;
/// How long a client with bursts pauses.
pub const PAUSE: Span = Span(100 * Span::MILLISECOND.0);
/// Bytes of the drive that each tenant uses.
pub const AREA: u64 = 64 << 20;

/// The kind of a request at a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Data go to the host.
    Read,
    /// Data come from the host.
    Write,
    /// No data move: a flush or a trim.
    NoData,
}

/// A request at a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveRequest {
    /// Given back when it is done.
    pub number: u32,
    /// Its kind.
    pub access: Access,
    /// Where, a multiple of 4 KiB.
    pub offset: u64,
    /// How much, a multiple of 4 KiB; zero for a flush.
    pub bytes: u32,
}

/// A drive in virtual time, of at least [`AREA`] bytes for each of three tenants.
pub trait Drive {
    /// Something that happens inside.
    type Event;

    /// Takes a request; what happens next is given to `later`, with its time.
    fn submit(
        &mut self,
        now: Picoseconds,
        request: DriveRequest,
        later: &mut impl FnMut(Picoseconds, Self::Event),
    );

    /// Something happens that was given to `later`. Returns the number of the request that is done
    /// by it.
    fn on_event(
        &mut self,
        now: Picoseconds,
        event: Self::Event,
        later: &mut impl FnMut(Picoseconds, Self::Event),
    ) -> Option<u32>;
}

/// The parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct IsolationSetup {
    /// The most requests at the drive at a time.
    pub depth: u32,
    /// How long each run lasts before requests count.
    pub skip: Span,
    /// And how long requests count then.
    pub length: Span,
    /// Decides places, and the victim's times.
    pub seed: u64,
}

/// The outcome of one run, of the counted time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VictimFigures {
    /// The victim's percentiles.
    pub p99: Span,
    /// See [`Self::p99`].
    pub p999: Span,
    /// The victim's requests that were due, and that were answered.
    pub due: u64,
    /// See [`Self::due`].
    pub served: u64,
    /// Requests of the aggressor that were answered.
    pub others: u64,
}

/// The victim beside one aggressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BesideAggressor {
    /// The aggressor.
    pub aggressor: &'static str,
    /// With the reservation in force.
    pub with: VictimFigures,
    /// Without control.
    pub without: VictimFigures,
    /// Requests of the aggressor without control and without the victim.
    pub others_alone: u64,
}

/// The outcome of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Small reads per second that the node reaches without control.
    pub capacity: u64,
    /// Small reads per second that the victim requests.
    pub requested: u64,
    /// The victim alone, with the reservation in force.
    pub alone: VictimFigures,
    /// And beside each aggressor.
    pub rows: Vec<BesideAggressor>,
    length: Span,
}

impl Comparison {
    /// How many times as long as alone a percentile of the victim is.
    pub fn times(&self, figure: fn(&VictimFigures) -> Span, beside: &VictimFigures) -> f64 {
        figure(beside).0 as f64 / figure(&self.alone).0.max(1) as f64
    }

    /// The part of the drive that is used, in per cent.
    pub fn used_percent(&self, row: &BesideAggressor) -> f64 {
        let seconds = self.length.0 as f64 / Span::SECOND.0 as f64;
        let own = row.with.served as f64 / seconds / self.capacity.max(1) as f64;
        100.0 * (own + row.with.others as f64 / row.others_alone.max(1) as f64)
    }
}

/// The part of the victim's requests that were answered, in per cent.
pub fn served_percent(figures: &VictimFigures) -> f64 {
    100.0 * figures.served as f64 / figures.due.max(1) as f64
}

/// Compares the victim beside each of `aggressors` with the victim alone, each at a new drive.
/// Returns nothing if `goes_on` says so before the end.
pub fn compare<D: Drive>(
    setup: IsolationSetup,
    aggressors: &[Aggressor],
    drive: impl Fn() -> D,
    goes_on: impl Fn() -> bool,
) -> Option<Comparison> {
    let reads = Aggressor { name: "", tenant: LoadTenant::Other, jobs: &[READS] };
    let run = |reserved: Option<u64>, rate: u64, aggressor: Option<&Aggressor>| {
        let plan = run::RunPlan { setup, reserved, rate, aggressor };
        goes_on().then(|| run::run(&plan, drive()))
    };
    let per_second = |count: u64| {
        u64::try_from(u128::from(count) * u128::from(Span::SECOND.0) / u128::from(setup.length.0))
            .unwrap_or(u64::MAX)
    };
    let capacity = per_second(run(None, 0, Some(&reads))?.others);
    let requested = (capacity * REQUESTED_PERCENT / 100).max(1);
    let reserved = Some(capacity * RESERVED_PERCENT / 100);
    let alone = run(reserved, requested, None)?;
    let row = |aggressor: &Aggressor| {
        Some(BesideAggressor {
            aggressor: aggressor.name,
            with: run(reserved, requested, Some(aggressor))?,
            without: run(None, requested, Some(aggressor))?,
            others_alone: run(None, 0, Some(aggressor))?.others,
        })
    };
    let rows = aggressors.iter().map(row).collect::<Option<Vec<_>>>()?;
    Some(Comparison { capacity, requested, alone, rows, length: setup.length })
}
