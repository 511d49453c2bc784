//! The tenants' files: written once, read in every set-up, removed at the end.
//!
//! They are really written. Space that is only reserved reads as zeros without a request to the
//! disk, and a disk that compresses or finds duplicates would make light work of a pattern.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::plan::{JOBS, MIB, REGION};
use super::remains::RunFolder;
use super::scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How much is written at a time.
const CHUNK: usize = 4 * MIB as usize;

/// The smallest block that a disk would compare with others.
const UNIT: usize = 4096;

/// The files of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileLayout {
    /// One, of this size.
    One(u64),
    /// A directory with `count` of them, of `bytes` each.
    Shards { count: u64, bytes: u64 },
}

impl FileLayout {
    /// That of fio, whose processes each read a region of one file.
    pub(crate) const FIO: Self = Self::One(JOBS * REGION);

    /// Bytes of all files of a tenant.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::One(bytes) => bytes,
            Self::Shards { count, bytes } => count * bytes,
        }
    }

    /// The space for the files of so many tenants, in MiB.
    pub(crate) const fn needed_mib(self, tenants: usize) -> u64 {
        (tenants as u64 * self.bytes()).div_ceil(MIB)
    }

    /// Each file of the tenant with this path, and its size.
    fn files(self, path: &Path) -> Vec<(PathBuf, u64)> {
        match self {
            Self::One(bytes) => vec![(path.into(), bytes)],
            Self::Shards { count, bytes } => {
                (0..count).map(|number| (path.join(format!("{number:03}.bin")), bytes)).collect()
            }
        }
    }
}

/// The files of each tenant, in a directory of their own. Dropping them removes all of it.
#[derive(Debug)]
pub(crate) struct Files {
    folder: RunFolder,
}

/// The beginning of the names of such directories.
const PREFIX: &str = "tidegate-files-";

/// The option that names the directory of the files.
const OPTION: &str = "--directory DIR";

impl Files {
    /// Writes the files of each of `names` in a new directory below `parent`.
    pub(crate) fn write(
        parent: &Path,
        names: &[&str],
        layout: FileLayout,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let needed = layout.needed_mib(names.len());
        scratch::check_space(parent, needed, OPTION)?;
        let fail = |error: io::Error| {
            let path = parent.display();
            Failure::new(Code::Failure, format!("cannot write test files in {path}"))
                .cause(error)
                .help(scratch::remedy(needed, OPTION))
        };
        let files = Self { folder: RunFolder::make(parent, PREFIX, 0o777).map_err(fail)? };
        let mut noise = Noise::new();
        for (path, bytes) in names.iter().flat_map(|name| layout.files(&files.path(name))) {
            let directory = path.parent().unwrap_or(files.folder.path());
            fs::create_dir_all(directory).map_err(fail)?;
            let mut file = File::create_new(&path).map_err(fail)?;
            let mut left = bytes;
            while left > 0 {
                interrupt.check()?;
                let length = left.min(CHUNK as u64);
                file.write_all(&noise.chunk()[..length as usize]).map_err(fail)?;
                left -= length;
            }
            file.sync_all().map_err(fail)?;
        }
        Ok(files)
    }

    /// Removes the files of runs that were killed, and returns their directories.
    pub(crate) fn remove_remains(parent: &Path) -> Vec<PathBuf> {
        RunFolder::remains(parent, PREFIX).map(|folder| folder.path().to_owned()).collect()
    }

    /// The file, or the directory of shards, of the tenant with this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Bytes without a pattern, of which no two blocks are the same.
struct Noise {
    bytes: Vec<u8>,
    blocks: u64,
}

impl Noise {
    fn new() -> Self {
        // xorshift64*; making every byte anew would take longer than writing it.
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let mut bytes = Vec::with_capacity(CHUNK);
        while bytes.len() < CHUNK {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            bytes.extend_from_slice(&state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
        }
        Self { bytes, blocks: 0 }
    }

    fn chunk(&mut self) -> &[u8] {
        for block in self.bytes.chunks_exact_mut(UNIT) {
            self.blocks += 1;
            block[..8].copy_from_slice(&self.blocks.to_le_bytes());
        }
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn noise_has_no_pattern_and_no_block_twice() {
        let mut noise = Noise::new();
        let mut seen = BTreeSet::new();
        for _ in 0..2 {
            for block in noise.chunk().chunks_exact(UNIT) {
                assert!(seen.insert(block.to_vec()), "a block came twice");
            }
        }
        let mut counts = [0u32; 256];
        noise.chunk().iter().for_each(|byte| counts[usize::from(*byte)] += 1);
        let expected = CHUNK as u32 / 256;
        // Zero comes more often, in the stamps.
        let is_fair = |count: &u32| count.abs_diff(expected) < expected / 10;
        assert!(counts[1..].iter().all(is_fair), "{counts:?}");
    }

    #[test]
    fn shards_have_their_sizes() {
        let parent = tempfile::tempdir().unwrap();
        let layout = FileLayout::Shards { count: 2, bytes: CHUNK as u64 + 1 };
        assert_eq!((layout.bytes(), layout.needed_mib(2)), (2 * CHUNK as u64 + 2, 17));
        let files = Files::write(parent.path(), &["a", "b"], layout, &Interrupt::default());
        let files = files.unwrap();
        for shard in ["a/000.bin", "a/001.bin", "b/000.bin", "b/001.bin"] {
            assert_eq!(fs::metadata(files.path(shard)).unwrap().len(), CHUNK as u64 + 1);
        }
        assert_eq!(fs::read_dir(files.path("b")).unwrap().count(), 2);
    }

    #[test]
    fn files_are_gone_when_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let (no, one) = (parent.path().join("no"), FileLayout::One(1));
        let missing = Files::write(&no, &["a"], one, &Interrupt::default());
        assert!(missing.unwrap_err().to_string().contains("cannot write test files"));
        let write = || Files::write(parent.path(), &["a"], one, &Interrupt::default()).unwrap();
        let files = write();
        let directory = files.folder.path().to_owned();
        assert!(Files::remove_remains(parent.path()).is_empty(), "this run goes on");
        drop(files);
        assert!(!directory.exists());
        // As a killed run leaves them.
        let left = parent.path().join(format!("{PREFIX}1"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join("a"), "content").unwrap();
        let mine = write();
        assert_eq!(Files::remove_remains(parent.path()), vec![left.clone()]);
        assert!(!left.exists() && mine.path("a").exists());
    }
}
