//! Links as HTTP writes them: the `Link` header field (RFC 8288).

use super::{LinkSetError, Links, Texts, WebLink};
use crate::document::Uri;
use crate::document::parameters::{Scanner, extended};

/// The links in the values of all `Link` lines, in their order; a link with several relations counts once for each. A line
/// that breaks off yields the links before the break.
pub fn links_of_header<'a>(values: impl IntoIterator<Item = &'a str>, base: &Uri) -> Vec<WebLink> {
    let mut links = Links::new(base);
    for value in values {
        if read(value, &mut links).is_err() {
            break;
        }
    }
    links.found
}

/// Adds the links of one line, and answers what is left of it: nothing, unless no `<…>` follows any more.
pub(super) fn read<'a>(line: &'a str, links: &mut Links) -> Result<&'a str, LinkSetError> {
    let mut scanner = Scanner { rest: line, is_list: true };
    loop {
        scanner.skip(|c| c.is_ascii_whitespace() || c == ',');
        let Some((target, rest)) = scanner.rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) else {
            return Ok(scanner.rest);
        };
        scanner.rest = rest;
        let (mut relations, mut anchor, mut title) = (None, None, None);
        let mut texts: Texts = Default::default();
        while let Some((name, value)) = scanner.parameter() {
            let field = match name.as_str() {
                "rel" => &mut relations,
                "anchor" => &mut anchor,
                "type" => &mut texts[0],
                "profile" => &mut texts[1],
                "title" => &mut texts[2],
                "title*" => {
                    title = title.or_else(|| extended(&value));
                    continue;
                }
                _ => continue,
            };
            // Only the first of each counts (RFC 8288, 3.3 and 3.4).
            field.get_or_insert(value);
        }
        texts[2] = title.or(texts[2].take());
        // Text between the parameters and the next comma is not a link.
        scanner.take_until(|c| c == ',');
        let Ok(context) = anchor.map_or(Ok(None), |anchor| links.context(&anchor)) else { continue };
        links.add(&relations.unwrap_or_default(), target, context.as_ref(), texts)?;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MOST_LINKS, RELATIONS};
    use super::*;

    fn read(values: &[&str]) -> Vec<WebLink> {
        let base = Uri::parse("https://example.org/a/b").unwrap();
        links_of_header(values.iter().copied(), &base)
    }

    fn parsed(values: &[&str]) -> Vec<(String, String)> {
        let links = read(values);
        links.iter().filter_map(|link| Some((link.rel.to_string(), link.leads_by(&link.rel)?.to_string()))).collect()
    }

    fn pair(relation: &str, target: &str) -> (String, String) {
        (relation.to_owned(), target.to_owned())
    }

    #[test]
    fn the_relations_of_one_link_are_bounded() {
        let field = format!("</{}>; rel=\"{}\"", "a".repeat(1000), "x ".repeat(100_000));
        let base = Uri::parse("http://example.org/").unwrap();

        assert_eq!(links_of_header([field.as_str()], &base).len(), RELATIONS);
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
    fn everything_that_a_link_says_is_kept() {
        let links = read(&[
            "</m>; rel=\"describedby https://Schema.org/About\"; type=\"application/ld+json\"; \
             profile=\"https://www.w3.org/ns/json-ld#compacted\"; title=plain; title*=UTF-8''M%c3%a9ta; title*=UTF-8''x; type=no",
            "<urn:nbn:de:1>; rel=cite-as; anchor=\"https://example.org/a/B/../b\"; title=\"\"; title*=broken",
            "<x>; rel=item; anchor=\"https://other.example.org/\", <x>; rel=item; anchor=\"urn:x\", <http://>; rel=item",
        ]);
        let about = WebLink {
            anchor: None,
            rel: "describedby".into(),
            href: Uri::parse("https://example.org/m").unwrap().into(),
            media_type: Some("application/ld+json".into()),
            profile: Some("https://www.w3.org/ns/json-ld#compacted".into()),
            title: Some("Méta".into()),
        };
        assert_eq!(links[..2], [about.clone(), WebLink { rel: "https://Schema.org/About".into(), ..about }]);
        let further: Vec<_> = links[2..]
            .iter()
            .map(|link| (link.anchor.as_ref().map(Uri::as_str), &*link.rel, link.href.as_str(), link.title.as_deref()))
            .collect();
        let other = (Some("https://other.example.org/"), "item", "https://example.org/a/x", None);
        assert_eq!(further, [(None, "cite-as", "urn:nbn:de:1", None), other]);
    }

    #[test]
    fn very_many_links_are_read_in_one_pass_up_to_a_bound() {
        let line = "<a>; rel=item, ".repeat(MOST_LINKS + 1);

        assert_eq!(read(&[&line]).len(), MOST_LINKS);
        assert_eq!(read(&[&format!("<{}>;rel=a;x=\"{}", "b".repeat(1 << 20), "\\".repeat(5 << 20))]).len(), 1);
    }

    #[test]
    fn every_cut_of_a_header_is_survived() {
        let line = "</é>; rel=\"item \\\"x\"; type=text/csv; title*=UTF-8''%c3%a9, <b>;rel=up; anchor=\"/ü\"";
        for end in (0..line.len()).filter(|end| line.is_char_boundary(*end)) {
            assert!(read(&[&line[..end]]).len() <= 3);
        }
    }

    #[test]
    fn broken_lines_yield_what_stands_before_the_break() {
        assert_eq!(parsed(&["<x>; rel=hub, nonsense, <y>; rel=self"]), [pair("hub", "https://example.org/a/x")]);
        assert_eq!(parsed(&["<x", "", ",,", "<x>", "<x>; rel=", "<x>; rel=\""]), []);
        assert_eq!(parsed(&["<mailto:a@example.org>; rel=author"]), []);
        assert_eq!(parsed(&["<x>; rel=\"hub"]), [pair("hub", "https://example.org/a/x")]);
    }
}
