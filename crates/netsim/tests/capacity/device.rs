//! Devices on a clock that can slow down, run ahead and stand still.

use std::collections::BTreeMap;

use tidegate_model::{Bytes, Class, Portion, Span};
use tidegate_netsim::storage::{
    Before, Choice, Direction, DriveCommand, Parameters, Ssd, SsdEvent,
};
use tidegate_sim::rng::Stream;
use tidegate_sim::time::Picoseconds;

/// One request at a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    pub(crate) is_write: bool,
    pub(crate) bytes: u64,
    /// The index of the thread that made it.
    pub(crate) thread: usize,
}

/// The kinds of devices.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Every request takes the same time, whatever it is.
    Constant,
    /// A solid-state drive without a write cache, full and overwritten: it cleans while it works.
    Ssd,
    /// One request at a time; writes and bytes are slow, and times vary by half.
    Disk,
}

/// An event inside.
#[derive(Clone, Copy, Debug)]
enum Inside {
    Done(usize),
    Drive(SsdEvent),
}

/// A server whose requests take a time for themselves and for each byte, in picoseconds.
#[derive(Debug)]
struct Server {
    free_at: u64,
    read: (u64, u64),
    write: (u64, u64),
    /// The part by which times vary, in percent.
    jitter: u64,
}

#[derive(Debug)]
enum Model {
    Server(Server),
    Drive(Box<Ssd>),
}

/// A device. Its own time advances by `speed` for each nanosecond of the world's.
#[derive(Debug)]
pub(crate) struct Device {
    model: Model,
    random: Stream,
    events: BTreeMap<(u64, u64), Inside>,
    pushed: u64,
    speed: f64,
    /// The world's time in nanoseconds at the last change of the speed, and its own in picoseconds.
    since: (u64, u64),
}

const MICROSECOND: u64 = 1_000_000;

impl Device {
    pub(crate) fn new(kind: Kind) -> Self {
        let server = |read, write, jitter| Server { free_at: 0, read, write, jitter };
        let model = match kind {
            Kind::Constant => {
                Model::Server(server((250 * MICROSECOND, 0), (250 * MICROSECOND, 0), 0))
            }
            Kind::Disk => {
                Model::Server(server((400 * MICROSECOND, 5_000), (1_600 * MICROSECOND, 10_000), 50))
            }
            Kind::Ssd => {
                let mut drive = Ssd::new(&old_drive(), 1, 0);
                drive.add_queue(Class::High);
                Model::Drive(Box::new(drive))
            }
        };
        let random = Stream::new(7, "device", 0);
        Self { model, random, events: BTreeMap::new(), pushed: 0, speed: 1.0, since: (0, 0) }
    }

    /// From `now` on it is so many times as fast as it was made.
    pub(crate) fn set_speed(&mut self, now: u64, speed: f64) {
        self.since = (now, self.own(now));
        self.speed = speed;
    }

    fn own(&self, now: u64) -> u64 {
        self.since.1 + ((now - self.since.0) as f64 * 1_000.0 * self.speed) as u64
    }

    fn push(&mut self, at: u64, what: Inside) {
        self.pushed += 1;
        self.events.insert((at, self.pushed), what);
    }

    /// Takes a request.
    pub(crate) fn submit(&mut self, now: u64, io: Io) {
        let own = self.own(now);
        match &mut self.model {
            Model::Server(server) => {
                let (each, byte) = if io.is_write { server.write } else { server.read };
                let mean = each + byte * io.bytes;
                let spread = mean * server.jitter / 100;
                let took = self.random.within(mean - spread, mean + spread);
                server.free_at = server.free_at.max(own) + took;
                let at = server.free_at;
                self.push(at, Inside::Done(io.thread));
            }
            Model::Drive(drive) => {
                let places = drive.capacity().0 / io.bytes;
                let command = DriveCommand {
                    direction: if io.is_write { Direction::Write } else { Direction::Read },
                    class: Class::High,
                    at: Bytes(self.random.below(places) * io.bytes),
                    bytes: io.bytes as u32,
                    tag: io.thread as u64,
                };
                let mut later = Vec::new();
                drive
                    .submit(Picoseconds(own), 0, command, &mut |at, event| later.push((at, event)));
                later.into_iter().for_each(|(at, event)| self.push(at.0, Inside::Drive(event)));
            }
        }
    }

    /// When something happens next, in the world's time.
    pub(crate) fn next(&self) -> Option<u64> {
        let ((at, _), _) = self.events.first_key_value()?;
        if self.speed == 0.0 {
            return None;
        }
        let ahead = at.saturating_sub(self.since.1) as f64 / (1_000.0 * self.speed);
        Some(self.since.0 + ahead.ceil() as u64)
    }

    /// Lets it happen; the thread whose request is done by it, if any.
    pub(crate) fn advance(&mut self) -> Option<usize> {
        let ((at, _), inside) = self.events.pop_first()?;
        let (event, Model::Drive(drive)) = (inside, &mut self.model) else {
            let Inside::Done(thread) = inside else { return None };
            return Some(thread);
        };
        let Inside::Drive(event) = event else { return None };
        let mut later = Vec::new();
        let done = drive.on_event(Picoseconds(at), event, &mut |at, event| later.push((at, event)));
        later.into_iter().for_each(|(at, event)| self.push(at.0, Inside::Drive(event)));
        done.map(|done| done.command.tag as usize)
    }
}

/// Sixteen planes that were filled and overwritten.
fn old_drive() -> Parameters {
    let mut drive = Parameters::default();
    let geometry = &mut drive.geometry;
    (geometry.channels, geometry.chips, geometry.dies) = (4, 2, 1);
    (geometry.blocks, geometry.pages) = (64, 32);
    drive.cleaning.spare = Portion(250_000);
    drive.cleaning.threshold = Portion(80_000);
    drive.cleaning.reserve = 2;
    (drive.cleaning.choice, drive.cleaning.first) = (Choice::Greedy, false);
    drive.cache.writes = false;
    drive.before = Before { filled: Portion::WHOLE, overwrites: 3 };
    drive
}

/// A bound of latency that leaves room for what one request alone takes on the device.
pub(crate) const fn bound(kind: Kind) -> Span {
    let milliseconds = match kind {
        Kind::Constant => 10,
        Kind::Ssd => 100,
        Kind::Disk => 100,
    };
    Span(milliseconds * Span::MILLISECOND.0)
}
