//! The circle against libmemcached, and the law that it exists for.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use proptest::prelude::*;

use super::*;

fn nodes(ports: &[u16], weights: &[u32]) -> Vec<Server> {
    let server = |((number, port), weight): ((usize, &u16), &u32)| Server {
        host: format!("10.0.1.{}", number + 1),
        port: *port,
        weight: *weight,
    };
    ports.iter().enumerate().zip(weights).map(server).collect()
}

/// The owners of `key:0`, `key:7919`, … as one digit each, and how many of `user:0` to
/// `user:9999` each node owns.
fn spread(circle: &Ketama, count: usize) -> (String, Vec<u32>) {
    let owner = |key: String| circle.owner(key.as_bytes()).unwrap();
    let digits = (0..64).map(|number| owner(format!("key:{}", number * 7919)).to_string());
    let mut counts = vec![0; count];
    (0..10_000).for_each(|number| counts[owner(format!("user:{number}"))] += 1);
    (digits.collect(), counts)
}

const USUAL: [u16; 5] = [PORT_DEFAULT; 5];
const VARIOUS: [u16; 5] = [11_211, 11_212, 30_000, 11_211, 7];

/// The results of `memcached_generate_hash` of libmemcached 1.1.4 for the same nodes and keys, with
/// `MEMCACHED_BEHAVIOR_HASH` set to MD5 and the distribution `CONSISTENT_KETAMA`.
#[test]
fn keys_are_where_libmemcached_puts_them() {
    for (ports, digits, counts) in [
        (
            &USUAL[..],
            "4000332021204133302220303311402111131140143014042440333214011131",
            vec![1933, 2398, 1706, 2064, 1899],
        ),
        (
            &VARIOUS[..],
            "0000433243403314304120241312100230431444413144132410333224042233",
            vec![2088, 1843, 1795, 2092, 2182],
        ),
        (
            &USUAL[..3],
            "0000112021202101002220002111202111121100121011022200221210011111",
            vec![3133, 3916, 2951],
        ),
    ] {
        let circle = Ketama::plain(&nodes(ports, &[1; 5]));
        assert_eq!(spread(&circle, ports.len()), (digits.into(), counts));
    }
}

/// The same with `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED`.
#[test]
fn weighted_keys_are_where_libmemcached_puts_them() {
    for (ports, weights, digits, counts) in [
        (
            &USUAL[..],
            &[1, 2, 3, 4, 5][..],
            "3244322333234424342221404333442314133243243444442233141004143034",
            vec![612, 1287, 1977, 2498, 3626],
        ),
        (
            &VARIOUS[..],
            &[600, 300, 200, 350, 1000][..],
            "4410410314101404434022444040400330434041414343114414011202243004",
            vec![2626, 946, 779, 1220, 4429],
        ),
        (
            &USUAL[..3],
            &[1, 1, 1][..],
            "0010122001201122122221100021212010122020211211212201111000111002",
            vec![3327, 3189, 3484],
        ),
    ] {
        let circle = Ketama::weighted(&nodes(ports, weights));
        assert_eq!(spread(&circle, ports.len()), (digits.into(), counts));
    }
}

proptest! {
    #[test]
    fn a_node_that_leaves_moves_its_own_keys_only(
        hosts in prop::collection::btree_set("[a-z]{1,8}", 2..7),
        leaver in any::<prop::sample::Index>(),
        keys in prop::collection::vec("[ -~]{1,20}", 1..50),
    ) {
        let server = |host: &String| Server { host: host.clone(), port: 11_211, weight: 1 };
        let all: Vec<Server> = hosts.iter().map(server).collect();
        let leaver = leaver.index(all.len());
        let rest: Vec<Server> = [&all[..leaver], &all[leaver + 1..]].concat();
        for make in [Ketama::plain, Ketama::weighted] {
            let (before, after) = (make(&all), make(&rest));
            for key in &keys {
                let owner = before.owner(key.as_bytes()).unwrap();
                let heir = &rest[after.owner(key.as_bytes()).unwrap()];
                prop_assert!(owner == leaver || all[owner] == *heir);
            }
        }
    }

    #[test]
    fn the_owner_is_whose_point_comes_next(key in prop::collection::vec(any::<u8>(), 0..40)) {
        let circle = Ketama::plain(&nodes(&USUAL, &[1; 5]));
        let hash = point(&Md5::digest(&key).into(), 0);
        // Clockwise from the key, the nearest point.
        let nearest = circle.points.iter().min_by_key(|(server, _)| server.wrapping_sub(hash));
        prop_assert_eq!(circle.owner(&key), nearest.map(|(_, node)| *node as usize));
    }
}
