//! The phases in which a scheduler dispatches requests, and the units dispatched in them.

/// The phases of a dispatch, in their order. The fair phase has a fair queue for each class that
/// shares by weight; that of medium requests is the only one while classes have no weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Urgent = 0,
    Reserved = 1,
    FairHigh = 2,
    Fair = 3,
    FairLow = 4,
}

impl Phase {
    pub(crate) const ALL: [Self; 5] =
        [Self::Urgent, Self::Reserved, Self::FairHigh, Self::Fair, Self::FairLow];

    /// The fair phase of the class with this index.
    pub(crate) const fn fair(class: usize) -> Self {
        Self::ALL[2 + class]
    }

    /// The index of the class of a fair phase.
    pub(crate) const fn class(self) -> usize {
        (self as usize).saturating_sub(2)
    }

    /// Whether it is for those with reservation tokens.
    pub(crate) const fn is_reserved(self) -> bool {
        matches!(self, Self::Urgent | Self::Reserved)
    }
}

/// Units of cost that were dispatched in all, in the reserved phases and in the fair one, modulo
/// 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) reserved: u32,
    pub(crate) fair: u32,
}
