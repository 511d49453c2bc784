//! A file with the rates that stages of other hosts may use without this controller: it survives
//! restarts.

use std::io;
use std::path::Path;

use tidegate_fabric::trusted::{FILE_MODE, Folder, Purpose, Secrecy, TrustError, TrustProblem};
use tidegate_proto::controller::Outstanding;

use crate::state::StateError;

/// The file's name in the state directory.
const FILE: &str = "stages.json";

/// The file of an [`Outstanding`]. It changes as a tenant's first stage of another host joins and
/// its last one leaves, and with policies.
#[derive(Debug)]
pub(crate) struct OutstandingFile {
    folder: Folder,
}

impl OutstandingFile {
    /// The file in this state directory.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let refused = |error| StateError::Refused { path: path.into(), error };
        Ok(Self { folder: Folder::open(path, Purpose::Private).map_err(refused)? })
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

    /// Stores it durably. A failure is logged and nothing more: stages go on, and only a restart
    /// would not know of them.
    pub(crate) fn store(&self, outstanding: &Outstanding) {
        let bytes = serde_json::to_vec(outstanding).unwrap_or_default();
        if let Err(error) = self.folder.replace(FILE, &bytes, FILE_MODE) {
            tracing::error!(
                "after a restart, rates of hosts that are cut off could be given out twice: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_model::Span;

    #[test]
    fn what_was_stored_is_there_for_the_next_run_and_damage_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = OutstandingFile::open(directory.path()).unwrap();
        assert_eq!(file.load().unwrap(), Outstanding::default());
        let safe = [(String::from("oltp"), [7, u64::MAX])].into();
        let outstanding = Outstanding { lease: Span::SECOND, safe };
        file.store(&outstanding);
        let file = OutstandingFile::open(directory.path()).unwrap();
        assert_eq!(file.load().unwrap(), outstanding);
        std::fs::write(directory.path().join(FILE), "{\"lease").unwrap();
        let error = file.load().unwrap_err().to_string();
        assert!(error.contains(FILE) && error.contains("remove it"), "{error}");
    }
}
