//! User names in rules become numbers here, beside the application and not in it: asking for a name
//! may load libraries and open sockets.

use std::ffi::CString;

use tidegate_proto::message::{Differentiation, Rule, ToStage};

/// The message with every user name that has a number replaced by the number. Names that have none
/// here are left, and match no user; patterns are left as they are.
pub(crate) fn resolved(mut message: ToStage) -> ToStage {
    if let ToStage::Apply { rules, .. } = &mut message {
        for rule in rules {
            if let Rule::Differentiation(Differentiation::Insert { conditions, .. }) = rule {
                for user in &mut conditions.user {
                    if let Some(number) = number_of(user) {
                        *user = number.to_string();
                    }
                }
            }
        }
    }
    message
}

fn number_of(name: &str) -> Option<u32> {
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let name = CString::new(name).ok()?;
    let mut buffer = vec![0; 16_384];
    // SAFETY: all-zero is a valid value of this C structure of integers and pointers.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: name, entry, buffer with its length, and found all outlive the call.
    let result = unsafe {
        libc::getpwnam_r(
            name.as_ptr(),
            &raw mut entry,
            buffer.as_mut_ptr(),
            buffer.len(),
            &raw mut found,
        )
    };
    (result == 0 && !found.is_null()).then_some(entry.pw_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_and_patterns_stay() {
        assert_eq!(number_of("root"), Some(0));
        assert_eq!(number_of("1000"), None);
        assert_eq!(number_of("web-*"), None);
    }
}
