//! Whether files are those of the system's packages, byte for byte.
//!
//! dpkg keeps the MD5 sum of each file of each package. These sums are no protection against an
//! enemy, and they do notice a changed line.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_console::failure::Failure;

use super::child;

/// Where dpkg keeps the sums, a file for each package.
const SUMS: &str = "/var/lib/dpkg/info";

/// The ending of these files.
const ENDING: &str = "md5sums";

/// Where a file is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileSource {
    /// It is the file of this package.
    Package(String),
    /// This package has another file of that name.
    Changed(String),
    /// No package has a file of that name.
    Unknown,
}

/// Where each of these files is from.
///
/// # Errors
/// If sums cannot be computed.
pub(super) fn sources(files: &[PathBuf]) -> Result<BTreeMap<PathBuf, FileSource>, Failure> {
    let known = recorded(Path::new(SUMS), files).unwrap_or_default();
    let source = |file: &PathBuf| {
        let source = match known.get(file) {
            None => FileSource::Unknown,
            Some((package, sum)) if sum_of(file)? == *sum => FileSource::Package(package.clone()),
            Some((package, _)) => FileSource::Changed(package.clone()),
        };
        Ok::<_, Failure>((file.clone(), source))
    };
    files.iter().map(source).collect()
}

/// The package and the sum that `folder` has for each of these files.
fn recorded(folder: &Path, files: &[PathBuf]) -> io::Result<BTreeMap<PathBuf, (String, String)>> {
    let wanted: BTreeMap<String, &PathBuf> =
        files.iter().map(|file| (key(&file.to_string_lossy()).to_owned(), file)).collect();
    let mut known = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != ENDING) {
            continue;
        }
        let package = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        for (sum, name) in text.lines().filter_map(|line| line.split_once("  ")) {
            if let Some(file) = wanted.get(key(name)) {
                known.insert((*file).clone(), (package.clone(), sum.to_owned()));
            }
        }
    }
    Ok(known)
}

/// The name by which a file is found. Folders of the root are links to those of `usr` by now, and
/// packages still name either.
fn key(path: &str) -> &str {
    let path = path.trim_start_matches('/');
    path.strip_prefix("usr/").unwrap_or(path)
}

fn sum_of(file: &Path) -> Result<String, Failure> {
    let output = child::output(
        Command::new("md5sum").arg("--").arg(file),
        "cannot compute the sum of a file",
    )?;
    let text = String::from_utf8_lossy(&output);
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_the_sums_of_packages_by_either_name() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("one.md5sums", "aa  usr/bin/a program\nbb  lib/b.so\n");
        write("two:amd64.md5sums", "cc  usr/lib/c.so\n");
        write("three.list", "dd  usr/lib/d.so\n");
        let files = ["/usr/bin/a program", "/usr/lib/b.so", "/lib/c.so", "/usr/lib/d.so"];
        let files = files.map(PathBuf::from);
        let known = recorded(folder.path(), &files).unwrap();
        let of = |at: usize| known.get(&files[at]).map(|(package, sum)| (&**package, &**sum));
        assert_eq!((of(0), of(1)), (Some(("one", "aa")), Some(("one", "bb"))));
        assert_eq!((of(2), of(3)), (Some(("two:amd64", "cc")), None));
    }

    #[test]
    fn one_changed_byte_changes_the_sum() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "abc").unwrap();
        assert_eq!(sum_of(&file).unwrap(), "900150983cd24fb0d6963f7d28e17f72");
        fs::write(&file, "abd").unwrap();
        assert_ne!(sum_of(&file).unwrap(), "900150983cd24fb0d6963f7d28e17f72");
        assert!(sum_of(&folder.path().join("missing")).is_err());
    }
}
