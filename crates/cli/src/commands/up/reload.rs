//! Reaction of `up` to SIGHUP: it reads the policy file again that it was started with.
//!
//! A policy that an operator has applied since then came from elsewhere, and stays: a terminal that
//! is closed sends the same signal.

use std::path::PathBuf;

use tidegate_proto::controller::status::{PolicyText, Status};
use tidegate_proto::message::OperatorRequest;

use tidegate_console::failure::Failure;
use tidegate_console::operator::Operator;
use tidegate_console::policy_file::PolicyFile;
use tidegate_console::text_file::Reader;

/// Where the policy is, and the controller that receives it.
#[derive(Debug)]
pub(super) struct Reload {
    /// The file that was given, or the one that the cluster names.
    pub(super) policy: Option<PathBuf>,
    pub(super) socket: PathBuf,
}

impl Reload {
    /// Reads the file again and puts it in force if it has changed; the log has the result.
    pub(super) fn run(&self) {
        match self.reload() {
            Ok(result) => tracing::info!(%result, "SIGHUP: handled"),
            Err(failure) => {
                let error = failure.to_line();
                tracing::warn!(%error, "SIGHUP: the policy in force stays");
            }
        }
    }

    fn reload(&self) -> Result<String, Failure> {
        let from_file = self.policy.as_deref().filter(|path| *path != "-");
        let Some(path) = from_file else {
            return Ok("no policy file to read again; `tidegate apply` changes the policy".into());
        };
        let file = PolicyFile::read(path, Reader::Daemon)?;
        file.check_feasible()?;
        let mut operator = Operator::connect(&self.socket)?;
        let status: Status = operator.call_as(&OperatorRequest::Status)?;
        if status.revision > 0 {
            let current: PolicyText = operator.call_as(&OperatorRequest::Policy)?;
            if current.source != file.origin {
                let source = current.source;
                return Ok(format!("the policy in force came from {source}, and stays"));
            }
            if current.text == file.text {
                return Ok(format!("{} has not changed", file.origin));
            }
        }
        let origin = file.origin.clone();
        let (policy, source) = (file.text, file.origin);
        operator.call(&OperatorRequest::Apply {
            policy,
            source,
            dry_run: false,
            expect: status.revision,
        })?;
        Ok(format!("{origin} was read again"))
    }
}
