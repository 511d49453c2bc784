//! Which jobs the kernel can do by itself, and which failures mean that writes are lost.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;

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
                assert_eq!(transfer(command, offset, length), None, "{offset} {length}");
            }
        }
        for command in [
            Command::Flush,
            Command::Map,
            Command::Discard { durable: false },
            Command::Zero { allocate: true, durable: true },
        ] {
            assert_eq!(transfer(command, 0, 4096), None, "{command:?}");
        }
        assert!(
            medium.transfer(&job(PartNumber(9), Command::Read, 0, 4096, Buffer::empty())).is_none()
        );
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
