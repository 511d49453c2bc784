//! Striping: the node and the offset of each byte of a volume.
//!
//! # Model
//! A volume of `n` parts is cut into stripes of `2^k` bytes, which are dealt to the parts round
//! robin: stripe `s` is stripe `s / n` of part `s % n`. A volume with one part is one stripe.
//!
//! Example: three parts, stripes of 64 KiB, a request for bytes 120 KiB to 140 KiB. The first 8 KiB
//! are the end of stripe 1, that is the last 8 KiB of the first stripe of part 1; the other 12 KiB
//! begin stripe 2, the first of part 2.
//!
//! # Bound
//! A request of `l` bytes has at most `l / 2^k + 2` [`Chunks`], and at most `n` [`Spans`]: what a
//! range of a volume has in one part is a range of it, for the stripes in between lie elsewhere.
//! Both are worked out one by one and need no memory.

use crate::units::Bytes;

/// Which byte of a volume lies where. Part `i` is the one at `nodes[i]` of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    size: u64,
    parts: u32,
    /// A stripe has `1 << shift` bytes.
    shift: u32,
}

/// A run of bytes that lie together in one part, and in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRange {
    /// The part, counting from zero.
    pub part: u32,
    /// Where in the part, in bytes.
    pub offset: u64,
    /// How many bytes; not zero.
    pub length: u32,
    /// Where in the request, in bytes from its beginning.
    pub at: u32,
}

impl Layout {
    /// The layout of a volume of `size` in `parts` parts, in stripes of `stripe`.
    ///
    /// # Panics
    /// If `parts` is zero, or `stripe` no power of two.
    pub const fn new(size: Bytes, parts: u32, stripe: Bytes) -> Self {
        assert!(parts > 0 && stripe.0.is_power_of_two());
        Self { size: size.0, parts, shift: stripe.0.trailing_zeros() }
    }

    /// The volume's size.
    pub const fn size(&self) -> Bytes {
        Bytes(self.size)
    }

    /// How many parts it has.
    pub const fn parts(&self) -> u32 {
        self.parts
    }

    /// How many bytes one row of stripes has, one in each part: offsets that differ by that lie in
    /// the same part. One byte for a volume with one part, which has no stripes.
    pub const fn row(&self) -> u64 {
        if self.parts == 1 { 1 } else { (self.parts as u64) << self.shift }
    }

    /// How long the part at `index` is; zero for parts that it has not.
    pub const fn part_length(&self, index: u32) -> Bytes {
        if index >= self.parts {
            return Bytes::ZERO;
        }
        Bytes(self.before(index, self.size))
    }

    /// Whether these bytes are in the volume, and any at all.
    pub const fn contains(&self, offset: u64, length: u32) -> bool {
        length > 0 && offset <= self.size && length as u64 <= self.size - offset
    }

    /// The one piece that all of the request is, if it is.
    #[inline]
    pub const fn whole(&self, offset: u64, length: u32) -> Option<PartRange> {
        if self.parts == 1 {
            return Some(PartRange { part: 0, offset, length, at: 0 });
        }
        let into = offset & self.mask();
        if into + length as u64 > self.mask() + 1 {
            return None;
        }
        let (part, offset) = self.locate(offset);
        Some(PartRange { part, offset, length, at: 0 })
    }

    /// The pieces of a request whose bytes matter, in the order of the request. The range must be
    /// [contained](Self::contains).
    pub const fn chunks(&self, offset: u64, length: u32) -> Chunks {
        Chunks { layout: *self, offset, left: length, at: 0 }
    }

    /// The ranges of parts that a range of the volume consists of, for requests without bytes of
    /// their own. Their `at` is zero. The range must be [contained](Self::contains).
    pub const fn spans(&self, offset: u64, length: u32) -> Spans {
        let first = if self.parts == 1 { 0 } else { self.locate(offset).0 };
        Spans { layout: *self, offset, end: offset + length as u64, first, done: 0 }
    }

    /// How much of a range lies in its first `stripes` stripes: all of it where a volume has one
    /// part, which has no stripes.
    pub const fn within(&self, offset: u64, length: u32, stripes: u32) -> u32 {
        let end = (stripes as u64) << self.shift;
        let most = end.saturating_sub(offset & self.mask());
        if self.parts == 1 || most >= length as u64 { length } else { most as u32 }
    }

    const fn mask(&self) -> u64 {
        (1 << self.shift) - 1
    }

    /// The part in which the byte at `offset` lies, and where in it.
    const fn locate(&self, offset: u64) -> (u32, u64) {
        let (stripe, parts) = (offset >> self.shift, self.parts as u64);
        let row = stripe / parts;
        ((stripe - row * parts) as u32, (row << self.shift) | (offset & self.mask()))
    }

    /// How many of the volume's first `offset` bytes lie in `part`.
    const fn before(&self, part: u32, offset: u64) -> u64 {
        if self.parts == 1 {
            return offset;
        }
        let (current, within) = self.locate(offset);
        let row = within & !self.mask();
        if part < current {
            row + self.mask() + 1
        } else if part == current {
            within
        } else {
            row
        }
    }
}

/// The pieces of a request, in its order.
#[derive(Clone, Debug)]
pub struct Chunks {
    layout: Layout,
    offset: u64,
    left: u32,
    at: u32,
}

impl Chunks {
    /// How many are left.
    pub const fn count_left(&self) -> u32 {
        if self.left == 0 {
            return 0;
        }
        if self.layout.parts == 1 {
            return 1;
        }
        let shift = self.layout.shift;
        let last = self.offset + self.left as u64 - 1;
        ((last >> shift) - (self.offset >> shift) + 1) as u32
    }
}

impl Iterator for Chunks {
    type Item = PartRange;

    #[inline]
    fn next(&mut self) -> Option<PartRange> {
        if self.left == 0 {
            return None;
        }
        let layout = &self.layout;
        let mut chunk = match layout.whole(self.offset, self.left) {
            Some(chunk) => chunk,
            None => {
                let (part, offset) = layout.locate(self.offset);
                // It goes beyond this stripe, so this is less than `left`.
                let length = (layout.mask() + 1 - (self.offset & layout.mask())) as u32;
                PartRange { part, offset, length, at: 0 }
            }
        };
        chunk.at = self.at;
        self.offset += u64::from(chunk.length);
        self.at += chunk.length;
        self.left -= chunk.length;
        Some(chunk)
    }
}

/// The ranges of parts that a range of the volume consists of: first that of the part in which the
/// range begins.
#[derive(Clone, Debug)]
pub struct Spans {
    layout: Layout,
    offset: u64,
    end: u64,
    first: u32,
    done: u32,
}

impl Spans {
    /// How many are left.
    pub const fn count_left(&self) -> u32 {
        if self.layout.parts == 1 {
            return 1 - self.done;
        }
        let shift = self.layout.shift;
        let stripes = ((self.end - 1) >> shift) - (self.offset >> shift) + 1;
        let parts = self.layout.parts;
        let all = if stripes < parts as u64 { stripes as u32 } else { parts };
        all - self.done
    }
}

impl Iterator for Spans {
    type Item = PartRange;

    fn next(&mut self) -> Option<PartRange> {
        if self.count_left() == 0 {
            return None;
        }
        let part = (self.first + self.done) % self.layout.parts;
        let offset = self.layout.before(part, self.offset);
        // No more than the range has, and that fits.
        let length = (self.layout.before(part, self.end) - offset) as u32;
        self.done += 1;
        Some(PartRange { part, offset, length, at: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Deals out the volume byte by byte: part and offset of each.
    fn dealt(size: u64, parts: u32, stripe: u64) -> Vec<(u32, u64)> {
        let mut lengths = alloc::vec![0; parts as usize];
        let mut locate = |byte: u64| {
            let part = if parts == 1 { 0 } else { byte / stripe % u64::from(parts) };
            let offset = lengths[part as usize];
            lengths[part as usize] += 1;
            (part as u32, offset)
        };
        (0..size).map(&mut locate).collect()
    }

    prop_compose! {
        fn requests()(size in 1u64..400, parts in 1u32..6, shift in 0u32..6)
            (offset in 0..size, length in 1..=size, size in Just(size), parts in Just(parts),
             shift in Just(shift)) -> (u64, u32, u64, u64, u32) {
            (size, parts, 1 << shift, offset, length.min(size - offset) as u32)
        }
    }

    proptest! {
        #[test]
        fn chunks_are_where_the_bytes_are((size, parts, stripe, offset, length) in requests()) {
            let layout = Layout::new(Bytes(size), parts, Bytes(stripe));
            let locations = dealt(size, parts, stripe);
            let chunks = layout.chunks(offset, length);
            prop_assert_eq!(chunks.count_left() as usize, chunks.clone().count());
            let mut at = 0;
            for chunk in chunks {
                prop_assert_eq!(chunk.at, at);
                for byte in 0..chunk.length {
                    let wanted = locations[(offset + u64::from(at)) as usize];
                    prop_assert_eq!((chunk.part, chunk.offset + u64::from(byte)), wanted);
                    at += 1;
                }
            }
            prop_assert_eq!(at, length, "every byte once");
            let whole = layout.whole(offset, length);
            prop_assert_eq!(whole.is_some(), layout.chunks(offset, length).count() == 1);
            prop_assert!(whole.is_none_or(|whole| layout.chunks(offset, length).eq([whole])));
        }

        #[test]
        fn spans_cover_what_the_range_has((size, parts, stripe, offset, length) in requests()) {
            let layout = Layout::new(Bytes(size), parts, Bytes(stripe));
            let end = offset + u64::from(length);
            let locations = &dealt(size, parts, stripe)[offset as usize..end as usize];
            let mut wanted = BTreeMap::<u32, Vec<u64>>::new();
            for (part, offset) in locations {
                wanted.entry(*part).or_default().push(*offset);
            }
            let spans = layout.spans(offset, length);
            prop_assert_eq!(spans.count_left() as usize, wanted.len());
            prop_assert_eq!(spans.clone().next().map(|span| span.part), Some(locations[0].0));
            let bytes =
                |it: PartRange| (it.offset..it.offset + u64::from(it.length)).collect();
            let found: BTreeMap<_, Vec<_>> = spans.map(|span| (span.part, bytes(span))).collect();
            prop_assert_eq!(found, wanted);
        }

        #[test]
        fn parts_have_their_length(size in 1u64..400, parts in 1u32..6, shift in 0..6) {
            let layout = Layout::new(Bytes(size), parts, Bytes(1u64 << shift));
            let locations = dealt(size, parts, 1u64 << shift);
            for part in 0..parts {
                let count = locations.iter().filter(|(at, _)| *at == part).count() as u64;
                prop_assert_eq!(layout.part_length(part), Bytes(count));
            }
            prop_assert_eq!(layout.part_length(parts), Bytes::ZERO);
        }
    }

    #[test]
    fn what_is_in_a_volume() {
        let layout = Layout::new(Bytes(8192), 2, Bytes(4096));
        assert!(layout.contains(0, 8192) && layout.contains(8191, 1));
        assert!(!layout.contains(0, 8193) && !layout.contains(8192, 1));
        assert!(!layout.contains(0, 0) && !layout.contains(u64::MAX, u32::MAX));
    }

    #[test]
    fn the_largest_request_of_the_largest_volume() {
        let layout = Layout::new(Bytes(1 << 62), 3, Bytes(4096));
        let offset = (1 << 62) - u64::from(u32::MAX);
        let length: u64 = layout.spans(offset, u32::MAX).map(|span| u64::from(span.length)).sum();
        assert_eq!(length, u64::from(u32::MAX));
        assert_eq!(layout.chunks(offset, u32::MAX).count_left(), 1 << 20);
    }
}
