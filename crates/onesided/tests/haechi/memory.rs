//! A data node's memory without time: operations happen and are answered when a test says so.
//!
//! Each client has a [`Wire`], which keeps its posts in order. A [`Lever`] on it holds back posts,
//! or the answers; lets through so many steps of it (a word of a write is one, so a write can be
//! seen half done); or cuts it, as if the client had died. Without a lever pulled, everything
//! happens when it is posted. Writes of one wire stay in order; between wires a test may choose
//! any.

use std::cell::{Ref, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tidegate_model::Time;
use tidegate_onesided::haechi::region_layout::DATA;
use tidegate_onesided::one_sided::{
    BUFFER, BufferPosition, Done, Lost, Operation, Post, PostError, RemoteMemory,
};

/// Bytes of data behind the control area.
const BYTES: u64 = 64 * BUFFER as u64;

/// The region, a word at a time.
#[derive(Clone)]
pub(crate) struct Node(Rc<RefCell<Vec<u64>>>);

impl Node {
    pub(crate) fn new() -> Self {
        Self(Rc::new(RefCell::new(vec![0; ((DATA + BYTES) / 8) as usize])))
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        self.0.borrow()[(at / 8) as usize]
    }

    pub(crate) fn set(&self, at: u64, word: u64) {
        self.0.borrow_mut()[(at / 8) as usize] = word;
    }

    pub(crate) fn connect(&self) -> (Wire, Lever) {
        let line = Rc::new(RefCell::new(Line { node: self.clone(), ..Line::default() }));
        let wire = Wire { line: line.clone(), buffers: vec![vec![0; BUFFER as usize]; 12] };
        (wire, Lever(line))
    }
}

impl Default for Node {
    fn default() -> Self {
        Self::new()
    }
}

/// An operation on its way: the words that it writes or has read, and how many are done.
struct Act {
    post: Post,
    words: Vec<u64>,
    done: usize,
    word: u64,
}

#[derive(Default)]
struct Line {
    node: Node,
    /// Posted, and not happened.
    pending: VecDeque<Act>,
    /// Happened, and not answered.
    answers: VecDeque<Act>,
    is_held: bool,
    is_deaf: bool,
    /// The former value of a word is reported later than all else.
    keeps_words: bool,
    is_cut: bool,
    /// All that has happened.
    log: Vec<Operation>,
}

impl Line {
    /// One word of the operation that was posted first; false if there is none.
    fn step(&mut self) -> bool {
        let Some(mut act) = self.pending.pop_front() else { return false };
        let (at, length) = act.post.operation.touches();
        let mut memory = self.node.0.borrow_mut();
        let first = (at / 8) as usize;
        let is_whole = match act.post.operation {
            Operation::Read { .. } => {
                let words = length.div_ceil(8) as usize;
                act.words = memory[first..first + words].to_vec();
                true
            }
            Operation::Write { .. } => {
                memory[first + act.done] = act.words[act.done];
                act.done += 1;
                act.done == act.words.len()
            }
            Operation::WriteWord { word, .. } => {
                memory[first] = word;
                true
            }
            Operation::FetchAdd { add, .. } => {
                act.word = memory[first];
                memory[first] = act.word.wrapping_add(add);
                true
            }
            Operation::CompareSwap { expected, new, .. } => {
                act.word = memory[first];
                memory[first] = if act.word == expected { new } else { act.word };
                true
            }
        };
        drop(memory);
        if is_whole {
            self.log.push(act.post.operation);
            self.answers.push_back(act);
        } else {
            self.pending.push_front(act);
        }
        true
    }
}

/// A test's control of a client's wire.
#[derive(Clone)]
pub(crate) struct Lever(Rc<RefCell<Line>>);

impl Lever {
    /// From now on nothing happens of what is posted, until [`Self::go`].
    pub(crate) fn hold(&self) {
        self.0.borrow_mut().is_held = true;
    }

    /// From now on what happens is not answered, until [`Self::go`].
    pub(crate) fn deafen(&self) {
        self.0.borrow_mut().is_deaf = true;
    }

    /// From now on all is answered but what words were, until [`Self::go`].
    pub(crate) fn keep_words(&self) {
        self.0.borrow_mut().keeps_words = true;
    }

    /// Lets everything happen, and be answered.
    pub(crate) fn go(&self) {
        let mut line = self.0.borrow_mut();
        (line.is_held, line.is_deaf, line.keeps_words) = (false, false, false);
        while line.step() {}
    }

    /// Lets one step happen of what is held; false if there is none.
    pub(crate) fn step(&self) -> bool {
        self.0.borrow_mut().step()
    }

    /// The client is dead: what has not happened never does.
    pub(crate) fn cut(&self) {
        let mut line = self.0.borrow_mut();
        line.is_cut = true;
        line.pending.clear();
    }

    /// Operations that are posted and have not happened.
    pub(crate) fn pending(&self) -> Vec<Operation> {
        self.0.borrow().pending.iter().map(|act| act.post.operation).collect()
    }

    /// All that has happened.
    pub(crate) fn log(&self) -> Ref<'_, [Operation]> {
        Ref::map(self.0.borrow(), |line| &line.log[..])
    }

    /// How many operations on data have happened.
    pub(crate) fn issued(&self) -> u64 {
        self.log().iter().filter(|operation| operation.touches().0 >= DATA).count() as u64
    }
}

/// A client's connection.
pub(crate) struct Wire {
    line: Rc<RefCell<Line>>,
    buffers: Vec<Vec<u8>>,
}

impl Wire {
    fn part(&mut self, position: BufferPosition, length: u32) -> &mut [u8] {
        &mut self.buffers[position.buffer as usize][position.offset as usize..][..length as usize]
    }
}

impl RemoteMemory for Wire {
    fn post(&mut self, post: Post) -> Result<(), PostError> {
        post.operation.check(self.region(), self.buffers())?;
        let mut words = Vec::new();
        if let Operation::Write { from, length, .. } = post.operation {
            let bytes = self.part(from, length).chunks(8);
            words.extend(bytes.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
        }
        let mut line = self.line.borrow_mut();
        line.pending.push_back(Act { post, words, done: 0, word: 0 });
        Ok(())
    }

    fn flush(&mut self, _: Time) -> Result<(), Lost> {
        let mut line = self.line.borrow_mut();
        if line.is_cut {
            return Err(Lost);
        }
        while !line.is_held && line.step() {}
        Ok(())
    }

    fn poll(&mut self, _: Time, done: &mut Vec<Done>) -> Result<(), Lost> {
        let mut answers = VecDeque::new();
        let mut line = self.line.borrow_mut();
        if !line.is_deaf {
            let is_kept = |act: &Act| matches!(act.post.operation, Operation::FetchAdd { .. });
            let keeps = line.keeps_words;
            let all = core::mem::take(&mut line.answers).into_iter();
            (line.answers, answers) = all.partition(|act| keeps && is_kept(act));
        }
        drop(line);
        for Act { post, words, word, .. } in answers {
            if let Operation::Read { into, length, .. } = post.operation {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                self.part(into, length).copy_from_slice(&bytes[..length as usize]);
            }
            done.push(Done { id: post.id, word });
        }
        Ok(())
    }

    fn buffers(&self) -> u32 {
        self.buffers.len() as u32
    }

    fn buffer(&self, buffer: u32) -> &[u8] {
        &self.buffers[buffer as usize]
    }

    fn buffer_mut(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.buffers[buffer as usize]
    }

    fn region(&self) -> u64 {
        DATA + BYTES
    }
}
