//! The readers of recordings: any bytes are read or refused line by line, the same in whatever
//! pieces they come, and what is read is in order and lies within the storage that there can be.

use std::io::BufReader;
use std::path::Path;

use tidegate_sim::trace::{Format, Reader, Record, Summary, TraceError, TraceProblem};

/// Records that are held back.
const WINDOW: usize = 4;

/// The input is a recording in the format of MSR Cambridge.
pub fn msr(bytes: &[u8]) {
    run(bytes, Format::Msr);
}

/// The input is one of SYSTOR 2017.
pub fn systor(bytes: &[u8]) {
    run(bytes, Format::Systor);
}

/// The input is one of MQSim, or of DiskSim.
pub fn ascii(bytes: &[u8]) {
    run(bytes, Format::Mqsim);
    run(bytes, Format::Disksim);
}

/// The input is a log of fio.
pub fn fio(bytes: &[u8]) {
    run(bytes, Format::Fio);
}

/// Everything that is read, and how many lines had no request.
#[derive(Debug, PartialEq)]
struct Read {
    records: Vec<Record>,
    errors: Vec<TraceError>,
    skipped: u64,
}

fn read(
    bytes: &[u8],
    chunk: usize,
    change: impl Fn(ChunkedReader<'_>) -> ChunkedReader<'_>,
) -> Read {
    let mut reader = change(Reader::new(BufReader::with_capacity(chunk, bytes)));
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    for read in reader.by_ref() {
        match read {
            Ok(record) => records.push(record),
            Err(error) => errors.push(error),
        }
    }
    Read { records, errors, skipped: reader.skipped() }
}

type ChunkedReader<'a> = Reader<BufReader<&'a [u8]>>;

fn run(bytes: &[u8], format: Format) {
    let narrow = read(bytes, 1 << 13, |reader| reader.of(format).window(WINDOW));
    let again = read(bytes, 1, |reader| reader.of(format).window(WINDOW));
    assert_eq!(narrow, again, "the pieces show");
    check(&narrow, bytes);
    let wide = read(bytes, 1 << 13, |reader| reader.of(format).window(usize::MAX));
    check(&wide, bytes);
    let late = |error: &TraceError| matches!(error.problem, TraceProblem::Late { .. });
    assert!(!wide.errors.iter().any(late), "late, though everything is held back");
    if !narrow.errors.iter().any(late) {
        assert_eq!(narrow.records, wide.records, "the window shows");
    }
    let mut found = Reader::new(bytes);
    _ = found.by_ref().count();
    if let Some(format) = found.format() {
        let bare = read(bytes, 1 << 13, |reader| reader);
        assert_eq!(bare, read(bytes, 1 << 13, |reader| reader.of(format)), "naming it shows");
    }
}

fn check(read: &Read, bytes: &[u8]) {
    let line_ends = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
    let lines = line_ends + u64::from(!bytes.is_empty() && bytes.last() != Some(&b'\n'));
    let all = read.records.len() as u64 + read.errors.len() as u64 + read.skipped;
    let ended = read.errors.iter().any(|it| matches!(it.problem, TraceProblem::Unknown { .. }));
    assert!(if ended { all <= lines } else { all == lines }, "{all} of {lines} lines");
    for error in &read.errors {
        assert!((1..=lines).contains(&error.line), "{error}");
        assert!(error.to_string().len() < 400, "{error}");
    }
    let mut summary = Summary::default();
    for record in &read.records {
        assert!(record.bytes.0 > 0 && record.offset.0.checked_add(record.bytes.0).is_some());
        summary.add(record);
    }
    assert!(read.records.is_sorted_by_key(|record| record.at), "out of order");
    assert!(read.records.first().is_none_or(|record| record.at.0 == 0), "not from the first");
    assert!(!summary.table().is_empty());
}

/// The recordings of this repository with this beginning.
fn recordings(beginning: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/traces");
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let named = |path: &Path, line_ends: &str| {
        let name = path.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.starts_with(beginning) && !name.ends_with(line_ends))
    };
    paths.retain(|path| named(path, ".golden"));
    paths.iter().filter_map(|path| std::fs::read(path).ok()).collect()
}

/// Recordings of MSR Cambridge.
pub fn msr_seeds() -> Vec<Vec<u8>> {
    recordings("msr")
}

/// Recordings of SYSTOR.
pub fn systor_seeds() -> Vec<Vec<u8>> {
    recordings("systor")
}

/// Recordings of MQSim and DiskSim.
pub fn ascii_seeds() -> Vec<Vec<u8>> {
    [recordings("mqsim"), recordings("disksim")].concat()
}

/// Logs of fio.
pub fn fio_seeds() -> Vec<Vec<u8>> {
    recordings("fio")
}

/// Words of all formats.
pub const WORDS: &[&str] = &[
    "Timestamp,",
    "fio version 2 iolog\n",
    "fio version 3 iolog\n",
    ",hm,1,Read,",
    ",Write,",
    ",R,",
    ",W,",
    ",,",
    " /a read ",
    " /b write ",
    " add\n",
    " wait ",
    " datasync 0 0\n",
    "128166372003061629",
    "1455592740.086032000",
    "18446744073709551615",
    "36028797018963967",
    "0.000000001",
    "99999999999.0",
    " 0 8 1\n",
    " 1001\n",
    " fe\n",
    "\r\n",
    "\n",
    ",",
    " ",
    ".",
    "0",
    "-1",
    "+1",
    "\u{e9}",
];
