//! Records of programs that run without the shim, or were refused for that reason: the processes of
//! a stage write them into the segment, and the supervisor reports them to the user.
//!
//! A ring: what the supervisor has not read when [`RECORDS`] more have come is lost. The counters
//! of bypasses lose nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::bypass::{BYPASSES, Bypass};

/// How many programs are remembered.
const RECORDS: usize = 64;
/// The longest name of a program that is kept, in words of eight bytes; of a longer path the end.
const WORDS: usize = 12;
const NAME_MAX: usize = WORDS * 8;

/// Programs that were noted.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct ProgramLog {
    /// How many were noted so far.
    noted: AtomicU32,
    records: [ProgramRecord; RECORDS],
}

#[derive(Debug)]
#[repr(C)]
struct ProgramRecord {
    /// One more than its number among all that were noted; zero while it is written.
    sequence: AtomicU32,
    /// The reason's number, and [`REFUSED`] if the program was not started.
    reason: AtomicU32,
    name: [AtomicU64; WORDS],
}

/// Set in a reason if the program was not started.
const REFUSED: u32 = 1 << 31;

/// A program that the shim is not in.
#[cfg(feature = "agent")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Its file, or the end of a long path.
    pub(crate) name: String,
    /// Why the shim cannot be in it.
    pub(crate) reason: Bypass,
    /// Whether it was not started for that.
    pub(crate) is_refused: bool,
}

impl ProgramLog {
    /// Notes a program. Never waits, allocates nothing, and may be called in a child of
    /// `vfork`.
    pub fn note(&self, name: &[u8], reason: Bypass, is_refused: bool) {
        let sequence_number = self.noted.fetch_add(1, Ordering::Relaxed);
        let record = &self.records[sequence_number as usize % RECORDS];
        record.sequence.store(0, Ordering::Relaxed);
        // No thread sees the stores below before the zero.
        fence(Ordering::Release);
        let flag = if is_refused { REFUSED } else { 0 };
        record.reason.store(reason as u32 | flag, Ordering::Relaxed);
        let end = &name[name.len().saturating_sub(NAME_MAX)..];
        for (index, cell) in record.name.iter().enumerate() {
            let mut word = [0; 8];
            let chunk = end.get(index * 8..).unwrap_or_default();
            let length = chunk.len().min(8);
            word[..length].copy_from_slice(&chunk[..length]);
            cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        record.sequence.store(sequence_number.wrapping_add(1), Ordering::Release);
    }

    /// Those that were noted from `from` on and are still there; `from` moves behind them.
    #[cfg(feature = "agent")]
    pub(crate) fn since(&self, from: &mut u32) -> Vec<Noted> {
        let noted = self.noted.load(Ordering::Acquire);
        // At most one ring's worth: what is older has been written over.
        let count = noted.wrapping_sub(*from).min(RECORDS as u32);
        let mut found = Vec::new();
        for sequence_number in (0..count).map(|back| noted.wrapping_sub(count - back)) {
            match self.records[sequence_number as usize % RECORDS].read(sequence_number) {
                Some(program) => found.push(program),
                // A thread is about to write it: the next read begins there.
                None if noted.wrapping_sub(sequence_number) < RECORDS as u32 / 2 => {
                    *from = sequence_number;
                    return found;
                }
                None => {}
            }
        }
        *from = noted;
        found
    }
}

#[cfg(feature = "agent")]
impl ProgramRecord {
    fn read(&self, sequence_number: u32) -> Option<Noted> {
        let is_whole = || self.sequence.load(Ordering::Acquire) == sequence_number.wrapping_add(1);
        if !is_whole() {
            return None;
        }
        let reason = self.reason.load(Ordering::Relaxed);
        let words = self.name.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes = words.flatten().take_while(|byte| *byte != 0).collect::<Vec<u8>>();
        fence(Ordering::Acquire);
        if !is_whole() {
            return None;
        }
        let (known, ..) = *BYPASSES.get((reason & !REFUSED) as usize)?;
        let name = String::from_utf8_lossy(&bytes);
        let name = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        Some(Noted { name, reason: known, is_refused: reason & REFUSED != 0 })
    }
}

const _: () = assert!(BYPASSES.len() < REFUSED as usize);

#[cfg(all(test, feature = "agent"))]
mod tests {
    use super::*;
    use crate::segment::Segment;

    fn noted(name: &str, is_refused: bool) -> Noted {
        Noted { name: name.into(), reason: Bypass::StaticProgram, is_refused }
    }

    #[test]
    fn programs_are_read_once_and_in_order() {
        let segment = Segment::private().unwrap();
        let (log, mut from) = (&segment.programs, 0);
        assert_eq!(log.since(&mut from), []);
        log.note(b"/bin/a", Bypass::StaticProgram, false);
        log.note(b"b\n", Bypass::StaticProgram, true);
        assert_eq!(log.since(&mut from), [noted("/bin/a", false), noted("b?", true)]);
        assert_eq!(log.since(&mut from), []);
        let long = "x".repeat(NAME_MAX + 7);
        log.note(format!("begin{long}").as_bytes(), Bypass::StaticProgram, false);
        assert_eq!(log.since(&mut from), [noted(&long[7..], false)], "the end of a long path");
    }

    #[test]
    fn of_too_many_the_last_are_kept() {
        let segment = Segment::private().unwrap();
        let (log, mut from) = (&segment.programs, 0);
        for number in 0..RECORDS + 3 {
            log.note(number.to_string().as_bytes(), Bypass::StaticProgram, false);
        }
        let found = log.since(&mut from);
        assert_eq!((found.len(), found[0].name.as_str()), (RECORDS, "3"));
        assert_eq!(log.since(&mut from), []);
    }

    #[test]
    fn one_that_is_being_written_is_read_later() {
        let segment = Segment::private().unwrap();
        let (log, mut from) = (&segment.programs, 0);
        log.note(b"a", Bypass::StaticProgram, false);
        log.note(b"b", Bypass::StaticProgram, false);
        log.records[1].sequence.store(0, Ordering::Relaxed);
        assert_eq!(log.since(&mut from), [noted("a", false)]);
        log.records[1].sequence.store(2, Ordering::Relaxed);
        assert_eq!(log.since(&mut from), [noted("b", false)]);
    }
}
