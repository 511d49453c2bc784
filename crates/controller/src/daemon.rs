//! The controller daemon: its start (state directory, policy store, listeners, HTTP), its reaction
//! to signals, and its end.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tidegate_algo::shaping::log_limiter::LogLimiter;
use tidegate_fabric::clock::Clock;
use tidegate_fabric::stream::Stream;
use tidegate_fabric::tls::Guard;
use tidegate_model::Policy;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use crate::config::Config;
use crate::error::ServeError;
use crate::http::{self, HttpContext};
use crate::http_stream::{HttpListener, bind};
use crate::identity::PeerIdentity;
use crate::input::INPUTS_MAX;
use crate::limits::{ACCEPT_PAUSE, Limits};
use crate::link::{ConnectionContext, attend};
use crate::machine::Machine;
use crate::nodes;
use crate::outstanding::OutstandingFile;
use crate::peer_receiver::PeerReceiver;
use crate::permits::ConnectionPermits;
use crate::register::{Current, Register};
use crate::socket::Socket;
use crate::state::StateDirectory;
use crate::store::{PolicyStore, Redb, StoreError};
use crate::token::Token;
use crate::users::Users;

/// The policy store's file in the state directory.
const STORE: &str = "policies.redb";

/// Events that a watcher may fall behind before it loses some.
const EVENTS_MAX: usize = 1024;

/// How long connections may take to end when the daemon does.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Runs a daemon until the process gets SIGTERM or SIGINT.
///
/// # Errors
/// If it cannot start. Once it runs, nothing but a signal ends it.
pub fn serve(config: Config) -> Result<(), ServeError> {
    serve_with(config, |_| Ok(()), || {})
}

/// Runs a daemon until the process gets SIGTERM or SIGINT. Once it can be reached, `ready` receives
/// the address of HTTP; it may block, and use the daemon like any client. Its result is kept while
/// the daemon runs, and dropped before the daemon ends. `reload` is called at each SIGHUP, and may
/// do the same.
///
/// # Errors
/// If the daemon cannot start, or what `ready` returns; the daemon has ended then.
pub fn serve_with<T, E>(
    config: Config,
    ready: impl FnOnce(Option<SocketAddr>) -> Result<T, E> + Send + 'static,
    reload: impl Fn() + Send + Sync + 'static,
) -> Result<(), E>
where
    T: Send + 'static,
    E: From<ServeError> + Send + 'static,
{
    config.log.to_stderr()?;
    // At level error, so that no filter of levels hides the name in a line.
    let span = tracing::error_span!(parent: None, "controller");
    let _entered = span.enter();
    // One thread: the machine is one task, and the other core belongs to the programs that it
    // serves.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ServeError::Runtime)?.block_on(async {
        // Before anything exists that a signal would have to clean up.
        let mut terminated = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
        let mut interrupted = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
        let mut hung_up = signal(SignalKind::hangup()).map_err(ServeError::Runtime)?;
        let daemon = Daemon::start(config).await?;
        let http = daemon.http();
        let ready = in_span(span.clone(), move || ready(http));
        let kept = match tokio::task::spawn_blocking(ready).await {
            Ok(kept) => kept,
            Err(error) => Err(ServeError::Runtime(io::Error::other(error)).into()),
        };
        let reload = Arc::new(reload);
        while kept.is_ok() {
            tokio::select! {
                _ = terminated.recv() => break,
                _ = interrupted.recv() => break,
                _ = hung_up.recv() => {
                    let reload = Arc::clone(&reload);
                    // A panic of `reload` does not end the daemon.
                    let reload = in_span(span.clone(), move || reload());
                    let _ = tokio::task::spawn_blocking(reload).await;
                }
            }
        }
        // It may take long, and the daemon runs meanwhile.
        let ended = tokio::task::spawn_blocking(|| kept.map(drop)).await;
        daemon.stop().await;
        ended.unwrap_or_else(|error| Err(ServeError::Runtime(io::Error::other(error)).into()))
    })
}

/// Calls `call` in `span`: other threads are in none.
fn in_span<R>(span: tracing::Span, call: impl FnOnce() -> R) -> impl FnOnce() -> R {
    move || span.in_scope(call)
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    http: Option<SocketAddr>,
    register: Arc<Register>,
    /// True once the daemon has to end.
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    /// Unlocked last, when nothing uses the directory any more.
    _state: StateDirectory,
}

impl Daemon {
    /// Starts a daemon with the store in its state directory.
    ///
    /// # Errors
    /// If anything that it needs is missing or another's.
    pub async fn start(config: Config) -> Result<Self, ServeError> {
        Self::start_within(config, Limits::default()).await
    }

    /// Starts a daemon that serves fewer or more clients than usual.
    ///
    /// # Errors
    /// If anything that it needs is missing or another's.
    pub async fn start_within(config: Config, limits: Limits) -> Result<Self, ServeError> {
        let state = StateDirectory::open(&config.state)?;
        let path = state.folder.path().join(STORE);
        if config.forget_policy {
            forget(&path)?;
        }
        let store = Redb::open(&path)?;
        Self::start_with(config, limits, state, Box::new(store)).await
    }

    /// Starts a daemon with another store.
    ///
    /// # Errors
    /// If anything that it needs is missing or another's.
    pub async fn start_with_store(
        config: Config,
        store: Box<dyn PolicyStore>,
    ) -> Result<Self, ServeError> {
        let state = StateDirectory::open(&config.state)?;
        Self::start_with(config, Limits::default(), state, store).await
    }

    async fn start_with(
        config: Config,
        limits: Limits,
        state: StateDirectory,
        store: Box<dyn PolicyStore>,
    ) -> Result<Self, ServeError> {
        let limits = raise_descriptor_limit().map_or(limits, |files| limits.within(files));
        let token = Token::open(&state.folder).map_err(ServeError::Token)?;
        let (current, chosen) = (load(store.as_ref())?, store.schedulers()?);
        let kept = OutstandingFile::open(state.folder.path())?;
        let Listeners { http, remote, socket } = Listeners::open(&config).await?;
        let clock = Clock::start();
        let (inputs, inputs_rx) = mpsc::channel(INPUTS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (stop, stop_rx) = watch::channel(false);
        let cycle_seconds = Histogram::new(exponential_buckets(1e-4, 2.0, 16));
        let before = (current.as_ref().map(Current::in_force), kept.load()?);
        let controller = nodes::controller(&config, clock, before, &chosen);
        let paths = [&config.cluster_file, &config.state].map(|path| whole(path));
        let (publisher, cycles) = (events.clone(), cycle_seconds.clone());
        let machine = Machine::new(clock, (controller, paths, kept), inputs_rx, publisher, cycles);
        let members = config.members();
        let register = Arc::new(Register::new(inputs.clone(), store, current, config.cluster));
        let mut tasks = JoinSet::new();
        tasks.spawn(machine.run(stop_rx.clone()));
        let receiver = Arc::new(PeerReceiver::new(inputs.clone())?);
        tasks.spawn(receiver.clone().run(stop_rx.clone()));
        let context = Arc::new(ConnectionContext {
            inputs,
            register: register.clone(),
            receiver,
            hello_max: config.hello_max,
            next_connection: AtomicU64::new(1),
            users: Users::new(),
            permits: ConnectionPermits::new(limits.connections, limits.connections_per_user),
            clock,
            members,
            refusals: Mutex::default(),
        });
        let remote = remote.map(|(listener, guard)| PeerListener::Remote(listener, guard));
        for listener in [PeerListener::Socket(socket)].into_iter().chain(remote) {
            tasks.spawn(accept(listener, context.clone(), stop_rx.clone()));
        }
        let mut http_address = None;
        if let Some(listener) = http {
            http_address = listener.local_addr().ok();
            let address = http_address.or(config.http).unwrap_or(([127, 0, 0, 1], 0).into());
            let watchers = Arc::new(Semaphore::new(limits.http_connections / 2));
            let register = register.clone();
            let answers = Arc::new(http::Answers::new(clock, cycle_seconds));
            let context = HttpContext { register, events, watchers, token, answers };
            let hosts = http::Hosts::new(address, &config.http_hosts);
            let listener = HttpListener::new(listener, clock, limits);
            tasks.spawn(http::serve(listener, context, hosts, stop_rx));
        }
        let pid = std::process::id();
        let http = http_address.map(|address| address.to_string()).unwrap_or_default();
        tracing::info!(pid, socket = %config.socket.display(), http, "controller is ready");
        Ok(Self { http: http_address, register, stop, tasks, _state: state })
    }

    /// The address of HTTP; with the kernel's choice if the port was 0.
    pub fn http(&self) -> Option<SocketAddr> {
        self.http
    }

    /// How long the last cycles took, oldest first: from the first request to the last new rate.
    pub async fn cycles(&self) -> Vec<Duration> {
        self.register.survey().await.map_or(Vec::new(), |survey| survey.cycles)
    }

    /// Ends: the socket's file is removed, connections are closed, the state directory is free.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // Tasks that take longer are dropped with the set.
        let _ = timeout(STOP_MAX, all).await;
        self.tasks.shutdown().await;
        tracing::info!("controller has stopped");
    }
}

/// Everything that a daemon listens on.
struct Listeners {
    http: Option<TcpListener>,
    remote: Option<(TcpListener, Guard)>,
    socket: Socket,
}

impl Listeners {
    async fn open(config: &Config) -> Result<Self, ServeError> {
        let http = match config.http {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let remote = match config.remote.clone() {
            Some((address, guard)) => {
                let bound = TcpListener::bind(address).await;
                Some((bound.map_err(|error| ServeError::Remote { address, error })?, guard))
            }
            None => None,
        };
        Ok(Self { http, remote, socket: Socket::listen(&config.socket).await? })
    }
}

/// A path as it can be used from any directory; nothing if there is none.
fn whole(path: &Path) -> String {
    // Only an empty one has no absolute form, unless this process's own directory is gone.
    std::path::absolute(path).map(|path| path.display().to_string()).unwrap_or_default()
}

/// The listener for links and operators.
enum PeerListener {
    /// On this machine.
    Socket(Socket),
    /// Over TCP, encrypted.
    Remote(TcpListener, Guard),
}

impl PeerListener {
    /// The next connection, and its peer.
    async fn next(&self) -> io::Result<(Stream, PeerIdentity)> {
        match self {
            Self::Socket(socket) => loop {
                let (stream, _) = socket.listener.accept().await?;
                match PeerIdentity::local(&stream) {
                    Ok(identity) => return Ok((stream.into_std()?.into(), identity)),
                    // Its peer disconnected already.
                    Err(error) => tracing::debug!(%error, "a connection without credentials"),
                }
            },
            Self::Remote(listener, guard) => loop {
                let stream = listener.accept().await?.0.into_std()?;
                match Stream::try_from(stream).and_then(|stream| stream.accept_tls(guard)) {
                    Ok(stream) => return Ok((stream, PeerIdentity::Remote(Vec::new()))),
                    Err(error) => {
                        tracing::debug!(%error, "a peer disconnected before it was accepted")
                    }
                }
            },
        }
    }

    /// The kind of listener, for the log.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Socket(_) => "unix",
            Self::Remote(..) => "tcp",
        }
    }
}

/// Starts a task for every new connection, until the daemon ends. From then on the socket's file is
/// removed, and the connections end with their set.
async fn accept(
    listener: PeerListener,
    context: Arc<ConnectionContext>,
    mut stop: watch::Receiver<bool>,
) {
    let (mut connections, mut failures) = (JoinSet::new(), LogLimiter::default());
    loop {
        let accepted = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            accepted = listener.next() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, identity)) => {
                let span = tracing::debug_span!("connection", peer = %identity);
                let attended = attend(stream, identity, context.clone());
                drop(connections.spawn(attended.instrument(span)))
            }
            Err(error) => {
                if let Some(unlogged) = failures.admit(context.clock.now()) {
                    let listener = listener.kind();
                    tracing::error!(listener, %error, unlogged, "cannot accept a connection");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Before the connections.
    drop(listener);
}

/// Renames the store, as the operator has requested.
fn forget(path: &Path) -> Result<(), StoreError> {
    if let Some(kept) = Redb::forget(path)? {
        tracing::warn!(path = %kept.display(), "the policy store is set aside");
    }
    Ok(())
}

/// The policy of the last run. A policy that this release does not accept is logged and kept in the
/// store: a daemon without a policy is better than none, and `apply` mends it.
fn load(store: &dyn PolicyStore) -> Result<Option<Current>, StoreError> {
    let Some(stored) = store.latest()? else { return Ok(None) };
    match Policy::parse(&stored.text) {
        Ok(policy) => Ok(Some(Current { stored, policy })),
        Err(error) => {
            let revision = stored.revision;
            tracing::error!(revision, %error, "the stored policy is not in force");
            Ok(None)
        }
    }
}

/// Raises the limit of open files of this process as far as that is allowed. Every stage and every
/// client of a gateway holds a descriptor, one with TLS three, and the usual soft limit of 1,024 is
/// below the number that a daemon can serve. The hard limit is the most that the process can get.
/// Returns the limit, as far as the kernel reports it.
pub fn raise_descriptor_limit() -> Option<usize> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    usize::try_from(soft).ok()
}
