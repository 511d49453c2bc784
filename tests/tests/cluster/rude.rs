//! Malformed bytes on every listener, from a client, a gateway and a peer of the controller.
//! Their connection is closed and the log says why; no other client notices.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::nbd::{Client, connect, is_closed};
use tidegate_tests::process::Running;
use tidegate_tests::{PATIENCE, eventually};
use tidegate_wire::nbd::client;
use tidegate_wire::nbd::constants::{OPTION_MAGIC, command, option};

use super::OPEN;

fn cluster() -> Cluster {
    let db = volume("db", "oltp", "1MiB", &["a", "b"]);
    let mut cluster = Cluster::new(&format!("{}{db}", directories(&["a", "b"])), OPEN);
    cluster.up_apart(&["a", "b"], &["db"]);
    cluster
}

/// All processes still serve earlier clients, and new ones.
#[track_caller]
fn all_is_well(cluster: &mut Cluster, client: &mut Client) {
    for client in [client, &mut cluster.enter("db")] {
        client.write(60 << 10, &[5; 8 << 10]).unwrap();
        assert_eq!(client.read(60 << 10, 8 << 10).unwrap(), [5; 8 << 10]);
    }
    cluster.bed().apply(OPEN).success();
}

/// Waits until the log has this more than `before` times.
#[track_caller]
fn logged(component: &Running, what: &str, before: usize) {
    eventually(&format!("{what:?} in the log"), || {
        component.stderr().matches(what).count() > before
    });
}

#[test]
fn malformed_nbd_bytes_harm_no_other_client() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let request = |command, length| client::request(command, 0, 7, 0, length);
    let option = |option: u32, length: u32| {
        let head = [&OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &length.to_be_bytes()];
        [&3_u32.to_be_bytes()[..], &head.concat()].concat()
    };
    let before_an_export = [
        vec![0xff; 64],
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4),
        [&[0, 0, 0, 3][..], &[9; 64]].concat(),
        option(option::EXPORT_NAME, u32::MAX),
        option(option::GO, u32::MAX),
    ];
    let inside = [vec![0; 64], request(command::WRITE, u32::MAX).to_vec()];
    let words = "a client's connection is closed";
    for (rudeness, is_inside) in before_an_export
        .iter()
        .map(|output| (output, false))
        .chain(inside.iter().map(|output| (output, true)))
    {
        let before = cluster.component(GATEWAY).stderr().matches(words).count();
        let mut stream = match is_inside {
            true => cluster.enter("db").into_stream(),
            false => connect(&cluster.endpoint()).unwrap(),
        };
        // It may have had enough before all is said.
        let _ = stream.write_all(rudeness);
        assert!(is_closed(&mut stream), "the connection stays open");
        logged(cluster.component(GATEWAY), words, before);
    }
    // A client that disconnects in the middle of a request has no effect.
    for output in [&b""[..], &[0, 0], &request(command::WRITE, 1 << 20), &request(99, 0)[..9]] {
        cluster.enter("db").into_stream().write_all(output).unwrap();
    }
    all_is_well(&mut cluster, &mut client);
}

#[test]
fn at_a_node() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let words = "a gateway's connection is closed";
    for output in [vec![0xff; 256], vec![0; 4096], b"GET / HTTP/1.1\r\n\r\n".repeat(16)] {
        let before = cluster.component("a").stderr().matches(words).count();
        let mut stream = connect(&cluster.path("a.sock")).unwrap();
        let _ = stream.write_all(&output);
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(is_closed(&mut stream), "the connection stays open");
        logged(cluster.component("a"), words, before);
    }
    drop(connect(&cluster.path("a.sock")).unwrap());
    all_is_well(&mut cluster, &mut client);
}

#[test]
fn at_the_controller() {
    let mut cluster = cluster();
    let mut client = cluster.enter("db");
    let socket = cluster.bed().socket();
    let words = "reason=no valid hello: ";
    for output in [vec![0xff; 256], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 64]] {
        let before = cluster.bed().controller().stderr().matches(words).count();
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&output);
        let _ = stream.shutdown(Shutdown::Write);
        assert!(is_closed(&mut stream), "the connection stays open");
        logged(cluster.bed().controller(), words, before);
    }
    all_is_well(&mut cluster, &mut client);
    let status = cluster.bed().status();
    let nodes = status["cluster"]["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["is_connected"] == true), "{status:#}");
}
