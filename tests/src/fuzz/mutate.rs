//! Changes to inputs, drawn from a seed.

/// A generator of numbers that look random: xorshift64*, of which nothing is asked but that it is
/// small, fast and the same everywhere.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice that fall the same way for the same seed.
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that it never leaves; mixing keeps seeds 1 and 2 apart.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1)
    }

    /// The next throw.
    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`; zero if that is zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.roll() >> 16) as usize % bound.max(1)
    }
}

/// Inputs do not grow beyond this: longer ones find little that shorter ones do not.
const LENGTH_MAX: usize = 4_096;

/// A new input: one of `corpus`, changed in a few places.
pub fn mutated(dice: &mut Dice, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut bytes = match corpus.len() {
        0 => Vec::new(),
        count => corpus[dice.below(count)].clone(),
    };
    for _ in 0..=dice.below(8) {
        change(dice, &mut bytes, corpus, words);
    }
    bytes.truncate(LENGTH_MAX);
    bytes
}

fn change(dice: &mut Dice, bytes: &mut Vec<u8>, corpus: &[Vec<u8>], words: &[&str]) {
    let at = dice.below(bytes.len() + 1);
    let end = at + dice.below((bytes.len() - at).min(64) + 1);
    match dice.below(8) {
        0 | 1 if at < bytes.len() => bytes[at] = dice.roll() as u8,
        2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let chunk = bytes[at..end].to_vec();
            bytes.splice(at..at, chunk);
        }
        5 if !corpus.is_empty() => {
            let other = &corpus[dice.below(corpus.len())];
            let from = dice.below(other.len() + 1);
            let to = from + dice.below(other.len() - from + 1);
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        6 if !words.is_empty() => {
            let word = words[dice.below(words.len())];
            bytes.splice(at..end, word.bytes());
        }
        _ => {
            let noise: Vec<u8> = (0..dice.below(16)).map(|_| dice.roll() as u8).collect();
            bytes.splice(at..at, noise);
        }
    }
}
