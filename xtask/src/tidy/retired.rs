//! Words that identifiers may not have: names that only this project used, each with the field's
//! term for it.
//!
//! A word counts wherever it is a word of an identifier (`seat_of`, `Seat`, `SEATS`) or of a file's
//! name. Where a paper or a library names the thing so, the exception stands in [`KEPT`].

use crate::Finding;
use crate::files::TextFile;
use crate::source::{Line, is_noun, words};

/// A retired word, and the terms to use for it.
const RETIRED: &[(&str, &str)] = &[
    ("bell", "waker"),
    ("book", "registry, account"),
    ("brick", "node"),
    ("card", "RNIC, NIC"),
    ("crew", "processes, workers"),
    ("crowd", "peers, quota"),
    ("desk", "connection context"),
    ("door", "listener, endpoint"),
    ("errand", "sub-request"),
    ("fare", "health"),
    ("fire", "faults"),
    ("folk", "users"),
    ("fronts", "shard heads"),
    ("goodbye", "close reason"),
    ("guest", "pending connection, peer"),
    ("hall", "server context"),
    ("hear", "receive"),
    ("heard", "received"),
    ("heed", "observe"),
    ("hush", "noreply"),
    ("keeper", "agent"),
    ("landed", "completed"),
    ("lane", "shard"),
    ("ledger", "window statistics, period grants, outstanding bounds"),
    ("law", "property, congestion control"),
    ("lent", "cached tokens"),
    ("letter", "message"),
    ("life", "incarnation"),
    ("loan", "token cache"),
    ("mailbox", "message queue"),
    ("meters", "stats"),
    ("nobody", "default tenant, unattributed"),
    ("outlet", "completion sink"),
    ("passage", "TLS connection"),
    ("purse", "token balance"),
    ("room", "headroom, space"),
    ("roster", "client table"),
    ("said", "sent, reported"),
    ("seal", "TLS"),
    ("seat", "permit, session slot"),
    ("shop", "frontend"),
    ("sight", "snapshot"),
    ("site", "executor, node state"),
    ("spot", "location"),
    ("stand", "testbed"),
    ("steward", "agent"),
    ("stretch", "window, interval"),
    ("switchboard", "receiver"),
    ("tally", "counters"),
    ("tell", "report, send"),
    ("terms", "parameters"),
    ("told", "reported, shown"),
    ("valve", "throttle"),
    ("visitor", "peer"),
];

/// Where a retired word stays, and why: the word, the beginning of the path, the reason.
const KEPT: &[(&str, &str, &str)] = &[
    ("brick", "crates/sim/", "the DSFQ paper's word for a storage node"),
    ("brick", "crates/lab/src/experiment/dsfq", "the DSFQ paper's word for a storage node"),
    ("brick", "crates/lab/src/experiment/paper.rs", "the file of the DSFQ experiments"),
    ("book", "crates/lab/tests/lab/help.rs", "the documentation"),
    ("book", "crates/netsim/tests/e2e.rs", "the documentation"),
    ("guest", "tests/src/built.rs", "a virtual machine"),
    ("guest", "tests/tests/cluster", "a virtual machine"),
    ("law", "crates/algo/tests/laws/", "properties that every scheduler keeps"),
    ("law", "crates/sim/tests/haechi_laws.rs", "properties that every run keeps"),
    ("seal", "crates/fabric/src/memory/region.rs", "the kernel's word, of a memfd"),
    ("visitor", "crates/model/", "the trait of serde"),
];

/// The retired identifiers of one file.
pub(super) fn check(file: &TextFile, lines: &[Line]) -> Vec<Finding> {
    let name = (0, &*file.path);
    let code = lines.iter().enumerate().map(|(at, line)| (at, &*line.code));
    let mut findings = Vec::new();
    for (at, text) in [name].into_iter().chain(code) {
        for identifier in text.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
            if let Some((word, term)) = retired(identifier).filter(|(word, _)| !kept(word, file)) {
                let what = format!("`{identifier}` says {word}");
                findings.push(Finding::new(&file.path, at + 1, what, format!("say {term}")));
            }
        }
    }
    findings
}

fn kept(word: &str, file: &TextFile) -> bool {
    KEPT.iter().any(|(kept, path, _)| *kept == word && file.path.starts_with(path))
}

/// The retired word in an identifier, if there is one, and the terms to use.
fn retired(identifier: &str) -> Option<(&'static str, &'static str)> {
    words(identifier)
        .find_map(|word| RETIRED.iter().copied().find(|(retired, _)| is_noun(word, retired)))
}

#[cfg(test)]
mod tests {
    use crate::tidy::check_text;

    #[track_caller]
    fn refuses(text: &str, what: &str) {
        let found = check_text("crates/cli/src/a.rs", text);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(what), "{found:#?}");
    }

    #[test]
    fn retired_words() {
        refuses("struct SeatTable;\n", "`SeatTable` says seat; say permit, session slot");
        refuses("let a = b.seat_of(c);\n", "`seat_of` says seat");
        refuses("const ALL_LANES: u8 = 1;\n", "`ALL_LANES` says lane; say shard");
        let silent = "// A seat.\nlet silently = \"seat\";\nlet seated: Shopping = 1;\n";
        assert_eq!(check_text("crates/cli/src/a.rs", silent), [""; 0]);
    }

    #[test]
    fn retired_names_of_files() {
        let found = check_text("crates/cli/src/fare.rs", "const A: u8 = 1;\n");
        assert!(found[0].contains("`fare` says fare; say health"), "{found:#?}");
    }
}
