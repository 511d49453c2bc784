//! A simulated storage server: drives with submission queues for each client, and persistent
//! memory.

use tidegate_model::{Bytes, Class, Operation};

use super::location::StripeLocation;
use super::scenario::{ServerDevice, Storage};
use crate::storage::{self, Direction, DriveCommand, Memory, SECTOR, Ssd};
use tidegate_sim::time::Picoseconds;
use tidegate_sim::workload::IoRequest;

#[derive(Debug)]
pub(super) struct SimServer {
    drives: Vec<Ssd>,
    memory: Option<Memory>,
    /// Requests that its memory has not completed.
    in_memory: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ServerEvent {
    Drive(u8, storage::SsdEvent),
    /// Its memory has completed the request with this tag.
    Memory(u64),
}

impl SimServer {
    /// Number `number` of the servers of a run.
    pub(super) fn new(plan: &Storage, seed: u64, number: u64) -> Self {
        let drives = u64::from(plan.drives);
        let drive = |drive| Ssd::new(&plan.drive, seed, number * drives + drive);
        let memory = plan.memory.as_ref().map(|memory| Memory::new(memory, seed, number));
        Self { drives: (0..drives).map(drive).collect(), memory, in_memory: 0 }
    }

    /// How much its devices have to do.
    pub(super) fn outstanding(&self) -> usize {
        let each = self.drives.iter().map(Ssd::outstanding);
        self.in_memory + each.map(|(waiting, active)| waiting + active).sum::<usize>()
    }

    /// A client of a class comes: the number of its queues, one at each drive.
    pub(super) fn connect(&mut self, class: Class) -> usize {
        let queues = self.drives.iter_mut().map(|drive| drive.add_queue(class));
        queues.max().unwrap_or(0)
    }

    /// Handles a client's request for the data at `location`.
    pub(super) fn submit(
        &mut self,
        now: Picoseconds,
        queue: usize,
        wanted: &Wanted,
        later: &mut impl FnMut(Picoseconds, ServerEvent),
    ) {
        let Wanted { request, class, location, tag, .. } = *wanted;
        if let (ServerDevice::Memory, Some(memory)) = (wanted.device, &mut self.memory) {
            let done = memory.take(now, location.at, request.bytes.0 as u32);
            self.in_memory += 1;
            return later(done, ServerEvent::Memory(tag));
        }
        let drive = &mut self.drives[location.drive as usize];
        let is_read = request.operation == Operation::Read;
        let direction = if is_read { Direction::Read } else { Direction::Write };
        let (at, bytes) = on_drive(location.at, request.bytes, drive.capacity());
        let command = DriveCommand { direction, class, at, bytes, tag };
        drive.submit(now, queue, command, &mut |at, event| {
            later(at, ServerEvent::Drive(location.drive, event));
        });
    }

    /// Something that `later` was given happens: the number of what is done by it, if anything is.
    pub(super) fn on_event(
        &mut self,
        now: Picoseconds,
        event: ServerEvent,
        later: &mut impl FnMut(Picoseconds, ServerEvent),
    ) -> Option<u64> {
        match event {
            ServerEvent::Memory(tag) => {
                self.in_memory -= 1;
                Some(tag)
            }
            ServerEvent::Drive(drive, event) => {
                let done = self.drives[drive as usize].on_event(now, event, &mut |at, event| {
                    later(at, ServerEvent::Drive(drive, event));
                });
                done.map(|completion| completion.command.tag)
            }
        }
    }
}

/// A client's request to a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) request: IoRequest,
    /// Its class at the drives of this server.
    pub(super) class: Class,
    pub(super) device: ServerDevice,
    pub(super) location: StripeLocation,
    /// Comes back when it is done.
    pub(super) tag: u64,
}

/// The whole sectors that hold it. A request behind the end of a drive, which has whole sectors,
/// begins again at its start.
fn on_drive(at: Bytes, bytes: Bytes, capacity: Bytes) -> (Bytes, u32) {
    let sector = u64::from(SECTOR);
    let start = at.0 / sector * sector;
    let length = (at.0 - start + bytes.0).div_ceil(sector) * sector;
    let length = length.min(capacity.0).min(1 << 30);
    (Bytes(start % (capacity.0 - length + sector)), length as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every request lies on the drive, in whole sectors, and covers no less.
        #[test]
        fn everything_fits(
            at in 0u64..1 << 50, bytes in 1u64..1 << 24, sectors in 1u64 << 16..1 << 31,
        ) {
            let capacity = sectors * 512;
            let (start, length) = on_drive(Bytes(at), Bytes(bytes), Bytes(capacity));
            prop_assert!(start.0.is_multiple_of(512) && length.is_multiple_of(512));
            prop_assert!(start.0 + u64::from(length) <= capacity);
            prop_assert!(u64::from(length) >= bytes && u64::from(length) < bytes + 1024);
        }

        /// No two offsets have the same location, and a stripe stays together.
        #[test]
        fn locations_are_different(
            first in 0u64..1 << 30, second in 0u64..1 << 30, servers in 1u32..5, drives in 1u32..4,
        ) {
            let location = |offset| StripeLocation::of(Bytes(offset), Bytes(4096), servers, drives);
            prop_assert_eq!(location(first) == location(second), first == second);
            let start = location(first / 4096 * 4096);
            prop_assert_eq!(start.at.0 + first % 4096, location(first).at.0);
        }
    }

    #[test]
    fn stripes_go_around() {
        let mebibyte = 1u64 << 20;
        let locations: Vec<_> = (0..5)
            .map(|number| StripeLocation::of(Bytes(number * mebibyte), Bytes(mebibyte), 2, 2))
            .map(|location| (location.server, location.drive, location.at.0 / mebibyte))
            .collect();
        assert_eq!(locations, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0), (0, 0, 1)]);
    }
}
