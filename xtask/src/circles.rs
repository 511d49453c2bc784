//! Modules of one folder do not use each other in a circle.
//!
//! A module is a file with everything in the folder of its name: `tls.rs` and `tls/` are one, seen
//! from `stream.rs` beside them. Among the modules of each folder, one that uses another directly
//! or indirectly is not used by it. A file and its own children may use each other: the children
//! are its parts.
//!
//! Paths are found as text (`crate::…`, `super::…`), so a name that another module exports again
//! counts as that module's. Tests may use anything.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::Finding;
use crate::files::{self, TextFile};
use crate::source;

/// Everything to mend in the checkout at `root`.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    Ok(findings(&files::texts(root)?))
}

fn findings(files: &[TextFile]) -> Vec<Finding> {
    let finding = |(folder, circle): (String, BTreeSet<&str>)| {
        let names = circle.into_iter().collect::<Vec<_>>().join(", ");
        let what = format!("{names} use each other in a circle");
        let mend = "move what both sides need into a module of its own below them";
        Finding::new(&folder, 1, what, mend)
    };
    circles(files).into_iter().map(finding).collect()
}

/// Each folder with modules in a circle, and these modules.
fn circles(files: &[TextFile]) -> Vec<(String, BTreeSet<&str>)> {
    let key = |root: &str, path: &[String]| format!("{root}/{}", path.join("/"));
    let mut modules = BTreeMap::new();
    for file in files {
        if let Some((root, path)) = module(&file.path) {
            let owned = path.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            modules.insert(key(root, &owned), (root, path, file));
        }
    }
    // In each folder, which of its modules uses which.
    let mut uses: BTreeMap<String, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (root, from, file) in modules.values() {
        for target in targets(from, &file.text) {
            let mut lengths = (1..=target.len()).rev();
            let to = lengths.find_map(|length| modules.get(&key(root, &target[..length])));
            let to = to.map(|(_, path, _)| path);
            let Some(to) = to else { continue };
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                let folder = [&[*root], &from[..shared]].concat().join("/");
                uses.entry(folder).or_default().entry(*user).or_default().insert(*used);
            }
        }
    }
    let found = uses.into_iter().map(|(folder, uses)| {
        let reaches_itself = |module: &&str| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![*module]);
            while let Some(at) = next.pop() {
                next.extend(uses.get(at).into_iter().flatten().filter(|to| reached.insert(**to)));
            }
            reached.contains(module)
        };
        let circle = uses.keys().copied().filter(reaches_itself).collect::<BTreeSet<_>>();
        (folder, circle)
    });
    found.filter(|(_, circle)| !circle.is_empty()).collect()
}

/// The source folder of a file's crate, and the module's path in it; none for tests.
fn module(path: &str) -> Option<(&str, Vec<&str>)> {
    let inside = path.find("/src/")? + "/src".len();
    let (root, file) = (&path[..inside], path[inside + 1..].strip_suffix(".rs")?);
    let mut module: Vec<&str> = file.split('/').collect();
    let is_test = |name: &&str| *name == "tests" || name.ends_with("_tests");
    if !root.starts_with("crates/") || module.iter().any(is_test) {
        return None;
    }
    if matches!(module[..], ["lib" | "main"]) || module.last() == Some(&"mod") {
        module.pop();
    }
    Some((root, module))
}

/// The paths that the code of a module names, from the root of its crate.
fn targets(module: &[&str], text: &str) -> Vec<Vec<String>> {
    let lines = source::lines(text);
    let code = lines.iter().filter(|line| !line.test).map(|line| line.code.as_str());
    let code = code.collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    let is_in_name = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '$');
    for (start, base) in [("crate::", 0), ("super::", 1)] {
        for (at, _) in code.match_indices(start) {
            if !code[..at].ends_with(is_in_name) {
                let up = module.len().saturating_sub(base);
                let path = module[..if base == 0 { 0 } else { up }].iter();
                expand(
                    path.map(|name| (*name).into()).collect(),
                    &code[at + start.len()..],
                    &mut found,
                );
            }
        }
    }
    found
}

/// Adds the paths of a tree of names like `a::{b, c::d}` behind `path`. Returns what is behind it.
fn expand<'a>(mut path: Vec<String>, tree: &'a str, found: &mut Vec<Vec<String>>) -> &'a str {
    let mut rest = tree.trim_start();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            let behind = expand(path.clone(), rest, found);
            let Some(next) = behind.find([',', '}']) else { return "" };
            rest = behind[next..].trim_start_matches(',').trim_start();
        }
        return rest.strip_prefix('}').unwrap_or(rest);
    }
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match &rest[..end] {
        "super" => drop(path.pop()),
        name => path.push(name.into()),
    }
    match rest[end..].strip_prefix("::") {
        Some(next) if end > 0 => expand(path, next, found),
        _ => {
            found.push(path);
            &rest[end..]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| TextFile {
            path: format!("crates/x/src/{path}.rs"),
            text: (*text).into(),
        };
        let files: Vec<TextFile> = files.iter().map(file).collect();
        findings(&files).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_is_refused_however_deep_its_uses_are() {
        let circle = "crates/x/src:1: a, b, c use each other in a circle; \
                      move what both sides need into a module of its own below them";
        let files = [
            ("a", "use crate::b::B;"),
            ("b/mod", ""),
            ("b/inner", "use std::{fmt, io};\nuse super::super::{d, c::{C, E as F}};"),
            ("c", "fn f() { crate::a::g(); }"),
            ("d", ""),
        ];
        assert_eq!(found(&files), [circle]);
        let deep = [("m", ""), ("m/a", "use super::b;"), ("m/b", "use super::a::A;")];
        assert!(found(&deep)[0].starts_with("crates/x/src/m:1: a, b use"), "{:?}", found(&deep));
    }

    #[test]
    fn parents_and_children_tests_and_comments_are_free() {
        let files = [
            ("a", "use a::child::Part;\n// crate::b\n#[cfg(test)]\nuse crate::b::B;"),
            ("a/child", "use super::Whole;\nuse crate::a::Other;"),
            ("b", "use crate::a::Whole;"),
            ("b_tests", "use crate::b::B;"),
            ("b/tests/more", "use crate::a::Whole;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
