//! The tag: what every request carries from the first gate to the device.
//!
//! It is made once, where the request enters, and never derived again. Narrower carriers (two
//! priority bits of an NVMe command, an I/O priority of Linux, a code point of DiffServ) are
//! projections of it, and all of them live in this file, so that no two places can disagree on what
//! a class means on a wire.

use core::fmt;
use core::num::NonZeroU8;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{ContextId, TenantId};
use crate::operation::Operation;

/// How urgent a tenant's requests are; decides strict priority and weighted round robin.
/// Ordered from the most urgent to the least.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[repr(u8)]
pub enum Class {
    /// Served before everything else.
    Urgent = 0,
    /// The largest share.
    High = 1,
    /// The usual share.
    #[default]
    Medium = 2,
    /// The rest of the service.
    Low = 3,
}

/// Every class with its name in policies, most urgent first.
pub const CLASSES: [(Class, &str); 4] = [
    (Class::Urgent, "urgent"),
    (Class::High, "high"),
    (Class::Medium, "medium"),
    (Class::Low, "low"),
];

impl Class {
    /// The name of the class in policies and reports.
    pub const fn name(self) -> &'static str {
        CLASSES[self as usize].1
    }

    /// The I/O priority of a request at a block device (`ioprio_set(2)`): best effort, with level 0
    /// for urgent, 2, 4 and 6. Without a priority the kernel takes level 4, as for medium.
    ///
    /// Left out: the kernel's real-time and idle classes. The first needs a capability, and a
    /// stream of requests in it stops all others; in the second a request may wait for ever.
    ///
    /// ```
    /// use tidegate_model::tag::CLASSES;
    /// let levels = CLASSES.map(|(class, _)| class.io_priority() & 7);
    /// assert_eq!(levels, [0, 2, 4, 6]);
    /// ```
    pub const fn io_priority(self) -> u16 {
        const BEST_EFFORT: u16 = 2 << 13;
        BEST_EFFORT | (self as u16 * 2)
    }

    /// The differentiated services code point of packets of this class (RFC 2474), six bits: EF for
    /// urgent (46, RFC 3246), AF31 (26) for high and AF21 (18) for medium (RFC 2597), and LE for
    /// low (1, RFC 8622), which networks serve with the capacity that is left.
    ///
    /// ```
    /// use tidegate_model::tag::CLASSES;
    /// assert_eq!(CLASSES.map(|(class, _)| class.dscp()), [46, 26, 18, 1]);
    /// ```
    pub const fn dscp(self) -> u8 {
        [46, 26, 18, 1][self as usize]
    }

    /// The class of the two priority bits of an NVMe command (NVMe base specification, weighted
    /// round robin with urgent class: 00 urgent, 01 high, 10 medium, 11 low). Higher bits are
    /// ignored.
    pub const fn from_nvme_priority(bits: u8) -> Self {
        CLASSES[(bits & 0b11) as usize].0
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The weights by which high, medium and low requests take turns at a node, each 1 to 255 as in
/// the arbitration of NVMe. A class of weight 3 has three turns where one of weight 1 has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClassWeights {
    /// Of [`Class::High`].
    pub high: NonZeroU8,
    /// Of [`Class::Medium`].
    pub medium: NonZeroU8,
    /// Of [`Class::Low`].
    pub low: NonZeroU8,
}

impl ClassWeights {
    /// These weights; none if one of them is zero.
    ///
    /// ```
    /// use tidegate_model::ClassWeights;
    /// assert!(ClassWeights::new(3, 2, 1).is_some_and(|weights| weights.high.get() == 3));
    /// assert_eq!(ClassWeights::new(3, 0, 1), None);
    /// ```
    pub fn new(high: u8, medium: u8, low: u8) -> Option<Self> {
        let [high, medium, low] = [high, medium, low].map(NonZeroU8::new);
        Some(Self { high: high?, medium: medium?, low: low? })
    }
}

/// A name that is no class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a class; known are urgent, high, medium, low")]
pub struct UnknownClass;

impl FromStr for Class {
    type Err = UnknownClass;
    fn from_str(name: &str) -> Result<Self, UnknownClass> {
        let found = CLASSES.iter().find(|(_, known)| *known == name);
        found.map(|(class, _)| *class).ok_or(UnknownClass)
    }
}

/// The tag of a request. Sixteen bytes, in memory and on a wire.
///
/// ```
/// use tidegate_model::{Class, ContextId, Operation, Tag, TenantId};
/// let tag = Tag {
///     tenant: TenantId(7),
///     context: ContextId(0x0203),
///     class: Class::High,
///     operation: Operation::Write,
///     cost: 65_536,
///     delay: 0,
/// };
/// assert_eq!(Tag::from_bytes(tag.to_bytes()), Some(tag));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag {
    /// The tenant that owns the request.
    pub tenant: TenantId,
    /// The reason for which the request is made.
    pub context: ContextId,
    /// The urgency of the request.
    pub class: Class,
    /// The operation of the request.
    pub operation: Operation,
    /// The cost of the request: bytes for data, keys for keys and values, and operations for the
    /// rest; zero for a part of a request that counts as an operation with another part. One system
    /// call moves less than 2 GiB, so 32 bits hold it.
    pub cost: u32,
    /// Cost that its tenant was served elsewhere since its last request to this node (DSFQ §4);
    /// zero before a gateway has set it.
    pub delay: u32,
}

const _: () = assert!(size_of::<Tag>() == Tag::LENGTH);

impl Tag {
    /// The length of an encoded tag, in bytes.
    pub const LENGTH: usize = 16;

    /// The wire form, little-endian: tenant 2, context 2, class 1, operation 1, zero 2, cost 4,
    /// delay 4.
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0..2].copy_from_slice(&self.tenant.0.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.context.0.to_le_bytes());
        bytes[4] = self.class as u8;
        bytes[5] = self.operation as u8;
        bytes[8..12].copy_from_slice(&self.cost.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.delay.to_le_bytes());
        bytes
    }

    /// The tag that `bytes` stand for; none if a field has a value that no tag has, or the two
    /// reserved bytes are not zero.
    pub fn from_bytes(bytes: [u8; Self::LENGTH]) -> Option<Self> {
        let [t0, t1, x0, x1, class, operation, 0, 0, c0, c1, c2, c3, d0, d1, d2, d3] = bytes else {
            return None;
        };
        Some(Self {
            tenant: TenantId(u16::from_le_bytes([t0, t1])),
            context: ContextId(u16::from_le_bytes([x0, x1])),
            class: (class < 4).then(|| Class::from_nvme_priority(class))?,
            operation: Operation::from_number(operation)?,
            cost: u32::from_le_bytes([c0, c1, c2, c3]),
            delay: u32::from_le_bytes([d0, d1, d2, d3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let tag = Tag {
            tenant: TenantId(0x1122),
            context: ContextId(0x3344),
            class: Class::Low,
            operation: Operation::Attribute,
            cost: 0x5566_7788,
            delay: 0x99aa_bbcc,
        };
        let golden =
            [0x22, 0x11, 0x44, 0x33, 3, 8, 0, 0, 0x88, 0x77, 0x66, 0x55, 0xcc, 0xbb, 0xaa, 0x99];
        assert_eq!(tag.to_bytes(), golden);
        assert_eq!(Tag::from_bytes(golden), Some(tag));
    }

    #[test]
    fn bytes_that_are_no_tag_are_refused() {
        let good = [0; Tag::LENGTH];
        assert!(Tag::from_bytes(good).is_some());
        for (index, value) in [(4, 4), (5, 13), (6, 1), (7, 1)] {
            let mut bad = good;
            bad[index] = value;
            assert_eq!(Tag::from_bytes(bad), None, "byte {index} = {value}");
        }
    }

    #[test]
    fn classes_survive_their_projections() {
        for (class, name) in CLASSES {
            assert_eq!(Class::from_nvme_priority(class as u8), class);
            let same = CLASSES.iter().filter(|(other, _)| other.dscp() == class.dscp());
            assert_eq!(same.count(), 1, "{name} has a code point of its own");
            assert_eq!(name.parse(), Ok(class));
        }
        assert!(Class::Urgent < Class::Low);
    }
}
