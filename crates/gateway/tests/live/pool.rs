//! A pool on the testbed's first node, and its clients.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use tidegate_fabric::stream::{Address, ListenerAccess};
use tidegate_gateway::Config;
use tidegate_gateway::ketama::Server;
use tidegate_gateway::memcached::{Pool, VALUE_MAX_DEFAULT};
use tidegate_model::NodeId;

use crate::{PATIENCE, Testbed};

/// Adds the pool, with its socket beside that of the volumes.
pub(crate) fn add(config: &mut Config, flush_all: bool) {
    let Address::Unix(beside) = &config.binds[0].0 else { panic!("it was to be a path") };
    config.pools.push(Pool {
        address: Address::Unix(beside.with_file_name("cache.sock")),
        access: ListenerAccess::PRIVATE,
        name: "cache".into(),
        nodes: vec![(NodeId(0), Server { host: "n".into(), port: 1, weight: 1 })],
        tenant: "kv".into(),
        value_max: VALUE_MAX_DEFAULT,
        flush_all,
    });
}

/// A client of the pool.
pub(crate) fn connect(testbed: &Testbed) -> UnixStream {
    let Address::Unix(path) = &testbed.gateway.pools()[0] else { panic!("it was to be a path") };
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A client that says, of a request whose reply is `END`, who owned it at the node.
pub(crate) fn owner(testbed: &Testbed) -> impl FnMut(&str) -> String {
    let mut client = BufReader::new(connect(testbed));
    move |request| {
        client.get_mut().write_all(format!("{request}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        client.read_line(&mut line).unwrap();
        assert_eq!(line, "END\r\n");
        testbed.nodes[0].last_owner()
    }
}
