//! Links of a web page (section 6.3.3), over the first bytes of the page.

use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};

/// What [`resourcesync_links`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PageLinks {
    /// `href` of the first `<base>`: what the links are relative to.
    pub base: Option<String>,
    /// `href` of each link.
    pub hrefs: Vec<String>,
}

/// The `href`s of `<link rel="resourcesync">`, as written but for character references, in page order.
///
/// Text that is no markup (comments, scripts and the like) yields nothing, nor does a tag that the bytes cut off.
pub fn resourcesync_links(page: &[u8]) -> PageLinks {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut links = PageLinks::default();
    let mut templates: usize = 0;
    for Ok(token) in Tokenizer::new_with_emitter(page, emitter) {
        match token {
            Token::StartTag(tag) if tag.name.as_slice() == b"template" => templates += 1,
            Token::EndTag(tag) if tag.name.as_slice() == b"template" => templates = templates.saturating_sub(1),
            // A template is markup for scripts, and no part of the page.
            Token::StartTag(tag) if templates == 0 => match tag.name.as_slice() {
                b"base" if links.base.is_none() => links.base = attribute(&tag, b"href"),
                b"link" if is_resourcesync(&tag) => links.hrefs.extend(attribute(&tag, b"href")),
                _ => {}
            },
            _ => {}
        }
    }
    links
}

fn is_resourcesync(link: &StartTag<()>) -> bool {
    let relations = attribute(link, b"rel").unwrap_or_default();
    relations.split_ascii_whitespace().any(|relation| relation.eq_ignore_ascii_case("resourcesync"))
}

fn attribute(tag: &StartTag<()>, name: &[u8]) -> Option<String> {
    tag.attributes.get(name).map(|value| String::from_utf8_lossy(value).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hrefs(page: &str) -> Vec<String> {
        resourcesync_links(page.as_bytes()).hrefs
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
        assert_eq!(hrefs("<link rel=resourcesync href=/a.xml>"), ["/a.xml"]);
        assert_eq!(hrefs("<link\n\trel = resourcesync\n href = \" /a.xml \" />"), ["/a.xml"]);
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
        assert_eq!(resourcesync_links(&[0xff, b'<', 0xfe, b'l', b'<']), PageLinks::default());
    }

    #[test]
    fn the_first_base_counts_and_references_are_undone() {
        let page = "<base href=/x/><base href=/y/><link rel=resourcesync href='c?a=1&amp;b=2&#38;&#x26;&nope;&'>";
        let links = resourcesync_links(page.as_bytes());
        assert_eq!(links.base.as_deref(), Some("/x/"));
        assert_eq!(links.hrefs, ["c?a=1&b=2&&&nope;&"]);
    }

    /// Without time assertion: quadratic work would take hours.
    #[test]
    fn many_attributes_or_references_are_read_in_one_pass() {
        let attributes: String = (0..300_000).map(|number| format!(" a{number}")).collect();
        assert_eq!(hrefs(&format!("<link{attributes} rel=resourcesync href=a rel=b>")), ["a"]);
        let references = "&".repeat(1 << 20);
        assert_eq!(hrefs(&format!("<link rel=resourcesync href='{references}é;'>")), [format!("{references}é;")]);
    }

    #[test]
    fn every_cut_of_a_page_is_survived() {
        let page = b"<!doctype html><base href=x><link a=\"b\" rel='resourcesync' href=y><!-- c --><script>d</script>";
        for end in 0..page.len() {
            let links = resourcesync_links(&page[..end]);
            assert!(links.hrefs.is_empty() || links.hrefs == ["y"]);
        }
    }
}
