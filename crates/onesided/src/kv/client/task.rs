//! The state of one get, put or delete while it is under way.

use super::super::block::KEY_MAX;
use super::super::layout::{BUCKET, BUCKET_SLOTS, Home, word};
use super::super::slot::IndexSlot;
use super::super::supply::Spare;
use crate::one_sided::WORD;

/// Slots of a key's two buckets.
pub(super) const SLOTS: usize = 2 * BUCKET_SLOTS as usize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TaskKind {
    #[default]
    Get,
    Put,
    Delete,
}

/// The operation that was posted, and is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TaskStep {
    /// The swap that keeps a put's block: of the word that it has instead of a mark.
    Keep,
    /// The block that a location points to, before anything else is known.
    #[default]
    Hot,
    /// Both buckets.
    Index,
    /// A block that may have the key.
    Compare,
    /// The slot with the key's value, to be replaced or emptied.
    Replace,
    /// An empty slot, to become the task's claim.
    Claim,
    /// The claim of a key, its own or another task's, to get its value.
    Commit,
    /// Another task's claim, to be expelled.
    Expel,
    /// The task's own claim, to be taken back; then to end, or to go on.
    Withdraw(Option<Failure>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Contended,
    Corrupt,
}

/// A slot, and its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotSnapshot {
    pub(super) slot: u64,
    pub(super) word: IndexSlot,
}

impl Default for SlotSnapshot {
    fn default() -> Self {
        Self { slot: 0, word: IndexSlot::EMPTY }
    }
}

/// One get, put or delete.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) kind: TaskKind,
    pub(super) step: TaskStep,
    /// How many posts are not done, and the word that one of them returned.
    pub(super) pending: u32,
    pub(super) word: u64,
    pub(super) token: u64,
    pub(super) home: Home,
    key_length: u8,
    key: [u8; KEY_MAX],
    /// The buffer to read into, and that of a put's block.
    pub(super) read: u32,
    pub(super) written: u32,
    /// A put's block: how much of it is used, whose it is, and the slot that will point to it.
    pub(super) lines: u32,
    pub(super) spare: Option<Spare>,
    pub(super) mine: IndexSlot,
    /// The round in which a put or delete that is under way began.
    pub(super) round: Option<u64>,
    /// Others may have seen a slot with it.
    pub(super) is_published: bool,
    /// The slot with a put's claim.
    pub(super) claim: Option<u64>,
    /// Of the claims for the key: the one in the first slot, and another.
    pub(super) first: Option<SlotSnapshot>,
    pub(super) other: Option<SlotSnapshot>,
    /// The only claim for the key, when the index was read the last time.
    pub(super) awaited: Option<SlotSnapshot>,
    /// The slot that is looked at, or that is to be changed.
    pub(super) snapshot: SlotSnapshot,
    /// That it was the key's was read and verified since the operation began.
    pub(super) is_verified: bool,
    /// The slot whose block was not what it should have been.
    pub(super) torn: Option<SlotSnapshot>,
    slots: [IndexSlot; SLOTS],
    /// The first of them that was not looked at.
    next: usize,
    /// How many times it has read the index.
    pub(super) tries: u32,
}

impl Default for Task {
    fn default() -> Self {
        Self {
            kind: TaskKind::default(),
            step: TaskStep::default(),
            pending: 0,
            word: 0,
            token: 0,
            home: Home::default(),
            key_length: 0,
            key: [0; KEY_MAX],
            read: 0,
            written: 0,
            lines: 0,
            spare: None,
            mine: IndexSlot::EMPTY,
            round: None,
            is_published: false,
            claim: None,
            first: None,
            other: None,
            awaited: None,
            snapshot: SlotSnapshot::default(),
            is_verified: false,
            torn: None,
            slots: [IndexSlot::EMPTY; SLOTS],
            next: 0,
            tries: 0,
        }
    }
}

impl Task {
    pub(super) fn begin(&mut self, kind: TaskKind, home: Home, key: &[u8], token: u64) {
        self.kind = kind;
        self.home = home;
        self.token = token;
        self.key_length = key.len() as u8;
        self.key[..key.len()].copy_from_slice(key);
        self.word = 0;
        self.spare = None;
        self.round = None;
        self.is_published = false;
        self.claim = None;
        self.awaited = None;
        self.is_verified = false;
        self.torn = None;
        self.tries = 0;
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key[..usize::from(self.key_length)]
    }

    /// Takes in both buckets as they were read.
    pub(super) fn see(&mut self, buckets: &[u8]) {
        for (slot, bytes) in self.slots.iter_mut().zip(buckets.chunks_exact(WORD as usize)) {
            *slot = IndexSlot(word(bytes));
        }
        self.next = 0;
        self.first = None;
        self.other = None;
    }

    /// The slots, with their numbers.
    pub(super) fn snapshots(&self) -> impl Iterator<Item = SlotSnapshot> + '_ {
        let snapshot = |(index, word): (usize, &IndexSlot)| SlotSnapshot {
            slot: self.home.slot(index),
            word: *word,
        };
        self.slots.iter().enumerate().map(snapshot)
    }

    /// The next slot that may have the key, or be a claim for it if there are to be claims.
    pub(super) fn next_snapshot(&mut self) -> Option<SlotSnapshot> {
        let fingerprint = self.home.fingerprint();
        let (claim, is_put) = (self.claim, self.kind == TaskKind::Put);
        let is_meant = |snapshot: &SlotSnapshot| {
            (snapshot.word.has_value() || is_put && snapshot.word.is_claim())
                && snapshot.word.fingerprint() == fingerprint
                && claim != Some(snapshot.slot)
        };
        let (index, snapshot) = self
            .snapshots()
            .enumerate()
            .skip(self.next)
            .find(|(_, snapshot)| is_meant(snapshot))?;
        self.next = index + 1;
        Some(snapshot)
    }

    /// Takes notice of a claim for the key.
    pub(super) fn see_claim(&mut self, snapshot: SlotSnapshot) {
        match self.first {
            Some(first) if first.slot < snapshot.slot => self.other = Some(snapshot),
            first => {
                self.other = first.or(self.other);
                self.first = Some(snapshot);
            }
        }
    }

    /// An empty slot in the bucket that has more of them.
    pub(super) fn empty_slot(&self) -> Option<u64> {
        let (first, second) = self.slots.split_at(SLOTS / 2);
        let empty =
            |bucket: &[IndexSlot]| bucket.iter().filter(|slot| **slot == IndexSlot::EMPTY).count();
        let from = if empty(second) > empty(first) { SLOTS / 2 } else { 0 };
        self.snapshots()
            .skip(from)
            .find(|snapshot| snapshot.word == IndexSlot::EMPTY)
            .map(|snapshot| snapshot.slot)
    }

    /// The slot that the task has claimed, with its word as it was read.
    pub(super) fn claimed(&self) -> Option<SlotSnapshot> {
        self.snapshots().find(|snapshot| Some(snapshot.slot) == self.claim)
    }
}

/// Bytes of both buckets.
pub(super) const BUCKETS: u32 = 2 * BUCKET;
