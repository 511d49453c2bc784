//! Where cargo put what is tested.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use std::time::SystemTime;

/// How to build what is missing or old.
const BUILD: &str = "cargo test does not build it; run `cargo build --workspace` first, or \
                     scripts/test.sh, which does";

/// The folder of this profile's programs: `target/debug` for a plain `cargo test`.
fn folder() -> PathBuf {
    // The test binary is in `deps`, an example in `examples`.
    let here = std::env::current_exe().expect("a program knows where it is");
    let folder = here.parent().and_then(Path::parent);
    folder.expect("cargo puts tests two folders below its target folder").to_path_buf()
}

fn built(name: &str) -> PathBuf {
    let path = folder().join(name);
    assert!(path.is_file(), "there is no {}: {BUILD}", path.display());
    static CHECKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if CHECKED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone())
        && let Some(source) = newer_source(&path)
    {
        panic!("{} is older than {}: {BUILD}", path.display(), source.display());
    }
    path
}

/// A source file of a program that was changed or removed after the program was built. Cargo lists
/// the files beside the program, as `make` reads them.
fn newer_source(program: &Path) -> Option<PathBuf> {
    let changed = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
    let built = changed(program).unwrap_or(SystemTime::UNIX_EPOCH);
    let list = fs::read_to_string(program.with_extension("d")).ok()?;
    let list = list.split_once(": ")?.1.replace("\\ ", "\0");
    let sources = list.split_whitespace().map(|path| PathBuf::from(path.replace('\0', " ")));
    let mut sources = sources.filter(|path| path.extension().is_some_and(|kind| kind == "rs"));
    sources.find(|path| changed(path).map_or(true, |changed| changed > built))
}

/// The operator's command.
pub fn tidegate() -> PathBuf {
    built("tidegate")
}

/// The command that simulates and measures.
pub fn tidegate_lab() -> PathBuf {
    built("tidegate-lab")
}

/// The shim.
pub fn shim() -> PathBuf {
    built("libtidegate_preload.so")
}

/// The library for C programs.
pub fn library() -> PathBuf {
    built("libtidegate.so")
}

/// Where scripts/guest.sh puts a kernel and its modules.
///
/// # Panics
/// If the target folder has no name.
pub fn guest_folder() -> PathBuf {
    folder().parent().expect("the target folder has a name").join("guest")
}

/// Where scenarios put their files: beside what cargo builds, or where `TIDEGATE_TEST_DIR` says.
///
/// It has to be on a disk, because files in memory are none of Tidegate's business.
pub fn scratch() -> PathBuf {
    let target = || folder().parent().map(|target| target.join("tmp"));
    let configured = std::env::var_os("TIDEGATE_TEST_DIR").map(PathBuf::from);
    let scratch = configured.or_else(target).expect("the target folder has a name");
    std::fs::create_dir_all(&scratch)
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", scratch.display()));
    static SWEPT: Once = Once::new();
    SWEPT.call_once(|| sweep(&scratch));
    let kind = rustix::fs::statfs(&scratch).map(|found| found.f_type);
    assert!(
        kind.is_ok_and(|kind| kind as u64 != TMPFS),
        "{} is in memory; set TIDEGATE_TEST_DIR to a folder on a disk",
        scratch.display()
    );
    scratch
}

/// Removes what earlier runs left, for somebody to look at or because they were killed. The second
/// part of each folder's name is the process that made it.
fn sweep(scratch: &Path) {
    for entry in std::fs::read_dir(scratch).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.split('-').nth(1).and_then(|pid| pid.parse().ok());
        let is_ours = name.starts_with("bed-") || name.starts_with("programs-");
        if is_ours && owner.is_some_and(|pid| !crate::process::is_alive(pid)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The magic number by which the kernel names a file system in memory.
const TMPFS: u64 = 0x0102_1994;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_older_than_its_source_is_noticed() {
        let folder = scratch().join(format!("programs-{}", std::process::id()));
        let [program, source] = ["program", "a source.rs"].map(|name| folder.join(name));
        fs::create_dir_all(&folder).unwrap();
        fs::write(&source, "").unwrap();
        fs::write(&program, "").unwrap();
        let escaped = source.display().to_string().replace(' ', "\\ ");
        fs::write(folder.join("program.d"), format!("{}: {escaped}\n", program.display())).unwrap();
        assert_eq!(newer_source(&program), None);
        let later = SystemTime::now() + crate::PATIENCE;
        fs::File::open(&source).unwrap().set_modified(later).unwrap();
        assert_eq!(newer_source(&program).as_ref(), Some(&source));
        fs::remove_file(&source).unwrap();
        assert_eq!(newer_source(&program), Some(source));
        fs::remove_dir_all(&folder).unwrap();
    }
}
