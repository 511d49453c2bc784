//! A node that hangs and goes on: writes that failed meanwhile do not come back.

use rustix::process::Signal;
use tidegate_tests::cluster::{Cluster, directories, volume};
use tidegate_tests::eventually;
use tidegate_tests::nbd::{Client, EIO};

use super::OPEN;
use super::apart::hang;

const LONG: usize = 128 << 10;
const SHORT: usize = 4 << 10;

/// The error of the next answer; none if the request succeeded.
#[track_caller]
fn answer(client: &mut Client) -> Option<i32> {
    client.receive().unwrap().1.err().map(|error| error.raw_os_error().unwrap())
}

#[test]
fn a_write_that_failed_while_a_node_hung_never_replaces_a_later_one() {
    let db = volume("db", "oltp", "6MiB", &["a"]);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&["a"])), OPEN);
    cluster.up_apart(&["a"], &["db"]);
    for round in 0..2 {
        let mut clients = [(); 4].map(|()| cluster.enter("db"));
        for client in &mut clients {
            eventually("both links", || client.write(0, &[0; LONG]).is_ok());
            client.write(0, &[0; SHORT]).unwrap();
        }
        hang(cluster.component("a"));
        for (content, client) in (1..).zip(&mut clients) {
            for length in [LONG, LONG, LONG, LONG, SHORT] {
                client.submit_write(0, &vec![content; length]).unwrap();
            }
        }
        for client in &mut clients {
            assert!(
                (0..5).all(|_| answer(client) == Some(EIO)),
                "round {round}: nothing is served"
            );
        }
        // This one waits for the node, and it alone is acknowledged.
        clients[0].submit_write(0, &[9; SHORT]).unwrap();
        cluster.component("a").signal(Signal::CONT);
        assert_eq!(answer(&mut clients[0]), None);
        clients[0].flush().unwrap();
        for _ in 0..200 {
            for client in &mut clients {
                let content = client.read(0, SHORT).unwrap();
                assert!(content == [9; SHORT], "round {round}: {} was flushed over", content[0]);
            }
        }
    }
}
