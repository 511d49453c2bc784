//! The accounts of gateways against the paper's virtual streams, and the bound against fractions.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The paper's definition, by looking at everything that was sent: what went to other nodes after
/// the last request to this one.
fn delays(requests: &[(usize, u32)]) -> Vec<u32> {
    let delay = |(index, (node, _)): (usize, &(usize, u32))| {
        let before = requests[..index].iter().rev();
        before.take_while(|(other, _)| other != node).map(|(_, cost)| cost).sum()
    };
    requests.iter().enumerate().map(delay).collect()
}

proptest! {
    #[test]
    fn delays_are_those_of_the_paper(
        requests in prop::collection::vec((0usize..4, 1u32..1_000), 0..60),
    ) {
        let tenant = Elsewhere::new(4);
        let reported: Vec<u32> =
            requests.iter().map(|(node, cost)| tenant.sent(*node, *cost)).collect();
        prop_assert_eq!(reported, delays(&requests));
    }

    /// A node receives each unit of cost elsewhere exactly once, from any gateway and at any time.
    #[test]
    fn each_unit_is_reported_once(
        requests in
            prop::collection::vec((0usize..3, 0usize..3, 1u32..1_000, any::<bool>()), 0..60),
    ) {
        let gateways = [Elsewhere::new(3), Elsewhere::new(3), Elsewhere::new(3)];
        let (mut reported, mut sent) = (vec![0u64; 3], vec![0u64; 3]);
        for (gateway, node, cost, is_virtual) in requests {
            if is_virtual {
                reported[node] += gateways[gateway].take_unreported(node);
            } else {
                reported[node] += u64::from(gateways[gateway].sent(node, cost));
                sent[node] += u64::from(cost);
            }
        }
        let total: u64 = sent.iter().sum();
        for node in 0..3 {
            let rest: u64 = gateways.iter().map(|gateway| gateway.take_unreported(node)).sum();
            prop_assert_eq!(reported[node] + rest, total - sent[node]);
        }
    }

    /// κ as a fraction of real numbers, never above it and at most a part in 2^16 below.
    #[test]
    fn the_bound_is_that_of_the_paper(
        minimum in 1u32..1_000_000, weight in 1u32..=1_000_000, others in 1u64..100_000_000,
    ) {
        let weights = u64::from(weight) + others;
        let share = f64::from(weight) / weights as f64;
        let least = f64::from(minimum) / 1e6;
        let exact = ((share / least - 1.0) / (1.0 - share)).max(0.0);
        prop_assume!(exact < 65_000.0);
        let bound = Bound::leaving(minimum, weight, weights).of(1) as f64 / 65_536.0;
        prop_assert!(bound <= exact + 1e-9 && exact < bound + 2.0 / 65_536.0, "{bound} {exact}");
    }
}

#[test]
fn what_does_not_fit_goes_with_the_next() {
    let tenant = Elsewhere::new(2);
    for _ in 0..3 {
        tenant.sent(0, u32::MAX);
    }
    assert_eq!(
        (0..4).map(|_| tenant.sent(1, 1)).collect::<Vec<_>>(),
        [u32::MAX, u32::MAX, u32::MAX, 0]
    );
}

#[test]
fn a_tenant_of_one_node_is_never_delayed() {
    let tenant = Elsewhere::new(1);
    assert_eq!((tenant.sent(0, 5), tenant.sent(0, 5), tenant.take_unreported(0)), (0, 0, 0));
}
