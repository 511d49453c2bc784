//! One-sided access by the client's own processor: shared memory, at once.
//!
//! Operations take effect in `flush`, one after the other; `poll` only reports their completion.
//! Copies that follow each other directly wait for memory together: with all of them announced
//! before the first, 16 reads of 4 KiB take two thirds of the time that they take when each is done
//! as it is posted. No call allocates, if the caller's list of completions has capacity.
//!
//! Writes of one client are seen in their order (`region` says how). A read may be done before an
//! earlier write of the same client is seen by others; an atomic operation between the two is not
//! overtaken by either.
//!
//! # Memory that was left behind
//! Memory cannot be taken away from a process that has it. To shut a client out, a node copies the
//! region and continues with the copy, and a client that was stopped meanwhile would continue with
//! the old one unawares. So there is a word that the node sets *before* it begins to copy, and
//! [`Shm::until_left`] makes `poll` read it *after* the operations that it is about to report. If
//! the word is still zero then, all of these were done before the first byte was copied, and are in
//! the copy. If it is not, `poll` reports nothing, and the region is lost. For example: a put swaps
//! its slot at 10, the node sets the word at 20 and copies the slot at 30. A poll at 15 reports the
//! put as done, correctly; a poll at 25 reports the region as lost, which is correct, too. Had the
//! word been set at 40, a swap at 35 would be reported, and be in no memory that any client reads.
//!
//! It takes one load of a line that no client writes to for each `poll`, with any number of
//! completions.

use std::fmt;
use std::sync::Arc;

use tidegate_model::Time;
use tidegate_onesided::one_sided::{Done, Lost, Operation, Post, PostError, RemoteMemory};

use super::buffers::Buffers;
use super::region::Region;

/// Operations that may be done and not reported yet.
pub const WINDOW: usize = 1024;

/// A client of a region on the same machine.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_fabric::memory::{region::Region, shm::Shm};
/// use tidegate_model::Time;
/// use tidegate_onesided::one_sided::{RemoteMemory, Operation, Post};
///
/// let region = Arc::new(Region::create(1 << 20)?);
/// let mut client = Shm::new(region, 1);
/// client.post(Post { id: 7, operation: Operation::FetchAdd { at: 64, add: 5 } })?;
/// client.post(Post { id: 8, operation: Operation::FetchAdd { at: 64, add: 5 } })?;
/// client.flush(Time::ZERO)?;
/// let mut done = Vec::new();
/// client.poll(Time::ZERO, &mut done)?;
/// assert_eq!((done[1].id, done[1].word), (8, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Shm {
    region: Arc<Region>,
    buffers: Buffers,
    /// Operations that are posted and not begun, and those that are done and not reported.
    posted: Vec<Post>,
    done: Vec<Done>,
    /// The offset of the word that marks the region as left.
    left: Option<u64>,
}

impl Shm {
    /// A client with so many buffers of its own, none if it only changes words.
    pub fn new(region: Arc<Region>, buffers: u32) -> Self {
        let (posted, done) = (Vec::with_capacity(WINDOW), Vec::with_capacity(WINDOW));
        Self { region, buffers: Buffers::new(buffers), posted, done, left: None }
    }

    /// The same, for which the region is lost as soon as the word at `left` is not zero.
    ///
    /// # Panics
    /// If there is no such word.
    #[must_use]
    pub fn until_left(self, left: u64) -> Self {
        self.region.word(left);
        Self { left: Some(left), ..self }
    }

    /// The next time to call [`RemoteMemory::poll`]: at once, if anything was flushed.
    pub fn next_deadline(&self) -> Option<Time> {
        (!self.done.is_empty()).then_some(Time::ZERO)
    }

    /// Carries out one operation, after all that were posted, and returns the former value of the
    /// word, for atomic operations; else 0.
    ///
    /// # Errors
    /// [`PostError::Outside`] and [`PostError::Unaligned`].
    pub fn perform(&mut self, operation: &Operation) -> Result<u64, PostError> {
        operation.check(self.region.length(), self.buffers.count())?;
        self.carry_out();
        Ok(self.region.perform(operation, &mut self.buffers))
    }

    /// Carries out the posted operations.
    #[inline]
    fn carry_out(&mut self) {
        self.posted.iter().for_each(|post| self.region.announce(&post.operation));
        for Post { id, operation } in self.posted.drain(..) {
            let word = self.region.perform(&operation, &mut self.buffers);
            self.done.push(Done { id, word });
        }
    }
}

impl RemoteMemory for Shm {
    #[inline]
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region.length(), self.buffers.count())?;
        if self.posted.len() + self.done.len() == WINDOW {
            return Err(PostError::Full);
        }
        self.posted.push(post);
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        self.carry_out();
        Ok(())
    }

    #[inline]
    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        if self.region.is_left(self.left) {
            return Err(Lost);
        }
        done.append(&mut self.done);
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.count()
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        self.buffers.bytes(buffer)
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        self.buffers.bytes_mut(buffer)
    }

    fn region(&self) -> u64 {
        self.region.length()
    }
}

impl fmt::Debug for Shm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shm").field("region", &self.region).finish_non_exhaustive()
    }
}
