//! Trace replay: a recorded load on the simulated nodes of a cluster, under one policy or two.

use std::cell::RefCell;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate_algo::allocation::admission;
use tidegate_model::{Span, WaitRule};
use tidegate_sim::twin::{
    self, Figures, Fit, Kept, Plan, PlanError, Progress, RecordedLoad, Service, ServiceTimes,
    TenantReport, TwinReport,
};

use tidegate_console::amounts;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::Interrupt;
use tidegate_console::output::{self, Paint};
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::table::{Cell, Table};
use tidegate_console::text_file::{self, Reader};

use super::watch::ReplayWatch;

/// The name of a tenant's row that shows what was recorded.
const RECORDED: &str = "recorded";

/// A replay that is further from its recording predicts nothing.
const DISTANCE_MAX: f64 = 0.2;

/// Policies in one run.
const COMPARED_MAX: usize = 2;

/// The service times of devices, as on the command line: `100us`, or `100us,4` for four at once.
pub(super) fn service(text: &str) -> Result<Service, String> {
    let (each, at_once) = text.split_once(',').unwrap_or((text, "1"));
    let each: Span = each.parse().map_err(|error| format!("{error}"))?;
    let at_once = at_once.parse().ok().filter(|count| (1..=1024).contains(count));
    let at_once = at_once.ok_or("write how many are served at once as a number from 1 to 1024")?;
    match each {
        Span::ZERO => Err("write more than no time, like 100us".into()),
        each => Ok(Service::Timed(ServiceTimes::fixed(each, at_once))),
    }
}

/// The part of a recording, as on the command line.
pub(super) fn span(text: &str) -> Result<Span, String> {
    match text.parse() {
        Ok(Span::ZERO) => Err("write more than no time, like 10min".into()),
        Ok(span) => Ok(span),
        Err(error) => Err(format!("{error}")),
    }
}

/// The files of a run.
pub(super) struct TwinFiles<'a> {
    pub(super) load: &'a Path,
    /// How much of it is made again, from its beginning; none for all.
    pub(super) span: Option<Span>,
    pub(super) cluster: Option<&'a Path>,
    pub(super) policies: &'a [PathBuf],
    pub(super) service: Service,
    /// The policy that was in force.
    pub(super) recorded_under: Option<&'a Path>,
    pub(super) seed: u64,
}

/// The result under one policy.
struct Outcome {
    policy: String,
    /// Rules of the policy that match no recorded request, because a recording has no offsets.
    unmatched: usize,
    report: TwinReport,
}

pub(super) fn run(order: &TwinFiles<'_>, common: &Common) -> Result<ExitCode, Failure> {
    let (Some(cluster), [_, ..]) = (order.cluster, order.policies) else {
        let failure = Failure::new(Code::Usage, "a recording says neither nodes nor promises");
        return Err(failure.help("name the files: --cluster CLUSTER --policy POLICY"));
    };
    if order.policies.len() > COMPARED_MAX {
        let failure = Failure::new(Code::Usage, "more than two policies cannot be compared");
        return Err(failure.help("run the command again for the others"));
    }
    let cluster = ClusterFile::read(cluster, Reader::User)?;
    let admitted = |path: &PathBuf| admitted(path, &cluster);
    let policies = order.policies.iter().map(admitted).collect::<Result<Vec<_>, _>>()?;
    let load = read(order.load, order.span)?;
    let watch = RefCell::new(ReplayWatch::start(load.span, load.len()));
    let interrupt = Interrupt::listen()?;
    let goes_on = |what: &str, progress: Progress| {
        watch.borrow_mut().report(what, progress);
        interrupt.check().is_ok()
    };
    let wrong = |error: PlanError| Failure::quoted(Code::Invalid, &error.to_string());
    let TwinFiles { service, seed, .. } = *order;
    let (cluster, transit) = (&cluster.cluster, Span::ZERO);
    let found = match order.recorded_under {
        Some(path) => {
            let policy = &PolicyFile::read(path, Reader::User)?.policy;
            let plan = Plan { cluster, policy, load: &load, service, transit, seed };
            let found = twin::fit(&plan, |progress| goes_on("finding times", progress));
            found.map_err(wrong)?
        }
        None => None,
    };
    interrupt.check()?;
    let (service, transit) = found.map_or((service, transit), |it| (it.service, it.transit));
    let mut outcomes = Vec::new();
    for PolicyFile { name, policy, .. } in &policies {
        let plan = Plan { cluster, policy, load: &load, service, transit, seed };
        let report = twin::run(&plan, |progress| goes_on(name, progress)).map_err(wrong)?;
        // None if Ctrl-C has ended it.
        let Some(report) = report else { break };
        let unmatched = policy.matches.iter().filter(|it| it.storage.offset.is_some()).count();
        outcomes.push(Outcome { policy: name.clone(), unmatched, report });
    }
    watch.borrow().end();
    interrupt.check()?;
    let recorded = load.report();
    match common.json {
        true => output::print_json(&to_json(&load, found.as_ref(), &recorded, &outcomes))?,
        false => {
            let times = found.as_ref().map(times).unwrap_or_default();
            output::print(&(times + &formatted(&load, &recorded, &outcomes, Paint::stdout())))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A policy that the cluster can keep.
fn admitted(path: &Path, cluster: &ClusterFile) -> Result<PolicyFile, Failure> {
    let policy = PolicyFile::read(path, Reader::User)?;
    let refusals = admission::admit(&policy.policy, Some(&cluster.cluster)).err();
    let refusals = refusals.unwrap_or_default();
    let failures = refusals.iter().map(|refusal| policy.refused(Some(cluster), refusal));
    Failure::all(failures).map_or(Ok(policy), Err)
}

/// The times that were found, as a line.
fn times(found: &Fit) -> String {
    let devices = match found.service {
        Service::Declared => "devices as declared".to_owned(),
        Service::Timed(times) => format!(
            "a device takes {} for each 128 KiB and {} more for each MiB, {} at once; {} % of each \
             time varies",
            amounts::span(times.each.0),
            amounts::span(times.per_mib.0),
            times.at_once,
            times.varying_percent,
        ),
    };
    let text = format!(
        "times found: {devices}; {} outside of nodes. The replay is {} from the recording\n",
        amounts::span(found.transit.0),
        amounts::permille((found.distance * 1_000.0) as u64)
    );
    text + &doubtful(found).map_or_else(String::new, |doubt| format!("warning: {doubt}\n"))
}

/// The warning about a replay that is too far from the recording, and its remedy.
fn doubtful(found: &Fit) -> Option<String> {
    let declared = match found.service {
        Service::Declared => {
            "; nodes have the speed that the cluster file declares: remove `capacity` and `model` \
             from a copy of it, and the speed is found, too"
        }
        Service::Timed(_) => "; record for a longer time, or on a quieter machine",
    };
    (found.distance > DISTANCE_MAX).then(|| {
        format!(
            "the replay does not repeat the recording, so do not trust what it predicts{declared}"
        )
    })
}

fn fit_json(found: &Fit) -> Value {
    let times = match found.service {
        Service::Declared => None,
        Service::Timed(times) => Some(times),
    };
    json!({
        "each_ns": times.map(|times| times.each.0),
        "per_mib_ns": times.map(|times| times.per_mib.0),
        "at_once": times.map(|times| times.at_once),
        "varying_percent": times.map(|times| times.varying_percent),
        "transit_ns": found.transit.0,
        "distance": found.distance,
        "warning": doubtful(found),
    })
}

fn read(path: &Path, span: Option<Span>) -> Result<RecordedLoad, Failure> {
    let name = path.display().to_string();
    let file =
        File::open(path).map_err(|error| text_file::unreadable("recording", &name, &error))?;
    RecordedLoad::read_until(BufReader::with_capacity(1 << 20, file), span.unwrap_or(Span::MAX))
        .map_err(|error| Failure::quoted(Code::Invalid, &format!("{name}: {error}")))
}

/// All tenants of all reports, each once, in the order in which they first come.
fn tenants<'a>(recorded: &'a TwinReport, outcomes: &'a [Outcome]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    let reports = outcomes.iter().map(|outcome| &outcome.report).chain([recorded]);
    for tenant in reports.flat_map(|report| &report.tenants) {
        if !names.contains(&&*tenant.name) {
            names.push(&tenant.name);
        }
    }
    names
}

fn formatted(
    load: &RecordedLoad,
    recorded: &TwinReport,
    outcomes: &[Outcome],
    paint: Paint,
) -> String {
    let mut text = format!(
        "{} in {}\n",
        amounts::plural(load.len() as u64, "recorded request"),
        amounts::span(load.span.0),
    );
    if load.is_cut_off {
        text += "warning: the recording has no end; the requests before it are replayed\n";
    }
    if load.lost > 0 {
        let lost = amounts::plural(load.lost, "request");
        text += &format!("warning: the recording lacks {lost}: buffers were full\n");
    }
    for Outcome { policy, unmatched, .. } in outcomes.iter().filter(|it| it.unmatched > 0) {
        let rules = amounts::plural(*unmatched as u64, "rule");
        text += &format!(
            "warning: {rules} of {policy} with `offset` had no effect: a recording has no offsets\n"
        );
    }
    let mut table = Table::new()
        .left("TENANT")
        .left("UNDER")
        .each_right(["PER SECOND", "MEAN", "P50", "P99", "P99.9", "KEPT"])
        .each_right(["LIMIT", "RESERVATION", "TURN", "DEVICE"]);
    for name in tenants(recorded, outcomes) {
        let mut shown = if name.is_empty() { "(none)" } else { name };
        let find = |report: &'_ TwinReport| {
            report.tenants.iter().find(|tenant| tenant.name == name).cloned()
        };
        let all = [(RECORDED, recorded)].into_iter();
        let all = all.chain(outcomes.iter().map(|it| (&*it.policy, &it.report)));
        for (under, report) in all {
            let Some(tenant) = find(report) else { continue };
            let mut cells: Vec<Cell> = vec![std::mem::take(&mut shown).into(), under.into()];
            cells.extend(figures(&tenant.figures, report.span).map(Cell::from));
            cells
                .push(tenant.kept.map_or("-".into(), |kept| share(kept.kept, kept.periods)).into());
            let total = tenant.waits.total_ns();
            let held = |rule: WaitRule| match total {
                0 => "-".into(),
                _ => share(tenant.waits.of(rule), total),
            };
            cells.extend(WaitRule::ALL.map(held).map(Cell::from));
            table.row(cells);
        }
    }
    text + "\n" + &table.render(paint, usize::MAX)
}

fn figures(figures: &Figures, span: Span) -> [String; 5] {
    let latency = |of: Span| if figures.requests == 0 { "-".into() } else { amounts::span(of.0) };
    let Figures { mean, p50, p99, p999, .. } = *figures;
    let rate = amounts::count(per_second(figures.requests, span));
    [rate, latency(mean), latency(p50), latency(p99), latency(p999)]
}

fn per_second(count: u64, span: Span) -> u64 {
    let rate = u128::from(count) * u128::from(Span::SECOND.0);
    rate.checked_div(u128::from(span.0)).unwrap_or(0) as u64
}

fn share(part: u64, whole: u64) -> String {
    let permille = u128::from(part) * 1_000;
    amounts::permille(permille.checked_div(u128::from(whole)).unwrap_or(0) as u64)
}

fn to_json(
    load: &RecordedLoad,
    found: Option<&Fit>,
    recorded: &TwinReport,
    outcomes: &[Outcome],
) -> Value {
    let policies = outcomes.iter().map(|Outcome { policy, unmatched, report }| {
        json!({
            "policy": policy,
            "rules_without_effect": unmatched,
            "tenants": tenants_json(report, true),
        })
    });
    json!({
        "span_ns": load.span.0,
        "requests": load.len(),
        "lost": load.lost,
        "failed": load.failed,
        "is_cut_off": load.is_cut_off,
        "fit": found.map(fit_json),
        "recorded": tenants_json(recorded, false),
        "policies": policies.collect::<Vec<_>>(),
    })
}

fn tenants_json(report: &TwinReport, is_simulated: bool) -> Vec<Value> {
    let tenant = |tenant: &TenantReport| {
        let TenantReport { name, figures, unanswered, kept, waits } = tenant;
        let mut object = json!({
            "tenant": name,
            "requests": figures.requests,
            "bytes": figures.bytes,
            "requests_per_second": per_second(figures.requests, report.span),
            "mean_ns": figures.mean.0,
            "p50_ns": figures.p50.0,
            "p99_ns": figures.p99.0,
            "p999_ns": figures.p999.0,
        });
        if is_simulated {
            let kept_json = |it: &Kept| json!({ "kept": it.kept, "periods": it.periods });
            object["unanswered"] = json!(unanswered);
            object["reservation"] = kept.as_ref().map_or(Value::Null, kept_json);
            object["waits"] = json!(waits);
        }
        object
    };
    report.tenants.iter().map(tenant).collect()
}
