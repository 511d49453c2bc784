//! The segment of a program under `tidegate run`: its gates and counters, read from outside.

use std::fs;
use std::io;
use std::path::PathBuf;

use tidegate_stage::Segment;
use tidegate_stage::segment::VARIABLE;

use super::child::{Child, tree};

/// Maps the segment of the program below a supervisor, as the program's environment names it.
///
/// # Errors
/// If the program has not been started, or its segment cannot be mapped.
pub(crate) fn attach(supervisor: &Child) -> io::Result<Segment> {
    let path = tree(supervisor.pid()).into_iter().find_map(|pid| {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        named(&environment)
    });
    Segment::attach(&path.ok_or(io::ErrorKind::NotFound)?)
}

/// The segment that an environment names, whose variables end with a zero each.
fn named(environment: &[u8]) -> Option<PathBuf> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables
        .find_map(|variable| variable.strip_prefix(VARIABLE.as_bytes())?.strip_prefix(b"="))?;
    Some(String::from_utf8_lossy(value).into_owned().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segment_is_that_of_the_environment() {
        let environment = b"HOME=/\0TIDEGATE_SEGMENTS=no\0TIDEGATE_SEGMENT=/dev/shm/a\0B=\0";
        assert_eq!(named(environment), Some("/dev/shm/a".into()));
        assert_eq!(named(b"HOME=/\0"), None);
        assert_eq!(named(b""), None);
    }
}
