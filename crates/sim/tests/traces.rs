//! The recordings and workloads under `scenarios/traces/`: each is read, recordings with the errors
//! that were put into them, and compared with what stands beside it.
//!
//! `TIDEGATE_ACCEPT=1 cargo test -p tidegate-sim --test traces` writes that anew.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on is to fail")]

mod folder;

use std::fs;

use folder::Folder;
use tidegate_model::Class;
use tidegate_sim::time::Picoseconds;
use tidegate_sim::trace::{FORMATS, Format, Reader, Record, Summary};
use tidegate_sim::workload::{IoRequest, WorkloadPlan};

const FOLDER: Folder = Folder("traces");

/// Reads a recording, whose format is found out, and compares.
#[track_caller]
fn golden(file: &str, format: Format) {
    let text = fs::read(FOLDER.path(file)).unwrap();
    let mut reader = Reader::new(text.as_slice());
    let mut table =
        format!("{:>16} {:>6} {:>6} {:>14} {:>8}\n", "at ps", "device", "", "offset", "bytes");
    let mut summary = Summary::default();
    for read in reader.by_ref() {
        match read {
            Ok(record) => {
                let Picoseconds(at) = record.at;
                let (operation, device) = (record.operation, record.device);
                let [offset, bytes] = [record.offset, record.bytes].map(|amount| amount.0);
                table += &format!("{at:>16} {device:>6} {operation:>6} {offset:>14} {bytes:>8}\n");
                summary.add(&record);
                let request = record.request(Class::Low);
                assert_eq!((request.at, request.class), (record.at, Class::Low));
            }
            Err(error) => table += &format!("{error}\n"),
        }
    }
    table += &format!("{} lines without a request\n{}", reader.skipped(), summary.table());
    assert_eq!(reader.format(), Some(format));
    let name = file.split('.').next().unwrap();
    FOLDER.golden(name, &format!("{file}, {format}"), &table);
}

#[test]
fn msr() {
    golden("msr.csv", Format::Msr);
}

#[test]
fn systor() {
    golden("systor.csv", Format::Systor);
}

#[test]
fn ascii() {
    golden("mqsim.trace", Format::Mqsim);
    golden("disksim.trace", Format::Disksim);
}

#[test]
fn fio() {
    golden("fio-2.log", Format::Fio);
    golden("fio-3.log", Format::Fio);
}

/// Without its header a recording in fields with commas is the same.
#[test]
fn headers_are_not_needed() {
    for file in ["msr.csv", "systor.csv"] {
        let text = fs::read_to_string(FOLDER.path(file)).unwrap();
        let (_, rest) = text.split_once('\n').unwrap();
        let read = |text: &str| Reader::new(text.as_bytes()).flatten().collect::<Vec<_>>();
        assert_eq!(read(&text), read(rest));
    }
}

/// A fixture for each format, none forgotten.
#[test]
fn every_format_has_a_recording() {
    let entries = fs::read_dir(FOLDER.path("")).unwrap();
    let names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    for (_, name) in FORMATS {
        assert!(names.iter().any(|file| file.starts_with(name)), "{name} is not in {names:?}");
    }
}

/// Synthetic workloads like the published ones: those extracts have 62.6 % reads of 8.5 kB, 51,000
/// in a second, and 99.98 % reads of 15.4 kB, 413 in a second.
#[test]
fn published_workloads() {
    for name in ["tpcc", "web-search", "vdi"] {
        let plan = FOLDER.read(name, WorkloadPlan::parse);
        let mut source = plan.source(1, 0);
        let mut summary = Summary::default();
        while let Some(request) = source.arrival() {
            let IoRequest { at, offset, bytes, operation, class: _ } = request;
            summary.add(&Record { at, device: 0, operation, offset, bytes });
        }
        FOLDER.golden(name, &plan.name, &summary.table());
    }
}
