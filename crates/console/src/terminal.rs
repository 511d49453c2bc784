//! The abilities of the terminal: colours, characters, width.

use std::env;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;

use rustix::io::dup;
use rustix::termios::tcgetwinsize;

/// Whether `stream` wants colours: it is a terminal that has them, and `NO_COLOR` is not set.
pub fn is_colored(stream: &impl IsTerminal) -> bool {
    // https://no-color.org: any value but the empty one counts.
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    stream.is_terminal() && !refused && !dumb
}

/// Whether the locale can show more than ASCII.
pub fn is_unicode() -> bool {
    // The first of them that is set decides, as in setlocale(3).
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_default()
        .to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The width of the terminal, or 100 where there is none.
pub fn columns() -> usize {
    // Standard output may be a pipe to a pager, which shows the text on the same terminal.
    let terminal = File::open("/dev/tty").map(OwnedFd::from).or_else(|_| dup(io::stdout()));
    let size = terminal.ok().and_then(|terminal| tcgetwinsize(terminal).ok());
    size.filter(|size| size.ws_col > 0).map_or(100, |size| usize::from(size.ws_col).max(20))
}
