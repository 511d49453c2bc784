//! A drive behind a simulated storage node.
//!
//! Commands with a reservation and others are in one submission queue: a node tells a drive no
//! class. A flush and a trim take [`WITHOUT_DATA`] and touch no cells, as on a drive whose cache
//! survives a loss of power and whose mapping of pages is in memory.

use tidegate_model::{Bytes, Class, Span};
use tidegate_sim::isolation::{Access, Drive, DriveRequest};
use tidegate_sim::time::Picoseconds;

use super::{Direction, DriveCommand, Parameters, Ssd, SsdEvent};

/// The time of a command that moves no data. Chosen by hand: about that of a read of the cells.
const WITHOUT_DATA: Span = Span(100 * Span::MICROSECOND.0);

/// A drive with one submission queue.
#[derive(Debug)]
pub struct NodeDrive(Ssd);

/// Something that happens in a [`NodeDrive`].
#[derive(Clone, Copy, Debug)]
pub enum NodeDriveEvent {
    /// In the drive itself.
    Drive(SsdEvent),
    /// A command without data is done.
    WithoutData(u32),
}

impl NodeDrive {
    /// A drive with nothing to do.
    ///
    /// # Panics
    /// If the parameters do not pass their own check.
    pub fn new(parameters: &Parameters, seed: u64) -> Self {
        let mut drive = Ssd::new(parameters, seed, 0);
        drive.add_queue(Class::Medium);
        Self(drive)
    }
}

impl Drive for NodeDrive {
    type Event = NodeDriveEvent;

    fn submit(
        &mut self,
        now: Picoseconds,
        request: DriveRequest,
        later: &mut impl FnMut(Picoseconds, NodeDriveEvent),
    ) {
        let direction = match request.access {
            Access::Read => Direction::Read,
            Access::Write => Direction::Write,
            Access::NoData => {
                let done = now.after(WITHOUT_DATA.into());
                return later(done, NodeDriveEvent::WithoutData(request.number));
            }
        };
        let DriveRequest { number, offset, bytes, .. } = request;
        let (class, at, tag) = (Class::Medium, Bytes(offset), u64::from(number));
        let command = DriveCommand { direction, class, at, bytes, tag };
        self.0.submit(now, 0, command, &mut |at, event| later(at, NodeDriveEvent::Drive(event)));
    }

    fn on_event(
        &mut self,
        now: Picoseconds,
        event: NodeDriveEvent,
        later: &mut impl FnMut(Picoseconds, NodeDriveEvent),
    ) -> Option<u32> {
        match event {
            NodeDriveEvent::WithoutData(number) => Some(number),
            NodeDriveEvent::Drive(event) => {
                let done = self.0.on_event(now, event, &mut |at, event| {
                    later(at, NodeDriveEvent::Drive(event));
                });
                done.map(|done| done.command.tag as u32)
            }
        }
    }
}
