//! Stores of parts of volumes: memory, a directory, a device.
//!
//! A [`Medium`] holds one kind of parts and carries out one job after the other. An engine
//! ([`crate::engine`]) decides on the thread and on the time of the reply; so a medium is plain
//! blocking code and is tested as such.

pub(crate) mod block;
mod device;
mod directory;
pub(crate) mod disk;
#[cfg(feature = "faults")]
pub(crate) mod faulty;
mod file;
mod incarnation;
pub(crate) mod label;
mod labelled;
pub(crate) mod lock;
mod memory;
mod pages;
mod parts;
pub(crate) mod remedies;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;

use std::io;
use std::path::PathBuf;

use tidegate_fabric::service::{Job, OpenPart, Part};
use tidegate_model::Bytes;
use tidegate_model::cluster::Geometry;

pub(crate) use device::DeviceStore;
pub(crate) use directory::Directory;
pub(crate) use directory::is_plain;
pub(crate) use file::Transfer;
pub(crate) use memory::Memory;
pub(crate) use pages::PageHold;
pub(crate) use parts::Watcher;

/// Holds parts of volumes.
pub(crate) trait Medium: Send + Sync {
    /// Makes a part ready. The same part has the same number however often it is opened.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was made then.
    fn open(&self, part: &Part) -> Result<OpenPart, OpenError>;

    /// Carries out the jobs in their order, and stores the result of each.
    fn perform(&self, jobs: &mut dyn Iterator<Item = &mut Job>);

    /// The job as a plain transfer between file and memory, if the kernel can do it by itself.
    fn transfer(&self, job: &Job) -> Option<Transfer> {
        let _ = job;
        None
    }

    /// The kernel has failed a [`Self::transfer`] with this number; it is repeated.
    fn on_failure(&self, job: &Job, errno: i32) {
        let _ = (job, errno);
    }

    /// From here on `watcher` receives new incarnations of open parts.
    fn watch(&self, watcher: Watcher) {
        drop(watcher);
    }

    /// Checks whether the files of open parts are still at their paths; called periodically.
    fn inspect(&self) {}

    /// Reasons why open parts are not served or not durable, by volume and index.
    fn faults(&self) -> Vec<(String, u32, String)> {
        Vec::new()
    }

    /// Whether written data outlive the node's process.
    fn outlives_node(&self) -> bool {
        true
    }

    /// The number of open parts that a flush makes durable. They are numbered from zero.
    fn durable_parts(&self) -> u32 {
        0
    }

    /// One line for people: its kind, its location, and anything special about it.
    fn describe(&self) -> String;
}

/// Why a part cannot be made ready.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The name is not valid as a file name.
    #[error(
        "{0:?} can be no volume's name here; use up to 200 letters, digits, `-`, `_` and `.`, not \
         beginning with a dot"
    )]
    Name(String),
    /// It exists, with another size.
    #[error(
        "{what} is a store of the wrong size: it has {found} and is to have {wanted}; correct the \
         volume's size, or move the old store away"
    )]
    WrongSize {
        /// The part, in words for people.
        what: String,
        /// Its length.
        found: Bytes,
        /// The requested length.
        wanted: Bytes,
    },
    /// It belongs to a volume of another geometry.
    #[error(
        "{what} was made for a volume of {found}, and the cluster file says {wanted}; correct the \
         cluster file"
    )]
    Geometry {
        /// The part, in words for people.
        what: String,
        /// The geometry in its label.
        found: Geometry,
        /// The requested geometry.
        wanted: Geometry,
    },
    /// It is open at another offset of the device.
    #[error(
        "{what} begins at {found} of the device and is to begin at {wanted}; restart the node to \
         move it"
    )]
    Moved {
        /// The part, in words for people.
        what: String,
        /// Its offset.
        found: Bytes,
        /// The requested offset.
        wanted: Bytes,
    },
    /// It would share bytes of a device with another part.
    #[error("{what} would overlap {other}; give it another offset")]
    Overlap {
        /// The part, in words for people.
        what: String,
        /// The other part.
        other: String,
    },
    /// It is missing, or another part than the requested one.
    #[error("{what} {found}")]
    Unfit {
        /// The part, in words for people.
        what: String,
        /// The state of the part, and how to mend it.
        found: String,
    },
    /// There is not enough space.
    #[error(
        "{what} would end at {end}, and there is room for {capacity}; make the volume smaller or \
         the store larger"
    )]
    Full {
        /// The part, in words for people.
        what: String,
        /// Its end.
        end: Bytes,
        /// The available space.
        capacity: Bytes,
    },
    /// The system refuses a call.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The name of a part in messages for people.
fn name_of(part: &Part) -> String {
    format!("part {} of volume {:?}", part.index, part.volume)
}
