//! User numbers of the user names that a policy has.
//!
//! Workers identify clients of Unix sockets by the number of their user, and never wait for a
//! directory server to resolve a name. So the thread that receives a policy looks up its names
//! here, once. A changed number of a user takes effect with the next policy.

use std::collections::BTreeMap;

use nix::unistd::User;
use tidegate_model::Policy;
use tidegate_model::policy::CERTIFICATE;

/// Names of users by their numbers.
pub(crate) type UserNames = BTreeMap<u32, String>;

/// The policy, with the numbers of the users that it names beside their names; and these names by
/// number, for the log.
pub(crate) fn numbered(mut policy: Policy) -> (Policy, UserNames) {
    let mut names = UserNames::new();
    for tenant in &mut policy.tenants {
        let is_name =
            |user: &&String| !user.starts_with(CERTIFICATE) && user.parse::<u32>().is_err();
        let number = |user: &String| match User::from_name(user) {
            Ok(Some(found)) => Some((found.uid.as_raw(), user.clone())),
            Ok(None) => {
                tracing::warn!(tenant = tenant.name, user, "this machine has no user of this name");
                None
            }
            Err(error) => {
                tracing::warn!(tenant = tenant.name, user, %error, "cannot look up a user");
                None
            }
        };
        let numbers = tenant.users.iter().filter(is_name).filter_map(number).collect::<Vec<_>>();
        tenant.users.extend(numbers.iter().map(|(number, _)| number.to_string()));
        names.extend(numbers);
    }
    (policy, names)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that fails says where")]
mod tests {
    use super::*;
    use tidegate_model::policy::Principal;

    #[test]
    fn names_of_users_are_known_by_their_numbers() {
        let text =
            r#"tenant = [{ name = "a", users = ["root", "7", "cert:root", "no such user"] }]"#;
        let (policy, names) = numbered(Policy::parse(text).unwrap());
        assert_eq!(names, UserNames::from([(0, "root".into())]));
        let [tenant] = &policy.tenants[..] else { panic!("there is one") };
        assert_eq!(tenant.users, ["root", "7", "cert:root", "no such user", "0"]);
        assert!(tenant.admits(Principal::User { uid: 0, name: "" }));
    }
}
