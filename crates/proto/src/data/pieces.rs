//! Large jobs in pieces: these go through a node's scheduler and its device one by one, and the
//! gateway gets one answer all the same.
//!
//! # Problem
//! A job of 32 MiB would be dispatched with the first token that is left and keep the device for
//! its whole time, and all other requests would wait for that.
//!
//! # Mechanism
//! Reads and writes are served in pieces of [`PIECE`] bytes. At most [`AHEAD`] of them wait or are
//! at the device, so a device can work on several at a time, and requests of the same tenant that
//! come later wait for those and not for all. Discards and zeroed ranges move nothing. Their pieces
//! go one after the other, and are as long as ranges that were seen to take [`RANGE_TIME`].
//!
//! A piece that fails is the last one that is begun. The job fails with the first piece of those
//! that failed, in the order of the range. A durable range of zeros is zeroed piece by piece and
//! made durable by one flush in the end; pieces of a durable write are durable each.
//!
//! Example: a read of 300 KiB is pieces of 128, 128 and 44 KiB, and all wait at once.

use core::ops::Range;

use tidegate_model::Span;

use super::Command;

/// Bytes of a piece of a read or a write, and the bytes that one unit of cost pays for.
pub const PIECE: u32 = 128 << 10;

/// Pieces of one job that wait or are at the device at a time. Chosen by hand: 2 MiB, enough for
/// one large request at a time to keep a drive busy.
pub const AHEAD: u32 = 16;

/// How long a piece of a discard or of zeros is to take. Chosen by hand: as long as a neighbour may
/// have to wait for it, and long against what a piece costs by itself.
pub const RANGE_TIME: Span = Span(2 * Span::MILLISECOND.0);

/// With how long a piece of a discard or of zeros a node begins, and the longest.
pub const RANGE_FIRST: u32 = 1 << 20;
const RANGE_MAX: u32 = 256 << 20;

/// The longest range whose holes are reported in one answer: a client requests the rest by itself.
pub const MAP_MAX: u32 = 1 << 30;

impl Command {
    /// Whether it costs the time that it took, as it moves nothing or an unknown amount.
    pub const fn is_measured(self) -> bool {
        matches!(self, Self::Discard { .. } | Self::Zero { .. } | Self::Map)
    }

    const fn is_durable_range(self) -> bool {
        matches!(self, Self::Discard { durable: true } | Self::Zero { durable: true, .. })
    }

    /// Whether pieces of it follow one after the other, each as long as [`next_range`].
    pub const fn is_range(self) -> bool {
        matches!(self, Self::Discard { .. } | Self::Zero { .. })
    }
}

/// How long pieces of ranges are to be after one of `length` took so long, where they were to be
/// `size` long. A power of two.
pub fn next_range(size: u32, length: u32, took: Span) -> u32 {
    let size = size.clamp(PIECE, RANGE_MAX);
    if took > RANGE_TIME {
        // The length that would have taken that time, and not less than a quarter of the former
        // size.
        let fits = u128::from(length) * u128::from(RANGE_TIME.0) / u128::from(took.0);
        let fits = u32::try_from(fits).unwrap_or(u32::MAX).max(1);
        let fits = 1 << fits.ilog2();
        return size.min(fits).clamp((size / 4).max(PIECE), RANGE_MAX);
    }
    let is_quick = took.0 <= RANGE_TIME.0 / 4 && length >= size;
    if is_quick { (2 * size).min(RANGE_MAX) } else { size }
}

/// The next step of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<F> {
    /// These bytes of it are a piece.
    Piece(Range<u32>),
    /// All pieces are done, and a flush makes them durable. It counts as a piece that begins where
    /// the range ends.
    Flush,
    /// A piece has to finish first.
    Wait,
    /// It is done, or has failed. Returned once.
    Over(Result<(), F>),
}

/// A job that is served in pieces, with faults `F`.
///
/// ```
/// use tidegate_proto::data::Command;
/// use tidegate_proto::data::pieces::{PIECE, Pieces, Step};
/// let mut pieces = Pieces::<()>::new(Command::Read, 0, 300 << 10);
/// assert_eq!(pieces.step(PIECE), Step::Piece(0..PIECE));
/// assert_eq!(pieces.step(PIECE), Step::Piece(PIECE..2 * PIECE));
/// assert_eq!(pieces.step(PIECE), Step::Piece(2 * PIECE..300 << 10));
/// assert_eq!(pieces.step(PIECE), Step::Wait);
/// [2 * PIECE, 0, PIECE].map(|at| pieces.on_finished(at, Ok(())));
/// assert_eq!(pieces.step(PIECE), Step::Over(Ok(())));
/// ```
#[derive(Clone, Debug)]
pub struct Pieces<F> {
    /// Where it begins in its part.
    offset: u64,
    length: u32,
    /// Bytes that pieces were made of.
    next: u32,
    /// Pieces that were made and are not finished, and how many there may be.
    out: u32,
    ahead: u32,
    /// The first piece in the range that failed, or that it is given up.
    fault: Option<(u32, F)>,
    needs_flush: bool,
    is_over: bool,
}

impl<F: Copy> Pieces<F> {
    /// A job of so many bytes, at an offset in its part.
    pub const fn new(command: Command, offset: u64, length: u32) -> Self {
        Self {
            offset,
            length,
            next: 0,
            out: 0,
            ahead: if command.is_range() { 1 } else { AHEAD },
            fault: None,
            needs_flush: command.is_durable_range(),
            is_over: false,
        }
    }

    /// The next step, with pieces of at most `size` bytes. The caller repeats this until it is to
    /// wait. Pieces end at multiples of `size` in the part, for zeroed ranges may be given back
    /// there.
    pub fn step(&mut self, size: u32) -> Step<F> {
        if self.is_over {
            return Step::Wait;
        }
        if self.fault.is_none() && self.next < self.length {
            return if self.out < self.ahead { self.cut(size.max(1)) } else { Step::Wait };
        }
        if self.out > 0 {
            return Step::Wait;
        }
        if self.fault.is_none() && core::mem::take(&mut self.needs_flush) {
            self.out = 1;
            return Step::Flush;
        }
        self.is_over = true;
        Step::Over(self.fault.map_or(Ok(()), |(_, fault)| Err(fault)))
    }

    fn cut(&mut self, size: u32) -> Step<F> {
        let begin = self.next;
        // Reads and writes are cut from where they begin: their buffers are aligned there.
        let past = match self.ahead {
            1 => ((self.offset + u64::from(begin)) % u64::from(size)) as u32,
            _ => 0,
        };
        self.next = begin.saturating_add(size - past).min(self.length);
        self.out += 1;
        Step::Piece(begin..self.next)
    }

    /// The piece that begins there is finished.
    pub fn on_finished(&mut self, begin: u32, outcome: Result<(), F>) {
        self.out = self.out.saturating_sub(1);
        if let Err(fault) = outcome {
            self.fail(begin, fault);
        }
    }

    /// Makes no more pieces; the job fails with this, unless a piece does.
    pub fn stop(&mut self, fault: F) {
        self.fail(u32::MAX, fault);
    }

    fn fail(&mut self, begin: u32, fault: F) {
        if self.fault.is_none_or(|(first, _)| begin < first) {
            self.fault = Some((begin, fault));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const ZERO: Command = Command::Zero { allocate: false, durable: true };
    const DISCARD: Command = Command::Discard { durable: false };

    #[test]
    fn a_durable_range_is_flushed_once_in_the_end() {
        let mut pieces = Pieces::<u8>::new(ZERO, 0, 3 << 20);
        for number in 0..3 {
            assert_eq!(pieces.step(1 << 20), Step::Piece(number << 20..(number + 1) << 20));
            assert_eq!(pieces.step(1 << 20), Step::Wait, "one after the other");
            pieces.on_finished(number << 20, Ok(()));
        }
        assert_eq!(pieces.step(1 << 20), Step::Flush);
        assert_eq!(pieces.step(1 << 20), Step::Wait);
        pieces.on_finished(3 << 20, Err(7));
        assert_eq!(pieces.step(1 << 20), Step::Over(Err(7)));
        assert_eq!(pieces.step(1 << 20), Step::Wait, "it is over once");
    }

    #[test]
    fn ranges_end_where_they_can_be_given_back() {
        let mut pieces = Pieces::<u8>::new(Command::Discard { durable: false }, 3 << 19, 4 << 20);
        assert_eq!(pieces.step(1 << 20), Step::Piece(0..1 << 19));
        pieces.on_finished(0, Ok(()));
        assert_eq!(pieces.step(2 << 20), Step::Piece(1 << 19..5 << 19));
    }

    #[test]
    fn ranges_take_the_time_that_they_are_to_take() {
        for per_mib in [1u64, 1_000, 50_000, 400_000, 3_000_000] {
            let mut size = RANGE_FIRST;
            for _ in 0..40 {
                let took = Span((per_mib * u64::from(size)) >> 20);
                size = next_range(size, size, took);
            }
            let took = (per_mib * u64::from(size)) >> 20;
            assert!(took <= RANGE_TIME.0 || size == PIECE, "{per_mib}: {size} {took}");
            assert!(took > RANGE_TIME.0 / 4 || size == RANGE_MAX, "{per_mib}: {size} {took}");
        }
        assert_eq!(next_range(1 << 20, 4_096, Span(1)), 1 << 20, "a short one proves nothing");
    }

    #[test]
    fn the_next_range_is_what_fits_and_at_least_a_quarter() {
        let (size, quick, slow) = (8 << 20, RANGE_TIME.0 / 4, RANGE_TIME.0);
        // Too quick: twice as much. Not by much: the same.
        assert_eq!(next_range(size, size, Span(quick)), 2 * size);
        assert_eq!(next_range(size, size, Span(quick + 1)), size);
        assert_eq!(next_range(size, size, Span(slow)), size);
        // Too slow: the largest power of two that would have fitted, but no less than a quarter.
        assert_eq!(next_range(size, size, Span(slow + 1)), size / 2);
        assert_eq!(next_range(size, size, Span(2 * slow)), size / 2);
        assert_eq!(next_range(size, size, Span(2 * slow + 1)), size / 4);
        assert_eq!(next_range(size, size, Span(1_000 * slow)), size / 4);
        // A short one that was slow shows what fits, too; a longer one than requested is no reason
        // to grow.
        assert_eq!(next_range(size, size / 2, Span(slow + 1)), size / 4);
        assert_eq!(next_range(size, 4 * size, Span(2 * slow)), size);
        // Never below a piece, never above the longest, whatever it was before.
        assert_eq!(next_range(PIECE, PIECE, Span(u64::MAX)), PIECE);
        assert_eq!(next_range(1, 1, Span(slow)), PIECE);
        assert_eq!(next_range(RANGE_MAX, RANGE_MAX, Span(1)), RANGE_MAX);
        assert_eq!(next_range(u32::MAX, RANGE_MAX, Span(slow)), RANGE_MAX);
    }

    #[test]
    fn what_moves_nothing_costs_its_time_and_is_served_in_ranges() {
        let durable = true;
        for command in [
            Command::Discard { durable },
            Command::Zero { allocate: false, durable: false },
            Command::Zero { allocate: true, durable },
        ] {
            assert!(command.is_measured() && command.is_range());
        }
        assert!(Command::Map.is_measured() && !Command::Map.is_range());
        for command in [Command::Read, Command::Write { durable }, Command::Flush] {
            assert!(!command.is_measured() && !command.is_range(), "{command:?}");
        }
        assert!(!Command::KeyValue.is_measured() && !Command::KeyValue.is_range());
    }

    #[test]
    fn of_two_faults_of_one_piece_the_first_counts_and_a_piece_before_one_that_is_given_up() {
        let mut pieces = Pieces::<u8>::new(Command::Read, 0, 3 * PIECE);
        (0..3).for_each(|_| assert!(matches!(pieces.step(PIECE), Step::Piece(_))));
        pieces.stop(1);
        assert_eq!(pieces.step(PIECE), Step::Wait, "those that are out come back first");
        pieces.on_finished(PIECE, Err(2));
        pieces.on_finished(PIECE, Err(3));
        pieces.on_finished(2 * PIECE, Err(4));
        assert_eq!(pieces.step(PIECE), Step::Over(Err(2)));
        let mut stopped = Pieces::<u8>::new(Command::Read, 0, 3 * PIECE);
        stopped.stop(1);
        assert_eq!(stopped.step(PIECE), Step::Over(Err(1)));
    }

    proptest! {
        /// Whatever comes back in which order: all bytes once, never more pieces than may be, one
        /// answer, and that of the first piece that failed.
        #[test]
        fn every_byte_is_a_piece_once_and_the_first_fault_counts(
            command in prop::sample::select(alloc::vec![Command::Read, DISCARD, ZERO]),
            offset in 0u64..1 << 30,
            length in 1u32..8 << 20,
            sizes in prop::collection::vec(1u32..1 << 20, 1..5),
            (order, fails) in (prop::collection::vec(any::<u8>(), 200), 0u8..20),
        ) {
            let mut pieces = Pieces::<u32>::new(command, offset, length);
            let (mut out, mut cut, mut first) = (Vec::new(), 0, None);
            let mut turns = order.into_iter().cycle().zip(sizes.into_iter().cycle());
            let outcome = loop {
                let (turn, size) = turns.next().unwrap();
                let size = if command == Command::Read { PIECE } else { size.max(PIECE) };
                match pieces.step(size) {
                    Step::Piece(range) => {
                        prop_assert!(range.start == cut && range.end > cut && first.is_none());
                        cut = range.end;
                        out.push(range.start);
                    }
                    Step::Flush => {
                        prop_assert!(out.is_empty() && cut == length && command == ZERO);
                        out.push(length);
                    }
                    Step::Wait => {
                        prop_assert!(!out.is_empty() && out.len() <= AHEAD as usize);
                        prop_assert!(out.len() == 1 || !command.is_range());
                        let begin = out.swap_remove(usize::from(turn) % out.len());
                        let failed = turn < fails;
                        pieces.on_finished(begin, if failed { Err(begin) } else { Ok(()) });
                        if failed {
                            first = Some(first.map_or(begin, |first: u32| first.min(begin)));
                        }
                    }
                    Step::Over(outcome) => break outcome,
                }
            };
            prop_assert!(out.is_empty());
            prop_assert_eq!(outcome, first.map_or(Ok(()), Err));
            prop_assert!(outcome.is_err() || cut == length);
        }
    }
}
