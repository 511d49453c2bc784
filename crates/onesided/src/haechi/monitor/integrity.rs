//! Whether the words of control are what the monitor has written, or what clients may have made of
//! them.

use alloc::vec;

use super::{Monitor, PER_BUFFER, Step};
use crate::haechi::place;
use crate::haechi::port::word;
use crate::haechi::words::Pool;
use crate::integrity::Structure;
use crate::one_sided::{Fabric, WORD};

/// The pool is never so far below zero: that would be more than 256 clients take in a period with
/// all of their batches, a thousand times each between two looks.
const POOL_MIN: i64 = -(1 << 36);

impl<F: Fabric> Monitor<F> {
    /// The first word of control that is not what it must be; none if all are, or while operations
    /// of the monitor's own are under way. `read` copies bytes of the region.
    pub fn inspect(&self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        match self.step {
            Step::Over => return Some(Structure::Lease),
            Step::Resting if self.pending == 0 => {}
            _ => return None,
        }
        let mut control = [0; place::CARD as usize];
        read(0, &mut control);
        let at = |place: u64| word(&control, (place / WORD) as usize);
        let pool = Pool::read(at(place::POOL));
        // One of another period is answered by the next look: another period begins.
        let is_pool_sound =
            !pool.is_of(self.epoch) || (POOL_MIN..=self.books.left()).contains(&pool.tokens);
        let header = [at(place::HEADER), at(place::LAYOUT)];
        let checks = [
            (header == [place::MAGIC, place::VERSION], Structure::Header),
            (at(place::LEFT) == 0, Structure::Left),
            (at(place::LEASE) == self.lease, Structure::Lease),
            (is_pool_sound, Structure::TokenPool),
            (at(place::LEARNED) == self.told_capacity, Structure::Capacity),
        ];
        let found = checks.into_iter().find(|(is_sound, _)| !is_sound);
        found.map(|(_, structure)| structure).or_else(|| self.inspect_grants(read))
    }

    /// Whether grants are as they were written last.
    fn inspect_grants(&self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        let (buffers, seats) = (self.line_buffers(), self.settings.seats);
        let mut found = vec![0; usize::from(PER_BUFFER) * place::LINE as usize];
        for at in 0..buffers {
            let first = at as u16 * PER_BUFFER;
            let count = usize::from((seats - first).min(PER_BUFFER)) * place::LINE as usize;
            read(place::line(place::GRANTS, first), &mut found[..count]);
            if found[..count] != self.fabric.buffer(1 + buffers + at)[..count] {
                return Some(Structure::Grants);
            }
        }
        None
    }

    /// The control words, as address and value, of other memory that the node goes on with. The
    /// monitor of that memory begins another period.
    pub fn control_words(&self) -> [(u64, u64); 5] {
        [
            (place::HEADER, place::MAGIC),
            (place::LAYOUT, place::VERSION),
            (place::POOL, Pool::word(self.epoch, 0)),
            (place::LEASE, self.lease),
            (place::LEARNED, self.capacity()),
        ]
    }

    /// Whether what the seats are promised, which a former monitor has written, can be kept.
    pub fn is_feasible(&self) -> bool {
        let sum = self
            .roster
            .promises()
            .flatten()
            .fold(0, |sum: u64, promise| sum.saturating_add(promise.reservation));
        sum <= self.capacity().max(self.settings.profile.mean)
    }
}
