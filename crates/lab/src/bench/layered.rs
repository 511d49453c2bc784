//! The time to pass content: independent of its size, unless a gate transforms it.

use std::hint::black_box;

use tidegate_model::{GateSpec, Operation};
use tidegate_stage::Request;
use tidegate_stage::transform::{Keys, Layered};

use super::Row;
use super::stage::{LARGE, one_gate};
use super::window::{BUSY, WindowPlan, ours};

const BENCH: &str = "stage";
/// How much a request of 128 KiB may take beyond one of 0 B: one more number is counted.
const MORE_NS: f64 = 10.0;

/// 128 KiB as databases write them: half text that repeats, half that does not.
fn content() -> Vec<u8> {
    let mut state = 7u64;
    let mut record = |number: u64| {
        // Xorshift: the same content in every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        format!("key {number:08}: {state:016x}{:016x} value value value value ", state >> 3)
    };
    let mut text = (0..).flat_map(|number| record(number).into_bytes());
    text.by_ref().take(LARGE as usize).collect()
}

pub(super) fn rows(plan: WindowPlan, report: &mut dyn FnMut(Row)) {
    let stages = [
        ("no transformation", GateSpec::NoOp),
        ("zstd 1", GateSpec::Compress { level: 1 }),
        ("zstd 3", GateSpec::Compress { level: 3 }),
        ("AES-256-GCM", GateSpec::Encrypt { key: "k".into() }),
    ];
    // Keepers go along, for their threads are to live as long as their stages are measured.
    let [plain, others @ ..] = stages.map(|(name, spec)| {
        let agent = one_gate(spec);
        let keys = Keys::default().with("k", &[7; 32]);
        let layered = agent.as_ref().map(|agent| agent.layered(keys));
        (name, agent, layered)
    });
    let content = content();
    if let Some(layered) = &plain.2 {
        let pass = |length: usize| {
            let content = &content[..length];
            move |_: usize, calls: u64| pass(layered, content, calls)
        };
        let [empty, large] = ours(plan, [(1, &pass(0)), (1, &pass(content.len()))]);
        let case = "content of 128 KiB that no gate transforms";
        let row = Row::nanoseconds(BENCH, case, large);
        let bound = empty.map(|empty| (empty + MORE_NS).round());
        let row = if let Some(bound) = bound { row.promised(bound) } else { row };
        report(row.beside("the same with 0 B", empty.ok_or_else(|| BUSY.to_owned())));
    }
    for (name, _agent, layered) in &others {
        let Some(layered) = layered else { continue };
        let work = |_: usize, calls| pass(layered, &content, calls);
        let [value] = ours(plan, [(1, &work)]);
        let rate = value.map(|ns| LARGE as f64 / ns * 1e9 / f64::from(1 << 20));
        report(Row::more(BENCH, format!("content of 128 KiB through {name}"), "MiB/s", rate));
    }
}

fn pass(layered: &Layered, content: &[u8], calls: u64) {
    for _ in 0..calls {
        let request = Request::new(black_box(Operation::Write), content.len() as u64);
        if let Ok((admission, written)) = layered.write(&request, black_box(content), b"place") {
            black_box(&written);
            admission.complete(content.len() as u64);
        }
    }
}
