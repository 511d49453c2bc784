//! Filling, against a node that does one operation after the other.

use proptest::prelude::*;
use tidegate_algo::onesided::admission::{Capacity, ReservationRefusal, admit, fill};

/// Serves all in rotation, in fractions of operations as small as both rates together need.
fn served(capacity: Capacity, demands: &[u64]) -> Vec<f64> {
    let steps = 20_000;
    let mut served = vec![0.0; demands.len()];
    for _ in 0..steps {
        let left: Vec<usize> =
            (0..demands.len()).filter(|c| served[*c] < demands[*c] as f64).collect();
        let each = (capacity.local as f64).min(capacity.global as f64 / left.len() as f64);
        for client in left {
            served[client] = (served[client] + each / f64::from(steps)).min(demands[client] as f64);
        }
    }
    served
}

/// The paper's second example.
#[test]
fn a_client_cannot_make_up_alone_for_what_others_took_at_first() {
    let capacity = Capacity { global: 100, local: 50 };
    assert_eq!(fill(capacity, &[40, 10, 10, 10, 10]), [35, 10, 10, 10, 10]);
    assert_eq!(fill(capacity, &[30, 10, 10, 10, 10]), [30, 10, 10, 10, 10]);
}

/// All of the node can be promised, also if it cannot be divided evenly.
#[test]
fn all_of_a_node_can_be_promised() {
    let capacity = Capacity { global: 100, local: 100 };
    assert_eq!(fill(capacity, &[33, 33, 34]), [33, 33, 34]);
    assert_eq!(admit(capacity, &[33, 33, 34], false), Ok(()));
    assert_eq!(fill(Capacity { global: 0, local: 5 }, &[3, 0]), [0, 0]);
    assert_eq!(fill(Capacity { global: 5, local: 0 }, &[3, 0]), [0, 0]);
}

/// Figure 10's spike: three reserve 285 K of 400 K, seven 80 K, of 1,570 K.
#[test]
fn the_papers_spike_cannot_be_kept_in_bursts() {
    let capacity = Capacity { global: 1_570_000, local: 400_000 };
    let mut requested = [80_000; 10];
    requested[..3].fill(285_000);
    let refused = ReservationRefusal::Burst { client: 2, reservation: 285_000, done: 276_178 };
    assert_eq!(admit(capacity, &requested, false), Err(refused));
    assert_eq!(admit(capacity, &requested, true), Ok(()));
}

proptest! {
    #[test]
    fn filling_is_what_a_node_does(
        global in 1u64..5_000,
        local in 1u64..3_000,
        demands in proptest::collection::vec(0u64..2_000, 1..7),
    ) {
        let capacity = Capacity { global, local };
        let filled = fill(capacity, &demands);
        prop_assert!(filled.iter().sum::<u64>() <= global);
        let served = served(capacity, &demands);
        for (client, (filled, served)) in filled.iter().zip(served).enumerate() {
            prop_assert!(*filled <= demands[client] && *filled <= local);
            prop_assert!((*filled as f64 - served).abs() < 2.5, "{client}: {filled}, {served}");
        }
        let is_admitted = admit(capacity, &demands, false).is_ok();
        prop_assert_eq!(is_admitted, filled == demands);
        let fits = demands.iter().sum::<u64>() <= global && demands.iter().all(|one| *one <= local);
        prop_assert_eq!(admit(capacity, &demands, true).is_ok(), fits);
        prop_assert!(fits || !is_admitted);
    }
}
