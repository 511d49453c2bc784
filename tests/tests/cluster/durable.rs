//! What a flush that succeeded promises, whoever dies.

use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::eventually;
use tidegate_tests::nbd::{Client, EIO};

use super::OPEN;

/// A node in memory, behind two gateways, each in a process of its own.
fn in_memory() -> Cluster {
    let file = directories(&["a"]).replace("directory = \"a\"", "memory = true");
    let second = "[[gateway]]\nname = \"back\"\nnbd = \"unix:back.sock\"\n";
    let db = volume("db", "oltp", "1MiB", &["a"]);
    let mut cluster = Cluster::new(&format!("{file}{second}{db}"), OPEN);
    cluster.up_apart(&["a"], &["db"]);
    cluster.start("gateway", "back");
    cluster
}

#[track_caller]
fn expect_eio(client: &mut Client, why: &str) {
    let failed = client.flush().unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(EIO), "{why}: {failed}");
}

#[test]
fn after_a_memory_node_died_no_session_is_told_that_its_writes_are_there() {
    let mut cluster = in_memory();
    let back = cluster.path("back.sock");
    let mut clients: Vec<_> = (0..8).map(|_| cluster.enter("db")).collect();
    clients.push(Client::enter(&back, "db").unwrap());
    for client in &mut clients {
        eventually("the node", || client.read(0, 512).is_ok());
        client.flush().unwrap();
    }
    clients[0].write(0, &[7; 512]).unwrap();
    cluster.kill("a");
    cluster.start("node", "a");
    for client in clients.iter_mut().rev() {
        eventually("the node again", || client.read(0, 512).is_ok());
        expect_eio(client, "a write was lost");
    }
    assert_eq!(clients[0].read(0, 512).unwrap(), [0; 512], "it was");
    expect_eio(&mut clients[0], "it is not said once only");
    let mut anew = cluster.enter("db");
    anew.write(0, &[8; 512]).unwrap();
    anew.flush().unwrap();
    // A gateway that knows nothing must not say that all is well either.
    let mut waiting = Client::enter(&back, "db").unwrap();
    cluster.kill(GATEWAY);
    cluster.start("gateway", GATEWAY);
    let mut late = cluster.enter("db");
    for client in [&mut waiting, &mut late] {
        eventually("the node", || client.read(0, 512).is_ok());
        client.flush().unwrap();
    }
}
