//! Bytes read as a sequence of choices: what turns any input into a scenario.

/// Numbers at which arithmetic goes wrong if it goes wrong anywhere.
const CORNERS: [u64; 8] =
    [0, 1, u32::MAX as u64, 1 << 32, 1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX];

/// Bytes that are read from front to back. At the end it reads zeros, so that a scenario cut short
/// is a scenario.
#[derive(Clone, Debug)]
pub struct Tape<'a> {
    rest: &'a [u8],
}

impl<'a> Tape<'a> {
    /// A tape of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether everything is read.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// The next `count` bytes, or as many as there are.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (chunk, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        chunk
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// One of `choices`, which are not empty.
    pub fn pick<'b, T>(&mut self, choices: &'b [T]) -> &'b T {
        &choices[self.below(choices.len())]
    }

    /// A yes or a no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number of any size: small ones often, and those at which arithmetic goes wrong.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => u64::from(u16::from_le_bytes([self.byte(), self.byte()])),
            2 => *self.pick(&CORNERS),
            _ => u64::from_le_bytes(core::array::from_fn(|_| self.byte())),
        }
    }

    /// [`Self::number`], cut to 32 bits.
    pub fn word(&mut self) -> u32 {
        self.number() as u32
    }
}
