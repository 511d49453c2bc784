//! Fault injection for one-sided memory: one client, and its connection, which delays operations.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_model::{SessionSlot, Span, Time};
use tidegate_onesided::haechi::port::OWN;
use tidegate_onesided::haechi::{Port, region_layout};
use tidegate_onesided::one_sided::{
    BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory,
};

use super::super::network::Endpoint;
use super::{ClientLoad, ClientSpec};

/// A connection on which the engine's own operations take longer, in their order.
pub(super) struct Late {
    inner: Endpoint,
    by: Rc<Cell<Span>>,
    now: Time,
    waiting: VecDeque<(Time, Post)>,
}

impl Late {
    pub(super) fn new(inner: Endpoint, by: Rc<Cell<Span>>) -> Self {
        Self { inner, by, now: Time::ZERO, waiting: VecDeque::new() }
    }

    fn begin(&mut self, now: Time) {
        self.now = now;
        while let Some((_, post)) = self.waiting.pop_front_if(|(at, _)| *at <= now) {
            // There are fewer than it holds.
            self.inner.post(post).expect("the connection has room");
        }
    }
}

impl RemoteMemory for Late {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        if post.id < OWN || (self.by.get() == Span::ZERO && self.waiting.is_empty()) {
            return self.inner.post(post);
        }
        self.waiting.push_back((self.now.after(self.by.get()), post));
        Ok(())
    }

    fn flush(&mut self, now: Time) -> Result<(), Lost> {
        self.begin(now);
        self.inner.flush(now)
    }

    fn poll(&mut self, now: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        self.begin(now);
        self.inner.poll(now, done)
    }

    fn buffers(&self) -> u32 {
        self.inner.buffers()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        self.inner.buffer(buffer)
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        self.inner.buffer_mut(buffer)
    }

    fn region(&self) -> u64 {
        self.inner.region()
    }
}

/// One client.
pub(super) struct Station {
    pub(super) port: Port<Late>,
    pub(super) slot: SessionSlot,
    pub(super) spec: ClientSpec,
    pub(super) late: Rc<Cell<Span>>,
    pub(super) is_dead: bool,
    /// Until when it stands still.
    pub(super) stopped: Time,
    /// When it is to be called.
    pub(super) alarm: Time,
    began: Time,
    posted: u64,
    done: Vec<Done>,
}

impl Station {
    pub(super) fn new(
        port: Port<Late>,
        slot: SessionSlot,
        spec: ClientSpec,
        late: Rc<Cell<Span>>,
        now: Time,
    ) -> Self {
        Self {
            port,
            slot,
            spec,
            late,
            is_dead: false,
            stopped: Time::ZERO,
            alarm: now,
            began: now,
            posted: 0,
            done: Vec::new(),
        }
    }

    /// Returns the operations that the client wants by now, in all.
    fn wanted(&self, now: Time) -> u64 {
        match self.spec.load {
            ClientLoad::All => u64::MAX,
            ClientLoad::Nothing => 0,
            ClientLoad::OnOff(phase) if (now.0 / phase.0).is_multiple_of(2) => u64::MAX,
            ClientLoad::OnOff(_) => 0,
            ClientLoad::Even(rate) => {
                let passed = u128::from(now.since(self.began).0);
                (passed * u128::from(rate) / u128::from(Span::SECOND.0)) as u64
            }
        }
    }

    pub(super) fn run(&mut self, now: Time) -> Result<(), Lost> {
        if self.is_dead || now < self.stopped {
            return Ok(());
        }
        self.port.poll(now, &mut self.done)?;
        self.done.clear();
        let wanted = self.wanted(now);
        let into = BufferPosition::start(0);
        let operation = Operation::Read { from: region_layout::DATA, into, length: 4096 };
        while self.posted < wanted && self.port.post(Post { id: 0, operation }).is_ok() {
            self.posted += 1;
        }
        self.port.flush(now)?;
        let soon = now.after(Span(1));
        self.alarm = self.port.next_deadline().max(soon).min(now.after(Span::MILLISECOND));
        Ok(())
    }

    pub(super) fn next(&self) -> Time {
        match self.is_dead {
            true => Time::MAX,
            false => self.alarm.max(self.stopped),
        }
    }
}
