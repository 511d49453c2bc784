//! The private memory of a client, between which and the region operations copy.

use tidegate_onesided::one_sided::BUFFER;

/// One buffer. Its size is whole cache lines, so no two share one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct BufferMemory([u8; BUFFER as usize]);

/// A client's buffers, by number.
pub(super) struct Buffers(Box<[BufferMemory]>);

impl Buffers {
    pub(super) fn new(count: u32) -> Self {
        Self(vec![BufferMemory([0; BUFFER as usize]); count as usize].into())
    }

    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    pub(super) fn bytes(&self, buffer: u32) -> &[u8] {
        &self.0[buffer as usize].0
    }

    pub(super) fn bytes_mut(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.0[buffer as usize].0
    }
}
