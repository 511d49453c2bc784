//! The server of volumes as a worker sees it: links, requests in flight and memory of all clients.

use std::sync::Arc;

use tidegate_algo::allocation::memory_budget::MemoryBudget;
use tidegate_fabric::service::{Fault, Job, JobTimes};
use tidegate_fabric::stream::Stream;
use tidegate_model::Time;

use super::{Frontend, NbdConnection};
use crate::barriers::Cause;
use crate::in_flight::{Completed, InFlightRequest};
use crate::nodes::Nodes;
use crate::owners::OwnerTable;
use crate::programs::Programs;
use crate::recorder::Extent;
use crate::volumes::VolumeIndex;
use crate::worker;

impl worker::Frontend for Frontend {
    type Client = NbdConnection;
    type Answer = Completed;

    fn welcome(&mut self, token: u64, stream: Stream) -> NbdConnection {
        NbdConnection::new(token, stream, self.tls.as_ref())
    }

    fn nodes(&mut self) -> &mut Nodes {
        &mut self.nodes
    }

    fn budget(&mut self) -> &mut MemoryBudget {
        &mut self.budget
    }

    fn charge_of(completed: &Completed) -> usize {
        completed.request.weight()
    }

    fn nodes_deadline(&self) -> Time {
        self.nodes.next_deadline()
    }

    fn on_table(&mut self, table: &Arc<OwnerTable>) {
        self.table = table.clone();
    }

    fn on_programs(&mut self, programs: Arc<Programs>) {
        self.programs = programs;
    }

    fn complete(&mut self, job: Job) -> Option<(u64, Completed)> {
        if let Some((volume, part)) = self.in_flight.settle(job.ticket) {
            self.nodes.barriers().lower(volume, part, Cause::Client);
        }
        let completed = self.in_flight.complete(|volume| *self.volumes.layout(volume), job)?;
        Some((completed.request.connection, completed))
    }

    fn weigh(completed: &Completed) -> (VolumeIndex, Result<u64, Fault>) {
        let Completed { request, outcome, .. } = completed;
        (request.volume, outcome.map(|()| request.weight() as u64))
    }

    fn received_at(completed: &Completed) -> Time {
        completed.request.received_at
    }

    fn times(completed: &Completed) -> JobTimes {
        completed.times
    }

    fn extent(&self, completed: &Completed) -> Option<(&str, Extent)> {
        let InFlightRequest { volume, offset, length, .. } = completed.request;
        let extent = Extent::new(self.volumes.layout(volume), offset, length);
        Some((&self.volumes.volume(volume).name, extent))
    }

    fn abandon(&mut self, token: u64) {
        let Self { in_flight, nodes, volumes, .. } = self;
        let is_own = |request: &InFlightRequest| request.connection == token;
        let layout = |volume| *volumes.layout(volume);
        for (volume, part) in in_flight.abandon(is_own, |ticket| nodes.is_held(ticket), layout) {
            nodes.barriers().raise(volume, part, Cause::Client);
        }
    }

    fn sub_requests(&self, token: u64) -> Vec<u64> {
        self.in_flight.sub_requests(|request| request.connection == token)
    }

    fn begin_to_end(&mut self) {
        self.is_ending = true;
    }

    fn abandon_all(&mut self) -> Vec<(u64, Completed)> {
        let ended = |request: InFlightRequest| {
            (request.connection, Completed::new(request, Err(Fault::Ending)))
        };
        self.in_flight.abandon_all().into_iter().map(ended).collect()
    }
}
