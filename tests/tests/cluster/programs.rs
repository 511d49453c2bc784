//! Programs under `tidegate run` that open a gateway's Unix sockets: their requests count for their
//! own tenant there.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidegate_tests::cluster::{Cluster, GATEWAY, directories, volume};
use tidegate_tests::process::{self, Running};
use tidegate_tests::{eventually, tools, wait_for};

use super::keys::server;

const POLICY: &str = r#"
    [[tenant]]
    name = "shared"
    [[tenant]]
    name = "report"
    [[tenant]]
    name = "stranger"
"#;

/// The most that programs take for some requests, each of which starts a client of its own.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The tenant that a program is for, and the others.
const REPORT: (&str, [&str; 2]) = ("report", ["shared", "stranger"]);

/// How many requests gateways have passed on for each of these tenants, at one time.
fn requests<const N: usize>(cluster: &mut Cluster, tenants: [&str; N]) -> [u64; N] {
    let status = cluster.bed().status();
    let counted = status["cluster"]["tenants"].as_array().map_or(&[][..], Vec::as_slice);
    tenants.map(|name| {
        let found = counted.iter().find(|it| it["name"] == name);
        found.and_then(|it: &Value| it["gateway_requests"].as_u64()).unwrap_or(0)
    })
}

/// A program of `tenant` that does this again and again, until it is dropped or told to stop.
fn again(cluster: &mut Cluster, tenant: &str, command: &str) -> Running {
    let stop = cluster.bed().path(&format!("stop-{tenant}"));
    let script = format!("until [ -e {} ]; do {command}; done", stop.display());
    process::spawn(&mut cluster.bed().run_script(tenant, &script))
}

/// Ends a program of [`again`].
fn stop(cluster: &mut Cluster, tenant: &str, program: Running) {
    fs::write(cluster.bed().path(&format!("stop-{tenant}")), "").unwrap();
    program.finish().success();
}

/// Waits until a program has made this many requests more, each of which counts for `tenant` alone:
/// the other tenants have none meanwhile. The first ones, until the gateway has heard of the
/// program, count for the tenant of the volume.
#[track_caller]
fn counts_for(cluster: &mut Cluster, count: u64, (tenant, others): (&str, [&str; 2])) {
    let more = |cluster: &mut Cluster| {
        let [before, ..] = requests(cluster, [tenant, others[0], others[1]]);
        let mut seen = [0; 3];
        wait_for("requests of the program", WAIT_MAX, || {
            seen = requests(cluster, [tenant, others[0], others[1]]);
            (seen[0] >= before + count).then_some(())
        });
        [seen[1], seen[2]]
    };
    // Requests from before the gateway knew the program are over after the second wait.
    more(cluster);
    let before = more(cluster);
    assert_eq!(more(cluster), before, "requests of {tenant} count for one of {others:?}");
}

/// A volume of `shared`, which the file lets clients open for `report`, too.
fn blocks() -> Cluster {
    let db = volume("db", "shared", "1MiB", &["a"]) + "tenants = [\"report\"]\n";
    Cluster::new(&(directories(&["a"]) + &db), POLICY)
}

#[test]
fn requests_of_block_clients_count_for_the_tenant_of_their_program() {
    let mut cluster = blocks();
    cluster.up();
    let (copy, uri) = (cluster.bed().path("copy"), cluster.uri("db"));
    let nbdcopy = tools::need("nbdcopy");
    let command = format!("{} --request-size=32768 '{uri}' {}", nbdcopy.display(), copy.display());
    let program = again(&mut cluster, "report", &command);
    counts_for(&mut cluster, 40, REPORT);
    stop(&mut cluster, "report", program);
    let fio = format!(
        "{} --name=job --ioengine=nbd '--uri={uri}' --rw=randwrite --bs=4k --size=1M --iodepth=4 \
         > fio.log",
        tools::need("fio").display()
    );
    fs::remove_file(cluster.bed().path("stop-report")).unwrap();
    let program = again(&mut cluster, "report", &fio);
    counts_for(&mut cluster, 40, REPORT);
    stop(&mut cluster, "report", program);
    // The volume is not offered to this tenant, and its program is served as any client is.
    let program = again(&mut cluster, "stranger", &command);
    counts_for(&mut cluster, 40, ("shared", ["report", "stranger"]));
    stop(&mut cluster, "stranger", program);
}

#[test]
fn a_connection_has_its_tenant_under_the_next_controller_too() {
    let mut cluster = blocks();
    cluster.up_apart(&["a"], &["db"]);
    let uri = cluster.uri("db");
    let fio = format!(
        "{} --name=job --ioengine=nbd '--uri={uri}' --rw=randread --bs=4k --size=1M --iodepth=1 \
         --time_based --runtime=120 --rate_iops=1000 > fio.log",
        tools::need("fio").display()
    );
    let program = process::spawn(&mut cluster.bed().run_script("report", &fio));
    counts_for(&mut cluster, 40, REPORT);
    cluster.bed().kill_controller();
    let mut command = cluster.command(&["--role", "controller"]);
    cluster.bed().up_with(&mut command);
    cluster.bed().wait_for_stages(1);
    eventually("the gateway", || {
        cluster.bed().status()["cluster"]["gateways"][0]["is_connected"] == true
    });
    counts_for(&mut cluster, 40, REPORT);
    program.kill();
}

#[test]
fn requests_for_keys_count_for_the_tenant_of_their_program() {
    let mut cluster = Cluster::new("", POLICY);
    let (_memcached, socket) = server(&cluster.bed().path("a.memcached"));
    cluster.write(&format!(
        "[[node]]\nname = \"a\"\nmemcached = \"unix:{}\"\n\
         [[pool]]\nname = \"cache\"\ntenant = \"shared\"\nnodes = [\"a\"]\n\
         [[gateway]]\nname = {GATEWAY:?}\nmemcached = \"unix:keys.sock\"\n",
        socket.display()
    ));
    cluster.up();
    let file = cluster.bed().path("value");
    fs::write(&file, "some bytes").unwrap();
    let command = |program: &str, rest: &Path| {
        let (program, socket) = (tools::need(program), cluster.path("keys.sock"));
        format!("{} --servers={} {}", program.display(), socket.display(), rest.display())
    };
    let [put, get] = [command("memccp", &file), command("memccat", Path::new("value"))];
    let program = again(&mut cluster, "report", &format!("{put}; {get} > got"));
    counts_for(&mut cluster, 4, REPORT);
    stop(&mut cluster, "report", program);
}
