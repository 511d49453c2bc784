//! Messages between a client and a data node that connect their RDMA network cards (RNICs).
//!
//! # Problem
//! A client on another machine cannot be handed memory. It can be handed the right to have an RNIC
//! reach it: a key, an address, and queue pairs at both ends, each with the other's number.
//!
//! # Mechanism
//! Hello and welcome come first, as for every client, so the node has identified the client and
//! given it a session slot. Then the client, which has its window from the welcome, makes its queue
//! pairs and sends a [`ConnectRequest`]. The node makes as many, connects them, and sends an
//! [`Answer`].
//!
//! ```text
//!  client ── Hello ──▶ node        who, for whom
//!         ◀── Welcome ──           a session slot, remote = verbs
//!         ── Request ──▶           gid fe80::1, queue pairs 17, 300, …
//!         ◀── Answer ──            gid fe80::2, queue pairs 18, 19, …, the region's key
//! ```
//!
//! # Bound
//! A key is 32 bits that an RNIC accepts from connected queue pairs only: a client without an
//! answer cannot use one. Nothing here is secret from a client with an answer.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// One side of a connection: a port, and queue pairs there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The port's address in the network (InfiniBand Architecture, volume 1, section 4.1.1).
    pub gid: [u8; 16],
    /// Its address within a subnet of InfiniBand; 0 for Ethernet.
    pub lid: u16,
    /// The largest packet, as verbs number them: 1 for 256 bytes to 5 for 4,096.
    pub mtu: u8,
    /// Reads and atomic operations that a queue pair answers at once.
    pub reads_answered: u8,
    /// Those that it may have outstanding at once.
    pub reads_outstanding: u8,
    /// Queue pairs, in the order in which those of both sides belong together.
    pub queues: Vec<QueueAddress>,
}

/// One queue pair, as its peer needs it. Both are numbers of 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueAddress {
    /// Its number.
    pub number: u32,
    /// The number of its first packet.
    pub first: u32,
}

/// A client's request to connect its RNIC to the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectRequest {
    /// Its side.
    pub client: Endpoint,
}

/// The node's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Its side: as many queue pairs as the request has.
    pub host: Endpoint,
    /// Where the region is, in the node's own terms.
    pub address: u64,
    /// How many bytes it has.
    pub length: u64,
    /// The key that gives access to the region, together with a queue pair of this node.
    pub key: u32,
}

#[cfg(test)]
mod tests {
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::data_node::ToClient;
    use tidegate_proto::codec::{self, Decoder};

    /// The frame's bytes in base 16, if they come back as the message.
    fn frame<M: Serialize + DeserializeOwned + PartialEq>(message: &M) -> String {
        let mut bytes = Vec::new();
        codec::encode(message, &mut bytes).unwrap();
        let mut decoder = Decoder::<M>::new();
        decoder.extend(&bytes);
        assert!(decoder.next_message().unwrap().as_ref() == Some(message));
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn requests_and_answers_are_these_bytes() {
        let queue = |number| QueueAddress { number, first: 0x00ab_cdef };
        let endpoint = Endpoint {
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1],
            lid: 0,
            mtu: 3,
            reads_answered: 16,
            reads_outstanding: 128,
            queues: vec![queue(17), queue(300)],
        };
        let address = "00000000000000000000ffff0a000001";
        let queues = "0211ef9baf05ac02ef9baf05";
        assert_eq!(
            frame(&ConnectRequest { client: endpoint.clone() }),
            format!("20000000{address}00031080{queues}"),
        );
        let answer =
            Answer { host: endpoint, address: 0x7f00_0000_1000, length: 1 << 20, key: 0x1234 };
        let rest = format!("{address}00031080{queues}80a0808080e01f808040b424");
        assert_eq!(frame(&answer), format!("2c000000{rest}"));
        assert_eq!(frame(&ToClient::Rnic(answer)), format!("2d00000003{rest}"));
    }
}
