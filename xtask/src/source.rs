//! Rust text, line by line: the code of each line without comments, and whether it is for tests
//! only.
//!
//! This is a scanner, not a parser. It knows strings (with their raw and byte forms), characters,
//! lifetimes and nested comments, and it counts brackets. That is enough for rules about words and
//! lengths over source that rustfmt has laid out, and it needs no dependency.

/// One line of Rust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The line without comments, and with the inside of every literal blanked.
    pub code: String,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub test: bool,
}

/// A function with a body: its name, and the indices of its first and last line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name after `fn`.
    pub name: String,
    /// The line of `fn`, from 0.
    pub first: usize,
    /// The line of the closing brace, from 0.
    pub last: usize,
}

/// Splits Rust text into lines and marks those under `#[cfg(test)]`.
pub fn lines(text: &str) -> Vec<Line> {
    let mut lines = scan(text);
    let mut at = 0;
    while at < lines.len() {
        let code = lines[at].code.trim_start();
        if code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(all(test,") {
            let last = item_end(&lines, at).unwrap_or(at);
            lines[at..=last].iter_mut().for_each(|line| line.test = true);
            at = last;
        }
        at += 1;
    }
    lines
}

/// Every function that has a body, outer ones before the ones inside them.
pub fn functions(lines: &[Line]) -> Vec<Function> {
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function_name(&line.code) else { continue };
        if let Some(last) = item_end(lines, first)
            && lines[last].code.contains('}')
        {
            found.push(Function { name: name.to_owned(), first, last });
        }
    }
    found
}

/// Whether `code` holds `word` with nothing on either side that would make it another word.
pub fn has_word(code: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(inside);
        let after = code[at + word.len()..].chars().next().is_some_and(inside);
        !before && !after
    })
}

/// The words of an identifier: `SeatOf_ALL` as `Seat`, `Of`, `ALL`.
pub fn words(identifier: &str) -> impl Iterator<Item = &str> {
    let mut rest = identifier;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches('_');
        let ends = |pair: &[u8]| {
            pair[1] == b'_' || pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase()
        };
        let end = rest.as_bytes().windows(2).position(ends).map_or(rest.len(), |last| last + 1);
        let (word, next) = rest.split_at(end);
        rest = next;
        (!word.is_empty()).then_some(word)
    })
}

/// Whether `word` is this noun, or its plural, in upper or lower case.
pub fn is_noun(word: &str, noun: &str) -> bool {
    let (word, noun) = (word.as_bytes(), noun.as_bytes());
    match word.len().checked_sub(noun.len()) {
        Some(0) => word.eq_ignore_ascii_case(noun),
        Some(1) => {
            word[..noun.len()].eq_ignore_ascii_case(noun)
                && matches!(word.last(), Some(b's' | b'S'))
        }
        _ => false,
    }
}

enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text,
    RawText { hashes: usize },
}

fn scan(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = Vec::new();
    let mut line = Line::default();
    let mut state = State::Code;
    let mut at = 0;
    while at < chars.len() {
        if chars[at] == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(std::mem::take(&mut line));
            at += 1;
            continue;
        }
        at += step(&chars[at..], &mut state, &mut line);
    }
    if line != Line::default() {
        lines.push(line);
    }
    lines
}

/// Takes what stands at the head of `rest` into `line`; returns how many characters that was.
fn step(rest: &[char], state: &mut State, line: &mut Line) -> usize {
    let next = rest.get(1).copied();
    match state {
        State::Code => return step_code(rest, state, line),
        State::LineComment => {}
        State::BlockComment { depth } => match (rest[0], next) {
            ('/', Some('*')) => {
                *depth += 1;
                return 2;
            }
            ('*', Some('/')) => {
                *depth -= 1;
                if *depth == 0 {
                    *state = State::Code;
                }
                return 2;
            }
            _ => {}
        },
        State::Text => match (rest[0], next) {
            ('\\', Some(escaped)) if escaped != '\n' => return 2,
            ('"', _) => {
                line.code.push('"');
                *state = State::Code;
            }
            _ => {}
        },
        State::RawText { hashes } => {
            let hashes = *hashes;
            if rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes {
                line.code.push('"');
                *state = State::Code;
                return 1 + hashes;
            }
        }
    }
    1
}

fn step_code(rest: &[char], state: &mut State, line: &mut Line) -> usize {
    match (rest[0], rest.get(1), rest.get(2)) {
        ('/', Some('/'), _) => {
            *state = State::LineComment;
            2
        }
        ('/', Some('*'), _) => {
            *state = State::BlockComment { depth: 1 };
            2
        }
        ('"', ..) => {
            *state = match raw_hashes(&line.code) {
                Some(hashes) => State::RawText { hashes },
                None => State::Text,
            };
            line.code.push('"');
            1
        }
        // A character is '\…' or 'x'; every other quote opens a lifetime or a label.
        ('\'', Some('\\'), _) => {
            line.code.push_str("''");
            let end = rest.iter().skip(3).position(|c| *c == '\'');
            end.map_or(rest.len(), |end| end + 4)
        }
        ('\'', Some(_), Some('\'')) => {
            line.code.push_str("''");
            3
        }
        (other, ..) => {
            line.code.push(other);
            1
        }
    }
}

/// If the code before a quote is the head of a raw string, how many `#` close it.
fn raw_hashes(before: &str) -> Option<usize> {
    let head = before.trim_end_matches('#');
    let prefix: String =
        head.chars().rev().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    matches!(prefix.as_str(), "r" | "rb" | "rc").then(|| before.len() - head.len())
}

fn function_name(code: &str) -> Option<&str> {
    let (before, after) = match code.trim_start().strip_prefix("fn ") {
        Some(after) => ("", after),
        None => code.split_once(" fn ")?,
    };
    let qualifies = |token: &str| {
        matches!(token, "const" | "async" | "unsafe" | "extern" | "default" | "safe")
            || token.starts_with("pub")
            || token.starts_with('"')
            || token.ends_with(')')
    };
    let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    (end > 0 && before.split_whitespace().all(qualifies)).then(|| &after[..end])
}

/// The last line of the item that begins on line `first`: where its braces close, or where a
/// semicolon ends it before any brace.
fn item_end(lines: &[Line], first: usize) -> Option<usize> {
    let mut braces = 0i32;
    let mut brackets = 0i32;
    for (at, line) in lines.iter().enumerate().skip(first) {
        for c in line.code.chars() {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets -= 1,
                '{' => braces += 1,
                '}' => {
                    braces -= 1;
                    if braces <= 0 && brackets <= 0 {
                        return Some(at);
                    }
                }
                ';' if braces == 0 && brackets == 0 => return Some(at),
                _ => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Vec<String> {
        lines(text).into_iter().map(|line| line.code).collect()
    }

    #[test]
    fn literals_and_comments_are_not_code() {
        assert_eq!(code(r#"a("unsafe { \" }"); // unsafe"#), [r#"a(""); "#]);
        assert_eq!(
            code("b(r#\"say \"unsafe\"\"#, b'{', '\\'', '}');"),
            ["b(r#\"\", b'', '', '');"]
        );
        assert_eq!(code("c /* one /* two */ still */ d"), ["c  d"]);
        assert_eq!(code("fn e<'a>(x: &'a str) {}"), ["fn e<'a>(x: &'a str) {}"]);
        assert_eq!(code("let s = \"one\ntwo }\";"), ["let s = \"", "\";"]);
    }

    #[test]
    fn an_item_under_cfg_test_is_for_tests_to_its_end() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let test_marks: Vec<bool> = lines(text).iter().map(|line| line.test).collect();
        assert_eq!(test_marks, [false, true, true, true, true, false]);
        let text = "#[cfg(test)]\nuse a::b;\nfn c() {}\n";
        let test_marks: Vec<bool> = lines(text).iter().map(|line| line.test).collect();
        assert_eq!(test_marks, [true, true, false]);
    }

    #[test]
    fn functions_end_where_their_braces_close() {
        let text = "trait T {\n    fn a(x: [u8; 4]);\n}\npub(crate) unsafe extern \"C\" fn b(\n    \
                    x: [u8; 4],\n) {\n    if x { y() }\n}\ntype F = fn(u8);\n";
        let found = functions(&lines(text));
        assert_eq!(found, [Function { name: "b".into(), first: 3, last: 7 }]);
    }

    #[test]
    fn words_have_edges() {
        assert!(has_word("pub unsafe fn", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(has_word("x = std::mem", "std"));
        assert!(!has_word("my_std::mem", "std"));
    }

    #[test]
    fn identifiers_have_words() {
        let split = |identifier| words(identifier).collect::<Vec<_>>();
        assert_eq!(split("SeatOf__ALL"), ["Seat", "Of", "ALL"]);
        assert_eq!(split("_"), [""; 0]);
        assert!(is_noun("Utils", "util") && is_noun("SEAT", "seat"));
        assert!(!is_noun("utility", "util") && !is_noun("se", "seat"));
    }
}
