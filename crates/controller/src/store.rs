//! The durable store of policies, and of schedulers that were chosen for nodes.
//!
//! The whole database is checked when it is opened. A file beside the database records the number
//! of writes that were confirmed: a database with fewer has lost writes or is an older copy, and is
//! refused.

mod caught;
#[cfg(test)]
mod damage_tests;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use redb::TableHandle;
use redb::{Database, MultimapTableHandle, ReadableDatabase, ReadableTable, TableDefinition};
use tidegate_fabric::clock::unix_ms;
use tidegate_fabric::trusted::{Access, FILE_MODE, Folder, Purpose, Secrecy, TrustError};
use tidegate_model::Discipline;
use tidegate_proto::controller::status::PolicyText;

use caught::caught;

/// Revisions that are kept. Older ones are removed, for a store must not grow for ever.
const HISTORY_MAX: u64 = 1_000;

/// Memory for the store's pages. A daemon reads its store once, and writes a page or two per
/// policy.
const CACHE_BYTES: usize = 1 << 20;

/// Policies by revision, as JSON so that people can read them with any tool.
const POLICIES: TableDefinition<u64, &[u8]> = TableDefinition::new("policies");

/// Names of schedulers by the names of their nodes.
const SCHEDULERS: TableDefinition<&str, &str> = TableDefinition::new("schedulers");

/// Numbers about the store itself, by name.
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

/// The number of the store's writes.
const GENERATION: &str = "generation";

/// A store of policies. A policy whose `put` has returned survives the death of process and
/// machine.
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
    /// the latest policy is unchanged.
    fn put(&mut self, expect: u64, draft: Draft) -> Result<u64, PutError>;

    /// At most `count` policies, the latest first.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn history(&self, count: usize) -> Result<Vec<PolicyText>, StoreError>;

    /// The schedulers that were chosen, by the names of the nodes. Schedulers that this release
    /// does not have are left out.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError>;

    /// Chooses a scheduler for all of these nodes, or removes the choice.
    ///
    /// # Errors
    /// If the store cannot be written. Then the choices are unchanged.
    fn choose(&mut self, nodes: &[String], chosen: Option<Discipline>) -> Result<(), PutError>;
}

/// A policy that has no revision yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its text.
    pub text: String,
    /// The origin of the text.
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
    /// The fault and its remedy.
    pub error: Box<dyn std::error::Error + Send + Sync>,
}

/// Faults of a store's file.
#[derive(Debug, thiserror::Error)]
enum Damage {
    #[error("it is empty; {REMEDY}")]
    Empty,
    #[error("it is damaged or no policy store ({0}); {REMEDY}")]
    Unreadable(redb::Error),
    #[error("it is a database of another program, with the table {0:?}; {REMEDY}")]
    Foreign(String),
    #[error("it is missing, and {note} says that there was one; {REMEDY}", note = note.display())]
    Missing { note: PathBuf },
    #[error(
        "it has lost its last {lost} of {noted} changes, by damage or because an older copy took \
         its place; remove {note} to accept it as it is, or {REMEDY}",
        note = note.display()
    )]
    Older { noted: u64, lost: u64, note: PathBuf },
}

/// The operator's remedy for a store that cannot be used.
const REMEDY: &str = "restore the file from a copy, or start with `tidegate up --forget-policy`, \
                      which puts it aside and begins without a policy";

/// Why a policy was not stored.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// Another client applied a policy first.
    #[error("revision {found} is in force, not {expected}; look at what changed and apply again")]
    Conflict {
        /// The revision that was expected.
        expected: u64,
        /// The latest revision.
        found: u64,
    },
    /// The disk is full.
    #[error("no space is left for the policy store {path}; nothing has changed: make room first")]
    Full {
        /// The store's file.
        path: PathBuf,
    },
    /// The store cannot be written.
    #[error("{0}; nothing has changed")]
    Store(#[from] StoreError),
}

/// A store in one file.
///
/// # Damage
/// A file that was truncated, overwritten or exchanged is an error when the store is opened, never
/// a panic, and never a store without policies. The library's checksums find most damage. One case
/// remains: if the last write's pages are damaged, the library silently returns to the state before
/// that write. So each write has a number, the *generation*; it is in the store, and in a small
/// file beside it. A store behind that file has lost writes.
#[derive(Debug)]
pub struct Redb {
    path: PathBuf,
    folder: Folder,
    name: OsString,
    /// None after a write failed: the library refuses to use a file after a failed write until it
    /// is opened anew.
    database: Option<Database>,
}

impl Redb {
    /// Opens the store at `path`, or makes one. A file with an interrupted write is restored to the
    /// last complete one.
    ///
    /// # Errors
    /// If it cannot be read, is damaged, empty or no store, has lost what was written to it, or if
    /// other users could have changed it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |error: TrustError| StoreError { path: path.into(), error: error.into() };
        let absolute = std::path::absolute(path)
            .map_err(|error| StoreError { path: path.into(), error: error.into() })?;
        let folder = absolute.parent().unwrap_or(Path::new("/"));
        let folder = Folder::make(folder, Purpose::Private).map_err(failed)?;
        let name = absolute.file_name().unwrap_or_default().to_owned();
        let mut store = Self { path: path.into(), folder, name, database: None };
        match store.folder.has(&store.name) {
            true => store.check(),
            false => store.make(),
        }?;
        Ok(store)
    }

    /// Renames the store at `path`, and returns its new name; none if there is no store. The next
    /// [`Self::open`] makes a new one.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn forget(path: &Path) -> Result<Option<PathBuf>, StoreError> {
        let failed = |error: TrustError| StoreError { path: path.into(), error: error.into() };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
        let folder = Folder::make(parent, Purpose::Private).map_err(failed)?;
        let (note, name) = (note_of(&name.to_owned()), name.to_string_lossy());
        if folder.has(&note) {
            let kept = format!("{}.forgotten-{}", note.to_string_lossy(), unix_ms());
            folder.rename(&note.to_string_lossy(), &kept).map_err(failed)?;
        }
        if !folder.has(name.as_ref()) {
            return Ok(None);
        }
        let kept = format!("{name}.forgotten-{}", unix_ms());
        folder.rename(&name, &kept).map_err(failed)?;
        Ok(Some(folder.path().join(kept)))
    }

    /// Makes a store. It gets its name only once it is complete.
    fn make(&mut self) -> Result<(), StoreError> {
        let note = note_of(&self.name);
        if self.folder.has(&note) {
            return Err(self.damaged(Damage::Missing { note: self.folder.path().join(note) }));
        }
        let begun =
            self.folder.begin(&self.name, FILE_MODE).map_err(|error| self.refused(error))?;
        let file = begun.file.try_clone().map_err(|error| self.failed(error.into()))?;
        caught(|| fill(&open_database(file)?)).map_err(|error| self.failed(error))?;
        begun.publish(true).map_err(|error| self.refused(error))?;
        self.database().map(drop).map_err(|error| self.failed(error))?;
        self.note(0).map_err(|error| self.refused(error))
    }

    /// Opens an existing store, and checks all of it before any use.
    fn check(&mut self) -> Result<(), StoreError> {
        let file = self.folder.open_file(&self.name, Access::Write);
        let file = file.map_err(|error| self.refused(error))?;
        if file.metadata().is_ok_and(|found| found.len() == 0) {
            return Err(self.damaged(Damage::Empty));
        }
        let opened = caught(|| {
            let mut database = open_database(file)?;
            database.check_integrity()?;
            let tables = tables(&database)?;
            Ok((database, tables))
        });
        let unreadable = |error| Damage::Unreadable(error);
        let (database, tables) = match opened {
            Ok(opened) => opened,
            Err(error @ redb::Error::DatabaseAlreadyOpen) => return Err(self.failed(error)),
            Err(error) => return Err(self.damaged(unreadable(error))),
        };
        let known = [POLICIES.name(), SCHEDULERS.name(), NUMBERS.name()];
        if let Some(foreign) = tables.iter().find(|table| !known.contains(&table.as_str())) {
            return Err(self.damaged(Damage::Foreign(foreign.clone())));
        }
        self.database = Some(database);
        let read = caught(|| {
            self.read(usize::MAX)?;
            self.read_schedulers()?;
            self.generation()
        });
        let found = read.map_err(|error| self.damaged(unreadable(error)))?;
        self.compare(found)
    }

    /// Whether the store has all writes that were recorded beside it.
    fn compare(&self, found: Option<u64>) -> Result<(), StoreError> {
        let name = note_of(&self.name);
        let noted = match self.folder.read(&name, Secrecy::Open) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).trim().parse().unwrap_or(u64::MAX)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(self.refused(error)),
        };
        let reached = found.unwrap_or(0);
        match noted {
            // Releases before this one recorded nothing.
            None => self.note(reached).map_err(|error| self.refused(error)),
            Some(noted) if noted > reached || found.is_none() => {
                let note = self.folder.path().join(name);
                Err(self.damaged(Damage::Older { noted, lost: noted - reached, note }))
            }
            Some(_) => Ok(()),
        }
    }

    /// Records the number of the store's writes beside it.
    fn note(&self, generation: u64) -> Result<(), TrustError> {
        let text = format!("{generation}\n");
        self.folder.replace(note_of(&self.name), text.as_bytes(), FILE_MODE)
    }

    /// The number of the store's writes; none if an earlier release made it.
    fn generation(&self) -> Result<Option<u64>, redb::Error> {
        let Some(database) = &self.database else { return Err(redb::Error::PreviousIo) };
        match database.begin_read()?.open_table(NUMBERS) {
            Ok(table) => Ok(table.get(GENERATION)?.map(|number| number.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn database(&mut self) -> Result<&Database, redb::Error> {
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let file = self.folder.open_file(&self.name, Access::Write);
                caught(|| open_database(file.map_err(io::Error::from)?))?
            }
        };
        Ok(self.database.insert(database))
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        StoreError { path: self.path.clone(), error: Box::new(error) }
    }

    fn damaged(&self, damage: Damage) -> StoreError {
        StoreError { path: self.path.clone(), error: Box::new(damage) }
    }

    fn refused(&self, error: TrustError) -> StoreError {
        StoreError { path: self.path.clone(), error: Box::new(error) }
    }

    fn read(&self, count: usize) -> Result<Vec<PolicyText>, redb::Error> {
        // The library opens a store only where it may be changed.
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

    fn write(&mut self, expect: u64, draft: &Draft) -> Result<WriteOutcome, redb::Error> {
        let writing = self.database()?.begin_write()?;
        let revision;
        let generation;
        {
            let mut table = writing.open_table(POLICIES)?;
            let found = table.last()?.map_or(0, |(revision, _)| revision.value());
            if expect != 0 && expect != found {
                return Ok(WriteOutcome::Conflict { found });
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
            generation = next_generation(&writing)?;
        }
        writing.commit()?;
        self.noted(generation);
        Ok(WriteOutcome::Stored { revision })
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
        let generation = next_generation(&writing)?;
        writing.commit()?;
        self.noted(generation);
        Ok(())
    }

    /// Records a write that is in the store. If that fails, only a later loss goes unnoticed.
    fn noted(&self, generation: u64) {
        if let Err(error) = self.note(generation) {
            tracing::warn!(%error, "a loss of the last change to the policy store would go unseen");
        }
    }

    /// After a write that failed. The store is opened again at once, so that its contents can still
    /// be read.
    fn recover(&mut self, error: redb::Error) -> PutError {
        self.database = None;
        let _ = self.database();
        if is_full(&error) {
            return PutError::Full { path: self.path.clone() };
        }
        PutError::Store(self.failed(error))
    }
}

/// The file beside a store that records the number of its writes.
fn note_of(name: &OsString) -> OsString {
    let mut note = name.clone();
    note.push(".generation");
    note
}

fn open_database(file: File) -> Result<Database, redb::Error> {
    Ok(Database::builder().set_cache_size(CACHE_BYTES).create_file(file)?)
}

/// Makes the tables of every store.
fn fill(database: &Database) -> Result<(), redb::Error> {
    let writing = database.begin_write()?;
    writing.open_table(POLICIES)?;
    writing.open_table(SCHEDULERS)?;
    writing.open_table(NUMBERS)?.insert(GENERATION, 0)?;
    Ok(writing.commit()?)
}

fn tables(database: &Database) -> Result<Vec<String>, redb::Error> {
    let reading = database.begin_read()?;
    let mut names: Vec<_> = reading.list_tables()?.map(|table| table.name().to_owned()).collect();
    names.extend(reading.list_multimap_tables()?.map(|table| table.name().to_owned()));
    Ok(names)
}

/// The number of a write, which is stored with it.
fn next_generation(writing: &redb::WriteTransaction) -> Result<u64, redb::Error> {
    let mut numbers = writing.open_table(NUMBERS)?;
    let last = numbers.get(GENERATION)?.map_or(0, |number| number.value());
    numbers.insert(GENERATION, last + 1)?;
    Ok(last + 1)
}

/// The result of a write that the store carried out.
enum WriteOutcome {
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
        match caught(|| self.write(expect, &draft)) {
            Ok(WriteOutcome::Stored { revision }) => Ok(revision),
            Ok(WriteOutcome::Conflict { found }) => {
                Err(PutError::Conflict { expected: expect, found })
            }
            Err(error) => Err(self.recover(error)),
        }
    }

    fn history(&self, count: usize) -> Result<Vec<PolicyText>, StoreError> {
        caught(|| self.read(count)).map_err(|error| self.failed(error))
    }

    fn schedulers(&self) -> Result<BTreeMap<String, Discipline>, StoreError> {
        caught(|| self.read_schedulers()).map_err(|error| self.failed(error))
    }

    fn choose(&mut self, nodes: &[String], chosen: Option<Discipline>) -> Result<(), PutError> {
        caught(|| self.write_schedulers(nodes, chosen)).map_err(|error| self.recover(error))
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
    fn a_conflict_is_reported_to_the_slower_of_two() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Redb::open(&directory.path().join("policies.redb")).unwrap();
        store.put(0, draft("one")).unwrap();
        store.put(1, draft("two")).unwrap();
        let error = store.put(1, draft("three")).unwrap_err();
        assert!(matches!(error, PutError::Conflict { expected: 1, found: 2 }), "{error}");
        assert_eq!(store.latest().unwrap().unwrap().text, "two");
    }

    #[test]
    fn a_full_disk_is_distinguished_from_other_errors_and_the_store_can_still_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Redb::open(&directory.path().join("policies.redb")).unwrap();
        store.put(0, draft("one")).unwrap();
        for (kind, is_full) in [
            (io::ErrorKind::StorageFull, true),
            (io::ErrorKind::QuotaExceeded, true),
            (io::ErrorKind::PermissionDenied, false),
        ] {
            let error = store.recover(redb::Error::Io(kind.into()));
            assert_eq!(matches!(error, PutError::Full { .. }), is_full, "{error}");
            assert!(error.to_string().contains("policies.redb"), "{error}");
            assert_eq!(store.latest().unwrap().unwrap().text, "one");
        }
        let error = store.recover(redb::Error::Corrupted("a page".into()));
        assert!(matches!(error, PutError::Store(_)), "{error}");
        assert_eq!(store.put(1, draft("two")).unwrap(), 2);
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
