//! Programs under the policy, which gateways of the same machine recognise among their clients.
//!
//! # Problem
//! A program under `tidegate run` has a tenant, and may open a gateway's Unix socket. Only the
//! kernel can name the process of a client, and only the controller knows which process acts for
//! which tenant.
//!
//! # Mechanism
//! The controller keeps the processes of its stages on this machine ([`RegisteredPrograms`]) and
//! sends its gateways each change. A gateway finds the process of a client and that process's
//! ancestors, and looks them up ([`KnownPrograms`]): the nearest one that is registered decides,
//! if the client has the same user.
//!
//! A process is its number and the time when it began, so a number that is used again is another
//! process. Numbers mean something in one process namespace of one running machine only: a message
//! names both, and a gateway elsewhere ignores it.
//!
//! # Restarts
//! A controller that starts anew knows no program until the stages connect again, which they try
//! every two seconds at least. So its first message does not end the earlier programs at once: they
//! have [`GRACE`] to be registered again. A gateway without its controller keeps what it knows.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use tidegate_model::{Span, StageId, Time};

use crate::message::{ProcessId, Program, StageInfo, ToGateway};
use crate::session::{ConnectionId, Peer};

/// How long a gateway keeps programs that a new run of the controller has not registered yet: five
/// of the longest pauses between two attempts of a stage to connect.
pub const GRACE: Span = Span(10 * Span::SECOND.0);

/// Programs of one message. The first messages to a gateway have all of them.
const BATCH: usize = 1_000;

/// The controller's side: the processes of stages on its machine, and the gateways that are sent
/// them.
#[derive(Debug, Default)]
pub(crate) struct RegisteredPrograms {
    /// The machine and the namespace in which processes have their numbers; empty if that is
    /// unknown, and then no gateway is sent anything.
    space: String,
    by_stage: BTreeMap<StageId, Program>,
    /// The stages of each process: one that runs several may act for several tenants.
    stages: BTreeMap<ProcessId, BTreeSet<StageId>>,
    gateways: BTreeSet<ConnectionId>,
}

impl RegisteredPrograms {
    pub(crate) fn new(space: String) -> Self {
        Self { space, ..Self::default() }
    }

    /// A stage was accepted. Returns the message for the gateways, if there is one.
    pub(crate) fn join(&mut self, id: StageId, peer: &Peer, info: &StageInfo) -> Option<ToGateway> {
        let before = self.leave(id);
        let Some(process) = peer.process.filter(|_| !peer.is_remote()) else { return before };
        let program = Program { process, uid: peer.uid, tenant: info.tenant.clone() };
        self.by_stage.insert(id, program);
        self.stages.entry(process).or_default().insert(id);
        let mut left = match before {
            Some(ToGateway::Programs { left, .. }) => left,
            _ => vec![],
        };
        left.retain(|earlier| *earlier != process);
        self.change(vec![self.merged(process)?], left)
    }

    /// A stage has left. Returns the message for the gateways, if there is one.
    pub(crate) fn leave(&mut self, id: StageId) -> Option<ToGateway> {
        let process = self.by_stage.remove(&id)?.process;
        let others = self.stages.get_mut(&process)?;
        others.remove(&id);
        if others.is_empty() {
            self.stages.remove(&process);
        }
        match self.merged(process) {
            Some(program) => self.change(vec![program], vec![]),
            None => self.change(vec![], vec![process]),
        }
    }

    /// A gateway was accepted. Returns the messages for it: all programs, if it is on this machine.
    pub(crate) fn on_gateway(&mut self, to: ConnectionId, peer: &Peer) -> Vec<ToGateway> {
        if peer.is_remote() || self.space.is_empty() {
            return vec![];
        }
        self.gateways.insert(to);
        let programs = self.stages.keys().filter_map(|process| self.merged(*process));
        let programs: Vec<Program> = programs.collect();
        let message = |is_first, joined: &[Program]| ToGateway::Programs {
            space: self.space.clone(),
            is_first,
            joined: joined.to_vec(),
            left: vec![],
        };
        // The first message is sent without programs, too: the gateway may know those of an earlier
        // run.
        let (first, rest) = programs.split_at(programs.len().min(BATCH));
        let rest = rest.chunks(BATCH).map(|joined| message(false, joined));
        [message(true, first)].into_iter().chain(rest).collect()
    }

    /// A connection has ended.
    pub(crate) fn on_closed(&mut self, connection: ConnectionId) {
        self.gateways.remove(&connection);
    }

    /// The gateways that are sent each change.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = ConnectionId> {
        self.gateways.iter().copied()
    }

    /// The program that a process is, by all of its stages: without a tenant if they differ.
    fn merged(&self, process: ProcessId) -> Option<Program> {
        let mut programs = self.stages.get(&process)?.iter().filter_map(|id| self.by_stage.get(id));
        let first = programs.next()?.clone();
        let is_clear = programs.all(|it| *it == first);
        Some(if is_clear { first } else { Program { tenant: String::new(), ..first } })
    }

    fn change(&self, joined: Vec<Program>, left: Vec<ProcessId>) -> Option<ToGateway> {
        let space = self.space.clone();
        (!space.is_empty()).then_some(ToGateway::Programs { space, is_first: false, joined, left })
    }
}

/// The gateway's side: the programs of its machine.
///
/// ```
/// use tidegate_model::{Span, Time};
/// use tidegate_proto::message::{ProcessId, Program};
/// use tidegate_proto::programs::{GRACE, KnownPrograms};
///
/// let shell = ProcessId { pid: 7, started: 100 };
/// let program = Program { process: shell, uid: 1000, tenant: "etl".into() };
/// let mut programs = KnownPrograms::new("this machine".into());
/// programs.on_message(Time::ZERO, "this machine", true, (vec![program], vec![]));
/// let client = ProcessId { pid: 9, started: 101 };
/// assert_eq!(programs.table().tenant(1000, &[client, shell]), Some("etl"));
/// assert_eq!(programs.table().tenant(1001, &[client, shell]), None);
/// // The controller has started anew, and the program does not come back.
/// programs.on_message(Time::ZERO, "this machine", true, (vec![], vec![]));
/// programs.on_deadline(programs.next_deadline());
/// assert_eq!(programs.table().tenant(1000, &[shell]), None);
/// ```
#[derive(Debug, Default)]
pub struct KnownPrograms {
    space: String,
    table: ProgramTable,
    /// Programs that the present run of the controller has not registered, each with its end.
    unconfirmed: BTreeMap<ProcessId, Time>,
}

/// Programs by their processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramTable(BTreeMap<ProcessId, Program>);

impl KnownPrograms {
    /// No programs yet, of a gateway in this process namespace: empty if it is unknown, and then
    /// there will be none.
    pub fn new(space: String) -> Self {
        Self { space, ..Self::default() }
    }

    /// The controller, whose processes have their numbers in `space`, has sent the programs that
    /// have begun and the processes that have ended; `is_first` if that is its first message on a
    /// connection. Returns whether the table changed.
    pub fn on_message(
        &mut self,
        now: Time,
        space: &str,
        is_first: bool,
        (joined, left): (Vec<Program>, Vec<ProcessId>),
    ) -> bool {
        if space != self.space || space.is_empty() {
            let is_changed = !self.table.0.is_empty();
            *self = Self::new(core::mem::take(&mut self.space));
            return is_changed;
        }
        if is_first {
            // A program that waits already keeps its deadline, however often controllers start.
            for process in self.table.0.keys() {
                self.unconfirmed.entry(*process).or_insert(now.after(GRACE));
            }
        }
        let mut is_changed = false;
        for process in left {
            self.unconfirmed.remove(&process);
            is_changed |= self.table.0.remove(&process).is_some();
        }
        for program in joined {
            self.unconfirmed.remove(&program.process);
            let before = self.table.0.insert(program.process, program.clone());
            is_changed |= before.as_ref() != Some(&program);
        }
        is_changed
    }

    /// The time that [`Self::next_deadline`] named has come. Returns whether the table changed.
    pub fn on_deadline(&mut self, now: Time) -> bool {
        let ended: Vec<ProcessId> = {
            let is_over = |(process, end): (&ProcessId, &Time)| (*end <= now).then_some(*process);
            self.unconfirmed.iter().filter_map(is_over).collect()
        };
        for process in &ended {
            self.unconfirmed.remove(process);
            self.table.0.remove(process);
        }
        !ended.is_empty()
    }

    /// When to call [`Self::on_deadline`]; changes with each message.
    pub fn next_deadline(&self) -> Time {
        self.unconfirmed.values().min().copied().unwrap_or(Time::MAX)
    }

    /// The programs that are known now.
    pub const fn table(&self) -> &ProgramTable {
        &self.table
    }
}

impl ProgramTable {
    /// Whether there is no program.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tenant of a client of this user, by its process and then that process's ancestors, the
    /// nearest first. None if none of them is registered, or if the nearest one that is has another
    /// user or no tenant of its own.
    pub fn tenant(&self, uid: u32, processes: &[ProcessId]) -> Option<&str> {
        let program = processes.iter().find_map(|process| self.0.get(process))?;
        let is_own = program.uid == uid && !program.tenant.is_empty();
        is_own.then_some(&*program.tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: &str = "machine";
    const GATEWAY: ConnectionId = ConnectionId(9);

    const fn process(pid: u32) -> ProcessId {
        ProcessId { pid, started: 50 }
    }

    fn program(pid: u32, tenant: &str) -> Program {
        Program { process: process(pid), uid: 7, tenant: tenant.into() }
    }

    fn peer(pid: u32) -> Peer {
        Peer { pid, uid: 7, process: Some(process(pid)), ..Peer::default() }
    }

    fn info(tenant: &str) -> StageInfo {
        StageInfo { tenant: tenant.into(), ..StageInfo::default() }
    }

    fn known(programs: &[Program]) -> KnownPrograms {
        let mut known = KnownPrograms::new(SPACE.into());
        known.on_message(Time::ZERO, SPACE, true, (programs.to_vec(), vec![]));
        known
    }

    /// Hands a message of the controller to the gateway.
    fn take(known: &mut KnownPrograms, now: Time, message: impl IntoIterator<Item = ToGateway>) {
        for message in message {
            let ToGateway::Programs { space, is_first, joined, left } = message else {
                panic!("{message:?}")
            };
            known.on_message(now, &space, is_first, (joined, left));
        }
    }

    #[test]
    fn a_client_has_the_tenant_of_the_nearest_program_above_it() {
        let known = known(&[program(10, "a"), program(20, "b"), program(30, "")]);
        let tenant = |uid, processes: &[ProcessId]| known.table().tenant(uid, processes);
        assert_eq!(tenant(7, &[process(10)]), Some("a"));
        assert_eq!(tenant(7, &[process(40), process(20), process(10)]), Some("b"));
        assert_eq!(tenant(7, &[process(30), process(10)]), None, "the nearest has no tenant");
        assert_eq!(tenant(7, &[process(40)]), None);
        assert_eq!(tenant(8, &[process(10)]), None, "another user");
        assert_eq!(tenant(0, &[process(10)]), None, "root is another user, too");
        let reused = ProcessId { started: 51, ..process(10) };
        assert_eq!(tenant(7, &[reused]), None, "another process with the same number");
    }

    #[test]
    fn programs_come_and_go() {
        let mut registered = RegisteredPrograms::new(SPACE.into());
        let mut known = KnownPrograms::new(SPACE.into());
        take(&mut known, Time::ZERO, registered.join(StageId(1), &peer(10), &info("a")));
        take(&mut known, Time::ZERO, registered.on_gateway(GATEWAY, &Peer::default()));
        let owner =
            |known: &KnownPrograms| known.table().tenant(7, &[process(10)]).map(String::from);
        assert_eq!(owner(&known).as_deref(), Some("a"));
        // A stage that connects again is another process.
        take(&mut known, Time::ZERO, registered.join(StageId(1), &peer(11), &info("b")));
        assert_eq!(owner(&known), None);
        assert_eq!(known.table().tenant(7, &[process(11)]), Some("b"));
        // Two stages of one process that differ tell nothing, until one of them is left.
        take(&mut known, Time::ZERO, registered.join(StageId(2), &peer(11), &info("c")));
        assert_eq!(known.table().tenant(7, &[process(11)]), None);
        take(&mut known, Time::ZERO, registered.leave(StageId(1)));
        assert_eq!(known.table().tenant(7, &[process(11)]), Some("c"));
        take(&mut known, Time::ZERO, registered.leave(StageId(2)));
        assert!(known.table().is_empty());
        assert_eq!(registered.leave(StageId(2)), None);
        assert!(registered.stages.is_empty() && registered.by_stage.is_empty());
        assert!(registered.gateways().eq([GATEWAY]));
        registered.on_closed(GATEWAY);
        assert_eq!(registered.gateways().count(), 0);
    }

    #[test]
    fn stages_and_gateways_of_other_machines_have_no_part() {
        let mut registered = RegisteredPrograms::new(SPACE.into());
        let remote = Peer { certificate: Some(vec![]), ..peer(10) };
        assert_eq!(registered.join(StageId(1), &remote, &info("a")), None);
        let unknown = Peer { process: None, ..peer(10) };
        assert_eq!(registered.join(StageId(1), &unknown, &info("a")), None);
        assert_eq!(registered.on_gateway(GATEWAY, &remote), []);
        assert_eq!(registered.gateways().count(), 0);
        // A controller that does not know where it is.
        let mut registered = RegisteredPrograms::default();
        assert_eq!(registered.join(StageId(1), &peer(10), &info("a")), None);
        assert_eq!(registered.on_gateway(GATEWAY, &Peer::default()), []);
        // A gateway that is elsewhere, or does not know where it is.
        for space in ["other", ""] {
            let mut known = KnownPrograms::new(space.into());
            assert!(!known.on_message(Time::ZERO, SPACE, true, (vec![program(1, "a")], vec![])));
            assert!(!known.on_message(Time::ZERO, "", true, (vec![program(1, "a")], vec![])));
            assert!(known.table().is_empty());
        }
        let mut known = known(&[program(10, "a")]);
        assert!(known.on_message(Time::ZERO, "other", true, (vec![program(10, "a")], vec![])));
        assert!(known.table().is_empty(), "another controller");
    }

    #[test]
    fn a_controller_that_starts_anew_has_time_to_learn_of_programs_again() {
        let mut known = known(&[program(10, "a"), program(20, "b")]);
        assert_eq!(known.next_deadline(), Time::MAX);
        let second = Time(Span::SECOND.0);
        assert!(!known.on_message(Time::ZERO, SPACE, true, (vec![], vec![])));
        // It starts again and again: the first deadline holds.
        assert!(!known.on_message(second, SPACE, true, (vec![], vec![])));
        assert!(!known.on_message(second, SPACE, false, (vec![program(10, "a")], vec![])));
        assert_eq!(known.next_deadline(), Time::ZERO.after(GRACE));
        assert!(!known.on_deadline(second));
        assert_eq!(known.table().tenant(7, &[process(20)]), Some("b"));
        assert!(known.on_deadline(known.next_deadline()));
        assert_eq!(known.table().tenant(7, &[process(20)]), None);
        assert_eq!(known.table().tenant(7, &[process(10)]), Some("a"));
        assert_eq!(known.next_deadline(), Time::MAX);
    }

    #[test]
    fn all_programs_are_sent_to_a_gateway_in_messages_of_bounded_length() {
        let mut registered = RegisteredPrograms::new(SPACE.into());
        let count = u32::try_from(2 * BATCH + 1).unwrap();
        for pid in 1..=count {
            registered.join(StageId(pid.into()), &peer(pid), &info("a"));
        }
        let messages = registered.on_gateway(GATEWAY, &Peer::default());
        assert_eq!(messages.len(), 3);
        let mut known = KnownPrograms::new(SPACE.into());
        take(&mut known, Time::ZERO, messages);
        assert_eq!(known.table().0.len(), count as usize);
        assert_eq!(known.next_deadline(), Time::MAX);
    }
}
