//! The cost of a request in the fair queueing of nodes.
//!
//! Tenants share requests, bytes, or a device's time. A cluster has one such cost for all its
//! nodes, because the service that a tenant gets at one node counts at the other nodes.
//!
//! Where a resource has capacities in operations and in bytes, a request needs tokens of both. So a
//! reservation in one unit alone implies one in the other ([`implied`]).

use crate::gate::Unit;
use crate::units::Span;

/// The bytes for which a token of bytes stands, at nodes: small enough to be exact in a period of
/// tens of milliseconds, and large enough that 32 bits hold the tokens of a period of 4 TiB.
pub const BYTES_PER_TOKEN: u64 = 1024;

/// The bytes that a reservation in bytes alone spends on an operation at least: the block of most
/// programs and of data nodes, where the same holds.
pub const OPERATION_BYTES_MIN: u64 = 4 << 10;

/// The bytes that an operation of a reservation in operations alone moves at most: those of one
/// piece, as where no resource is named.
pub const OPERATION_BYTES_MAX: u64 = 128 << 10;

/// The part of a capacity that reservations in the other unit can imply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Implied {
    /// The sum of the reservations that imply something, in their own unit.
    pub sum: u64,
    /// The capacity that explicit reservations leave in the implied unit; none if the capacity is
    /// unknown.
    pub left: Option<u64>,
}

/// The reservation in the other unit that `amount` in `unit` alone implies: operations of
/// [`OPERATION_BYTES_MAX`], or for each [`OPERATION_BYTES_MIN`] an operation. It takes nothing that
/// is promised explicitly: together, such reservations imply no more than is left, each its part of
/// it in proportion to its amount.
///
/// Bytes are bytes here, and no tokens. Amounts may be rates, or counts of a period; `among` is of
/// the same kind. An `amount` that exceeds the sum counts as all of it.
///
/// ```
/// use tidegate_model::cost::{Implied, implied};
/// use tidegate_model::gate::Unit;
/// // A tenant with 1 MiB/s alone, at 1,000 iops of which others are promised 900.
/// let among = |left| Implied { sum: 1 << 20, left };
/// assert_eq!(implied(Unit::Bytes, 1 << 20, among(None)), 256);
/// assert_eq!(implied(Unit::Bytes, 1 << 20, among(Some(100))), 100);
/// ```
#[must_use]
pub fn implied(unit: Unit, amount: u64, among: Implied) -> u64 {
    let most = match unit {
        Unit::Operations => amount.saturating_mul(OPERATION_BYTES_MAX),
        Unit::Bytes => amount.div_ceil(OPERATION_BYTES_MIN),
    };
    let Some(left) = among.left else { return most };
    let sum = among.sum.max(amount).max(1);
    let part = u128::from(left) * u128::from(amount) / u128::from(sum);
    u64::try_from(part).map_or(most, |part| part.min(most))
}

/// The unit of cost that tenants share at a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostModel {
    /// Requests: each costs one; of several keys, one for each.
    #[default]
    Requests,
    /// Bytes that are read or written; requests that move none cost one.
    Bytes,
    /// Nanoseconds of a device.
    Device(DeviceCost),
}

/// The device time that a request costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCost {
    /// Of a read, or anything else that moves no bytes to the device.
    pub read: LineCost,
    /// Of a write.
    pub write: LineCost,
    /// How the two parts make one.
    pub combine: Combine,
}

/// A time that grows with the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineCost {
    /// For the request itself.
    pub base: Span,
    /// For each MiB that it moves.
    pub per_mib: Span,
}

/// How the time for the request and that for its bytes make one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combine {
    /// One after the other: a disk that seeks and then reads.
    #[default]
    Sum,
    /// At the same time, so that the longer one decides: a device that is bound by requests if
    /// they are small and by its bandwidth if they are large. A sum would make it look slower than
    /// it is at sizes in between.
    Max,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_implies_what_others_leave() {
        let among = |sum, left| Implied { sum, left: Some(left) };
        // Others are promised all bytes but 1 MiB, of which two tenants with 300 and 100 operations
        // have three quarters and one.
        let left = 1 << 20;
        assert_eq!(implied(Unit::Operations, 300, among(400, left)), 3 << 18);
        assert_eq!(implied(Unit::Operations, 100, among(400, left)), 1 << 18);
        assert_eq!(implied(Unit::Operations, 300, among(400, 0)), 0);
        // There is more than they can use.
        assert_eq!(implied(Unit::Operations, 3, among(4, 1 << 30)), 3 * OPERATION_BYTES_MAX);
        assert_eq!(implied(Unit::Bytes, 10_000, among(10_000, 1 << 30)), 3);
        // Nothing reserved implies nothing, and no number is too large.
        assert_eq!(implied(Unit::Bytes, 0, among(0, 9)), 0);
        assert_eq!(implied(Unit::Operations, u64::MAX, Implied::default()), u64::MAX);
        assert_eq!(implied(Unit::Operations, u64::MAX, among(1, u64::MAX)), u64::MAX);
    }

    /// Rounded down, the parts add up to no more than there is.
    #[test]
    fn implied_parts_add_up_to_what_is_left() {
        for left in 0..200 {
            let amounts = [1, 7, 13, 13, 99];
            let among = Implied { sum: amounts.iter().sum(), left: Some(left) };
            for unit in [Unit::Operations, Unit::Bytes] {
                let sum: u64 = amounts.iter().map(|amount| implied(unit, *amount, among)).sum();
                assert!(sum <= left, "{unit:?}: {sum} of {left}");
            }
        }
    }
}
