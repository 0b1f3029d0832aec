//! Links as HTTP writes them: the `Link` header field (RFC 8288).

use crate::document::Uri;

/// Relations of one link that count: each costs a copy of its target, and a host may send a hundred thousand.
const RELATIONS: usize = 16;

/// (relation, resolved target) of every link in the values of all `Link` lines, in their order; a link with several
/// relations counts once for each. Relations are lower case. Links about another resource (`anchor`) and links whose
/// target is no http URI are left out; a line that breaks off yields the links before the break.
pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>, base: &Uri) -> Vec<(Box<str>, Uri)> {
    let mut links = Vec::new();
    for value in values {
        let mut scanner = Scanner { rest: value };
        while let Some(link) = scanner.next_link() {
            let Ok(target) = Uri::resolve(Some(base), link.target) else { continue };
            if link.anchored && Uri::resolve(Some(base), &link.anchor).as_ref() != Ok(base) {
                continue;
            }
            for relation in link.relations.split_ascii_whitespace().take(RELATIONS) {
                links.push((relation.to_ascii_lowercase().into(), target.clone()));
            }
        }
    }
    links
}

/// One `<target>; name=value; …` of a line.
#[derive(Default)]
struct Link<'a> {
    target: &'a str,
    relations: String,
    anchor: String,
    anchored: bool,
}

/// Walks one line from left to right.
struct Scanner<'a> {
    rest: &'a str,
}

impl<'a> Scanner<'a> {
    /// The next link; `None` at the end or where no `<…>` follows any more.
    fn next_link(&mut self) -> Option<Link<'a>> {
        self.skip(|c| c.is_ascii_whitespace() || c == ',');
        self.rest = self.rest.strip_prefix('<')?;
        let (target, rest) = self.rest.split_once('>')?;
        self.rest = rest;
        let mut link = Link { target, ..Link::default() };
        let mut has_relations = false;
        while self.next_is(';') {
            let name = self.take_until(|c| matches!(c, '=' | ';' | ',')).trim().to_ascii_lowercase();
            let value = if self.next_is('=') { self.value() } else { String::new() };
            match name.as_str() {
                // Only the first `rel` counts (RFC 8288, 3.3).
                "rel" if !has_relations => {
                    link.relations = value;
                    has_relations = true;
                }
                "anchor" if !link.anchored => {
                    link.anchor = value;
                    link.anchored = true;
                }
                _ => {}
            }
        }
        // What stands between the parameters and the next comma is no link.
        self.take_until(|c| c == ',');
        Some(link)
    }

    /// A token or a quoted string, unquoted.
    fn value(&mut self) -> String {
        self.skip(|c| c.is_ascii_whitespace());
        let Some(quoted) = self.rest.strip_prefix('"') else {
            return self.take_until(|c| matches!(c, ';' | ',')).trim().to_owned();
        };
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = &quoted[at + 1..];
                    return value;
                }
                '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                other => value.push(other),
            }
        }
        self.rest = "";
        value
    }

    /// Consumes `character`, blanks before it included, if it comes next.
    fn next_is(&mut self, character: char) -> bool {
        self.skip(|c| c.is_ascii_whitespace());
        match self.rest.strip_prefix(character) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn skip(&mut self, unwanted: impl Fn(char) -> bool) {
        self.rest = self.rest.trim_start_matches(unwanted);
    }

    fn take_until(&mut self, end: impl Fn(char) -> bool) -> &'a str {
        let (taken, rest) = self.rest.split_at(self.rest.find(end).unwrap_or(self.rest.len()));
        self.rest = rest;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&str]) -> Vec<(String, String)> {
        let base = Uri::parse("https://example.org/a/b").unwrap();
        parse(values.iter().copied(), &base).into_iter().map(|(rel, uri)| (rel.into(), uri.to_string())).collect()
    }

    fn pair(relation: &str, target: &str) -> (String, String) {
        (relation.to_owned(), target.to_owned())
    }

    #[test]
    fn the_relations_of_one_link_are_bounded() {
        let field = format!("</{}>; rel=\"{}\"", "a".repeat(1000), "x ".repeat(100_000));
        let base = Uri::parse("http://example.org/").unwrap();

        assert_eq!(parse([field.as_str()], &base).len(), RELATIONS);
    }

    #[test]
    fn several_links_in_several_lines() {
        let found = parsed(&[
            r#"<https://example.org/description.xml>; rel="resourcesync", </caps.xml>;rel=up"#,
            r#"<c>; title="a, b; c=\"<d>\""; rel="Next  describedBy""#,
        ]);
        assert_eq!(
            found,
            [
                pair("resourcesync", "https://example.org/description.xml"),
                pair("up", "https://example.org/caps.xml"),
                pair("next", "https://example.org/a/c"),
                pair("describedby", "https://example.org/a/c"),
            ]
        );
    }

    #[test]
    fn only_the_first_rel_counts_and_other_parameters_are_skipped() {
        let found = parsed(&["<x> ; crossorigin ; REL = 'hub ; rel=\"self\""]);
        assert_eq!(found, [pair("'hub", "https://example.org/a/x")]);
    }

    #[test]
    fn links_about_something_else_are_not_ours() {
        let found = parsed(&["<x>; rel=hub; anchor=\"/other\", <y>; rel=hub; anchor=\"#top\""]);
        assert_eq!(found, [pair("hub", "https://example.org/a/y")]);
    }

    #[test]
    fn broken_lines_yield_what_stands_before_the_break() {
        assert_eq!(parsed(&["<x>; rel=hub, nonsense, <y>; rel=self"]), [pair("hub", "https://example.org/a/x")]);
        assert_eq!(parsed(&["<x", "", ",,", "<x>", "<x>; rel=", "<x>; rel=\""]), []);
        assert_eq!(parsed(&["<mailto:a@example.org>; rel=author"]), []);
        assert_eq!(parsed(&["<x>; rel=\"hub"]), [pair("hub", "https://example.org/a/x")]);
    }
}
