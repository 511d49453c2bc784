//! Pools, by the clients that people have: libmemcached's tools, YCSB, and our own load. The
//! memcached servers behind the nodes say what came of it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tidegate_tests::cluster::Cluster;
use tidegate_tests::nbd::is_closed;
use tidegate_tests::process::{self, ProgramOutcome, Running};
use tidegate_tests::{PATIENCE, eventually, tools, wait_for};

/// The two servers behind a pool.
const SERVERS: [&str; 2] = ["a", "b"];

/// A pool that runs.
struct Pool {
    cluster: Cluster,
    /// Where the gateway offers it: a host and a port.
    address: String,
    servers: Vec<(Running, PathBuf)>,
}

impl Pool {
    /// A pool with these lines in the cluster's file.
    fn new(lines: &str) -> Self {
        let mut cluster = Cluster::new("", "[[tenant]]\nname = \"web\"\n");
        let servers = SERVERS.map(|name| server(&cluster.bed().path(&format!("{name}.memcached"))));
        let node = |(name, (_, socket)): (&str, &(Running, PathBuf))| {
            format!("[[node]]\nname = {name:?}\nmemcached = \"unix:{}\"\n", socket.display())
        };
        let nodes: String = SERVERS.into_iter().zip(&servers).map(node).collect();
        cluster.write(&format!(
            "{nodes}[[pool]]\nname = \"cache\"\ntenant = \"web\"\nnodes = {SERVERS:?}\n{lines}\
             [[gateway]]\nname = \"front\"\nmemcached = \"127.0.0.1:0\"\n"
        ));
        cluster.up();
        let output = cluster.bed().controller().stdout();
        let address = output.split_whitespace().find_map(|word| word.strip_prefix("memcached://"));
        let address = address.unwrap_or_else(|| panic!("no address in {output}")).to_owned();
        Self { cluster, address, servers: servers.into() }
    }

    fn client(&self, program: &str, arguments: &[&str]) -> ProgramOutcome {
        self.cluster.client(program, arguments)
    }

    fn memcapable(&self, protocol: &str) -> ProgramOutcome {
        let (host, port) = self.address.split_once(':').expect("a host and a port");
        self.client("memccapable", &["-h", host, "-p", port, "-t", "20", protocol])
    }

    fn tidegate(&mut self, arguments: &[&str]) -> Command {
        self.cluster.bed().tidegate(arguments)
    }

    /// The sum of what the servers say of themselves under this name. Each has some of it.
    fn counted(&self, name: &str) -> u64 {
        let counts = self.servers.iter().map(|(_, socket)| statistic(socket, name));
        counts.inspect(|count| assert!(*count > 0, "a server has no part in {name}")).sum()
    }
}

/// A client that sends given bytes.
fn stranger(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A memcached at this socket.
pub(super) fn server(socket: &Path) -> (Running, PathBuf) {
    let mut command = Command::new(tools::need("memcached"));
    // Only root may, and has to, say who it is.
    command.arg("-s").arg(socket).args(["-m", "64", "-t", "1", "-u", "root"]);
    let server = process::spawn(command.stdin(Stdio::null()));
    wait_for("a memcached", PATIENCE, || UnixStream::connect(socket).ok());
    (server, socket.to_owned())
}

/// A number of those that memcached reports.
fn statistic(socket: &Path, name: &str) -> u64 {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"stats\r\nquit\r\n").unwrap();
    let lines: Vec<String> = BufReader::new(stream).lines().map_while(Result::ok).collect();
    let found = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
    found.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no {name} in {lines:?}"))
}

#[test]
fn memcapable_finds_nothing_amiss() {
    let mut pool = Pool::new("flush_all = true\n");
    let report = pool.memcapable("-a").success();
    assert!(report.stdout.ends_with("All tests passed\n"), "{report:?}");
    // The binary protocol is turned away at once; all that has a test pass there is to hang up.
    let report = pool.memcapable("-b").failure(1);
    assert!(report.stderr.contains("26 of 27 tests failed"), "{report:?}");
    assert!(!report.stderr.contains("timed out"), "{report:?}");
    let reason = "reason=a request of memcached's binary protocol; only the text protocol is \
                  supported";
    let log = pool.cluster.bed().controller().stderr();
    assert!(log.contains(reason), "{log}");
    pool.memcapable("-a").success();
}

/// How `tidegate status` finds a node of the pool.
fn node(status: &Value, name: &str) -> Value {
    let nodes = status["cluster"]["nodes"].as_array().expect("nodes");
    nodes.iter().find(|node| node["name"] == name).expect("the node").clone()
}

/// Nothing is asked of the pool meanwhile, or much: it is seen either way, and reported once.
#[test]
fn a_memcached_that_dies_is_seen_and_its_return_is_too() {
    let mut pool = Pool::new("");
    let (server_b, socket) = pool.servers.pop().expect("two servers");
    server_b.kill();
    fs::remove_file(&socket).expect("the socket is there");
    let fault = |cluster: &mut Cluster| node(&cluster.bed().status(), "b")["store_fault"].clone();
    eventually("the fault in the status", || fault(&mut pool.cluster).is_string());
    let report = fault(&mut pool.cluster).to_string();
    assert!(
        report.contains(&format!("memcached at unix:{} is away", socket.display())),
        "{report}"
    );
    let screen = process::run(&mut pool.tidegate(&["status"])).success().stdout;
    assert!(screen.contains("warning: node b: memcached at ") && screen.contains("faulty"));
    // Some of these keys are at each server; those of the dead one fail, and the log is silent.
    let mut client = stranger(&pool.address);
    for number in 0..1_000 {
        client.write_all(format!("get key-{number}\r\n").as_bytes()).unwrap();
    }
    let mut replies = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
    let failed = replies.by_ref().take(1_000).filter(|line| line != "END").count();
    assert!((1..1_000).contains(&failed), "{failed}");
    pool.servers.push(server(&socket));
    eventually("its end", || fault(&mut pool.cluster).is_null());
    let log = pool.cluster.bed().controller().stderr();
    let of_memcached: Vec<&str> = log.lines().filter(|line| line.contains("memcached")).collect();
    assert_eq!(of_memcached.len(), 2, "{log}");
    assert!(of_memcached.iter().all(|line| line.contains("node=\"b\"")), "{log}");
    let [away, back] = ["memcached is away", "memcached is back"];
    assert!(of_memcached[0].contains(away) && of_memcached[1].contains(back), "{log}");
}

#[test]
fn only_a_pool_with_flush_all_is_emptied() {
    let pool = Pool::new("");
    let report = pool.memcapable("-a").failure(1);
    assert!(report.stderr.contains("2 of 27 tests failed"), "{report:?}");
    // A test that fails is not reported to pass, on the line of the next one.
    let line = report.stdout.lines().find(|line| line.starts_with("ascii flush "));
    let words: Vec<_> = line.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words.join(" "), "ascii flush ascii flush noreply ascii add [pass]", "{report:?}");
}

#[test]
fn strangers_are_sent_away_with_a_reason() {
    let mut pool = Pool::new("");
    let output = |mut stream: &TcpStream, words: &[u8]| stream.write_all(words).unwrap();
    let client = stranger(&pool.address);
    output(&client, b"set planet 0 0 5\r\nearth\r\n");
    for (words, reason) in [
        (
            vec![0x80; 24],
            "a request of memcached's binary protocol; only the text protocol is supported",
        ),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), "a request of HTTP"),
        (vec![b'x'; 2_100], "malformed request: the line is too long"),
    ] {
        let mut stream = stranger(&pool.address);
        output(&stream, &words);
        assert!(is_closed(&mut stream), "the connection stays open");
        let reason = format!("reason={reason}");
        eventually(&reason, || pool.cluster.bed().controller().stderr().contains(&reason));
    }
    output(&client, b"get planet\r\nquit\r\n");
    let received: Vec<String> = BufReader::new(client).lines().map_while(Result::ok).collect();
    assert_eq!(received, ["STORED", "VALUE planet 0 5", "earth", "END"]);
}

#[test]
fn memaslap_reads_what_it_wrote() {
    let pool = Pool::new("");
    // So many requests, one in ten a `set`; every value that is read is compared.
    let common = ["-s", &pool.address, "-T", "2", "-c", "16", "-x", "20000", "-v", "1", "-b"];
    for more in [&[][..], &["-d", "10", "-X", "700"]] {
        let report = pool.client("memcaslap", &[&common[..], more].concat()).success();
        for wanted in [
            "cmd_get: 18000",
            "cmd_set: 2000",
            "get_misses: 0",
            "verify_misses: 0",
            "verify_failed: 0",
        ] {
            let is_printed = report.stdout.lines().any(|line| line == wanted);
            assert!(is_printed, "no {wanted}: {report:?}");
        }
        assert!(!format!("{report:?}").contains("_ERROR"), "{report:?}");
    }
    assert_eq!(pool.counted("cmd_set"), 4000);
}

#[test]
fn a_load_counts_what_the_servers_count() {
    let mut pool = Pool::new("");
    let uri = format!("memcached://{}", pool.address);
    let load = ["--rate", "1k iops", "--duration", "1s", "--warmup", "0s", "--depth", "1000"];
    let keys = ["--keys", "500", "--fill", "--read", "70%", "--json"];
    let mut command =
        pool.cluster.bed().tidegate_lab(&[&["load", &uri][..], &load, &keys].concat());
    let report = process::run(&mut command).success();
    let report: Value = serde_json::from_str(&report.stdout).expect("JSON");
    let count = |what: &str| report[what]["count"].as_u64().expect("a count");
    assert_eq!((&report["failed"], &report["missed"]), (&0.into(), &0.into()), "{report:#}");
    let unsent = report["unsent"].as_u64().expect("a count");
    assert_eq!(count("all") + unsent, 1000, "what was due was sent, or is said not to be");
    // Requests that were sent and not awaited are served all the same.
    eventually("what was sent", || {
        let served = ["cmd_get", "cmd_set"].map(|name| pool.counted(name));
        served == [count("reads"), count("writes") + 500]
    });
}

/// Where `make test-ycsb` puts YCSB.
const YCSB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/ycsb");

#[test]
fn ycsb_reads_what_it_wrote() {
    let Some(java) = tools::want("java") else { return };
    let library = format!("{YCSB}/target/lib");
    if !fs::exists(&library).unwrap() {
        return tools::skipped("YCSB is not built; make test-ycsb does that, and runs this");
    }
    let pool = Pool::new("");
    let ycsb = |phase: &str, share: [&str; 2]| {
        let mut command = Command::new(&java);
        command.arg("-cp").arg(format!("{library}/*")).arg("site.ycsb.Client");
        command.args([phase, "-db", "tidegate.Pool", "-threads", "4", "-P"]);
        command.arg(format!("{YCSB}/verified.properties"));
        command.arg("-p").arg(format!("memcached={}", pool.address));
        let [reads, updates] = share;
        command.arg("-p").arg(format!("readproportion={reads}"));
        command.arg("-p").arg(format!("updateproportion={updates}"));
        let report = process::run(&mut command).success();
        let returns = report.stdout.lines().filter_map(|line| {
            let (what, came) = line.split_once(", Return=")?;
            let (status, count) = came.split_once(", ")?;
            assert_eq!(status, "OK", "{report:?}");
            Some((what.to_owned(), count.parse::<u64>().expect("a count")))
        });
        let returns: Vec<_> = returns.collect();
        let count = |what: &str| returns.iter().find(|(kind, _)| kind == what).map(|(_, n)| *n);
        ["[INSERT]", "[READ]", "[VERIFY]", "[UPDATE]"].map(count)
    };
    assert_eq!(ycsb("-load", ["1", "0"]), [Some(1000), None, None, None]);
    // Workloads A and B.
    for share in [["0.5", "0.5"], ["0.95", "0.05"]] {
        let [_, Some(read), Some(verified), Some(updated)] = ycsb("-t", share) else {
            panic!("reads and updates");
        };
        assert!(read == verified && read + updated == 5000, "{read}, {verified}, {updated}");
    }
    assert_eq!(pool.counted("curr_items"), 1000);
}
