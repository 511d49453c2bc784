//! The tenants' files: written once, read in every set-up, removed at the end.
//!
//! They are really written. Space that is only reserved reads as zeros without a request to the
//! disk, and a disk that compresses or finds duplicates would make light work of a pattern.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::plan::{JOBS, MIB, REGION};
use super::scratch;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;

/// How much is written at a time.
const CHUNK: usize = 4 * MIB as usize;

/// The smallest block that a disk would compare with others.
const UNIT: usize = 4096;

/// A file for each tenant, in a directory of their own. Dropping them removes all of it.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
}

/// The option that names the directory of the files.
const OPTION: &str = "--directory DIR";

/// The room for the files of so many tenants, in MiB.
pub(crate) fn needed_mib(tenants: usize) -> u64 {
    tenants as u64 * JOBS * REGION / MIB
}

impl Files {
    /// Writes a file for each of `names` in a new directory below `parent`.
    pub(crate) fn write(
        parent: &Path,
        names: &[&str],
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        let needed = needed_mib(names.len());
        scratch::check_space(parent, needed, OPTION)?;
        let fail = |error: io::Error| {
            let path = parent.display();
            Failure::new(Code::Failure, format!("cannot write test files in {path}"))
                .cause(error)
                .help(scratch::remedy(needed, OPTION))
        };
        let directory = parent.join(format!("tidegate-demo-{}", std::process::id()));
        fs::create_dir(&directory).map_err(fail)?;
        let files = Self { directory };
        let mut noise = Noise::new();
        for name in names {
            let mut file = File::create_new(files.path(name)).map_err(fail)?;
            for _ in 0..JOBS * REGION / CHUNK as u64 {
                interrupt.check()?;
                file.write_all(noise.chunk()).map_err(fail)?;
            }
            file.sync_all().map_err(fail)?;
        }
        Ok(files)
    }

    /// The file of the tenant with this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // If another process has removed the files already, nothing is left to do.
        let _ = fs::remove_dir_all(&self.directory);
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
    fn files_are_gone_when_dropped() {
        let parent = tempfile::tempdir().unwrap();
        let missing = Files::write(&parent.path().join("no"), &["a"], &Interrupt::default());
        assert!(missing.unwrap_err().to_string().contains("cannot write test files"));
        let directory = parent.path().join("here");
        fs::create_dir(&directory).unwrap();
        drop(Files { directory: directory.clone() });
        assert!(!directory.exists());
    }
}
