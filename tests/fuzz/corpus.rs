//! First cases: what the unit tests of a module are written with.

use std::path::Path;

/// The string literals of the Rust files at `paths` below `src`, and below those that are folders.
pub fn literals(paths: &[&str]) -> Vec<Vec<u8>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut waiting: Vec<_> = paths.iter().map(|path| source.join(path)).collect();
    while let Some(path) = waiting.pop() {
        match std::fs::read_dir(&path) {
            Ok(entries) => {
                let mut below: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
                // The same cases on each machine.
                below.sort();
                waiting.extend(below);
            }
            Err(_) if path.extension().is_some_and(|extension| extension == "rs") => {
                let text = std::fs::read_to_string(&path).unwrap();
                found.extend(of(&text));
            }
            Err(_) => {}
        }
    }
    found.sort();
    found.dedup();
    assert!(!found.is_empty(), "{paths:?} hold no cases");
    found
}

/// The literals of one file.
fn of(text: &str) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\n']) {
        let before = &rest[..at];
        let is_comment = rest[at..].starts_with('"') && before.trim_start().starts_with("//");
        let is_char = before.ends_with('\'') || before.ends_with("'\\");
        let hashes = before.len() - before.trim_end_matches('#').len();
        let is_raw = before.trim_end_matches('#').ends_with('r');
        rest = &rest[at + 1..];
        match text.as_bytes()[text.len() - rest.len() - 1] {
            b'"' if is_comment => rest = rest.split_once('\n').map_or("", |(_, next)| next),
            b'"' if is_raw => {
                let Some((literal, next)) = rest.split_once(&format!("\"{}", "#".repeat(hashes))) else { break };
                found.push(literal.as_bytes().to_vec());
                rest = next;
            }
            b'"' if !is_char => {
                let (literal, length) = escaped(rest);
                found.push(literal);
                rest = &rest[length.min(rest.len())..];
            }
            _ => {}
        }
    }
    found
}

/// The bytes of a literal that ends at the next quote, and its length with the quote.
fn escaped(text: &str) -> (Vec<u8>, usize) {
    let (mut literal, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(['"', '\\']) {
        literal.extend_from_slice(&rest.as_bytes()[..at]);
        let is_end = rest[at..].starts_with('"');
        rest = &rest[at + 1..];
        if is_end {
            break;
        }
        let Some(mark) = rest.chars().next() else { break };
        rest = &rest[mark.len_utf8()..];
        match mark {
            'n' => literal.push(b'\n'),
            'r' => literal.push(b'\r'),
            't' => literal.push(b'\t'),
            '0' => literal.push(0),
            '\n' => rest = rest.trim_start(),
            'x' if rest.is_char_boundary(2.min(rest.len())) => {
                literal.extend(u8::from_str_radix(&rest[..2.min(rest.len())], 16));
                rest = &rest[2.min(rest.len())..];
            }
            'u' => {
                let (code, next) = rest.trim_start_matches('{').split_once('}').unwrap_or_default();
                let character = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
                literal.extend(character.map(String::from).unwrap_or_default().bytes());
                rest = next;
            }
            other => literal.extend(String::from(other).bytes()),
        }
    }
    (literal, text.len() - rest.len())
}
