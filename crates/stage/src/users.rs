//! User names in rules become numbers here, beside the application and not in it: asking for a name
//! may load libraries and open sockets.

use nix::unistd::User;
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
    User::from_name(name).ok()?.map(|user| user.uid.as_raw())
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
