//! Anything in any order: nothing panics, and the sum of what is in force stays within the budget.

use proptest::prelude::*;
use tidegate_model::gate::Unit;
use tidegate_model::{Policy, Span, StageId};
use tidegate_proto::controller::ConnectionId;
use tidegate_proto::message::{FromStage, RuleError, StageInfo, StageReport, VERSION};

use crate::world::{ControllerTestbed, MS};

const POLICIES: [&str; 4] = [
    "budget = \"1000MB/s\"\nredistribute = \"100ms\"\n
     tenant = [{ name = \"a\", reservation = \"600MB/s\" }, { name = \"b\", limit = \"100MB/s\" },
               { name = \"c\", users = \"1000\" }]",
    "budget = [\"500MB/s\", \"10k iops\"]\nredistribute = \"50ms\"\nperiod = \"200ms\"\n
     tenant = [{ name = \"b\", weight = 7 }, { name = \"a\", reservation = \"5k iops\" }]\n
     channel = [{ name = \"x\", tenant = \"a\", gates = [{ kind = \"no-op\" }] }]\n
     match = [{ channel = \"x\", process = \"p\" }, { tenant = \"b\" }]",
    "budget = \"3B/s\"\nredistribute = \"10ms\"\nperiod = \"10ms\"\n
     tenant = [{ name = \"a\" }, { name = \"c\" }]",
    "tenant = [{ name = \"a\", limit = \"1MB/s\" }, { name = \"b\" }]",
];

#[derive(Clone, Debug)]
enum Act {
    Join { tenant: usize, claims: u64, uid: u32 },
    Leave(usize),
    Deafen(usize),
    Want(usize, u64),
    Empty(usize),
    Report(usize, u64, u64),
    Send(usize, u8),
    Apply(usize),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let amount = prop_oneof![Just(0), 0u64..1 << 32, any::<u64>()];
    prop_oneof![
        4 => (0usize..5, 0u64..6, 1_000u32..1_002)
            .prop_map(|(tenant, claims, uid)| Act::Join { tenant, claims, uid }),
        1 => any::<usize>().prop_map(Act::Leave),
        1 => any::<usize>().prop_map(Act::Deafen),
        3 => (any::<usize>(), 0u64..1 << 34).prop_map(|(who, wants)| Act::Want(who, wants)),
        1 => any::<usize>().prop_map(Act::Empty),
        2 => (any::<usize>(), amount.clone(), amount)
            .prop_map(|(who, value, at)| Act::Report(who, value, at)),
        1 => (any::<usize>(), 0u8..3).prop_map(|(who, what)| Act::Send(who, what)),
        1 => (0..POLICIES.len()).prop_map(Act::Apply),
        6 => (1u64..400).prop_map(Act::Pass),
    ]
}

fn perform(world: &mut ControllerTestbed, act: &Act) {
    let pick = |world: &ControllerTestbed, who: usize| -> Option<ConnectionId> {
        let count = world.stages.len().max(1);
        world.stages.keys().nth(who % count).copied()
    };
    match *act {
        Act::Join { tenant, claims, uid } => {
            let tenant = ["a", "b", "c", "", "nobody"][tenant].into();
            let info = StageInfo { stage: StageId(claims), tenant, ..StageInfo::default() };
            world.hello(VERSION, uid, info);
        }
        Act::Leave(who) => pick(world, who).into_iter().for_each(|c| world.leave(c)),
        Act::Deafen(who) => {
            pick(world, who).into_iter().for_each(|c| world.stage(c).is_deaf ^= true);
        }
        Act::Want(who, wants) => {
            pick(world, who).into_iter().for_each(|c| world.stage(c).wants = wants);
        }
        Act::Empty(who) => {
            pick(world, who).into_iter().for_each(|c| world.stage(c).processes ^= 1);
        }
        Act::Report(who, value, at_ns) => {
            let Some(connection) = pick(world, who) else { return };
            let mut report: StageReport = world.stages[&connection].report(value, world.now);
            report.at_ns = at_ns;
            report.channels[0].bytes = value;
            report.gates[0].waited_ns = value;
            world.send(connection, FromStage::Report(report));
        }
        Act::Send(who, what) => {
            let Some(connection) = pick(world, who) else { return };
            let error = Some(RuleError { rule: 0, reason: "no".into() });
            world.send(
                connection,
                match what {
                    0 => FromStage::Disconnect,
                    1 => FromStage::Unused,
                    _ => FromStage::Applied { revision: 3, error },
                },
            );
        }
        Act::Apply(policy) => {
            let revision = world.controller.policy().map_or(0, |(revision, _)| revision) + 1;
            world.apply(revision, POLICIES[policy]);
        }
        Act::Pass(ms) => world.run(Span(ms * MS)),
    }
}

/// Checks what the stages believe against the policy in force.
fn check(world: &ControllerTestbed) -> Result<(), TestCaseError> {
    let Some((revision, policy)) = world.controller.policy() else { return Ok(()) };
    let sum = |unit: Unit, of: Option<&str>| -> u128 {
        let rates = world.stages.values().flat_map(|stage| &stage.rates);
        let is_requested = |name: &str| {
            let tenant = name.strip_suffix(":bandwidth").or(name.strip_suffix(":operations"));
            tenant.is_some_and(|tenant| of.is_none_or(|of| of == tenant))
        };
        let rates = rates.filter(|(name, rate)| rate.unit() == unit && is_requested(name));
        rates.map(|(_, rate)| u128::from(rate.per_second())).sum()
    };
    // A joining stage gets a part of a hundredth where nothing is left; every bucket at least one.
    let buckets = world.stages.values().map(|stage| stage.rates.len() as u128).sum::<u128>();
    let most = |cap: u64| u128::from(cap) + u128::from(cap / 100) + buckets;
    for unit in [Unit::Bytes, Unit::Operations] {
        if let Some(budget) = policy.budget.get(unit) {
            prop_assert!(sum(unit, None) <= most(budget), "{:?}: {}", unit, sum(unit, None));
        }
        for tenant in &policy.tenants {
            if let Some(limit) = tenant.limit.get(unit) {
                prop_assert!(sum(unit, Some(&tenant.name)) <= most(limit), "{}", tenant.name);
            }
        }
    }
    prop_assert!(world.stages.values().all(|stage| stage.revision == revision));
    let status = world.status();
    prop_assert_eq!(status.stages.len(), world.stages.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn nothing_panics_and_nothing_is_given_twice(
        first in prop::option::of(0..POLICIES.len()),
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut world = ControllerTestbed::new(first.map(|policy| POLICIES[policy]));
        for act in &acts {
            perform(&mut world, act);
            check(&world)?;
        }
        // Whatever happened, the controller still works.
        let next = world.controller.next_deadline();
        world.run(Span(next.since(world.now).0 + MS));
        prop_assert!(world.controller.next_deadline() > world.now);
    }
}

#[test]
fn the_policies_are_policies() {
    for text in POLICIES {
        assert!(Policy::parse(text).is_ok_and(|policy| policy.feasible().is_ok()), "{text}");
    }
}
