//! Loads on servers that are a few lines of a thread.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tidegate_model::{Iops, Span};

use super::pace::LoadStats;
use super::schedule::Arrivals;
use super::target::{Address, Target};
use super::{LoadParameters, duration, run};
use tidegate_console::failure::Failure;

/// A server at a socket of its own; every connection is served by `serve`.
fn serve(serve: fn(UnixStream) -> std::io::Result<()>) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    (directory, path)
}

fn plan(target: Target) -> LoadParameters {
    LoadParameters {
        target,
        rate: None,
        arrivals: Arrivals::Constant,
        depth: 4,
        connections: 3,
        threads: 2,
        warmup: Span(0),
        duration: Span(100 * Span::MILLISECOND.0),
        size: 512,
        reads_permille: 500,
        keys: 100,
        is_zipf: false,
        prefix: "k".into(),
        fill: false,
        seed: 7,
    }
}

fn nbd(path: PathBuf, export: &str) -> LoadParameters {
    plan(Target::Nbd { address: Address::Unix(path), export: export.into() })
}

fn memcached(path: PathBuf) -> LoadParameters {
    plan(Target::Memcached { address: Address::Unix(path) })
}

fn load(plan: &LoadParameters) -> Result<LoadStats, Failure> {
    run(plan, Arc::default(), |_| ()).map(|(stats, _)| stats)
}

/// An NBD server with one export, `disk` of 1 MiB, which is full of sevens and whose every tenth
/// answer is an error.
fn disk(mut stream: UnixStream) -> std::io::Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    let mut option = [0; 24];
    stream.read_exact(&mut option)?;
    let mut name = vec![0; option[23] as usize];
    stream.read_exact(&mut name)?;
    stream.read_exact(&mut [0; 2])?;
    let mut reply = |kind: u32, data: &[u8]| {
        stream.write_all(&0x0003_e889_0455_65a9u64.to_be_bytes())?;
        stream.write_all(&7u32.to_be_bytes())?;
        stream.write_all(&kind.to_be_bytes())?;
        stream.write_all(&(data.len() as u32).to_be_bytes())?;
        stream.write_all(data)
    };
    if name != b"disk" {
        return reply(1 << 31 | 6, b"no such disk\n");
    }
    let info = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &[0, 1]].concat();
    reply(3, &[0, 3, 0, 0])?;
    reply(3, &info)?;
    reply(1, b"")?;
    let mut count = 0;
    loop {
        let mut request = [0; 28];
        stream.read_exact(&mut request)?;
        let [.., a, b, c, d] = request;
        let mut data = vec![7; u32::from_be_bytes([a, b, c, d]) as usize];
        let is_write = request[7] == 1;
        if is_write {
            stream.read_exact(&mut data)?;
        }
        count += 1;
        let error = u32::from(count % 10 == 0);
        stream.write_all(&0x6744_6698u32.to_be_bytes())?;
        stream.write_all(&error.to_be_bytes())?;
        stream.write_all(&request[8..16])?;
        if !is_write && error == 0 {
            stream.write_all(&data)?;
        }
    }
}

#[test]
fn every_request_to_a_disk_is_accounted_for() {
    let (_directory, path) = serve(disk);
    let stats = load(&nbd(path, "disk")).unwrap();
    let [reads, writes] = [stats.reads.count(), stats.writes.count()];
    assert!(reads > 10 && writes > 10 && stats.failed > 1, "{stats:?}");
    assert_eq!((stats.unsent, stats.unanswered, stats.missed), (0, 0, 0));
    let share = stats.failed * 1_000 / (reads + writes + stats.failed);
    assert!((50..=110).contains(&share), "{share}");
}

#[test]
fn a_rate_that_a_server_can_keep_is_met() {
    let (_directory, path) = serve(disk);
    let stats = load(&LoadParameters { rate: Some(Iops(1_000)), ..nbd(path, "disk") }).unwrap();
    // Whatever else this machine does: what was due was sent, or is counted as unsent.
    let all = stats.all();
    assert_eq!(all.response.len() + stats.failed, 100);
    assert_eq!(all.service.len() + stats.failed + stats.unsent, 100);
}

#[test]
fn a_refusal_is_shown_in_the_words_of_the_server() {
    let (_directory, path) = serve(disk);
    let failure = load(&nbd(path.clone(), "tape")).unwrap_err();
    assert_eq!(failure.to_string(), "the server refuses the export \"tape\": no such disk");
    let failure = load(&LoadParameters { size: 2 << 20, ..nbd(path.clone(), "disk") }).unwrap_err();
    assert_eq!(failure.to_string(), "the export has 1048576 bytes only");
    let failure = load(&nbd(path.with_extension("none"), "disk")).unwrap_err();
    assert_eq!(failure.word(), "unreachable");
}

/// Has every key, with a value of 512 bytes, but those that end in 3.
fn cache(stream: UnixStream) -> std::io::Result<()> {
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["get", key] if key.ends_with('3') => output.write_all(b"END\r\n")?,
            ["get", key] => {
                let value = "v".repeat(512);
                write!(output, "VALUE {key} 0 512\r\n{value}\r\nEND\r\n")?;
            }
            ["set", key, "0", "0", "512"] => {
                STORED.fetch_add(usize::from(key.starts_with("fill")), Ordering::Relaxed);
                input.read_exact(&mut [0; 514])?;
                output.write_all(b"STORED\r\n")?;
            }
            _ => output.write_all(b"ERROR\r\n")?,
        }
        line.clear();
    }
    Ok(())
}

/// How many keys that begin with `fill` were stored.
static STORED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn every_request_to_a_cache_is_accounted_for() {
    let (_directory, path) = serve(cache);
    let stats = load(&LoadParameters { is_zipf: true, ..memcached(path) }).unwrap();
    assert!(stats.reads.count() > 10 && stats.writes.count() > 10, "{stats:?}");
    assert!(stats.missed > 0 && stats.missed < stats.reads.count());
    assert_eq!((stats.failed, stats.unsent, stats.unanswered), (0, 0, 0));
}

#[test]
fn a_cache_is_filled_before_the_load_begins() {
    let (_directory, path) = serve(cache);
    let plan = LoadParameters { fill: true, keys: 300, prefix: "fill".into(), ..memcached(path) };
    load(&LoadParameters { reads_permille: 1_000, ..plan }).unwrap();
    assert_eq!(STORED.load(Ordering::Relaxed), 300);
}

#[test]
fn a_server_that_hangs_up_or_talks_nonsense_ends_the_load() {
    let (_directory, path) = serve(|mut stream| stream.read_exact(&mut [0; 1]));
    let failure = load(&memcached(path)).unwrap_err();
    assert_eq!(failure.to_string(), "the server did not last");
    let (_directory, path) = serve(|mut stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n"));
    let failure = load(&nbd(path, "disk")).unwrap_err();
    assert_eq!(failure.to_string(), "the server does not speak NBD");
}

#[test]
fn a_load_that_is_stopped_ends_at_once() {
    let (_directory, path) = serve(cache);
    let plan = LoadParameters { duration: Span(3_600 * Span::SECOND.0), ..memcached(path) };
    let stop = Arc::new(AtomicBool::new(false));
    let (stats, window) =
        run(&plan, Arc::clone(&stop), |_| stop.store(true, Ordering::Relaxed)).unwrap();
    assert!(stats.answered > 0 && window.length() < Span(60 * Span::SECOND.0));
}

#[test]
fn a_load_takes_a_span_or_a_number_of_seconds() {
    let second = Span::SECOND.0;
    for (text, expected) in [("10", 10 * second), ("10s", 10 * second), ("1.5s", second * 3 / 2)] {
        assert_eq!(duration(text), Ok(Span(expected)), "{text}");
    }
    assert_eq!(duration("86400"), duration("86400s"));
    for wrong in ["0", "0s", "86401", "-1", "1 hour and a bit"] {
        assert!(duration(wrong).is_err(), "{wrong}");
    }
}
