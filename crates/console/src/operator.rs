//! An operator's connection to a controller: one request, one reply.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tidegate_fabric::default_paths::roots_socket_instead_of;
use tidegate_fabric::stream::is_departure;
use tidegate_fabric::unix::MessageLink;
use tidegate_model::Span;
use tidegate_proto::message::{Hello, OperatorRequest, Reply, VERSION};
use tidegate_proto::pages::Pages;
use tidegate_proto::session::version::VersionMismatch;

use crate::failure::{Code, Failure};

/// How long a controller may take to answer. It answers within milliseconds unless its machine is
/// in trouble; ten seconds are as long as people wait before they investigate.
pub const PATIENCE: Span = Span(10 * Span::SECOND.0);

/// A connection to a controller.
#[derive(Debug)]
pub struct Operator {
    link: MessageLink<Reply>,
    socket: PathBuf,
    patience: Duration,
}

impl Operator {
    /// Connects to the controller at `socket`.
    ///
    /// # Errors
    /// If none listens there, or it does not let us in.
    pub fn connect(socket: &Path) -> Result<Self, Failure> {
        Self::connect_for(socket, PATIENCE)
    }

    /// Connects, with a time-out of `patience` for each answer.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_for(socket: &Path, patience: Span) -> Result<Self, Failure> {
        let mut link =
            MessageLink::connect(socket).map_err(|error| unreachable_at(socket, error))?;
        sent(link.send(&Hello::Operator { version: VERSION }))
            .map_err(|error| unreachable_at(socket, error))?;
        let patience = Duration::from_nanos(patience.0);
        Ok(Self { link, socket: socket.into(), patience })
    }

    /// Asks, and gives the answer as JSON.
    ///
    /// # Errors
    /// If no answer comes, or the controller refuses.
    pub fn call(&mut self, request: &OperatorRequest) -> Result<String, Failure> {
        let unreachable = |error| unreachable_at(&self.socket, error);
        sent(self.link.send(request)).map_err(unreachable)?;
        let mut pages = Pages::default();
        let reply = loop {
            let reply = self.link.wait(self.patience).map_err(unreachable)?;
            if let Some(reply) = pages.add(reply) {
                break reply;
            }
        };
        match reply {
            // An answer that is put together is a whole one.
            Reply::Json(text) | Reply::Page(text) => Ok(text),
            Reply::Error { code, message } => Err(Failure::quoted(Code::Other(code), &message)),
            Reply::Refused { version, reason } => {
                VersionMismatch::check(("controller", version), ("command line", VERSION))
                    .map_err(|mismatch| {
                        Failure::quoted(Code::Unreachable, &mismatch.to_string())
                    })?;
                Err(Failure::quoted(Code::Failure, &reason))
            }
        }
    }

    /// Asks, and reads the answer.
    ///
    /// # Errors
    /// As [`Self::call`], or if the answer is of another kind.
    pub fn call_as<T: DeserializeOwned>(
        &mut self,
        request: &OperatorRequest,
    ) -> Result<T, Failure> {
        read(&self.call(request)?)
    }
}

/// A controller that lets nobody in says why and closes the connection. So a connection that is
/// closed already is no failure yet: the reason may be there to be read.
fn sent(outcome: io::Result<()>) -> io::Result<()> {
    outcome.or_else(|error| if is_departure(&error) { Ok(()) } else { Err(error) })
}

/// Reads an answer.
///
/// # Errors
/// If it is none.
pub fn read<T: DeserializeOwned>(answer: &str) -> Result<T, Failure> {
    serde_json::from_str(answer).map_err(|error| {
        Failure::new(Code::Failure, "the controller's answer cannot be read")
            .cause(error)
            .help("run the command line and the controller from the same release of Tidegate")
    })
}

fn unreachable_at(socket: &Path, error: io::Error) -> Failure {
    let at = socket.display();
    let fail = |message: String| Failure::new(Code::Unreachable, message);
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let failure = fail(format!("no controller listens at {at}"));
            match roots_socket_instead_of(socket) {
                None => failure
                    .help("start one with `tidegate up`, or say where it listens with --socket"),
                Some(roots) => failure.help(format!(
                    "root's controller listens at {}: name it with --socket",
                    roots.display()
                )),
            }
        }
        io::ErrorKind::PermissionDenied => {
            fail(format!("the controller at {at} may not be reached by this user"))
                .help("run the command as root or as the user who started the controller")
        }
        io::ErrorKind::TimedOut => fail(format!("the controller at {at} does not answer"))
            .help("see whether its process is stopped or its machine overloaded"),
        kind if kind == io::ErrorKind::UnexpectedEof || is_departure(&error) => {
            fail(format!("the controller at {at} has closed the connection"))
                .help("see what it logged; if it was restarted, run the command again")
        }
        _ => fail(format!("what listens at {at} cannot be talked to"))
            .cause(error)
            .help("see whether it is a controller, and of the same release of Tidegate"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use tidegate_proto::codec;

    use super::*;

    #[test]
    fn a_refusal_is_reported_also_if_the_connection_was_closed_before_the_request() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut operator = Operator::connect(&socket).unwrap();
        let (mut controller, _) = listener.accept().unwrap();
        let reason = String::from("no operators today");
        let mut refusal = Vec::new();
        codec::encode_pages(&Reply::Refused { version: VERSION, reason }, &mut refusal).unwrap();
        controller.write_all(&refusal).unwrap();
        drop(controller);
        let failure = operator.call(&OperatorRequest::Status).unwrap_err();
        assert!(format!("{failure:?}").contains("no operators today"), "{failure:?}");
        let failure = operator.call(&OperatorRequest::Status).unwrap_err();
        assert!(format!("{failure:?}").contains("has closed the connection"), "{failure:?}");
    }
}
