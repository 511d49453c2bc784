//! The compiled table against an oracle that asks every rule in turn.

use super::*;
use alloc::string::ToString;
use alloc::vec;
use proptest::prelude::*;
use tidegate_model::{OperationSet, SizeRange};

fn entry(channel: u8) -> ChannelEntry {
    ChannelEntry {
        channel,
        tenant: TenantId(u16::from(channel) + 100),
        class: Class::High,
        gates: [Some(channel), Some(3), Some(7), None, None, None, None, None],
    }
}

#[derive(Clone, Debug)]
struct TestRequest {
    operation: Operation,
    size: u64,
    values: [&'static str; 6],
}

/// The oracle: rule after rule, classifier after classifier.
fn by_hand(rules: &[(Conditions, u8)], request: &TestRequest) -> Option<u8> {
    let accepts = |conditions: &Conditions| {
        conditions.operation.contains(request.operation)
            && conditions.size.contains(Bytes(request.size))
            && CLASSIFIERS.iter().all(|classifier| {
                let patterns = patterns(conditions, *classifier);
                let value = request.values[*classifier as usize].as_bytes();
                patterns.is_empty() || patterns.iter().any(|p| glob(p.as_bytes(), value))
            })
    };
    rules.iter().find(|(conditions, _)| accepts(conditions)).map(|(_, channel)| *channel)
}

fn by_table(words: &[u64], request: &TestRequest) -> Option<u8> {
    let table = RuleTable(words);
    let mut known = Mask::ALL;
    for classifier in CLASSIFIERS {
        let value = request.values[classifier as usize].as_bytes();
        known = known.and(table.accepts(classifier, value).0);
    }
    table.classify(request.operation, request.size, [&known, &Mask::ALL]).map(Destination::channel)
}

const VALUES: [&str; 6] = ["", "flush", "compaction_l0", "/data/a/b", "/data/c", "rocksdb:low"];
const PATTERNS: [&str; 6] = ["flush", "compaction*", "/data/**", "/data/*", "rocks*:low", "**"];

fn some_rules() -> impl Strategy<Value = Vec<(Conditions, u8)>> {
    let texts = || proptest::collection::vec(proptest::sample::select(&PATTERNS[..]), 0..3);
    let texts = || texts().prop_map(|texts| texts.iter().map(|t| t.to_string()).collect());
    let strings = (texts(), texts(), texts(), texts(), texts(), texts());
    let rest = (1u32..8, 0u64..3, 0u64..3, 0u8..4);
    let rule = (strings, rest).prop_map(|(strings, (operations, low, high, channel))| {
        let named = |bit: u32, name: &str| match operations >> bit & 1 {
            1 => name.parse().unwrap(),
            _ => OperationSet::EMPTY,
        };
        let operation = named(0, "read").union(named(1, "write")).union(named(2, "metadata"));
        let conditions = Conditions {
            workflow: strings.0,
            context: strings.1,
            process: strings.2,
            cgroup: strings.3,
            user: strings.4,
            path: strings.5,
            operation,
            size: SizeRange { min: Bytes(low * 4096), max: Bytes((low + high) * 4096) },
        };
        (conditions, channel)
    });
    proptest::collection::vec(rule, 0..100)
}

fn any_request() -> impl Strategy<Value = TestRequest> {
    let value = || proptest::sample::select(&VALUES[..]);
    let values = [value(), value(), value(), value(), value(), value()];
    (0u8..9, 0u64..20_000, values).prop_map(|(operation, size, values)| TestRequest {
        operation: Operation::from_number(operation).unwrap(),
        size,
        values,
    })
}

proptest! {
    #[test]
    fn the_table_decides_as_the_rules_do(
        rules in some_rules(),
        request in proptest::collection::vec(any_request(), 20),
        default in proptest::option::of(0u8..4),
    ) {
        let channels = [entry(0), entry(1), entry(2), entry(3)];
        let source = Source { rules: &rules, default, channels: &channels, queues: &[] };
        let words = compile(&source).unwrap();
        for request in request {
            prop_assert_eq!(by_table(&words, &request), by_hand(&rules, &request).or(default));
        }
    }

    #[test]
    fn any_words_are_read_without_a_panic(
        words in proptest::collection::vec(any::<u64>(), 0..300),
        request in any_request(),
    ) {
        let _ = by_table(&words, &request);
    }
}

#[test]
fn a_channel_comes_back_as_it_was_compiled() {
    for gates in [[Some(9), Some(3), None, None, None, None, None, None], [Some(9); 8], [None; 8]] {
        let channels = [ChannelEntry { gates, ..entry(9) }];
        let source = Source { default: Some(9), channels: &channels, ..Source::default() };
        let words = compile(&source).unwrap();
        let found = RuleTable(&words[..]).classify(Operation::Read, 4096, [&Mask::ALL; 2]).unwrap();
        let matched = (found.channel(), found.tenant(), found.class());
        assert_eq!(matched, (9, TenantId(109), Class::High));
        assert!(found.gates().eq(gates.into_iter().flatten()));
    }
}

#[test]
fn without_rules_and_default_nothing_is_found() {
    let words = compile(&Source::default()).unwrap();
    let table = RuleTable(&words[..]);
    assert_eq!(table.classify(Operation::Read, 0, [&Mask::ALL; 2]), None);
    assert!(CLASSIFIERS.iter().all(|classifier| !table.uses(*classifier)));
    assert_eq!(RuleTable(&[][..] as &[u64]).classify(Operation::Read, 0, [&Mask::ALL; 2]), None);
}

#[test]
fn only_classifiers_in_use_are_reported_as_used() {
    let conditions = Conditions { path: vec!["/data/**".into()], ..Conditions::default() };
    let (rules, channels) = ([(conditions, 0)], [entry(0)]);
    let source = Source { rules: &rules, channels: &channels, ..Source::default() };
    let words = compile(&source).unwrap();
    assert!(RuleTable(&words[..]).uses(Classifier::Path));
    assert!(!RuleTable(&words[..]).uses(Classifier::Process));
}

#[test]
fn a_context_finds_its_flow_at_every_queue() {
    let first = (vec![("flush".into(), 0), ("compaction*".into(), 1)], 15);
    let second = (vec![("**".into(), 4)], 0);
    let queues = [first, second];
    let words = compile(&Source { queues: &queues, ..Source::default() }).unwrap();
    let table = RuleTable(&words[..]);
    let flows = |context: &str| {
        let flows = table.accepts(Classifier::Context, context.as_bytes()).1;
        (flows.flow(0), flows.flow(1))
    };
    assert_eq!(flows("flush"), (0, 4));
    assert_eq!(flows("compaction_l0"), (1, 4));
    assert_eq!(flows("get"), (15, 4));
    assert!(table.uses(Classifier::Context));
}

#[test]
fn what_does_not_fit_is_refused() {
    let rules = vec![(Conditions::default(), 0); RULES_MAX + 1];
    let source = Source { rules: &rules, ..Source::default() };
    assert_eq!(compile(&source), Err(CompileError::TooManyRules));
    let long = Conditions { path: vec!["x".repeat(PATTERN_MAX + 1)], ..Conditions::default() };
    let rules = [(long, 0)];
    let source = Source { rules: &rules, ..Source::default() };
    assert_eq!(compile(&source), Err(CompileError::PatternTooLong));
    let much = Conditions { path: vec!["x".repeat(200); 400], ..Conditions::default() };
    let rules = [(much, 0)];
    let source = Source { rules: &rules, ..Source::default() };
    assert_eq!(compile(&source), Err(CompileError::TableTooLong));
}
