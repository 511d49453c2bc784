//! Replies to which several nodes contribute.

use alloc::vec::Vec;
use core::ops::Deref;

use super::super::order::Effect;
use super::super::split;
use super::{OK, OutputChunk};

/// A reply of which several nodes have a part.
#[derive(Debug)]
pub(super) struct MultiNodeReply<R> {
    pub(super) parts: Vec<Option<OutputChunk<R>>>,
    pub(super) missing: usize,
    /// The client wants no error reply.
    pub(super) noreply: bool,
    pub(super) effect: Effect,
    /// The keys, one after the other, each with its end and its part; none for `flush_all`.
    pub(super) text: Vec<u8>,
    pub(super) keys: Vec<(u32, u32)>,
}

impl<R: Deref<Target = [u8]>> MultiNodeReply<R> {
    /// The bytes of memory that its parts take up.
    pub(super) fn stored(&self) -> usize {
        self.parts.iter().flatten().map(OutputChunk::stored).sum()
    }

    /// The whole reply, once no part is missing.
    pub(super) fn joined(&mut self) -> OutputChunk<R> {
        let parts: Vec<&[u8]> =
            self.parts.iter().map(|part| part.as_deref().unwrap_or_default()).collect();
        let mut made = Vec::new();
        if self.keys.is_empty() {
            // The first part that failed gives the reply.
            let complaint = parts.iter().find(|part| **part != OK.as_bytes());
            made.extend_from_slice(complaint.unwrap_or(&OK.as_bytes()));
            return OutputChunk::Made(made);
        }
        let mut from = 0;
        let keys = self.keys.iter().map(|(end, part)| {
            let key = &self.text[from..*end as usize];
            from = *end as usize;
            (key, *part as usize)
        });
        match split::join(keys, &parts, &mut made) {
            Ok(()) => OutputChunk::Made(made),
            Err(_) => OutputChunk::Text("SERVER_ERROR a node's reply is malformed\r\n"),
        }
    }
}
