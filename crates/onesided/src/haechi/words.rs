//! Encoding of the words that clients and the data node both write: a count and the period's number
//! share eight bytes.
//!
//! A word is never seen half-written, but two words can be of different times. So each names its
//! period, and a reader takes those of the period it is in. Counts that do not fit are as large as
//! fits.

use tidegate_algo::onesided::capacity::PeriodUsage;
use tidegate_algo::onesided::engine::Promise;
use tidegate_algo::onesided::monitor::ClientReport;

/// The next period's number. A word of zero is of none, so its last bits are never all zero.
pub const fn next(epoch: u64) -> u64 {
    match bits(epoch + 1, 0, EPOCH) {
        0 => epoch + 2,
        _ => epoch + 1,
    }
}

/// Bits of the period's number, in the words that clients write and in the others.
const EPOCH: u32 = 12;
const LONG_EPOCH: u32 = 16;

/// Bits of a count.
const COUNT: u32 = 26;

/// The value of an empty pool, below the period's number. Clients that take too many tokens lower
/// it, and must not borrow from that number: there is headroom for 7 × 10^10 batches of 1,000.
const EMPTY: u64 = 1 << 46;

/// Bits below the period's number, of a pool or a grant.
const LOW: u32 = u64::BITS - LONG_EPOCH;

/// The largest value in a word of a grant; as a limit it is none.
const NONE: u64 = (1 << LOW) - 1;

/// As much of a value as fits.
const fn fit(value: u64, bits: u32) -> u64 {
    let most = (1 << bits) - 1;
    if value < most { value } else { most }
}

/// So many bits of a word, from an offset on.
const fn bits(word: u64, from: u32, count: u32) -> u64 {
    word >> from & ((1 << count) - 1)
}

/// Whether a number in a word is that of this period.
const fn is_of(number: u64, epoch: u64, bits: u32) -> bool {
    number == epoch & ((1 << bits) - 1)
}

/// The pool: its period, and its tokens. Below zero, clients took too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolWord {
    /// The last 16 bits of the period's number.
    pub epoch: u16,
    /// Tokens.
    pub tokens: i64,
}

impl PoolWord {
    /// The pool of a period.
    pub const fn word(epoch: u64, tokens: i64) -> u64 {
        epoch << LOW | EMPTY.wrapping_add_signed(tokens)
    }

    /// Decodes a pool word.
    pub const fn read(word: u64) -> Self {
        let tokens = bits(word, 0, LOW) as i64 - EMPTY as i64;
        Self { epoch: (word >> LOW) as u16, tokens }
    }

    /// Whether it is of this period.
    pub const fn is_of(&self, epoch: u64) -> bool {
        is_of(self.epoch as u64, epoch, LONG_EPOCH)
    }
}

/// A grant from the monitor to a client, for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The period.
    pub epoch: u64,
    /// The grant is void: the client has not reported for too long.
    pub is_void: bool,
    /// The period had begun before the client came, so the time of this reading does not determine
    /// its end.
    pub is_late: bool,
    /// The client has left, and its session slot is free from the next period on. For a monitor
    /// that takes over: no other can know.
    pub has_left: bool,
    /// How many pool tokens to take at a time.
    pub batch: u16,
    /// The promise to the client.
    pub promise: Promise,
}

/// Words of a grant.
pub const GRANT: usize = 3;

impl Grant {
    /// As words.
    pub const fn words(&self) -> [u64; GRANT] {
        let flags = self.is_void as u64 | (self.is_late as u64) << 1 | (self.has_left as u64) << 2;
        let head = flags << 16 | self.batch as u64;
        let epoch = self.epoch << LOW;
        [
            epoch | head,
            epoch | fit(self.promise.reservation, LOW),
            epoch | fit(self.promise.limit, LOW),
        ]
    }

    /// Decodes a grant, if all words are of one period. Its number is the nearest to the last one
    /// that is known, `epoch`, or as it stands there if that is 0. Words that are zero grant
    /// nothing.
    pub fn read(words: [u64; GRANT], epoch: u64) -> Option<Self> {
        let [head, reservation, limit] = words;
        let number = head >> LOW;
        if number == 0 || [reservation, limit].iter().any(|word| word >> LOW != number) {
            return None;
        }
        let epoch = match epoch {
            0 => number,
            _ => {
                let ahead = (number as u16).wrapping_sub(epoch as u16) as i16;
                epoch.checked_add_signed(ahead.into())?
            }
        };
        let limit = match bits(limit, 0, LOW) {
            NONE => u64::MAX,
            limit => limit,
        };
        Some(Self {
            epoch,
            is_void: bits(head, 16, 1) == 1,
            is_late: bits(head, 17, 1) == 1,
            has_left: bits(head, 18, 1) == 1,
            batch: bits(head, 0, 16) as u16,
            promise: Promise { reservation: bits(reservation, 0, LOW), limit },
        })
    }
}

/// Words of a report: three of the running period, then two finals, of even and of odd periods.
pub const REPORT: usize = 3;
/// Where the finals are, in words from the beginning of the line.
pub const FINALS: usize = 4;

/// A report as words, with a number that changes with each.
pub const fn report(epoch: u64, beat: u16, report: &ClientReport) -> [u64; REPORT] {
    let epoch = epoch << (u64::BITS - EPOCH);
    let flags = report.is_busy as u64
        | (report.is_starved as u64) << 1
        | (report.is_limited as u64) << 2
        | (report.is_leaving as u64) << 3;
    [
        epoch | fit(report.residual, COUNT) << COUNT | fit(report.completed, COUNT),
        epoch
            | fit(report.in_hand, 20) << 32
            | fit(report.in_flight, 12) << 20
            | flags << 16
            | beat as u64,
        epoch | fit(report.obtained, COUNT) << COUNT | fit(report.yielded, COUNT),
    ]
}

/// The number that changes with each report, whatever its period.
pub const fn beat(words: [u64; REPORT]) -> u16 {
    words[1] as u16
}

/// Decodes a report, if all of its words are of this period.
pub fn read_report(words: [u64; REPORT], epoch: u64) -> Option<ClientReport> {
    let of = |word: &u64| is_of(word >> (u64::BITS - EPOCH), epoch, EPOCH);
    words.iter().all(of).then(|| ClientReport {
        residual: bits(words[0], COUNT, COUNT),
        completed: bits(words[0], 0, COUNT),
        in_hand: bits(words[1], 32, 20),
        in_flight: bits(words[1], 20, 12),
        is_busy: bits(words[1], 16, 1) == 1,
        is_starved: bits(words[1], 17, 1) == 1,
        is_limited: bits(words[1], 18, 1) == 1,
        is_leaving: bits(words[1], 19, 1) == 1,
        obtained: bits(words[2], COUNT, COUNT),
        yielded: bits(words[2], 0, COUNT),
    })
}

/// Bits of a count that is not exact: of its first ones, so many behind the highest, and where that
/// is.
const ROUGH: u32 = 10;
const DIGITS: u32 = 5;

/// A count to six bits, rounded down. 1,000 is 62 << 4: 992.
const fn rough(count: u64) -> u64 {
    let count = fit(count, COUNT);
    if count >> DIGITS == 0 {
        return count;
    }
    let shift = count.ilog2() - DIGITS;
    (shift as u64 + 1) << DIGITS | bits(count >> shift, 0, DIGITS)
}

/// The count behind it.
const fn count(rough: u64) -> u64 {
    let digits = bits(rough, 0, DIGITS);
    match rough >> DIGITS {
        0 => digits,
        shift => (1 << DIGITS | digits) << (shift - 1),
    }
}

/// Encodes a client's outcome of a completed period as its final word.
pub const fn last(epoch: u64, outcome: &PeriodUsage) -> u64 {
    let unmet = match outcome.unmet {
        None => 0,
        Some(count) => rough(count.saturating_add(1)),
    };
    epoch << (u64::BITS - EPOCH)
        | unmet << (16 + COUNT)
        | fit(outcome.completed, COUNT) << 16
        | (outcome.starved as u64) << 8
        | outcome.backlogged as u64
}

/// Decodes a final word, if it is of this period.
pub const fn read_last(word: u64, epoch: u64) -> Option<PeriodUsage> {
    if !is_of(word >> (u64::BITS - EPOCH), epoch, EPOCH) {
        return None;
    }
    Some(PeriodUsage {
        completed: bits(word, 16, COUNT),
        starved: bits(word, 8, 8) as u8,
        backlogged: bits(word, 0, 8) as u8,
        unmet: count(bits(word, 16 + COUNT, ROUGH)).checked_sub(1),
    })
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
