//! Session slots of a data node, by its socket: who gets one, and that they come back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_fabric::stream::Address;
use tidegate_model::Cluster;
use tidegate_onesided::data_node::{Hello, ToClient, VERSION};
use tidegate_proto::codec::{Decoder, encode};

use super::{Config, Running, TokenRules, start};

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A data node with this many slots, that has no controller: operators come in.
struct Bed {
    folder: TempDir,
    running: Running,
}

impl Bed {
    fn new(slots: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "[[data-node]]\nname = \"m\"\nlisten = \"unix:m.sock\"\nmemory = \"8MiB\"\n\
             capacity = \"1k iops\"\nclient = \"1k iops\"\nseats = {slots}\n"
        );
        let node = Cluster::parse(&text).unwrap().data_nodes.remove(0);
        let listen = Address::Unix(folder.path().join("m.sock"));
        let running =
            start(Config { node, rules: TokenRules::Sound, listen, guard: None, controller: None })
                .unwrap();
        Self { folder, running }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("m.sock")
    }

    /// Sends a hello, without waiting for the answer.
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = Hello {
            version: VERSION,
            tenant: String::new(),
            reservation: None,
            limit: None,
            parts: 1,
            session_slot: None,
            is_bare: false,
        };
        let mut bytes = Vec::new();
        encode(&hello, &mut bytes).unwrap();
        (&stream).write_all(&bytes).unwrap();
        stream
    }
}

fn answer(mut stream: &UnixStream) -> ToClient {
    let (mut decoder, mut chunk) = (Decoder::<ToClient>::new(), [0; 4096]);
    loop {
        if let Some(message) = decoder.next_message().unwrap() {
            return message;
        }
        let count = stream.read(&mut chunk).unwrap();
        assert!(count > 0, "the node closed the connection without an answer");
        decoder.extend(&chunk[..count]);
    }
}

fn is_admitted(stream: &UnixStream) -> bool {
    matches!(answer(stream), ToClient::Welcome(_))
}

#[test]
fn once_all_clients_have_left_as_many_are_let_in_again() {
    let bed = Bed::new(64);
    for _ in 0..3 {
        let clients: Vec<_> = (0..64).map(|_| bed.connect()).collect();
        assert!(clients.iter().all(is_admitted));
        assert_eq!(bed.running.client_count(), 64);
        match answer(&bed.connect()) {
            ToClient::Refused { reason, .. } => {
                assert!(reason.contains("64 session slots"), "{reason}");
                assert!(reason.contains("seats"), "it says what helps: {reason}");
            }
            other => panic!("{other:?}"),
        }
        // A client that is killed leaves in the same way: its connection ends.
        drop(clients);
    }
    let last = bed.connect();
    assert!(is_admitted(&last));
}
