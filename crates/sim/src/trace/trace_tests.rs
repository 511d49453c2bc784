use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read};

use proptest::prelude::*;

use super::*;

/// A request, its time in ticks of the format.
#[derive(Clone, Copy, Debug)]
struct Written {
    ticks: u64,
    device: u32,
    operation: Operation,
    offset: u64,
    bytes: u64,
}

/// How fine a format's times are, in picoseconds, and when its clock began, in ticks.
const fn clock(format: Format) -> (u64, u64) {
    match format {
        Format::Msr => (100_000, 128_166_372_003_061_629),
        Format::Systor => (1_000, 1_455_592_740_086_032_000),
        Format::Mqsim => (1_000, 938_944_000),
        Format::Disksim => (1, 17),
        Format::Fio => (1_000_000, 25),
    }
}

/// Writes a recording, with a line that gives no request here and there.
fn write(format: Format, requests: &[Written]) -> String {
    let begun = clock(format).1;
    let mut text = String::new();
    match format {
        Format::Msr => text += "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\r\n",
        Format::Systor => text += "Timestamp,Response,IOType,LUN,Offset,Size\n",
        Format::Fio => text += "fio version 3 iolog\n7 /a add\n7 /a open\n",
        Format::Mqsim | Format::Disksim => text += "\n",
    }
    for (number, request) in requests.iter().enumerate() {
        let Written { ticks, device, operation, offset, bytes } = *request;
        let (time, reads) = (begun + ticks, operation == Operation::Read);
        let [seconds, part] = [time / 1_000_000_000, time % 1_000_000_000];
        let line = match format {
            Format::Msr => {
                let kind = if reads { "Read" } else { "Write" };
                format!("{time},hm,{device},{kind},{offset},{bytes},413\r")
            }
            Format::Systor => {
                let kind = if reads { "R" } else { "W" };
                format!("{seconds}.{part:09},0.0002,{kind},{device},{offset},{bytes}")
            }
            Format::Mqsim => {
                format!("{time} {device} {} {} {}", offset / 512, bytes / 512, u8::from(reads))
            }
            Format::Disksim => {
                let flags = if reads { "1001" } else { "fe" };
                format!(" {seconds}.{part:09}\t{device}  {} {} {flags}", offset / 512, bytes / 512)
            }
            Format::Fio => {
                let kind = if reads { "read" } else { "write" };
                format!("{time} /file-{device} {kind} {offset} {bytes}")
            }
        };
        writeln!(text, "{line}").unwrap();
        if number % 7 == 3 {
            text += match format {
                Format::Systor => "1455592740.1,0.0,,0,0,0\n",
                Format::Fio => "1 /file-0 datasync 491520 0\n",
                _ => " \n",
            };
        }
    }
    text
}

/// Requests in the order of lines, each out of order by less than `disorder`.
fn requests() -> impl Strategy<Value = Vec<Written>> {
    let operation = any::<bool>().prop_map(|r| if r { Operation::Read } else { Operation::Write });
    let sector = 0u64..1 << 40;
    let request = (0u64..1_000_000, 0u32..4, operation, sector, 1u64..1 << 20).prop_map(
        |(ticks, device, operation, sector, sectors)| {
            let [offset, bytes] = [sector, sectors].map(|count| count * 512);
            Written { ticks, device, operation, offset, bytes }
        },
    );
    prop::collection::vec(request, 0..60)
}

proptest! {
    /// Written records are read back, sorted by time and in the order of lines where that is equal,
    /// however small the pieces are in which the text is read. The oracle is a stable sort.
    #[test]
    fn what_is_written_is_read(
        mut requests in requests(), index in 0usize..5, chunk in 1usize..99,
    ) {
        let (format, _) = FORMATS[index];
        let text = write(format, &requests);
        let mut reader = Reader::new(BufReader::with_capacity(chunk, text.as_bytes()));
        let records: Result<Vec<Record>, _> = reader.by_ref().collect();
        let records = records.unwrap();
        prop_assert_eq!(reader.format().filter(|_| !requests.is_empty()).unwrap_or(format), format);
        prop_assert_eq!(reader.skipped() as usize + records.len(), text.lines().count());
        // fio's files have numbers in the order in which they occur.
        let mut files: Vec<u32> = Vec::new();
        for request in requests.iter_mut().filter(|_| format == Format::Fio) {
            let known = files.iter().position(|file| *file == request.device);
            let number = known.unwrap_or_else(|| { files.push(request.device); files.len() - 1 });
            request.device = number as u32;
        }
        requests.sort_by_key(|request| request.ticks);
        let first = requests.first().map_or(0, |request| request.ticks);
        let expected = requests.iter().map(|request| Record {
            at: Picoseconds((request.ticks - first) * clock(format).0),
            device: request.device,
            operation: request.operation,
            offset: Bytes(request.offset),
            bytes: Bytes(request.bytes),
        });
        prop_assert_eq!(records, expected.collect::<Vec<_>>());
    }

    /// With any window, times never go back, nothing is lost but what is late, and nothing is late
    /// that is out of order by no more places than the window has. The oracle counts, for each
    /// line, the lines above it with later times.
    #[test]
    fn a_window_sorts_what_fits_into_it(requests in requests(), window in 0usize..9) {
        let text = write(Format::Mqsim, &requests);
        let mut times = Vec::new();
        let mut late = Vec::new();
        for read in Reader::new(text.as_bytes()).window(window) {
            match read {
                Ok(record) => times.push(record.at),
                Err(error) => late.push(error),
            }
        }
        prop_assert!(times.is_sorted());
        prop_assert_eq!(times.len() + late.len(), requests.len());
        let above = |index: usize| {
            requests[..index].iter().filter(|other| other.ticks > requests[index].ticks).count()
        };
        let farthest = (0..requests.len()).map(above).max().unwrap_or(0);
        if farthest <= window {
            prop_assert_eq!(&late, &[]);
        }
        if window == 0 {
            let mut last = 0;
            let before = requests.iter().filter(|request| {
                let late = request.ticks < last;
                last = last.max(request.ticks);
                late
            });
            prop_assert_eq!(late.len(), before.count());
        }
        for error in late {
            let TraceProblem::Late { window: reported, .. } = error.problem else {
                panic!("{error}")
            };
            prop_assert_eq!(reported, window);
        }
    }

    #[test]
    fn no_text_is_too_wild(text in "[0-9a-zA-Z.,\n ]{0,200}", index in 0usize..5) {
        let reader = Reader::new(text.as_bytes()).of(FORMATS[index].0);
        prop_assert!(reader.count() <= text.lines().count());
    }
}

/// Returns the errors of a recording's text; each has the text found and the form expected.
fn errors(text: &str) -> Vec<String> {
    Reader::new(text.as_bytes()).filter_map(Result::err).map(|error| error.to_string()).collect()
}

#[test]
fn errors_in_fields_with_commas() {
    let msr = "\
1,hm,0,Read,0,512,1
2,hm,0,read,0,512,1
3,hm,0,Write,0,512
-4,hm,0,Write,0,512,1
5,hm,4294967296,Write,0,512,1
6,hm,0,Write,0,0,1
7,hm,0,Write,18446744073709551615,1,1
8,hm,0,Write,99999999999999999999,1,1
";
    assert_eq!(
        errors(msr),
        [
            r#"line 2: type is "read"; expected Read or Write"#,
            "line 3: 6 fields; expected \
             Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
            r#"line 4: timestamp is "-4"; expected a whole number from 0 to 2^64 - 1"#,
            r#"line 5: device is "4294967296"; expected a whole number from 0 to 2^32 - 1"#,
            r#"line 6: size is "0"; expected a whole number from 1 to 2^64 - 1"#,
            "line 7: offset is \"18446744073709551615\"; \
             expected a place from which all bytes lie below 2^64",
            "line 8: offset is \"99999999999999999999\"; \
             expected a whole number from 0 to 2^64 - 1",
        ]
    );
    let systor = "\
1.5,0,R,0,0,512
1.5000000001,0,R,0,0,512
1.,0,R,0,0,512
1.5,0,X,0,0,512
99999999999.0,0,R,0,0,512
";
    let number = "expected a number from 0 to 1.8e10 with at most nine decimals";
    assert_eq!(
        errors(systor),
        [
            format!("line 2: timestamp is \"1.5000000001\"; {number}"),
            format!("line 3: timestamp is \"1.\"; {number}"),
            "line 4: type is \"X\"; expected R, W or nothing".to_owned(),
            format!("line 5: timestamp is \"99999999999.0\"; {number}"),
        ]
    );
}

#[test]
fn errors_in_fields_with_blanks() {
    let mqsim = "0 0 0 8 1\n5 0 0 8 2\n5 0 36028797018963968 8 1\n5 0 0 8\n";
    assert_eq!(
        errors(mqsim),
        [
            r#"line 2: type is "2"; expected 1 for a read or 0 for a write"#,
            "line 3: offset is \"36028797018963968\"; \
             expected a place from which all bytes lie below 2^64",
            "line 4: 4 fields; expected time, device, sector, sectors and type",
        ]
    );
    let disksim = "0.0 0 0 8 1\n0.5 0 0 8 g\n";
    let flags = r#"line 2: flags is "g"; expected a number in hexadecimal below 2^32"#;
    assert_eq!(errors(disksim), [flags]);
    let fio = "fio version 3 iolog\n5 /a wait 5 0\n5 /a read 5\nx /a read 0 5\n";
    assert_eq!(
        errors(fio),
        [
            "line 2: action is \"wait\"; expected read, write, add, open, close, sync, datasync \
             or trim; in version 2, wait",
            "line 3: 1 fields; expected an offset and a length after the action",
            r#"line 4: timestamp is "x"; expected a whole number from 0 to 2^64 - 1"#,
        ]
    );
}

#[test]
fn what_is_no_trace() {
    for text in ["hello", "a b c d", "fio version 1 iolog", "1,2,3"] {
        let mut reader = Reader::new(text.as_bytes());
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.starts_with(&format!("line 1: {text:?} does not begin")), "{error}");
        assert!(error.contains("known: msr systor mqsim disksim fio;"), "{error}");
        assert!(reader.next().is_none());
    }
    // A format that the caller names may be wrong, too.
    let mut reader = Reader::new("0 0 0 8 1\n".as_bytes()).of(Format::Fio);
    assert!(matches!(reader.next().unwrap().unwrap_err().problem, TraceProblem::Unknown { .. }));
    assert!(reader.next().is_none());
    let mut reader = Reader::new("0 0 0 8 1\n".as_bytes()).of(Format::Systor);
    assert!(matches!(reader.next().unwrap().unwrap_err().problem, TraceProblem::Fields { .. }));
    assert_eq!("systor".parse(), Ok(Format::Systor));
    let error = "spc".parse::<Format>().unwrap_err().to_string();
    assert!(error.ends_with("known are msr systor mqsim disksim fio"), "{error}");
}

#[test]
fn late_records_and_far_ones() {
    let late = "5 0 0 8 1\n7 0 0 8 1\n6 0 0 8 1\n4 0 0 8 1\n9 0 0 8 1\n";
    let read: Vec<_> = Reader::new(late.as_bytes()).window(1).collect();
    let times: Vec<u64> = read.iter().flatten().map(|record| record.at.0).collect();
    assert_eq!(times, [0, 1_000, 2_000, 4_000]);
    let error = read.iter().find_map(|read| read.as_ref().err()).unwrap();
    assert_eq!(
        error.to_string(),
        "line 4: it is 2ns before a record that the window of 1 let go; sort the trace, or read \
         it with a wider window"
    );
    let far = "0 0 0 8 1\n18446744073709551 0 0 8 1\n18446744073709552 0 0 8 1\n";
    let read: Vec<_> = Reader::new(far.as_bytes()).collect();
    assert_eq!(read[1].as_ref().unwrap().at, Picoseconds(18_446_744_073_709_551_000));
    let error = read[2].as_ref().unwrap_err().to_string();
    assert!(error.starts_with("line 3: timestamp is") && error.contains("213 days"), "{error}");
}

#[test]
fn waits_of_the_second_version_add_up() {
    let text = "\
fio version 2 iolog
/a add
/b add
/a open
/b read 0 4096
/a wait 1000 0
/a write 4096 8192
/b wait 500
/b trim 0 4096
/b read 8192 4096
";
    let mut reader = Reader::new(text.as_bytes());
    let records: Vec<Record> = reader.by_ref().map(Result::unwrap).collect();
    let brief = records.iter().map(|it| (it.at.0 / 1_000_000, it.device, it.offset.0, it.bytes.0));
    assert!(brief.eq([(0, 0, 0, 4_096), (1_000, 1, 4_096, 8_192), (1_500, 0, 8_192, 4_096)]));
    assert_eq!((reader.skipped(), reader.format()), (7, Some(Format::Fio)));
}

/// A recording that never ends.
struct Endless {
    line: Vec<u8>,
    at: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.line.len() - self.at);
        buffer[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at = (self.at + count) % self.line.len();
        Ok(count)
    }
}

#[test]
fn lines_without_an_end_use_no_memory() {
    // A line of 4 MiB, then one that is right; and bytes that are no text.
    let text = io::repeat(b'x').take(1 << 22).chain("\n5 0 0 8 1\n\u{fe}\n".as_bytes());
    let mut reader = Reader::new(BufReader::new(text)).of(Format::Mqsim);
    assert_eq!(
        reader.next().unwrap().unwrap_err().to_string(),
        "line 1: more than 4096 bytes; expected lines of text"
    );
    let wrong = reader.next().unwrap().unwrap_err();
    assert_eq!(wrong.line, 3);
    assert_eq!(reader.next().unwrap().unwrap().bytes, Bytes(4_096));
    assert!(reader.next().is_none());
    let bytes: &[u8] = b"5 0 0 8 1\n\xff\xfe\n";
    let error = Reader::new(bytes).next().unwrap().unwrap_err().to_string();
    assert!(error.ends_with("expected text in UTF-8, unpacked if it was compressed"), "{error}");
    // Of a recording without end, as much as is asked for; its source is asked for no more than
    // the window.
    let endless = Endless { line: b"5 0 0 8 1\n".to_vec(), at: 0 };
    let mut reader = Reader::new(BufReader::with_capacity(10, endless)).window(100);
    assert_eq!(reader.by_ref().take(1_000).filter(Result::is_ok).count(), 1_000);
}

/// A source that fails in the middle.
struct Broken(usize);

impl Read for Broken {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0 += 1;
        if self.0 > 2 {
            return Err(io::Error::other("the disk is gone"));
        }
        buffer[..10].copy_from_slice(b"5 0 0 8 1\n");
        Ok(10)
    }
}

#[test]
fn a_source_that_fails_is_reported_and_ends_the_recording() {
    let mut reader = Reader::new(BufReader::new(Broken(0)));
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert_eq!(error, "line 3: cannot be read: the disk is gone");
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 2);
    fn assert_buffered<R: BufRead>(_: &Reader<R>) {}
    assert_buffered(&reader);
}
