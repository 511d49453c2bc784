//! Incarnations: numbers that change when acknowledged writes may have been lost.
//!
//! Written data that were not flushed survive the node as long as the kernel holds them. They do
//! not survive a reboot, an unmount, or a failed write-back. So a file's incarnation consists of
//! the boot, the mount, the number of failures and, for a regular file, its identity: a file
//! restored from a backup lacks later writes. The incarnation of memory is new in each process.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io;

use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

/// The unique number of a mount, which no later mount gets (since Linux 6.8).
const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The attributes of a file that are requested from the kernel.
const STATX_MASK: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID).union(StatxFlags::BTIME);

/// An incarnation that no other process and no other part has.
pub(super) fn of_memory() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

/// That of a file or device after so many failed syncs.
///
/// # Errors
/// If the system does not report where the file is mounted.
pub(super) fn of_file(file: &File, error_count: u64) -> io::Result<u64> {
    let boot = fs::read("/proc/sys/kernel/random/boot_id")?;
    let found = match statx(file, c"", AtFlags::EMPTY_PATH, STATX_MASK.union(MNT_ID_UNIQUE)) {
        Ok(found) => found,
        // Systems before 6.8 ignore the flag, or refuse it.
        Err(_) => statx(file, c"", AtFlags::EMPTY_PATH, STATX_MASK)?,
    };
    let device = device_number(found.stx_dev_major, found.stx_dev_minor);
    // The number of a file that was removed is given to another one; its time of birth is not.
    let birth = [found.stx_btime.tv_sec as u64, found.stx_btime.tv_nsec.into()];
    let [inode, seconds, nanoseconds] =
        match FileType::from_raw_mode(found.stx_mode.into()).is_file() {
            true => [found.stx_ino, birth[0], birth[1]],
            // A device's node is made anew at any time.
            false => [0; 3],
        };
    let numbers = [found.stx_mnt_id, device, error_count, inode, seconds, nanoseconds];
    Ok(hash(boot.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes))))
}

fn device_number(major: u32, minor: u32) -> u64 {
    u64::from(major) << 32 | u64::from(minor)
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
    fn the_numbers_are_the_same_in_every_release() {
        // The test vectors of FNV-1a's authors.
        for (text, sum) in [
            ("", 0xcbf2_9ce4_8422_2325),
            ("a", 0xaf63_dc4c_8601_ec8c),
            ("foobar", 0x8594_4171_f739_67e8),
        ] {
            assert_eq!(hash(text.bytes()), sum, "{text:?}");
        }
        assert_eq!(device_number(8, 0x11), 0x0000_0008_0000_0011);
    }

    #[test]
    fn a_file_keeps_its_incarnation_until_a_sync_fails_and_memory_never_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("part");
        let file = File::create(&path).unwrap();
        let first = of_file(&file, 0).unwrap();
        assert_eq!(of_file(&File::open(&path).unwrap(), 0).unwrap(), first);
        assert_ne!(of_file(&file, 1).unwrap(), first);
        fs::remove_file(&path).unwrap();
        drop(file);
        let restored = File::create(&path).unwrap();
        assert_ne!(of_file(&restored, 0).unwrap(), first, "another file lacks what was written");
        assert_ne!(of_memory(), of_memory());
    }
}
