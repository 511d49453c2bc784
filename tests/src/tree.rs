//! Folders compared: what is in them, to the byte.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// One line for every file below `folder`: its name, kind, mode, length and a hash of its content.
/// Times are left out. `ignore` says which names, relative to the folder, are left out as well.
///
/// # Panics
/// If something cannot be read.
pub fn listing(folder: &Path, ignore: &dyn Fn(&str) -> bool) -> String {
    let mut lines = Vec::new();
    walk(folder, "", ignore, &mut lines);
    lines.sort();
    lines.concat()
}

fn walk(root: &Path, folder: &str, ignore: &dyn Fn(&str) -> bool, lines: &mut Vec<String>) {
    let entries = fs::read_dir(root.join(folder));
    for entry in entries.unwrap_or_else(|error| panic!("cannot list {folder}: {error}")) {
        let entry = entry.expect("an entry can be read");
        let name = entry.file_name().to_string_lossy().into_owned();
        let name = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if ignore(&name) {
            continue;
        }
        let path = entry.path();
        let found = fs::symlink_metadata(&path).expect("a file can be looked at");
        let kind = found.file_type();
        let what = if kind.is_dir() {
            walk(root, &name, ignore, lines);
            "folder".to_owned()
        } else if kind.is_symlink() {
            format!("link to {}", fs::read_link(&path).expect("a link can be read").display())
        } else if kind.is_file() {
            format!("{} bytes {:016x}", found.len(), hash(&path))
        } else {
            format!("special {}", kind.is_fifo())
        };
        lines.push(format!("{name} {:o} {what}\n", found.mode()));
    }
}

/// FNV-1a: not for adversaries, only to tell files apart.
fn hash(path: &Path) -> u64 {
    let mut file = fs::File::open(path)
        .unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
    let mut buffer = vec![0; 1 << 16];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    loop {
        let count = file.read(&mut buffer).expect("a file can be read");
        if count == 0 {
            return hash;
        }
        // Eight bytes at a time: a test build is slow, and files are some megabytes.
        for chunk in buffer[..count].chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
