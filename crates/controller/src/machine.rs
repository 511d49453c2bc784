//! The task that owns the controller's state machine and calls it for all connections.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use tidegate_fabric::clock::{Clock, unix_ms};
use tidegate_model::{Event, Time};
use tidegate_proto::controller::status::TimedEvent;
use tidegate_proto::controller::{ConnectionId, Controller, Output, ToPeer};
use tidegate_proto::stats::delays::Delays;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::sleep;

use crate::input::{DelaysError, Input, Survey};
use crate::log::EventLog;
use crate::orphans::Orphans;
use crate::outstanding::OutstandingFile;
use crate::peer_link::{PeerLink, SendError};

/// Inputs that are handled before outputs are sent: enough that a round of many stages is written
/// in few batches, few enough that no peer waits long.
const BATCH: usize = 256;

/// The number of cycle durations that are kept one by one.
const CYCLES_KEPT: usize = 1024;

/// The controller with its links.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) clock: Clock,
    controller: Controller,
    outstanding: OutstandingFile,
    orphans: Orphans,
    /// The paths of the cluster file and the state directory.
    paths: [String; 2],
    pub(crate) inputs: mpsc::Receiver<Input>,
    pub(crate) events: broadcast::Sender<Arc<TimedEvent>>,
    pub(crate) cycle_seconds: Histogram,
    links: HashMap<ConnectionId, Arc<PeerLink>>,
    /// Links with queued messages that are not flushed yet.
    touched: Vec<Arc<PeerLink>>,
    event_number: u64,
    event_log: EventLog,
    cycles: VecDeque<Duration>,
}

impl Machine {
    pub(crate) fn new(
        clock: Clock,
        (controller, paths, outstanding): (Controller, [String; 2], OutstandingFile),
        inputs: mpsc::Receiver<Input>,
        events: broadcast::Sender<Arc<TimedEvent>>,
        cycle_seconds: Histogram,
    ) -> Self {
        Self {
            clock,
            controller,
            outstanding,
            orphans: Orphans::new(),
            paths,
            inputs,
            events,
            cycle_seconds,
            links: HashMap::new(),
            touched: Vec::new(),
            event_number: 0,
            event_log: EventLog::default(),
            cycles: VecDeque::new(),
        }
    }

    /// Selects and applies until `stop` is true. Links are closed at the end.
    pub(crate) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let next = self.controller.next_deadline().min(self.outstanding.next_retry());
            let next = self.clock.until(next.min(self.orphans.next_check()));
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => break,
                () = sleep(next) => {}
                count = self.inputs.recv_many(&mut batch, BATCH) => {
                    if count == 0 {
                        break;
                    }
                }
            }
            let cycles = self.controller.cycles();
            let started = self.controller.cycle_started();
            batch.drain(..).for_each(|input| self.apply(input));
            let now = self.clock.now();
            if self.controller.next_deadline() <= now {
                self.controller.on_deadline(now);
            }
            self.perform();
            if self.orphans.next_check() <= now {
                self.orphans.check(now, &mut self.controller);
                self.perform();
            }
            self.outstanding.retry(now);
            if self.controller.cycles() != cycles {
                self.note_cycle(started);
            }
        }
        self.links.values().for_each(|link| link.close());
    }

    fn apply(&mut self, input: Input) {
        let now = self.clock.now();
        match input {
            Input::Joined { link, mut peer, hello } => {
                let id = link.id;
                peer.is_watched &= self.orphans.may_have(peer.uid);
                self.links.insert(id, link);
                self.controller.on_hello(now, id, peer, hello);
            }
            Input::PeerMessage { connection, message } => {
                self.controller.on_message(now, connection, message);
            }
            Input::Closed { connection, reason } => self.close(connection, &reason),
            Input::Survey { reply } => {
                let _ = reply.send(self.survey(now));
            }
            Input::Delays { tenant, reply } => {
                let _ = reply.send(self.delays(now, &tenant));
            }
            Input::Record { session, is_last, reply } => {
                let _ = reply.send(self.controller.record(now, session, is_last));
            }
            Input::Apply { revision, policy, tenant_nodes, done } => {
                self.controller.set_home_nodes(tenant_nodes);
                self.controller.apply(now, revision, *policy);
                // Messages to peers go out before the waiting client gets its answer.
                self.perform();
                let _ = done.send(());
            }
            Input::Choose { nodes, chosen, done } => {
                nodes.iter().for_each(|node| self.controller.choose(*node, chosen));
                self.perform();
                let _ = done.send(());
            }
        }
    }

    /// Reports the end of a connection to the controller.
    fn close(&mut self, connection: ConnectionId, reason: &str) {
        if self.links.remove(&connection).is_some() {
            self.orphans.on_closed(self.clock.now());
            self.controller.on_closed(self.clock.now(), connection, reason);
        }
    }

    /// Carries out the controller's outputs.
    fn perform(&mut self) {
        loop {
            while let Some(output) = self.controller.poll_output() {
                match output {
                    Output::Send { to, message } => self.send(to, &message),
                    Output::Close { connection } => self.end(connection),
                    Output::Event(event) => self.publish(event),
                    Output::Remember(outstanding) => {
                        self.outstanding.store(self.clock.now(), outstanding);
                    }
                }
            }
            if self.touched.is_empty() {
                return;
            }
            // In the order of their first messages: decreases of one stage go out before increases
            // of another.
            for link in std::mem::take(&mut self.touched) {
                if let Err(error) = link.flush() {
                    self.drop_link(&link, &error);
                }
            }
        }
    }

    fn send(&mut self, to: ConnectionId, message: &ToPeer) {
        let Some(link) = self.links.get(&to).cloned() else { return };
        match link.push(message) {
            Ok(()) => self.touched.push(link),
            Err(error) => self.drop_link(&link, &error),
        }
    }

    /// Closes a connection once its queue is written.
    fn end(&mut self, connection: ConnectionId) {
        if let Some(link) = self.links.remove(&connection) {
            self.orphans.on_closed(self.clock.now());
            let _ = link.flush();
            link.close();
        }
    }

    /// Aborts a connection whose write failed.
    fn drop_link(&mut self, link: &PeerLink, error: &SendError) {
        link.abort();
        self.close(link.id, &error.to_string());
    }

    fn publish(&mut self, event: Event) {
        self.event_log.log(self.clock.now(), &event);
        self.event_number += 1;
        let timed = TimedEvent { number: self.event_number, at_ms: unix_ms(), event };
        // An error means only that no client watches.
        let _ = self.events.send(Arc::new(timed));
    }

    fn note_cycle(&mut self, started: Time) {
        let cycle = Duration::from_nanos(self.clock.now().since(started).0);
        self.cycle_seconds.observe(cycle.as_secs_f64());
        if self.cycles.len() == CYCLES_KEPT {
            self.cycles.pop_front();
        }
        self.cycles.push_back(cycle);
    }

    fn delays(&self, now: Time, tenant: &str) -> Result<Delays, DelaysError> {
        Ok(self.controller.delays(now, tenant)?)
    }

    fn survey(&self, now: Time) -> Survey {
        let waits = self.controller.waits();
        let mut status = self.controller.status(now);
        if let Some(cluster) = &mut status.cluster {
            [cluster.file, cluster.state] = self.paths.clone();
        }
        Survey {
            status,
            waits: waits
                .map(|(tenant, unit, waits)| (tenant.into(), unit, waits.clone()))
                .collect(),
            latency: self.controller.latency(),
            cycles: self.cycles.iter().copied().collect(),
        }
    }
}
