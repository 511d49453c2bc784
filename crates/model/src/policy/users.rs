//! The principals that may act for a tenant.
//!
//! `users` of a tenant names Unix users, by name or number, and holders of certificates, as
//! `cert:NAME`. A tenant without a list is open to everybody. Each place where clients come in
//! calls the same function, [`Tenant::admits`], whatever kind of connection a client comes on.

use alloc::string::String;

use super::Tenant;

/// The prefix of a certificate's name in `users`.
pub const CERTIFICATE: &str = "cert:";

/// The identity of a connection's peer, as far as the connection proves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Principal<'a> {
    /// A process of this machine: a Unix socket's peer.
    User {
        /// The number of its user.
        uid: u32,
        /// The user's name; empty where the number has none or it was not looked up.
        name: &'a str,
    },
    /// The holder of the key of a certificate that bears these names. Upper and lower case are the
    /// same, as in names of hosts.
    Certificate(&'a [String]),
    /// A peer without identity: TCP in the clear.
    Anonymous,
}

impl Tenant {
    /// Whether the policy lets `principal` act for this tenant. Without `users` any principal may,
    /// unless the gate has further conditions.
    ///
    /// ```
    /// use tidegate_model::Policy;
    /// use tidegate_model::policy::Principal;
    /// let policy = Policy::parse(r#"
    ///     tenant = [{ name = "oltp", users = ["ann", "7", "cert:app"] }, { name = "open" }]
    /// "#)?;
    /// let [oltp, open] = &policy.tenants[..] else { panic!() };
    /// let app = ["app".to_owned()];
    /// assert!(oltp.admits(Principal::User { uid: 1000, name: "ann" }));
    /// assert!(oltp.admits(Principal::User { uid: 7, name: "" }));
    /// assert!(oltp.admits(Principal::Certificate(&app)));
    /// let ann = ["ann".to_owned()];
    /// assert!(!oltp.admits(Principal::Certificate(&ann)), "that is a user and no certificate");
    /// assert!(!oltp.admits(Principal::User { uid: 1000, name: "app" }));
    /// assert!(!oltp.admits(Principal::Anonymous) && open.admits(Principal::Anonymous));
    /// # Ok::<(), tidegate_model::PolicyError>(())
    /// ```
    pub fn admits(&self, principal: Principal<'_>) -> bool {
        let is_principal = |user: &String| match (user.strip_prefix(CERTIFICATE), principal) {
            (Some(wanted), Principal::Certificate(names)) => {
                names.iter().any(|name| name.eq_ignore_ascii_case(wanted))
            }
            (None, Principal::User { uid, name }) => {
                (!name.is_empty() && user == name) || user.parse() == Ok(uid)
            }
            _ => false,
        };
        self.users.is_empty() || self.users.iter().any(is_principal)
    }

    /// Whether `users` names a Unix user.
    pub fn admits_users(&self) -> bool {
        self.users.iter().any(|user| !user.starts_with(CERTIFICATE))
    }

    /// Whether `users` names a certificate.
    pub fn admits_certificates(&self) -> bool {
        self.users.iter().any(|user| user.starts_with(CERTIFICATE))
    }
}
