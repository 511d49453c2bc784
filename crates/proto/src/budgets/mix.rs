//! Mean size of a tenant's operations: the bytes that go with them, where it has buckets of both.

use tidegate_model::gate::Unit;

/// A goal in one unit has its share of the other, and one part in this many more: the next requests
/// may be a little smaller or larger. With a sixteenth, a twentieth of a device stayed idle.
pub(super) const MIX_PART: u64 = 64;

/// Bytes and operations of some requests; the ratio counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix {
    bytes: u64,
    operations: u64,
}

impl Mix {
    /// Takes in the requests of an interval, which are half of the mix from then on. Requests
    /// without bytes, and none, tell nothing.
    pub(super) fn observe(&mut self, bytes: u64, operations: u64) {
        if bytes == 0 || operations == 0 {
            return;
        }
        let before = scale(self.bytes, operations, self.operations).unwrap_or(bytes);
        let bytes = (bytes / 2).saturating_add(before / 2).max(1);
        *self = Self { bytes, operations };
    }

    /// The requests of both, each by those of its last interval.
    #[must_use]
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            operations: self.operations.saturating_add(other.operations),
        }
    }

    /// The amount in `unit` that goes with an amount in the other unit. Nothing before there were
    /// requests, or if it has no bound.
    ///
    /// Example: of requests of 4 KiB, 4 MiB go with 1,024 operations.
    pub(super) fn with(&self, unit: Unit, amount: u64) -> Option<u64> {
        match unit {
            Unit::Bytes => scale(amount, self.bytes, self.operations),
            Unit::Operations => scale(amount, self.operations, self.bytes),
        }
    }
}

/// `amount` times `many` for `each`.
fn scale(amount: u64, many: u64, each: u64) -> Option<u64> {
    if amount == u64::MAX || each == 0 {
        return None;
    }
    u64::try_from(u128::from(amount) * u128::from(many) / u128::from(each)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_mix_is_of_the_last_interval() {
        let mut mix = Mix::default();
        assert_eq!(mix.with(Unit::Bytes, 7), None);
        mix.observe(4_096_000, 1_000);
        mix.observe(0, 5);
        assert_eq!(mix.with(Unit::Bytes, 7), Some(7 * 4_096));
        assert_eq!(mix.with(Unit::Operations, 8_192), Some(2));
        mix.observe(8_192, 1);
        assert_eq!(mix.with(Unit::Bytes, 1), Some(6_144));
        assert_eq!(mix.with(Unit::Bytes, u64::MAX), None);
        mix.observe(u64::MAX, 1);
        assert_eq!(mix.with(Unit::Bytes, u64::MAX - 1), None, "more than a number holds");
    }
}
