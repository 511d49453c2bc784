//! Content under rules that change: what was to be encrypted never comes out as it went in, and
//! what is not made is not charged for.
#![cfg(all(feature = "agent", feature = "transform"))]
#![allow(clippy::disallowed_methods, reason = "a test measures time")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidegate_model::gate::{Burst, Throughput};
use tidegate_model::{Bytes, ChannelSpec, Class, GateSpec, Operation, Rate, TenantId};
use tidegate_proto::message::Rule;
use tidegate_stage::transform::{Keys, Layered, TransformError};
use tidegate_stage::{Request, Settings, StageAgent};

const SECRET: &[u8] = b"nobody is to read this";

fn agent() -> StageAgent {
    let socket = "/nonexistent/controller.sock".into();
    StageAgent::start(Settings { socket, ..Settings::default() }).unwrap()
}

fn bucket(rate: u64, burst: u64) -> GateSpec {
    let rate = Throughput::Bandwidth(Rate(rate));
    GateSpec::TokenBucket { rate, burst: Burst::Size(Bytes(burst)) }
}

fn encrypt(key: &str) -> GateSpec {
    GateSpec::Encrypt { key: key.into() }
}

/// Nothing but one channel with these gates, where every request goes.
fn only(gates: &[(&str, GateSpec)]) -> Vec<Rule> {
    let mut rules = vec![Rule::CLEAR];
    rules.extend(gates.iter().map(|(name, spec)| Rule::gate(*name, spec.clone())));
    rules.push(Rule::channel(ChannelSpec {
        name: "c".into(),
        tenant: TenantId(1),
        class: Class::High,
        gates: gates.iter().map(|(name, _)| (*name).into()).collect(),
    }));
    rules.push(Rule::default_channel("c"));
    rules
}

fn keys() -> Keys {
    (0..100).fold(Keys::default(), |keys, n| keys.with(&format!("k{n}"), &[n; 32]))
}

fn write_request() -> Request<'static> {
    Request::new(Operation::Write, SECRET.len() as u64)
}

/// Writes the secret and says whether it was laid open.
fn is_laid_open(layered: &Layered) -> Result<bool, TransformError> {
    let (admission, written) = layered.write(&write_request(), SECRET, b"")?;
    admission.complete(SECRET.len() as u64);
    Ok(*written == *SECRET)
}

/// Has two threads write while `change` changes the rules for a second; gives how many wrote, and
/// how often there was an error.
fn write_while(layered: &Layered, mut change: impl FnMut(usize)) -> (u64, u64) {
    let (stop, written, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match is_laid_open(layered) {
                        Ok(laid_open) => {
                            assert!(!laid_open, "written in plain text");
                            written.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(TransformError::RulesChanged) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        let begin = Instant::now();
        for round in 1.. {
            change(round);
            // Whatever the machine does meanwhile, one write is seen.
            let has_written = written.load(Ordering::Relaxed) > 0;
            if begin.elapsed() > Duration::from_secs(if has_written { 1 } else { 60 }) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    (written.into_inner(), failed.into_inner())
}

#[test]
fn content_is_never_in_plain_text_while_the_key_changes() {
    let agent = agent();
    let layered = agent.layered(keys());
    let change = |round: usize| {
        let key = format!("k{}", round % 2);
        agent.apply(only(&[(&format!("enc:{key}"), encrypt(&key))])).unwrap();
    };
    change(0);
    let (written, failed) = write_while(&layered, change);
    assert!(written > 0);
    assert_eq!(failed, 0, "two keys have a number each");
}

#[test]
fn content_is_never_in_plain_text_while_numbers_go_round() {
    let agent = agent();
    let layered = agent.layered(keys());
    // More keys and buckets than there are numbers, and kinds that change in place.
    let change = |round: usize| {
        let key = encrypt(&format!("k{}", round % 100));
        let free = bucket(1 << 40, 1 << 30);
        let (first, second) = (format!("x{}", round % 7), format!("y{round}"));
        let gates = match round % 3 {
            0 => [(&*first, key), (&*second, free)],
            1 => [(&*first, free), (&*second, key)],
            _ => [(&*first, GateSpec::NoOp), (&*second, key)],
        };
        agent.apply(only(&gates)).unwrap();
    };
    change(0);
    let (written, failed) = write_while(&layered, change);
    assert!(failed < written.max(1), "{failed} failed, {written} were written");
}

#[test]
fn a_request_that_waits_while_the_key_changes_is_encrypted() {
    let updated = [("b", bucket(1_000, 1)), ("enc", encrypt("k2"))];
    let renamed = [("b", bucket(1_000, 1)), ("enc:k2", encrypt("k2"))];
    let gone = [("b", bucket(1_000, 1))];
    let open = [("b", bucket(1_000, 1)), ("enc", GateSpec::NoOp)];
    for later in [&updated[..], &renamed, &gone, &open] {
        let agent = agent();
        let layered = agent.layered(keys());
        agent.apply(only(&[("b", bucket(1, 1)), ("enc", encrypt("k1"))])).unwrap();
        assert_eq!(is_laid_open(&layered), Ok(false), "passes and leaves a debt");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let (admission, written) = layered.write(&write_request(), SECRET, b"").unwrap();
                let restored = layered.restore(&admission, &written, b"", 100).unwrap();
                assert_eq!(restored, SECRET, "it passed one set of rules, there and back");
                *written == *SECRET
            });
            let sleepers = &agent.stage().layout().gates[0].sleepers;
            while sleepers.load(Ordering::Relaxed) == 0 && !waiting.is_finished() {
                std::thread::yield_now();
            }
            agent.apply(only(later)).unwrap();
            assert!(!waiting.join().unwrap(), "written in plain text under {later:?}");
        });
    }
}

#[test]
fn what_was_read_before_a_change_is_restored_after_it_or_not_at_all() {
    let agent = agent();
    let layered = agent.layered(keys());
    agent.apply(only(&[("e1", encrypt("k1"))])).unwrap();
    let (admission, written) = layered.write(&write_request(), SECRET, b"").unwrap();
    admission.complete(SECRET.len() as u64);
    let read = layered.stage().enforce(&Request::new(Operation::Read, 100));
    for later in [("e2", encrypt("k1")), ("e1", encrypt("k2")), ("e1", GateSpec::NoOp)] {
        agent.apply(only(&[later])).unwrap();
        assert_eq!(layered.restore(&read, &written, b"", 100).unwrap(), SECRET);
    }
    for round in 0..600 {
        let key = encrypt(&format!("k{}", round % 100));
        agent.apply(only(&[(&format!("g{round}"), bucket(1, 1)), ("e", key)])).unwrap();
        match layered.restore(&read, &written, b"", 100) {
            Ok(restored) => assert_eq!(restored, SECRET, "ciphertext for content"),
            Err(error) => assert_eq!(error, TransformError::NotAuthentic),
        }
    }
}

#[test]
fn a_write_that_is_refused_takes_nothing() {
    let agent = agent();
    let layered = agent.layered(Keys::default());
    // A second passes for each byte: the second and the third would wait for what was taken.
    let full = SECRET.len() as u64;
    agent.apply(only(&[("b", bucket(1, full)), ("e", encrypt("k"))])).unwrap();
    let begin = Instant::now();
    for _ in 0..3 {
        let refused = layered.write(&write_request(), SECRET, b"").map(drop);
        assert_eq!(refused, Err(TransformError::NoKey("k".into())));
    }
    assert!(begin.elapsed() < Duration::from_secs(2 * full - 1), "each finds the bucket full");
    assert_eq!(agent.stage().layout().channels[0].passed.bytes(), 0, "nothing was written");
    let queue = GateSpec::Concurrency { depth: 1 };
    agent.apply(only(&[("q", queue), ("e", encrypt("k"))])).unwrap();
    for _ in 0..3 {
        layered.write(&write_request(), SECRET, b"").unwrap_err();
    }
    // Its permit is free again, or this would wait for good.
    agent.stage().enforce(&Request::new(Operation::Read, 1)).complete(1);
}
