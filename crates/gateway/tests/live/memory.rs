//! A node that is made of memory and does as it is told: at once, later from another thread, or not
//! until it is let.

use std::sync::{Arc, Mutex, MutexGuard};

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{
    Command, CompletionSink, Fault, Job, OpenPart, Part, PartState, Service, Session,
};
use tidegate_model::cluster::{Uuid, VolumeStamp};
use tidegate_model::{Class, PartNumber, TenantId};
use tidegate_proto::data::LinkKind;

/// When jobs are done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Before the call that submits them returns.
    #[default]
    AtOnce,
    /// By another thread, in reverse order.
    Later,
    /// When the test says so: [`Memory::release`].
    OnDemand,
    /// Never: each fails with this.
    Failing(Fault),
}

/// A node. Clones are the same node.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    behaviour: Behaviour,
    parts: Vec<(Part, Vec<u8>)>,
    held: Vec<(Arc<dyn CompletionSink>, Job)>,
    /// How many jobs came, by command.
    seen: Vec<(Command, usize)>,
    /// The tenant's name of the last job that came.
    owner: String,
    /// Behind a socket, the link of the last job, and its class.
    link: (LinkKind, Class),
    cancelled: usize,
    /// Behind a socket it reads nothing more from a connection on which a long job came.
    is_stuck_by_long: bool,
    /// How often acknowledged writes were lost.
    losses: u64,
    /// The volume of its parts, if they bear a label.
    identity: Option<VolumeStamp>,
    /// Behind a socket it welcomes links for long requests only.
    is_bulk_only: bool,
    /// Behind a socket it welcomes no link.
    withholds_welcomes: bool,
    /// Behind a socket it does not say of any link that it is fenced.
    withholds_fences: bool,
    /// Jobs that are cancelled stay, as they do at a device.
    keeps_cancelled: bool,
    /// The reply to requests with keys; that there is nothing if it is empty.
    reply: Vec<u8>,
    /// Bytes that jobs moved here, and that it was told were moved elsewhere: with jobs, and alone.
    moved: u64,
    elsewhere_bytes: [u64; 2],
}

impl Memory {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// From here on, jobs are done with this behaviour.
    pub(crate) fn set(&self, behaviour: Behaviour) {
        self.inner().behaviour = behaviour;
    }

    /// From here on, it reads nothing more from a connection on which a long job came.
    pub(crate) fn stick_at_long(&self) {
        self.inner().is_stuck_by_long = true;
    }

    /// Whether it is stuck when such jobs have come.
    pub(crate) fn is_stuck_by(&self, jobs: &[Job]) -> bool {
        self.inner().is_stuck_by_long && jobs.iter().any(|job| job.length > 64 << 10)
    }

    /// Acknowledged writes are lost, as if it had started anew.
    pub(crate) fn lose(&self) {
        let inner = &mut *self.inner();
        inner.losses += 1;
        inner.parts.iter_mut().for_each(|(_, bytes)| bytes.fill(0));
    }

    /// From here on, its parts are of the volume with this UUID.
    pub(crate) fn belongs_to(&self, uuid: u8) {
        self.inner().identity = Some(VolumeStamp { uuid: Uuid([uuid; 16]), generation: 1 });
    }

    /// Whether it welcomes links for long requests only.
    pub(crate) fn set_bulk_only(&self, is_bulk_only: bool) {
        self.inner().is_bulk_only = is_bulk_only;
    }

    pub(crate) fn is_bulk_only(&self) -> bool {
        self.inner().is_bulk_only
    }

    /// Whether it welcomes no link for the moment, and fences none.
    pub(crate) fn withhold_welcomes(&self, withholds: bool) {
        let mut inner = self.inner();
        (inner.withholds_welcomes, inner.withholds_fences) = (withholds, withholds);
    }

    /// From here on, it fences links.
    pub(crate) fn release_fences(&self) {
        self.inner().withholds_fences = false;
    }

    pub(crate) fn withholds_fences(&self) -> bool {
        self.inner().withholds_fences
    }

    pub(crate) fn withholds_welcomes(&self) -> bool {
        self.inner().withholds_welcomes
    }

    /// Whether jobs that are cancelled stay, as they do at a device.
    pub(crate) fn keep_cancelled(&self, keeps_cancelled: bool) {
        self.inner().keeps_cancelled = keeps_cancelled;
    }

    /// From here on, this is the reply to requests with keys.
    pub(crate) fn set_reply(&self, reply: Vec<u8>) {
        self.inner().reply = reply;
    }

    /// Jobs that wait for [`Self::release`].
    pub(crate) fn held(&self) -> usize {
        self.inner().held.len()
    }

    /// Does all jobs that wait.
    pub(crate) fn release(&self) {
        let held = std::mem::take(&mut self.inner().held);
        for (sink, mut job) in held {
            self.inner().serve(&mut job);
            sink.finished(&mut vec![job]);
        }
    }

    /// How many jobs of this kind came.
    pub(crate) fn seen(&self, command: Command) -> usize {
        let inner = self.inner();
        inner.seen.iter().find(|(seen, _)| *seen == command).map_or(0, |(_, count)| *count)
    }

    /// The owner of the last job.
    pub(crate) fn last_owner(&self) -> String {
        self.inner().owner.clone()
    }

    /// A job of this class came over a link of this kind.
    pub(crate) fn on_link(&self, kind: LinkKind, class: Class) {
        self.inner().link = (kind, class);
    }

    /// The link of the last job, and its class.
    pub(crate) fn last_link(&self) -> (LinkKind, Class) {
        self.inner().link
    }

    /// Bytes that jobs moved here.
    pub(crate) fn moved(&self) -> u64 {
        self.inner().moved
    }

    /// Bytes moved at other nodes, as reported with jobs and alone.
    pub(crate) fn elsewhere_bytes(&self) -> [u64; 2] {
        self.inner().elsewhere_bytes
    }

    /// How many jobs were cancelled while they waited.
    pub(crate) fn cancelled(&self) -> usize {
        self.inner().cancelled
    }
}

impl Inner {
    fn count(&mut self, command: Command) {
        match self.seen.iter_mut().find(|(seen, _)| *seen == command) {
            Some((_, count)) => *count += 1,
            None => self.seen.push((command, 1)),
        }
    }

    fn serve(&mut self, job: &mut Job) {
        if let Behaviour::Failing(fault) = self.behaviour {
            job.outcome = Err(fault);
            return;
        }
        if job.command == Command::KeyValue {
            let reply = if self.reply.is_empty() { b"END\r\n" } else { &self.reply[..] };
            job.buffer = Buffer::from(reply);
            return;
        }
        let bytes = &mut self.parts[job.part.index()].1;
        if job.command == Command::Flush {
            // Zero is of a client that came before any node.
            let is_lost = ![0, 1 + self.losses].contains(&job.incarnation);
            job.outcome = if is_lost { Err(Fault::Io) } else { Ok(()) };
        }
        let range = job.offset as usize..job.offset as usize + job.length as usize;
        assert!(range.end <= bytes.len(), "{job:?} is not in its part");
        match job.command {
            Command::Read => job.buffer.copy_from_slice(&bytes[range]),
            Command::Write { .. } => bytes[range].copy_from_slice(&job.buffer),
            Command::Discard { .. } | Command::Zero { .. } => bytes[range].fill(0),
            Command::Map => job.buffer = extents(&bytes[range]),
            Command::Flush => assert_eq!(job.length, 0),
            Command::KeyValue => unreachable!("it is not about bytes"),
        }
    }
}

/// Blocks that are zeros are holes.
fn extents(bytes: &[u8]) -> Buffer {
    let mut map = Vec::new();
    for block in bytes.chunks(4096).take(200) {
        let flags = if block.iter().all(|byte| *byte == 0) { 3_u64 } else { 0 };
        map.extend((block.len() as u64).to_le_bytes());
        map.extend(flags.to_le_bytes());
    }
    Buffer::from(&map[..])
}

impl Service for Memory {
    fn session(&self, sink: Arc<dyn CompletionSink>) -> Box<dyn Session> {
        Box::new(Talk { node: self.clone(), sink, tenants: Vec::new() })
    }
}

struct Talk {
    node: Memory,
    sink: Arc<dyn CompletionSink>,
    tenants: Vec<String>,
}

impl Session for Talk {
    fn tenants(&mut self, names: &[String]) {
        self.tenants = names.to_vec();
    }

    fn open(&mut self, part: &Part) -> Result<OpenPart, String> {
        if part.length.0 > 1 << 30 {
            return Err("it has no more than a gibibyte".into());
        }
        let Inner { parts, losses, identity, .. } = &mut *self.node.inner();
        let index = parts.iter().position(|(open, _)| open == part).unwrap_or_else(|| {
            parts.push((part.clone(), vec![0; part.length.0 as usize]));
            parts.len() - 1
        });
        let state = PartState { incarnation: 1 + *losses, identity: *identity };
        Ok(OpenPart { number: PartNumber::at(index), state })
    }

    fn submit(&mut self, jobs: &mut Vec<Job>, done: &mut Vec<Job>) {
        let mut inner = self.node.inner();
        for job in jobs.iter() {
            inner.count(job.command);
            inner.moved += u64::from(job.length);
            inner.elsewhere_bytes[0] += u64::from(job.tag.delay);
        }
        if let Some(job) = jobs.last() {
            let index = usize::from(job.tag.tenant.0).checked_sub(1);
            let owner = index.map_or("", |index| &self.tenants[index]);
            owner.clone_into(&mut inner.owner);
        }
        match inner.behaviour {
            Behaviour::AtOnce | Behaviour::Failing(_) => {
                for mut job in jobs.drain(..) {
                    inner.serve(&mut job);
                    done.push(job);
                }
            }
            Behaviour::OnDemand => {
                inner.held.extend(jobs.drain(..).map(|job| (self.sink.clone(), job)));
            }
            Behaviour::Later => {
                let (node, sink) = (self.node.clone(), self.sink.clone());
                let mut jobs: Vec<Job> = jobs.drain(..).rev().collect();
                std::thread::spawn(move || {
                    jobs.iter_mut().for_each(|job| node.inner().serve(job));
                    sink.finished(&mut jobs);
                });
            }
        }
    }

    fn elsewhere(&mut self, costs: &[(TenantId, u64)]) {
        self.node.inner().elsewhere_bytes[1] += costs.iter().map(|(_, cost)| cost).sum::<u64>();
    }

    fn cancel(&mut self, tickets: &[u64]) {
        let mut inner = self.node.inner();
        if inner.keeps_cancelled {
            return;
        }
        let lost = inner.held.extract_if(.., |(_, job)| tickets.contains(&job.ticket));
        let mut lost: Vec<Job> = lost.map(|(_, job)| job).collect();
        inner.cancelled += lost.len();
        lost.iter_mut().for_each(|job| job.outcome = Err(Fault::Ending));
        drop(inner);
        self.sink.finished(&mut lost);
    }
}
