//! A cluster as its users see it: block devices behind a gateway, over nodes that come and go,
//! and a policy that holds. The clients are those that people have.

mod apart;
mod bytes;
mod classes;
mod durable;
mod end_to_end;
mod explained;
mod fenced;
mod guarded;
mod guest;
mod hostile;
mod hosts;
mod keys;
mod levels;
mod memory;
mod mounted;
mod priorities;
mod programs;
mod rdma;
mod refused;
mod rude;
mod schedulers;
mod sizes;
mod slots;
mod split;
mod stores;
mod together;
mod twin;
mod watched;

use std::fs;
use std::path::Path;

/// A policy that limits no tenant.
const OPEN: &str = "[[tenant]]\nname = \"backup\"\n[[tenant]]\nname = \"oltp\"\n";

/// Writes a file of this many bytes that repeat nowhere.
fn noise(path: &Path, length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..length.div_ceil(8)).flat_map(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ (state >> 29)).to_le_bytes()
    });
    let bytes: Vec<u8> = words.take(length).collect();
    fs::write(path, &bytes).unwrap();
    bytes
}
