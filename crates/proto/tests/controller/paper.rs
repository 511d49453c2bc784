//! PAIO §9.3, figure 10: four tenants that were promised 150, 200, 300 and 350 MiB/s of a shared
//! 1,000 come and go, and each has its promise while it is there.

use std::collections::BTreeMap;
use std::fmt::Write;

use tidegate_model::Span;
use tidegate_proto::controller::ConnectionId;

use crate::world::{ControllerTestbed, MIB};

const PROMISES: [u64; 4] = [150, 200, 300, 350];
const BUDGET: u64 = 1_000;

fn policy(more: &str) -> String {
    let mut text = format!("budget = \"{BUDGET}MiB/s\"\nredistribute = \"100ms\"\n{more}\n");
    for (number, promise) in (1..).zip(PROMISES) {
        let _ =
            write!(text, "[[tenant]]\nname = \"i{number}\"\nreservation = \"{promise}MiB/s\"\n");
    }
    text
}

/// Plays `steps`, each a second and the changes at its beginning, and prints a line per second: the
/// present tenants, the work of each, and the sum. Checks the promises as it goes.
fn play(world: &mut ControllerTestbed, seconds: u64, steps: &[(u64, StageStep)]) -> String {
    let mut table = String::from("second  present     i1    i2    i3    i4    sum\n");
    let mut present: BTreeMap<usize, ConnectionId> = BTreeMap::new();
    let mut changed = 0;
    for second in 0..seconds {
        for (_, step) in steps.iter().filter(|(at, _)| *at == second) {
            changed = second;
            match *step {
                StageStep::Join(tenant) => {
                    let connection = world.join(&format!("i{tenant}"), u64::MAX);
                    present.insert(tenant, connection);
                }
                StageStep::Leave(tenant) => world.leave(present.remove(&tenant).unwrap()),
                StageStep::Wants(tenant, mib) => {
                    world.stage(present[&tenant]).wants = mib.saturating_mul(MIB);
                }
            }
        }
        let before = |world: &mut ControllerTestbed, tenant| match present.get(&tenant) {
            Some(connection) => world.stage(*connection).done_bytes,
            None => 0,
        };
        let start = [1, 2, 3, 4].map(|tenant| before(world, tenant));
        world.run(Span::SECOND);
        let end = [1, 2, 3, 4].map(|tenant| before(world, tenant));
        let done: Vec<u64> =
            end.iter().zip(start).map(|(end, start)| (end - start) / MIB).collect();
        let sum = done.iter().sum::<u64>();
        let name = |tenant| match present.contains_key(&tenant) {
            true => char::from_digit(tenant as u32, 10).unwrap(),
            false => '-',
        };
        let names: String = (1..5).map(name).collect();
        let columns: String = done.iter().map(|done| format!(" {done:5}")).collect();
        let _ = writeln!(table, "{second:6}  {names:7} {columns} {sum:6}");
        assert!(sum <= BUDGET + BUDGET / 50, "{table}");
        if second >= changed + 2 {
            let wants = |tenant: &usize| world.stages[&present[tenant]].wants / MIB;
            let wanted: u64 = present.keys().map(wants).fold(0, u64::saturating_add);
            assert!(sum * 100 >= wanted.min(BUDGET) * 97, "{table}");
            for tenant in present.keys() {
                let due = PROMISES[tenant - 1].min(wants(tenant));
                assert!(done[tenant - 1] * 100 >= due * 97, "{table}");
            }
        }
    }
    table
}

enum StageStep {
    Join(usize),
    Leave(usize),
    /// The program of a tenant wants so many MiB per second from now on.
    Wants(usize, u64),
}

fn compare(golden: &str, table: &str) {
    let path = format!("{}/tests/golden/{golden}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, table).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    let how = "run `UPDATE_GOLDEN=1 cargo test -p tidegate-proto` and say why it changed";
    assert!(wanted == table, "{path} differs; {how}\n{table}");
}

#[test]
fn tenants_join_and_leave() {
    use StageStep::{Join, Leave};
    let steps = [
        (0, Join(1)),
        (4, Join(2)),
        (8, Join(3)),
        (12, Join(4)),
        (18, Leave(3)),
        (22, Leave(1)),
        (26, Leave(2)),
    ];
    let mut world = ControllerTestbed::new(Some(&policy("")));
    compare("paper_figure_10", &play(&mut world, 30, &steps));
}

#[test]
fn what_one_does_not_want_the_others_use_and_give_back() {
    use StageStep::{Join, Wants};
    let steps = [
        (0, Join(1)),
        (0, Join(2)),
        (0, Join(3)),
        (0, Join(4)),
        (5, Wants(4, 100)),
        (10, Wants(3, 0)),
        (15, Wants(3, u64::MAX)),
        (20, Wants(4, u64::MAX)),
        (25, Wants(1, 40)),
        (25, Wants(2, 90)),
        (25, Wants(3, 120)),
        (25, Wants(4, 200)),
    ];
    let mut world = ControllerTestbed::new(Some(&policy("")));
    compare("paper_pauses", &play(&mut world, 30, &steps));
}

#[test]
fn a_cache_hit_costs_nothing_where_the_device_counts() {
    let mut world = ControllerTestbed::new(Some(&policy("account = \"device\"")));
    let [cached, cold] = ["i1", "i4"].map(|tenant| world.join(tenant, u64::MAX));
    // Programs are not infinitely fast: this one reads 9,000 MiB/s from memory.
    world.stage(cached).wants = 9_000 * MIB;
    world.stage(cached).device_permille = 100;
    world.run(Span(3 * Span::SECOND.0));
    let device =
        |world: &mut ControllerTestbed| [cached, cold].map(|c| world.stage(c).device_bytes);
    let start = device(&mut world);
    world.run(Span::SECOND);
    let end = device(&mut world);
    let [cached_mib, cold_mib] = [0, 1].map(|index| (end[index] - start[index]) / MIB);
    // 150 + 250 for the one and 350 + 250 for the other, counted at the device.
    assert!((388..=408).contains(&cached_mib), "{cached_mib} of 400");
    assert!((582..=612).contains(&cold_mib), "{cold_mib} of 600");
    assert!(world.stage(cached).rate() > 3_900 * MIB);
}
