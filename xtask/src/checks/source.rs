//! A minimal scanner for Rust: it blanks comments and strings, and follows `mod`, `#[path]` and the
//! include macros.

use std::path::{Path, PathBuf};

/// Returns a source text with the content of comments and of string and character literals blanked;
/// line breaks are kept.
pub(crate) fn without_comments_and_strings(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest, code.chars().next_back()).unwrap_or(0);
        if length == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            code.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = &rest[length..];
        }
    }
    code
}

/// Returns whether a line of code has a word that is not part of a longer one.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Returns the files that a source file can name: modules (both possible paths) and included files.
///
/// `is_root`: the file is a target's root, whose modules lie in the same folder.
pub(crate) fn references(file: &Path, is_root: bool, text: &str) -> Vec<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new(""));
    let stem = file.file_stem().unwrap_or_default();
    let owns_folder = is_root || stem == "mod";
    let modules = if owns_folder { folder.to_path_buf() } else { folder.join(stem) };
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = module_name(line) {
            found.push(modules.join(format!("{name}.rs")));
            found.push(modules.join(name).join("mod.rs"));
        }
        for opening in ["#[path = \"", "include_str!(\"", "include_bytes!(\"", "include!(\""] {
            found.extend(quoted_after(line, opening).map(|name| normal(&folder.join(name))));
        }
    }
    found
}

/// Returns the length of the comment or literal at the start of `rest`.
fn skipped(rest: &str, before: Option<char>) -> Option<usize> {
    let bytes = rest.as_bytes();
    match *bytes.first()? {
        b'/' if bytes.get(1) == Some(&b'/') => Some(rest.find('\n').unwrap_or(rest.len())),
        b'/' if bytes.get(1) == Some(&b'*') => Some(block_comment(bytes)),
        b'"' => Some(quoted(bytes)),
        b'r' if !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_') => raw(rest),
        b'\'' => character(rest),
        _ => None,
    }
}

/// Returns the length of a block comment; they nest.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < bytes.len() {
        match &bytes[at..bytes.len().min(at + 2)] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn quoted(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the length of a raw string, if there is one.
fn raw(rest: &str) -> Option<usize> {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    let body = rest[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = body.find(&end).map_or(body.len(), |at| at + end.len());
    Some(1 + hashes + 1 + length)
}

/// Returns the length of a character literal; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        let end = rest[2..].char_indices().skip(1).find(|(_, c)| *c == '\'')?.0;
        return Some(2 + end + 1);
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(at + 1)
}

/// Returns the name in a line like `pub(crate) mod name;`.
fn module_name(line: &str) -> Option<&str> {
    let declared = line.split_once(';')?.0;
    let (before, name) = match declared.rsplit_once("mod ") {
        Some((before, name)) => (before.trim(), name.trim()),
        None => return None,
    };
    let visible = before.is_empty() || before.starts_with("pub") || before.ends_with(']');
    let named = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (visible && named).then_some(name)
}

fn quoted_after<'a>(line: &'a str, opening: &str) -> Option<&'a str> {
    line.split_once(opening)?.1.split('"').next()
}

/// Returns a path without `.` and `..` steps.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path {
        if part == ".." {
            result.pop();
        } else if part != "." {
            result.push(part);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let text =
            "a // b\n/* c /* d */ e */ f \"g \\\" h\" i r#\"j\" k\"# l 'm' '\\'' n\n'o: loop";
        let code = without_comments_and_strings(text);
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "f", "i", "l", "n", "'o:", "loop"]);
        assert_eq!(code.lines().count(), text.lines().count());
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe { }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(!has_word("an_unsafe", "unsafe"));
    }

    #[test]
    fn modules_lie_beside_a_root_and_below_others() {
        let names = |file: &str, root: bool| references(Path::new(file), root, "pub(crate) mod a;");
        assert!(names("x/src/lib.rs", true).contains(&PathBuf::from("x/src/a.rs")));
        assert!(names("x/src/b.rs", false).contains(&PathBuf::from("x/src/b/a.rs")));
        assert!(names("x/src/b/mod.rs", false).contains(&PathBuf::from("x/src/b/a/mod.rs")));
    }

    #[test]
    fn only_declarations_name_modules() {
        assert_eq!(module_name("mod a;"), Some("a"));
        assert_eq!(module_name("#[cfg(test)] mod a;"), Some("a"));
        assert_eq!(module_name("let x = a mod b;"), None);
        assert_eq!(module_name("mod a {"), None);
    }
}
