//! Operations of requests, and sets of operations for rules.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The operation of a request. The first two move data and cost bytes; the others cost one
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum Operation {
    /// Data from storage: `read`, `pread`, `fread`, the source side of a copy.
    Read = 0,
    /// Data to storage: `write`, `pwrite`, `fwrite`, `copy_file_range`.
    Write = 1,
    /// Makes data durable: `fsync`, `fdatasync`, `sync_file_range`, `msync`.
    Sync = 2,
    /// Reserves or frees space: `fallocate`, `truncate`.
    Allocate = 3,
    /// Opens, creates or closes a file.
    Open = 4,
    /// Asks about a file: `stat`, `access`, `statfs`.
    Stat = 5,
    /// Reads a directory.
    List = 6,
    /// Changes names: `rename`, `unlink`, `link`, `mkdir`.
    Link = 7,
    /// Reads or changes attributes: extended attributes, `chmod`, `utimes`.
    Attribute = 8,
    /// Key-value: read of one key.
    Get = 9,
    /// Key-value: write of one key.
    Put = 10,
    /// Key-value: removal of one key.
    Delete = 11,
    /// Key-value: read of a range of keys.
    Scan = 12,
}

/// Every operation with its name in policies, in order of its number.
pub const OPERATIONS: [(Operation, &str); 13] = [
    (Operation::Read, "read"),
    (Operation::Write, "write"),
    (Operation::Sync, "sync"),
    (Operation::Allocate, "allocate"),
    (Operation::Open, "open"),
    (Operation::Stat, "stat"),
    (Operation::List, "list"),
    (Operation::Link, "link"),
    (Operation::Attribute, "attribute"),
    (Operation::Get, "get"),
    (Operation::Put, "put"),
    (Operation::Delete, "delete"),
    (Operation::Scan, "scan"),
];

impl Operation {
    /// The operation with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        if (number as usize) < OPERATIONS.len() {
            Some(OPERATIONS[number as usize].0)
        } else {
            None
        }
    }

    /// The name of the operation in policies and reports.
    pub const fn name(self) -> &'static str {
        OPERATIONS[self as usize].1
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A set of operations, as a rule names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationSet(u32);

impl OperationSet {
    /// No operation.
    pub const EMPTY: Self = Self(0);
    /// Every operation.
    pub const ALL: Self = Self((1 << OPERATIONS.len()) - 1);
    /// The set `metadata` of policies: all operations on files that move no data of the files.
    pub const METADATA: Self = Self::of(&[
        Operation::Open,
        Operation::Stat,
        Operation::List,
        Operation::Link,
        Operation::Attribute,
    ]);

    /// The set of these operations.
    pub const fn of(operations: &[Operation]) -> Self {
        let mut bits = 0;
        let mut index = 0;
        while index < operations.len() {
            bits |= 1 << operations[index] as u32;
            index += 1;
        }
        Self(bits)
    }

    /// Whether `operation` is in the set.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 >> (operation as u32) & 1 == 1
    }

    /// The operations that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The operations in the set, in order of their number.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        OPERATIONS.iter().map(|(operation, _)| *operation).filter(move |op| self.contains(*op))
    }
}

/// A name that is neither an operation nor a group of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an operation; known are metadata, {}", OPERATIONS.map(|(_, name)| name).join(", "))]
pub struct UnknownOperation;

impl FromStr for OperationSet {
    type Err = UnknownOperation;
    /// One operation's name, or `metadata` for the group.
    fn from_str(name: &str) -> Result<Self, UnknownOperation> {
        if name == "metadata" {
            return Ok(Self::METADATA);
        }
        let found = OPERATIONS.iter().find(|(_, known)| *known == name);
        found.map(|(operation, _)| Self::of(&[*operation])).ok_or(UnknownOperation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_names_and_order_agree() {
        for (number, (operation, name)) in OPERATIONS.iter().enumerate() {
            assert_eq!(*operation as usize, number);
            assert_eq!(Operation::from_number(number as u8), Some(*operation));
            assert_eq!(name.parse(), Ok(OperationSet::of(&[*operation])));
        }
        assert_eq!(Operation::from_number(OPERATIONS.len() as u8), None);
        assert_eq!(OperationSet::ALL.iter().count(), OPERATIONS.len());
    }

    #[test]
    fn metadata_is_a_group_without_data() {
        let metadata: OperationSet = "metadata".parse().unwrap();
        assert!(metadata.contains(Operation::Stat));
        assert!(!metadata.contains(Operation::Read));
        assert!("everything".parse::<OperationSet>().is_err());
    }
}
