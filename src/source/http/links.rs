//! Links as HTTP writes them: the `Link` header field (RFC 8288) and documents of links (RFC 6690), which TimeMaps are.

use crate::document::{Timestamp, Uri};

/// Relations of one link that count: each costs a copy of its target, and a host may send a hundred thousand.
const RELATIONS: usize = 16;

/// A link of a TimeMap (RFC 7089, 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeMapLink {
    /// Where it leads.
    pub target: Uri,
    /// Whether it leads to a memento; else to a further TimeMap.
    pub is_memento: bool,
    /// `datetime`: the time of the memento.
    pub datetime: Option<Timestamp>,
    /// `from`: the first time that the TimeMap tells of.
    pub from: Option<Timestamp>,
    /// `until`: the last.
    pub until: Option<Timestamp>,
}

/// The mementos and further TimeMaps that a document of media type `application/link-format` lists, in its order. One that
/// breaks off yields the links before the break.
pub fn time_map(document: &str, base: &Uri) -> impl Iterator<Item = TimeMapLink> {
    let mut scanner = Scanner { rest: document };
    std::iter::from_fn(move || scanner.next_link()).filter_map(move |link| {
        let has = |relation: &str| link.relations.split_ascii_whitespace().any(|it| it.eq_ignore_ascii_case(relation));
        let is_memento = has("memento");
        let is_time_map = has("timemap") && !has("self");
        let target = Uri::resolve(Some(base), link.target).ok().filter(|_| is_memento || is_time_map)?;
        let [datetime, from, until] =
            [link.datetime, link.from, link.until].map(|raw| httpdate::parse_http_date(&raw).ok().map(Timestamp::from));
        Some(TimeMapLink { target, is_memento, datetime, from, until })
    })
}

/// (relation, resolved target) of every link in the values of all `Link` lines, in their order; a link with several
/// relations counts once for each. Relations are lower case. Links about another resource (`anchor`) and links whose
/// target is no http URI are left out; a line that breaks off yields the links before the break.
pub(in crate::source) fn parse<'a>(values: impl IntoIterator<Item = &'a str>, base: &Uri) -> Vec<(Box<str>, Uri)> {
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
    datetime: String,
    from: String,
    until: String,
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
                "datetime" => link.datetime = value,
                "from" => link.from = value,
                "until" => link.until = value,
                _ => {}
            }
        }
        // Whatever stands between the parameters and the next comma is no link.
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

    /// RFC 7089, figure 28, with a page that follows.
    #[test]
    fn a_time_map_lists_mementos_with_their_times_and_further_time_maps() {
        let base = Uri::parse("http://arxiv.example.net/timemap/http://a.example.org").unwrap();
        let document = "<http://a.example.org>;rel=\"original\",
            <http://arxiv.example.net/timemap/http://a.example.org>; rel=\"self\";type=\"application/link-format\"
              ; from=\"Tue, 20 Jun 2000 18:02:59 GMT\"; until=\"Wed, 09 Apr 2008 20:30:51 GMT\",
            <http://arxiv.example.net/timegate/http://a.example.org>; rel=\"timegate\",
            </web/20000620180259/http://a.example.org>
              ; rel=\"first memento\";datetime=\"Tue, 20 Jun 2000 18:02:59 GMT\",
            <http://arxiv.example.net/web/20091027204954/http://a.example.org>; rel=\"memento\";datetime=\"never\",
            </timemap/2>; rel=\"timemap\"; from=\"Thu, 10 Apr 2008 20:30:51 GMT\", <cut";

        let links: Vec<_> = time_map(document, &base).collect();

        let times = |link: &TimeMapLink| [link.datetime, link.from].map(|time| time.map(|it| it.to_string()));
        let targets: Vec<_> = links.iter().map(|link| (link.target.path(), link.is_memento)).collect();
        let [first, undated, next] =
            ["/web/20000620180259/http://a.example.org", "/web/20091027204954/http://a.example.org", "/timemap/2"];
        assert_eq!(targets, [(first, true), (undated, true), (next, false)]);
        assert_eq!(times(&links[0]), [Some("2000-06-20T18:02:59Z".to_owned()), None]);
        assert_eq!(times(&links[1]), [None, None]);
        assert_eq!(times(&links[2]), [None, Some("2008-04-10T20:30:51Z".to_owned())]);
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
