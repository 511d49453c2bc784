//! Private memory that a device reads and writes: a client's buffers, and a word for each operation
//! on words that is under way.
//!
//! No reference to what a device may be writing exists at any time: bytes are borrowed only when no
//! operation on them is under way, for which the caller is responsible.
//!
//! A process that forks keeps these pages, and its child has copies: Linux does that since 5.12.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::RdmaError;
use super::device::{RdmaDevice, Registration};

/// Memory of our own, zero at first, registered with a device.
#[derive(Debug)]
pub(super) struct Pinned {
    // Taken down before the mapping is.
    registration: Registration,
    mapping: Mapping,
}

#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: nothing of a mapping belongs to a thread.
unsafe impl Send for Mapping {}

impl Pinned {
    /// So many bytes, at least one.
    pub(super) fn new(device: &Arc<RdmaDevice>, length: usize) -> Result<Self, RdmaError> {
        let mapping = Mapping::new(length)
            .map_err(|errno| RdmaError::Memory { bytes: length, errno: errno.raw_os_error() })?;
        let all = std::ptr::slice_from_raw_parts_mut(mapping.address.as_ptr(), length);
        // SAFETY: it is mapped until after the registration is dropped, and the head of this file
        // says how references are kept off.
        let registration = unsafe { Registration::new(device, all, false)? };
        Ok(Self { registration, mapping })
    }

    /// The key by which the device finds it.
    pub(super) fn key(&self) -> u32 {
        self.registration.local_key()
    }

    /// Where a byte is.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.mapping.length, "beyond the memory");
        // SAFETY: inside the mapping, so its length fits an `isize`.
        unsafe { self.mapping.address.add(offset) }
    }
}

impl Mapping {
    fn new(length: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping where the kernel likes.
        let address = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut::<c_void>(), length, protection, flags)?
        };
        let address = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { address, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no longer registered. That it may fail does not
        // matter: the mapping then stays until the process ends.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) };
    }
}
