//! The identity of a part: which volume it was made for, and where in that volume it belongs.
//!
//! # Problem
//! A file or a range of a device does not identify its bytes. After a restart with a folder that is
//! not mounted, with nodes in another order or with another stripe, the same names lead to other
//! bytes, and a client would read them without a word.
//!
//! # Mechanism
//! A part carries a *label*, written once when its volume is created: the volume's name and UUID,
//! the part's index, and the geometry of the volume. A node opens a part only if the label agrees
//! with the gateway's cluster file. A gateway serves a volume only if the labels of all its parts
//! bear one UUID and one generation. The label also holds the error that a sync of the part ended
//! with, until an operator clears it.
//!
//! A label has two copies, which are written alternately. Each has a sequence number and a
//! checksum, so an interrupted write leaves the copy before:
//!
//! ```text
//! copy 0 ┌ sequence 6 ┐   copy 1 ┌ sequence 7 ┐   the next write goes to copy 0, as sequence 8;
//!        └ checksum ok┘          └ checksum ok┘   torn, its checksum fails, and 7 is what counts
//! ```
//!
//! # Bound
//! A label has [`Label::LENGTH`] bytes, less than a sector, and needs no allocation on the medium
//! after it was made: a full disk cannot keep an error from being stored.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Volume;
use crate::units::Bytes;

/// The geometry of a volume, on which the labels of all its parts must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    /// How many parts the volume has.
    pub count: u32,
    /// How much lies in one part before the next one follows.
    pub stripe: Bytes,
    /// The size of the whole volume.
    pub size: Bytes,
}

/// Sixteen bytes that identify a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

/// Which volume a part was made for, and how often that was resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeStamp {
    /// The volume's.
    pub uuid: Uuid,
    /// One for a volume as it was created, and one more after each resize.
    pub generation: u64,
}

impl VolumeStamp {
    /// The mark that the data of a part bear: the volume's UUID with the part's index in its last
    /// four bytes (exclusive or), so that parts of one volume cannot be exchanged either.
    pub fn mark(self, index: u32) -> Uuid {
        let mut mark = self.uuid;
        let tail = mark.0[12..].iter_mut().zip(index.to_be_bytes());
        tail.for_each(|(byte, index)| *byte ^= index);
        mark
    }
}

/// The identity of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartIdentity {
    /// The volume's name.
    pub volume: String,
    /// Which of its parts, counting from zero.
    pub index: u32,
    /// Where the part begins in its node's device; zero in other stores.
    pub offset: Bytes,
    /// The volume's geometry.
    pub geometry: Geometry,
    /// Which volume, and which generation of it.
    pub stamp: VolumeStamp,
}

/// The error of a failed sync: the part is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncError {
    /// The system's number for the error; never zero.
    pub errno: i32,
    /// When it was stored, in seconds since 1970.
    pub at_seconds: u64,
}

/// The label that a medium holds beside a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// How often the label was written, this time included.
    pub sequence: u64,
    /// The identity of the part.
    pub identity: PartIdentity,
    /// The error of a failed sync of the part, until an operator clears it.
    pub error: Option<SyncError>,
    /// Errors that were stored since the part was made, cleared ones included.
    pub error_count: u64,
    /// The volume is not yet created as a whole.
    pub is_pending: bool,
    /// The data bears the UUID, too, as an attribute of its file.
    pub is_marked: bool,
}

/// Why bytes are no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// They do not begin as one.
    #[error("there is no label")]
    Absent,
    /// A later release wrote them, in this version.
    #[error("the label has version {0}, written by a later release")]
    Version(u16),
    /// The checksum is wrong, or a field cannot be.
    #[error("both copies of the label are damaged")]
    Damaged,
}

impl Geometry {
    /// Of a volume that has one part.
    pub const fn single(size: Bytes) -> Self {
        Self { count: 1, stripe: Volume::STRIPE, size }
    }

    /// Of a volume of the cluster file.
    pub fn of(volume: &Volume) -> Self {
        Self { count: volume.nodes.len() as u32, stripe: volume.stripe, size: volume.size }
    }

    /// The length of one of its parts.
    ///
    /// # Panics
    /// If it has no parts, or a stripe of nothing.
    pub fn part_length(&self, index: u32) -> Bytes {
        super::Layout::new(self.size, self.count, self.stripe).part_length(index)
    }

    /// Whether a layout can have it.
    pub fn is_possible(&self) -> bool {
        let stripe = self.stripe.0;
        self.size > Bytes::ZERO && self.count > 0 && stripe.is_power_of_two() && stripe >= 4096
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, stripe, size } = self;
        match count {
            1 => write!(f, "{size} in one part"),
            _ => write!(f, "{size} in {count} parts with stripes of {stripe}"),
        }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// The text is no UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a UUID has 32 hexadecimal digits, like 0f9c3b52-7d1e-4c1a-9a54-2f6e0d8b7c11")]
pub struct NoUuid;

impl FromStr for Uuid {
    type Err = NoUuid;

    fn from_str(text: &str) -> Result<Self, NoUuid> {
        let mut digits = text.chars().filter(|digit| *digit != '-');
        let mut bytes = [0; 16];
        for byte in &mut bytes {
            let mut digit = || digits.next().and_then(|digit| digit.to_digit(16)).ok_or(NoUuid);
            *byte = (digit()? * 16 + digit()?) as u8;
        }
        if digits.next().is_some() { Err(NoUuid) } else { Ok(Self(bytes)) }
    }
}

impl PartIdentity {
    /// How long the part is.
    pub fn length(&self) -> Bytes {
        self.geometry.part_length(self.index)
    }
}

const MAGIC: &[u8; 8] = b"TIDEPART";
const NAME: usize = 96;
const FLAGS: usize = NAME + Label::NAME_MAX;

impl Label {
    /// Bytes that a copy of a label has.
    pub const LENGTH: usize = 512;

    /// The longest name of a volume, in bytes.
    pub const NAME_MAX: usize = 200;

    /// The version of this form.
    pub const VERSION: u16 = 1;

    /// Whether data with this mark, or none, are those that the label was made with. Data without a
    /// mark are where the file system had none to give.
    pub fn fits_mark(&self, mark: Option<Uuid>) -> bool {
        let wanted = self.identity.stamp.mark(self.identity.index);
        mark.map_or(!self.is_marked, |mark| mark == wanted)
    }

    /// The label of a part that was just made.
    pub const fn new(identity: PartIdentity) -> Self {
        let (error, error_count) = (None, 0);
        Self { sequence: 1, identity, error, error_count, is_pending: false, is_marked: false }
    }

    /// The form on a medium. A name beyond [`Self::NAME_MAX`] is cut, and is none that a part has.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        let Self { sequence, identity, error, error_count, is_pending, is_marked } = self;
        let name = identity.volume.as_bytes();
        let name = &name[..name.len().min(Self::NAME_MAX)];
        put(0, MAGIC);
        put(8, &Self::VERSION.to_le_bytes());
        put(10, &(name.len() as u16).to_le_bytes());
        put(12, &identity.index.to_le_bytes());
        put(16, &identity.geometry.count.to_le_bytes());
        put(20, &error.map_or(0, |error| error.errno).to_le_bytes());
        put(24, &sequence.to_le_bytes());
        put(32, &identity.stamp.uuid.0);
        put(48, &identity.stamp.generation.to_le_bytes());
        put(56, &identity.geometry.stripe.0.to_le_bytes());
        put(64, &identity.geometry.size.0.to_le_bytes());
        put(72, &identity.offset.0.to_le_bytes());
        put(80, &error_count.to_le_bytes());
        put(88, &error.map_or(0, |error| error.at_seconds).to_le_bytes());
        put(NAME, name);
        put(FLAGS, &[u8::from(*is_pending) + 2 * u8::from(*is_marked)]);
        let sum = checksum(&bytes[..Self::LENGTH - 4]);
        bytes[Self::LENGTH - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a label from the bytes of a copy.
    ///
    /// # Errors
    /// If the bytes are no label, are damaged, or are a label of another version.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Result<Self, LabelError> {
        if bytes[..8] != MAGIC[..] {
            return Err(LabelError::Absent);
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        if u16_at(8) != Self::VERSION {
            return Err(LabelError::Version(u16_at(8)));
        }
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) + (u64::from(u32_at(at + 4)) << 32);
        if checksum(&bytes[..Self::LENGTH - 4]) != u32_at(Self::LENGTH - 4) {
            return Err(LabelError::Damaged);
        }
        let name = usize::from(u16_at(10));
        let name = bytes[NAME..NAME + Self::NAME_MAX].get(..name).ok_or(LabelError::Damaged)?;
        let volume = core::str::from_utf8(name).map_err(|_| LabelError::Damaged)?.into();
        let (count, stripe, size) = (u32_at(16), Bytes(u64_at(56)), Bytes(u64_at(64)));
        let geometry = Geometry { count, stripe, size };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        let stamp = VolumeStamp { uuid: Uuid(uuid), generation: u64_at(48) };
        let (index, offset) = (u32_at(12), Bytes(u64_at(72)));
        if !geometry.is_possible() || index >= count {
            return Err(LabelError::Damaged);
        }
        // The bits of the number, not its size.
        let errno = i32::from_le_bytes(u32_at(20).to_le_bytes());
        Ok(Self {
            sequence: u64_at(24),
            identity: PartIdentity { volume, index, offset, geometry, stamp },
            error: (errno != 0).then_some(SyncError { errno, at_seconds: u64_at(88) }),
            error_count: u64_at(80),
            is_pending: bytes[FLAGS] & 1 != 0,
            is_marked: bytes[FLAGS] & 2 != 0,
        })
    }

    /// Which of two copies counts: the later one that is whole.
    ///
    /// # Errors
    /// If neither is whole: the more specific error of the two.
    pub fn latest(copies: [Result<Self, LabelError>; 2]) -> Result<Self, LabelError> {
        match copies {
            [Ok(one), Ok(other)] if one.sequence >= other.sequence => Ok(one),
            [_, Ok(other)] => Ok(other),
            [Ok(one), Err(_)] => Ok(one),
            [Err(LabelError::Absent), Err(error)] | [Err(error), Err(_)] => Err(error),
        }
    }
}

/// CRC-32C, bit by bit: labels are read and written rarely.
fn checksum(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut sum = !0_u32;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = (sum >> 1) ^ (POLYNOMIAL & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
