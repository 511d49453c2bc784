//! `GET /healthz` and `GET /readyz` of a process with nodes or gateways and without a controller,
//! at an address of its own.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use tidegate_fabric::clock::Clock;
use tokio::sync::watch;

use crate::error::ServeError;
use crate::http::{Hosts, healthz, readiness_reply, with_hosts};
use crate::http_stream::{HttpListener, bind};
use crate::limits::Limits;

/// Returns the reasons why something cannot be served; empty if everything can.
pub type Reasons = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// `GET /healthz` and `GET /readyz` of a process without a controller. Dropped, it ends.
pub struct Probe {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({})", self.address)
    }
}

impl Probe {
    /// Answers at `address`, on loopback, for this host and for those of these names.
    ///
    /// # Errors
    /// If the address is taken or not on loopback, or there can be no thread.
    pub fn start(
        address: SocketAddr,
        hosts: &[String],
        reasons: Reasons,
    ) -> Result<Self, ServeError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(ServeError::Runtime)?;
        let listener = runtime.block_on(bind(address))?;
        let address = listener.local_addr().unwrap_or(address);
        let app = Router::new().route("/healthz", get(healthz)).route(
            "/readyz",
            get(|State(reasons): State<Reasons>| async move { readiness_reply(&reasons()) }),
        );
        let app = with_hosts(app, Hosts::new(address, hosts)).with_state(reasons);
        let (stop, mut stopped) = watch::channel(false);
        let serve = async move {
            let entrance = HttpListener::new(listener, Clock::start(), Limits::default());
            tokio::select! {
                ended = axum::serve(entrance, app) => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the probe has ended");
                    }
                }
                _ = stopped.wait_for(|stop| *stop) => {}
            }
        };
        let thread = thread::Builder::new().name("probe".into());
        let thread = thread.spawn(move || runtime.block_on(serve)).map_err(ServeError::Runtime)?;
        Ok(Self { stop, thread: Some(thread), address })
    }

    /// The listener's address, with the port that the kernel chose if the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
