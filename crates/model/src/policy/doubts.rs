//! Entries of a valid policy that have no effect, because no request can ever match.
//!
//! These are warnings and no errors: a policy that was accepted once stays one, and a user or a
//! folder may be missing on the machine that checks and exist on the one that runs.

use alloc::format;
use alloc::vec::Vec;
use core::fmt::Display;
use core::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::{GateKind, Levels, Match, Policy, RuleTarget, Tenant};
use crate::tag::Class;
use crate::text::{Strings, Text, TextError, Wrong, located};
use crate::units::Bytes;

/// A policy as far as it is doubted here; it was read before.
#[derive(Default, Deserialize)]
struct Doubted {
    #[serde(default)]
    tenant: Vec<DoubtedTenant>,
    #[serde(default, rename = "match")]
    matches: Vec<Spanned<DoubtedMatch>>,
}

#[derive(Deserialize)]
struct DoubtedTenant {
    users: Option<Spanned<Strings>>,
    class: Option<Text>,
}

#[derive(Deserialize)]
struct DoubtedMatch {
    workflow: Option<Spanned<Strings>>,
    context: Option<Spanned<Strings>>,
    process: Option<Spanned<Strings>>,
    cgroup: Option<Spanned<Strings>>,
    user: Option<Spanned<Strings>>,
    path: Option<Spanned<Strings>>,
    volume: Option<Spanned<Strings>>,
    key: Option<Spanned<Strings>>,
    operation: Option<Spanned<Strings>>,
    size: Option<Text>,
    offset: Option<Text>,
    class: Option<Text>,
}

pub(super) fn doubts(text: &str, is_user: &dyn Fn(&str) -> bool) -> Vec<TextError> {
    let doubted: Doubted = toml::from_str(text).unwrap_or_default();
    let mut doubts = Doubts(Vec::new());
    for users in doubted.tenant.iter().filter_map(|tenant| tenant.users.as_ref()) {
        users.get_ref().0.iter().for_each(|user| doubts.user("users", user, users, is_user));
    }
    for rule in &doubted.matches {
        doubts.rule(rule.get_ref(), is_user);
    }
    if let Ok(policy) = Policy::parse(text) {
        doubts.repeated(&policy.matches, &doubted.matches);
        if policy.class_weights.is_none() {
            let tenants = doubted.tenant.iter().map(|tenant| &tenant.class);
            let rules = doubted.matches.iter().map(|rule| &rule.get_ref().class);
            tenants.chain(rules).flatten().for_each(|class| doubts.class(class));
        }
        doubts.urgent(&policy, &doubted);
    }
    let Doubts(mut wrongs) = doubts;
    wrongs.sort_by_key(|wrong| wrong.span.start);
    wrongs.into_iter().map(|wrong| located(text, wrong)).collect()
}

struct Doubts(Vec<Wrong>);

impl Doubts {
    fn add(&mut self, span: Range<usize>, message: impl Display, fix: impl Display) {
        self.0.push(Wrong { span, message: format!("{message}"), fix: format!("{fix}") });
    }

    fn rule(&mut self, rule: &DoubtedMatch, is_user: &dyn Fn(&str) -> bool) {
        let DoubtedMatch { workflow, context, process, cgroup, user, path, volume, key, .. } = rule;
        let fields = [
            ("workflow", workflow),
            ("context", context),
            ("process", process),
            ("cgroup", cgroup),
            ("user", user),
            ("path", path),
            ("volume", volume),
            ("key", key),
        ];
        for (field, patterns) in fields {
            let Some(patterns) = patterns else { continue };
            if patterns.get_ref().0.is_empty() {
                let message = format!("{field}: an empty list asks nothing, so every one matches");
                self.add(patterns.span(), message, "name at least one, or remove it");
            }
            for pattern in &patterns.get_ref().0 {
                self.pattern(field, pattern, patterns, is_user);
            }
        }
        if let Some(operations) = &rule.operation
            && operations.get_ref().0.is_empty()
        {
            let message = "operation: no operation is in an empty list, so the rule never applies";
            self.add(operations.span(), message, "name at least one, or remove it");
        }
        for (field, range) in [("size", &rule.size), ("offset", &rule.offset)] {
            if let Some(range) = range {
                self.range(field, range);
            }
        }
    }

    /// A class whose requests take the turns of all others, in a policy without weights.
    fn class(&mut self, class: &Text) {
        let name = class.get_ref();
        if matches!(name.parse(), Ok(Class::High | Class::Low)) {
            let message =
                format!("class: {name:?} changes no order at a node without class_weights");
            let fix = "add class_weights = { high = 3, medium = 2, low = 1 }, or remove it";
            self.add(class.span(), message, fix);
        }
    }

    /// Urgent requests of tenants that have no reservation at nodes: nodes serve them as high ones.
    fn urgent(&mut self, policy: &Policy, doubted: &Doubted) {
        let at_nodes = policy.at(GateKind::Node);
        let reserves = |tenant: &Tenant| tenant.reservation != Levels::default();
        let mut doubt = |class: Option<&Text>, tenant: &Tenant| {
            let Some(class) = class.filter(|class| class.get_ref() == Class::Urgent.name()) else {
                return;
            };
            if !reserves(tenant) {
                let name = &tenant.name;
                let message = format!(
                    "class: \"urgent\" goes first within a reservation, and {name} has none at \
                     nodes"
                );
                self.add(class.span(), message, "add a reservation, or write class = \"high\"");
            }
        };
        for (tenant, spanned) in at_nodes.tenants.iter().zip(&doubted.tenant) {
            doubt(spanned.class.as_ref(), tenant);
        }
        for (rule, spanned) in policy.matches.iter().zip(&doubted.matches) {
            if let RuleTarget::Tenant(tenant) = rule.target {
                let tenant = at_nodes.tenants.get(usize::from(tenant.0).wrapping_sub(1));
                let class = spanned.get_ref().class.as_ref();
                tenant.into_iter().for_each(|tenant| doubt(class, tenant));
            }
        }
    }

    fn pattern(
        &mut self,
        field: &str,
        pattern: &str,
        spanned: &Spanned<Strings>,
        is_user: &dyn Fn(&str) -> bool,
    ) {
        if field == "key" {
            // A prefix of keys, and no pattern.
            if pattern.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
                let message = format!("key: {pattern:?} begins no key, which has no blanks");
                self.add(spanned.span(), message, "remove the blank");
            }
            return;
        }
        let flaw = match field {
            _ if pattern.is_empty() => Some(("is empty", "name one, or remove it")),
            "path" => path_flaw(pattern, "write the whole path, like \"/srv/db/**\""),
            "cgroup" => {
                path_flaw(pattern, "write it as in /proc/PID/cgroup, like \"/system.slice/*\"")
            }
            "process" if pattern.contains('/') => {
                Some(("has a slash", "write the name of the executable's file without its folder"))
            }
            "user" if !pattern.contains(['*', '?', '[', '{']) => {
                return self.user(field, pattern, spanned, is_user);
            }
            _ => glob_flaw(pattern),
        };
        let what = match field {
            "path" => "file",
            "cgroup" => "control group",
            field => field,
        };
        if let Some((flaw, fix)) = flaw {
            let message = format!("{field}: {pattern:?} matches no {what}, because it {flaw}");
            self.add(spanned.span(), message, fix);
        }
    }

    fn user(
        &mut self,
        field: &str,
        user: &str,
        spanned: &Spanned<Strings>,
        is_user: &dyn Fn(&str) -> bool,
    ) {
        // Only the issuer of certificates knows their names.
        if user.starts_with("cert:") && user.len() > "cert:".len() {
            return;
        }
        if user.is_empty() || !is_user(user) {
            let message = format!("{field}: this machine has no user {user:?}");
            self.add(spanned.span(), message, "check the name; `getent passwd` lists the users");
        }
    }

    /// A range that ends before it begins.
    fn range(&mut self, field: &str, size: &Text) {
        let text = size.get_ref().trim();
        let is_empty = match text.split_once("..") {
            Some((min, end)) => match (min.parse::<Bytes>(), end.parse::<Bytes>()) {
                (Ok(min), Ok(end)) => end <= min,
                _ => false,
            },
            None => text.strip_prefix('<').is_some_and(|end| end.parse() == Ok(Bytes::ZERO)),
        };
        if is_empty {
            let message =
                format!("{field}: {text:?} is no {field} at all, so the rule never applies");
            self.add(size.span(), message, "write the smaller one first; the end is not included");
        }
    }

    /// A rule with the conditions of an earlier one.
    fn repeated(&mut self, rules: &[Match], spanned_rules: &[Spanned<DoubtedMatch>]) {
        for (number, (rule, spanned)) in rules.iter().zip(spanned_rules).enumerate() {
            let same = |other: &&Match| {
                other.conditions == rule.conditions && other.storage == rule.storage
            };
            if rules[..number].iter().any(|other| same(&other)) {
                let message = "match: a rule above asks the same, so this one never applies";
                self.add(spanned.span(), message, "remove one of them");
            }
        }
    }
}

/// Why a pattern matches no absolute path.
fn path_flaw(pattern: &str, whole: &'static str) -> Option<(&'static str, &'static str)> {
    if !pattern.starts_with(['/', '[', '{', '?']) && !pattern.starts_with("**") {
        return Some(("does not begin with a slash", whole));
    }
    let mut segments = pattern.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "" if segments.peek().is_some() => {
                return Some(("has two slashes in a row", "write one"));
            }
            "" if pattern.len() > 1 => {
                return Some(("ends with a slash", "add ** for all that is in the folder"));
            }
            "." | ".." => return Some(("has a part . or ..", "write the path without it")),
            segment
                if segment.contains("**") && segment != "**" && !segment.contains(['{', '[']) =>
            {
                let fix = "put slashes on both sides of **, or write *";
                return Some(("has ** beside other characters", fix));
            }
            _ => {}
        }
    }
    glob_flaw(pattern)
}

/// Why a pattern is none: a bracket or a brace that is not closed.
fn glob_flaw(pattern: &str) -> Option<(&'static str, &'static str)> {
    let (mut is_class, mut braces) = (false, 0_u32);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            ']' if is_class => is_class = false,
            _ if is_class => {}
            '[' => is_class = true,
            '{' => braces += 1,
            '}' => braces = braces.saturating_sub(1),
            _ => {}
        }
    }
    match (is_class, braces) {
        (true, _) => Some(("has a [ without its ]", "close it, or write \\\\[ for the character")),
        (false, 1..) => {
            Some(("has a { without its }", "close it, or write \\\\{ for the character"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    fn messages(rule: &str) -> Vec<String> {
        let text = format!("[[tenant]]\nname = \"a\"\n[[match]]\ntenant = \"a\"\n{rule}");
        Policy::parse(&text).unwrap();
        let doubts = Policy::doubts(&text, |user| user == "root" || user == "0");
        let is_of_rule = |line: usize| line == 5 || line == 6 && rule.contains('\n');
        assert!(doubts.iter().all(|doubt| is_of_rule(doubt.line)), "{doubts:?}");
        doubts.into_iter().map(|doubt| format!("{}; {}", doubt.message, doubt.fix)).collect()
    }

    #[test]
    fn meaningless_entries_are_reported_with_their_line() {
        for (rule, wanted) in [
            ("path = \"data/**\"", "path: \"data/**\" matches no file, because it does not begin"),
            ("path = \"*.db\"", "does not begin with a slash"),
            ("path = \"\"", "matches no file, because it is empty"),
            ("path = \"/a//b\"", "two slashes in a row"),
            ("path = \"/a/\"", "ends with a slash; add **"),
            ("path = \"/a/../b\"", "has a part . or .."),
            ("path = \"/a/**b\"", "has ** beside other characters"),
            ("path = \"/a/[b\"", "has a [ without its ]"),
            ("path = [\"/ok\", \"/a/{b,c\"]", "has a { without its }"),
            ("path = []", "path: an empty list asks nothing"),
            ("cgroup = \"user.slice\"", "matches no control group"),
            ("process = \"/usr/bin/tar\"", "process: \"/usr/bin/tar\" matches no process, because"),
            ("user = \"nosuch\"", "user: this machine has no user \"nosuch\""),
            ("operation = []", "no operation is in an empty list"),
            ("size = \"64KiB..4KiB\"", "size: \"64KiB..4KiB\" is no size at all"),
            ("size = \"4KiB..4KiB\"", "is no size at all"),
            ("size = \"<0B\"", "is no size at all"),
            ("offset = \"4KiB..4KiB\"", "offset: \"4KiB..4KiB\" is no offset at all"),
            (
                "volume = \"*\"\nclass = \"low\"",
                "class: \"low\" changes no order at a node without class_w",
            ),
            ("volume = \"\"", "volume: \"\" matches no volume, because it is empty"),
            ("key = \"a b\"", "begins no key"),
        ] {
            let messages = messages(rule);
            assert!(messages.len() == 1 && messages[0].contains(wanted), "{rule}: {messages:?}");
        }
    }

    #[test]
    fn what_means_something_is_not_doubted() {
        for rule in [
            "path = [\"/srv/**\", \"/a/*.db\", \"**/x\", \"{/a,/b}/c\", \"/a/[[]b\", \"/\"]",
            "cgroup = \"/system.slice/*\"",
            "process = [\"tar\", \"post*\"]",
            "user = [\"root\", \"0\", \"web*\"]",
            "size = \"4KiB..64KiB\"",
            "size = \"<1B\"",
            "key = \"b:\"",
        ] {
            assert_eq!(messages(rule), [""; 0], "{rule}");
        }
    }

    #[test]
    fn classes_are_doubted_without_weights() {
        let tenants = "[[tenant]]\nname = \"a\"\nclass = \"high\"\n\
                       [[tenant]]\nname = \"b\"\nclass = \"urgent\"\n";
        let doubts = Policy::doubts(tenants, |_| true);
        assert_eq!((doubts.len(), doubts[0].line), (2, 3), "{doubts:?}");
        let weights = "class_weights = { high = 3, medium = 2, low = 1 }\n";
        let reservation = "reservation = \"1k iops\"\n";
        assert_eq!(Policy::doubts(&format!("{weights}{tenants}{reservation}"), |_| true), []);
    }

    #[test]
    fn urgent_requests_without_a_reservation_at_nodes_are_doubted() {
        let lines = |text: &str| {
            Policy::parse(text).unwrap();
            let doubts = Policy::doubts(text, |_| true);
            let is_meant = |doubt: &TextError| doubt.message.contains("and a has none at nodes");
            assert!(doubts.iter().all(is_meant), "{doubts:?}");
            doubts.iter().map(|doubt| doubt.line).collect::<Vec<_>>()
        };
        let tenant = "[[tenant]]\nname = \"a\"\nclass = \"urgent\"\n";
        assert_eq!(lines(tenant), [3]);
        assert_eq!(lines(&format!("{tenant}reservation = \"1k iops\"\n")), [0; 0]);
        let rule = "[[match]]\ntenant = \"a\"\nvolume = \"*\"\nclass = \"urgent\"\n";
        assert_eq!(lines(&format!("[[tenant]]\nname = \"a\"\n{rule}")), [6]);
        // A reservation of something else is none at nodes.
        let resources = "[[resource]]\nname = \"cluster\"\n\
                         [[resource]]\nname = \"scratch\"\npath = \"/scratch/**\"\n\
                         capacity = \"10k iops\"\n";
        let on = |name: &str| {
            format!("{resources}{tenant}[tenant.on.{name}]\nreservation = \"1k iops\"\n")
        };
        assert_eq!(lines(&on("cluster")), [0; 0]);
        assert_eq!(lines(&on("scratch")), [9]);
    }

    #[test]
    fn users_and_repeated_rules_are_doubted() {
        let text = "[[tenant]]\nname = \"a\"\nusers = [\"root\", \"rot\", \"cert:x\"]\n\
                    [[match]]\ntenant = \"a\"\nprocess = \"x\"\n\
                    [[match]]\ntenant = \"a\"\nprocess = \"x\"\n";
        let doubts = Policy::doubts(text, |user| user == "root");
        let messages: Vec<_> =
            doubts.iter().map(|doubt| (doubt.line, &doubt.message[..])).collect();
        assert_eq!(
            messages,
            [
                (3, "users: this machine has no user \"rot\""),
                (7, "match: a rule above asks the same, so this one never applies"),
            ]
        );
    }
}
