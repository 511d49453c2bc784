//! The run of a simulation under faults, as [`crate::seeds`] drives and inspects it.

use tidegate_model::Span;

use crate::time::Picoseconds;

/// Inspections of a run in a period.
pub(crate) const INSPECTIONS: u64 = 20;

/// The phases of a run, in periods of this length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phases {
    pub(crate) period: Span,
    /// Periods in which everything happens.
    pub(crate) wild: u64,
    /// Periods from the last fault until everything must be as if there had been none.
    pub(crate) heal: u64,
    /// Periods in which every promise must be kept.
    pub(crate) calm: u64,
}

impl Phases {
    /// When it is calm.
    pub(crate) fn calm_from(&self) -> Picoseconds {
        Picoseconds(Picoseconds::from(self.period).0 * (self.wild + self.heal))
    }
}

/// The moment of an inspection of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inspection {
    /// The parts of the period that have passed, of [`INSPECTIONS`]; zero at its end.
    pub(crate) part: u64,
    /// Whether the period is a calm one.
    pub(crate) is_calm: bool,
}

/// The run of a seed.
pub(crate) trait Trial {
    fn phases(&self) -> Phases;

    fn now(&self) -> Picoseconds;

    /// Lets everything happen until then.
    ///
    /// # Errors
    /// A broken invariant.
    fn run_until(&mut self, end: Picoseconds) -> Result<(), String>;

    /// Checks what must hold now.
    ///
    /// # Errors
    /// A broken invariant.
    fn inspect(&mut self, inspection: Inspection) -> Result<(), String>;

    /// A number that differs between runs that differ.
    fn trace(&self) -> u64;
}
