//! Links of a web page (section 6.3.3), over the first bytes of the page.

use super::{Links, WebLink};
use crate::document::Uri;
use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Readable, Reader, Span, Tokenizer};
use std::cell::Cell;
use std::convert::Infallible;

/// Attributes of one tag. A quotation mark behind so many ends the reading: for each quoted attribute of a tag the tokenizer calls
/// itself, and a page of nothing else would overflow the stack.
const MOST_ATTRIBUTES: usize = 100;

/// A tag of a page.
struct Tag {
    name: Vec<u8>,
    is_end: bool,
    /// Names and values, in page order.
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Tag {
    fn new(name: &[u8], is_end: bool) -> Tag {
        Tag { name: name.to_vec(), is_end, attributes: Vec::new() }
    }

    /// The first attribute of a name.
    fn attribute(&self, name: &[u8]) -> Option<String> {
        let (_, value) = self.attributes.iter().find(|(attribute, _)| attribute == name)?;
        Some(String::from_utf8_lossy(value).trim().to_owned())
    }
}

/// A tag has more attributes than are read.
#[derive(Debug, thiserror::Error)]
#[error("a tag of more than {MOST_ATTRIBUTES} attributes")]
struct TooManyAttributes;

/// A page, up to a tag of too many attributes.
struct BoundedPage<'a, R> {
    page: R,
    /// The attributes of the tag that is being read.
    attributes: &'a Cell<usize>,
}

impl<R> BoundedPage<'_, R> {
    fn check(attributes: &Cell<usize>, next: Option<u8>) -> Result<(), TooManyAttributes> {
        let is_too_many = next == Some(b'"') && attributes.get() > MOST_ATTRIBUTES;
        if is_too_many { Err(TooManyAttributes) } else { Ok(()) }
    }
}

impl<R: Reader<Error = Infallible>> Reader for BoundedPage<'_, R> {
    type Error = TooManyAttributes;

    fn read_byte(&mut self) -> Result<Option<u8>, TooManyAttributes> {
        let Ok(byte) = self.page.read_byte();
        Self::check(self.attributes, byte).map(|()| byte)
    }

    fn try_read_string(&mut self, text: &[u8], case_sensitive: bool) -> Result<bool, TooManyAttributes> {
        let Ok(is_next) = self.page.try_read_string(text, case_sensitive);
        Ok(is_next)
    }

    fn read_until<'b>(
        &'b mut self,
        needle: &[u8],
        buffer: &'b mut [u8; 4],
    ) -> Result<Option<&'b [u8]>, TooManyAttributes> {
        let Ok(bytes) = self.page.read_until(needle, buffer);
        Self::check(self.attributes, bytes.and_then(|bytes| bytes.first().copied())).map(|()| bytes)
    }
}

/// The links of a page's head in page order, and whether the head has ended in these bytes. `base` is the page's address;
/// `<base href>` counts.
///
/// Text that is not markup (comments, scripts and the like) yields nothing, nor does a tag that the bytes cut off.
pub fn links_of_html(page: &[u8], base: &Uri) -> (Vec<WebLink>, bool) {
    let (attributes, mut open) = (Cell::new(0), None::<Tag>);
    let mut emitter = CallbackEmitter::new(|event: CallbackEvent<'_>, _: Span<()>| match event {
        CallbackEvent::OpenStartTag { name } => {
            open = Some(Tag::new(name, false));
            None
        }
        CallbackEvent::AttributeName { name } => {
            attributes.set(attributes.get() + 1);
            let tag = open.as_mut().filter(|tag| [&b"link"[..], b"base"].contains(&&*tag.name));
            tag?.attributes.push((name.to_vec(), Vec::new()));
            None
        }
        CallbackEvent::AttributeValue { value } => {
            open.as_mut()?.attributes.last_mut()?.1 = value.to_vec();
            None
        }
        CallbackEvent::CloseStartTag { .. } => {
            attributes.set(0);
            open.take()
        }
        CallbackEvent::EndTag { name } => {
            attributes.set(0);
            Some(Tag::new(name, true))
        }
        _ => None,
    });
    emitter.naively_switch_states(true);
    let (mut published_base, mut tags, mut has_ended) = (None, Vec::new(), false);
    let mut templates: usize = 0;
    let page = BoundedPage { page: page.to_reader(), attributes: &attributes };
    for tag in Tokenizer::new_with_emitter(page, emitter).map_while(Result::ok) {
        match (&*tag.name, tag.is_end) {
            (b"template", false) => templates += 1,
            (b"template", true) => templates = templates.saturating_sub(1),
            // A template is markup for scripts, and no part of the page.
            _ if templates > 0 => {}
            (b"base", false) if published_base.is_none() => published_base = tag.attribute(b"href"),
            (b"link", false) => tags.push(tag),
            (b"body", false) => has_ended = true,
            (name, true) => has_ended = name == b"head",
            _ => {}
        }
        if has_ended {
            break;
        }
    }
    let published_base = published_base.and_then(|published| Uri::resolve(Some(base), &published).ok());
    let mut links = Links::new(published_base.as_ref().unwrap_or(base));
    for tag in tags {
        let (Some(rel), Some(href)) = (tag.attribute(b"rel"), tag.attribute(b"href")) else { continue };
        let texts = [b"type", b"profile".as_slice(), b"title"].map(|name| tag.attribute(name));
        if links.add(&rel, &href, None, texts).is_err() {
            break;
        }
    }
    (links.found, has_ended)
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

    /// The process of a mount would end with its stack.
    #[test]
    fn a_tag_of_very_many_quoted_attributes_ends_the_reading() {
        for tag in ["link", "/p", "p"] {
            let page = format!(
                "<link rel=resourcesync href=a><{tag}{}><link rel=resourcesync href=b>",
                " a=\"\"".repeat(200_000)
            );
            assert_eq!(hrefs(&page), ["a"], "{tag}");
        }
        let usual = format!("<link{} rel=\"resourcesync\" href=\"a\">", " a=\"b\"".repeat(MOST_ATTRIBUTES - 3));
        assert_eq!(hrefs(&usual.repeat(3)), ["a", "a", "a"]);
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
