//! The key-value store over a connection that tests play.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

use std::cell::RefCell;
use std::rc::Rc;

use tidegate_onesided::kv::{Area, Layout};

#[allow(unreachable_pub, reason = "an example in the documentation includes it, too")]
mod double;
mod greedy;
mod histories;
mod store;
mod sweeps;

/// Where the word is that says that the memory was left behind, which is before the store.
const LEFT: usize = 0;

/// Bytes of a store before its index.
const INDEX: usize = 2176;

/// Bytes of a store before its blocks.
fn blocks_at(buckets: u32, blocks: u32) -> usize {
    INDEX + buckets as usize * 64 + (blocks as usize * 8).next_multiple_of(64)
}

/// Memory with an empty store.
fn fresh(buckets: u32, blocks: u32, seed: u64) -> (double::Memory, Layout) {
    let length = (blocks_at(buckets, blocks) + blocks as usize * 4160) as u64;
    let area = Area { at: 64, length };
    let layout = Layout::new(area, seed, buckets, blocks).unwrap();
    let mut memory = vec![0; 64 + length as usize];
    memory[64..128].copy_from_slice(&layout.header());
    (Rc::new(RefCell::new(memory)), layout)
}
