//! Patterns of paths that lead through a symbolic link: stages know an open file by its real path,
//! so reads and writes of files behind the link match no such pattern, and pass without a limit.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use tidegate_model::Policy;
use tidegate_model::policy::Extent;

/// How long the question may take: a file system that does not answer must not hold up a command
/// that limits its users.
const PATIENCE: Duration = Duration::from_secs(1);

/// Warnings about the paths of resources and rules, in the order of the policy. None if a file
/// system does not answer.
pub(crate) fn warnings(policy: &Policy) -> Vec<String> {
    let extents = policy.resources.iter().filter_map(|resource| match &resource.extent {
        Extent::Paths(paths) => Some(paths),
        Extent::Nodes | Extent::DataNodes(_) => None,
    });
    let rules = policy.matches.iter().map(|rule| &rule.conditions.path);
    let patterns: Vec<String> = extents.chain(rules).flatten().cloned().collect();
    if patterns.is_empty() {
        return Vec::new();
    }
    let (sender, answers) = mpsc::channel();
    // Left alone if it does not come back.
    std::thread::spawn(move || {
        let _ = sender.send(linked(&patterns, |path| path.canonicalize().ok()));
    });
    answers.recv_timeout(PATIENCE).unwrap_or_default()
}

/// One warning for each pattern that leads through a link. `resolve` has the real path of a path
/// that exists.
fn linked(patterns: &[String], resolve: impl Fn(&Path) -> Option<PathBuf>) -> Vec<String> {
    let mut warnings = Vec::new();
    for pattern in patterns {
        let Some(real) = real_pattern(pattern, &resolve) else { continue };
        let warning = format!(
            "path: {pattern:?} leads through a symbolic link on this machine, and reads and \
             writes match by the real path of a file; write {real:?}"
        );
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings
}

/// The pattern with the real path of its folders, as far as they have no wildcards and exist; none
/// if that is the pattern itself.
fn real_pattern(pattern: &str, resolve: impl Fn(&Path) -> Option<PathBuf>) -> Option<String> {
    let wild = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    let folder = &pattern[..pattern[..wild].rfind('/')?];
    let known = Path::new(folder).ancestors().find_map(|path| Some((path, resolve(path)?)));
    let (path, real) = known.filter(|(path, real)| path != real)?;
    let rest = pattern[path.as_os_str().len()..].trim_start_matches('/');
    Some(real.join(rest).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine where `/srv/link` leads to `/mnt/disk`, and `/var/run` to `/run`.
    fn machine(path: &Path) -> Option<PathBuf> {
        let real = |link: &str, to: &str| Some(Path::new(to).join(path.strip_prefix(link).ok()?));
        let exists = ["/", "/srv", "/srv/link", "/srv/link/db", "/srv/real", "/var/run"];
        exists.iter().find(|it| Path::new(it) == path)?;
        let linked = real("/srv/link", "/mnt/disk").or_else(|| real("/var/run", "/run"));
        Some(linked.unwrap_or_else(|| path.into()))
    }

    #[test]
    fn patterns_behind_a_link_are_named_with_the_real_path() {
        for (pattern, real) in [
            ("/srv/link/**", Some("/mnt/disk/**")),
            ("/srv/link/db/*.db", Some("/mnt/disk/db/*.db")),
            ("/srv/link/missing/new/**", Some("/mnt/disk/missing/new/**")),
            ("/var/run/x{1,2}/y", Some("/run/x{1,2}/y")),
            ("/srv/link/file", Some("/mnt/disk/file")),
            ("/srv/real/**", None),
            ("/srv/missing/**", None),
            ("/**", None),
            ("**/x", None),
        ] {
            assert_eq!(real_pattern(pattern, machine).as_deref(), real, "{pattern}");
        }
    }

    #[test]
    fn each_pattern_is_named_once() {
        let patterns = ["/srv/link/**", "/srv/real/**", "/srv/link/**"].map(String::from);
        let warnings = linked(&patterns, machine);
        let wanted = "path: \"/srv/link/**\" leads through a symbolic link on this machine, and \
                      reads and writes match by the real path of a file; write \"/mnt/disk/**\"";
        assert_eq!(warnings, [wanted]);
    }
}
