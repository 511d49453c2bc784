//! Helpers that the scenarios share.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, CompletionSink, Job, Part, Session};
use tidegate_fabric::stream::Address;
use tidegate_model::cluster::Geometry;
use tidegate_model::{Bytes, Class, ContextId, Operation, PartNumber, Tag, TenantId};
use tidegate_node::volumes::{self, Creation, PartPlan, PartStore};
use tidegate_node::{Config, Running, StoreConfig};

/// How long anything may take before it counts as not happening.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A node in memory that listens at `node` in the folder.
pub(crate) fn config(folder: &Path) -> Config {
    let listen = Some(Address::Unix(folder.join("node")));
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    Config { listen, workers: 2, ..Config::new("a", store) }
}

/// Makes the part in a directory.
pub(crate) fn create(path: &Path) {
    let Part { volume, index, offset, geometry, .. } = part();
    let (node, store) = ("a".into(), PartStore::Directory(path.into()));
    let plan = PartPlan { node, store, volume, index, offset, geometry, fallback: None };
    volumes::create(&[plan], Creation::default()).unwrap();
}

/// A completion sink that passes jobs on to the waiting test.
struct Pipe(Mutex<Sender<Job>>);

impl CompletionSink for Pipe {
    fn finished(&self, jobs: &mut Vec<Job>) {
        let sender = self.0.lock().unwrap();
        // A test that has seen enough does not listen any more.
        jobs.drain(..).for_each(|job| drop(sender.send(job)));
    }
}

/// A session whose answers are waited for, wherever they come from.
pub(crate) struct Client {
    session: Box<dyn Session>,
    finished: Receiver<Job>,
    pub(crate) part: PartNumber,
}

impl Client {
    pub(crate) fn new(node: &Running, tenants: &[&str]) -> Self {
        let (sender, finished) = channel();
        let mut session = node.service().session(Arc::new(Pipe(Mutex::new(sender))));
        session.tenants(&tenants.iter().map(|name| String::from(*name)).collect::<Vec<_>>());
        let part = session.open(&part()).unwrap().number;
        Self { session, finished, part }
    }

    /// Submits, and gives back what was finished at once.
    pub(crate) fn submit(&mut self, mut jobs: Vec<Job>) -> Vec<Job> {
        let mut done = Vec::new();
        self.session.submit(&mut jobs, &mut done);
        assert!(jobs.is_empty());
        done
    }

    /// Gives up on jobs.
    pub(crate) fn cancel(&mut self, tickets: &[u64]) {
        self.session.cancel(tickets);
    }

    /// The next job that another thread finishes.
    pub(crate) fn finished(&self) -> Job {
        self.finished.recv_timeout(PATIENCE).expect("an answer within a minute")
    }

    pub(crate) fn request(&mut self, job: Job) -> Job {
        match self.submit(vec![job]).pop() {
            Some(job) => job,
            None => self.finished(),
        }
    }

    /// How many answers are there now.
    pub(crate) fn count(&self) -> usize {
        self.finished.try_iter().count()
    }
}

pub(crate) fn part() -> Part {
    let length = Bytes(16 << 20);
    let (volume, geometry) = ("v".into(), Geometry::single(length));
    Part { volume, index: 0, length, offset: Bytes(0), geometry }
}

pub(crate) fn read(part: PartNumber, ticket: u64, offset: u64, length: u32) -> Job {
    job(part, ticket, Command::Read, offset, length, Buffer::empty())
}

pub(crate) fn write(part: PartNumber, ticket: u64, offset: u64, bytes: &[u8]) -> Job {
    let command = Command::Write { durable: false };
    job(part, ticket, command, offset, bytes.len() as u32, bytes.into())
}

pub(crate) fn job(
    part: PartNumber,
    ticket: u64,
    command: Command,
    offset: u64,
    length: u32,
    buffer: Buffer,
) -> Job {
    let tag = Tag {
        tenant: TenantId(1),
        context: ContextId::NONE,
        class: Class::Medium,
        operation: Operation::Read,
        cost: length,
        delay: 0,
    };
    Job::new(ticket, tag, command, (part, offset, length), buffer)
}
