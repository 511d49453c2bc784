//! A type name says whose it is: no name is declared in many places.

use std::collections::BTreeMap;

use super::rust::{is_test_file, type_name};
use crate::Finding;
use crate::files::TextFile;
use crate::source;

/// The most declarations of one name. Chosen by hand: a reader can still tell four apart.
const DECLARATIONS_MAX: usize = 4;

/// Names that a module or a crate may have of its own, because the path says whose: `run::Args`.
const EVERYDAY: &[&str] = &["Args", "Config", "Error", "Options", "Status"];

/// A finding for each declaration, outside of tests, of a name that has too many.
pub(super) fn check(files: &[TextFile]) -> Vec<Finding> {
    let mut declared: BTreeMap<String, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.extension() == "rs" && !is_test_file(&file.path)) {
        for (at, line) in source::lines(&file.text).iter().enumerate() {
            // An indented `type` is an item of a trait or of its implementation.
            let is_associated = line.code.starts_with(' ') && source::has_word(&line.code, "type");
            if let Some(name) = type_name(&line.code).filter(|_| !line.test && !is_associated) {
                declared.entry(name.to_owned()).or_default().push((&file.path, at + 1));
            }
        }
    }
    declared.retain(|name, places| {
        places.len() > DECLARATIONS_MAX && !EVERYDAY.contains(&name.as_str())
    });
    let finding = |(name, places): (&String, &Vec<(&str, usize)>)| {
        let what = format!("`{name}` is declared {} times", places.len());
        let mend = format!("say whose it is, at most {DECLARATIONS_MAX} types have one name");
        let at = |(path, line): &(&str, usize)| Finding::new(path, *line, &*what, &*mend);
        places.iter().map(at).collect::<Vec<_>>()
    };
    declared.iter().flat_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize, path: &str, text: &str) -> Vec<TextFile> {
        let file = |number| TextFile { path: format!("{path}{number}.rs"), text: text.into() };
        (0..count).map(file).collect()
    }

    #[test]
    fn a_name_is_declared_four_times_at_most() {
        let text = "//! A `struct Flow`.\n\n    pub(super) struct Flow<T> {\n";
        assert_eq!(check(&files(4, "crates/cli/src/a", text)), []);
        let found = check(&files(5, "crates/cli/src/a", text));
        assert_eq!(found.len(), 5);
        assert!(found[4].to_string().starts_with("crates/cli/src/a4.rs:3: `Flow` is declared 5"));
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
