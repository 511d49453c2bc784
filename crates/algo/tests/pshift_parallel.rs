//! On all cores as on one.
#![cfg(feature = "parallel")]

use tidegate_algo::allocation::pshift::Solver;
use tidegate_algo::allocation::pshift::instance::Family;

#[test]
fn the_same_bit_for_bit() {
    for (reserved_tenths, demand_tenths) in [(10, 11), (10, 15), (9, 11)] {
        let family = Family { servers: 16, buckets: 9_000, reserved_tenths, demand_tenths };
        let mut one = Solver::new(family.configuration());
        let mut many = Solver::new(family.configuration());
        assert_eq!(one.solve(), many.solve_parallel());
        assert_eq!(one.configuration(), many.configuration());
    }
}
