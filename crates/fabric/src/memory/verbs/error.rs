//! Errors of RDMA, each with a remedy.

use std::io;

/// Why a device, a region on it or a connection between two could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RdmaError {
    /// The library could not be opened.
    #[error("no RDMA: libibverbs.so.1 was not found; install libibverbs1 ({reason})")]
    NoLibrary {
        /// The loader's message.
        reason: String,
    },
    /// The library is older than what is needed of it.
    #[error("no RDMA: libibverbs.so.1 lacks a function; install a newer libibverbs1 ({reason})")]
    OldLibrary {
        /// The loader's message, which names the function.
        reason: String,
    },
    /// There is no such device, or none at all.
    #[error("no RDMA: {}", missing(.name.as_deref()))]
    NoDevice {
        /// The requested name, if any.
        name: Option<String>,
    },
    /// No port of the device carries packets.
    #[error("no RDMA: no port of device {device} is active and has an address; see `rdma link`")]
    NoPort {
        /// The device.
        device: String,
    },
    /// The device knows no atomic operations.
    #[error("no RDMA: device {device} has no atomic operations; use another")]
    NoAtomics {
        /// The device.
        device: String,
    },
    /// The device holds fewer operations than asked for.
    #[error("no RDMA: the device holds from 1 to {maximum} operations; ask for as many")]
    Window {
        /// How many at most, from 1.
        maximum: u32,
    },
    /// Memory could not be registered.
    #[error(
        "no RDMA: registering {bytes} bytes with the device: {}; `ulimit -l` has to allow as many",
        io::Error::from_raw_os_error(*.errno)
    )]
    Memory {
        /// How much, in bytes.
        bytes: usize,
        /// The system's error number.
        errno: i32,
    },
    /// A call failed.
    #[error("no RDMA: {what}: {}", io::Error::from_raw_os_error(*.errno))]
    Call {
        /// The failed step.
        what: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// The other side's message makes no sense.
    #[error("no RDMA: malformed answer of the other side; does it run this release?")]
    Peer,
}

impl RdmaError {
    /// A call that failed just now, and left a number behind.
    pub(super) fn call(what: &'static str) -> Self {
        Self::Call { what, errno: last() }
    }

    /// Memory that could not be registered just now.
    pub(super) fn memory(bytes: usize) -> Self {
        Self::Memory { bytes, errno: last() }
    }
}

fn last() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

/// The device that is missing, with the remedy.
fn missing(name: Option<&str>) -> String {
    match name {
        Some(name) => format!("there is no device {name}; `rdma link` lists those that there are"),
        None => {
            "this machine has no device; install ibverbs-providers and load its driver".to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_remedy() {
        let reason = "libibverbs.so.1: cannot open shared object file".to_owned();
        assert_eq!(
            RdmaError::NoLibrary { reason }.to_string(),
            "no RDMA: libibverbs.so.1 was not found; install libibverbs1 \
             (libibverbs.so.1: cannot open shared object file)"
        );
        assert_eq!(
            RdmaError::Memory { bytes: 4096, errno: libc::ENOMEM }.to_string(),
            "no RDMA: registering 4096 bytes with the device: Cannot allocate memory \
             (os error 12); `ulimit -l` has to allow as many"
        );
        assert_eq!(
            RdmaError::NoDevice { name: Some("mlx5_0".to_owned()) }.to_string(),
            "no RDMA: there is no device mlx5_0; `rdma link` lists those that there are"
        );
    }
}
