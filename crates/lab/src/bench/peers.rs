//! Rate limiters of other projects: at rates at which no request waits, and at one rate at which
//! all requests wait.

use tidegate_model::{Span, Time};

use super::child;
#[cfg(feature = "peers")]
use super::window;
use super::window::Contestant;
#[cfg(feature = "peers")]
use tidegate_console::clock::Clock;

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

/// A caller that sends a limiter one request after the other. Takes bytes per second, a burst, the
/// bytes of a request and the duration; returns the times of the grants, and the time of the end.
pub(super) type Pace = Box<dyn Fn(u64, u64, u64, Span) -> (Vec<Time>, Time)>;

/// The limiters that can make their callers wait.
pub(super) fn paces() -> [(&'static str, Result<Pace, String>); 2] {
    [("leaky-bucket acquire", leaky_pace()), ("governor until_n_ready", governor_pace())]
}

/// Sends one request after the other, in a runtime of one thread.
#[cfg(feature = "peers")]
fn request_for(length: Span, mut request: impl AsyncFnMut() -> bool) -> (Vec<Time>, Time) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else {
        return (Vec::new(), Time::ZERO);
    };
    let (mut grants, clock) = (Vec::new(), Clock::start());
    let end = clock.now().after(length);
    runtime.block_on(async {
        while request().await && clock.now() < end {
            grants.push(clock.now());
        }
    });
    (grants, end)
}

/// Refilled every ten milliseconds, a burst at a time. With an interval of one, which is as fine as
/// its runtime's clock, it granted half the rate.
#[cfg(feature = "peers")]
fn leaky_pace() -> Result<Pace, String> {
    use std::time::Duration;
    Ok(Box::new(|rate, burst, cost, length| {
        let [burst, cost, refill] = [burst, cost, rate / 100].map(|bytes| bytes as usize);
        let builder = &mut leaky_bucket::RateLimiter::builder();
        let builder = builder.max(burst).initial(burst).refill(refill);
        let limiter = builder.interval(Duration::from_millis(10)).build();
        request_for(length, async || {
            limiter.acquire(cost).await;
            true
        })
    }))
}

/// A cell for each byte.
#[cfg(feature = "peers")]
fn governor_pace() -> Result<Pace, String> {
    use std::num::NonZeroU32;
    Ok(Box::new(|rate, burst, cost, length| {
        let cells = |bytes: u64| {
            NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN)
        };
        let quota = governor::Quota::per_second(cells(rate)).allow_burst(cells(burst));
        let limiter = governor::RateLimiter::direct(quota);
        request_for(length, async || limiter.until_n_ready(cells(cost)).await.is_ok())
    }))
}

#[cfg(not(feature = "peers"))]
fn leaky_pace() -> Result<Pace, String> {
    Err(WITHOUT.into())
}

#[cfg(not(feature = "peers"))]
fn governor_pace() -> Result<Pace, String> {
    Err(WITHOUT.into())
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
