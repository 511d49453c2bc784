//! Checks that the control words in a data node's memory have values that its monitor or its
//! clients can have written.

use alloc::vec;

use tidegate_model::SessionSlot;

use super::{Monitor, MonitorStep, PER_BUFFER};
use crate::haechi::port::word;
use crate::haechi::region_layout;
use crate::haechi::words::PoolWord;
use crate::integrity::Structure;
use crate::one_sided::{RemoteMemory, WORD};

/// The pool is never so far below zero: that would be more than 256 clients take in a period with
/// all of their batches, a thousand times each between two polls.
const POOL_MIN: i64 = -(1 << 36);

impl<F: RemoteMemory> Monitor<F> {
    /// The first word of control that is not what it must be; none if all are, or while operations
    /// of the monitor's own are under way. `read` copies bytes of the region.
    pub fn inspect(&self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        match self.step {
            MonitorStep::Over => return Some(Structure::Lease),
            MonitorStep::Resting if self.pending == 0 => {}
            _ => return None,
        }
        let mut control = [0; region_layout::NIC as usize];
        read(0, &mut control);
        let at = |offset: u64| word(&control, (offset / WORD) as usize);
        let pool = PoolWord::read(at(region_layout::POOL));
        // One of another period is answered by the next poll: another period begins.
        let is_pool_sound =
            !pool.is_of(self.epoch) || (POOL_MIN..=self.account.left()).contains(&pool.tokens);
        let header = [at(region_layout::HEADER), at(region_layout::LAYOUT)];
        let checks = [
            (header == [region_layout::MAGIC, region_layout::VERSION], Structure::Header),
            (at(region_layout::LEFT) == 0, Structure::Left),
            (at(region_layout::LEASE) == self.lease, Structure::Lease),
            (is_pool_sound, Structure::TokenPool),
            (at(region_layout::LEARNED) == self.published_capacity, Structure::Capacity),
        ];
        let found = checks.into_iter().find(|(is_sound, _)| !is_sound);
        found.map(|(_, structure)| structure).or_else(|| self.inspect_grants(read))
    }

    /// Whether grants are as they were written last.
    fn inspect_grants(&self, read: &mut impl FnMut(u64, &mut [u8])) -> Option<Structure> {
        let (buffers, session_slots) = (self.line_buffers(), self.settings.session_slots);
        let mut found = vec![0; usize::from(PER_BUFFER) * region_layout::LINE as usize];
        for at in 0..buffers {
            let first = at as u16 * PER_BUFFER;
            let count =
                usize::from((session_slots - first).min(PER_BUFFER)) * region_layout::LINE as usize;
            read(
                region_layout::line(region_layout::GRANTS, SessionSlot(first)),
                &mut found[..count],
            );
            if found[..count] != self.remote.buffer(1 + buffers + at)[..count] {
                return Some(Structure::Grants);
            }
        }
        None
    }

    /// The control words, as address and value, of other memory that the node goes on with. The
    /// monitor of that memory begins another period.
    pub fn control_words(&self) -> [(u64, u64); 5] {
        [
            (region_layout::HEADER, region_layout::MAGIC),
            (region_layout::LAYOUT, region_layout::VERSION),
            (region_layout::POOL, PoolWord::word(self.epoch, 0)),
            (region_layout::LEASE, self.lease),
            (region_layout::LEARNED, self.capacity()),
        ]
    }

    /// Whether what the session slots are promised, which a former monitor has written, can be
    /// kept.
    pub fn is_feasible(&self) -> bool {
        let sum = self
            .client_table
            .promises()
            .flatten()
            .fold(0, |sum: u64, promise| sum.saturating_add(promise.reservation));
        sum <= self.capacity().max(self.settings.profile.mean)
    }
}
