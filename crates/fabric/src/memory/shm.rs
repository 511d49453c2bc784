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

use std::fmt;
use std::sync::Arc;

use tidegate_model::Time;
use tidegate_proto::one_sided::{Done, Fabric, Lost, Operation, Post, PostError};

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
/// use tidegate_proto::one_sided::{Fabric, Operation, Post};
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
    /// What was posted and not begun, and what is done and was not told.
    posted: Vec<Post>,
    done: Vec<Done>,
}

impl Shm {
    /// A client with so many buffers of its own, none if it only changes words.
    pub fn new(region: Arc<Region>, buffers: u32) -> Self {
        let (posted, done) = (Vec::with_capacity(WINDOW), Vec::with_capacity(WINDOW));
        Self { region, buffers: Buffers::new(buffers), posted, done }
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
