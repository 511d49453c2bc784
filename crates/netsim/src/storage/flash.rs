//! Flash chips behind channels: when each chip reads, programs and erases.
//!
//! # Model
//! After MQSim (Tavakkol et al., FAST 2018), reduced to what its own results show to matter.
//!
//! - A *chip* does one thing at a time, from the first bit of the command to the last bit of data:
//!   dies and planes of one chip do not overlap. A read is 290 ns of command on the bus, 75 us in
//!   the cells, and 12.3 us of data for 4 KiB on the bus; a program is a command with its data,
//!   then 750 us.
//! - A *channel* is one bus for its chips. When it is free, data that a chip has read go first, in
//!   the order in which they became ready; then the next chip that is idle and has something to do
//!   gets its command, in turn.
//! - A chip takes reads before programs, each by arbitration between classes ([`Arbiter`]).
//!   Cleaning has queues of its own, which go before all that, or after.
//!
//! # Mechanism
//! Two kinds of events. A chip's: its cells are done, that is, its command's time and the cells'
//! together. A bus's: it is free, while something waits for it. So a read that meets no other
//! operation costs two events: cells done, data out. A bit for each chip of a channel is set if it
//! is idle and has something to do, so to find the next is to rotate a word and count zeros.

use std::collections::VecDeque;

use tidegate_algo::scheduling::wrr::{Arbiter, Level};
use tidegate_model::Class;
use tidegate_model::tag::CLASSES;

use super::parameters::{self, Parameters, duration};
use crate::slots::Slots;
use tidegate_sim::time::Picoseconds;

/// The kinds of work of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChipWork {
    /// Reads a page for a command.
    Read,
    /// Reads the rest of a page of which a part is written.
    Update,
    Program,
    /// Reads a page that cleaning moves.
    MoveOut,
    /// Programs it elsewhere.
    MoveIn,
    Erase,
}

/// On whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationOwner {
    /// A command, by its slot.
    Command(u32),
    /// The cache: so many sectors of a page of the drive.
    Cache { page: u32, sectors: u32 },
    /// Cleaning.
    Cleaning,
}

/// One thing that a chip does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) work: ChipWork,
    pub(super) class: Class,
    pub(super) owner: OperationOwner,
    /// Of all planes.
    pub(super) plane: u32,
    /// The logical page in the plane.
    pub(super) page: u32,
    /// The physical page, or the block.
    pub(super) physical: u32,
    /// Bytes that go over the bus.
    pub(super) bytes: u32,
}

/// Something that happens to a channel or a chip, by number.
#[derive(Clone, Copy, Debug)]
pub(super) enum FlashEvent {
    Bus(u16),
    Chip(u16),
}

/// The queues before a chip, and its operation under way.
#[derive(Debug)]
struct Chip {
    reads: Arbiter<u32>,
    programs: Arbiter<u32>,
    /// Moves out, moves in, erasures: what cleaning does, in the order of preference.
    cleaning: [VecDeque<u32>; 3],
    /// Whether cleaning goes first, whatever the parameters are.
    hurries: bool,
    working: Option<u32>,
    waiting: u32,
}

impl Chip {
    fn new(parameters: &Parameters) -> Self {
        let queues = || {
            let mut queues = Arbiter::new(parameters.chip_queues.arbitration());
            CLASSES.iter().for_each(|(class, _)| {
                queues.add(Level::Of(*class));
            });
            queues
        };
        Self {
            reads: queues(),
            programs: queues(),
            cleaning: Default::default(),
            hurries: false,
            working: None,
            waiting: 0,
        }
    }

    fn push(&mut self, operation: &Operation, number: u32) {
        self.waiting += 1;
        match operation.work {
            ChipWork::Read | ChipWork::Update => self.reads.push(operation.class as usize, number),
            ChipWork::Program => self.programs.push(operation.class as usize, number),
            ChipWork::MoveOut => self.cleaning[0].push_back(number),
            ChipWork::MoveIn => self.cleaning[1].push_back(number),
            ChipWork::Erase => self.cleaning[2].push_back(number),
        }
    }

    fn pop(&mut self, cleaning_first: bool) -> Option<u32> {
        let mut host = || self.reads.pop().or_else(|| self.programs.pop()).map(|(_, next)| next);
        let mut cleaning = || self.cleaning.iter_mut().find_map(VecDeque::pop_front);
        let next = match cleaning_first || self.hurries {
            true => cleaning().or_else(host),
            false => host().or_else(cleaning),
        };
        self.waiting -= u32::from(next.is_some());
        next
    }
}

/// A bus and its chips.
#[derive(Debug, Default)]
struct Channel {
    free_at: Picoseconds,
    /// Chips whose data wait for the bus, and the one whose data are on it.
    ready: VecDeque<u16>,
    sending: Option<u16>,
    /// A bit for each chip that is idle and has something to do; and which chip is next.
    startable: u64,
    next_chip: u32,
    /// Whether the event of the bus becoming free is under way.
    is_awaited: bool,
}

/// All chips and channels.
#[derive(Debug)]
pub(super) struct Flash {
    channels: Vec<Channel>,
    chips: Vec<Chip>,
    operations: Slots<Operation>,
    times: parameters::CellTimes,
    bus: parameters::ChannelBus,
    cleaning_first: bool,
    done: [u64; 6],
}

impl Flash {
    /// Chips with nothing to do.
    pub(super) fn new(parameters: &Parameters) -> Self {
        let geometry = &parameters.geometry;
        Self {
            channels: (0..geometry.channels).map(|_| Channel::default()).collect(),
            chips: (0..geometry.chips_of_all()).map(|_| Chip::new(parameters)).collect(),
            operations: Slots::default(),
            times: parameters.times,
            bus: parameters.channel,
            cleaning_first: parameters.cleaning.first,
            done: [0; 6],
        }
    }

    /// How often something was done.
    pub(super) const fn done(&self, work: ChipWork) -> u64 {
        self.done[work as usize]
    }

    /// How much is to be done.
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    /// The chip of a plane. Planes are counted channels first, then chips: neighbours are far.
    pub(super) const fn chip(&self, plane: u32) -> usize {
        plane as usize % self.chips.len()
    }

    /// Sets whether cleaning goes first at the chip of a plane, whatever the parameters are.
    pub(super) fn hurry(&mut self, plane: u32, hurries: bool) {
        let chip = self.chip(plane);
        self.chips[chip].hurries = hurries;
    }

    /// Gives a chip something to do.
    pub(super) fn push(
        &mut self,
        now: Picoseconds,
        operation: Operation,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let chip = self.chip(operation.plane);
        let number = self.operations.put(operation);
        self.chips[chip].push(&operation, number);
        self.offer(chip);
        self.advance(now, chip % self.channels.len(), later);
    }

    /// Handles an event, and returns the operation that it finished, if any.
    pub(super) fn on_event(
        &mut self,
        now: Picoseconds,
        event: FlashEvent,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) -> Option<Operation> {
        let (channel, finished) = match event {
            FlashEvent::Bus(channel) => {
                let state = &mut self.channels[usize::from(channel)];
                state.is_awaited = false;
                // The transfer is over, unless a command took the bus first after this event was
                // set.
                let is_sent = now >= state.free_at;
                (usize::from(channel), state.sending.take_if(|_| is_sent))
            }
            FlashEvent::Chip(chip) => {
                let channel = usize::from(chip) % self.channels.len();
                let number = self.chips[usize::from(chip)].working.expect("it was at work");
                if self.operations.at(number).work.is_read() {
                    self.channels[channel].ready.push_back(chip);
                    (channel, None)
                } else {
                    (channel, Some(chip))
                }
            }
        };
        let finished = finished.map(|chip| {
            let number = self.chips[usize::from(chip)].working.take().expect("it was at work");
            self.offer(usize::from(chip));
            let operation = self.operations.take(number);
            self.done[operation.work as usize] += 1;
            operation
        });
        self.advance(now, channel, later);
        finished
    }

    /// Notes that a chip can begin, if it can.
    fn offer(&mut self, chip: usize) {
        let Chip { working: None, waiting: 1.., .. } = self.chips[chip] else { return };
        let count = self.channels.len();
        self.channels[chip % count].startable |= 1 << (chip / count);
    }

    /// Uses a bus if it is free, and requests an event at its next free time if it is needed then.
    fn advance(
        &mut self,
        now: Picoseconds,
        channel: usize,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let state = &mut self.channels[channel];
        if state.sending.is_none() && now >= state.free_at {
            if let Some(chip) = state.ready.pop_front() {
                let number = self.chips[usize::from(chip)].working.expect("it has read");
                let time = duration(self.operations.at(number).bytes.into(), self.bus.rate);
                (state.free_at, state.sending) = (now.after(time), Some(chip));
            } else if state.startable != 0 {
                self.start(now, channel, later);
            }
        }
        let state = &mut self.channels[channel];
        let is_needed = state.sending.is_some() || !state.ready.is_empty() || state.startable != 0;
        if is_needed && !state.is_awaited {
            state.is_awaited = true;
            later(state.free_at, FlashEvent::Bus(channel as u16));
        }
    }

    /// Gives the next chip of a channel its command.
    fn start(
        &mut self,
        now: Picoseconds,
        channel: usize,
        later: &mut impl FnMut(Picoseconds, FlashEvent),
    ) {
        let count = self.channels.len();
        let state = &mut self.channels[channel];
        let ahead = state.startable >> state.next_chip;
        let next = match ahead {
            0 => state.startable.trailing_zeros(),
            _ => state.next_chip + ahead.trailing_zeros(),
        };
        state.startable &= !(1 << next);
        let chip = next as usize * count + channel;
        state.next_chip = if chip + count < self.chips.len() { next + 1 } else { 0 };
        let number = self.chips[chip].pop(self.cleaning_first).expect("something waits there");
        let (command, cells) = self.times(number);
        self.channels[channel].free_at = now.after(command);
        self.chips[chip].working = Some(number);
        later(now.after(command).after(cells), FlashEvent::Chip(chip as u16));
    }

    /// How long something keeps the bus before, and the cells after.
    fn times(&mut self, number: u32) -> (Picoseconds, Picoseconds) {
        let Operation { work, bytes, .. } = *self.operations.at(number);
        let (command, data, cells) = match work {
            ChipWork::Read | ChipWork::Update | ChipWork::MoveOut => {
                (self.bus.read_command, 0, self.times.read)
            }
            ChipWork::Program | ChipWork::MoveIn => {
                (self.bus.program_command, bytes, self.times.program)
            }
            ChipWork::Erase => (self.bus.erase_command, 0, self.times.erase),
        };
        (Picoseconds::from(command).after(duration(data.into(), self.bus.rate)), cells.into())
    }

    /// Checks that nothing was lost: each operation waits before a chip or is in it, and no
    /// operation needs a bus that is free.
    #[cfg(test)]
    pub(super) fn check(&self, now: Picoseconds) {
        let mut all = 0;
        for (number, chip) in self.chips.iter().enumerate() {
            let queued = chip.reads.len() + chip.programs.len();
            let cleaning: usize = chip.cleaning.iter().map(VecDeque::len).sum();
            assert_eq!(queued + cleaning, chip.waiting as usize);
            all += chip.waiting as usize + usize::from(chip.working.is_some());
            let channel = &self.channels[number % self.channels.len()];
            let bit = channel.startable >> (number / self.channels.len()) & 1;
            assert_eq!(bit == 1, chip.working.is_none() && chip.waiting > 0);
        }
        assert_eq!(all, self.operations.len());
        for channel in &self.channels {
            let is_needed = !channel.ready.is_empty() || channel.startable != 0;
            assert!(!is_needed || channel.is_awaited && channel.free_at >= now);
        }
    }
}

impl ChipWork {
    /// Whether data come out of the chip.
    pub(super) const fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::Update | Self::MoveOut)
    }
}
