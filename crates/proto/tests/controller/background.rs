//! Background channels: the rates of flushes and compactions of a store follow its foreground.

use tidegate_model::Span;
use tidegate_proto::controller::ConnectionId;

use crate::world::{ControllerTestbed, FakeFlow, MIB, MS};

const POLICY: &str = r#"
    budget = "200MiB/s"
    [[tenant]]
    name = "kv"
    [[channel]]
    name = "flush"
    tenant = "kv"
    background = "high"
    minimum = "10MiB/s"
    [[channel]]
    name = "low"
    tenant = "kv"
    background = "high"
    minimum = "10MiB/s"
    [[channel]]
    name = "deep"
    tenant = "kv"
    background = "low"
"#;

const CHANNELS: [&str; 3] = ["flush", "low", "deep"];

/// A store under a policy, of which nothing wants anything yet.
fn store(policy: &str) -> (ControllerTestbed, ConnectionId) {
    let mut world = ControllerTestbed::new(Some(policy));
    let kv = world.join("kv", 0);
    let flows = CHANNELS.map(|channel| (channel.to_owned(), FakeFlow::default()));
    world.stage(kv).background = flows.into();
    (world, kv)
}

/// Lets the foreground and the background want so much, in MiB per second.
fn want(world: &mut ControllerTestbed, kv: ConnectionId, foreground: u64, background: [u64; 3]) {
    let stage = world.stage(kv);
    stage.wants = foreground * MIB;
    for (channel, wants) in CHANNELS.iter().zip(background) {
        stage.background.get_mut(*channel).unwrap().wants = wants * MIB;
    }
}

/// The rates of the background, in MiB per second.
fn rates(world: &mut ControllerTestbed, kv: ConnectionId) -> [u64; 3] {
    CHANNELS.map(|channel| world.stage(kv).background_rate(channel) / MIB)
}

#[track_caller]
fn is_about(found: [u64; 3], wanted: [u64; 3]) {
    let is_near = |(found, wanted): (&u64, &u64)| found.abs_diff(*wanted) <= 4;
    assert!(found.iter().zip(&wanted).all(is_near), "{found:?}, and not {wanted:?}");
}

/// More than there is.
const ALL: u64 = 1_000;

#[test]
fn the_background_has_what_the_foreground_leaves() {
    let (mut world, kv) = store(POLICY);
    // 50 and its headroom leave 148, of which 118 are divided.
    for (background, expected) in [
        ([0, 0, ALL], [10, 10, 128]),
        ([ALL, 0, ALL], [128, 10, 10]),
        ([0, ALL, ALL], [10, 128, 10]),
        ([ALL, ALL, ALL], [69, 69, 10]),
        ([30, ALL, ALL], [31, 107, 10]),
        ([30, 30, ALL], [31, 31, 86]),
    ] {
        want(&mut world, kv, 50, background);
        world.run(Span::SECOND);
        is_about(rates(&mut world, kv), expected);
    }
    // An idle foreground leaves all of it.
    want(&mut world, kv, 0, [0, 0, ALL]);
    world.run(Span::SECOND);
    is_about(rates(&mut world, kv), [10, 10, 180]);
}

#[test]
fn foreground_and_background_keep_to_the_budget_at_all_times() {
    let (mut world, kv) = store(POLICY);
    let mut dice = 7u64;
    let mut roll = |below: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (dice >> 33) % below
    };
    for _ in 0..100 {
        let background = [roll(200), roll(200), roll(400)];
        want(&mut world, kv, roll(150), background);
        world.run(Span(roll(300) * MS));
        // A change of a hundredth is not sent.
        let sum: u64 = rates(&mut world, kv).iter().sum();
        assert!(sum <= 202, "{sum}");
        // A few cycles later the foreground has what it wants, and the rates leave it.
        world.run(Span(800 * MS));
        let wants = world.stage(kv).wants / MIB;
        let sum: u64 = rates(&mut world, kv).iter().sum();
        assert!(sum + wants <= 202, "{sum} beside {wants}");
    }
}

#[test]
fn a_foreground_that_grows_finds_its_rate() {
    let (mut world, kv) = store(POLICY);
    want(&mut world, kv, 10, [0, ALL, ALL]);
    world.run(Span::SECOND);
    let before = world.stage(kv).done_bytes;
    want(&mut world, kv, ALL, [0, ALL, ALL]);
    world.run(Span::SECOND);
    is_about(rates(&mut world, kv), [10, 10, 10]);
    // It has nearly all of what it may have from the first second on.
    let done = (world.stage(kv).done_bytes - before) / MIB;
    assert!((120..=170).contains(&done), "{done}");
}

/// A background that is held back wants more of the budget: another tenant with demand has no more
/// than its part.
#[test]
fn a_background_that_waits_counts_for_its_tenant() {
    let (mut world, kv) = store(&format!("{POLICY}\n[[tenant]]\nname = \"other\""));
    let other = world.join("other", u64::MAX);
    want(&mut world, kv, 0, [0, 0, ALL]);
    world.run(Span(3 * Span::SECOND.0));
    let shares = [kv, other].map(|stage| world.stage(stage).rate_mib());
    assert!(shares.iter().all(|share| (97..=101).contains(share)), "{shares:?}");
    is_about(rates(&mut world, kv), [10, 10, 79]);
    want(&mut world, kv, 0, [0, 0, 0]);
    world.run(Span::SECOND);
    assert!(world.stage(other).rate_mib() > 190, "{}", world.stage(other).rate_mib());
}

#[test]
fn minimum_rates_follow_the_policy() {
    let (mut world, kv) = store(POLICY);
    want(&mut world, kv, ALL, [ALL; 3]);
    world.run(Span::SECOND);
    // The third has a twentieth of the rate.
    is_about(rates(&mut world, kv), [10, 10, 10]);
    world.apply(2, &POLICY.replace("10MiB/s", "25MiB/s"));
    world.run(Span::SECOND);
    is_about(rates(&mut world, kv), [25, 25, 10]);
    // More than half of a budget is no minimum.
    world.apply(3, &POLICY.replace("200MiB/s", "20MiB/s"));
    world.run(Span::SECOND);
    let found: u64 = rates(&mut world, kv).iter().sum();
    assert!((7..=10).contains(&found), "{found}");
}
