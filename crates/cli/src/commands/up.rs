//! `tidegate up`: runs the controller, the nodes, the gateways and the data nodes of a cluster, or
//! some of them, in the foreground.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::{FalseyValueParser, PossibleValuesParser, TypedValueParser};
use rustix::process::Signal;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tidegate_algo::allocation::admission;
use tidegate_algo::classify::access;
use tidegate_controller::{
    Config, LogFormat, Logging, Probe, Reasons, ServeError, raise_descriptor_limit, serve_with,
};
use tidegate_fabric::default_paths::{default_socket, default_state};
use tidegate_fabric::stream;
use tidegate_fabric::tls::Guard;
use tidegate_fabric::trusted::{Folder, Purpose, TrustProblem, trust_owner, user_number};
use tidegate_model::cluster::Address;
use tidegate_model::{Cluster, Policy};
use tidegate_proto::controller::status::{PolicyText, Status};
use tidegate_proto::message::OperatorRequest;

mod reload;

use reload::Reload;

use crate::components::{Choice, Components, StartContext, all_peer_names};
use crate::guards::Guards;
use crate::inputs::{Inputs, Named};
use crate::volumes::{create_all, expect_some};
use tidegate_console::address::resolved;
use tidegate_console::amounts;
use tidegate_console::clock;
use tidegate_console::cluster_file::ClusterFile;
use tidegate_console::command_line::Common;
use tidegate_console::failure::{Code, Failure};
use tidegate_console::interrupt::no_signals;
use tidegate_console::operator::Operator;
use tidegate_console::output;
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;

/// Run the daemons in the foreground until they are told to end
///
/// Without a cluster this is the controller only. Policies are kept in the state directory and are
/// in force again after a restart. With a cluster file its nodes and gateways run in the same
/// process. With --role, one kind of them runs in a process of its own, on any machine that has the
/// file and its certificates. Such a process finds the controller at the TCP address of the file,
/// if the file names one and --socket names no other. SIGTERM and SIGINT end it; programs under the
/// controller go on with their last rates.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tidegate up &
  tidegate up --policy policies/shared-disk.toml --http 127.0.0.1:7272
  tidegate up examples/cluster.toml --state /srv/tidegate --create
  tidegate up examples/cluster.toml --role node --name a")]
pub(crate) struct Args {
    /// The cluster: its nodes, volumes, gateways and data nodes
    #[arg(value_name = "CLUSTER", env = "TIDEGATE_CLUSTER", hide_env_values = true)]
    cluster: Option<PathBuf>,

    /// Apply this policy first, or - for the one on standard input; by default the one that the
    /// cluster names, if none is in force yet
    #[arg(long, value_name = "FILE", env = "TIDEGATE_POLICY", hide_env_values = true)]
    policy: Option<PathBuf>,

    /// The directory of policies, token and lock, and of what the cluster names by relative paths;
    /// by default /var/lib/tidegate for root, else tidegate in $XDG_STATE_HOME or ~/.local/state
    #[arg(long, value_name = "DIR", env = "TIDEGATE_STATE", hide_env_values = true)]
    state: Option<PathBuf>,

    /// Where to serve metrics and the HTTP interface, on loopback
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:7171")]
    #[arg(value_parser = address, env = "TIDEGATE_HTTP", hide_env_values = true)]
    http: SocketAddr,

    /// A host name that HTTP requests may have besides localhost, as behind a proxy; requests for
    /// other hosts are refused
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    #[arg(env = "TIDEGATE_HTTP_HOST", hide_env_values = true)]
    http_host: Vec<String>,

    /// Serve no HTTP
    #[arg(long, env = "TIDEGATE_NO_HTTP", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, conflicts_with = "http")]
    no_http: bool,

    /// With --role node, gateway or data-node: where to answer GET /healthz and GET /readyz, on
    /// loopback; by default nowhere
    #[arg(long, value_name = "ADDR:PORT", value_parser = address, requires = "role")]
    #[arg(env = "TIDEGATE_PROBE", hide_env_values = true)]
    probe: Option<SocketAddr>,

    /// Create the volumes that are not there before their nodes start
    #[arg(long, env = "TIDEGATE_CREATE", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true, requires = "cluster")]
    create: bool,

    /// Run only this part of the cluster
    #[arg(long, env = "TIDEGATE_ROLE", hide_env_values = true)]
    role: Option<Role>,

    /// Run only the node, gateway or data node of this name; may be repeated
    #[arg(long, value_name = "NAME", requires = "role")]
    name: Vec<String>,

    /// Begin without the policies of the last run, because their store is damaged or not wanted any
    /// more; the store is set aside in the state directory
    #[arg(long, env = "TIDEGATE_FORGET_POLICY", value_parser = FalseyValueParser::new())]
    #[arg(action = clap::ArgAction::SetTrue, hide_env_values = true)]
    forget_policy: bool,

    /// Trust files and folders of this user, too, and not only those of root and of the user who
    /// starts this; by name or number
    #[arg(long, value_name = "USER", env = "TIDEGATE_TRUST_OWNER", hide_env_values = true)]
    #[arg(value_parser = user_number)]
    trust_owner: Option<u32>,

    /// The log filter for standard error: error, warn, info, debug, or per module
    #[arg(long, value_name = "FILTER", default_value = "info")]
    #[arg(env = "TIDEGATE_LOG", hide_env_values = true)]
    log: String,

    /// How to write each line of the log: for people, or as a JSON object
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    #[arg(env = "TIDEGATE_LOG_FORMAT", hide_env_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(["text", "json"]).map(log_format))]
    log_format: LogFormat,
}

fn log_format(name: String) -> LogFormat {
    match &*name {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    }
}

impl Args {
    fn logging(&self) -> Logging {
        Logging { filter: self.log.clone(), format: self.log_format }
    }
}

/// A part of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// The control plane: it holds the policy and divides what is promised.
    Controller,
    /// Storage nodes.
    Node,
    /// Gateways, where clients connect.
    Gateway,
    /// Data nodes, whose memory clients read and write themselves.
    DataNode,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, like 127.0.0.1:7171".into())
}

/// The components to start, and where.
struct Boot {
    cluster: Option<ClusterFile>,
    choice: Choice,
    base: PathBuf,
    socket: PathBuf,
    /// Where the parts that run here find the controller.
    controller: stream::Address,
    guards: Option<Guards>,
    /// Volumes that are not there are created first.
    create: bool,
    json: bool,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<ExitCode, Failure> {
    args.logging().to_stderr().map_err(not_served)?;
    survive_file_size_limit().map_err(no_signals)?;
    // For lines of the process as a whole. Its parts have spans of their own.
    let role = args.role.and_then(|role| role.to_possible_value());
    let role = role.as_ref().map_or("all", |role| role.get_name());
    let _span = tracing::error_span!("up", role, names = args.name.join(",")).entered();
    args.trust_owner.into_iter().for_each(trust_owner);
    // A fault is a reason not to start, so all files are read before anything exists.
    let leads = matches!(args.role, None | Some(Role::Controller));
    let named = if leads { Named::Wanted } else { Named::Unwanted };
    let policy = args.policy.as_deref().filter(|_| leads);
    let read = Inputs::read(args.cluster.as_deref(), policy, named, Reader::Daemon)?;
    let (cluster, policies) = (read.cluster, (read.policy, read.named));
    let base = args.state.clone().unwrap_or_else(default_state);
    let file = cluster.as_ref().map(|file| &file.cluster);
    let socket = socket(common, file, &base);
    let controller = match (args.role, file.and_then(|file| remote(file))) {
        (Some(Role::Node | Role::Gateway | Role::DataNode), Some(address))
            if common.chosen_socket().is_none() =>
        {
            resolved(address, &base)?
        }
        _ => stream::Address::Unix(socket.clone()),
    };
    let guards = file.and_then(|file| Guards::of_cluster(file, &base));
    let choice = Choice {
        nodes: matches!(args.role, None | Some(Role::Node)),
        gateways: matches!(args.role, None | Some(Role::Gateway)),
        data_nodes: matches!(args.role, None | Some(Role::DataNode)),
        names: args.name.clone(),
    };
    let (create, json) = (args.create, common.json);
    let plan = Boot { cluster, choice, base, socket, controller, guards, create, json };
    match args.role {
        None | Some(Role::Controller) => match args.probe {
            None => lead(args, plan, policies),
            Some(_) => {
                let failure = Failure::new(Code::Usage, "the controller has no --probe");
                Err(failure.help("ask it for /readyz where it serves HTTP: --http"))
            }
        },
        Some(_) => serve(&plan, args.probe, &args.http_host),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The controller's address on this machine: the user's, or the cluster's, or the default.
fn socket(common: &Common, cluster: Option<&Cluster>, base: &Path) -> PathBuf {
    let addresses = cluster.map(|cluster| cluster.controller.as_slice()).unwrap_or_default();
    let named = addresses.iter().find_map(|address| match address {
        Address::Unix(path) => Some(base.join(path)),
        Address::Tcp { .. } => None,
    });
    named.filter(|_| common.chosen_socket().is_none()).unwrap_or_else(|| common.socket())
}

/// Where it listens for other machines, if it does.
fn remote(cluster: &Cluster) -> Option<&Address> {
    cluster.controller.iter().find(|address| matches!(address, Address::Tcp { .. }))
}

/// Runs the controller, and the parts of its cluster that are to run beside it.
fn lead(
    args: Args,
    plan: Boot,
    (policy, first): (Option<PolicyFile>, Option<PolicyFile>),
) -> Result<(), Failure> {
    let mut failures = Vec::new();
    for policy in policy.iter().chain(&first) {
        let cluster = plan.cluster.as_ref();
        let admitted = admission::admit(&policy.policy, cluster.map(|file| &file.cluster));
        let refusals = admitted.err().unwrap_or_default();
        failures.extend(refusals.iter().map(|refusal| policy.refused(cluster, refusal)));
    }
    if let Some(failure) = Failure::all(failures) {
        return Err(failure);
    }
    let config = Config {
        remote: plan.remote()?,
        socket: plan.socket.clone(),
        state: plan.base.clone(),
        forget_policy: args.forget_policy,
        http: (!args.no_http).then_some(args.http),
        log: args.logging(),
        http_hosts: args.http_host,
        cluster: plan.cluster.as_ref().map(|file| file.cluster.clone()),
        cluster_file: plan
            .cluster
            .as_ref()
            .map(|file| file.name.clone().into())
            .unwrap_or_default(),
        ..Config::default()
    };
    let named = plan.cluster.as_ref().and_then(ClusterFile::policy);
    let reload = Reload { policy: args.policy.or(named), socket: plan.socket.clone() };
    // The daemon is queried as by any operator.
    let begin = move |http| {
        let mut led = first_questions(&plan.socket, policy, first)?;
        led.warn_of(plan.cluster.as_ref().map(|file| &file.cluster), &plan.choice);
        let components = plan.start()?;
        announce(&ready(&led, &plan, http, components.as_ref()));
        Ok::<_, Ended>(components)
    };
    serve_with(config, begin, move || reload.run()).map_err(|ended: Ended| ended.0)
}

/// Prints what is ready. A daemon goes on where no process reads that.
fn announce(ready: &str) {
    if output::print(ready).is_err() {
        tracing::warn!("standard output is closed, so nothing is printed there");
    }
}

/// Lets a write beyond the limit of file sizes (`ulimit -f`) fail. The signal's default action is
/// to end the process: one request of a client would end a node.
fn survive_file_size_limit() -> io::Result<()> {
    flag::register(Signal::XFSZ.as_raw(), Arc::default()).map(drop)
}

/// Runs parts of a cluster whose controller is elsewhere.
fn serve(plan: &Boot, probe: Option<SocketAddr>, hosts: &[String]) -> Result<(), Failure> {
    let cluster = plan.cluster.as_ref().map(|file| &file.cluster);
    if cluster.is_none() {
        let failure = Failure::new(Code::Usage, "there is no cluster to run a part of");
        return Err(failure.help("name its file: tidegate up CLUSTER --role node"));
    }
    // Before anything exists that a signal would have to clean up.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(no_signals)?;
    raise_descriptor_limit();
    if let Some(warning) = cluster.and_then(|it| plan.choice.memory_warning(it)) {
        tracing::warn!(warning, "memory may run out");
    }
    let components = plan.start()?.map(Arc::new);
    let reasons = |components: &Arc<Components>| {
        let components = components.clone();
        Arc::new(move || components.unready()) as Reasons
    };
    let probe = probe.zip(components.as_ref().map(reasons));
    let probe = probe
        .map(|(at, reasons)| Probe::start(at, hosts, reasons))
        .transpose()
        .map_err(not_served)?;
    announce(&components_ready(plan, components.as_deref(), probe.as_ref().map(Probe::address)));
    for _ in signals.forever().take_while(|signal| *signal == SIGHUP) {
        tracing::info!("SIGHUP: this process has no policy of its own, and goes on");
    }
    tracing::info!("stopping");
    // It holds the parts, too.
    drop(probe);
    drop(components);
    tracing::info!("stopped");
    Ok(())
}

impl Boot {
    /// Starts what is to run in this process besides the controller.
    fn start(&self) -> Result<Option<Components>, Failure> {
        let Some(file) = &self.cluster else { return Ok(None) };
        Folder::make(&self.base, Purpose::Private).map_err(|error| {
            let base = self.base.display();
            let report = format!("cannot use the state directory {base}: {error}");
            match error.problem {
                TrustProblem::Io(_) => Failure::new(Code::Failure, report)
                    .help("choose another directory with --state"),
                _ => Failure::quoted(Code::Failure, &report),
            }
        })?;
        let context = StartContext {
            cluster: &file.cluster,
            base: &self.base,
            controller: &self.controller,
            guards: self.guards.as_ref(),
        };
        if self.create {
            create_all(&file.cluster, &self.base, |node| self.choice.has_node(node))?;
        } else if self.choice.nodes && self.choice.gateways {
            expect_some(&file.cluster, &self.base)?;
        }
        Components::start(&context, &self.choice).map(Some)
    }

    /// Where the controller listens for other machines, and the certificate that it shows there.
    /// Any certificate of the authority may be a stage's: the hello decides what a peer is.
    fn remote(&self) -> Result<Option<(SocketAddr, Guard)>, Failure> {
        let cluster = self.cluster.as_ref().map(|file| &file.cluster);
        let Some(cluster) = cluster else { return Ok(None) };
        let (Some(address), Some(guards)) = (remote(cluster), &self.guards) else {
            return Ok(None);
        };
        let guard = guards.of(Cluster::CONTROLLER)?.with_components(all_peer_names(cluster));
        match resolved(address, &self.base)? {
            stream::Address::Tcp(address) => Ok(Some((address, guard))),
            stream::Address::Unix(_) => Ok(None),
        }
    }

    /// Where clients find volumes, a line each.
    fn endpoints(&self, components: Option<&Components>, policy: Option<&Policy>) -> Vec<String> {
        let file = self.cluster.as_ref();
        let endpoints = |(components, file): (&Components, &ClusterFile)| {
            components.endpoints(&file.cluster, &self.base, policy)
        };
        components.zip(file).map(endpoints).unwrap_or_default()
    }

    /// Where clients of data nodes come for memory.
    fn memories(components: Option<&Components>) -> Vec<String> {
        components.map(|components| components.memories().collect()).unwrap_or_default()
    }
}

/// How things are once the first questions are answered.
struct Led {
    status: Status,
    policy: Option<PolicyText>,
    /// The policy that the cluster names, if another one stays in force.
    passed_over: Option<String>,
    /// Meaningless statements in the policy that was put in force now, and statements of the
    /// cluster's file that weaken the policy in force.
    doubts: Vec<String>,
}

/// Applies the policy that was given, or the one that the cluster names if none is in force, and
/// queries the status then. A policy that was applied before stays in force: what an operator
/// applied last outlives a restart, whatever the cluster's file names.
fn first_questions(
    socket: &Path,
    policy: Option<PolicyFile>,
    first: Option<PolicyFile>,
) -> Result<Led, Failure> {
    let mut operator = Operator::connect(socket)?;
    let before: Status = operator.call_as(&OperatorRequest::Status)?;
    let named = first.as_ref().map(|first| (first.name.clone(), first.text.clone()));
    let wanted = policy.or(first.filter(|_| before.revision == 0));
    let doubts = wanted.as_ref().map(PolicyFile::doubts).unwrap_or_default();
    if let Some(PolicyFile { text: policy, origin: source, .. }) = wanted {
        operator.call(&OperatorRequest::Apply { policy, source, dry_run: false, expect: 0 })?;
    }
    let status: Status = operator.call_as(&OperatorRequest::Status)?;
    let policy: Option<PolicyText> = match status.revision {
        0 => None,
        _ => Some(operator.call_as(&OperatorRequest::Policy)?),
    };
    let is_other = |text: &str| policy.as_ref().is_some_and(|policy| policy.text != *text);
    let passed_over = named.filter(|(_, text)| is_other(text)).map(|(name, _)| name);
    Ok(Led { status, policy, passed_over, doubts })
}

impl Led {
    /// Which policy is in force, and where it came from.
    fn report(&self) -> String {
        let Some(policy) = &self.policy else { return "no policy yet".into() };
        let tenants = amounts::plural(self.status.tenants.len() as u64, "tenant");
        let source = output::on_one_line(&policy.source);
        format!("policy revision {} with {tenants} from {source}", policy.revision)
    }

    /// Adds warnings about nodes that any user reaches, classes that nodes ignore, and memory.
    fn warn_of(&mut self, cluster: Option<&Cluster>, choice: &Choice) {
        let Some(cluster) = cluster else { return };
        self.doubts.extend(choice.memory_warning(cluster));
        self.doubts.extend(access::exposed_nodes(cluster));
        let policy = self.policy.as_ref().and_then(|policy| Policy::parse(&policy.text).ok());
        let classes = policy.map(|policy| admission::unobserved_classes(&policy, cluster));
        self.doubts.extend(classes.into_iter().flatten());
    }

    fn warnings(&self) -> Vec<String> {
        self.doubts.iter().cloned().chain(self.other()).collect()
    }

    /// That the cluster's own policy is not in force, if so.
    fn other(&self) -> Option<String> {
        let (policy, named) = (self.policy.as_ref()?, self.passed_over.as_ref()?);
        let PolicyText { revision, source, applied_at_ms, .. } = policy;
        let source = output::on_one_line(source);
        let ago = amounts::age(clock::unix_ms().saturating_sub(*applied_at_ms) * 1_000_000);
        Some(format!(
            "revision {revision} from {source}, applied {ago} ago, stays in force, and not \
             {named}, which the cluster names; to change that, run `tidegate apply {named}`"
        ))
    }
}

/// The message once all parts run: one line about the controller, the volumes' addresses, and the
/// next steps.
fn ready(led: &Led, plan: &Boot, http: Option<SocketAddr>, running: Option<&Components>) -> String {
    let Status { release, revision, tenants, .. } = &led.status;
    let policy = led.policy.as_ref().and_then(|policy| Policy::parse(&policy.text).ok());
    let (socket, memories) = (&plan.socket, Boot::memories(running));
    let endpoints = plan.endpoints(running, policy.as_ref());
    let remote = plan.cluster.as_ref().and_then(|file| remote(&file.cluster));
    if plan.json {
        let mut report = json!({
            "ready": true,
            "release": release,
            "pid": std::process::id(),
            "socket": socket,
            "remote": remote.map(Address::to_string),
            "http": http.map(|address| format!("http://{address}")),
            "revision": revision,
            "tenants": tenants.len(),
            "policy_source": led.policy.as_ref().map(|policy| &policy.source),
            "policy_applied_at_ms": led.policy.as_ref().map(|policy| policy.applied_at_ms),
            "warnings": led.warnings(),
        });
        if let Some(components) = running {
            report["parts"] = components.names().collect();
            report["volumes"] = endpoints.into();
            report["memories"] = memories.into();
        }
        return format!("{report}\n");
    }
    let remote = remote.map(|address| format!(", {address} over TLS")).unwrap_or_default();
    let http = http.map(|address| format!(", http://{address}")).unwrap_or_default();
    let policy = led.report();
    let warnings = led.warnings().into_iter().map(|warning| format!("warning: {warning}\n"));
    let warning: String = warnings.collect();
    let runs_components = running.is_some_and(|components| components.names().next().is_some());
    let next = match (endpoints.first(), tenants.first()) {
        (Some(endpoint), _) if endpoint.starts_with("memcached") => {
            format!("tidegate-lab load \"{endpoint}\" --fill, tidegate status")
        }
        (Some(endpoint), _) => format!("nbdinfo \"{endpoint}\", tidegate status"),
        (None, _) if !memories.is_empty() => {
            format!("tidegate-lab kv --at {}, tidegate status", memories[0])
        }
        (None, None) => "tidegate apply FILE".into(),
        (None, Some(_)) if runs_components => "tidegate status".into(),
        (None, Some(tenant)) => {
            format!("tidegate run --tenant {} -- PROGRAM, tidegate top", tenant.name)
        }
    };
    let elsewhere = match *socket == default_socket() {
        true => String::new(),
        false => format!(" (with TIDEGATE_SOCKET={})", socket.display()),
    };
    format!(
        "tidegate {release} is ready at {}{remote}{http}; {policy}\n{warning}{}next: \
         {next}{elsewhere}\n",
        socket.display(),
        listed(&endpoints, &memories),
    )
}

/// The same where the controller is elsewhere.
fn components_ready(
    plan: &Boot,
    components: Option<&Components>,
    probe: Option<SocketAddr>,
) -> String {
    let names =
        components.map(|components| components.names().collect::<Vec<_>>()).unwrap_or_default();
    let (endpoints, memories) = (plan.endpoints(components, None), Boot::memories(components));
    if plan.json {
        let mut report = json!({
            "ready": true,
            "release": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "parts": names,
            "volumes": endpoints,
            "memories": memories,
        });
        match &plan.controller {
            stream::Address::Unix(path) => report["socket"] = json!(path),
            stream::Address::Tcp(address) => report["controller"] = json!(address.to_string()),
        }
        if let Some(probe) = probe {
            report["probe"] = json!(format!("http://{probe}/readyz"));
        }
        return format!("{report}\n");
    }
    let controller = match &plan.controller {
        stream::Address::Unix(path) => path.display().to_string(),
        stream::Address::Tcp(address) => address.to_string(),
    };
    let (release, components) = (env!("CARGO_PKG_VERSION"), names.join(", "));
    format!(
        "tidegate {release}: {components} of the cluster at {controller}\n{}{}",
        listed(&endpoints, &memories),
        probe.map(|at| format!("  ready while http://{at}/readyz says so\n")).unwrap_or_default(),
    )
}

fn listed(endpoints: &[String], memories: &[String]) -> String {
    let endpoints = endpoints.iter().map(|endpoint| format!("  {endpoint}\n"));
    endpoints.chain(memories.iter().map(|path| format!("  memory at {path}\n"))).collect()
}

/// Why the daemon ended: its own error, or that of the commands that it ran when it was ready.
struct Ended(Failure);

impl From<ServeError> for Ended {
    fn from(error: ServeError) -> Self {
        Self(not_served(error))
    }
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

/// Why the daemon could not start or go on, as a failure of the command.
fn not_served(error: ServeError) -> Failure {
    match error {
        ServeError::Log { filter, error } => {
            Failure::new(Code::Usage, format!("{filter:?} is no log filter"))
                .cause(error)
                .help("write it like info, or warn,tidegate_controller=debug")
        }
        error => Failure::quoted(Code::Failure, &error.to_string()),
    }
}
