//! One line on standard error about what is going on, which the next one replaces.

use std::io::{self, Write as _};

/// Shows a watcher `line` in the place of the one before; an empty one removes it, so that other
/// lines can be printed.
pub(crate) fn show(is_watched: bool, line: &str) {
    if is_watched {
        // A lost note does no harm.
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }
}
