//! Links of a web page (section 6.3.3): a scan for tags, not a parse, over the first bytes of the page.

/// The `href`s of `<link rel="resourcesync">`, as written but for character references, in page order.
///
/// `<base href>` is reported beside them, because it is what they are relative to. Comments and the contents of
/// `script`, `style`, `template`, `textarea`, `title` and `noscript` are no markup and yield nothing. Tags and attributes may be in any
/// case, values quoted by either quote or not at all. Whatever cannot be understood is passed over; a tag that
/// the bytes cut off does not count.
pub(super) fn resourcesync_links(page: &[u8]) -> PageLinks {
    let mut links = PageLinks::default();
    let mut rest = page;
    while let Some(open) = rest.iter().position(|byte| *byte == b'<') {
        rest = &rest[open + 1..];
        if let Some(comment) = rest.strip_prefix(b"!--") {
            rest = after(comment, b"-->");
            continue;
        }
        let name_length = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let name = rest[..name_length].to_ascii_lowercase();
        if !name.first().is_some_and(u8::is_ascii_alphabetic) {
            continue; // an end tag, a doctype, a processing instruction or a stray `<`
        }
        let Some((attributes, behind)) = attributes(&rest[name_length..]) else { break };
        rest = behind;
        let href = || attributes.href.as_ref().map(|href| href.trim().to_owned());
        match name.as_slice() {
            b"link" => {
                let rel = attributes.rel.as_deref().unwrap_or_default();
                if rel.split_ascii_whitespace().any(|r| r.eq_ignore_ascii_case("resourcesync")) {
                    links.hrefs.extend(href());
                }
            }
            b"base" if links.base.is_none() => links.base = href(),
            b"script" | b"style" | b"template" | b"textarea" | b"title" | b"noscript" => {
                rest = after_end_tag(rest, &name)
            }
            _ => {}
        }
    }
    links
}

/// What [`resourcesync_links`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageLinks {
    /// `href` of the first `<base>`.
    pub base: Option<String>,
    /// `href` of each link.
    pub hrefs: Vec<String>,
}

/// The bytes after the first `pattern`; none where it does not occur.
fn after<'a>(bytes: &'a [u8], pattern: &[u8]) -> &'a [u8] {
    bytes.windows(pattern.len()).position(|window| window == pattern).map_or(&[], |at| &bytes[at + pattern.len()..])
}

/// The bytes behind `</name`, where `name` is in lower case.
fn after_end_tag<'a>(bytes: &'a [u8], name: &[u8]) -> &'a [u8] {
    let length = name.len() + 2;
    bytes
        .windows(length)
        .position(|window| window.starts_with(b"</") && window[2..].eq_ignore_ascii_case(name))
        .map_or(&[], |at| &bytes[at + length..])
}

/// The attributes of a tag that matter here; a tag may have as many others as it likes.
#[derive(Default)]
struct Attributes {
    rel: Option<String>,
    href: Option<String>,
}

/// The attributes of a tag and what follows its `>`; `None` where the tag does not end.
fn attributes(bytes: &[u8]) -> Option<(Attributes, &[u8])> {
    let mut found = Attributes::default();
    let mut at = 0;
    loop {
        while bytes.get(at)?.is_ascii_whitespace() || bytes[at] == b'/' {
            at += 1;
        }
        if bytes[at] == b'>' {
            return Some((found, &bytes[at + 1..]));
        }
        // A name may begin with `=`, as in HTML: so each turn of the loop goes on by one byte at least.
        let name_start = at;
        at += 1;
        while !matches!(bytes.get(at)?, b'=' | b'>' | b'/') && !bytes[at].is_ascii_whitespace() {
            at += 1;
        }
        let name = &bytes[name_start..at];
        while bytes.get(at)?.is_ascii_whitespace() {
            at += 1;
        }
        let mut value: &[u8] = &[];
        if bytes[at] == b'=' {
            at += 1;
            while bytes.get(at)?.is_ascii_whitespace() {
                at += 1;
            }
            let quote = bytes[at];
            if quote == b'"' || quote == b'\'' {
                let length = bytes[at + 1..].iter().position(|byte| *byte == quote)?;
                value = &bytes[at + 1..at + 1 + length];
                at += length + 2;
            } else {
                let length = bytes[at..].iter().position(|byte| *byte == b'>' || byte.is_ascii_whitespace())?;
                value = &bytes[at..at + length];
                at += length;
            }
        }
        let wanted = if name.eq_ignore_ascii_case(b"rel") {
            &mut found.rel
        } else if name.eq_ignore_ascii_case(b"href") {
            &mut found.href
        } else {
            continue;
        };
        // Of an attribute written twice the first counts, as in HTML.
        wanted.get_or_insert_with(|| unescaped(&String::from_utf8_lossy(value)));
    }
}

/// Bytes of the longest reference that is undone, its `;` included.
const REFERENCE: usize = 32;

/// `value` with the character references that URIs hold undone; unknown ones stay as they are.
fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut rest = value;
    while let Some(at) = rest.find('&') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.bytes().skip(1).take(REFERENCE).position(|byte| byte == b';');
        let reference = end.map(|end| &rest[1..=end]);
        let character = reference.and_then(|name| match name {
            "amp" | "AMP" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            "lt" => Some('<'),
            "gt" => Some('>'),
            _ => {
                let number = name.strip_prefix('#')?;
                let code = match number.strip_prefix(['x', 'X']) {
                    Some(hex) => u32::from_str_radix(hex, 16),
                    None => number.parse(),
                };
                code.ok().and_then(char::from_u32)
            }
        });
        match (character, reference) {
            (Some(character), Some(name)) => {
                text.push(character);
                rest = &rest[name.len() + 2..];
            }
            _ => {
                text.push('&');
                rest = &rest[1..];
            }
        }
    }
    text + rest
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

    /// Without time assertion: what looks at everything once more for everything takes hours.
    #[test]
    fn a_page_of_many_attributes_or_references_is_read_in_one_pass() {
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
