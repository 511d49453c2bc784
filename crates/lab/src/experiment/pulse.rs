//! A probe of disk latency: small reads without a limit, and the time of the longest of them.
//!
//! A disk that stands still for fifty milliseconds takes a twentieth of a second from every tenant,
//! and no share of it can be kept in that second. The probe distinguishes such a second from one in
//! which a tenant was held back.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rustix::fs::OFlags;
use tidegate_model::Span;

use tidegate_console::clock::Clock;

/// The time between two reads: a pause that matters is longer, and one read in this time is nothing
/// to a disk.
const BEAT: Span = Span(5 * Span::MILLISECOND.0);

/// Bytes of one read. Reads past the page cache begin and end at multiples of a disk's block.
const BLOCK: usize = 4096;

/// Reads go round this many blocks of the file.
const BLOCKS: u64 = 8192;

/// Reads until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    shared: Arc<PulseState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct PulseState {
    longest_ns: AtomicU64,
    is_over: AtomicBool,
}

impl Pulse {
    /// Feels the pulse of the disk that holds `file`.
    ///
    /// # Errors
    /// If the file cannot be read past the page cache, or there is no thread to be had.
    pub(crate) fn feel(file: &Path) -> io::Result<Self> {
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
        let file = OpenOptions::new().read(true).custom_flags(direct).open(file)?;
        let shared = Arc::new(PulseState::default());
        let beating = Arc::clone(&shared);
        let builder = thread::Builder::new().name("pulse".into());
        let thread = builder.spawn(move || beat(&file, &beating))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The longest read since the last call.
    pub(crate) fn longest(&self) -> Span {
        Span(self.shared.longest_ns.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn beat(file: &File, shared: &PulseState) {
    let clock = Clock::start();
    let mut buffer = vec![0; 2 * BLOCK];
    let start = buffer.as_ptr().align_offset(BLOCK).min(BLOCK);
    let block = &mut buffer[start..start + BLOCK];
    let mut number = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        // Far from the last one, so that the disk cannot have read it ahead.
        number = (number + 3_571) % BLOCKS;
        let begin = clock.now();
        // A read that fails says nothing about time.
        if file.read_exact_at(block, number * BLOCK as u64).is_ok() {
            let took = clock.now().since(begin);
            shared.longest_ns.fetch_max(took.0, Ordering::Relaxed);
        }
        clock.sleep_until(clock.now().after(BEAT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_is_felt_until_it_is_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, vec![1; BLOCKS as usize * BLOCK]).unwrap();
        // Some file systems cannot be read past the cache; then there is no pulse.
        let Ok(pulse) = Pulse::feel(&path) else { return };
        let clock = Clock::start();
        while pulse.longest() == Span::ZERO {
            assert!(clock.now().0 < 10 * Span::SECOND.0, "no pulse");
            thread::yield_now();
        }
        drop(pulse);
        assert!(Pulse::feel(&directory.path().join("none")).is_err());
    }
}
