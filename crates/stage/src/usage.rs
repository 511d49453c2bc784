//! Processes of a segment, as `/proc` names them.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;

/// A file as `/proc/PID/maps` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    major: u32,
    minor: u32,
    inode: u64,
}

impl Identity {
    /// The identity of an open file.
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let status = rustix::fs::fstat(file)?;
        let (major, minor) = (rustix::fs::major(status.st_dev), rustix::fs::minor(status.st_dev));
        Ok(Self { major, minor, inode: status.st_ino })
    }

    /// Whether a process maps the file; none if this user may not find out.
    pub(crate) fn is_mapped_by(self, pid: u32) -> Option<bool> {
        let maps = std::fs::read(Path::new("/proc").join(pid.to_string()).join("maps"));
        match maps {
            Ok(maps) => Some(self.is_in(&maps)),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
            Err(_) => Some(false),
        }
    }

    /// Whether the file is in a list of mappings: lines of addresses, rights, offset, device, inode
    /// and name.
    fn is_in(self, maps: &[u8]) -> bool {
        let wanted = format!(" {:02x}:{:02x} {} ", self.major, self.minor, self.inode);
        // The name is behind it, and may hold anything; the fields before it hold no colon.
        maps.split(|byte| *byte == b'\n').any(|line| {
            let fields = line.get(..line.len().min(100)).unwrap_or_default();
            let colon = fields.iter().position(|byte| *byte == b':');
            colon.is_some_and(|colon| {
                let start = fields[..colon].iter().rposition(|byte| *byte == b' ').unwrap_or(0);
                fields[start..].starts_with(wanted.as_bytes())
            })
        })
    }
}

/// Whether a process with this number exists.
pub(crate) fn is_alive(pid: u32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid as i32) else { return false };
    // No permission to signal it still means that it is there.
    !matches!(rustix::process::test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_among_mappings() {
        let identity = Identity { major: 0, minor: 0x19, inode: 42 };
        let line = "7f00-7f01 rw-s 00000000 00:19 42                 /dev/shm/x\n";
        assert!(identity.is_in(line.as_bytes()));
        assert!(!identity.is_in(line.replace("42", "421").as_bytes()));
        assert!(!identity.is_in(line.replace("00:19", "00:1a").as_bytes()));
        assert!(!identity.is_in(b"7f00-7f01 rw-s 00000000 00:20 7   /a 00:19 42 \n"));
    }
}
