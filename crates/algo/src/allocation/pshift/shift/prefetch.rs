//! Finds the shares from which or to which a bucket can move tokens, many at a time, so that their
//! reads from memory overlap; and prefetches the rows of buckets that are needed next.
//!
//! A thread that reads a share and then decides which one to read next waits for memory each time:
//! 100 to 200 ns once a configuration has outgrown the caches. Reads that do not depend on each
//! other overlap, up to some 15 of them. So here the reads of many shares are issued without a
//! branch between them, and the search goes on with the selected ones.

use core::hint::black_box;
use core::ops::BitXor;

use super::super::{Configuration, Share};
use super::{Bounds, ShareRef, Way};

/// So many shares are examined together. Fewer overlap less, more are read in vain where a search
/// ends at the first. Chosen by hand.
pub(super) const TOGETHER: usize = 32;

/// Shares in a line of the caches, of 64 bytes, as far as whole ones fit.
const LINE: usize = 64 / size_of::<Share>();

/// Reads the rows of these buckets, for the caches.
fn touch(configuration: &Configuration, buckets: impl Iterator<Item = usize>) {
    let mut sum = 0;
    for bucket in buckets {
        let row = &configuration.shares[configuration.range(bucket)];
        let lines = row.iter().step_by(LINE).chain(row.last());
        sum = lines.map(|share| share.tokens).fold(sum, BitXor::bitxor);
    }
    black_box(sum);
}

/// Those of some shares at which something can move on the goal's side.
pub(super) struct Open {
    refs: [ShareRef; TOGETHER],
    count: usize,
    /// How much can move at all of them.
    pub(super) amount: i64,
}

impl Open {
    /// Examines [`TOGETHER`] shares of a server at most, the last one first, and reads the rows of
    /// those that are open.
    pub(super) fn of<B: Bounds, const PULL: bool>(
        (server, refs): (usize, &[ShareRef]),
        configuration: &Configuration,
        way: &Way<'_, B, PULL>,
    ) -> Self {
        let mut open = Self { refs: [ShareRef::default(); TOGETHER], count: 0, amount: 0 };
        for share_ref in refs.iter().rev() {
            let index = share_ref.share as usize;
            let share = &configuration.shares[index];
            let is_here = u32::from(share.server as usize == server);
            let far = way.far(index, share) * is_here;
            open.amount += i64::from(far);
            // No branch: one that depends on what is read would have to wait for it.
            open.refs[open.count] = *share_ref;
            open.count += usize::from(far > 0);
        }
        touch(configuration, open.iter().map(|share_ref| share_ref.bucket as usize));
        open
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &ShareRef> {
        self.refs[..self.count].iter()
    }
}
