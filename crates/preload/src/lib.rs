//! The shim: a library that `LD_PRELOAD` puts in front of the C library of an unmodified program,
//! so that its I/O passes the gates of a stage.
//!
//! `hooks/` holds one function per call of the C library and no decision: each describes the call
//! and hands it to `ops/`, which calls the stage before the call and after it. The call itself is
//! made as it came, and its result goes back as it is.
//!
//! The shim runs in a foreign process and keeps to a few rules:
//! - Before the constructor has run, without a segment, inside itself, or when something in it
//!   breaks, the call is made as if the shim were not there.
//! - Nothing on the path of data allocates, logs or takes a lock that the program might hold.
//! - `errno` and results are the C library's. No descriptor stays open, no thread is started, no
//!   signal is handled.
//! - No state is kept between the time before a call and the time after it but on the stack, so
//!   that `fork`, `vfork` and signal handlers may come in between.

#![cfg_attr(test, allow(dead_code, reason = "it serves the hooks, which tests do without"))]

// `pread` and `pread64` may share one implementation only where `off_t` is `off64_t`: on 32 bits a
// caller of the one would find its offset cut in half by the other.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!("the shim is for 64-bit Linux with glibc");

mod attach;
mod cancel;
mod errno;
mod filter;
mod guard;
// Tests do without: they would be hooked themselves.
#[cfg(not(test))]
pub mod hooks;
mod ops;
mod probe;
mod process;
mod raw;
mod real;
mod sandbox;
mod stream;
