//! The operations on files that make labels and volumes.
//!
//! They are few and behind a trait, so that a test can record them and check what a crash between
//! any two of them leaves. Data take another path.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{
    CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom, XattrFlags, fallocate, fgetxattr,
    fsetxattr, renameat_with, seek,
};
use rustix::io::Errno;
use tidegate_fabric::trusted;
use tidegate_model::cluster::Uuid;

/// Where the mark of a part (its volume's UUID and its index) is stored with its data, where the
/// file system has attributes.
const UUID_ATTRIBUTE: &str = "user.tidegate.uuid";

/// Files and the operations on them. Nothing is durable before it is synced: bytes and lengths by
/// [`Self::sync`], names by [`Self::sync_folder`].
pub(crate) trait Disk: Send + Sync {
    /// The length of a file or device.
    fn length(&self, path: &Path) -> io::Result<u64>;
    /// Fills `bytes`; what lies beyond the end of the file stays zero.
    fn read(&self, path: &Path, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Makes an empty file that only its owner reads and writes, and replaces an existing one.
    fn create(&self, path: &Path) -> io::Result<()>;
    /// Writes to an existing file.
    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file longer, and takes the space at once if it is to be reserved.
    fn grow(&self, path: &Path, length: u64, reserve: bool) -> io::Result<()>;
    /// Makes a file's bytes, length and attributes durable.
    fn sync(&self, path: &Path) -> io::Result<()>;
    /// Renames a file to an unused name in its folder.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
    /// The UUID that a file is marked with.
    fn mark(&self, path: &Path) -> io::Result<Option<Uuid>>;
    /// Marks a file with a UUID. False where the file system has no attributes.
    fn set_mark(&self, path: &Path, uuid: Uuid) -> io::Result<bool>;
}

/// The disks of this machine.
#[derive(Debug)]
pub(crate) struct LocalDisks;

impl Disk for LocalDisks {
    fn length(&self, path: &Path) -> io::Result<u64> {
        Ok(seek(opened(path, false)?, SeekFrom::End(0))?)
    }

    fn read(&self, path: &Path, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        let file = opened(path, false)?;
        while !bytes.is_empty() {
            match file.read_at(bytes, offset) {
                Ok(0) => return Ok(()),
                Ok(count) => (bytes, offset) = (&mut bytes[count..], offset + count as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(())
    }

    fn write(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        opened(path, true)?.write_all_at(bytes, offset)
    }

    fn grow(&self, path: &Path, length: u64, reserve: bool) -> io::Result<()> {
        let file = opened(path, true)?;
        if length > file.metadata()?.len() {
            file.set_len(length)?;
        }
        if reserve && length > 0 {
            fallocate(&file, FallocateFlags::empty(), 0, length)?;
        }
        Ok(())
    }

    fn sync(&self, path: &Path) -> io::Result<()> {
        opened(path, true)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn mark(&self, path: &Path) -> io::Result<Option<Uuid>> {
        let mut bytes = [0; 16];
        match fgetxattr(opened(path, false)?, UUID_ATTRIBUTE, &mut bytes) {
            Ok(16) => Ok(Some(Uuid(bytes))),
            // Another file system object has that name, which is no volume's.
            Ok(_) | Err(Errno::RANGE) => Ok(Some(Uuid::default())),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn set_mark(&self, path: &Path, uuid: Uuid) -> io::Result<bool> {
        match fsetxattr(opened(path, true)?, UUID_ATTRIBUTE, &uuid.0, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSPC) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A file or device that is there, no link, and that only its owner can change. A pipe is not
/// waited for.
pub(crate) fn opened(path: &Path, is_written: bool) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options.read(true).write(is_written).custom_flags(flags.bits() as i32);
    let file = match options.open(path) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(link(path)),
        opened => opened?,
    };
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::Error::other("it is neither a file nor a block device"));
    }
    trusted::examine_volume_file(&file, path)?;
    // From here on it is an ordinary descriptor, also for io_uring.
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// A symbolic link in place of a part. Its target could change while the node runs.
fn link(path: &Path) -> io::Error {
    let target = std::fs::read_link(path).unwrap_or_default();
    // A relative target counts from the folder of the link.
    let target = path.parent().unwrap_or(Path::new("/")).join(target);
    let (path, target) = (path.display(), target.display());
    io::Error::other(format!(
        "{path} is a symbolic link to {target}, and nodes follow no links to their data; move the \
         file itself there (mv -T {target} {path}), or name {target} in the cluster file if it is \
         the node's device"
    ))
}
