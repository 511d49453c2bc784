//! Limiters of others, set to rates at which nobody waits.

use super::child;
#[cfg(feature = "peers")]
use super::window;
use super::window::Contestant;

/// A limiter that can be measured, or why it cannot.
pub(super) type Peer = (&'static str, Result<Box<dyn Contestant>, String>);

/// Every limiter that a bucket is compared with.
pub(super) fn limiters() -> [Peer; 3] {
    [
        ("governor check", governor()),
        ("leaky-bucket try_acquire(4096)", leaky_bucket()),
        ("RocksDB GenericRateLimiter Request(4096)", rocksdb()),
    ]
}

/// RocksDB's limiter, in a program that is compiled for the purpose.
fn rocksdb() -> Result<Box<dyn Contestant>, String> {
    let flags = ["-x", "c++", "-std=c++17", "-O3", "-pthread"];
    let source = include_str!("rocksdb.cpp");
    let program = child::compile("c++", source, &flags, &["-lrocksdb"])
        .map_err(|error| format!("no RocksDB to build against (librocksdb-dev): {error}"))?;
    Ok(Box::new(program.start(&[], &[])?))
}

/// One cell per request at a billion per second: its rates are 32 bits wide, so it cannot count
/// bytes of more than 4 GB/s.
#[cfg(feature = "peers")]
fn governor() -> Result<Box<dyn Contestant>, String> {
    use std::hint::black_box;
    let quota = governor::Quota::per_second(std::num::NonZeroU32::MIN.saturating_add(999_999_999));
    let limiter = governor::RateLimiter::direct(quota);
    Ok(Box::new(window::Ours::new(move |_, calls| {
        for _ in 0..calls {
            black_box(black_box(&limiter).check().is_ok());
        }
    })))
}

/// Without fairness, as its fastest; with as many tokens as it takes never to look at the clock.
#[cfg(feature = "peers")]
fn leaky_bucket() -> Result<Box<dyn Contestant>, String> {
    use std::hint::black_box;
    let many = usize::MAX / 4;
    let builder = &mut leaky_bucket::RateLimiter::builder();
    let limiter = builder.max(many).initial(many).refill(1 << 30).fair(false).build();
    Ok(Box::new(window::Ours::new(move |_, calls| {
        for _ in 0..calls {
            black_box(black_box(&limiter).try_acquire(black_box(4_096)));
        }
    })))
}

#[cfg(not(feature = "peers"))]
const WITHOUT: &str = "built without --features peers";

#[cfg(not(feature = "peers"))]
fn governor() -> Result<Box<dyn Contestant>, String> {
    Err(WITHOUT.into())
}

#[cfg(not(feature = "peers"))]
fn leaky_bucket() -> Result<Box<dyn Contestant>, String> {
    Err(WITHOUT.into())
}
