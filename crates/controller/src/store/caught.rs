//! Panics of the database library (redb), caught and returned as errors.
//!
//! redb asserts invariants of the files that it writes. A damaged file may break them, so any
//! operation on one may panic; this module turns such a panic into an error.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Whether a panic on this thread is reported as an error.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, and turns a panic in it into an error. The panic is not printed.
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    be_silent_about_what_is_caught();
    let before = IS_CAUGHT.replace(true);
    // Only the database can be inconsistent after a panic, and after an error the database is
    // closed.
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(before);
    done.unwrap_or_else(|panic| Err(redb::Error::Corrupted(words(panic.as_ref()))))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    match text.lines().next() {
        Some(line) => format!("the file contradicts itself ({line})"),
        None => "the file contradicts itself".into(),
    }
}

fn be_silent_about_what_is_caught() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                before(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let error = caught::<()>(|| panic!("page {} is no page", 7)).unwrap_err().to_string();
        assert!(error.contains("contradicts itself (page 7 is no page)"), "{error}");
        assert_eq!(caught(|| Ok(1)).unwrap(), 1);
    }

    /// In a process of its own, for the hook is the process's.
    #[test]
    fn a_panic_that_is_caught_is_not_printed_and_any_other_is() {
        const NAME: &str =
            "store::caught::tests::a_panic_that_is_caught_is_not_printed_and_any_other_is";
        const CHILD: &str = "TIDEGATE_PANICS";
        if std::env::var_os(CHILD).is_some() {
            caught::<()>(|| panic!("in the store")).unwrap_err();
            std::thread::spawn(|| panic!("elsewhere")).join().unwrap_err();
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1");
        let printed = child.output().unwrap();
        let text = String::from_utf8_lossy(&printed.stderr);
        assert!(printed.status.success() && text.contains("elsewhere"), "{text}");
        assert!(!text.contains("in the store"), "{text}");
    }
}
