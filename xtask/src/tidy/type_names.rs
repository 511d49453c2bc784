//! A type name says whose it is: no name is declared in many places, or public in many crates.

use std::collections::{BTreeMap, BTreeSet};

use super::rust::{is_test_file, type_name};
use crate::Finding;
use crate::files::TextFile;
use crate::source;

/// The most declarations of one name. Chosen by hand: a reader can still tell three apart.
const DECLARATIONS_MAX: usize = 3;

/// The most crates in which one name is public. With two, an import shows which one is meant.
const CRATES_MAX: usize = 2;

/// Names that a module or a crate may have of its own, because the path says whose: `run::Args`.
const EVERYDAY: &[&str] = &["Args", "Config", "Error", "Options", "Status"];

/// A declaration of a type: the path of its file, its line, and whether the type is public.
type Declaration<'a> = (&'a str, usize, bool);

/// A finding for each declaration, outside of tests and generated files, of a name that has too
/// many.
pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    let mut declared: BTreeMap<String, Vec<Declaration<'_>>> = BTreeMap::new();
    let is_ours = |file: &&TextFile| !is_test_file(&file.path) && !file.is_generated();
    for file in files.iter().filter(|file| file.extension() == "rs").filter(is_ours) {
        for (at, line) in source::lines(&file.text).iter().enumerate() {
            // An indented `type` is an item of a trait or of its implementation.
            let is_associated = line.code.starts_with(' ') && source::has_word(&line.code, "type");
            if let Some(name) = type_name(&line.code).filter(|_| !line.test && !is_associated) {
                let is_public = line.code.trim_start().starts_with("pub ");
                let declaration = (&*file.path, at + 1, is_public);
                declared.entry(name.to_owned()).or_default().push(declaration);
            }
        }
    }
    declared.retain(|name, _| !EVERYDAY.contains(&name.as_str()));
    declared.iter().flat_map(|(name, places)| findings(name, places)).collect()
}

fn findings(name: &str, places: &[Declaration<'_>]) -> Vec<Finding> {
    let public = || places.iter().filter(|(.., is_public)| *is_public);
    let crates: BTreeSet<&str> = public().map(|(path, ..)| crate_of(path)).collect();
    let mut found = Vec::new();
    if places.len() > DECLARATIONS_MAX {
        let what = format!("`{name}` is declared {} times", places.len());
        let mend = format!("say whose it is, at most {DECLARATIONS_MAX} types have one name");
        found.extend(places.iter().map(|(path, at, _)| Finding::new(path, *at, &*what, &*mend)));
    }
    if crates.len() > CRATES_MAX {
        let what = format!("`{name}` is public in {} crates", crates.len());
        let mend = format!("say whose it is, at most {CRATES_MAX} crates have one public name");
        found.extend(public().map(|(path, at, _)| Finding::new(path, *at, &*what, &*mend)));
    }
    found
}

/// The folder of the crate that a file belongs to.
fn crate_of(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize, path: &str, text: &str) -> Vec<TextFile> {
        let file = |number| TextFile { path: format!("{path}{number}.rs"), text: text.into() };
        (0..count).map(file).collect()
    }

    #[test]
    fn a_name_is_declared_three_times_at_most() {
        let text = "//! A `struct Flow`.\n\n    pub(super) struct Flow<T> {\n";
        assert_eq!(check(&files(3, "crates/cli/src/a", text)), []);
        let found = check(&files(4, "crates/cli/src/a", text));
        assert_eq!(found.len(), 4);
        assert!(found[3].to_string().starts_with("crates/cli/src/a3.rs:3: `Flow` is declared 4"));
    }

    #[test]
    fn a_name_is_public_in_two_crates_at_most() {
        let three = |text: &str| -> Vec<TextFile> {
            ["crates/a/src/b.rs", "crates/c/src/d.rs", "xtask/src/e.rs"]
                .map(|path| TextFile { path: path.into(), text: text.into() })
                .into()
        };
        let found = check(&three("pub struct Flow;\n"));
        assert_eq!(found.len(), 3);
        assert!(found[2].to_string().starts_with("xtask/src/e.rs:1: `Flow` is public in 3 crates"));
        assert_eq!(check(&three("pub struct Flow;\n")[..2]), []);
        assert_eq!(check(&three("pub(crate) struct Flow;\n")), []);
        assert_eq!(check(&three("pub struct Config;\n")), []);
        assert_eq!(check(&files(3, "crates/a/src/b", "pub struct Flow;\n")), []);
    }

    #[test]
    fn everyday_names_tests_and_associated_types_do_not_count() {
        let silent = |path, text| assert_eq!(check(&files(9, path, text)), []);
        silent("crates/cli/src/a", "pub struct Error;\n");
        silent("crates/cli/tests/a", "struct Flow;\n");
        silent("crates/cli/src/a", "#[cfg(test)]\nmod tests {\n    struct Flow;\n}\n");
        silent("crates/cli/src/a", "impl Deref for A {\n    type Target = B;\n}\n");
        assert_eq!(check(&files(9, "crates/cli/src/a", "type Target = B;\n")).len(), 9);
    }
}
