//! Compiled rules: any words are read without a panic, and in a bounded time.

use tidegate_algo::classify::channel::{
    ChannelEntry, Classifier, Mask, RuleTable, Source, WORDS_MAX, compile, glob,
};
use tidegate_model::operation::OPERATIONS;
use tidegate_model::{Class, Conditions, TenantId};

use super::tape::Tape;

const CLASSIFIERS: [Classifier; 6] = [
    Classifier::Workflow,
    Classifier::Context,
    Classifier::Process,
    Classifier::Cgroup,
    Classifier::User,
    Classifier::Path,
];

/// The first byte says what: damage to a table, words that never were one, or a pattern.
pub fn run(bytes: &[u8]) {
    let mut tape = Tape::new(bytes);
    match tape.byte() % 3 {
        0 => {
            let mut words = compiled();
            while !tape.is_over() {
                let at = tape.number() as usize % words.len();
                words[at] = tape.number();
            }
            classify(&words);
        }
        1 => {
            let bytes = tape.bytes(WORDS_MAX * 8);
            let words = bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_le_bytes(word)
            });
            classify(&words.collect::<Vec<_>>());
        }
        _ => {
            let length = usize::from(tape.byte());
            let pattern = tape.bytes(length);
            let value = tape.bytes(usize::MAX);
            let first = glob(pattern, value);
            assert_eq!(first, glob(pattern, value));
        }
    }
}

/// Everything that can be asked of a table.
fn classify(words: &[u64]) {
    let table = RuleTable(words);
    let mut known = Mask::ALL;
    for classifier in CLASSIFIERS {
        let _ = table.uses(classifier);
        for value in ["", "flush", "/data/a/b", "rocksdb:low"] {
            let (mask, flows) = table.accepts(classifier, value.as_bytes());
            known = known.and(mask);
            assert!((0..40).all(|queue| flows.flow(queue) < 16));
        }
    }
    for (operation, _) in OPERATIONS {
        for size in [0, 1, 4_095, 4_096, u64::MAX] {
            for masks in [[&known, &Mask::ALL], [&Mask::ALL, &known], [&Mask::default(); 2]] {
                let _ = table.classify(operation, size, masks);
            }
        }
    }
}

/// A table with every kind of rule.
fn compiled() -> Vec<u64> {
    let list = |text: &str| vec![text.to_owned()];
    let rules = [
        Conditions { path: list("/data/**"), size: size(">=1MiB"), ..Conditions::default() },
        Conditions { workflow: list("rocksdb:*"), ..Conditions::default() },
        Conditions { context: list("{flush,scan}"), size: size("<4KiB"), ..Conditions::default() },
        Conditions { process: list("[a-f]io"), user: list("root"), ..Conditions::default() },
        Conditions { cgroup: list("/batch/*"), ..Conditions::default() },
    ];
    let rules: Vec<(Conditions, u8)> = rules.into_iter().zip(0..).collect();
    let channel = |number: u8| ChannelEntry {
        channel: number,
        tenant: TenantId(1),
        class: Class::Low,
        gates: [Some(number), None, Some(3), None, None, None, None, Some(7)],
    };
    let channels: Vec<_> = (0..5).map(channel).collect();
    let queues = [(vec![("flush".to_owned(), 0), ("compaction*".to_owned(), 1)], 15)];
    let source = Source { rules: &rules, default: Some(2), channels: &channels, queues: &queues };
    compile(&source).expect("five rules fit")
}

fn size(text: &str) -> tidegate_model::SizeRange {
    text.parse().expect("a range as in a policy")
}

/// A table that is one, and patterns of every kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let words = compiled().iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut seeds = vec![vec![0], vec![0, 2, 3, 2, 7], [vec![1], words].concat()];
    for (pattern, value) in [
        ("/data/**/*.sst", "/data/a/b/c.sst"),
        ("{a,b{c,d}}*[!x-z]?", "bcq1"),
        ("*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("**/**/**/**", "a/b/c/d/e/f/g"),
        ("{*,**}{*,**}{*,**}x", "aaaa/aaaa/aaaa"),
    ] {
        let length = pattern.len() as u8;
        seeds.push([&[2, length][..], pattern.as_bytes(), value.as_bytes()].concat());
    }
    seeds
}

/// Pieces of patterns.
pub const WORDS: &[&str] =
    &["*", "**", "?", "[a-z]", "[!", "{", "}", ",", "{a,b}", "\\", "/", "**/", "{*,**}", "]"];
