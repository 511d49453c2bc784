//! A daemon on a thread of its own, and clients that block.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tidegate_controller::{Config, Daemon, Limits, Logging, PolicyStore, ServeError};
use tidegate_model::Cluster;
use tidegate_proto::codec::{Decoder, encode};
use tidegate_proto::controller::status::{Applied, Status};
use tidegate_proto::message::{
    FromStage, Hello, OperatorRequest, Reply, StageInfo, StageReport, ToStage, VERSION,
};
use tidegate_proto::pages::Pages;
use tokio::sync::oneshot;

/// How long anything may take before a test gives up; far more than it ever needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A policy with two tenants; rounds are short so that tests are.
pub(crate) const POLICY: &str = r#"
    budget = "100MB/s"
    redistribute = "20ms"
    period = "100ms"
    [[tenant]]
    name = "oltp"
    reservation = "60MB/s"
    [[tenant]]
    name = "backup"
"#;

pub(crate) struct Running {
    pub(crate) directory: PathBuf,
    pub(crate) http: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The directory, where the test has no other use for it.
    own: Option<TempDir>,
}

impl Running {
    /// Starts a daemon in a directory of its own.
    pub(crate) fn new() -> Self {
        Self::with(|config| config, Limits::default())
    }

    /// The same, with a policy.
    pub(crate) fn under(policy: &str) -> Self {
        let daemon = Self::new();
        daemon.apply(policy);
        daemon
    }

    /// The same, of a cluster.
    pub(crate) fn with_cluster(file: &str) -> Self {
        let cluster = Some(Cluster::parse(file).unwrap());
        Self::with(|config| Config { cluster, ..config }, Limits::default())
    }

    /// The same, with another configuration and within limits.
    pub(crate) fn with(change: impl FnOnce(Config) -> Config, limits: Limits) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut daemon = Self::try_start_within(change(config(own.path())), limits).unwrap();
        daemon.own = Some(own);
        daemon
    }

    /// Starts a daemon whose files lie in `directory`.
    pub(crate) fn start(directory: &Path) -> Self {
        Self::try_start(config(directory), None).unwrap()
    }

    pub(crate) fn try_start(
        config: Config,
        store: Option<Box<dyn PolicyStore>>,
    ) -> Result<Self, ServeError> {
        Self::begin(config, async |config| match store {
            Some(store) => Daemon::start_with_store(config, store).await,
            None => Daemon::start(config).await,
        })
    }

    pub(crate) fn try_start_within(config: Config, limits: Limits) -> Result<Self, ServeError> {
        Self::begin(config, async move |config| Daemon::start_within(config, limits).await)
    }

    fn begin(
        config: Config,
        start: impl AsyncFnOnce(Config) -> Result<Daemon, ServeError> + Send + 'static,
    ) -> Result<Self, ServeError> {
        let directory = config.state.clone();
        let (started_tx, started) = mpsc::channel();
        let (stop, stop_rx) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                match start(config).await {
                    Ok(daemon) => {
                        started_tx.send(Ok(daemon.http().unwrap())).unwrap();
                        let _ = stop_rx.await;
                        daemon.stop().await;
                    }
                    Err(error) => started_tx.send(Err(error)).unwrap(),
                }
            });
        });
        let http = started.recv_timeout(PATIENCE).unwrap()?;
        Ok(Self { directory, http, stop: Some(stop), thread: Some(thread), own: None })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("controller.sock")
    }

    pub(crate) fn token(&self) -> String {
        std::fs::read_to_string(self.directory.join("token")).unwrap().trim().to_owned()
    }

    /// A connection that has said nothing.
    pub(crate) fn connect<In: DeserializeOwned>(&self) -> Client<In> {
        Client::new(UnixStream::connect(self.socket()).unwrap())
    }

    /// A stage that said hello for a tenant.
    pub(crate) fn stage(&self, tenant: &str) -> Client<ToStage> {
        let mut stage = self.connect();
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        stage.send(&Hello::Stage { version: VERSION, info });
        stage
    }

    pub(crate) fn request(&self, request: &OperatorRequest) -> Reply {
        let mut operator = self.connect::<Reply>();
        operator.send(&Hello::Operator { version: VERSION });
        operator.send(request);
        let mut pages = Pages::default();
        loop {
            if let Some(reply) = pages.add(operator.receive()) {
                return reply;
            }
        }
    }

    pub(crate) fn try_apply(&self, policy: &str, expect: u64) -> Result<Applied, (u8, String)> {
        let (policy, source) = (policy.into(), "test.toml".into());
        match self.request(&OperatorRequest::Apply { policy, source, dry_run: false, expect }) {
            Reply::Json(text) => Ok(serde_json::from_str(&text).unwrap()),
            Reply::Error { code, message } => Err((code, message)),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn apply(&self, policy: &str) -> Applied {
        self.try_apply(policy, 0).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        let Reply::Json(text) = self.request(&OperatorRequest::Status) else { panic!("no status") };
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until the status is as `condition` wants it.
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let start = Instant::now();
        loop {
            let status = self.status();
            if condition(&status) {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "{what} never came: {status:#?}");
            thread::yield_now();
        }
    }

    /// An HTTP answer: status, head and body.
    pub(crate) fn http(&self, request: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!(
            "{request}\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let _ = stream.write_all(body.as_bytes());
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
        (status, head.to_owned(), body.to_owned())
    }

    /// Ends the daemon as SIGTERM would.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn config(directory: &Path) -> Config {
    Config {
        socket: directory.join("controller.sock"),
        remote: None,
        state: directory.into(),
        forget_policy: false,
        http: Some("127.0.0.1:0".parse().unwrap()),
        log: Logging { filter: "off".into(), ..Logging::default() },
        http_hosts: Vec::new(),
        hello_max: Duration::from_secs(5),
        cluster: None,
        cluster_file: PathBuf::new(),
    }
}

/// One end of a connection.
pub(crate) struct Client<In> {
    pub(crate) stream: UnixStream,
    decoder: Decoder<In>,
}

impl<In: DeserializeOwned> Client<In> {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, decoder: Decoder::new() }
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) {
        let mut bytes = Vec::new();
        encode(message, &mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next message, or none if the other end closed the connection.
    pub(crate) fn receive_or_end(&mut self) -> Option<In> {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return Some(message);
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.decoder.extend(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing to hear: {error}"),
            }
        }
    }

    pub(crate) fn receive(&mut self) -> In {
        self.receive_or_end().expect("the connection is closed")
    }
}

impl Client<ToStage> {
    /// Says hello for a tenant to a daemon that may not listen. Returns whether it could.
    pub(crate) fn try_send_hello(&mut self, tenant: &str) -> bool {
        let info = StageInfo { tenant: tenant.into(), ..StageInfo::default() };
        let mut bytes = Vec::new();
        encode(&Hello::Stage { version: VERSION, info }, &mut bytes).unwrap();
        self.stream.write_all(&bytes).is_ok()
    }

    /// Answers what has to be answered until `wanted` finds what it looks for.
    pub(crate) fn receive_until<T>(&mut self, mut wanted: impl FnMut(&ToStage) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "it never came");
            let message = self.receive();
            if let ToStage::Collect { round, .. } = message {
                let at_ns = start.elapsed().as_nanos() as u64;
                let report = StageReport { round, at_ns, processes: 1, ..StageReport::default() };
                self.send(&FromStage::Report(report));
            }
            if let Some(found) = wanted(&message) {
                return found;
            }
        }
    }

    /// The revision and rules of the next message that changes the stage.
    pub(crate) fn rules(&mut self) -> (u64, Vec<tidegate_proto::message::Rule>) {
        self.receive_until(|message| match message {
            ToStage::Apply { revision, rules } => Some((*revision, rules.clone())),
            _ => None,
        })
    }
}
