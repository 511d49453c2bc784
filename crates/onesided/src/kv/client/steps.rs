//! The steps of gets, puts and deletes. Why they are right is explained in [`super::super`].

use alloc::vec::Vec;

use super::super::block::{self, Content, HEAD};
use super::super::layout::{BLOCK, BUCKET, LINE, word};
use super::super::slot::IndexSlot;
use super::super::supply::Spare;
use super::task::{BUCKETS, Failure, SlotSnapshot, TaskKind, TaskStep};
use super::{Answer, Client, OperationOutcome, Value};
use crate::one_sided::{BufferPosition, Operation, RemoteMemory};

/// How often an operation reads the index before it fails as contended. Each time others have come
/// to something. Chosen by hand.
const TRIES_MAX: u32 = 32;

impl<F: RemoteMemory> Client<F> {
    /// Begins all gets. Where their keys were is looked up for all of them before anything is
    /// posted: each line costs a cache miss, and a processor waits for those of a short loop
    /// together.
    pub(super) fn start_gets(&mut self) {
        for at in &self.fresh {
            let task = &mut self.tasks[*at as usize];
            let (slot, word) = self.locations.find(task.home.hash).unwrap_or((0, IndexSlot::EMPTY));
            task.snapshot = SlotSnapshot { slot, word };
        }
        let mut fresh = core::mem::take(&mut self.fresh);
        for at in fresh.drain(..) {
            let task = &mut self.tasks[at as usize];
            let word = task.snapshot.word;
            if word == IndexSlot::EMPTY {
                self.read_index(at);
                continue;
            }
            task.step = TaskStep::Hot;
            self.read(at, self.layout.block(word.block()), 0, word.length());
        }
        self.fresh = fresh;
    }

    /// Begins a put that has a block. One that it has had for longer than the round it may have
    /// been swept: then others have it, unless a swap of its word instead of a mark shows that they
    /// have not and keeps it.
    pub(super) fn start_put(&mut self, at: u32, spare: Spare) {
        let round = self.supply.round();
        self.tasks[at as usize].round = Some(round);
        if spare.round == round {
            return self.go_on_put(at, spare);
        }
        let task = &mut self.tasks[at as usize];
        task.step = TaskStep::Keep;
        task.spare = Some(spare);
        let kept = block::kept(block::version(spare.mark), round);
        let (at_block, expected) = (self.layout.block(spare.block), spare.mark);
        self.post(at, Operation::CompareSwap { at: at_block, expected, new: kept });
    }

    fn on_kept(&mut self, at: u32, found: u64) {
        let task = &mut self.tasks[at as usize];
        let round = task.round.unwrap_or_default();
        match task.spare.take() {
            Some(spare) if found == spare.mark => {
                // A sweep may have noted the block's old word, which must not come back; so it
                // skips a version.
                self.go_on_put(at, Spare { round, ..spare.next() });
            }
            _ => {
                task.round = None;
                self.supply.forget_old();
                self.waiting.push_back(at);
            }
        }
    }

    /// Begins a delete.
    pub(super) fn start_delete(&mut self, at: u32) {
        self.tasks[at as usize].round = Some(self.supply.round());
        self.read_index(at);
    }

    /// Writes the block of a put, and finds its slot meanwhile.
    fn go_on_put(&mut self, at: u32, spare: Spare) {
        self.write_block(at, spare);
        let task = &mut self.tasks[at as usize];
        let Some((slot, word)) = self.locations.find(task.home.hash) else {
            return self.read_index(at);
        };
        task.snapshot = SlotSnapshot { slot, word };
        task.step = TaskStep::Hot;
        let length = (HEAD + task.key().len()) as u32;
        self.read(at, self.layout.block(word.block()), 0, length);
    }

    fn write_block(&mut self, at: u32, spare: Spare) {
        let task = &mut self.tasks[at as usize];
        let Spare { block, version, .. } = spare;
        let mark = block::mark(task.home.hash, version);
        task.spare = Some(Spare { mark, ..spare });
        task.mine = IndexSlot::new(task.home.fingerprint(), version, task.lines, block);
        let (from, length) = (task.written, task.lines * LINE);
        block::write_mark_and_sum(self.remote.buffer_mut(from), task.home.hash, version);
        let to = self.layout.block(block);
        self.post(at, Operation::Write { from: BufferPosition::start(from), to, length });
    }

    pub(super) fn read_index(&mut self, at: u32) {
        let task = &mut self.tasks[at as usize];
        task.step = TaskStep::Index;
        let [first, second] = task.home.buckets;
        self.read(at, self.layout.bucket(first), 0, BUCKET);
        self.read(at, self.layout.bucket(second), BUCKET, BUCKET);
    }

    /// All that a task has posted is done.
    pub(super) fn step(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        let found = IndexSlot(core::mem::take(&mut task.word));
        match task.step {
            TaskStep::Keep => self.on_kept(at, found.0),
            TaskStep::Hot => self.on_hot(at, outcomes),
            TaskStep::Index => self.on_index(at, outcomes),
            TaskStep::Compare => self.on_compare(at, outcomes),
            TaskStep::Replace => self.on_replace(at, found, outcomes),
            TaskStep::Claim => self.on_claim(at, found, outcomes),
            TaskStep::Commit => self.on_commit(at, found, outcomes),
            TaskStep::Expel => self.again(at, outcomes),
            TaskStep::Withdraw(end) => self.on_withdrawn(at, found, end, outcomes),
        }
    }

    fn on_hot(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &self.tasks[at as usize];
        let SlotSnapshot { word: slot, .. } = task.snapshot;
        let mark = block::mark(task.home.hash, slot.version());
        let key = task.key();
        if task.kind == TaskKind::Put {
            if block::is_marked(self.seen(at, (HEAD + key.len()) as u32), mark, key) {
                return self.replace(at);
            }
        } else {
            let block = self.seen(at, slot.length());
            if word(block) == mark
                && let Content::Value { from, length } = block::inspect(block, slot.version(), key)
            {
                let value = Value { buffer: task.read, from, length };
                return self.finish(at, Answer::Found(value), outcomes);
            }
        }
        let hash = task.home.hash;
        self.locations.forget(hash);
        self.read_index(at);
    }

    fn on_index(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let buckets = &self.remote.buffer(self.tasks[at as usize].read)[..BUCKETS as usize];
        let task = &mut self.tasks[at as usize];
        task.see(buckets);
        // While a slot stays, so does its block.
        if let Some(torn) = task.torn.take()
            && task.snapshots().any(|snapshot| snapshot == torn)
        {
            return self.on_damaged(at, torn, outcomes);
        }
        if let Some(own) = task.claimed() {
            if own.word == task.mine.claim() {
                task.see_claim(own);
            } else {
                return self.on_claim_gone(at, own.word, None, outcomes);
            }
        }
        self.compare_next(at, outcomes);
    }

    /// The block of a slot with the key's fingerprint is damaged. No client can be given its value
    /// any more, so a put replaces it and a delete removes it; else its key would be lost for good.
    /// In one of 4,096 cases that is another key of the same bucket, which has no value from then
    /// on.
    fn on_damaged(&mut self, at: u32, torn: SlotSnapshot, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        if task.kind == TaskKind::Get || torn.word.is_claim() {
            return self.fail(at, Failure::Corrupt, outcomes);
        }
        if task.claim.is_some() {
            // The index is read again without the claim, and shows the block once more.
            return self.withdraw(at, None);
        }
        task.is_verified = false;
        task.snapshot = torn;
        self.replace(at);
    }

    /// Reads the next block that may have the key, or does what is to be done if none has.
    fn compare_next(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        if let Some(snapshot) = task.next_snapshot() {
            let SlotSnapshot { word, .. } = snapshot;
            if word.block() >= self.layout.blocks() || !(1..=BLOCK).contains(&word.length()) {
                return self.fail(at, Failure::Corrupt, outcomes);
            }
            task.snapshot = snapshot;
            task.step = TaskStep::Compare;
            return self.read(at, self.layout.block(word.block()), 0, word.length());
        }
        match task.kind {
            TaskKind::Put => self.insert(at, outcomes),
            TaskKind::Get | TaskKind::Delete => self.finish(at, Answer::Missing, outcomes),
        }
    }

    /// Brings a key that has no value nearer to one: claims a slot, expels all claims but the
    /// first, or gives the only one its value.
    fn insert(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        let Some(first) = task.first else {
            return self.claim(at, outcomes);
        };
        let awaited = task.awaited.take();
        if let Some(other) = task.other {
            if Some(other.slot) == task.claim {
                return self.withdraw(at, None);
            }
            task.step = TaskStep::Expel;
            return self.swap_word(at, other.slot, other.word, other.word.expelled());
        }
        if Some(first.slot) == task.claim || Some(first) == awaited {
            task.snapshot = first;
            task.step = TaskStep::Commit;
            return self.swap_word(at, first.slot, first.word, first.word.valid());
        }
        task.awaited = Some(first);
        self.again(at, outcomes);
    }

    fn claim(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        let Some(slot) = task.empty_slot() else {
            return self.finish(at, Answer::Crowded, outcomes);
        };
        task.step = TaskStep::Claim;
        task.snapshot = SlotSnapshot { slot, word: IndexSlot::EMPTY };
        if let Some(spare) = task.spare.filter(|_| task.is_published) {
            // No claim is made twice: a client that has seen the last one would take this for the
            // same.
            self.write_block(at, spare.next());
        }
        let mine = self.tasks[at as usize].mine;
        self.swap_word(at, slot, IndexSlot::EMPTY, mine.claim());
    }

    fn on_compare(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &self.tasks[at as usize];
        let snapshot = task.snapshot;
        let block = self.seen(at, snapshot.word.length());
        let is_marked = word(block) == block::mark(task.home.hash, snapshot.word.version());
        let content = block::inspect(block, snapshot.word.version(), task.key());
        match content {
            Content::Other => return self.compare_next(at, outcomes),
            Content::Torn => {
                self.tasks[at as usize].torn = Some(snapshot);
                return self.again(at, outcomes);
            }
            Content::Value { from, length } if task.kind == TaskKind::Get => {
                let (hash, value) = (task.home.hash, Value { buffer: task.read, from, length });
                // Without the mark each read of the location would be in vain.
                if is_marked {
                    self.locations.learn(hash, snapshot.slot, snapshot.word);
                }
                return self.finish(at, Answer::Found(value), outcomes);
            }
            Content::Value { .. } => {}
        }
        let task = &mut self.tasks[at as usize];
        if snapshot.word.is_claim() {
            task.see_claim(snapshot);
            return self.compare_next(at, outcomes);
        }
        if task.claim.is_some() {
            // The index is read again without the claim, and shows the slot to replace.
            return self.withdraw(at, None);
        }
        task.is_verified = true;
        self.replace(at);
    }

    /// Takes the mark off the block that a slot points to, then changes the slot.
    fn replace(&mut self, at: u32) {
        let task = &mut self.tasks[at as usize];
        task.step = TaskStep::Replace;
        let SlotSnapshot { slot, word } = task.snapshot;
        let new = if task.kind == TaskKind::Put { task.mine } else { IndexSlot::EMPTY };
        // A client that comes late must not change the block's next use, so the swap expects the
        // mark.
        let version = word.version();
        let (expected, new_mark) = (block::mark(task.home.hash, version), block::unmarked(version));
        let operation =
            Operation::CompareSwap { at: self.layout.block(word.block()), expected, new: new_mark };
        self.post_aside(at, operation);
        self.swap_word(at, slot, word, new);
    }

    fn on_replace(&mut self, at: u32, found: IndexSlot, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        let (snapshot, hash) = (task.snapshot, task.home.hash);
        if found == snapshot.word {
            self.supply
                .rest(self.now, Spare::removed(snapshot.word, task.round.unwrap_or_default()));
            if task.kind == TaskKind::Put {
                task.spare = None;
                self.locations.learn(hash, snapshot.slot, task.mine);
                return self.finish(at, Answer::Stored, outcomes);
            }
            self.locations.forget(hash);
            return self.finish(at, Answer::Deleted, outcomes);
        }
        self.locations.forget(hash);
        if task.kind == TaskKind::Put && task.is_verified {
            // As if it had come just before the faster client.
            return self.finish(at, Answer::Stored, outcomes);
        }
        self.again(at, outcomes);
    }

    fn on_claim(&mut self, at: u32, found: IndexSlot, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        if found != IndexSlot::EMPTY {
            return self.again(at, outcomes);
        }
        task.claim = Some(task.snapshot.slot);
        task.is_published = true;
        self.read_index(at);
    }

    fn on_commit(&mut self, at: u32, found: IndexSlot, outcomes: &mut Vec<OperationOutcome>) {
        let task = &self.tasks[at as usize];
        if Some(task.snapshot.slot) != task.claim {
            return self.again(at, outcomes);
        }
        // If it was still the claim, it has the value now.
        let word = if found == task.mine.claim() { task.mine } else { found };
        self.on_claim_gone(at, word, None, outcomes);
    }

    /// Takes the task's own claim back, to end with a failure or to go on.
    fn withdraw(&mut self, at: u32, end: Option<Failure>) {
        let task = &self.tasks[at as usize];
        let snapshot =
            SlotSnapshot { slot: task.claim.unwrap_or_default(), word: task.mine.claim() };
        self.empty(at, snapshot, end);
    }

    fn empty(&mut self, at: u32, snapshot: SlotSnapshot, end: Option<Failure>) {
        let task = &mut self.tasks[at as usize];
        task.snapshot = snapshot;
        task.step = TaskStep::Withdraw(end);
        self.swap_word(at, snapshot.slot, snapshot.word, IndexSlot::EMPTY);
    }

    fn on_withdrawn(
        &mut self,
        at: u32,
        found: IndexSlot,
        end: Option<Failure>,
        outcomes: &mut Vec<OperationOutcome>,
    ) {
        let task = &mut self.tasks[at as usize];
        if found != task.snapshot.word {
            return self.on_claim_gone(at, found, end, outcomes);
        }
        task.claim = None;
        match end {
            Some(failure) => self.fail(at, failure, outcomes),
            None => self.again(at, outcomes),
        }
    }

    /// A task's own claim is no claim any more. If no client has expelled it, some client has given
    /// it its value, whatever has become of that since.
    fn on_claim_gone(
        &mut self,
        at: u32,
        word: IndexSlot,
        end: Option<Failure>,
        outcomes: &mut Vec<OperationOutcome>,
    ) {
        let task = &mut self.tasks[at as usize];
        let slot = task.claim.unwrap_or_default();
        if word == task.mine.expelled() {
            return self.empty(at, SlotSnapshot { slot, word }, end);
        }
        task.spare = None;
        if word == task.mine {
            self.locations.learn(task.home.hash, slot, word);
        }
        self.finish(at, Answer::Stored, outcomes);
    }

    /// Reads the index once more, unless that has been done often enough.
    fn again(&mut self, at: u32, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        task.tries += 1;
        if task.tries > TRIES_MAX {
            return self.fail(at, Failure::Contended, outcomes);
        }
        self.read_index(at);
    }

    fn fail(&mut self, at: u32, failure: Failure, outcomes: &mut Vec<OperationOutcome>) {
        if self.tasks[at as usize].claim.is_some() {
            return self.withdraw(at, Some(failure));
        }
        let answer = match failure {
            Failure::Contended => Answer::Contended,
            Failure::Corrupt => Answer::Corrupt,
        };
        self.finish(at, answer, outcomes);
    }

    pub(super) fn finish(&mut self, at: u32, answer: Answer, outcomes: &mut Vec<OperationOutcome>) {
        let task = &mut self.tasks[at as usize];
        if !matches!(answer, Answer::Found(_)) {
            self.buffers.push(task.read);
        }
        if task.kind == TaskKind::Put {
            self.buffers.push(task.written);
        }
        task.round = None;
        if let Some(spare) = task.spare.take() {
            if task.is_published {
                self.supply.rest(self.now, spare.next());
            } else {
                self.supply.give_back(spare);
            }
        }
        self.idle.push(at);
        outcomes.push(OperationOutcome { token: task.token, answer });
    }
}
