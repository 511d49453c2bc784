//! Table of the open parts of volumes, by number.
//!
//! A job may be done if its range lies within the part and the part's files are at their paths. A
//! job that must be durable also requires that no sync has failed. A flush also requires that the
//! part's incarnation is the one that its client has seen ([`OpenedPart::check`]). A failed sync,
//! and a file that is no longer at its path, are stored before they are reported to any client, and
//! change the part's incarnation.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use tidegate_fabric::service::{Command, Fault, Job, OpenPart, Part, PartState};
use tidegate_model::PartNumber;

use super::{OpenError, name_of};
use crate::mutex::lock;

/// Parts with a medium's state of each. Parts are opened rarely and used always, and a part that is
/// open stays open: its number is good for as long as the node lives.
pub(super) struct Parts<T> {
    list: RwLock<Vec<OpenedPart<T>>>,
    /// Receives a part's new incarnation.
    watcher: OnceLock<Watcher>,
}

/// Called with the number of a part and its new incarnation.
pub(crate) type Watcher = Box<dyn Fn(PartNumber, u64) + Send + Sync>;

/// Stores the fact that a sync has failed.
pub(super) trait StoresErrors {
    /// Stores the error, and returns the part's incarnation from here on.
    fn store_error(&self, errno: i32) -> u64;
}

#[derive(Debug)]
pub(super) struct OpenedPart<T> {
    pub(super) part: Part,
    state: PartState,
    /// The state's incarnation, or a later one.
    incarnation: AtomicU64,
    /// A sync has failed, and no later one proves that everything is durable.
    has_failed: AtomicBool,
    /// Its files are not at their paths: every request fails.
    is_absent: AtomicBool,
    /// The result of the last inspection.
    presence: Mutex<Presence>,
    pub(super) storage: T,
}

/// Whether the files of an open part are still at its paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Presence {
    /// They are.
    #[default]
    Present,
    /// They are elsewhere, and complete: the part is served again once they are back.
    Displaced(String),
    /// Data are lost, and with them perhaps acknowledged writes. This state stays until a restart.
    Lost(String),
}

impl Presence {
    fn reason(&self) -> Option<&String> {
        match self {
            Self::Present => None,
            Self::Displaced(reason) | Self::Lost(reason) => Some(reason),
        }
    }
}

/// A part that a medium has found or made.
pub(super) struct FoundPart<T> {
    pub(super) state: PartState,
    /// An error of an earlier sync is stored with it.
    pub(super) has_failed: bool,
    pub(super) storage: T,
}

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self { list: RwLock::default(), watcher: OnceLock::new() }
    }
}

impl<T> Parts<T> {
    /// Opens `part`; if it is not open, `find` returns it, given the others.
    pub(super) fn open(
        &self,
        part: &Part,
        find: impl FnOnce(&[OpenedPart<T>]) -> Result<FoundPart<T>, OpenError>,
    ) -> Result<OpenPart, OpenError> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let is_same = |other: &OpenedPart<T>| key(&other.part) == key(part);
        if let Some(at) = list.iter().position(is_same) {
            list[at].admits(part)?;
            return Ok(OpenPart { number: PartNumber::at(at), state: list[at].state() });
        }
        let FoundPart { state, has_failed, storage } = find(&list)?;
        list.push(OpenedPart {
            part: part.clone(),
            state,
            incarnation: AtomicU64::new(state.incarnation),
            has_failed: AtomicBool::new(has_failed),
            is_absent: AtomicBool::new(false),
            presence: Mutex::default(),
            storage,
        });
        Ok(OpenPart { number: PartNumber::at(list.len() - 1), state })
    }

    /// All of them, for a batch of jobs.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Vec<OpenedPart<T>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reasons why parts are not served or not durable, by volume and index.
    pub(super) fn faults(&self, of: impl Fn(&T) -> Option<String>) -> Vec<(String, u32, String)> {
        let parts = self.read();
        let fault = |opened: &OpenedPart<T>| {
            let absent = lock(&opened.presence).reason().cloned();
            let fault = absent.or_else(|| of(&opened.storage))?;
            Some((opened.part.volume.clone(), opened.part.index, fault))
        };
        parts.iter().filter_map(fault).collect()
    }

    /// From here on this receives new incarnations.
    pub(super) fn watch(&self, watcher: Watcher) {
        let is_first = self.watcher.set(watcher).is_ok();
        assert!(is_first, "a store has one watcher");
    }
}

impl<T: StoresErrors> Parts<T> {
    /// Checks whether the files of all parts are at their paths. Lost data may have held
    /// acknowledged writes, so the loss is stored like a failed sync.
    pub(super) fn inspect(&self, inspect_part: impl Fn(&OpenedPart<T>) -> Presence) {
        let mut lost = BTreeSet::new();
        for (number, opened) in (0..).map(PartNumber).zip(self.read().iter()) {
            let before = lock(&opened.presence).clone();
            let now = match before {
                Presence::Lost(_) => continue,
                _ => inspect_part(opened),
            };
            if now == before {
                continue;
            }
            opened.is_absent.store(now != Presence::Present, Ordering::Release);
            let Part { volume, index: part, .. } = &opened.part;
            match now.reason() {
                Some(reason) => {
                    tracing::error!(volume, part, %reason, "part is not served any more");
                }
                None => tracing::info!(volume, part, "part is back at its path, and served again"),
            }
            if matches!(now, Presence::Lost(_)) {
                lost.insert(number);
            }
            *lock(&opened.presence) = now;
        }
        if !lost.is_empty() {
            self.fail(libc::EIO, |number| lost.contains(&number));
        }
    }

    /// A sync of the parts for which `is_meant` is true has failed. The error is stored before it
    /// is reported to any client.
    pub(super) fn fail(&self, errno: i32, is_meant: impl Fn(PartNumber) -> bool) {
        for (number, opened) in (0..).map(PartNumber).zip(self.read().iter()) {
            if !is_meant(number) || opened.has_failed.swap(true, Ordering::AcqRel) {
                continue;
            }
            let incarnation = opened.storage.store_error(errno);
            opened.incarnation.store(incarnation, Ordering::Release);
            if let Some(watcher) = self.watcher.get() {
                watcher(number, incarnation);
            }
        }
    }
}

impl<T> OpenedPart<T> {
    fn state(&self) -> PartState {
        PartState { incarnation: self.incarnation.load(Ordering::Acquire), ..self.state }
    }

    /// Whether this is the requested part.
    fn admits(&self, wanted: &Part) -> Result<(), OpenError> {
        let what = || name_of(wanted);
        let (found, wanted) = (&self.part, wanted);
        if found.length != wanted.length {
            let (found, wanted) = (found.length, wanted.length);
            return Err(OpenError::WrongSize { what: what(), found, wanted });
        }
        if found.offset != wanted.offset {
            let (found, wanted) = (found.offset, wanted.offset);
            return Err(OpenError::Moved { what: what(), found, wanted });
        }
        if found.geometry != wanted.geometry {
            let (found, wanted) = (found.geometry, wanted.geometry);
            return Err(OpenError::Geometry { what: what(), found, wanted });
        }
        Ok(())
    }

    /// Whether a job may be done: its range lies within the part, its incarnation is current, and
    /// nothing prevents durability where it requires it.
    fn check(&self, job: &Job) -> Result<(), Fault> {
        if self.is_absent.load(Ordering::Acquire) {
            return Err(Fault::Io);
        }
        let is_broken = || self.has_failed.load(Ordering::Acquire);
        if job.command == Command::Flush {
            let (wanted, current) = (job.incarnation, self.incarnation.load(Ordering::Acquire));
            let is_lost = wanted != 0 && wanted != current;
            return if is_lost || is_broken() { Err(Fault::Io) } else { Ok(()) };
        }
        let end = job.offset.checked_add(u64::from(job.length)).ok_or(Fault::Invalid)?;
        if end > self.part.length.0 {
            return Err(Fault::Invalid);
        }
        if is_durable(job.command) && is_broken() { Err(Fault::Io) } else { Ok(()) }
    }
}

/// Whether the effect of a command must be durable when it is answered.
pub(super) fn is_durable(command: Command) -> bool {
    match command {
        Command::Write { durable } | Command::Discard { durable } => durable,
        Command::Zero { durable, .. } => durable,
        Command::Flush => true,
        Command::Read | Command::Map | Command::KeyValue => false,
    }
}

fn key(part: &Part) -> (&String, u32) {
    (&part.volume, part.index)
}

/// The part of a job, if the job may be done.
pub(super) fn storage<'a, T>(parts: &'a [OpenedPart<T>], job: &Job) -> Result<&'a T, Fault> {
    let part = parts.get(job.part.index()).ok_or(Fault::Invalid)?;
    part.check(job).map(|()| &part.storage)
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
