//! A connection of the command line: one request, one reply, until it has no more.

use std::io::{self, IoSlice};

use serde::Serialize;
use tidegate_fabric::stream::Stream;
use tidegate_proto::codec::{DecodeError, Decoder, encode};
use tidegate_proto::message::{OperatorRequest, Reply, VERSION};
use tidegate_proto::pages;
use tidegate_proto::session::version::VersionMismatch;
use tokio::io::Interest;

use crate::peer_link::{read, ready};
use crate::register::{ApplyError, ApplyOrder, Register};

/// Exit codes in replies, as the command line documents them.
const FAILURE: u8 = 1;

/// Why an operator's connection ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OperatorError {
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Answers requests until the peer closes the connection.
pub(crate) async fn attend(
    stream: &Stream,
    version: u16,
    is_allowed: bool,
    rest: Vec<u8>,
    register: &Register,
) -> Result<(), OperatorError> {
    if let Some(reason) = refusal(version, is_allowed) {
        return write(stream, &Reply::Refused { version: VERSION, reason }).await;
    }
    let mut decoder = Decoder::<OperatorRequest>::new();
    decoder.extend(&rest);
    loop {
        while let Some(request) = decoder.next_message()? {
            match answer(request, register).await {
                Reply::Json(text) => {
                    for reply in pages::split(text) {
                        write(stream, &reply).await?;
                    }
                }
                reply => write(stream, &reply).await?,
            }
        }
        if read(stream, &mut [0; 4096], &mut decoder).await? == 0 {
            return Ok(());
        }
    }
}

fn refusal(version: u16, is_allowed: bool) -> Option<String> {
    let peer = ("command line", version);
    if let Err(mismatch) = VersionMismatch::check(peer, ("controller", VERSION)) {
        return Some(mismatch.to_string());
    }
    let reason = "only root and the controller's own user may ask or instruct it; run the command \
                  as one of them";
    (!is_allowed).then(|| reason.to_owned())
}

async fn answer(request: OperatorRequest, register: &Register) -> Reply {
    match request {
        OperatorRequest::Apply { policy, source, dry_run, expect } => {
            let order = ApplyOrder { text: policy, source, dry_run, expect };
            match register.apply(order).await {
                Ok(applied) => json(&applied),
                Err(error) => Reply::Error { code: error.code(), message: error.to_string() },
            }
        }
        OperatorRequest::Status => match register.survey().await {
            Ok(survey) => json(&survey.status),
            Err(error) => Reply::Error { code: FAILURE, message: error.to_string() },
        },
        OperatorRequest::Choose { node, scheduler } => match register.choose(node, scheduler).await
        {
            Ok(nodes) => json(&nodes),
            Err(error) => Reply::Error { code: FAILURE, message: error.to_string() },
        },
        OperatorRequest::Delays { tenant } => match register.delays(tenant).await {
            Ok(delays) => json(&delays),
            Err(error) => Reply::Error { code: FAILURE, message: error.to_string() },
        },
        OperatorRequest::Record { session, is_last } => {
            match register.record(session, is_last).await {
                Ok(part) => json(&part),
                Err(error) => Reply::Error { code: FAILURE, message: error.to_string() },
            }
        }
        OperatorRequest::Policy => match register.policy().await {
            Some(policy) => json(&policy),
            None => {
                let message = ApplyError::NONE_YET.to_owned();
                Reply::Error { code: FAILURE, message }
            }
        },
    }
}

fn json(value: &impl Serialize) -> Reply {
    match serde_json::to_string(value) {
        Ok(text) => Reply::Json(text),
        Err(error) => Reply::Error { code: FAILURE, message: error.to_string() },
    }
}

async fn write(stream: &Stream, reply: &Reply) -> Result<(), OperatorError> {
    let mut bytes = Vec::new();
    encode(reply, &mut bytes).map_err(io::Error::other)?;
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.send(&[IoSlice::new(&bytes[sent..])]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ready(stream, Interest::WRITABLE).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
