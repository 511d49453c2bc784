//! Patterns of paths that match no file of this machine, as requests name files.
//!
//! - A pattern may lead through a symbolic link: stages know an open file by its real path, so
//!   reads and writes of files behind the link match no such pattern, and pass without a limit.
//! - Its folder may be missing, as that of an example that was not edited. Other machines under the
//!   policy may have the folder, so this is no error.

use std::io;
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
        let _ = sender.send(doubtful(&patterns, Path::canonicalize));
    });
    answers.recv_timeout(PATIENCE).unwrap_or_default()
}

/// Warnings about each pattern that leads through a link or into a missing folder. `resolve` has
/// the real path of a path.
fn doubtful(patterns: &[String], resolve: impl Fn(&Path) -> io::Result<PathBuf>) -> Vec<String> {
    let mut warnings = Vec::new();
    for pattern in patterns {
        let linked = real_pattern(pattern, &resolve).map(|real| {
            format!(
                "path: {pattern:?} leads through a symbolic link on this machine, and reads and \
                 writes match by the real path of a file; write {real:?}"
            )
        });
        let missing = missing_folder(pattern, &resolve).map(|folder| {
            format!(
                "path: nothing is under {pattern:?} on this machine, because there is no folder \
                 {folder:?}; name a folder that is there, unless it is made later or is one of \
                 other machines"
            )
        });
        for warning in linked.into_iter().chain(missing) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
    }
    warnings
}

/// The folder of a pattern up to its first wildcard, without the last slash; none if it has no
/// slash before that.
fn folder(pattern: &str) -> Option<&str> {
    let wild = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    Some(&pattern[..pattern[..wild].rfind('/')?])
}

/// The folder of a pattern, if the pattern is absolute and the folder does not exist. A folder that
/// cannot be seen may exist.
fn missing_folder(pattern: &str, resolve: impl Fn(&Path) -> io::Result<PathBuf>) -> Option<&str> {
    let folder = folder(pattern).filter(|folder| folder.starts_with('/'))?;
    let error = resolve(Path::new(folder)).err()?;
    let is_missing = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    is_missing.then_some(folder)
}

/// The pattern with the real path of its folders, as far as they have no wildcards and exist; none
/// if that is the pattern itself.
fn real_pattern(pattern: &str, resolve: impl Fn(&Path) -> io::Result<PathBuf>) -> Option<String> {
    let mut folders = Path::new(folder(pattern)?).ancestors();
    let known = folders.find_map(|path| Some((path, resolve(path).ok()?)));
    let (path, real) = known.filter(|(path, real)| path != real)?;
    let rest = pattern[path.as_os_str().len()..].trim_start_matches('/');
    Some(real.join(rest).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine where `/srv/link` leads to `/mnt/disk`, and `/var/run` to `/run`. `/root` may not
    /// be searched, and `/srv/file` is a file.
    fn machine(path: &Path) -> io::Result<PathBuf> {
        let real = |link: &str, to: &str| Some(Path::new(to).join(path.strip_prefix(link).ok()?));
        let exists = ["/", "/srv", "/srv/link", "/srv/link/db", "/srv/real", "/var/run"];
        if !exists.iter().any(|it| Path::new(it) == path) {
            return Err(io::Error::from(match path {
                _ if path.starts_with("/root") => io::ErrorKind::PermissionDenied,
                _ if path.starts_with("/srv/file") => io::ErrorKind::NotADirectory,
                _ => io::ErrorKind::NotFound,
            }));
        }
        let linked = real("/srv/link", "/mnt/disk").or_else(|| real("/var/run", "/run"));
        Ok(linked.unwrap_or_else(|| path.into()))
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
    fn patterns_in_a_missing_folder_are_named_with_it() {
        for (pattern, missing) in [
            ("/data/**", Some("/data")),
            ("/data/*.db", Some("/data")),
            ("/srv/missing/new/data-*/**", Some("/srv/missing/new")),
            ("/srv/missing/file", Some("/srv/missing")),
            ("/srv/link/missing/**", Some("/srv/link/missing")),
            ("/srv/file/sub/[ab]", Some("/srv/file/sub")),
            ("/srv/real/**", None),
            ("/srv/new*/**", None),
            ("/srv/new", None),
            ("/root/secret/**", None),
            ("/**", None),
            ("/*/x", None),
            ("**", None),
            ("**/x", None),
            ("data/*.db", None),
        ] {
            assert_eq!(missing_folder(pattern, machine), missing, "{pattern}");
        }
    }

    #[test]
    fn each_pattern_is_named_once() {
        let patterns = ["/srv/link/**", "/data/**", "/srv/real/**", "/srv/link/**", "/data/**"];
        let warnings = doubtful(&patterns.map(String::from), machine);
        let linked = "path: \"/srv/link/**\" leads through a symbolic link on this machine, and \
                      reads and writes match by the real path of a file; write \"/mnt/disk/**\"";
        let missing = "path: nothing is under \"/data/**\" on this machine, because there is no \
                       folder \"/data\"; name a folder that is there, unless it is made later or \
                       is one of other machines";
        assert_eq!(warnings, [linked, missing]);
    }

    /// Nodes and data nodes have no folder.
    #[test]
    fn only_paths_are_looked_for() {
        let policy = |text: &str| Policy::parse(&format!("{text}[[tenant]]\nname = \"a\"\n"));
        let nodes = policy("[[resource]]\nname = \"cluster\"\n").unwrap();
        assert_eq!(warnings(&nodes), [""; 0]);
        let files = "[[resource]]\nname = \"disk\"\npath = \"/no such folder/**\"\n";
        let [warning] = &warnings(&policy(files).unwrap())[..] else { panic!("one is missing") };
        assert!(warning.contains("nothing is under \"/no such folder/**\""), "{warning}");
    }
}
