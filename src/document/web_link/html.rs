//! Links of a web page (section 6.3.3), over the first bytes of the page.

use super::{Links, WebLink};
use crate::document::Uri;
use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};

/// The links of a page's head in page order, and whether the head has ended in these bytes. `base` is the page's address;
/// `<base href>` counts.
///
/// Text that is not markup (comments, scripts and the like) yields nothing, nor does a tag that the bytes cut off.
pub fn links_of_html(page: &[u8], base: &Uri) -> (Vec<WebLink>, bool) {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let (mut published_base, mut tags, mut has_ended) = (None, Vec::new(), false);
    let mut templates: usize = 0;
    for Ok(token) in Tokenizer::new_with_emitter(page, emitter) {
        match token {
            Token::StartTag(tag) if tag.name.as_slice() == b"template" => templates += 1,
            Token::EndTag(tag) if tag.name.as_slice() == b"template" => templates = templates.saturating_sub(1),
            // A template is markup for scripts, and no part of the page.
            Token::StartTag(tag) if templates == 0 => match tag.name.as_slice() {
                b"base" if published_base.is_none() => published_base = attribute(&tag, b"href"),
                b"link" => tags.push(tag),
                b"body" => has_ended = true,
                _ => {}
            },
            Token::EndTag(tag) if templates == 0 => has_ended = tag.name.as_slice() == b"head",
            _ => {}
        }
        if has_ended {
            break;
        }
    }
    let published_base = published_base.and_then(|published| Uri::resolve(Some(base), &published).ok());
    let mut links = Links::new(published_base.as_ref().unwrap_or(base));
    for tag in tags {
        let [rel, href] = [b"rel", b"href".as_slice()].map(|name| attribute(&tag, name));
        let (Some(rel), Some(href)) = (rel, href) else { continue };
        let texts = [b"type", b"profile".as_slice(), b"title"].map(|name| attribute(&tag, name));
        if links.add(&rel, &href, None, texts).is_err() {
            break;
        }
    }
    (links.found, has_ended)
}

fn attribute(tag: &StartTag<()>, name: &[u8]) -> Option<String> {
    tag.attributes.get(name).map(|value| String::from_utf8_lossy(value).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::MOST_BYTES;
    use super::*;

    const PAGE: &str = "http://h/d/page";

    fn links(page: &[u8]) -> (Vec<WebLink>, bool) {
        links_of_html(page, &Uri::parse(PAGE).unwrap())
    }

    /// Targets of `rel=resourcesync`, those below the page without its folder.
    fn hrefs(page: &str) -> Vec<String> {
        let (links, _) = links(page.as_bytes());
        let targets = links.iter().filter_map(|link| link.leads_by("resourcesync"));
        targets.map(|uri| uri.as_str().strip_prefix("http://h/d/").unwrap_or(uri.as_str()).to_owned()).collect()
    }

    #[test]
    fn the_standards_own_page_is_understood() {
        let page = r#"<html> <head> <link rel="resourcesync"
            href="http://www.example.com/dataset1/capabilitylist.xml"/> </head> <body>...</body> </html>"#;
        assert_eq!(hrefs(page), ["http://www.example.com/dataset1/capabilitylist.xml"]);
    }

    #[test]
    fn quotes_case_order_and_blanks_do_not_matter() {
        assert_eq!(hrefs("<LINK HREF='a.xml' REL='ResourceSync'>"), ["a.xml"]);
        assert_eq!(hrefs("<link rel=resourcesync href=/a.xml>"), ["http://h/a.xml"]);
        assert_eq!(hrefs("<link\n\trel = resourcesync\n href = \" /a.xml \" />"), ["http://h/a.xml"]);
        assert_eq!(hrefs("<link rel='alternate  resourcesync' type=\"x>y\" href=b>"), ["b"]);
        assert_eq!(
            hrefs("<link disabled/rel=resourcesync/ href=c>"),
            Vec::<String>::new(),
            "the value is `resourcesync/`"
        );
        assert_eq!(hrefs("<link =odd rel=\"resourcesync\"href=\"d\">"), ["d"]);
    }

    #[test]
    fn comments_scripts_and_other_text_are_no_markup() {
        assert_eq!(hrefs("<!-- <link rel=resourcesync href=no> --><link rel=resourcesync href=yes>"), ["yes"]);
        assert_eq!(
            hrefs("<script>x = \"<link rel=resourcesync href=no>\";</SCRIPT ><link rel=resourcesync href=yes>"),
            ["yes"]
        );
        assert_eq!(hrefs("<title><link rel=resourcesync href=no></title>"), Vec::<String>::new());
        assert_eq!(hrefs("<textarea><link rel=resourcesync href=no>"), Vec::<String>::new(), "never closed");
        assert_eq!(hrefs("<!-- never closed <link rel=resourcesync href=no>"), Vec::<String>::new());
        assert_eq!(hrefs("<p title='<link rel=resourcesync href=no>'>"), Vec::<String>::new());
        let template = "<template><p><link rel=resourcesync href=no></template><link rel=resourcesync href=yes>";
        assert_eq!(hrefs(template), ["yes"]);
    }

    #[test]
    fn other_relations_missing_hrefs_and_cut_tags_yield_nothing() {
        let none = Vec::<String>::new();
        assert_eq!(hrefs("<link rel=stylesheet href=a><link rel=resourcesync>"), none);
        assert_eq!(hrefs("<link rel=resourcesync-other href=a><linkrel=resourcesync href=a>"), none);
        assert_eq!(hrefs("<link rel=resourcesync href=\"cut"), none);
        assert_eq!(hrefs("a < b <"), none);
        assert_eq!(links(&[0xff, b'<', 0xfe, b'l', b'<']), (Vec::new(), false));
    }

    #[test]
    fn the_first_base_counts_and_references_are_undone() {
        let page = "<base href=/x/><base href=/y/><link rel=resourcesync href='c?a=1&amp;b=2&#38;&#x26;&nope;&'>";
        assert_eq!(hrefs(page), ["http://h/x/c?a=1&b=2&&&nope;&"]);
    }

    #[test]
    fn a_link_counts_once_for_each_relation_with_all_it_says() {
        let page = "<link rel='DescribedBy https://S.org/X' type=' text/turtle ' profile=p title='a &amp; b' href=m>";
        let (links, has_ended) = links(page.as_bytes());

        assert!(!has_ended);
        assert_eq!(links.iter().map(|link| &*link.rel).collect::<Vec<_>>(), ["describedby", "https://S.org/X"]);
        for link in links {
            let texts = [link.media_type, link.profile, link.title].map(Option::unwrap_or_default);
            assert_eq!(texts.each_ref().map(|text| &**text), ["text/turtle", "p", "a & b"]);
        }
    }

    #[test]
    fn links_end_with_the_head() {
        for end in ["</head>", "<body class=x>", "</HEAD >"] {
            let page =
                format!("<head><title>x</title><link rel=resourcesync href=a>{end}<link rel=resourcesync href=b>");
            assert_eq!(hrefs(&page), ["a"]);
            assert!(links(page.as_bytes()).1);
        }
        let within = "<head><template></head><body></template><script></head></script><link rel=resourcesync href=a>";
        assert_eq!(hrefs(within), ["a"]);
    }

    #[test]
    fn a_long_base_of_very_many_links_is_bounded() {
        let page = format!("<base href='{}/'>{}", "b".repeat(500_000), "<link rel=a href=x>".repeat(25_000));

        assert_eq!(links(page.as_bytes()).0.len(), MOST_BYTES / 500_000);
    }

    /// Without time assertion: quadratic work would take hours.
    #[test]
    fn many_attributes_or_references_are_read_in_one_pass() {
        let attributes: String = (0..300_000).map(|number| format!(" a{number}")).collect();
        assert_eq!(hrefs(&format!("<link{attributes} rel=resourcesync href=a rel=b>")), ["a"]);
        let references = "&".repeat(1 << 20);
        assert_eq!(
            hrefs(&format!("<link rel=resourcesync href='?{references}é;'>")),
            [format!("page?{references}%C3%A9;")]
        );
    }

    #[test]
    fn every_cut_of_a_page_is_survived() {
        let page = b"<!doctype html><base href=x><link a=\"b\" rel='resourcesync' href=y><!-- c --><script>d</script>";
        for end in 0..page.len() {
            let (links, has_ended) = links(&page[..end]);
            assert!(links.is_empty() || links[0].href.as_str() == "http://h/d/y");
            assert!(!has_ended);
        }
    }
}
