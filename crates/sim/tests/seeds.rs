//! The first seeds of the cluster under faults. More of them: `cargo xtask seeds 10000`.

mod volley;

use tidegate_sim::seeds;

const SEEDS: u64 = 300;

#[test]
fn what_must_hold_holds() {
    volley::all_hold(SEEDS, seeds::check);
}
