use alloc::format;
use alloc::string::ToString;

use proptest::prelude::*;

use super::*;

const RECORDING: &str = "\
tidegate recording 1
tenant 0 oltp
tenant 1 \"\"
connection 0 front db oltp
0 8640000000000000 0 1 sync 0 0
1500000 250000 0 0 read 4096 65536
end 30000000000 2 1";

/// Every line, or the error of the first wrong one.
fn read(text: &str) -> Result<Vec<RecordingLine>, String> {
    let mut parser = Parser::default();
    let lines = text.split('\n').map(|line| parser.line(line.as_bytes()));
    lines.map(|line| line.map_err(|error| error.to_string())).collect()
}

#[test]
fn what_is_written_is_what_was_read() {
    let lines = read(RECORDING).unwrap();
    let written: Vec<String> = lines.iter().map(RecordingLine::to_string).collect();
    assert_eq!(written.join("\n"), RECORDING);
    assert_eq!(lines[2], RecordingLine::Tenant(RecordedTenant(1), String::new()));
    assert_eq!(lines[6], RecordingLine::End(End { span_ns: 30_000_000_000, lost: 2, failed: 1 }));
}

#[track_caller]
fn refused(from: &str, to: &str, expected: &str) {
    assert!(RECORDING.contains(from));
    let error = read(&RECORDING.replacen(from, to, 1)).unwrap_err();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn every_error_names_the_line_and_the_fix() {
    refused("tidegate recording 1", "tidegate", "line 1: this is no recording; make one with");
    refused("recording 1", "recording 2", "version \"2\" and not 1; use the release that wrote");
    refused("tenant 0", "tennant 0", "line 2: \"tennant\" begins no line; write tenant, conn");
    refused("tenant 0", "tenant 1", "tenant 1 follows on 0 of them; number them from 0 on");
    refused("0 oltp", "0 ol/tp", "\"ol/tp\" is no name; use 1 to 63 letters");
    refused("db oltp", "db", "line 4: the line has another number of fields than connection NU");
    refused("250000 0 0", "250000 1 0", "line 6: no line introduces connection 1; put its line");
    refused("250000 0 0", "250000 0 2", "no line introduces tenant 2");
    refused("read", "reed", "\"reed\" is no operation; use one of read, write, sync, allocate,");
    refused("4096", "4k", "BYTES is \"4k\"; write a whole number from 0 to 33554432");
    refused("4096", "33554433", "BYTES is \"33554433\"");
    refused("4096", "04096", "BYTES is \"04096\"");
    let late = (SPAN_MAX.0 + 1).to_string();
    refused("1500000 ", &format!("{late} "), "line 6: AT is \"8640000000000001\"; write a whole");
    refused("250000 ", &format!("{late} "), "line 6: LATENCY is");
    refused("end 30000000000", &format!("end {late}"), "line 7: SPAN is");
    refused("2 1", "2 1\n", "line 8: the line follows on the end; take it out");
    refused(" 65536", " 65536 ", "number of fields");
    let long = "x".repeat(LINE_MAX + 1);
    refused("1500000", &long, "line 6: the line has more than 512 bytes");
    let mut parser = Parser::default();
    assert!(parser.line(b"tidegate recording 1").is_ok());
    let error = parser.line(b"tenant 0 \xff").unwrap_err();
    assert_eq!(error.problem, RecordingProblem::NoText);
}

#[test]
fn a_recording_without_its_end_is_cut_off() {
    let mut parser = Parser::default();
    for line in RECORDING.split('\n') {
        assert!(!parser.has_ended());
        parser.line(line.as_bytes()).unwrap();
    }
    assert!(parser.has_ended());
}

proptest! {
    #[test]
    fn any_request_is_read_as_it_was_written(
        (at_ns, latency_ns) in (0..=SPAN_MAX.0, 0..=SPAN_MAX.0),
        (connection, tenant, operation) in (0u32..3, 0u16..3, 0..OPERATIONS.len()),
        (bytes, position) in any::<(u32, u64)>(),
    ) {
        let mut parser = Parser { lines: 1, tenants: 3, connections: 3, has_ended: false };
        let (operation, tenant) = (OPERATIONS[operation].0, RecordedTenant(tenant));
        let bytes = bytes.min(bytes_max(operation));
        let line = RecordingLine::Request(RecordedRequest {
            at_ns, latency_ns, connection, tenant, operation, bytes, position,
        });
        prop_assert_eq!(parser.line(line.to_string().as_bytes()), Ok(line));
    }
}
