//! Which jobs the kernel can do by itself, and which failures mean that writes are lost.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::os::fd::AsRawFd;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::Command;
use tidegate_model::PartNumber;

use super::tests::{directory, job, make, part, sized};
use super::*;
use crate::volumes::PartStore;

const LENGTH: u64 = 1 << 20;

/// A directory and a device with one part each, and where the part begins.
fn media(folder: &std::path::Path) -> Vec<(Box<dyn Medium>, u64, PartNumber)> {
    let path = folder.join("device");
    sized(&path, 3 << 20);
    let on_device = part("v", LENGTH, 65_536);
    make(&PartStore::Device(path.clone(), None), std::slice::from_ref(&on_device));
    let device = DeviceStore::new(&path, None).unwrap();
    let in_directory = part("v", LENGTH, 0);
    let directory = directory(&folder.join("parts"), std::slice::from_ref(&in_directory));
    let numbers = [device.open(&on_device), directory.open(&in_directory)];
    let [first, second] = numbers.map(|opened| opened.unwrap().number);
    vec![(Box::new(device), 65_536, first), (Box::new(directory), 0, second)]
}

#[test]
fn whole_pages_go_past_the_cache_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let media = media(folder.path());
    if !file::Files::open(&folder.path().join("device")).unwrap().is_direct() {
        eprintln!("skipped: this file system does nothing past its cache");
        return;
    }
    for (medium, base, number) in media {
        let transfer = |command, offset, length| {
            let length: u32 = length;
            medium.transfer(&job(number, command, offset, length, Buffer::empty()))
        };
        for (command, is_write, durable) in [
            (Command::Read, false, false),
            (Command::Write { durable: false }, true, false),
            (Command::Write { durable: true }, true, true),
        ] {
            let found = transfer(command, 8192, 4096).unwrap();
            let facts = (found.offset, found.is_write, found.durable);
            assert_eq!(facts, (base + 8192, is_write, durable));
            for (offset, length) in [(8192, 0), (8192, 100), (100, 4096), (LENGTH, 4096)] {
                assert!(transfer(command, offset, length).is_none(), "{offset} {length}");
            }
        }
        for command in [
            Command::Flush,
            Command::Map,
            Command::Discard { durable: false },
            Command::Zero { allocate: true, durable: true },
        ] {
            assert!(transfer(command, 0, 4096).is_none(), "{command:?}");
        }
        assert!(
            medium.transfer(&job(PartNumber(9), Command::Read, 0, 4096, Buffer::empty())).is_none()
        );
    }
}

/// How many pages of a range are in the cache (`cachestat`). None where the kernel is older than
/// 6.5.
#[allow(unsafe_code, reason = "no library has this call")]
fn cached_pages(file: &fs::File, from: u64, length: u64) -> Option<u64> {
    let (range, mut counts) = ([from, length], [0_u64; 5]);
    // SAFETY: the kernel reads two words and writes five, which are there; the descriptor is open.
    let result = unsafe {
        let (range, counts) = (range.as_ptr(), counts.as_mut_ptr());
        libc::syscall(451, file.as_raw_fd(), range, counts, 0)
    };
    (result == 0).then_some(counts[0])
}

/// Where data can go past the cache, none goes through it: beside direct writes, cached ones of
/// other pages of the same folio make the kernel report lost data.
#[test]
fn parts_of_pages_leave_nothing_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("device"), folder.path().join("parts").join("v.0")];
    for ((medium, base, number), path) in media(folder.path()).into_iter().zip(paths) {
        if !file::Files::open(&path).unwrap().is_direct() {
            eprintln!("skipped: this file system does nothing past its cache");
            return;
        }
        let perform = |command, offset, bytes: &[u8], length: u32| {
            let mut job = job(number, command, offset, length, Buffer::from(bytes));
            medium.perform(&mut std::iter::once(&mut job));
            assert_eq!(job.outcome, Ok(()), "{command:?} at {offset}");
            job.buffer.to_vec()
        };
        let mut expected = vec![0; 65_536];
        let file = fs::File::open(&path).unwrap();
        perform(Command::Write { durable: true }, 0, &expected, 65_536);
        if cached_pages(&file, base, 65_536).is_none_or(|count| count > 0) {
            eprintln!("skipped: this file system keeps direct writes in its cache, as tmpfs does");
            return;
        }
        for (byte, at, length) in [(1, 0, 65_536), (2, 100, 3), (3, 4_000, 9_000), (4, 8_191, 1)] {
            expected[at..at + length].fill(byte);
            let written = expected[at..at + length].to_vec();
            perform(Command::Write { durable: true }, at as u64, &written, length as u32);
        }
        for (allocate, at, length) in [(true, 20_000, 10_000), (false, 40_001, 9_000), (true, 7, 1)]
        {
            expected[at..at + length].fill(0);
            let command = Command::Zero { allocate, durable: false };
            perform(command, at as u64, b"", length as u32);
        }
        // Less than a page is left as it is, as a discard may do.
        perform(Command::Discard { durable: false }, 101, b"", 4_000);
        for (at, length) in [(0, 65_536), (1, 65_535), (4_095, 2), (12_999, 1), (3_999, 9_002)] {
            let found = perform(Command::Read, at as u64, b"", length as u32);
            assert!(found == expected[at..at + length], "{length} at {at}");
        }
        assert_eq!(cached_pages(&file, base, 65_536).unwrap_or(0), 0, "{}", path.display());
    }
}

#[test]
fn a_durable_write_that_the_kernel_failed_is_a_lost_one_and_a_full_disk_is_not() {
    let write = |durable| Command::Write { durable };
    let cases = [
        (write(true), libc::EIO, true),
        (write(false), libc::EIO, false),
        (Command::Read, libc::EIO, false),
        (write(true), libc::ENOSPC, false),
        (write(true), libc::EDQUOT, false),
        (write(true), libc::EINVAL, false),
        (Command::Flush, libc::ENOSPC, true),
    ];
    for (command, errno, is_lost) in cases {
        let folder = tempfile::tempdir().unwrap();
        for (medium, _, number) in media(folder.path()) {
            let failed = job(number, command, 0, 4096, Buffer::empty());
            medium.on_failure(&failed, errno);
            let faults = medium.faults();
            assert_eq!(!faults.is_empty(), is_lost, "{command:?} {errno}: {faults:?}");
            medium.on_failure(&job(PartNumber(9), Command::Read, 0, 4096, Buffer::empty()), errno);
            assert_eq!(medium.faults(), faults, "there is no such part");
        }
    }
}

#[test]
fn data_that_were_cut_off_are_refused_and_longer_ones_are_what_a_resize_left() {
    let folder = tempfile::tempdir().unwrap();
    let part = part("v", LENGTH, 0);
    drop(directory(folder.path(), std::slice::from_ref(&part)));
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("v.0")).unwrap();
    let opened = |length: u64| {
        file.set_len(length).unwrap();
        Directory::new(folder.path()).unwrap().open(&part).map(|_| ())
    };
    let error = opened(LENGTH - 1).unwrap_err().to_string();
    assert!(error.contains("part 0 of volume \"v\" lost data"), "{error}");
    opened(LENGTH + 4096).unwrap();
    opened(LENGTH).unwrap();
}
