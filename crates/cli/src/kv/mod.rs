//! Clients of data nodes under load: `tidegate kv bench`.
//!
//! Each client is a process of its own, which is this program again, so that none of them shares
//! anything with another but the memory. They tell what they have done as lines of JSON; here the
//! lines become rows.

use std::path::Path;

use tidegate_stage::memory::Error;

use crate::failure::{Code, Failure};

mod client;
mod crew;
mod report;

pub(crate) use crew::{Bench, run};

/// What went wrong at the data node that listens there.
pub(crate) fn failed(at: &Path, error: Error) -> Failure {
    let (code, named) = match error {
        Error::Unreachable(_) | Error::Version { .. } | Error::Gone | Error::Outside(_) => {
            (Code::Unreachable, true)
        }
        Error::Refused(_) => (Code::Failure, true),
        Error::Operation(_) => (Code::Usage, false),
        _ => (Code::Failure, false),
    };
    match named {
        true => Failure::quoted(code, &format!("{}: {error}", at.display())),
        false => Failure::quoted(code, &error.to_string()),
    }
}
