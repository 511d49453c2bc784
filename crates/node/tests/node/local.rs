//! Gateways of the same process.

use std::time::Instant;

use tidegate_fabric::buffer::Buffer;
use tidegate_fabric::service::{Command, Fault, Job};
use tidegate_model::{Bytes, Iops};
use tidegate_node::{Config, Speed, StartError, StoreConfig, start};

use crate::support::{Client, create, job, read, write};

#[test]
fn memory_answers_from_the_very_call() {
    let node = start(Config::new("a", StoreConfig::Memory { capacity: Bytes::MAX })).unwrap();
    let mut client = Client::new(&node, &["t"]);
    let part = client.part;
    let jobs = (0..1_000).map(|n: u64| write(part, n, n * 8, &n.to_le_bytes())).collect();
    let done = all(&mut client, jobs);
    assert!(done.iter().all(|job| job.outcome == Ok(())));
    let mut tickets: Vec<_> = done.iter().map(|job| job.ticket).collect();
    tickets.sort_unstable();
    assert!(tickets.into_iter().eq(0..1_000), "every job once");
    let done = all(&mut client, (0..1_000).map(|n| read(part, n, n * 8, 8)).collect());
    assert_eq!(done.len(), 1_000);
    assert!(done.iter().all(|job| job.buffer[..] == job.ticket.to_le_bytes()));
    let status = node.status();
    assert_eq!((status.node.waiting, status.node.in_flight), (0, 0));
    assert_eq!(status.node.tenants[0].served_total, 2_000, "no plan: everybody is nobody");
}

/// Submits jobs, and waits for those that another thread came by to do: the node's agent has its
/// first round at an unknown time after its start.
fn all(client: &mut Client, jobs: Vec<Job>) -> Vec<Job> {
    let count = jobs.len();
    let mut done = client.submit(jobs);
    while done.len() < count {
        done.push(client.finished());
    }
    done
}

#[test]
fn sessions_of_many_threads_get_their_own_answers() {
    let node = start(Config::new("a", StoreConfig::Memory { capacity: Bytes::MAX })).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let node = &node;
            scope.spawn(move || {
                let mut client = Client::new(node, &[]);
                let part = client.part;
                for round in 0..200u64 {
                    let base = (thread << 20) + round * 512;
                    let jobs = (0..16).map(|n| write(part, n, base + n * 32, &[thread as u8; 32]));
                    let mut count = client.submit(jobs.collect()).len();
                    while count < 16 {
                        let job = client.finished();
                        assert_eq!(job.offset >> 20, thread, "somebody else's answer");
                        count += 1;
                    }
                    let answer = client.request(read(part, 99, base, 512));
                    assert!(answer.buffer.iter().all(|byte| *byte == thread as u8));
                }
            });
        }
    });
}

#[test]
fn files_answer_through_the_completion_sink() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("parts");
    create(&path);
    let store = StoreConfig::Directory { path };
    let node = start(Config { depth: 4, ..Config::new("a", store) }).unwrap();
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    let at_once =
        client.submit((0..64).map(|n| write(part, n, n << 12, &[n as u8; 4096])).collect());
    let later = (at_once.len()..64).map(|_| client.finished());
    assert!(at_once.into_iter().chain(later).all(|job| job.outcome == Ok(())));
    for n in 0..64 {
        assert_eq!(client.request(read(part, n, n << 12, 4096)).buffer[..], [n as u8; 4096]);
    }
    assert_eq!(client.request(job(part, 7, Command::Flush, 0, 0, Buffer::empty())).outcome, Ok(()));
    let outside = client.request(read(part, 7, u64::MAX, 1));
    assert_eq!(outside.outcome, Err(Fault::Invalid));
}

#[test]
fn waiting_jobs_fail_when_a_node_ends_and_jobs_at_the_device_complete() {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let speed = Some(Speed { rate: Iops(10), variance: 0, seed: 1 });
    let node = start(Config { depth: 2, speed, ..Config::new("a", store) }).unwrap();
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    assert!(client.submit((0..5).map(|n| read(part, n, 0, 1)).collect()).is_empty());
    node.stop();
    let mut done: Vec<_> = (0..5).map(|_| client.finished()).collect();
    done.sort_by_key(|job| job.ticket);
    let outcomes: Vec<_> = done.iter().map(|job| job.outcome).collect();
    let ending = Err(Fault::Ending);
    assert_eq!(outcomes, [Ok(()), Ok(()), ending, ending, ending]);
    assert_eq!(client.submit(vec![read(part, 9, 0, 1)])[0].outcome, ending);
}

#[test]
fn a_closed_session_takes_its_waiting_jobs_with_it() {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let speed = Some(Speed { rate: Iops(1_000_000), variance: 0, seed: 1 });
    let node = start(Config { depth: 1, speed, ..Config::new("a", store) }).unwrap();
    let mut leaving = Client::new(&node, &[]);
    let part = leaving.part;
    leaving.submit((0..50_000).map(|n| read(part, n, 0, 1)).collect());
    drop(leaving);
    let mut client = Client::new(&node, &[]);
    client.request(read(part, 1, 0, 1));
    assert!(node.status().node.waiting == 0, "{:?}", node.status().node);
}

#[test]
fn a_modelled_device_keeps_its_rate() {
    let store = StoreConfig::Memory { capacity: Bytes::MAX };
    let speed = Some(Speed { rate: Iops(10_000), variance: 20, seed: 5 });
    let node = start(Config { depth: 16, speed, ..Config::new("a", store) }).unwrap();
    let mut client = Client::new(&node, &[]);
    let part = client.part;
    let begun = Instant::now();
    client.submit((0..5_000).map(|n| read(part, n, 0, 512)).collect());
    (0..5_000).for_each(|_| assert_eq!(client.finished().outcome, Ok(())));
    // Half a second of work. It cannot be done sooner, whatever the machine does meanwhile, but
    // for what the draws vary: six deviations are 6 * 0.2 * sqrt(5000 / 3), or 49 requests.
    let seconds = begun.elapsed().as_secs_f64();
    assert!(seconds > 0.495, "{seconds}");
    eprintln!("5000 requests at 10000 iops took {seconds:.4} s");
}

#[test]
fn a_node_that_cannot_start_reports_the_reason_in_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |config| match start(config) {
        Err(error) => error,
        Ok(_) => panic!("it started"),
    };
    let missing = StoreConfig::Device { path: folder.path().join("missing"), size: None };
    let error = refused(Config::new("a", missing)).to_string();
    assert!(error.contains("missing") && error.contains("truncate -s"), "{error}");

    let path = folder.path().join("parts");
    std::fs::create_dir(&path).unwrap();
    let store = StoreConfig::Directory { path };
    let _first = start(Config::new("a", store.clone())).unwrap();
    let error = refused(Config::new("b", store)).to_string();
    assert!(error.contains("parts") && error.contains("a store of its own"), "{error}");

    let memory = StoreConfig::Memory { capacity: Bytes::MAX };
    let error = refused(Config { depth: 0, ..Config::new("a", memory.clone()) });
    assert!(matches!(error, StartError::Depth(0)), "{error}");

    // A busy address is found before the store is touched.
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let first = start(Config { listen, ..Config::new("a", memory) }).unwrap();
    let store = StoreConfig::Directory { path: folder.path().join("never") };
    let listen = first.address().cloned();
    let error = refused(Config { listen, ..Config::new("b", store) });
    assert!(matches!(error, StartError::Bind(_)), "{error}");
    assert!(!folder.path().join("never").exists());
}
