//! A sparse table: pages of entries are allocated when they are written.
//!
//! **Problem.** A drive of 1 TB has 134 million pages of 8 KiB, and a run of a few seconds touches
//! some hundred thousand of them. Three numbers for each page are two gigabytes, and the paper's
//! servers have ten such drives.
//!
//! **Mechanism.** Entries lie in chunks of [`CHUNK`], and a chunk is there from when one of them is
//! first written: until then all of it is what it began with. Memory follows what is used, by
//! ourselves: a system that hands out a large block of zeros lazily may refuse to promise it, or
//! hand it out two megabytes at a time.
//!
//! Example: 134,217,728 entries of four bytes begin as a list of 131,072 chunks that are not there,
//! 1 MiB. Writing the entries 5, 6 and 70,000 makes two chunks, 8 KiB. A table that is written all
//! over, at random, takes the memory of a whole table, and 0.2 % more.
//!
//! **What is left out.** Chunks do not go away again.

/// Entries of a chunk. By hand: with four bytes each, one page of the machine's memory, and a list
/// of chunks that is a five-hundredth of the table.
const CHUNK: usize = 1 << 10;

/// Entries by number, each zero (its type's default) until it is written.
#[derive(Debug)]
pub(super) struct Table<T> {
    chunks: Vec<Option<Box<[T; CHUNK]>>>,
}

impl<T: Copy + Default> Table<T> {
    /// A table with so many entries, and up to a chunk more.
    pub(super) fn new(entries: usize) -> Self {
        Self { chunks: vec![None; entries.div_ceil(CHUNK)] }
    }

    /// The entry with this number.
    ///
    /// # Panics
    /// If the table is too short, as does [`Table::at`].
    #[inline]
    pub(super) fn get(&self, number: u32) -> T {
        let number = number as usize;
        self.chunks[number / CHUNK].as_ref().map_or_else(T::default, |chunk| chunk[number % CHUNK])
    }

    #[cfg(test)]
    pub(super) const fn len(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// The entry with this number, to be written.
    #[inline]
    pub(super) fn at(&mut self, number: u32) -> &mut T {
        let number = number as usize;
        let chunk = &mut self.chunks[number / CHUNK];
        &mut chunk.get_or_insert_with(Self::chunk)[number % CHUNK]
    }

    /// A chunk of which nothing was written. Not first on the stack and then copied, as an array
    /// in a box would be.
    #[cold]
    fn chunk() -> Box<[T; CHUNK]> {
        vec![T::default(); CHUNK].try_into().unwrap_or_else(|_| unreachable!("as long as it is"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The oracle is an array.
        #[test]
        fn it_is_an_array(writes in prop::collection::vec((0u32..5_000, any::<u32>()), 0..60)) {
            let (mut table, mut array) = (Table::new(5_000), vec![0u32; 5_000]);
            for (number, value) in writes {
                *table.at(number) = value;
                array[number as usize] = value;
            }
            let entries: Vec<u32> = (0..5_000).map(|number| table.get(number)).collect();
            prop_assert_eq!(entries, array);
        }
    }

    #[test]
    fn what_is_not_written_takes_nothing() {
        let mut table = Table::<u64>::new(1 << 27);
        assert_eq!(table.get((1 << 27) - 1), 0);
        *table.at(70_000) = 1;
        *table.at(70_001) = 2;
        assert_eq!(table.chunks.iter().flatten().count(), 1);
    }
}
