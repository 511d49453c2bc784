//! A thread that checks periodically whether the files of open parts are at their paths.
//!
//! A part that is moved, removed or cut off under a running node is open all the same: writes go to
//! a file that no restart would find. The kernel does not report that to a process: a watch of the
//! file misses that a folder above was renamed or covered by a mount, and a check with each write
//! would cost as much as the write. So the thread compares the paths with the open files, by a few
//! system calls for each part. These can block for good where a file system hangs, hence the thread
//! of their own.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::store::Medium;
use crate::threads;

/// The time between two checks. Writes acknowledged in between may be lost with the file, so it is
/// short; a check of 128 parts takes less than a millisecond. Chosen by hand.
const PERIOD: Duration = Duration::from_secs(1);

/// The thread. Dropped, it ends.
pub(crate) struct PathCheck {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PathCheck {
    /// Inspects `medium` once a period.
    pub(crate) fn start(medium: Arc<dyn Medium>) -> io::Result<Self> {
        let (stop, stopped) = channel();
        let run = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                medium.inspect();
            }
        };
        let thread = threads::spawn("path-check", run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PathCheck {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A thread's panic was reported already.
            let _ = thread.join();
        }
    }
}
