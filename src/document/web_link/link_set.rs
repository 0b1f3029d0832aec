//! Link sets: documents that hold links of several contexts (RFC 9264).

use super::{Links, MOST_LINKS, WebLink, header};
use crate::document::Uri;
use crate::document::json::{self, Json, JsonError};

/// Bytes that are not a link set, or too large a one.
#[derive(Debug, thiserror::Error)]
pub enum LinkSetError {
    /// No JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Other JSON; the names of its members.
    #[error("JSON without a list `linkset`; its members: {0:?}")]
    NoLinkSet(String),
    /// A text in which no further link can be read; it begins with this.
    #[error("a link set with an entry that is not a link: {0:?}")]
    NoLink(String),
    /// More links than are read.
    #[error("a link set of more than {MOST_LINKS} links, or of too many bytes")]
    TooMany,
}

/// The links of a link set, as JSON or as text. `base` is its address.
///
/// JSON is read too within the member `data` of an envelope (Dataverse), and with further members that RFC 9264 does not know (DSpace).
/// Links and contexts of wrong types are passed over.
///
/// # Errors
/// Bytes that are not a link set. A text that breaks off, or has something else between its links, is an error too: what is
/// missing would look removed.
pub fn links_of_link_set(bytes: &[u8], is_json: bool, base: &Uri) -> Result<Vec<WebLink>, LinkSetError> {
    let text = json::text(bytes);
    let mut links = Links::new(base);
    if is_json {
        let root = Json::parse(&text)?;
        let set = root.get("linkset").or_else(|| root.get("data")?.get("linkset"));
        let Some(set @ (Json::List(_) | Json::Object(_))) = set else {
            let names: Vec<&str> = root.members().iter().map(|(name, _)| &**name).collect();
            return Err(LinkSetError::NoLinkSet(json::beginning(&names.join(", "))));
        };
        set.values().iter().try_for_each(|context| add_context(context, &mut links))?;
    } else {
        let rest = header::read(&text, &mut links)?;
        // A web page reads as links without relations.
        let rest = if links.found.is_empty() { text.trim() } else { rest };
        if !rest.is_empty() {
            return Err(LinkSetError::NoLink(json::beginning(rest)));
        }
    }
    Ok(links.found)
}

/// Adds the links of one context: each member but `anchor` is a relation with a list of targets.
fn add_context(context: &Json, links: &mut Links) -> Result<(), LinkSetError> {
    let anchor = match context.get("anchor").map(Json::text) {
        None => None,
        Some(anchor) => match anchor.map(|anchor| links.context(anchor)) {
            Some(Ok(anchor)) => anchor,
            Some(Err(_)) | None => return Ok(()),
        },
    };
    for (relation, targets) in context.members().iter().filter(|(name, _)| name != "anchor") {
        for target in targets.values() {
            let text = |name| target.get(name).and_then(Json::text).map(str::to_owned);
            let Some(href) = target.get("href").and_then(Json::text) else { continue };
            let profiles = target.get("profile").map_or(&[][..], Json::values);
            let profiles: Vec<&str> = profiles.iter().filter_map(Json::text).collect();
            let title = target.get("title*").and_then(|title| title.values().first()?.get("value")?.text());
            let texts = [text("type"), Some(profiles.join(" ")), title.map(str::to_owned).or_else(|| text("title"))];
            links.add(relation, href, anchor.as_ref(), texts)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::MOST_BYTES;
    use super::*;

    const BASE: &str = "https://repo.example.org/sets/1";

    fn read(text: &str, is_json: bool) -> Result<Vec<WebLink>, LinkSetError> {
        links_of_link_set(text.as_bytes(), is_json, &Uri::parse(BASE).unwrap())
    }

    /// (context, relation, target) of each link.
    fn triples(text: &str, is_json: bool) -> Vec<(String, String, String)> {
        let links = read(text, is_json).unwrap();
        let context = |link: &WebLink| link.anchor.as_ref().map(Uri::to_string).unwrap_or_default();
        links.iter().map(|link| (context(link), link.rel.to_string(), link.href.to_string())).collect()
    }

    fn triple(anchor: &str, rel: &str, href: &str) -> (String, String, String) {
        (anchor.to_owned(), rel.to_owned(), href.to_owned())
    }

    #[test]
    fn both_forms_say_the_same() {
        let json = r#"{"linkset": [
            {"anchor": "/records/1",
             "item": [{"href": "/files/a.csv", "type": "text/csv", "title": "A"}, {"href": "https://h/b"}],
             "describedby": [{"href": "1.jsonld", "type": "application/ld+json", "profile": ["https://p/1", "https://p/2"],
                              "title*": [{"value": "Méta", "language": "fr"}], "title": "no"}],
             "https://schema.org/Author": [{"href": "urn:x:1"}]},
            {"anchor": "https://h/b", "collection": [{"href": "/records/1"}]},
            {"license": [{"href": "https://spdx.org/licenses/CC0-1.0"}]}
        ]}"#;
        let text = "\u{feff}</files/a.csv>\r\n ; rel=item\n ; anchor=\"/records/1\"\n ; type=\"text/csv\"; title=A,\n\
            <https://h/b>; rel=\"item\"; anchor=\"/records/1\",\n\
            <1.jsonld>; rel=describedby; anchor=\"/records/1\"; type=\"application/ld+json\"\n\
            ; profile=\"https://p/1 https://p/2\"; title=no; title*=UTF-8'fr'M%C3%A9ta,\n\
            <urn:x:1>; rel=\"https://schema.org/Author\"; anchor=\"/records/1\"\n\
            , </records/1>; anchor=\"https://h/b\"; rel=collection,\n\
            <https://spdx.org/licenses/CC0-1.0>;\nrel=license\n";
        let page = "https://repo.example.org/records/1";
        let expected = [
            triple(page, "item", "https://repo.example.org/files/a.csv"),
            triple(page, "item", "https://h/b"),
            triple(page, "describedby", "https://repo.example.org/sets/1.jsonld"),
            triple(page, "https://schema.org/Author", "urn:x:1"),
            triple("https://h/b", "collection", page),
            triple("", "license", "https://spdx.org/licenses/CC0-1.0"),
        ];

        assert_eq!(triples(json, true), expected);
        assert_eq!(read(json, true).unwrap(), read(text, false).unwrap());
        let about = &read(json, true).unwrap()[2];
        let texts = [&about.media_type, &about.profile, &about.title].map(|text| text.as_deref().unwrap_or_default());
        assert_eq!(texts, ["application/ld+json", "https://p/1 https://p/2", "Méta"]);
    }

    #[test]
    fn what_platforms_make_of_the_json_is_read() {
        let enveloped =
            r#"{"status":"OK","data":{"linkset":[{"anchor":"https://h/d","item":[{"href":"https://h/f/1"}]}]}}"#;
        let further =
            r#"{"linkset":[{"anchor":"https://h/d","item":[{"href":"https://h/f/1"}]}],"linksetJson":{"item":1}}"#;
        let bare =
            r#"{"linkset":{"anchor":"https://h/d","profile":"p","item":{"href":"https://h/f/1","profile":"p"}}}"#;
        for json in [enveloped, further, bare] {
            assert_eq!(triples(json, true), [triple("https://h/d", "item", "https://h/f/1")], "{json}");
        }
    }

    #[test]
    fn entries_of_wrong_types_are_passed_over() {
        let json = r#"{"linkset": [7, null, "x", [], {}, {"anchor": 5, "item": [{"href": "/no"}]},
            {"anchor": "mailto:a@h", "item": [{"href": "/no"}]},
            {"item": [null, "/no", {"href": 7}, {"href": "http://"}, {"type": "text/csv"},
                      {"href": "/yes", "type": 5, "title": ["x"], "title*": "x", "profile": {"a": 1}}],
             "up": 1, "next": {"href": null}, "": [{"href": "/no"}]}]}"#;
        assert_eq!(triples(json, true), [triple("", "item", "https://repo.example.org/yes")]);
    }

    #[test]
    fn what_is_no_link_set_is_named() {
        let named = |text: &str, is_json| {
            let error = read(text, is_json).expect_err(text);
            crate::platform::error_chain::chain(&error)
        };
        let page = "\n<!DOCTYPE html><html><title>502</title>";
        assert_eq!(named(page, true), "a web page instead of JSON: \"<!DOCTYPE html><html><title>502</title>\"");
        assert!(named(page, false).ends_with("\"<!DOCTYPE html><html><title>502</title>\""), "{}", named(page, false));
        assert!(named("", true).starts_with("not JSON that can be read: EOF"), "{}", named("", true));
        assert!(named(r#"{"linkset":[]} x"#, true).contains("trailing"));
        let without = |members| format!("JSON without a list `linkset`; its members: {members:?}");
        assert_eq!(named(r#"{"message":"no","links":{}}"#, true), without("message, links"));
        assert_eq!(named("[1]", true), without(""));
        assert_eq!(named(r#"{"linkset":"x"}"#, true), without("linkset"));
        assert!(named("<a>; rel=item, oops, <b>; rel=item", false).ends_with("\"oops, <b>; rel=item\""));
        assert!(named("Not found", false).ends_with("\"Not found\""));
        assert_eq!(read(" \n", false).unwrap(), []);
        assert_eq!(read(r#"{"linkset":[]}"#, true).unwrap(), []);
    }

    /// Without time assertion: quadratic work would take hours.
    #[test]
    fn large_link_sets_are_read_in_one_pass() {
        let set = |links: usize, title: usize| {
            let target = format!(r#"{{"href":"f","type":"text/csv","title":"{}"}}"#, "t".repeat(title));
            format!(r#"{{"linkset":[{{"anchor":"/d","item":[{}]}}]}}"#, vec![target; links].join(","))
        };
        assert_eq!(read(&set(MOST_LINKS, 60), true).unwrap().len(), MOST_LINKS);
        assert!(matches!(read(&set(MOST_LINKS + 1, 60), true), Err(LinkSetError::TooMany)));
        assert_eq!(read(&set(10, 1 << 20), true).unwrap().len(), 10);
        let text = "<f>; rel=item; anchor=\"/d\"; title=\"tttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttttt\",\n";
        assert_eq!(read(&text.repeat(MOST_LINKS), false).unwrap().len(), MOST_LINKS);
        assert!(matches!(read(&text.repeat(MOST_LINKS + 1), false), Err(LinkSetError::TooMany)));
    }

    #[test]
    fn a_long_anchor_of_very_many_links_is_bounded() {
        let targets = vec![r#"{"href":"f"}"#; 100_000].join(",");
        let json = format!(r#"{{"linkset":[{{"anchor":"/{}","item":[{targets}]}}]}}"#, "a".repeat(MOST_BYTES / 1000));

        assert!(matches!(read(&json, true), Err(LinkSetError::TooMany)));
    }

    #[test]
    fn a_cut_link_set_is_an_error_or_survived() {
        let json = r#"{"linkset":[{"anchor":"/é","item":[{"href":"\u00e9","title*":[{"value":"x"}]}]}]}"#;
        for end in 0..json.len() {
            let cut = links_of_link_set(&json.as_bytes()[..end], true, &Uri::parse(BASE).unwrap());
            assert!(matches!(cut, Err(LinkSetError::Json(_))), "{end}");
        }
        let text = "<é>\n; rel=\"item\"; title*=UTF-8''%c3%a9,\n<b>; rel=item; anchor=\"/ü\"";
        for end in 0..text.len() {
            let cut = links_of_link_set(&text.as_bytes()[..end], false, &Uri::parse(BASE).unwrap());
            assert!(cut.is_err() || cut.is_ok_and(|links| links.len() <= 2), "{end}");
        }
    }
}
