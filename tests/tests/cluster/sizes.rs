//! Large requests under a limit: what they cost is paid, however it is asked for.

use std::time::Instant;

use tidegate_tests::cluster::{Cluster, volume};

/// Units per second that the tenant may have.
const LIMIT: f64 = 50.0;

/// At a device that writes zeros and does a thousand units in a second, a tenant with a limit of 50
/// reads 32 MiB, or 256 units, and zeroes as much. What a period allows may be had at its end and at
/// the beginning of the next, and the rest takes its time. A neighbour is served meanwhile.
#[test]
fn a_large_request_takes_as_long_as_its_limit_says() {
    let node = "[[node]]\nname = \"a\"\nmemory = true\ndepth = 4\ncapacity = \"1k iops\"\n\
                model = { rate = \"1k iops\" }\n";
    let volumes =
        [volume("large", "greedy", "32MiB", &["a"]), volume("small", "near", "4MiB", &["a"])];
    let policy =
        "[[tenant]]\nname = \"greedy\"\nlimit = \"50 iops\"\n[[tenant]]\nname = \"near\"\n";
    let mut cluster = Cluster::new(&format!("{node}{}", volumes.concat()), policy);
    cluster.up();
    for step in ["read 0 32M", "write -z 0 32M"] {
        let begun = Instant::now();
        let mut served = 0;
        std::thread::scope(|scope| {
            let cluster = &cluster;
            let large = scope.spawn(|| {
                cluster.qemu_io("large", &[step]).success();
            });
            let mut near = cluster.enter("small");
            while !large.is_finished() {
                assert_eq!(near.read(0, 4096).expect("a read").len(), 4096);
                served += 1;
            }
        });
        let seconds = begun.elapsed().as_secs_f64();
        let least = (256.0 - LIMIT) / LIMIT - 0.2;
        assert!(seconds >= least, "{step}: {seconds} s, at least {least}");
        // As many as a device of which the greedy one has a twentieth can do, with much to spare.
        assert!(served >= 100, "{step}: {served}");
    }
}
