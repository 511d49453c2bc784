//! A node whose calls are recorded, with arguments and results.
//!
//! Only tests have it, instead of the node itself and with the same methods, so that the shipped
//! code has nothing of it. Calls are recorded one at a time; races between them are for the model
//! checker ([`tidegate_algo::scheduling::shards`]).

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use tidegate_fabric::clock::Clock;
use tidegate_fabric::service::Command;
use tidegate_model::{Tag, Time};
use tidegate_proto::cluster::message::{NodeInfo, ToNode};
use tidegate_proto::node::{Config, Node, NodeRequest, NodeStatus, Output, Slot, threads};

use crate::engine::{Body, Work};
use crate::mutex::{MultiThreaded, lock};

thread_local! {
    /// Whether nodes that this thread makes record.
    pub(crate) static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// The identity of a request: the address of its owner, its ticket, and its offset in the part.
pub(crate) type Key = (usize, u64, u64);

/// A request as it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) key: Key,
    pub(crate) slot: Slot,
    pub(crate) command: Command,
    pub(crate) length: u32,
    pub(crate) tag: Tag,
}

/// The input of a call. Batches are as they were before the call.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Submit(Vec<Made>, Vec<Key>),
    Fill(usize, Vec<Key>),
    Dispatch(Vec<Key>),
    Completion(Vec<Key>),
    Reply(Key, u64),
    Finish { home: usize, finished: Vec<Key>, batch: Option<Vec<Key>>, follow: Vec<Vec<Made>> },
    Cancel,
    End,
    Elsewhere(Slot, u64),
    Advance,
    Connected,
    Message(ToNode),
    Disconnected,
    Poll,
    Status,
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Returned {
    pub(crate) keys: Vec<Key>,
    pub(crate) number: u64,
    pub(crate) output: Option<Output>,
    pub(crate) status: Option<NodeStatus>,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) input: Input,
    /// The times that it read.
    pub(crate) times: Vec<Time>,
    pub(crate) returned: Returned,
}

pub(crate) struct RecordedNode {
    node: Node<Body, MultiThreaded>,
    pub(crate) made: (Time, NodeInfo, Config),
    calls: Option<Mutex<Vec<Call>>>,
}

/// A clock that records its readings.
#[derive(Clone, Copy)]
struct Recorder<'a>(Clock, &'a RefCell<Vec<Time>>);

impl threads::Clock for Recorder<'_> {
    fn now(self) -> Time {
        let now = self.0.now();
        self.1.borrow_mut().push(now);
        now
    }
}

fn key(work: &Work) -> Key {
    let job = &work.body.job;
    (Arc::as_ptr(&work.body.owner).addr(), job.ticket, job.offset)
}

fn keys(batch: &[Work]) -> Vec<Key> {
    batch.iter().map(key).collect()
}

fn made(batch: &[Work]) -> Vec<Made> {
    let made = |work: &Work| {
        let job = &work.body.job;
        let (command, length, tag) = (job.command, job.length, job.tag);
        Made { key: key(work), slot: work.slot(), command, length, tag }
    };
    batch.iter().map(made).collect()
}

impl RecordedNode {
    pub(crate) fn new(now: Time, info: NodeInfo, config: Config) -> Self {
        let calls = RECORDS.get().then(Mutex::default);
        Self { node: Node::new(now, info.clone(), config), made: (now, info, config), calls }
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.as_ref().map_or_else(Vec::new, |calls| lock(calls).clone())
    }

    /// Makes a call, and records its result in the form that `describe` gives it.
    fn record<R>(
        &self,
        clock: Clock,
        call: impl FnOnce(Recorder<'_>) -> R,
        describe: impl FnOnce(&R) -> (Input, Returned),
    ) -> R {
        let mut calls = self.calls.as_ref().map(lock);
        let times = RefCell::new(Vec::new());
        let result = call(Recorder(clock, &times));
        if let Some(calls) = &mut calls {
            let (input, returned) = describe(&result);
            calls.push(Call { input, times: times.into_inner(), returned });
        }
        result
    }

    pub(crate) fn submit(
        &self,
        clock: Clock,
        requests: &mut Vec<Work>,
        batch: &mut Vec<Work>,
    ) -> usize {
        let (coming, before) = (made(requests), keys(batch));
        let submit = |clock: Recorder<'_>| (self.node.submit(clock, requests, batch), keys(batch));
        let describe = |(home, keys): &(usize, Vec<Key>)| {
            let returned =
                Returned { keys: keys.clone(), number: *home as u64, ..Returned::default() };
            (Input::Submit(coming, before), returned)
        };
        self.record(clock, submit, describe).0
    }

    pub(crate) fn fill(&self, home: usize, clock: Clock, batch: &mut Vec<Work>) -> Time {
        let before = keys(batch);
        let fill = |clock: Recorder<'_>| (self.node.fill(home, clock, batch), keys(batch));
        let describe = |(deadline, keys): &(Time, Vec<Key>)| {
            let returned =
                Returned { keys: keys.clone(), number: deadline.0, ..Returned::default() };
            (Input::Fill(home, before), returned)
        };
        self.record(clock, fill, describe).0
    }

    pub(crate) fn on_dispatch(&self, clock: Clock, batch: &mut [Work]) {
        let input = Input::Dispatch(keys(batch));
        let dispatch = |clock: Recorder<'_>| self.node.on_dispatch(clock, batch);
        self.record(clock, dispatch, |()| (input, Returned::default()));
    }

    pub(crate) fn on_completion(&self, clock: Clock, finished: &mut [Work]) {
        let input = Input::Completion(keys(finished));
        let complete = |clock: Recorder<'_>| self.node.on_completion(clock, finished);
        self.record(clock, complete, |()| (input, Returned::default()));
    }

    pub(crate) fn on_reply(&self, work: &Work, bytes: u64) {
        let reply = |_: Recorder<'_>| self.node.on_reply(work, bytes);
        let describe = |(): &()| (Input::Reply(key(work), bytes), Returned::default());
        self.record(Clock::start(), reply, describe);
    }

    pub(crate) fn finish(
        &self,
        home: usize,
        clock: Clock,
        finished: &mut [Work],
        mut batch: Option<&mut Vec<Work>>,
        mut follow: impl FnMut(&mut Work, &mut Vec<Work>),
    ) {
        let (done, before) = (keys(finished), batch.as_ref().map(|batch| keys(batch)));
        let mut followed = Vec::new();
        let finish = |clock: Recorder<'_>| {
            let follow = |work: &mut Work, next: &mut Vec<Work>| {
                follow(work, next);
                followed.push(made(next));
            };
            self.node.finish(home, clock, finished, batch.as_deref_mut(), follow);
            (batch.map_or_else(Vec::new, |batch| keys(batch)), followed)
        };
        let describe = |(keys, follow): &(Vec<Key>, Vec<Vec<Made>>)| {
            let follow = follow.clone();
            let input = Input::Finish { home, finished: done, batch: before, follow };
            (input, Returned { keys: keys.clone(), ..Returned::default() })
        };
        self.record(clock, finish, describe);
    }

    pub(crate) fn cancel(&self, clock: Clock, which: impl Fn(&Body) -> bool) -> Vec<Work> {
        let cancel = |clock: Recorder<'_>| self.node.cancel(clock, which);
        let returned = |keys| Returned { keys, ..Returned::default() };
        self.record(clock, cancel, |cancelled| (Input::Cancel, returned(keys(cancelled))))
    }

    pub(crate) fn end(&self, clock: Clock) -> Vec<Work> {
        let end = |clock: Recorder<'_>| self.node.end(clock);
        let returned = |keys| Returned { keys, ..Returned::default() };
        self.record(clock, end, |waiting| (Input::End, returned(keys(waiting))))
    }

    pub(crate) fn on_elsewhere(&self, slot: Slot, work: u64) {
        let elsewhere = |_: Recorder<'_>| self.node.on_elsewhere(slot, work);
        let describe = |(): &()| (Input::Elsewhere(slot, work), Returned::default());
        self.record(Clock::start(), elsewhere, describe);
    }

    pub(crate) fn advance(&self, clock: Clock) {
        let advance = |clock: Recorder<'_>| {
            self.node.advance(clock);
        };
        self.record(clock, advance, |()| (Input::Advance, Returned::default()));
    }

    pub(crate) fn on_connected(&self, clock: Clock) {
        let connected = |clock: Recorder<'_>| self.node.on_connected(clock);
        self.record(clock, connected, |()| (Input::Connected, Returned::default()));
    }

    pub(crate) fn on_message(&self, clock: Clock, message: ToNode) {
        let input = Input::Message(message.clone());
        let take = |clock: Recorder<'_>| self.node.on_message(clock, message);
        self.record(clock, take, |()| (input, Returned::default()));
    }

    pub(crate) fn on_disconnected(&self, clock: Clock) {
        let disconnected = |clock: Recorder<'_>| self.node.on_disconnected(clock);
        self.record(clock, disconnected, |()| (Input::Disconnected, Returned::default()));
    }

    pub(crate) fn poll_output(&self) -> Option<Output> {
        let poll = |_: Recorder<'_>| self.node.poll_output();
        let returned = |output| Returned { output, ..Returned::default() };
        self.record(Clock::start(), poll, |output| (Input::Poll, returned(output.clone())))
    }

    pub(crate) fn status(&self, clock: Clock) -> NodeStatus {
        let status = |clock: Recorder<'_>| self.node.status(clock);
        let returned = |status| Returned { status: Some(status), ..Returned::default() };
        self.record(clock, status, |status| (Input::Status, returned(status.clone())))
    }
}

/// Calls that are not recorded: they change nothing, and follow from the others.
impl Deref for RecordedNode {
    type Target = Node<Body, MultiThreaded>;

    fn deref(&self) -> &Self::Target {
        &self.node
    }
}

/// Makes the same calls of a node with one thread, and returns where it differs first.
pub(crate) fn replay(made: &(Time, NodeInfo, Config), calls: &[Call]) -> Result<(), String> {
    let (now, info, config) = made;
    let mut replay = Replay { node: Node::new(*now, info.clone(), *config), at_device: Vec::new() };
    for (number, call) in calls.iter().enumerate() {
        let times = RefCell::new(call.times.iter().rev().copied().collect());
        let returned = replay.call(&call.input, &call.returned.keys, Repeated(&times));
        let unread = times.into_inner();
        if returned != call.returned || !unread.is_empty() {
            return Err(format!(
                "call {number}: {call:?}\nreplayed: {returned:?}, {unread:?} unread"
            ));
        }
    }
    Ok(())
}

/// A clock that replays the readings of another.
#[derive(Clone, Copy)]
struct Repeated<'a>(&'a RefCell<Vec<Time>>);

impl threads::Clock for Repeated<'_> {
    fn now(self) -> Time {
        // None left: the replay reads the clock more often, and gets a time that reveals it.
        self.0.borrow_mut().pop().unwrap_or(Time::MAX)
    }
}

struct Replay {
    node: Node<Key>,
    at_device: Vec<NodeRequest<Key>>,
}

impl Replay {
    /// Those with these keys, which are at the device.
    fn take(&mut self, keys: &[Key]) -> Vec<NodeRequest<Key>> {
        let position =
            |all: &[NodeRequest<Key>], key| all.iter().position(|request| request.body == key);
        let take = |key: &Key| {
            let at = position(&self.at_device, *key);
            self.at_device.swap_remove(at.expect("a request that was dispatched"))
        };
        keys.iter().map(take).collect()
    }

    /// Makes requests as they were made.
    fn make(&self, made: &[Made]) -> Vec<NodeRequest<Key>> {
        let request = |made: &Made| {
            self.node.request(made.slot, made.command, made.length, &made.tag, made.key)
        };
        made.iter().map(request).collect()
    }

    fn call(&mut self, input: &Input, cancelled: &[Key], clock: Repeated<'_>) -> Returned {
        let keys = |batch: &[NodeRequest<Key>]| batch.iter().map(|request| request.body).collect();
        let mut returned = Returned::default();
        match input {
            Input::Submit(made, before) => {
                let (mut requests, mut batch) = (self.make(made), self.take(before));
                returned.number = self.node.submit(clock, &mut requests, &mut batch) as u64;
                returned.keys = keys(&batch);
                self.at_device.append(&mut batch);
            }
            Input::Fill(home, before) => {
                let mut batch = self.take(before);
                returned.number = self.node.fill(*home, clock, &mut batch).0;
                returned.keys = keys(&batch);
                self.at_device.append(&mut batch);
            }
            Input::Dispatch(batch) => {
                let mut batch = self.take(batch);
                self.node.on_dispatch(clock, &mut batch);
                self.at_device.append(&mut batch);
            }
            Input::Completion(finished) => {
                let mut finished = self.take(finished);
                self.node.on_completion(clock, &mut finished);
                self.at_device.append(&mut finished);
            }
            Input::Reply(key, bytes) => {
                let request = self.take(&[*key]);
                self.node.on_reply(&request[0], *bytes);
                self.at_device.extend(request);
            }
            Input::Finish { home, finished, batch, follow } => {
                let mut finished = self.take(finished);
                let mut batch = batch.as_ref().map(|before| self.take(before));
                let mut follow = follow.iter().map(|made| self.make(made));
                let follow = |_: &mut NodeRequest<Key>, next: &mut Vec<NodeRequest<Key>>| {
                    next.extend(follow.next().into_iter().flatten());
                };
                self.node.finish(*home, clock, &mut finished, batch.as_mut(), follow);
                returned.keys = batch.as_deref().map_or_else(Vec::new, keys);
                self.at_device.extend(batch.into_iter().flatten());
            }
            Input::Cancel => {
                returned.keys = keys(&self.node.cancel(clock, |key| cancelled.contains(key)));
            }
            Input::End => returned.keys = keys(&self.node.end(clock)),
            Input::Elsewhere(slot, work) => self.node.on_elsewhere(*slot, *work),
            Input::Advance => _ = self.node.advance(clock),
            Input::Connected => self.node.on_connected(clock),
            Input::Message(message) => self.node.on_message(clock, message.clone()),
            Input::Disconnected => self.node.on_disconnected(clock),
            Input::Poll => returned.output = self.node.poll_output(),
            Input::Status => returned.status = Some(self.node.status(clock)),
        }
        returned
    }
}
