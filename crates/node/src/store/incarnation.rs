//! Incarnations: numbers that change when acknowledged writes may have been lost.
//!
//! What was written and not flushed survives the node where it is in the kernel's hands, and does
//! not survive a reboot, an unmount, or a failed write-back. So a file's incarnation is made of the
//! boot, the mount and the number of failures; that of memory is new in each process.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io;

use rustix::fs::{AtFlags, StatxFlags, statx};

/// The unique number of a mount, which no later mount gets (since Linux 6.8).
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// One that no other process has, nor any other part.
pub(super) fn of_memory() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

/// That of a file or device after so many failed syncs.
///
/// # Errors
/// If the system does not say where the file is mounted.
pub(super) fn of_file(file: &File, error_count: u64) -> io::Result<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
    let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = match statx(file, c"", AtFlags::EMPTY_PATH, flags | MNT_ID_UNIQUE) {
        Ok(found) => found,
        // Systems before 6.8 ignore the flag, or refuse it.
        Err(_) => statx(file, c"", AtFlags::EMPTY_PATH, flags)?,
    };
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    let numbers = [found.stx_mnt_id, device, error_count];
    Ok(hash(boot.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes))))
}

/// FNV-1a, which has to be the same in every release.
fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    let step = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails says where")]

    use super::*;

    #[test]
    fn a_file_keeps_its_incarnation_until_a_sync_fails_and_memory_never_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let file = File::create(&path).unwrap();
        let first = of_file(&file, 0).unwrap();
        assert_eq!(of_file(&File::open(&path).unwrap(), 0).unwrap(), first);
        assert_ne!(of_file(&file, 1).unwrap(), first);
        assert_ne!(of_memory(), of_memory());
    }
}
