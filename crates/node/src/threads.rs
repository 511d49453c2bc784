//! Start of a storage node's threads, each with a name and with the log span of the thread that
//! starts it.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread with a name, and with the log span of the thread that starts it.
pub(crate) fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let span = tracing::Span::current();
    Builder::new().name(name.into()).spawn(move || span.in_scope(work))
}
