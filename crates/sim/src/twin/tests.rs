use std::fmt::Write;

use tidegate_model::{Cluster, Policy, WaitRule};

use super::*;
use crate::rng::Stream;
use crate::time::Picoseconds;

/// Two nodes of 10,000 requests per second, with a volume on both and one on the second.
const CLUSTER: &str = r#"
    [[node]]
    name = "a"
    memory = true
    capacity = "10k iops"
    [[node]]
    name = "b"
    memory = true
    capacity = "10k iops"
    [[volume]]
    name = "db"
    size = "1GiB"
    tenant = "oltp"
    nodes = ["a", "b"]
    [[volume]]
    name = "logs"
    size = "1GiB"
    tenant = "backup"
    nodes = "b"
"#;

/// The lines of a recording of so many seconds.
fn recording(seconds: u64, lines: &str) -> String {
    let end = seconds * 1_000_000_000;
    format!(
        "tidegate recording 1\ntenant 0 oltp\ntenant 1 backup\nconnection 0 front db oltp\n\
         connection 1 front logs backup\n{lines}end {end} 0 0\n"
    )
}

/// A client with `depth` requests under way, each of which took `latency`, and `think` between an
/// answer and the next request, for so many nanoseconds.
fn closed(connection: u32, depth: u64, (latency, think): (u64, u64), until: u64) -> String {
    let mut lines = String::new();
    for place in 0..depth {
        let mut at = place * (latency + think) / depth;
        while at + latency <= until {
            // Both nodes in turn.
            let position = (place + at / (latency + think)) % 2 * 65_536;
            let request = format!("{connection} {connection} read 4096 {position}");
            writeln!(lines, "{at} {latency} {request}").unwrap();
            at += latency + think;
        }
    }
    lines
}

/// A client that asks at even times, whatever the answers do.
fn paced(connection: u32, gap: u64, latency: u64, until: u64) -> String {
    let times = (0..until / gap).map(|number| number * gap);
    let line = |at| format!("{at} {latency} {connection} {connection} write 4096 0\n");
    times.filter(|at| at + latency <= until).map(line).collect()
}

fn load(text: &str) -> RecordedLoad {
    RecordedLoad::read(text.as_bytes()).unwrap()
}

#[track_caller]
fn twin(load: &RecordedLoad, policy: &str, service: Service) -> TwinReport {
    let (cluster, policy) = (Cluster::parse(CLUSTER).unwrap(), Policy::parse(policy).unwrap());
    let transit = Span::ZERO;
    let plan = Plan { cluster: &cluster, policy: &policy, load, service, transit, seed: 1 };
    let report = run(&plan, |_| true).unwrap().unwrap();
    assert_eq!(run(&plan, |_| true), Ok(Some(report.clone())), "two runs are the same");
    report
}

fn of<'a>(report: &'a TwinReport, tenant: &str) -> &'a TenantReport {
    report.tenants.iter().find(|it| it.name == tenant).unwrap()
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn clients_that_wait_for_answers_are_distinguished() {
    let is_closed = |lines: &str| load(&recording(1, lines)).connections[0].is_closed;
    assert!(is_closed(&closed(0, 1, (300_000, 50_000), SECOND)));
    assert!(is_closed(&closed(0, 16, (8_000_000, 50_000), SECOND)));
    assert!(!is_closed(&paced(0, 2_000_000, 300_000, SECOND)));
    // Many are under way for a moment, and mostly none.
    let burst = "5000000 9000000 0 0 read 4096 0\n".repeat(16);
    assert!(!is_closed(&format!("{}{burst}", paced(0, 700_000, 300_000, SECOND))));
    // A client that has stopped does not begin again.
    let goes_on = |until| {
        let lines = closed(0, 2, (300_000, 50_000), until);
        load(&recording(1, &lines)).connections[0].goes_on
    };
    assert!(goes_on(SECOND) && !goes_on(SECOND / 2));
}

#[test]
fn requests_that_were_read_together_follow_one_answer_each() {
    // Four are answered at 100 and the next four come at 110.
    let four = |at: u64, latency: u64| format!("{at} {latency} 0 0 read 4096 0\n").repeat(4);
    let text = recording(1, &format!("{}{}{}", four(0, 100), four(110, 90), four(210, 50)));
    let load = load(&text);
    let follows: Vec<u32> = load.connections[0].requests.iter().map(|it| it.follows).collect();
    assert_eq!(follows, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(load.connections[0].depth, 4);
}

/// A client that was limited has all that there is once it is not, and the other way around.
#[test]
fn a_limit_holds_a_client_that_waits_for_answers() {
    let load = load(&recording(4, &closed(1, 8, (3_950_000, 50_000), 4 * SECOND)));
    assert!((7_980..8_000).contains(&of(&load.report(), "backup").figures.requests));
    let free = twin(&load, "[[tenant]]\nname = \"backup\"\n", Service::Declared);
    let free = of(&free, "backup");
    assert!(free.figures.requests.abs_diff(40_000) < 400, "{free:?}");
    assert!(free.waits.of(WaitRule::Device) > 9 * free.waits.of(WaitRule::Limit), "{free:?}");
    let limited = "[[tenant]]\nname = \"backup\"\nlimit = \"1k iops\"\n";
    let limited = twin(&load, limited, Service::Declared);
    let limited = of(&limited, "backup");
    assert!(limited.figures.requests.abs_diff(4_000) < 100, "{limited:?}");
    assert!(
        limited.waits.of(WaitRule::Limit) > 9 * limited.waits.of(WaitRule::Device),
        "{limited:?}"
    );
    assert_eq!(limited.kept, None);
    // 8 under way at 1,000 per second: 8 ms.
    assert!(limited.figures.mean.0.abs_diff(8_000_000) < 400_000, "{limited:?}");
}

/// Both have as many requests under way, and half of them at the second node are the neighbour's.
#[test]
fn a_reservation_is_kept_against_a_greedy_neighbour() {
    let lines = format!(
        "{}{}",
        closed(0, 64, (6_350_000, 50_000), 4 * SECOND),
        closed(1, 64, (12_750_000, 50_000), 4 * SECOND)
    );
    let load = load(&recording(4, &lines));
    let tenants = "[[tenant]]\nname = \"oltp\"\nreservation = \"12k iops\"\n\
                   [[tenant]]\nname = \"backup\"\n";
    let report = twin(&load, tenants, Service::Declared);
    let kept = of(&report, "oltp").kept.unwrap();
    assert_eq!(kept.periods, 4);
    assert!(kept.kept >= 3, "{report:?}");
    assert!(of(&report, "oltp").figures.requests >= 46_000, "{report:?}");
    let of_nodes = "[[resource]]\nname = \"cluster\"\n[[tenant]]\nname = \"oltp\"\n\
                    [tenant.on.cluster]\nreservation = \"12k iops\"\n\
                    [[tenant]]\nname = \"backup\"\n";
    let named = twin(&load, of_nodes, Service::Declared);
    assert_eq!(of(&named, "oltp").kept, Some(kept), "a promise of the nodes' resource");
    let without =
        twin(&load, &tenants.replace("reservation = \"12k iops\"", ""), Service::Declared);
    let requests = |report: &TwinReport| of(report, "oltp").figures.requests;
    assert!(requests(&without) < requests(&report), "{without:?}");
}

/// A promise of a named resource in bytes: a request of 1 MiB is one operation and 1 MiB, although
/// the node serves it in pieces.
#[test]
fn large_requests_are_served_in_pieces_and_bytes_are_promised() {
    let large = |at: u64| format!("{at} 9000000 0 0 read 1048576 0\n");
    let lines: String = (0..400).map(|number| large(number * 10_000_000)).collect();
    let load = load(&recording(4, &lines));
    let policy = "[[resource]]\nname = \"cluster\"\ncapacity = [\"1k iops\", \"400MiB/s\"]\n\
                  [[tenant]]\nname = \"oltp\"\n[tenant.on.cluster]\n\
                  reservation = [\"90 iops\", \"90MiB/s\"]\n";
    let service = |each| Service::Timed(ServiceTimes::fixed(Span(each), 1));
    // A request has four pieces at each of the two nodes that its stripes are on... and more of
    // them than the device does in time break the promise.
    let fast = twin(&load, policy, service(1_000_000));
    let fast = of(&fast, "oltp");
    assert_eq!(fast.figures.bytes, 400 << 20, "{fast:?}");
    assert!(
        fast.figures.mean >= Span(8_000_000),
        "sixteen pieces of 64 KiB on two nodes: {fast:?}"
    );
    assert_eq!(fast.kept, Some(Kept { kept: 4, periods: 4 }));
    let slow = twin(&load, policy, service(2_000_000));
    assert_eq!(of(&slow, "oltp").kept, Some(Kept { kept: 0, periods: 4 }));
}

/// The times with which a replay repeats the recording are found, and serve other policies.
#[test]
fn the_times_of_devices_and_of_the_way_are_found() {
    // Eight under way on one device: 10,000 requests per second. One on both: it never waits.
    let lines = format!(
        "{}{}",
        closed(1, 8, (800_000, 10_000), SECOND / 8),
        paced(0, 600_000, 120_000, SECOND / 8)
    );
    let load = load(recording(1, &lines).split("end").next().unwrap());
    let cluster = CLUSTER.replace("capacity = \"10k iops\"", "");
    let cluster = Cluster::parse(&cluster).unwrap();
    let policy = Policy::parse("[[tenant]]\nname = \"oltp\"\n[[tenant]]\nname = \"backup\"\n");
    let policy = policy.unwrap();
    let (service, transit, load) = (Service::Declared, Span::ZERO, &load);
    let plan = Plan { cluster: &cluster, policy: &policy, load, service, transit, seed: 1 };
    let found = fit(&plan, |_| true).unwrap().unwrap();
    let Service::Timed(times) = found.service else { panic!("{found:?}") };
    // All requests have 4 KiB, so that the time of a unit and that of bytes cannot be told apart.
    let rate = f64::from(times.at_once) * 1e9 / (times.each.0 + times.per_mib.0 / 256) as f64;
    assert!((9_000.0..11_500.0).contains(&rate), "{found:?}");
    assert!(found.distance < 0.15, "{found:?}");
    assert_eq!(fit(&plan, |_| true).unwrap(), Some(found), "two searches find the same");
    assert_eq!(fit(&plan, |_| false), Ok(None));
    let plan = Plan { service: found.service, transit: found.transit, ..plan };
    let report = run(&plan, |_| true).unwrap().unwrap();
    let requests = of(&report, "backup").figures.requests;
    assert!(requests.abs_diff(1_230) < 80, "{requests} {found:?}");
}

/// A disk's times vary: half of the requests take 0.7 of the mean or less, and one of a hundred
/// takes 4.6 times the mean or more.
#[test]
fn times_that_vary_are_found() {
    let mut random = Stream::new(3, "disk", 0);
    let line = |number: u64| {
        let takes = random.exponential(Picoseconds(200_000)).0 + 1;
        format!("{} {takes} 1 1 read 4096 0\n", number * 2_000_000)
    };
    let load = load(&recording(1, &(0..490).map(line).collect::<String>()));
    let cluster = Cluster::parse(&CLUSTER.replace("capacity = \"10k iops\"", "")).unwrap();
    let policy = Policy::parse("[[tenant]]\nname = \"backup\"\n").unwrap();
    let (service, transit, load) = (Service::Declared, Span::ZERO, &load);
    let plan = Plan { cluster: &cluster, policy: &policy, load, service, transit, seed: 1 };
    let found = fit(&plan, |_| true).unwrap().unwrap();
    let Service::Timed(times) = found.service else { panic!("{found:?}") };
    assert!(times.varying_percent >= 50 && found.distance < 0.1, "{found:?}");
    let plan = Plan { service: found.service, transit: found.transit, ..plan };
    let (seen, replayed) = (load.report(), run(&plan, |_| true).unwrap().unwrap());
    let [seen, replayed] = [&seen, &replayed].map(|report| of(report, "backup").figures);
    assert!(replayed.p50.0.abs_diff(seen.p50.0) * 5 <= seen.p50.0, "{seen:?} {replayed:?}");
    assert!(replayed.p99.0.abs_diff(seen.p99.0) * 5 <= seen.p99.0, "{seen:?} {replayed:?}");
}

/// Each request meets an idle device, so it takes as long as the device does.
#[test]
fn clients_that_do_not_wait_ask_when_they_asked() {
    let load = load(&recording(2, &paced(1, 2_000_000, 300_000, 2 * SECOND)));
    let service = Service::Timed(ServiceTimes::fixed(Span(150_000), 1));
    let report = twin(&load, "[[tenant]]\nname = \"backup\"\n", service);
    let own = of(&report, "backup");
    assert_eq!((own.figures.requests, own.unanswered), (1_000, 0));
    let Figures { mean, p50, p99, p999, bytes, .. } = own.figures;
    assert_eq!([mean, p50, p99, p999], [Span(150_000); 4]);
    assert_eq!(bytes, 1_000 * 4_096);
    // Half as fast as they come: the rest waits, and the client keeps to its depth.
    let slow = Service::Timed(ServiceTimes::fixed(Span(4_000_000), 1));
    let report = twin(&load, "[[tenant]]\nname = \"backup\"\n", slow);
    assert_eq!(of(&report, "backup").figures.requests, 500);
    // Two at once are enough again.
    let two = Service::Timed(ServiceTimes::fixed(Span(4_000_000), 2));
    let report = twin(&load, "[[tenant]]\nname = \"backup\"\n", two);
    assert!(of(&report, "backup").figures.requests <= 500, "its depth was one");
}

#[test]
fn rules_of_the_policy_choose_the_tenant_anew() {
    let load = load(&recording(1, &paced(1, 2_000_000, 300_000, SECOND)));
    let policy = "[[tenant]]\nname = \"etl\"\n[[match]]\ntenant = \"etl\"\nvolume = \"logs\"\n\
                  operation = \"write\"\n";
    let report = twin(&load, policy, Service::Declared);
    assert_eq!(of(&report, "etl").figures.requests, 500);
    // A policy without the export's tenant leaves requests to nobody in particular.
    let report = twin(&load, "[[tenant]]\nname = \"other\"\n", Service::Declared);
    assert_eq!(of(&report, "").figures.requests, 500);
}

#[test]
fn a_part_of_a_recording_is_made_again() {
    let whole = recording(1, &paced(1, 2_000_000, 300_000, SECOND));
    let until = |span: Span| RecordedLoad::read_until(whole.as_bytes(), span);
    // The fiftieth request is answered 98.3 ms after the beginning.
    let part = until(Span(100_000_000)).unwrap();
    assert_eq!((part.len(), part.span, part.is_cut_off), (50, Span(100_000_000), false));
    let report = twin(&part, "[[tenant]]\nname = \"backup\"\n", Service::Declared);
    assert_eq!(of(&report, "backup").figures.requests, 50);
    assert_eq!(until(Span(98_300_000)).unwrap().len(), 50);
    assert_eq!(until(Span(98_299_999)).unwrap().len(), 49);
    let all = load(&whole);
    let longer = until(Span(2 * SECOND)).unwrap();
    assert_eq!((longer.len(), longer.span), (all.len(), all.span));
    let short = until(Span(1)).unwrap_err().to_string();
    assert_eq!(
        short,
        "its first request was answered after 300us; make a longer part again (--span)"
    );
}

#[test]
fn what_is_cut_off_is_made_again_and_what_is_wrong_is_refused() {
    let whole = recording(1, &paced(1, 2_000_000, 300_000, SECOND));
    let end = whole.find("end").unwrap();
    for cut in [end, end + 3, end - 5] {
        let load = load(&whole[..cut]);
        let left = 499 + usize::from(cut >= end);
        assert!(load.is_cut_off && load.len() == left, "{cut}: {}", load.len());
        assert!(load.span.0 < SECOND);
    }
    let refused = |text: &str| RecordedLoad::read(text.as_bytes()).unwrap_err().to_string();
    assert!(refused("").contains("no requests"));
    assert!(refused("period = \"1s\"").contains("line 1: this is no recording"));
    assert!(refused(&whole.replacen("write", "wrote", 1)).contains("line 6: \"wrote\""));
    let long = whole.replacen("end", &"x".repeat(9_000), 1);
    assert!(refused(&long).contains("line 506: the line has more than 512 bytes"));
    assert!(refused(&format!("{whole}end 1 0 0\n")).contains("line 507: the line follows"));
    let load = load(&whole);
    let refused = |cluster: &str| {
        let (cluster, policy) = (Cluster::parse(cluster).unwrap(), Policy::parse("").unwrap());
        let (service, transit, load) = (Service::Declared, Span::ZERO, &load);
        let plan = Plan { cluster: &cluster, policy: &policy, load, service, transit, seed: 1 };
        run(&plan, |_| true).unwrap_err().to_string()
    };
    assert!(refused(&CLUSTER.replace("\"logs\"", "\"log\"")).contains("volume \"logs\", which"));
    assert!(
        refused(&CLUSTER.replace("capacity = \"10k iops\"", "")).contains("the speed of node b")
    );
}

/// The largest request, and times at the bounds of the format, on volumes that may be smaller.
#[test]
fn recordings_at_the_bounds_of_the_format_are_made_again() {
    let day = 86_400 * SECOND;
    for (operation, bytes) in
        [("read", 32u64 << 20), ("write", 32 << 20), ("allocate", 0xffff_ffff)]
    {
        let line =
            |at: u64| format!("{at} {SECOND} 0 0 {operation} {bytes} 18446744073709551615\n");
        let load = load(&recording(2, &(line(0) + &line(SECOND))));
        let report = twin(&load, "[[tenant]]\nname = \"oltp\"\n", Service::Declared);
        assert_eq!(report.span, Span(2 * SECOND));
    }
    let late = 50 * day;
    let line = format!("{late} {late} 0 0 read 4096 0\n").repeat(3);
    assert_eq!(load(&recording(100 * day / SECOND, &line)).len(), 3);
    // A replay of the time until an answer after the end would take days.
    let read = |text: &str| RecordedLoad::read(text.as_bytes()).map(|load| load.len());
    let error = read(&recording(1, &line)).unwrap_err().to_string();
    let expected = "it ends after 1s, and a request was answered after 2400h; correct the time in";
    assert!(error.starts_with(expected), "{error}");
    let whole = recording(1, &line);
    let cut_off = whole.split("end").next().unwrap();
    assert_eq!(read(cut_off).unwrap(), 3, "the last line may be missing");
}
