//! The one table of exceptions to the rules. An entry needs a reason that would convince a
//! stranger; when the reason goes away, so does the entry.

/// A rule that may have exceptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A function of more than 60 lines. The item is the function's name.
    LongFunction,
    /// A file of more than 600 lines before its tests.
    LongFile,
    /// Sleeping in test code.
    Sleep,
}

struct Exception {
    rule: Rule,
    file: &'static str,
    /// The item of the file that is excepted; empty means the whole file.
    item: &'static str,
    /// Why. Read by people, in review.
    #[allow(dead_code, reason = "the table is documentation as much as data")]
    reason: &'static str,
}

const EXCEPTIONS: &[Exception] = &[Exception {
    rule: Rule::Sleep,
    file: "tests/src/lib.rs",
    item: "",
    reason: "the one place that waits for a condition, with a deadline, for all tests",
}];

/// Whether the table excepts `item` of `file` from `rule`.
pub(super) fn excepted(rule: Rule, file: &str, item: &str) -> bool {
    EXCEPTIONS.iter().any(|exception| {
        exception.rule == rule
            && exception.file == file
            && (exception.item.is_empty() || exception.item == item)
    })
}
