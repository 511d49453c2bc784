//! Table sizes of a stage, which bound what a policy may require of one stage.
//!
//! A stage is one segment of memory with a fixed layout, so it holds a fixed number of everything.
//! The numbers stand here, in the innermost crate, because a policy that no stage can hold is to be
//! refused when it is read, not when the first program runs under it.

/// The most `[[match]]` rules: a request finds its rule by intersecting masks of four words.
pub const RULES: usize = 256;
/// The most channels, the tenants' own included: each has counters of some kilobytes.
pub const CHANNELS: usize = 128;
/// The most gates, the tenants' own buckets included: numbers are bytes, and one of them means
/// "none".
pub const GATES: usize = 255;
/// The most gates that a request passes: their numbers fill a word.
pub const GATES_PER_CHANNEL: usize = 8;
/// The most queue gates (`fair-queue`, `priority` and `concurrency`).
pub const QUEUES: usize = 16;
/// The most queue gates that a request passes: it holds a permit at each.
pub const QUEUES_PER_CHANNEL: usize = 4;
/// The most flows that a queue gate distinguishes. One of them is for contexts that it does not
/// name.
pub const FLOWS: usize = 16;
/// The most requests that a queue gate lets into service at a time: it has slots for about twice as
/// many, so that others can stand in line.
pub const DEPTH: u32 = 256;
/// The most sizes at which some rule begins or ceases to apply: a request looks for its own among
/// them one by one.
pub const SIZES: usize = 64;
/// The longest pattern in bytes: it is compared in a buffer on the stack.
pub const PATTERN: usize = 255;

// One number of a byte means "none", of gates as of channels.
const _: () = assert!(GATES <= 255 && CHANNELS <= 255);
// Masks are made of whole words.
const _: () = assert!(RULES.is_multiple_of(64));
