//! Peer of the scheduler's benchmark: Ceph's dmclock, compiled from headers on the user's machine,
//! because it is LGPL.

use std::env;
use std::fmt::Write;

use tidegate_model::Span;

use super::bed::{RequestStream, Subject};
use crate::bench::child::{self, Child, CompiledProgram};
use crate::bench::window::Contestant;

pub(super) const PEER: &str = "dmclock";
/// A checkout of it.
const VARIABLE: &str = "TIDEGATE_DMCLOCK";
const GONE: &str = "dmclock gave no answer";

pub(super) fn program() -> Result<CompiledProgram, String> {
    let source = env::var(VARIABLE).map_err(|_| {
        format!(
            "no dmclock: set {VARIABLE} to a checkout of it, or to src/dmclock of Ceph's sources \
             (`apt-get source ceph`)"
        )
    })?;
    let includes = [format!("-I{source}/src"), format!("-I{source}/support/src")];
    let mut flags = vec!["-x", "c++", "-std=c++17", "-O3", "-DNDEBUG", "-pthread"];
    flags.extend(includes.iter().map(String::as_str));
    child::compile("c++", include_str!("dmclock.cpp"), &flags, &[])
        .map_err(|error| format!("no dmclock in {source}: {error}"))
}

pub(super) struct SchedulerPeer(Child);

impl SchedulerPeer {
    pub(super) fn start(program: &Result<CompiledProgram, String>) -> Result<Self, String> {
        let program = program.as_ref().map_err(String::clone)?;
        program.start(&[], &[]).map(Self)
    }

    /// From now on, windows are of requests that are served and come back, one every `step`.
    pub(super) fn prepare_pairs(
        &mut self,
        streams: &[RequestStream],
        step: Span,
    ) -> Result<(), String> {
        self.open(streams)?;
        self.query(&format!("pairs {}", step.as_seconds())).map(|_| ())
    }

    /// From now on, windows are of streams that join, each with a request, when so many are there:
    /// how many bytes each of those takes.
    pub(super) fn prepare_joins(&mut self, count: usize) -> Result<f64, String> {
        self.query(&format!("joins {count}"))?.parse().map_err(|_| GONE.to_owned())
    }

    /// How often it polls in a second for what is held back by a limit of two per second.
    pub(super) fn polls(&mut self) -> Result<f64, String> {
        self.query("looks")?.parse().map_err(|_| GONE.to_owned())
    }

    fn query(&mut self, line: &str) -> Result<String, String> {
        self.0.query(line).filter(|answer| !answer.is_empty()).ok_or_else(|| GONE.to_owned())
    }
}

impl Subject for SchedulerPeer {
    fn open(&mut self, streams: &[RequestStream]) -> Result<(), String> {
        let mut line = String::from("streams");
        for RequestStream { weight, reservation, limit } in streams {
            let _ = write!(line, " {reservation} {weight} {limit}");
        }
        self.query(&line).map(|_| ())
    }

    fn serve(&mut self, length: Span, rate: u64, active: &[usize]) -> Result<Vec<u64>, String> {
        let mut line = format!("serve {} {rate}", length.as_seconds());
        for stream in active {
            let _ = write!(line, " {stream}");
        }
        let answer = self.query(&line)?;
        let counts = answer.split_whitespace().map(str::parse);
        counts.collect::<Result<_, _>>().map_err(|_| GONE.to_owned())
    }
}

impl Contestant for SchedulerPeer {
    fn window(&mut self, length: Span, cores: &[usize]) -> Option<f64> {
        self.0.window(length, cores)
    }
}
