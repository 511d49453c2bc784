//! Where policies, and schedulers that were chosen for nodes, outlive the daemon.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use tidegate_model::Discipline;
use tidegate_proto::controller::status::PolicyText;

/// Revisions that are kept. Older ones are removed, for a store must not grow for ever.
const HISTORY_MAX: u64 = 1_000;

/// Memory for the store's pages. A daemon reads its store once, and writes a page or two per
/// policy.
const CACHE_BYTES: usize = 1 << 20;

/// Policies by revision, as JSON so that people can read them with any tool.
const POLICIES: TableDefinition<u64, &[u8]> = TableDefinition::new("policies");

/// Names of schedulers by the names of their nodes.
const SCHEDULERS: TableDefinition<&str, &str> = TableDefinition::new("schedulers");

/// Where policies are kept. Whatever `put` returned survives the death of process and machine.
pub trait PolicyStore: Send {
    /// The policy with the highest revision, if there is one.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn latest(&self) -> Result<Option<PolicyText>, StoreError>;

    /// Adds a policy and returns its revision: one more than the latest.
    ///
    /// # Errors
    /// If `expect` is neither zero nor the latest revision, or the store cannot be written. Then
    /// the latest policy is what it was.
    fn put(&mut self, expect: u64, draft: Draft) -> Result<u64, PutError>;

    /// At most `count` policies, the latest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn history(&self, count: usize) -> Result<Vec<PolicyText>, StoreError>;

    /// The schedulers that were chosen, by the names of the nodes. What this release does not know
    /// is left out.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError>;

    /// Chooses a scheduler for all of these nodes, or none any more.
    ///
    /// # Errors
    /// If the store cannot be written. Then what was chosen is what it was.
    fn choose(&mut self, nodes: &[String], chosen: Option<Discipline>) -> Result<(), PutError>;
}

/// A policy that has no revision yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its text.
    pub text: String,
    /// Where the text came from.
    pub source: String,
    /// When it is applied, in milliseconds since 1970.
    pub applied_at_ms: u64,
}

/// Why a store cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[error("the policy store {path}: {error}")]
pub struct StoreError {
    /// The store's file.
    pub path: PathBuf,
    /// What is wrong.
    pub error: Box<dyn std::error::Error + Send + Sync>,
}

/// Why a policy was not stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// Somebody else was faster.
    #[error("revision {found} is in force, not {expected}; look at what changed and apply again")]
    Conflict {
        /// The revision that was expected.
        expected: u64,
        /// The latest revision.
        found: u64,
    },
    /// The disk is full.
    #[error("no space is left for the policy store {path}; what is in force stays as it is")]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// The store cannot be written.
    #[error("{0}; what is in force stays as it is")]
    Store(#[from] StoreError),
}

/// A store in one file.
#[derive(Debug)]
pub struct Redb {
    path: PathBuf,
    /// None after a write failed: the library refuses to go on with a file that it could not write,
    /// until it is opened anew.
    database: Option<Database>,
}

impl Redb {
    /// Opens the store at `path`, or makes one. A file that was cut off in the middle of a write is
    /// brought back to the last whole one.
    ///
    /// # Errors
    /// If it cannot be read, or is no store.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let mut store = Self { path: path.into(), database: None };
        match store.database() {
            Ok(_) => Ok(store),
            Err(error) => Err(store.failed(error)),
        }
    }

    fn database(&mut self) -> Result<&Database, redb::Error> {
        let database = match self.database.take() {
            Some(database) => database,
            None => Database::builder().set_cache_size(CACHE_BYTES).create(&self.path)?,
        };
        Ok(self.database.insert(database))
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        StoreError { path: self.path.clone(), error: Box::new(error) }
    }

    fn read(&self, count: usize) -> Result<Vec<PolicyText>, redb::Error> {
        // The library itself is asked to open a store only where it may be changed.
        let Some(database) = &self.database else {
            return Err(redb::Error::PreviousIo);
        };
        let reading = database.begin_read()?;
        let table = match reading.open_table(POLICIES) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut policies = Vec::new();
        for entry in table.iter()?.rev().take(count) {
            let (revision, bytes) = entry?;
            policies.push(decode(revision.value(), bytes.value())?);
        }
        Ok(policies)
    }

    fn write(&mut self, expect: u64, draft: &Draft) -> Result<Outcome, redb::Error> {
        let writing = self.database()?.begin_write()?;
        let revision;
        {
            let mut table = writing.open_table(POLICIES)?;
            let found = table.last()?.map_or(0, |(revision, _)| revision.value());
            if expect != 0 && expect != found {
                return Ok(Outcome::Conflict { found });
            }
            revision = found + 1;
            let policy = PolicyText {
                revision,
                text: draft.text.clone(),
                source: draft.source.clone(),
                applied_at_ms: draft.applied_at_ms,
            };
            let bytes = serde_json::to_vec(&policy).map_err(io::Error::other)?;
            table.insert(revision, bytes.as_slice())?;
            let oldest = revision.saturating_sub(HISTORY_MAX);
            table.retain_in(..=oldest, |_, _| false)?;
        }
        writing.commit()?;
        Ok(Outcome::Stored { revision })
    }
}

impl Redb {
    fn read_schedulers(&self) -> Result<BTreeMap<String, Discipline>, redb::Error> {
        let Some(database) = &self.database else {
            return Err(redb::Error::PreviousIo);
        };
        let reading = database.begin_read()?;
        let table = match reading.open_table(SCHEDULERS) {
            Ok(table) => table,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
            Err(error) => return Err(error.into()),
        };
        let mut chosen = BTreeMap::new();
        for entry in table.iter()? {
            let (node, name) = entry?;
            if let Ok(discipline) = name.value().parse() {
                chosen.insert(node.value().to_owned(), discipline);
            }
        }
        Ok(chosen)
    }

    fn write_schedulers(
        &mut self,
        nodes: &[String],
        chosen: Option<Discipline>,
    ) -> Result<(), redb::Error> {
        let writing = self.database()?.begin_write()?;
        {
            let mut table = writing.open_table(SCHEDULERS)?;
            for node in nodes {
                match chosen {
                    Some(discipline) => table.insert(node.as_str(), discipline.name())?,
                    None => table.remove(node.as_str())?,
                };
            }
        }
        Ok(writing.commit()?)
    }

    /// After a write that failed. The store is opened again at once, so that what is there can
    /// still be read.
    fn recover(&mut self, error: redb::Error) -> PutError {
        self.database = None;
        let _ = self.database();
        if is_full(&error) {
            return PutError::Full { path: self.path.clone() };
        }
        PutError::Store(self.failed(error))
    }
}

/// How a write ended that the store could do.
enum Outcome {
    Stored { revision: u64 },
    Conflict { found: u64 },
}

fn decode(revision: u64, bytes: &[u8]) -> Result<PolicyText, redb::Error> {
    let error = |error| redb::Error::Corrupted(format!("revision {revision}: {error}"));
    serde_json::from_slice(bytes).map_err(error)
}

impl PolicyStore for Redb {
    fn latest(&self) -> Result<Option<PolicyText>, StoreError> {
        self.history(1).map(|mut policies| policies.pop())
    }

    fn put(&mut self, expect: u64, draft: Draft) -> Result<u64, PutError> {
        match self.write(expect, &draft) {
            Ok(Outcome::Stored { revision }) => Ok(revision),
            Ok(Outcome::Conflict { found }) => Err(PutError::Conflict { expected: expect, found }),
            Err(error) => Err(self.recover(error)),
        }
    }

    fn history(&self, count: usize) -> Result<Vec<PolicyText>, StoreError> {
        self.read(count).map_err(|error| self.failed(error))
    }

    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError> {
        self.read_schedulers().map_err(|error| self.failed(error))
    }

    fn choose(&mut self, nodes: &[String], chosen: Option<Discipline>) -> Result<(), PutError> {
        self.write_schedulers(nodes, chosen).map_err(|error| self.recover(error))
    }
}

fn is_full(error: &redb::Error) -> bool {
    let redb::Error::Io(error) = error else { return false };
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(text: &str) -> Draft {
        Draft { text: text.into(), source: "test".into(), applied_at_ms: 7 }
    }

    #[test]
    fn what_was_put_is_there_after_opening_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.redb");
        let mut store = Redb::open(&path).unwrap();
        assert_eq!(store.latest().unwrap(), None);
        assert_eq!(store.put(0, draft("one")).unwrap(), 1);
        assert_eq!(store.put(1, draft("two")).unwrap(), 2);
        drop(store);
        let store = Redb::open(&path).unwrap();
        let latest = store.latest().unwrap().unwrap();
        assert_eq!((latest.revision, latest.text.as_str()), (2, "two"));
        let history = store.history(10).unwrap();
        assert_eq!(history.iter().map(|p| p.revision).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_was_chosen_is_there_after_opening_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.redb");
        let mut store = Redb::open(&path).unwrap();
        assert!(store.schedulers().unwrap().is_empty());
        let [a, b] = ["a", "b"].map(String::from);
        store.choose(&[a.clone(), b.clone()], Some(Discipline::Sfq)).unwrap();
        store.choose(std::slice::from_ref(&b), Some(Discipline::Unified)).unwrap();
        drop(store);
        let mut store = Redb::open(&path).unwrap();
        let chosen = [(a.clone(), Discipline::Sfq), (b.clone(), Discipline::Unified)];
        assert_eq!(store.schedulers().unwrap(), BTreeMap::from(chosen));
        store.choose(&[a], None).unwrap();
        assert_eq!(store.schedulers().unwrap(), BTreeMap::from([(b, Discipline::Unified)]));
    }

    #[test]
    fn the_slower_of_two_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Redb::open(&directory.path().join("policies.redb")).unwrap();
        store.put(0, draft("one")).unwrap();
        store.put(1, draft("two")).unwrap();
        let error = store.put(1, draft("three")).unwrap_err();
        assert!(matches!(error, PutError::Conflict { expected: 1, found: 2 }), "{error}");
        assert_eq!(store.latest().unwrap().unwrap().text, "two");
    }

    #[test]
    fn a_file_that_is_no_store_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.redb");
        std::fs::write(&path, "something else, long enough to be looked at").unwrap();
        let error = Redb::open(&path).unwrap_err().to_string();
        assert!(error.contains("policies.redb"), "{error}");
    }
}
