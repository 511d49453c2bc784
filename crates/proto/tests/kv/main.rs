//! The key-value store over a fabric that tests play.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_proto::kv::{Area, Layout};

#[allow(unreachable_pub, reason = "an example in the documentation includes it, too")]
mod double;
mod histories;
mod store;

/// Memory with an empty store.
fn fresh(buckets: u32, blocks: u32, seed: u64) -> (double::Memory, Layout) {
    let length = 256 + u64::from(buckets) * 64 + u64::from(blocks) * 4160;
    let area = Area { at: 64, length };
    let layout = Layout::new(area, seed, buckets, blocks).unwrap();
    let mut memory = vec![0; 64 + length as usize];
    memory[64..128].copy_from_slice(&layout.header());
    (Rc::new(RefCell::new(memory)), layout)
}
