//! The first seeds of clients with guarantees under fire. More of them:
//! `cargo xtask seeds --one-sided 10000`.

mod volley;

use tidegate_sim::one_sided::fire;

const SEEDS: u64 = 100;

#[test]
fn what_must_hold_holds() {
    volley::all_hold(SEEDS, fire::check);
}
