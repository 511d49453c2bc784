//! The files of a checkout, without asking git: an unpacked archive is checked like a clone.

use std::fs;
use std::io;
use std::path::Path;

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// Its path, relative to the root, with `/` between the parts.
    pub path: String,
    /// The content of the file.
    pub text: String,
}

impl TextFile {
    /// The part of the name after its last dot; empty if there is none.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }
}

/// The code in a line of Markdown: what stands between backticks, every second piece.
pub fn code_in(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Every UTF-8 file below `root` that `.gitignore` does not exclude, ordered by path.
pub fn texts(root: &Path) -> io::Result<Vec<TextFile>> {
    let ignored = match fs::read_to_string(root.join(".gitignore")) {
        Ok(text) => text.lines().map(str::to_owned).collect(),
        Err(_) => Vec::new(),
    };
    let mut found = Vec::new();
    walk(root, "", &ignored, &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn walk(
    root: &Path,
    folder: &str,
    ignored: &[String],
    found: &mut Vec<TextFile>,
) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if path == ".git" || ignored.iter().any(|pattern| is_ignored(pattern, &path)) {
            continue;
        }
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(root, &path, ignored, found)?;
        } else if kind.is_file() {
            // A file that vanished since the listing, or is not text, has nothing to say here.
            if let Ok(text) = fs::read_to_string(entry.path()) {
                found.push(TextFile { path, text });
            }
        }
    }
    Ok(())
}

/// The two forms of pattern that our `.gitignore` keeps to: `/folder/at/root` and `*.suffix`.
fn is_ignored(pattern: &str, path: &str) -> bool {
    match (pattern.strip_prefix('/'), pattern.strip_prefix('*')) {
        (Some(rooted), _) => path == rooted.trim_end_matches('/'),
        (None, Some(suffix)) => !suffix.is_empty() && path.ends_with(suffix),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gitignore_patterns() {
        assert!(is_ignored("/target", "target"));
        assert!(is_ignored("*.profraw", "crates/stage/a.profraw"));
        assert!(!is_ignored("/target", "crates/target"));
        assert!(!is_ignored("", "crates"));
        assert!(!is_ignored("# a comment", "a comment"));
    }

    #[test]
    fn extensions() {
        let file = |path: &str| TextFile { path: path.into(), text: String::new() };
        assert_eq!(file("crates/model/src/tag.rs").extension(), "rs");
        assert_eq!(file("a.b/LICENSE-MIT").extension(), "");
    }
}
