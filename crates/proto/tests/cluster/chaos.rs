//! Anything in any order. The testbed checks after each tick that no token was created; when all is
//! well again, every reservation that can be met is met.

use tidegate_model::Span;

use crate::world::{ClusterTestbed, Link, MS};

const PERIOD: Span = Span(250 * MS);

/// Three nodes that serve 1,000 operations in a period each, of which 2,200 are promised.
const POLICY: &str = "period = \"250ms\"\nredistribute = \"50ms\"\n\
    tenant = [{ name = \"gold\", reservation = \"4k iops\" },\n\
              { name = \"silver\", reservation = \"3k iops\", limit = \"4k iops\" },\n\
              { name = \"bronze\", limit = \"2k iops\" },\n\
              { name = \"base\", reservation = \"1800 iops\", limit = \"1800 iops\" }]";

const TENANTS: [&str; 4] = ["gold", "silver", "bronze", "base"];

fn change_demand(world: &mut ClusterTestbed) {
    let (node, tenant) = (world.dice.roll(3) as usize, world.dice.roll(4) as usize);
    let rate = world.dice.roll(4) * 1000;
    world.demand(node, TENANTS[tenant], rate);
}

fn fault(world: &mut ClusterTestbed) {
    let node = world.dice.roll(3) as usize;
    match world.dice.roll(12) {
        0 if world.nodes[node].node.is_some() => world.kill_node(node),
        0 | 1 if world.nodes[node].node.is_none() => world.start_node(node),
        2 => world.hang_up(node),
        3 => world.nodes[node].is_cut_off ^= true,
        4 if world.cluster.is_some() => world.kill_controller(),
        4 | 5 if world.cluster.is_none() => world.start_controller(),
        6..9 => {
            let (least, more) = (world.dice.roll(5), world.dice.roll(40));
            let lost_permille = world.dice.roll(4) * 100;
            let doubled_permille = world.dice.roll(4) * 100;
            world.link = Link { delay_ms: (least, least + more), lost_permille, doubled_permille };
        }
        _ => change_demand(world),
    }
}

/// Ends all faults, and asks for what is promised, at other nodes than before.
fn heal(world: &mut ClusterTestbed) {
    world.link = Link { delay_ms: (0, 1), ..Link::default() };
    if world.cluster.is_none() {
        world.start_controller();
    }
    for node in 0..3 {
        world.nodes[node].is_cut_off = false;
        if world.nodes[node].node.is_none() {
            world.start_node(node);
        }
        for (tenant, rate) in [("gold", 2000), ("silver", 1400), ("bronze", 3000), ("base", 700)] {
            world.demand(node, tenant, rate);
        }
    }
}

/// No tenant asks for anything for a while, so that nodes rest where they can.
fn clear_demand(world: &mut ClusterTestbed) {
    world.nodes.iter_mut().for_each(|node| node.demand.clear());
    let pause = 500 + world.dice.roll(1_000);
    world.run(Span(pause * MS));
}

/// So many faults; no tenant asks for anything after some of them if `rests`.
fn run(seed: u64, faults: u32, rests: bool) {
    // Shown if it fails.
    println!("seed {seed}");
    let mut world = ClusterTestbed::new(POLICY, &[4000; 3]);
    world.dice.0 = seed;
    (0..6).for_each(|_| change_demand(&mut world));
    for _ in 0..faults {
        fault(&mut world);
        let pause = 1 + world.dice.roll(60);
        world.run(Span(pause * MS));
        if rests && world.dice.roll(2) == 0 {
            clear_demand(&mut world);
        }
    }
    heal(&mut world);
    world.run(Span(8 * PERIOD.0));
    let last = world.status().period - 1;
    for (tenant, promised) in [("gold", 1000), ("silver", 750), ("base", 450)] {
        let served = world.served(last, tenant);
        let least = promised - promised / 50;
        assert!(served >= least, "seed {seed}: {tenant} was served {served} of {promised}");
    }
}

#[test]
fn no_fault_creates_a_token_and_reservations_are_met_after_it() {
    (0..10).for_each(|seed| run(seed, 60, false));
}

#[test]
fn no_fault_creates_a_token_while_nodes_rest_and_wake() {
    (126..130).for_each(|seed| run(seed, 30, true));
}
