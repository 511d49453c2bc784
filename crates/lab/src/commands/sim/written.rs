//! The files of a run: the run writes all of them, or none.
//!
//! A run may take an hour, and a disk may be full or not writable. So the command tries before the
//! run whether it can make the files. After the run it writes each file under a temporary name
//! beside its own name, and renames the files only when all are complete. Older files of these
//! names stay whole until then.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tidegate_console::failure::{Code, Failure};

/// Files that are not where they belong yet. Dropping them removes what was written.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// Where each is, and where it belongs.
    drafts: Vec<(PathBuf, PathBuf)>,
}

impl Files {
    pub(super) fn add(
        &mut self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        // Replaces the target of a symbolic link, and not the link.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let draft = beside(path);
        let written = || -> io::Result<()> {
            let mut file = BufWriter::with_capacity(256 << 10, anew(&draft)?);
            self.drafts.push((draft.clone(), path.clone()));
            write(&mut file)?;
            // On some file systems only this reports a full disk.
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
        };
        written().map_err(|error| unwritten(path, &error))
    }

    /// Gives all of them their names.
    ///
    /// # Errors
    /// If a directory of such a name was made meanwhile.
    pub(super) fn keep(mut self) -> Result<(), Failure> {
        for (draft, path) in self.drafts.drain(..) {
            fs::rename(&draft, &path).map_err(|error| {
                let _ = fs::remove_file(&draft);
                unwritten(&path, &error)
            })?;
        }
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        for (draft, _) in &self.drafts {
            let _ = fs::remove_file(draft);
        }
    }
}

/// Makes a directory, if there is none, and tries whether files can be made there.
pub(super) fn prepare(directory: &Path) -> Result<(), Failure> {
    let tried = || {
        fs::create_dir_all(directory)?;
        try_at(&directory.join("series.csv"))
    };
    tried().map_err(|error| unwritten(directory, &error))
}

/// Tries whether a file can be made here.
pub(super) fn prepare_file(path: &Path) -> Result<(), Failure> {
    let tried = if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { try_at(path) };
    tried.map_err(|error| unwritten(path, &error))
}

fn try_at(path: &Path) -> io::Result<()> {
    let draft = beside(path);
    anew(&draft)?;
    fs::remove_file(&draft)
}

/// Makes a file, and removes the rest of a killed run that had the same process id.
fn anew(draft: &Path) -> io::Result<File> {
    let _ = fs::remove_file(draft);
    File::create_new(draft)
}

/// A name beside a file's, which no other run takes.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let help = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there, or name another place"
        }
        io::ErrorKind::NotFound => "make its directory first, or name another place",
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            "there is a file of that name; name another place"
        }
        io::ErrorKind::IsADirectory => "name a file in it",
        _ => "name a place where you may write",
    };
    Failure::new(Code::Failure, format!("cannot write {}: {error}", path.display())).help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn all_are_there_or_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("a"), "old").unwrap();
        let mut files = Files::default();
        files.add(&path("a"), |file| file.write_all(b"new")).unwrap();
        let full = |_: &mut dyn Write| Err(io::ErrorKind::StorageFull.into());
        let refused = files.add(&path("b"), full).unwrap_err();
        let refused = serde_json::to_string(&refused.to_json()).unwrap();
        assert!(refused.contains("make room there"), "{refused}");
        drop(files);
        assert_eq!(
            (names(directory.path()), fs::read(path("a")).unwrap()),
            (vec!["a".into()], b"old".to_vec())
        );
        let mut files = Files::default();
        files.add(&path("a"), |file| file.write_all(b"new")).unwrap();
        files.add(&path("b"), |file| file.write_all(b"new")).unwrap();
        assert_eq!(fs::read(path("a")).unwrap(), b"old");
        files.keep().unwrap();
        assert_eq!(
            (names(directory.path()), fs::read(path("a")).unwrap()),
            (vec!["a".into(), "b".into()], b"new".to_vec())
        );
    }

    #[test]
    fn what_a_link_leads_to_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("far"), "old").unwrap();
        std::os::unix::fs::symlink(path("far"), path("link")).unwrap();
        let mut files = Files::default();
        files.add(&path("link"), |file| file.write_all(b"new")).unwrap();
        files.keep().unwrap();
        assert!(path("link").is_symlink());
        assert_eq!(fs::read(path("far")).unwrap(), b"new");
    }
}
