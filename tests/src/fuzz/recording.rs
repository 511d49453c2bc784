//! Recordings: any line is read or refused, a line that is read is written as it was, and the load
//! that is made of them makes sense to the twin.

use tidegate_proto::recording::{LINE_MAX, Parser, RecordingLine};
use tidegate_sim::twin::RecordedLoad;

/// The input is a recording.
pub fn run(bytes: &[u8]) {
    let (mut parser, mut requests) = (Parser::default(), 0);
    let mut is_wrong = false;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        // A last line without its end counts for nothing, unless it is the only one.
        let Some(line) = line.strip_suffix(b"\n") else { break };
        match parser.line(line) {
            Ok(read) => {
                assert_eq!(read.to_string().as_bytes(), line, "another line is written");
                requests += usize::from(matches!(read, RecordingLine::Request(_)));
            }
            Err(error) => {
                assert!(error.to_string().len() < 600, "{error}");
                is_wrong = true;
                break;
            }
        }
    }
    match RecordedLoad::read(bytes) {
        Ok(load) => {
            assert!(!is_wrong, "a wrong line was read");
            assert_eq!((load.len(), load.is_cut_off), (requests, !parser.has_ended()));
            let report = load.report();
            let all: u64 = report.tenants.iter().map(|tenant| tenant.figures.requests).sum();
            assert_eq!(all, requests as u64);
        }
        Err(error) => assert!(is_wrong || requests == 0 || bytes.len() > LINE_MAX, "{error}"),
    }
}

/// Recordings with all kinds of lines.
pub fn seeds() -> Vec<Vec<u8>> {
    let lines = [
        "tidegate recording 1",
        "tenant 0 oltp",
        "tenant 1 \"\"",
        "connection 0 front db oltp",
        "connection 1 side db \"\"",
        "0 250000 0 0 read 4096 65536",
        "0 250000 0 0 write 131072 0",
        "260000 250000 0 0 read 4096 0",
        "510000 9 1 1 sync 0 0",
        "end 30000000000 2 1",
        "",
    ];
    vec![lines.join("\n").into_bytes(), lines[..7].join("\n").into_bytes()]
}

/// Words of the format.
pub const WORDS: &[&str] = &[
    "tidegate recording 1\n",
    "tenant ",
    "connection ",
    "end ",
    " read ",
    " write ",
    " sync ",
    "18446744073709551615",
    "4294967295",
    "8640000000000000",
    "33554432",
    "65536",
    "\"\"",
    " 0 0 ",
    "\n",
    " ",
    "0",
    "-1",
    "\u{e9}",
];
