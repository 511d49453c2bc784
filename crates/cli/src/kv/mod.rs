//! Clients of data nodes under load: `tidegate kv bench`.
//!
//! Each client is a process of its own, which is this program again, so that none of them shares
//! anything with another but the memory. They tell what they have done as lines of JSON; here the
//! lines become rows.

use std::path::Path;

use tidegate_stage::memory::Error;

use crate::failure::{Code, Failure};

mod bench;
mod client;
mod crew;
mod place;
mod report;
mod wish;

pub(crate) use bench::{Bench, run};
pub(crate) use crew::Crew;
pub(crate) use place::Place;
pub(crate) use report::Row;

/// What went wrong at the data node that listens there.
pub(crate) fn failed(at: &Path, error: Error) -> Failure {
    let (code, sentence) = told(at, &error);
    Failure::quoted(code, &sentence)
}

/// The same in a sentence, with after a semicolon how to mend it.
fn told(at: &Path, error: &Error) -> (Code, String) {
    let (code, named) = match error {
        Error::Unreachable(_) | Error::Version { .. } | Error::Gone | Error::Outside(_) => {
            (Code::Unreachable, true)
        }
        Error::Operation(_) => (Code::Usage, false),
        _ => (Code::Failure, true),
    };
    match named {
        true => (code, format!("{}: {error}", at.display())),
        false => (code, error.to_string()),
    }
}
