//! Checks the headroom before memory is allocated: without headroom, the kernel does not refuse, it
//! kills a process.

use std::fs;
use std::io;

use tidegate_model::Bytes;

use super::StartError;

/// Checks that so much memory is available, as far as the kernel reports.
pub(super) fn check(size: Bytes) -> Result<(), StartError> {
    let text_of = |path: &str| fs::read_to_string(path).ok();
    let machine = text_of("/proc/meminfo").and_then(|text| available(&text));
    let file =
        |name: &str| text_of(&format!("{}/{name}", group()?)).map(|text| text.trim().to_owned());
    let of_group = file("memory.max").zip(file("memory.current"));
    let of_group = of_group.and_then(|(most, used)| left(&most, &used));
    match [machine, of_group].into_iter().flatten().min() {
        Some(headroom) if headroom < size => {
            let error = io::Error::other(format!("{headroom} are left"));
            Err(StartError::Memory { size, error })
        }
        _ => Ok(()),
    }
}

/// The folder of this process's control group, if it is one of those that the kernel has now.
fn group() -> Option<String> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("/sys/fs/cgroup{}", path.trim_end_matches('/')))
}

/// The memory that the machine has left, by the kernel's `MemAvailable`.
fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib << 10))
}

/// The memory that a control group has left; none if the group has no bound.
fn left(most: &str, used: &str) -> Option<Bytes> {
    let (most, used): (u64, u64) = (most.parse().ok()?, used.parse().ok()?);
    Some(Bytes(most.saturating_sub(used)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_read() {
        let text = "MemTotal:  8000 kB\nMemAvailable:    4096 kB\nBuffers: 1 kB\n";
        assert_eq!(available(text), Some(Bytes(4 << 20)));
        assert_eq!((available("MemTotal: 8 kB"), left("max", "7")), (None, None));
        assert_eq!(left("100", "70"), Some(Bytes(30)));
        assert!(check(Bytes(4096)).is_ok());
        let error = check(Bytes(u64::MAX)).unwrap_err().to_string();
        assert!(error.contains("of memory cannot be had") && error.contains("are left"), "{error}");
    }
}
