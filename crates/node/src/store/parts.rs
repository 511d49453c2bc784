//! The parts that are open, by number.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tidegate_fabric::service::{Fault, Job, Part};

use super::{OpenError, name_of};

/// Parts and what a medium keeps of each. Parts are opened rarely and used always, and a part that
/// is open stays open: its number is good for as long as the node lives.
#[derive(Debug)]
pub(super) struct Parts<T>(RwLock<Vec<(Part, T)>>);

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Parts<T> {
    /// The number of `part`; if it is not open, it is what `make` makes of it, given the others.
    pub(super) fn open(
        &self,
        part: &Part,
        make: impl FnOnce(&[(Part, T)]) -> Result<T, OpenError>,
    ) -> Result<u32, OpenError> {
        let mut list = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |(other, _): &(Part, T)| (&other.volume, other.index) == key(part);
        if let Some(at) = list.iter().position(is_same) {
            let (found, wanted) = (list[at].0.length, part.length);
            if found != wanted {
                return Err(OpenError::WrongSize { what: name_of(part), found, wanted });
            }
            let (found, wanted) = (list[at].0.offset, part.offset);
            if found != wanted {
                return Err(OpenError::Moved { what: name_of(part), found, wanted });
            }
            return Ok(at as u32);
        }
        let made = make(&list)?;
        list.push((part.clone(), made));
        Ok(list.len() as u32 - 1)
    }

    /// All of them, for a batch of jobs.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Vec<(Part, T)>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(part: &Part) -> (&String, u32) {
    (&part.volume, part.index)
}

/// The part that a job is about, if its range lies within.
pub(super) fn place<'a, T>(parts: &'a [(Part, T)], job: &Job) -> Result<&'a T, Fault> {
    let (part, made) = parts.get(job.part as usize).ok_or(Fault::Invalid)?;
    let end = job.offset.checked_add(u64::from(job.length)).ok_or(Fault::Invalid)?;
    if end <= part.length.0 { Ok(made) } else { Err(Fault::Invalid) }
}
