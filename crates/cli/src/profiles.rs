//! Profiles: policies for one program, which come with `tidegate` or are files of the user.

use std::path::Path;

use tidegate_console::failure::{Code, Failure};
use tidegate_console::policy_file::{PolicyFile, with_budget};
use tidegate_console::text_file::{self, Reader};
use tidegate_model::Rate;

/// The profiles that come with the program, by name.
const PROFILES: [(&str, &str); 1] = [("lsm", include_str!("../../../policies/profiles/lsm.toml"))];

/// The profile of this name, or in this file, with this budget if there is one. The name of a file
/// has a slash or ends in `.toml`.
///
/// # Errors
/// If there is none, or it is no valid policy.
pub(crate) fn find(wanted: &str, budget: Option<Rate>) -> Result<PolicyFile, Failure> {
    let (name, mut text) = named(wanted)?;
    if let Some(budget) = budget {
        text = with_budget(&name, text, budget)?;
    }
    PolicyFile::new(name, text)
}

/// A profile's name for messages, and its text.
fn named(wanted: &str) -> Result<(String, String), Failure> {
    let path = Path::new(wanted);
    if wanted.contains('/') || path.extension().is_some_and(|extension| extension == "toml") {
        return Ok((wanted.to_owned(), text_file::read("policy", path, Reader::User)?));
    }
    if let Some((name, text)) = PROFILES.iter().find(|(name, _)| *name == wanted) {
        return Ok((format!("profile {name}"), (*text).to_owned()));
    }
    let known: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
    let help = format!("known are {}; a file is named like ./{wanted}.toml", known.join(", "));
    Err(Failure::new(Code::Usage, format!("no profile is {wanted:?}")).help(help))
}

#[cfg(test)]
mod tests {
    use tidegate_model::policy::{FlowPriority, GateKind};

    use super::*;

    #[test]
    fn every_profile_is_a_policy_that_can_have_a_budget() {
        for (name, _) in PROFILES {
            let profile = find(name, None).unwrap();
            profile.check_feasible().unwrap();
            assert_eq!(profile.doubts(), [""; 0]);
            let with = find(name, Some(Rate(200 << 20))).unwrap();
            assert_eq!(with.policy.at(GateKind::Stage).budget.bandwidth, Some(Rate(200 << 20)));
        }
    }

    #[test]
    fn the_profile_of_a_store_has_three_kinds_of_background() {
        let policy = find("lsm", None).unwrap().policy;
        let background = policy.channels.iter().map(|channel| {
            let background = channel.background.unwrap();
            (channel.name.as_str(), background.priority, background.minimum)
        });
        let expected = [
            ("flush", FlowPriority::High, None),
            ("compaction-l0", FlowPriority::High, None),
            ("compaction-deep", FlowPriority::Low, None),
        ];
        assert_eq!(background.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn an_unknown_profile_is_refused_with_the_known_ones() {
        let failure = find("lms", None).unwrap_err().to_line();
        assert!(failure.contains("no profile is \"lms\""), "{failure}");
        assert!(failure.contains("known are lsm; a file is named like ./lms.toml"), "{failure}");
        let failure = find("./missing.toml", None).unwrap_err().to_line();
        assert!(failure.contains("cannot read the policy ./missing.toml"), "{failure}");
    }
}
