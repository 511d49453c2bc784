//! Models of drives behind a storage node, for the isolation of one tenant from others.

use tidegate_model::Span;
use tidegate_sim::isolation::{
    Aggressor, ChannelTimes, Channels, Comparison, IsolationSetup, compare,
};

use crate::storage::{NodeDrive, Parameters};

/// A model of a drive.
#[derive(Clone, Copy, Debug)]
pub struct NodeDriveModel {
    /// Its name in tables.
    pub name: &'static str,
    kind: DriveKind,
}

#[derive(Clone, Copy, Debug)]
enum DriveKind {
    /// Channels that are all alike, each with a line before it.
    Channels { count: usize, spread_percent: u64 },
    /// Flash behind so many channels with so many chips each, and a write cache.
    Flash { channels: u32, chips: u32 },
}

/// 400 us for a request and 200 MiB/s for its data, at each channel.
const EACH: Span = Span(400 * Span::MICROSECOND.0);
const PER_MIB: Span = Span(5 * Span::MILLISECOND.0);

/// The models: a disk without a queue of its own, a drive that serves several requests at once, and
/// flash, on which writes take much longer than reads and stand in their way.
pub const NODE_DRIVE_MODELS: [NodeDriveModel; 3] = [
    NodeDriveModel {
        name: "one channel",
        kind: DriveKind::Channels { count: 1, spread_percent: 50 },
    },
    NodeDriveModel {
        name: "eight channels",
        kind: DriveKind::Channels { count: 8, spread_percent: 20 },
    },
    NodeDriveModel { name: "flash", kind: DriveKind::Flash { channels: 2, chips: 2 } },
];

impl NodeDriveModel {
    /// Compares the victim beside each of `aggressors` with the victim alone, as
    /// [`compare`] does, each at a new drive of this model.
    pub fn compare(
        &self,
        setup: IsolationSetup,
        aggressors: &[Aggressor],
        goes_on: impl Fn() -> bool,
    ) -> Option<Comparison> {
        let seed = setup.seed;
        match self.kind {
            DriveKind::Channels { count, spread_percent } => {
                let times =
                    ChannelTimes { read: EACH, write: EACH, per_mib: PER_MIB, spread_percent };
                compare(setup, aggressors, || Channels::new(count, times, seed), goes_on)
            }
            DriveKind::Flash { channels, chips } => {
                let mut drive = Parameters::default();
                (drive.geometry.channels, drive.geometry.chips) = (channels, chips);
                (drive.geometry.blocks, drive.geometry.pages) = (256, 64);
                compare(setup, aggressors, || NodeDrive::new(&drive, seed), goes_on)
            }
        }
    }
}
