//! Identity of this process for classification rules: executable, control group, user.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags};

use crate::scratch;

/// The longest value kept, in bytes. Longer ones are cut: a pattern cannot be longer either.
const LENGTH_MAX: usize = 255;
const WORDS: usize = (LENGTH_MAX + 1) / 8;

/// A string that is found out once and then read without a lock.
struct Once {
    /// 0 unknown, 1 being found out, 2 known.
    state: AtomicU8,
    length: AtomicU8,
    words: [AtomicU64; WORDS],
}

static PROCESS: Once = Once::new();
static CGROUP: Once = Once::new();

impl Once {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(0),
            length: AtomicU8::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Calls `see` with the value, after `find` has written it into a buffer if it is not known.
    fn with<R>(
        &self,
        find: impl FnOnce(&mut [u8; LENGTH_MAX]) -> usize,
        see: impl FnOnce(&[u8]) -> R,
    ) -> R {
        let mut buffer = [0; LENGTH_MAX + 1];
        if self.state.load(Ordering::Acquire) == 2 {
            for (chunk, word) in buffer.chunks_exact_mut(8).zip(&self.words) {
                chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            return see(&buffer[..usize::from(self.length.load(Ordering::Relaxed))]);
        }
        let mut found = [0; LENGTH_MAX];
        let length = find(&mut found).min(LENGTH_MAX);
        // The first thread stores the value; the other threads use the value that each found
        // itself.
        let first = self.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        if first.is_ok() {
            buffer[..LENGTH_MAX].copy_from_slice(&found);
            for (chunk, word) in buffer.chunks_exact(8).zip(&self.words) {
                let bytes = chunk.try_into().unwrap_or_default();
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            self.length.store(length as u8, Ordering::Relaxed);
            self.state.store(2, Ordering::Release);
        }
        see(&found[..length])
    }
}

/// The executable's file name.
pub(crate) fn with_process<R>(see: impl FnOnce(&[u8]) -> R) -> R {
    PROCESS.with(
        |found| {
            scratch::with_page(|page| {
                let link = c"/proc/self/exe";
                let length = rustix::fs::readlinkat_raw(CWD, link, &mut page[..]).unwrap_or(0);
                let path = &page[..length];
                copy(path.rsplit(|byte| *byte == b'/').next().unwrap_or(path), found)
            })
        },
        see,
    )
}

/// The path of the control group: the unified one where it has a path, else the first that has.
pub(crate) fn with_cgroup<R>(see: impl FnOnce(&[u8]) -> R) -> R {
    CGROUP.with(
        |found| {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            let Ok(file) = rustix::fs::open(c"/proc/self/cgroup", flags, Mode::empty()) else {
                return 0;
            };
            scratch::with_page(|page| {
                let length = rustix::io::read(&file, &mut page[..]).unwrap_or(0);
                copy(cgroup_of(&page[..length]), found)
            })
        },
        see,
    )
}

/// The effective user's number, as digits.
pub(crate) fn with_user<R>(see: impl FnOnce(&[u8]) -> R) -> R {
    see(digits(rustix::process::geteuid().as_raw(), &mut [0; 10]))
}

/// The decimal digits of `number`.
pub(crate) fn digits(mut number: u32, buffer: &mut [u8; 10]) -> &[u8] {
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[start..];
        }
    }
}

fn copy(from: &[u8], to: &mut [u8; LENGTH_MAX]) -> usize {
    let length = from.len().min(LENGTH_MAX);
    to[..length].copy_from_slice(&from[..length]);
    length
}

/// Of lines like `4:blkio:/batch` and `0::/user.slice` the most specific path.
fn cgroup_of(text: &[u8]) -> &[u8] {
    let path = |line: &'_ [u8]| {
        let colon = line.iter().enumerate().filter(|(_, byte)| **byte == b':').nth(1);
        colon.map_or(0, |(index, _)| index + 1)
    };
    let lines = || text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let has_path = |line: &&[u8]| line[path(line)..].len() > 1;
    let unified = lines().filter(|line| line.starts_with(b"0:")).find(has_path);
    let found = unified.or_else(|| lines().find(has_path)).or_else(|| lines().next());
    found.map_or(&[], |line| &line[path(line)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_control_group() {
        assert_eq!(cgroup_of(b"4:blkio:/batch\n0::/\n"), b"/batch");
        assert_eq!(cgroup_of(b"4:blkio:/\n0::/user.slice/a\n"), b"/user.slice/a");
        assert_eq!(cgroup_of(b"1:cpu:/\n0::/\n"), b"/");
        assert_eq!(cgroup_of(b""), b"");
    }

    #[test]
    fn this_process_knows_itself() {
        let name = with_process(|name| String::from_utf8_lossy(name).into_owned());
        let path = std::env::current_exe().unwrap();
        assert_eq!(Some(name.as_str()), path.file_name().unwrap().to_str());
        assert_eq!(name, with_process(|name| String::from_utf8_lossy(name).into_owned()));
        let user = with_user(|user| String::from_utf8_lossy(user).into_owned());
        assert_eq!(user, rustix::process::geteuid().as_raw().to_string());
    }
}
