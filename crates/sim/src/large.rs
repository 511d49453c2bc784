//! Large requests at simulated nodes, in pieces as a node cuts them.

use tidegate_model::{Tag, Time};
use tidegate_proto::data::Command;
use tidegate_proto::data::pieces::{PIECE, Pieces, Step};

use crate::node::SimulatedNode;

/// A request at a node's device, on behalf of an `O`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body<O> {
    /// A whole request.
    Whole(O),
    /// A piece of a large one: its index, and the byte at which the piece begins.
    Piece { large: u32, begin: u32 },
}

/// A large request at a node.
#[derive(Clone, Debug)]
struct LargeRequest<O> {
    pieces: Pieces<()>,
    tenant: usize,
    command: Command,
    tag: Tag,
    own: O,
}

/// The large requests at all nodes, by the index that their pieces carry.
#[derive(Clone, Debug)]
pub(crate) struct LargeRequests<O> {
    entries: Vec<Option<LargeRequest<O>>>,
    free: Vec<u32>,
}

/// Whether a node serves a request of so many bytes in pieces.
pub(crate) const fn is_large(command: Command, length: u32) -> bool {
    matches!(command, Command::Read | Command::Write { .. }) && length > PIECE
}

impl<O> Default for LargeRequests<O> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<O: Copy> LargeRequests<O> {
    /// The owner of a large request.
    pub(crate) fn owner(&self, large: u32) -> Option<O> {
        self.entries.get(large as usize)?.as_ref().map(|request| request.own)
    }

    /// A large request of a tenant comes to a node. Returns the units of cost of the whole of it.
    pub(crate) fn submit(
        &mut self,
        node: &mut SimulatedNode<Body<O>>,
        now: Time,
        (tenant, tag): (usize, Tag),
        command: Command,
        length: u32,
        own: O,
    ) -> u32 {
        let pieces = Pieces::new(command, 0, length);
        let request = LargeRequest { pieces, tenant, command, tag, own };
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(index as usize) {
            Some(entry) => *entry = Some(request),
            None => self.entries.push(Some(request)),
        }
        self.go_on(node, now, index);
        length.div_ceil(PIECE)
    }

    /// A piece that begins there is done. Returns the owner if it was the last one.
    pub(crate) fn on_piece(
        &mut self,
        node: &mut SimulatedNode<Body<O>>,
        now: Time,
        index: u32,
        begin: u32,
    ) -> Option<O> {
        let request = self.entries.get_mut(index as usize)?.as_mut()?;
        request.pieces.on_finished(begin, Ok(()));
        self.go_on(node, now, index)
    }

    /// Submits the pieces that may follow now.
    fn go_on(&mut self, node: &mut SimulatedNode<Body<O>>, now: Time, large: u32) -> Option<O> {
        let entry = self.entries.get_mut(large as usize)?;
        let LargeRequest { pieces, tenant, command, tag, own } = entry.as_mut()?;
        loop {
            match pieces.step(PIECE) {
                Step::Piece(range) => {
                    let (begin, length) = (range.start, range.end - range.start);
                    let (of, body) = ((*tenant, begin == 0), Body::Piece { large, begin });
                    node.submit_piece(now, of, *command, length, tag, body);
                    // The first piece alone reports the tenant's service at other nodes.
                    tag.delay = 0;
                }
                Step::Over(_) => {
                    let own = *own;
                    *entry = None;
                    self.free.push(large);
                    return Some(own);
                }
                Step::Flush | Step::Wait => return None,
            }
        }
    }
}
