//! Cost of a request in the fair order of a node, from its operation and its size.
//!
//! Costs are integers from one, so that an endless row of requests that cost nothing cannot hold up
//! all other requests, and at most 2^32 - 1: four seconds of a device, or 4 GiB.
//!
//! ```
//! use tidegate_algo::scheduling::cost::work;
//! use tidegate_model::Span;
//! use tidegate_model::cost::{Combine, CostModel, DeviceCost, LineCost};
//! let line = LineCost { base: Span(80_000), per_mib: Span(1_600_000) };
//! let disk = |combine| CostModel::Device(DeviceCost { read: line, write: line, combine });
//! assert_eq!(work(&CostModel::Requests, false, 1 << 20, 1), 1);
//! assert_eq!(work(&CostModel::Bytes, false, 1 << 20, 1), 1 << 20);
//! assert_eq!(work(&disk(Combine::Sum), true, 1 << 20, 1), 1_680_000); // nanoseconds
//! assert_eq!(work(&disk(Combine::Max), true, 1 << 20, 1), 1_600_000);
//! assert_eq!(work(&disk(Combine::Max), true, 4 << 10, 1), 80_000);
//! ```

use tidegate_model::cost::{Combine, CostModel, DeviceCost, LineCost};

/// The cost of a request that moves so many bytes, to the device if it is a write, and is about so
/// many keys or one.
#[inline]
pub fn work(model: &CostModel, is_write: bool, bytes: u32, keys: u32) -> u32 {
    match model {
        CostModel::Requests => keys.max(1),
        CostModel::Bytes => bytes.max(keys).max(1),
        CostModel::Device(device) => device_time(device, is_write, bytes, keys.max(1)),
    }
}

fn device_time(device: &DeviceCost, is_write: bool, bytes: u32, keys: u32) -> u32 {
    let LineCost { base, per_mib } = if is_write { device.write } else { device.read };
    let base = u128::from(base.0) * u128::from(keys);
    let moved = (u128::from(per_mib.0) * u128::from(bytes)) >> 20;
    let time = match device.combine {
        Combine::Sum => base + moved,
        Combine::Max => base.max(moved),
    };
    u32::try_from(time).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_model::Span;

    fn device(base: u64, per_mib: u64, combine: Combine) -> CostModel {
        let line = LineCost { base: Span(base), per_mib: Span(per_mib) };
        let none = LineCost { base: Span(0), per_mib: Span(0) };
        CostModel::Device(DeviceCost { read: none, write: line, combine })
    }

    #[test]
    fn it_is_never_nothing_and_never_wraps() {
        for model in [CostModel::Requests, CostModel::Bytes, device(0, 0, Combine::Max)] {
            assert_eq!(work(&model, true, 0, 0), 1);
        }
        assert_eq!(work(&device(u64::MAX, u64::MAX, Combine::Sum), true, u32::MAX, 9), u32::MAX);
        assert_eq!(work(&device(u64::MAX, u64::MAX, Combine::Sum), false, u32::MAX, 9), 1);
    }

    proptest! {
        #[test]
        fn a_maximum_lies_between_half_the_sum_and_the_sum(
            base in 0u64..1_000_000, per_mib in 0u64..1_000_000, bytes in 0u32..1 << 25,
        ) {
            let sum = work(&device(base, per_mib, Combine::Sum), true, bytes, 1);
            let max = work(&device(base, per_mib, Combine::Max), true, bytes, 1);
            prop_assert!(max <= sum && sum <= 2 * max);
        }

        #[test]
        fn more_bytes_never_cost_less(
            base in 0u64..1_000_000, per_mib in 0u64..100_000_000, a: u32, b: u32,
        ) {
            for combine in [Combine::Sum, Combine::Max] {
                let cost = |bytes| work(&device(base, per_mib, combine), true, bytes, 1);
                prop_assert!(cost(a.min(b)) <= cost(a.max(b)));
            }
        }
    }
}
