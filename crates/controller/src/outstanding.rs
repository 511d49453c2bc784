//! A file with the rates that stages of other hosts may use without this controller: it survives
//! restarts.

use std::io;
use std::path::Path;

use tidegate_fabric::trusted::{FILE_MODE, Folder, Purpose, Secrecy, TrustError, TrustProblem};
use tidegate_model::{Span, Time};
use tidegate_proto::controller::Outstanding;

use crate::state::StateError;

/// The file's name in the state directory.
const FILE: &str = "stages.json";

/// The time between two attempts to store.
const RETRY: Span = Span::SECOND;

/// The file of an [`Outstanding`]. It changes as a tenant's first stage of another host joins and
/// its last one leaves, and with policies.
#[derive(Debug)]
pub(crate) struct OutstandingFile {
    folder: Folder,
    /// The content that could not be stored, and when to try again.
    unstored: Option<(Outstanding, Time)>,
}

impl OutstandingFile {
    /// The file in this state directory.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let refused = |error| StateError::Refused { path: path.into(), error };
        let folder = Folder::open(path, Purpose::Private).map_err(refused)?;
        Ok(Self { folder, unstored: None })
    }

    /// The rates that the last run stored; nothing if there was none. A file that cannot be read is
    /// refused: a controller that took it for an empty one would give out rates twice.
    pub(crate) fn load(&self) -> Result<Outstanding, StateError> {
        let path = self.folder.path().join(FILE);
        let refused = |error| StateError::Refused { path: self.folder.path().into(), error };
        match self.folder.read(FILE, Secrecy::Open) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
                let reason = format!(
                    "{error}; restore it from a copy, or remove it once no program of another \
                     host runs that was cut off"
                );
                StateError::Io { path, error: io::Error::new(io::ErrorKind::InvalidData, reason) }
            }),
            Err(TrustError { problem: TrustProblem::Io(error), .. })
                if error.kind() == io::ErrorKind::NotFound =>
            {
                Ok(Outstanding::default())
            }
            Err(error) => Err(refused(error)),
        }
    }

    /// Stores it durably. A failure is logged, and mended by a later [`Self::retry`]: stages go on,
    /// and only a restart meanwhile would not know of them.
    pub(crate) fn store(&mut self, now: Time, outstanding: Outstanding) {
        let was_stored = self.unstored.take().is_none();
        let bytes = serde_json::to_vec(&outstanding).unwrap_or_default();
        match self.folder.replace(FILE, &bytes, FILE_MODE) {
            Ok(()) if was_stored => {}
            Ok(()) => tracing::info!("the rates of other hosts are stored again"),
            Err(error) => {
                // Once for each time in which it fails.
                if was_stored {
                    tracing::error!(
                        %error,
                        retry = %RETRY,
                        "the rates of other hosts are not stored: after a restart, those of hosts \
                         that are cut off could be given out twice"
                    );
                }
                self.unstored = Some((outstanding, now.after(RETRY)));
            }
        }
    }

    /// When to call [`Self::retry`]; [`Time::MAX`] if all is stored.
    pub(crate) fn next_retry(&self) -> Time {
        self.unstored.as_ref().map_or(Time::MAX, |(_, at)| *at)
    }

    /// Tries again to store what could not be stored.
    pub(crate) fn retry(&mut self, now: Time) {
        if let Some((outstanding, at)) = &self.unstored
            && *at <= now
        {
            self.store(now, outstanding.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Outstanding {
        let safe = [(String::from("oltp"), [7, u64::MAX])].into();
        Outstanding { lease: Span::SECOND, safe }
    }

    /// As on a disk that is full for a while.
    #[test]
    fn what_could_not_be_stored_is_stored_later() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = OutstandingFile::open(directory.path()).unwrap();
        assert_eq!(file.next_retry(), Time::MAX);
        let obstacle = directory.path().join(FILE);
        std::fs::create_dir(&obstacle).unwrap();
        file.store(Time::ZERO, some());
        let at = file.next_retry();
        assert!(at < Time::MAX);
        file.retry(at);
        assert!(file.next_retry() > at, "it fails again");
        std::fs::remove_dir(&obstacle).unwrap();
        file.retry(at);
        assert_eq!(file.load().unwrap(), Outstanding::default(), "not before its time");
        file.retry(file.next_retry());
        assert_eq!((file.load().unwrap(), file.next_retry()), (some(), Time::MAX));
    }

    #[test]
    fn what_was_stored_is_there_for_the_next_run_and_damage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = OutstandingFile::open(directory.path()).unwrap();
        assert_eq!(file.load().unwrap(), Outstanding::default());
        file.store(Time::ZERO, some());
        let file = OutstandingFile::open(directory.path()).unwrap();
        assert_eq!(file.load().unwrap(), some());
        std::fs::write(directory.path().join(FILE), "{\"lease").unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains(FILE) && error.contains("remove it"), "{error}");
    }
}
