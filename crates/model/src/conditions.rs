//! The conditions under which a rule of a policy applies to a request.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::operation::OperationSet;
use crate::units::{Bytes, UnitError};

/// Conditions of a rule on a request: every classifier that is set must hold (PAIO §4, Table 1). A
/// classifier that is not set holds for every request; a list holds if one of its patterns does.
///
/// Patterns are globs: `?` is one character, `*` any run without `/`, `**` any run, `[a-z]` a
/// class, `{a,b}` a choice; everything else stands for itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Names of workflows: the thread's name, or what the program set.
    pub workflow: Vec<String>,
    /// The contexts of the request, as scopes in the program set them.
    pub context: Vec<String>,
    /// Names of processes: the executable's file name.
    pub process: Vec<String>,
    /// Paths of control groups, as in `/proc/<pid>/cgroup`, with the leading `/`.
    pub cgroup: Vec<String>,
    /// User names or numbers.
    pub user: Vec<String>,
    /// Absolute paths of files.
    pub path: Vec<String>,
    /// Operations that the request may perform.
    pub operation: OperationSet,
    /// Numbers of bytes that the request may move.
    pub size: SizeRange,
}

/// Conditions of a rule on the volume, pool or key that a request addresses. Only gateways know
/// these, and gateways do not see the client's program. So a rule has either these conditions, or
/// those of [`Conditions`] that are about a program. Volumes are globs, as in [`Conditions`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageConditions {
    /// Names of volumes and pools.
    pub volume: Vec<String>,
    /// Prefixes of keys, compared byte by byte.
    pub key: Vec<String>,
    /// Where in its volume a request begins; none for any request, also for one to a key.
    pub offset: Option<SizeRange>,
}

impl StorageConditions {
    /// Whether no condition is set, so that the rule is for stages.
    pub fn is_empty(&self) -> bool {
        self.volume.is_empty() && self.key.is_empty() && self.offset.is_none()
    }
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            workflow: Vec::new(),
            context: Vec::new(),
            process: Vec::new(),
            cgroup: Vec::new(),
            user: Vec::new(),
            path: Vec::new(),
            operation: OperationSet::ALL,
            size: SizeRange::ANY,
        }
    }
}

/// Sizes from `min` to `max`, both included.
///
/// ```
/// use tidegate_model::{Bytes, SizeRange};
/// let large: SizeRange = ">=64KiB".parse()?;
/// assert!(large.contains(Bytes(65_536)) && !large.contains(Bytes(65_535)));
/// let middle: SizeRange = "4KiB..64KiB".parse()?;   // the upper end is not included
/// assert_eq!(middle.max, Bytes(65_535));
/// # Ok::<(), tidegate_model::units::UnitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeRange {
    /// The smallest size in the range.
    pub min: Bytes,
    /// The largest size in the range.
    pub max: Bytes,
}

impl SizeRange {
    /// Every size.
    pub const ANY: Self = Self { min: Bytes::ZERO, max: Bytes::MAX };

    /// Whether `size` lies in the range.
    pub fn contains(self, size: Bytes) -> bool {
        self.min <= size && size <= self.max
    }
}

impl FromStr for SizeRange {
    type Err = UnitError;
    /// `<4KiB`, `<=4KiB`, `>4KiB`, `>=4KiB`, `4KiB` (exactly) or `4KiB..64KiB` (end not included).
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let text = text.trim();
        let one = Bytes(1);
        if let Some((min, end)) = text.split_once("..") {
            let (min, end) = (min.parse()?, end.parse::<Bytes>()?);
            return Ok(Self { min, max: end.saturating_sub(one) });
        }
        let (min, max) = if let Some(bound) = text.strip_prefix(">=") {
            (bound.parse()?, Bytes::MAX)
        } else if let Some(bound) = text.strip_prefix('>') {
            (bound.parse::<Bytes>()?.saturating_add(one), Bytes::MAX)
        } else if let Some(bound) = text.strip_prefix("<=") {
            (Bytes::ZERO, bound.parse()?)
        } else if let Some(bound) = text.strip_prefix('<') {
            (Bytes::ZERO, bound.parse::<Bytes>()?.saturating_sub(one))
        } else {
            let exactly = text.parse()?;
            (exactly, exactly)
        };
        Ok(Self { min, max })
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.min, self.max) {
            (min, Bytes::MAX) => write!(f, ">={min}"),
            (Bytes::ZERO, max) => write!(f, "<={max}"),
            (min, max) if min == max => write!(f, "{min}"),
            (min, max) => write!(f, "{min}..{}", max.saturating_add(Bytes(1))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_prints_as_it_parses(min: u32, more: u32) {
            let range = SizeRange { min: Bytes(min.into()), max: Bytes(min as u64 + more as u64) };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }
    }

    #[test]
    fn bounds_are_where_they_are_written() {
        let range = |text: &str| text.parse::<SizeRange>().unwrap();
        assert_eq!(range("<4KiB").max, Bytes(4095));
        assert_eq!(range("<=4KiB").max, Bytes(4096));
        assert_eq!(range(">4KiB").min, Bytes(4097));
        assert_eq!(range("4KiB"), SizeRange { min: Bytes(4096), max: Bytes(4096) });
        assert!("big".parse::<SizeRange>().is_err());
        assert!("1..2".parse::<SizeRange>().is_err());
    }
}
