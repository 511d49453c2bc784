//! One-sided access by the client's own processor: shared memory, at once.
//!
//! Operations take effect in `flush`, all that were posted one after the other; what is left for
//! `poll` is to tell so. Copies that follow each other directly wait for memory together: with all
//! of them announced before the first, 16 reads of 4 KiB take two thirds of the time that they
//! take when each is done as it is posted. No call allocates, if the caller's list of what is done
//! has room.
//!
//! Writes of one client are seen in their order (`region` says how). A read may be done before an
//! earlier write of the same client is seen by others; an atomic operation between the two is not
//! overtaken by either.
//!
//! # Memory that was left behind
//! Memory cannot be taken away from a process that has it. A node that wants to shut a client out
//! copies the region and goes on with the copy, and a client that was stopped meanwhile would go on
//! with the old one and not know. So there is a word that the node sets *before* it begins to copy,
//! and [`Shm::until_left`] has `poll` look at it *after* what it is about to tell was done. If the
//! word is still zero then, all of that was done before the first byte was copied, and is in the
//! copy. If it is not, nothing is told, and the region is lost. For example: a put swaps its slot
//! at 10, the node sets the word at 20 and copies the slot at 30. A look at 15 says that the put is
//! done, and it is; a look at 25 says that the region is lost, which is no lie either. Had the word
//! been set at 40, a swap at 35 would be told, and be in no memory that anybody reads.
//!
//! It takes one load of a line that no client writes to for each `poll`, however much that tells.

use std::fmt;
use std::sync::Arc;

use tidegate_model::Time;
use tidegate_onesided::one_sided::{Done, Fabric, Lost, Operation, Post, PostError};

use super::buffers::Buffers;
use super::region::Region;

/// Operations that may be done and not told yet.
pub const WINDOW: usize = 1024;

/// A client of a region on the same machine.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_fabric::memory::{region::Region, shm::Shm};
/// use tidegate_model::Time;
/// use tidegate_onesided::one_sided::{Fabric, Operation, Post};
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
    /// Where the word is that says that the region was left behind.
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

    /// When [`Fabric::poll`] has something to do: at once, if anything was flushed.
    pub fn next_deadline(&self) -> Option<Time> {
        (!self.done.is_empty()).then_some(Time::ZERO)
    }

    /// Carries out one operation, after all that was posted, and tells what the word was, for the
    /// two operations that tell; else 0.
    ///
    /// # Errors
    /// [`PostError::Outside`] and [`PostError::Unaligned`].
    pub fn perform(&mut self, operation: &Operation) -> Result<u64, PostError> {
        operation.check(self.region.length(), self.buffers.count())?;
        self.carry_out();
        Ok(self.region.perform(operation, &mut self.buffers))
    }

    /// Carries out what was posted.
    #[inline]
    fn carry_out(&mut self) {
        self.posted.iter().for_each(|post| self.region.announce(&post.operation));
        for Post { id, operation } in self.posted.drain(..) {
            let word = self.region.perform(&operation, &mut self.buffers);
            self.done.push(Done { id, word });
        }
    }
}

impl Fabric for Shm {
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
