//! Names of contexts (the declared purposes of I/O), interned once per process.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_model::ContextId;

/// The most contexts of one process. Later names count as no context.
pub const CONTEXTS_MAX: usize = 256;
/// The longest name, in bytes; longer ones are cut.
pub const NAME_MAX: usize = 63;

/// Bytes of a name in one word; the eighth marks the word as set.
const CHUNK: usize = 7;
const WORDS: usize = NAME_MAX / CHUNK;
const SET: u8 = 1;

/// An interned name: its bytes, padded with zeros, in words that are zero until they are set and
/// never change after that.
#[derive(Debug)]
struct Name([AtomicU64; WORDS]);

/// The names of a process, by id; the first is no context's.
///
/// Interning takes no lock and never waits, for a thread may be stopped for good in the middle: by
/// a fork, whose child has the memory but not the thread, or by a signal whose handler requests a
/// name. Every name goes to the first slot whose words are its own or not set yet, and sets the
/// missing words there one by one. Words stay. So a second search for a name finds every slot
/// before that one taken, and that one its own: a name has one id. A name that a thread leaves
/// unfinished has no id yet; a name that begins like it finishes it, or it stays as it is.
#[derive(Debug)]
struct Names([Name; CONTEXTS_MAX]);

static NAMES: Names = Names([const { Name([const { AtomicU64::new(0) }; WORDS]) }; CONTEXTS_MAX]);

fn padded(name: &[u8]) -> [u64; WORDS] {
    let mut bytes = [0; NAME_MAX];
    let length = name.len().min(NAME_MAX);
    bytes[..length].copy_from_slice(&name[..length]);
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(CHUNK)) {
        let mut set = [0, 0, 0, 0, 0, 0, 0, SET];
        set[..CHUNK].copy_from_slice(chunk);
        *word = u64::from_le_bytes(set);
    }
    words
}

impl Name {
    /// Whether this is the slot of the name with these words, which it may become by this call.
    // A word is all that is published with it, and a thread that passes an id on to another one
    // orders that itself.
    fn becomes(&self, words: &[u64; WORDS]) -> bool {
        self.0.iter().zip(words).all(|(cell, word)| {
            let found = match cell.load(Ordering::Relaxed) {
                0 => cell.compare_exchange(0, *word, Ordering::Relaxed, Ordering::Relaxed),
                found => Err(found),
            };
            found.map_or_else(|found| found == *word, |_| true)
        })
    }
}

impl Names {
    /// The id of a name, or none if there is no slot for it.
    fn intern(&self, name: &[u8]) -> ContextId {
        let words = padded(name);
        let slots = self.0.iter().enumerate().skip(1);
        let found = slots.into_iter().find(|(_, slot)| slot.becomes(&words));
        found.map_or(ContextId::NONE, |(id, _)| ContextId(id as u16))
    }

    fn bytes(&self, id: ContextId) -> [u8; NAME_MAX] {
        let mut bytes = [0; NAME_MAX];
        if let Some(name) = self.0.get(usize::from(id.0)) {
            for (chunk, cell) in bytes.chunks_exact_mut(CHUNK).zip(&name.0) {
                chunk.copy_from_slice(&cell.load(Ordering::Relaxed).to_le_bytes()[..CHUNK]);
            }
        }
        bytes
    }
}

/// The id of the context with this name in this process. The empty name is no context. Takes no
/// lock and never waits, in signal handlers and children of `fork` as well.
pub fn intern(name: &[u8]) -> ContextId {
    if name.is_empty() { ContextId::NONE } else { NAMES.intern(name) }
}

/// Calls `see` with the name of a context.
pub(crate) fn with_name<R>(id: ContextId, see: impl FnOnce(&[u8]) -> R) -> R {
    let bytes = NAMES.bytes(id);
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    see(&bytes[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_id_in_all_threads() {
        let ids = std::thread::scope(|scope| {
            let threads = [(); 4].map(|()| scope.spawn(|| intern(b"interned by four")));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(ids.iter().all(|id| *id == ids[0] && *id != ContextId::NONE));
        assert_eq!(with_name(ids[0], <[u8]>::to_vec), b"interned by four");
        assert_eq!(intern(b""), ContextId::NONE);
    }

    fn names() -> Names {
        Names([const { Name([const { AtomicU64::new(0) }; WORDS]) }; CONTEXTS_MAX])
    }

    #[test]
    fn an_unfinished_name_blocks_no_thread() {
        // As a fork in the middle leaves it in the child: the first word of a longer name is set.
        let names = names();
        let half = padded(b"compaction of level 0");
        names.0[1].0[0].store(half[0], Ordering::Relaxed);
        assert_eq!(names.intern(b"flush"), ContextId(2), "another name goes elsewhere");
        assert_eq!(names.intern(b"compaction of level 1"), ContextId(1), "one like it ends it");
        assert_eq!(names.intern(b"compaction of level 0"), ContextId(3));
        for (name, id) in [(&b"flush"[..], 2), (b"compaction of level 1", 1)] {
            assert_eq!(names.intern(name), ContextId(id));
            assert!(names.bytes(ContextId(id)).starts_with(name));
        }
    }

    #[test]
    fn names_beyond_the_last_slot_are_none_and_the_others_stay() {
        let names = names();
        let id = |number: usize| names.intern(format!("context {number}").as_bytes());
        for number in 1..CONTEXTS_MAX {
            assert_eq!(id(number), ContextId(number as u16));
        }
        assert_eq!(id(CONTEXTS_MAX), ContextId::NONE);
        assert_eq!(id(7), ContextId(7));
        let long = [b'x'; NAME_MAX + 1];
        let names = self::names();
        assert_eq!(names.intern(&long), names.intern(&long[..NAME_MAX]), "cut");
        assert_eq!(names.bytes(ContextId(1)), long[..NAME_MAX]);
    }

    #[test]
    fn many_threads_agree_on_names_that_begin_alike() {
        let names = names();
        let intern_names = |thread: usize| {
            let name = |number: usize| format!("a common beginning {}", number % 50);
            (0..200)
                .map(|n| (n * (thread + 3)) % 50)
                .map(|n| (n, names.intern(name(n).as_bytes())))
                .collect::<std::collections::BTreeSet<_>>()
        };
        let all = std::thread::scope(|scope| {
            let threads = [0, 1, 2, 3].map(|thread| {
                let intern_names = &intern_names;
                scope.spawn(move || intern_names(thread))
            });
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let mut ids = [ContextId::NONE; 50];
        for (name, id) in all {
            assert!(ids[name] == id || ids[name] == ContextId::NONE, "{name} has two ids");
            assert_ne!(id, ContextId::NONE);
            ids[name] = id;
        }
    }
}
