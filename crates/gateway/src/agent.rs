//! The agent: one thread that receives the policy from the controller, and sends it the counters,
//! and requests that are recorded.
//!
//! The gateway never waits for its controller. Until it connects, the cluster file names the owners
//! of requests; while the controller is unreachable, the last policy does.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use tidegate_fabric::controller::ControllerLink;
use tidegate_fabric::reactor::{MessageQueue, Reactor};
use tidegate_fabric::stream::{Way, peer_process};
use tidegate_proto::message::{FromGateway, Hello, ToGateway, VERSION, VolumeFault};
use tidegate_proto::programs::KnownPrograms;
use tidegate_proto::stats::latency::Reported;
use tidegate_proto::stats::path::PathTimes;

use crate::clock;
use crate::status::Stats;
use crate::users;

/// The link's token.
const CONTROLLER: u64 = 0;

/// The agent's thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Agent {
    is_ending: Arc<AtomicBool>,
    waker: Arc<MessageQueue<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Agent {
    /// Connects to the controller as `name`, keeps the register up to date with its policy, and
    /// sends it the counters.
    ///
    /// # Errors
    /// If there is no descriptor or thread left.
    pub(crate) fn start(way: Way, name: String, stats: Arc<Stats>) -> io::Result<Self> {
        let reactor = Reactor::new()?;
        let (is_ending, waker) = (Arc::new(AtomicBool::new(false)), reactor.message_queue());
        let hello = Hello::Gateway { version: VERSION, name };
        let controller = ControllerLink::new(way, CONTROLLER, "gateway");
        let (faults, latency, paths) = (Vec::new(), Reported::default(), BTreeMap::new());
        let programs = KnownPrograms::new(peer_process::process_space());
        let watch =
            AgentState { controller, hello, stats, faults, latency, paths, programs, reactor };
        let ending = is_ending.clone();
        let (thread, span) =
            (thread::Builder::new().name("gateway-agent".into()), tracing::Span::current());
        let run = move || span.in_scope(|| watch.run(&ending));
        let thread = thread.spawn(run)?;
        Ok(Self { is_ending, waker, thread: Some(thread) })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        self.waker.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the gateway's agent has panicked");
        }
    }
}

/// The state of the thread.
struct AgentState {
    controller: ControllerLink<ToGateway>,
    hello: Hello,
    stats: Arc<Stats>,
    /// The faults of volumes that were sent to the controller on this link.
    faults: Vec<VolumeFault>,
    /// The latencies of requests, likewise.
    latency: Reported,
    /// Where requests spent their latencies, likewise.
    paths: BTreeMap<String, PathTimes>,
    /// Programs under the policy on this machine.
    programs: KnownPrograms,
    reactor: Reactor<()>,
}

impl AgentState {
    fn run(mut self, is_ending: &AtomicBool) {
        let mut ready = Vec::new();
        while !is_ending.load(Ordering::Acquire) {
            let now = clock::now();
            if self.controller.next_attempt() <= now
                && self.controller.connect(&self.reactor, now, &self.hello)
            {
                self.faults.clear();
                self.latency.clear();
                self.paths.clear();
            }
            let recorder = &self.stats.volumes.counts.recorder;
            if recorder.ends() <= now || !self.controller.is_open() {
                recorder.end();
            }
            if self.programs.next_deadline() <= now && self.programs.on_deadline(now) {
                self.publish_programs();
            }
            let next = self.controller.next_attempt().min(recorder.ends());
            let next = next.min(self.programs.next_deadline());
            let patience = clock::until(next);
            if let Err(error) = self.reactor.wait(patience, &mut ready, &mut Vec::new()) {
                // The descriptors are ours and the arguments too; there is nothing to wait for.
                tracing::error!(%error, "the gateway's agent cannot wait for events");
                return;
            }
            if !ready.is_empty() {
                ready.clear();
                self.receive();
            }
        }
        // The gateway has ended.
        self.send_counts();
        self.controller.send(&self.reactor, clock::now(), &FromGateway::Disconnect);
    }

    /// Takes the controller's messages.
    fn receive(&mut self) {
        while let Some(message) = self.controller.receive(&self.reactor, clock::now()) {
            match message {
                ToGateway::Policy { revision, policy } => {
                    tracing::info!(revision, "policy applied");
                    // The controller has kept nothing of tenants that the last policy did not have.
                    self.latency.clear();
                    self.paths.clear();
                    let (policy, user_names) = users::numbered(policy);
                    self.stats.register.apply(policy, user_names);
                }
                ToGateway::Count => {
                    self.stats.register.know();
                    let faults = self.stats.volume_faults();
                    if faults != self.faults {
                        self.faults.clone_from(&faults);
                        let faults = FromGateway::Faults(faults);
                        self.controller.send(&self.reactor, clock::now(), &faults);
                    }
                    self.send_counts();
                }
                ToGateway::Record { session } => {
                    let now = clock::now();
                    let batch = self.stats.volumes.counts.recorder.on_question(now, session);
                    if let Some(batch) = batch {
                        let recorded = FromGateway::Recorded(batch);
                        self.controller.send(&self.reactor, now, &recorded);
                    }
                }
                ToGateway::Programs { space, is_first, joined, left } => {
                    let (now, change) = (clock::now(), (joined, left));
                    if self.programs.on_message(now, &space, is_first, change) {
                        self.publish_programs();
                    }
                }
                // The link has ended.
                ToGateway::Refused { .. } => {}
            }
        }
    }

    fn publish_programs(&self) {
        self.stats.register.programs.publish(self.programs.table().clone());
    }

    fn send_counts(&mut self) {
        let counts = FromGateway::Counts(self.stats.counts());
        let pressure = FromGateway::Pressure(self.stats.pressure());
        let latency = self.latency.changed(self.stats.latency());
        let latency = (!latency.is_empty()).then_some(FromGateway::Latency(latency));
        let mut paths = self.stats.paths();
        paths.retain(|(tenant, times)| self.paths.get(tenant) != Some(times));
        self.paths.extend(paths.iter().cloned());
        let paths = (!paths.is_empty()).then_some(FromGateway::Paths(paths));
        for message in [counts, pressure].into_iter().chain(latency).chain(paths) {
            self.controller.send(&self.reactor, clock::now(), &message);
        }
    }
}
