//! One-sided access by the client's own processor: shared memory, at once.
//!
//! An operation takes effect when it is posted, which is as early as a fabric may. What is left for
//! `poll` is to tell so. No call allocates, if the caller's list of what is done has room.
//!
//! Writes of one client are seen in their order (`region` says how). A read may be done before an
//! earlier write of the same client is seen by others; an atomic operation between the two is not
//! overtaken by either.

use std::fmt;
use std::sync::Arc;

use tidegate_model::Time;
use tidegate_proto::one_sided::{Done, Fabric, Lost, Post, PostError};

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
    done: Vec<Done>,
}

impl Shm {
    /// A client with so many buffers of its own, none if it only changes words.
    pub fn new(region: Arc<Region>, buffers: u32) -> Self {
        Self { region, buffers: Buffers::new(buffers), done: Vec::with_capacity(WINDOW) }
    }

    /// Whether a poll would tell of something that is done.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.done.is_empty()
    }
}

impl Fabric for Shm {
    #[inline]
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region.length(), self.buffers.count())?;
        if self.done.len() == WINDOW {
            return Err(PostError::Full);
        }
        let word = self.region.perform(&post.operation, &mut self.buffers);
        self.done.push(Done { id: post.id, word });
        Ok(())
    }

    #[inline]
    fn flush(&mut self, _: Time) -> Result<(), Lost> {
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
