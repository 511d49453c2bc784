// A connection over plain bytes, for tests and examples.
//
// `Double::new` does everything at once, in order. `Double::adverse` leaves it to the test when
// what happens: writes, swaps and additions in their order, reads at any time, and what is longer
// than a word in up to four pieces in any order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_model::Time;
use tidegate_onesided::one_sided::{BUFFER, Done, Lost, Operation, Post, PostError, RemoteMemory};

/// The memory of a data node, shared by the connections of its clients.
pub type Memory = Rc<RefCell<Vec<u8>>>;

/// An operation that is not done, and the parts of it that are left.
struct Running {
    post: Post,
    parts: Vec<(usize, usize)>,
}

/// One client's connection.
pub struct Double {
    memory: Memory,
    buffers: Vec<Vec<u8>>,
    posted: VecDeque<Post>,
    reads: Vec<Running>,
    changes: VecDeque<Running>,
    done: Vec<Done>,
    /// Where parts begin and in what order they come, if they do.
    shuffle: Option<u64>,
    /// How many operations it takes at a time.
    pub capacity: usize,
    /// How many it was given, in all.
    pub posts: u64,
    pub is_lost: bool,
    /// Where the word is that says that the memory was left behind, if there is one.
    pub left: Option<usize>,
    reads_together: bool,
}

#[allow(dead_code, reason = "an example needs less of it than tests do")]
impl Double {
    pub fn new(memory: &Memory, buffers: u32) -> Self {
        Self {
            memory: Rc::clone(memory),
            buffers: vec![vec![0; BUFFER as usize]; buffers as usize],
            posted: VecDeque::new(),
            reads: Vec::new(),
            changes: VecDeque::new(),
            done: Vec::new(),
            shuffle: None,
            capacity: usize::MAX,
            posts: 0,
            is_lost: false,
            left: None,
            reads_together: false,
        }
    }

    pub fn adverse(memory: &Memory, buffers: u32, seed: u64) -> Self {
        Self { shuffle: Some(seed | 1), ..Self::new(memory, buffers) }
    }

    /// As [`Self::adverse`], with each operation in one piece and reads in their order, too; or
    /// reads in a row in one go.
    pub fn adverse_whole(memory: &Memory, buffers: u32, reads_together: bool) -> Self {
        Self { shuffle: Some(0), reads_together, ..Self::new(memory, buffers) }
    }

    /// How many things can happen next.
    pub fn ways(&self) -> usize {
        self.reads.len() + usize::from(!self.changes.is_empty())
    }

    /// How many of them are reads, which have the smaller numbers.
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// One of them happens.
    pub fn go(&mut self, way: usize) {
        if way < self.reads.len() {
            if self.progress(|double| &mut double.reads[way]) {
                self.reads.swap_remove(way);
            }
            return;
        }
        loop {
            let is_read = matches!(self.changes[0].post.operation, Operation::Read { .. });
            if self.progress(|double| &mut double.changes[0]) {
                self.changes.pop_front();
            }
            let next = self.changes.front().map(|running| running.post.operation);
            let goes_on = self.reads_together && is_read;
            if !(goes_on && matches!(next, Some(Operation::Read { .. }))) {
                return;
            }
        }
    }

    /// A part of an operation happens. Whether it was the last.
    fn progress(&mut self, running: impl Fn(&mut Self) -> &mut Running) -> bool {
        let running = running(self);
        let part = running.parts.pop().unwrap();
        let (post, is_done) = (running.post, running.parts.is_empty());
        let word = self.happen(post.operation, part);
        if is_done {
            self.done.push(Done { id: post.id, word });
        }
        is_done
    }

    fn happen(&mut self, operation: Operation, (from, to): (usize, usize)) -> u64 {
        let mut memory = self.memory.borrow_mut();
        let mut exchange = |at: u64, new: &dyn Fn(u64) -> u64| {
            let word = &mut memory[at as usize..at as usize + 8];
            let old = u64::from_le_bytes((&*word).try_into().unwrap());
            word.copy_from_slice(&new(old).to_le_bytes());
            old
        };
        match operation {
            Operation::FetchAdd { at, add } => exchange(at, &|old| old.wrapping_add(add)),
            Operation::CompareSwap { at, expected, new } => {
                exchange(at, &|old| if old == expected { new } else { old })
            }
            Operation::WriteWord { word, to } => {
                exchange(to, &|_| word);
                0
            }
            Operation::Read { from: at, into, .. } => {
                let start = into.offset as usize;
                self.buffers[into.buffer as usize][start + from..start + to]
                    .copy_from_slice(&memory[at as usize + from..at as usize + to]);
                0
            }
            Operation::Write { from: position, to: at, .. } => {
                let start = position.offset as usize;
                memory[at as usize + from..at as usize + to].copy_from_slice(
                    &self.buffers[position.buffer as usize][start + from..start + to],
                );
                0
            }
        }
    }

    /// Up to four parts of whole words, in any order.
    fn parts(&mut self, operation: &Operation) -> Vec<(usize, usize)> {
        let length = operation.touches().1 as usize;
        let Some(seed) = self.shuffle.as_mut().filter(|seed| **seed != 0) else {
            return vec![(0, length)];
        };
        let mut random = |below: usize| {
            *seed ^= *seed << 13;
            *seed ^= *seed >> 7;
            *seed ^= *seed << 17;
            (*seed >> 16) as usize % below
        };
        let words = length / 8;
        let mut ends: Vec<usize> = (0..random(4)).map(|_| random(words + 1) * 8).collect();
        ends.extend([0, length]);
        ends.sort_unstable();
        ends.dedup();
        let mut parts: Vec<_> = ends.windows(2).map(|pair| (pair[0], pair[1])).collect();
        for at in (1..parts.len()).rev() {
            parts.swap(at, random(at + 1));
        }
        parts
    }
}

impl RemoteMemory for Double {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region(), self.buffers())?;
        if self.posted.len() + self.reads.len() + self.changes.len() >= self.capacity {
            return Err(PostError::Full);
        }
        self.posts += 1;
        self.posted.push_back(post);
        Ok(())
    }

    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        if self.is_lost {
            return Err(Lost);
        }
        while let Some(post) = self.posted.pop_front() {
            let running = Running { parts: self.parts(&post.operation), post };
            match post.operation {
                _ if self.shuffle.is_none() => {
                    let word = self.happen(post.operation, running.parts[0]);
                    self.done.push(Done { id: post.id, word });
                }
                Operation::Read { .. } if self.shuffle != Some(0) => self.reads.push(running),
                _ => self.changes.push_back(running),
            }
        }
        Ok(())
    }

    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        let is_left = |at: usize| self.memory.borrow()[at..at + 8] != [0; 8];
        if self.is_lost || self.left.is_some_and(is_left) {
            return Err(Lost);
        }
        done.append(&mut self.done);
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.len() as u32
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        self.assert_free(buffer);
        &self.buffers[buffer as usize]
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        self.assert_free(buffer);
        &mut self.buffers[buffer as usize]
    }

    fn region(&self) -> u64 {
        self.memory.borrow().len() as u64
    }
}

impl Double {
    fn assert_free(&self, buffer: u32) {
        let posts = self.posted.iter();
        let running = self.reads.iter().chain(&self.changes).map(|running| &running.post);
        let is_used = |post: &Post| {
            post.operation.buffer_range().is_some_and(|(position, _)| position.buffer == buffer)
        };
        assert!(!posts.chain(running).any(is_used), "buffer {buffer} is in use");
    }
}
