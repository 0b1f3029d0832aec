//! How documents are written: namespaces, markup, encodings, bounds.

use super::*;

#[test]
fn the_namespace_is_known_with_and_without_slash_and_by_https() {
    for terms in ["http://www.openarchives.org/rs/terms", "https://www.openarchives.org/rs/terms/"] {
        let document = read(format!(
            r#"<urlset xmlns="https://www.sitemaps.org/schemas/sitemap/0.9/" xmlns:rs="{terms}">
            <rs:md capability="resourcelist" at="2013-01-03"/>{}</urlset>"#,
            url("a")
        ));
        assert_eq!(document.header.capability, Some(Capability::ResourceList));
        assert_eq!(document.entries.len(), 1);
        assert_eq!(document.deviations.count(Rule::NamespaceSpelling), 2);
    }
}

#[test]
fn any_prefix() {
    let document = read(format!(
        r#"<s:urlset xmlns:s="{SITEMAP}" xmlns="{TERMS}"><md capability="resourcelist" at="2013-01-03"/>
        <ln rel="up" href="http://example.com/up"/>
        <s:url><s:loc>http://example.com/a</s:loc><md length="5"/></s:url></s:urlset>"#
    ));
    assert_eq!(document.entries[0].length, Some(5));
    assert!(document.header.link("up").is_some());
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn namespaces_declared_on_the_elements_themselves() {
    let document = read(format!(
        r#"<urlset xmlns="{SITEMAP}"><x:md xmlns:x="{TERMS}" capability="resourcelist"/>
        <url><loc>http://example.com/a</loc><x:md xmlns:x="{TERMS}" length="5"/><x:md length="6"/></url>
        <url><loc>http://example.com/b</loc><md xmlns="{TERMS}" length="7"/></url></urlset>"#
    ));
    assert_eq!(document.header.capability, Some(Capability::ResourceList));
    assert_eq!(document.entries[0].length, Some(5), "x is bound in the first rs:md alone");
    assert_eq!(document.entries[1].length, Some(7));
}

#[test]
fn no_namespace_and_undeclared_prefixes() {
    let document = read(
        r#"<urlset><rs:md capability="resourcelist"/>
        <url><loc>http://example.com/a</loc><rs:md rs:length="5" dc:hash="x"/></url></urlset>"#,
    );
    assert_eq!(document.header.capability, Some(Capability::ResourceList));
    assert_eq!(document.entries[0].length, Some(5));
    assert_eq!(document.deviations.count(Rule::RootNamespace), 1);
    assert_eq!(document.deviations.count(Rule::UndeclaredPrefix), 2);
    assert_eq!(document.deviations.count(Rule::PrefixedAttribute), 1);

    let document = read(format!(
        r#"<urlset xmlns="{SITEMAP}"><url xmlns=""><loc>http://example.com/a</loc></url><md capability="x"/></urlset>"#
    ));
    assert_eq!(document.locs(), ["http://example.com/a"]);
    assert_eq!(document.header.capability, Some(Capability::Other("x".into())));
}

#[test]
fn root_in_an_unknown_namespace() {
    let document = read(r#"<urlset xmlns="http://example.org/my"><url><loc>http://example.com/a</loc></url></urlset>"#);
    assert_eq!(document.locs(), ["http://example.com/a"]);
    assert_eq!(document.broken(), [(Rule::RootNamespace, 1)]);
}

#[test]
fn own_prefixed_attributes_count_and_foreign_ones_do_not() {
    let document = read(urlset(
        r#"<url xmlns:x="http://example.org/x"><loc x:rel="y">http://example.com/a</loc>
        <rs:md rs:length="5" x:hash="md5:nonsense" x:change="created"/></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!((entry.length, entry.change), (Some(5), None));
    assert!(entry.hashes.is_empty());
    assert_eq!(document.deviations.count(Rule::PrefixedAttribute), 1);
    assert_eq!(document.deviations.count(Rule::HashUnreadable), 0);
}

#[test]
fn foreign_elements_are_skipped_with_all_within() {
    let document = read(urlset(
        r#"<x:url xmlns:x="http://example.org/x"><x:loc>http://example.com/no</x:loc></x:url>
        <x:head xmlns:x="http://example.org/x"><url><loc>http://example.com/no</loc></url></x:head>
        <url xmlns:image="http://www.google.com/schemas/sitemap-image/1.1" xmlns:xhtml="http://www.w3.org/1999/xhtml">
          <image:image><image:title>no</image:title><loc>http://example.com/no</loc></image:image>
          <image:title>no</image:title><xhtml:link rel="alternate" href="http://example.com/no"/>
          <xhtml:ln rel="alternate" href="http://example.com/no"/><xhtml:md length="1"/>
          <loc>http://example.com/a<xhtml:b>no</xhtml:b></loc>
          <priority>0.5</priority>
        </url>"#,
    ));
    assert_eq!(document.locs(), ["http://example.com/a"]);
    assert!(document.entries[0].links.is_empty());
    assert_eq!(document.entries[0].length, None);
    assert_eq!(document.entries[0].changefreq, None);
}

#[test]
fn md_and_ln_in_any_order_before_loc() {
    let document = read(urlset(
        r#"<url><rs:ln rel="duplicate" href="m"/><rs:md length="5"/><lastmod>2013-01-03</lastmod>
        <loc>http://example.com/a</loc></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!((entry.length, entry.lastmod), (Some(5), time("2013-01-03")));
    assert_eq!(entry.links[0].href.as_str(), "http://example.com/dataset1/m");
}

#[test]
fn two_md_in_one_entry_are_merged() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc>
        <rs:md hash="md5:1584abdf8ebdc9802ac0c6a7402c03b6" length="5"/><rs:md change="updated" length="6"/></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!((entry.hashes.len(), entry.change, entry.length), (1, Some(Change::Updated), Some(5)));
    assert_eq!(document.deviations.count(Rule::RepeatedMetadata), 1);
}

#[test]
fn metadata_of_entries_without_any_at_the_top() {
    let document = read(urlset(r#"<url><loc>http://example.com/a</loc><rs:md length="5"/></url>"#));
    assert_eq!(document.header.capability, None);
    assert_eq!(document.broken(), [(Rule::MetadataMissing, 1)]);
}

#[test]
fn header_after_the_entries() {
    let document = read(urlset(
        &(url("a") + r#"<rs:md capability="resourcelist" at="2013-01-03T00:00:00Z"/><rs:ln rel="up" href="u"/>"#),
    ));
    assert_eq!(document.header.capability, Some(Capability::ResourceList));
    assert_eq!(document.header.link("up").unwrap().as_str(), "http://example.com/dataset1/u");
    assert_eq!(document.broken(), [(Rule::HeaderAfterEntries, 2), (Rule::UriRelative, 1)]);
}

#[test]
fn the_header_is_complete_before_the_first_entry_is_asked() {
    let xml = urlset(&(r#"<rs:md capability="resourcelist"/><rs:ln rel="up" href="u"/>"#.to_owned() + &url("a")));
    let base = Uri::parse("http://example.com/").unwrap();
    let reader = Reader::new(xml.as_bytes(), Some(base), Limits::default()).unwrap();
    assert_eq!(reader.header().capability, Some(Capability::ResourceList));
    assert!(reader.header().link("up").is_some());
}

#[test]
fn newlines_and_blanks_around_loc() {
    let document = read(urlset("<url><loc>\r\n\t http://example.com/a\n </loc><lastmod>\n2013-01-03 </lastmod></url>"));
    assert_eq!(document.locs(), ["http://example.com/a"]);
    assert_eq!(document.entries[0].lastmod, time("2013-01-03"));
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn processing_instructions_comments_and_doctype() {
    let document = read(format!(
        r#"<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="s.xsl"?><!-- <url> -->
        <!DOCTYPE urlset [<!ELEMENT urlset ANY> <!-- > -->]>
        <urlset xmlns="{SITEMAP}"><!-- -- a comment --><url><?pi?><!-- c --><loc>http://<!-- x -->example.com<?p?>/a</loc></url>
        </urlset> <!-- end --><?pi?>
        "#
    ));
    assert_eq!(document.locs(), ["http://example.com/a"]);
    assert!(document.deviations.is_empty(), "{:?}", document.deviations);
}

#[test]
fn cdata() {
    let document = read(urlset("<url><loc><![CDATA[http://example.com/?a=1&b=2]]></loc></url>"));
    assert_eq!(document.locs(), ["http://example.com/?a=1&b=2"]);
}

#[test]
fn references_in_text_and_attributes() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/?a=1&amp;b=&#x41;&#66;&apos;</loc>
        <rs:ln rel="x" href="http://example.com/?a=1&amp;b=&#x41;&#66;"/></url>"#,
    ));
    assert_eq!(document.locs(), ["http://example.com/?a=1&b=AB'"]);
    assert_eq!(document.entries[0].links[0].href.as_str(), "http://example.com/?a=1&b=AB");
    assert!(!document.deviations.counts().any(|(rule, _)| rule == Rule::RawAmpersand));
}

#[test]
fn raw_ampersands() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/?a=1&b=2&c=3;d</loc><rs:ln rel="x" href="http://example.com/?a=1&b=2;c&"/></url>"#,
    ));
    assert_eq!(document.locs(), ["http://example.com/?a=1&b=2&c=3;d"]);
    assert_eq!(document.entries[0].links[0].href.as_str(), "http://example.com/?a=1&b=2;c&");
    assert!(document.deviations.count(Rule::RawAmpersand) >= 2);
}

#[test]
fn bom_and_utf16_and_iso_8859_1() {
    let xml = |encoding: &str| {
        format!(r#"<?xml version="1.0" encoding="{encoding}"?><urlset xmlns="{SITEMAP}">{}</urlset>"#, url("é"))
    };
    let utf16 = |to_bytes: fn(u16) -> [u8; 2], bom: &str| -> Vec<u8> {
        (bom.to_owned() + &xml("UTF-16")).encode_utf16().flat_map(to_bytes).collect()
    };
    let latin1: Vec<u8> = xml("ISO-8859-1").chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    for bytes in [
        xml("UTF-8").into_bytes(),
        xml("utf-16").into_bytes(),
        xml("no-such-encoding").into_bytes(),
        ("\u{feff}".to_owned() + &xml("UTF-8")).into_bytes(),
        utf16(u16::to_le_bytes, "\u{feff}"),
        utf16(u16::to_be_bytes, "\u{feff}"),
        utf16(u16::to_le_bytes, ""),
        utf16(u16::to_be_bytes, ""),
        latin1,
    ] {
        let document = read(&bytes);
        assert_eq!(document.locs(), ["http://example.com/%C3%A9"], "{:?}", &bytes[..60]);
    }
}

#[test]
fn relations_compare_case_insensitively() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><rs:ln rel=" describedBy" href="http://example.com/b"/>
        <rs:ln rel="http://Example.org/Rel" href="http://example.com/c"/></url>"#,
    ));
    assert_eq!(&*document.entries[0].links[0].rel, "describedby");
    assert_eq!(&*document.entries[0].links[1].rel, "http://Example.org/Rel");
}

#[test]
fn gzip_by_magic_alone() {
    let (front, back) = (urlset(&url("a")), String::new());
    let whole = gzip(front.as_bytes());
    assert_eq!(read(&whole).locs(), ["http://example.com/a"]);

    let mut members = gzip(&front.as_bytes()[..50]);
    members.extend(gzip(&front.as_bytes()[50..]));
    members.extend(gzip(back.as_bytes()));
    members.extend([0; 100]);
    assert_eq!(read(members).locs(), ["http://example.com/a"], "members, and padding behind them");

    for cut in 0..whole.len() {
        assert!(read_with(&whole[..cut], Limits::default()).is_err(), "cut at {cut}");
    }
    let mut damaged = whole.clone();
    let checksum = damaged.len() - 8;
    damaged[checksum] ^= 1;
    assert!(matches!(failure(&damaged), DocumentError::Io(_)));
}

#[test]
fn expansion_bombs_meet_the_limit() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(urlset("").trim_end_matches("</urlset>").as_bytes()).unwrap();
    for _ in 0..64 {
        encoder.write_all(&[b' '; 1 << 16]).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    let limits = Limits { document: 1 << 20, ..Limits::default() };
    assert!(matches!(read_with(&bomb, limits), Err(DocumentError::TooLong { limit: 1_048_576 })));
}

#[test]
fn a_document_as_long_as_its_limit_is_read() {
    let xml = urlset(&url("a"));
    let limits = Limits { document: xml.len() as u64, ..Limits::default() };
    assert_eq!(read_with(xml.as_bytes(), limits).unwrap().entries.len(), 1);
    let limits = Limits { document: xml.len() as u64 - 1, ..limits };
    assert!(matches!(read_with(xml.as_bytes(), limits), Err(DocumentError::TooLong { .. })));
}

#[test]
fn entity_bombs_and_external_entities_are_never_expanded() {
    let document = read(format!(
        r#"<!DOCTYPE urlset [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY x SYSTEM "file:///etc/passwd">]>
        <urlset xmlns="{SITEMAP}" xmlns:rs="{TERMS}">
        <url><loc>http://example.com/&b;</loc></url><url><loc>http://example.com/&x;</loc></url>
        <url><loc>http://example.com/a</loc><rs:md type="&b;"/></url>
        <url><loc>http://example.com/b</loc><rs:ln rel="x" href="&x;"/></url>
        {}{}{}{}{}</urlset>"#,
        url("&nbsp;"),
        url("&#0;"),
        url("&#xD800;"),
        url("&#99999999999;"),
        url("c")
    ));
    assert_eq!(document.locs(), ["http://example.com/b", "http://example.com/c"]);
    assert!(document.entries[0].links.is_empty());
    assert_eq!(document.deviations.count(Rule::UndefinedEntity), 8);
}

#[test]
fn megabyte_attributes_and_texts_cost_their_entry_alone() {
    let long = "a".repeat(1 << 20);
    let document = read(urlset(&format!(
        r#"<url><loc>http://example.com/{long}</loc></url>
        <url><loc>http://example.com/a</loc><rs:md type="{long}" length="5"/><rs:ln rel="x" href="{long}"/></url>
        <!-- {long}{long} -->{}"#,
        url("b")
    )));
    assert_eq!(document.locs(), ["http://example.com/a", "http://example.com/b"]);
    assert_eq!((document.entries[0].media_type.as_deref(), document.entries[0].length), (None, Some(5)));
    assert_eq!(document.deviations.count(Rule::TextTooLong), 3);
}

#[test]
fn markup_without_end_is_bounded() {
    let limits = Limits { text: 100, ..Limits::default() };
    for opening in ["<!--", "<![CDATA[", "<url a='", "<?pi ", ""] {
        let xml = urlset(&format!("<url><loc>{opening}{}", "a".repeat(1 << 20)));
        let error = read_with(xml.as_bytes(), limits).unwrap_err();
        assert!(matches!(error, DocumentError::MarkupTooLong { limit: 25_600, .. }), "{opening}: {error:?}");
    }
}

#[test]
fn depth_is_bounded() {
    for place in ["", "<url>", "<url><loc>"] {
        let error = failure(urlset(&(place.to_owned() + &"<a>".repeat(1000))));
        assert!(matches!(error, DocumentError::TooDeep { limit: 64, .. }), "{place}: {error:?}");
    }
}

#[test]
fn links_are_bounded() {
    let link = r#"<rs:ln rel="x" href="http://example.com/x"/>"#;
    let limits = Limits { links: 2, ..Limits::default() };
    let xml = urlset(&format!("{}<url><loc>http://example.com/a</loc>{}</url>", link.repeat(3), link.repeat(5)));
    let document = read_with(xml.as_bytes(), limits).unwrap();
    assert_eq!((document.header.links.len(), document.entries[0].links.len()), (2, 2));
    assert_eq!(document.deviations.count(Rule::TooManyLinks), 4);
}

/// Entries are held by the hundred: each has a megabyte for its links.
#[test]
fn links_of_one_entry_have_a_megabyte() {
    let link = format!(r#"<rs:ln rel="x" href="http://example.com/{}"/>"#, "a".repeat(60_000));
    let xml = urlset(&format!("<url><loc>http://example.com/a</loc>{}</url>", link.repeat(100)));
    let document = read_with(xml.as_bytes(), Limits::default()).unwrap();
    assert_eq!(document.entries[0].links.len(), 17);
    assert_eq!(document.deviations.count(Rule::TooManyLinks), 83);
}

#[test]
fn long_links_are_bounded_together() {
    let link = format!(r#"<rs:ln rel="x" href="http://example.com/{}"/>"#, "a".repeat(50));
    let limits = Limits { text: 100, ..Limits::default() };
    let xml = urlset(&format!("<url><loc>http://example.com/a</loc>{}</url>", link.repeat(900)));
    let document = read_with(xml.as_bytes(), limits).unwrap();
    let kept = document.entries[0].links.len() as u64;
    assert!(kept < 300 && kept + document.deviations.count(Rule::TooManyLinks) == 900, "{kept}");
}

#[test]
fn unclosed_elements_and_mismatched_tags_fail_the_document() {
    for content in ["<url><loc>http://example.com/a</url>", "<url></loc></url>", "</url>", "<url></urlset>"] {
        assert!(matches!(failure(urlset(content)), DocumentError::Syntax { .. }), "{content}");
    }
    let DocumentError::Syntax { position, .. } = failure("<urlset>\n<url></x></urlset>") else { panic!() };
    assert_eq!(position, 14);
}

/// A truncated list must not look like a complete one.
#[test]
fn no_cut_document_looks_complete() {
    let xml = urlset(&format!(
        r#"<rs:md capability="resourcelist"/>{}<url><loc><![CDATA[http://example.com/b]]></loc></url><!-- c -->"#,
        url("a&amp;b")
    ));
    for cut in 0..xml.len() {
        let error = failure(&xml[..cut]);
        let expected = matches!(error, DocumentError::Truncated { .. } | DocumentError::Empty);
        assert!(expected, "cut at {cut}: {error:?}");
    }
}

#[test]
fn after_a_failure_the_reader_never_says_that_it_is_finished() {
    let xml = urlset(&(url("a") + "<url></loc></url>" + &url("b")));
    let mut reader = Reader::new(xml.as_bytes(), None, Limits::default()).unwrap();
    assert!(matches!(reader.next_entry(), Ok(Some(_))));
    assert!(reader.next_entry().is_err());
    assert!(reader.next_entry().is_err());
    assert_eq!((reader.entries(), reader.skipped()), (2, 0));
}

#[test]
fn content_after_the_root_is_ignored() {
    for trailer in ["x", "<x/>", "<rss><url/>", "</urlset>", "<!", "&x;", "\0\0"] {
        let document = read(urlset(&url("a")) + trailer);
        assert_eq!(document.locs(), ["http://example.com/a"]);
        assert_eq!(document.broken(), [(Rule::ContentAfterRoot, 1)], "{trailer}");
    }
}

#[test]
fn a_tag_behind_the_root_that_is_cut_off_fails_the_document() {
    let behind = format!(r#"<urlset xmlns="{SITEMAP}">"#);
    for cut in 1..behind.len() {
        let error = failure(urlset(&url("a")) + &behind[..cut]);
        assert!(matches!(error, DocumentError::Truncated { .. }), "{}: {error:?}", &behind[..cut]);
    }
}

#[test]
fn web_pages_and_others_are_known_by_their_root() {
    for (page, expected) in [
        ("<!DOCTYPE html><html><head><meta charset=utf-8><title>x & y</title>", "html"),
        ("<HTML>", "HTML"),
        ("<?xml version='1.0'?><rdf:RDF xmlns:rdf='x'/>", "RDF"),
    ] {
        let DocumentError::NotADocument { root } = failure(page) else { panic!("{page}") };
        assert_eq!(root, expected);
    }
}

#[test]
fn what_is_not_xml_is_quoted() {
    for (bytes, expected) in [(&b"{\"error\": 1}"[..], "{\"error\": 1}"), (b"PK\x03\x04", "PK\u{3}\u{4}")] {
        let DocumentError::NotXml { seen } = failure(bytes) else { panic!("{bytes:?}") };
        assert_eq!(seen, expected);
    }
    assert!(matches!(failure(vec![0xff; 1 << 20]), DocumentError::NotXml { .. }));
}

#[test]
fn empty_bodies_are_called_empty() {
    for bytes in ["", "  \n", "\u{feff}", "\u{feff} "] {
        assert!(matches!(failure(bytes), DocumentError::Empty), "{bytes:?}");
    }
    assert!(matches!(failure(gzip(b"")), DocumentError::Empty));
}

#[test]
fn ill_formed_utf8_costs_its_entry_alone() {
    let mut bytes = urlset(&url("a")).into_bytes();
    let end = bytes.len() - "</urlset>".len();
    let bad =
        b"<url><loc>http://example.com/\xe9t\xe9</loc></url><url><loc>http://example.com/b</loc><x>\xff</x></url>";
    bytes.splice(end..end, bad.iter().copied());
    let document = read(bytes);
    assert_eq!(document.locs(), ["http://example.com/a", "http://example.com/b"]);
    assert_eq!(document.deviations.count(Rule::IllFormedEncoding), 2);
    assert_eq!(document.deviations.count(Rule::LocMalformed), 1);
    assert_eq!(document.deviations.examples()[0].entry, 2);
}

#[test]
fn characters_that_lie_across_buffers() {
    let xml = urlset(&url("é€😀é€😀"));
    let mut ill_formed = xml.clone().into_bytes();
    let euro = xml.find('€').unwrap();
    ill_formed[euro + 2] = b'x';
    for capacity in 1..8 {
        let input = std::io::BufReader::with_capacity(capacity, xml.as_bytes());
        let mut reader = Reader::new(input, None, Limits::default()).unwrap();
        let entry = reader.next_entry().unwrap().unwrap();
        let expected = "http://example.com/%C3%A9%E2%82%AC%F0%9F%98%80%C3%A9%E2%82%AC%F0%9F%98%80";
        assert_eq!(entry.loc.as_str(), expected);

        let input = std::io::BufReader::with_capacity(capacity, &ill_formed[..]);
        let mut reader = Reader::new(input, None, Limits::default()).unwrap();
        assert_eq!(reader.next_entry().unwrap(), None);
        assert_eq!(reader.deviations().count(Rule::IllFormedEncoding), 1);
    }
}

#[test]
fn malformed_and_duplicate_attributes() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><rs:md length="5" length="6" type=text path='/a' change/></url>"#,
    ));
    let entry = &document.entries[0];
    assert_eq!((entry.length, entry.path.as_deref()), (Some(5), Some("/a")));
    assert_eq!(document.deviations.count(Rule::DuplicateAttribute), 1);
    assert!(document.deviations.count(Rule::MalformedAttribute) >= 1);
}

#[test]
fn a_failing_input_is_an_error() {
    struct BrokenInput;
    impl std::io::Read for BrokenInput {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("cable pulled"))
        }
    }
    let front = urlset(&url("a"));
    let bytes = std::io::Read::chain(&front.as_bytes()[..front.len() - 9], BrokenInput);
    let error = Reader::new(std::io::BufReader::new(bytes), None, Limits::default())
        .and_then(|mut reader| reader.next_entry().and_then(|_| reader.next_entry()))
        .unwrap_err();
    assert!(matches!(error, DocumentError::Io(_)));
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("cable pulled"));
}

#[test]
fn what_is_not_well_formed_is_noted_with_its_place() {
    let image = |title: &str| {
        urlset(&format!(
            "{}<url><loc>http://example.com/b</loc><image:image><image:loc>http://example.com/1.jpg</image:loc>\
             <image:title>{title}</image:title></image:image></url>",
            url("a")
        ))
        .replace("<urlset", "<urlset xmlns:image='http://www.google.com/schemas/sitemap-image/1.1'")
    };
    for (title, rule, seen) in [
        ("&#55356;&#57118;Sun", Rule::UndefinedEntity, "#55356"),
        ("Bread & butter", Rule::RawAmpersand, "& butter"),
        ("<x y='a & b'/>", Rule::RawAmpersand, " y='a & b'"),
        ("a\u{b}b\u{1f}", Rule::ControlCharacter, "U+000B at byte 361, the first of 2"),
        ("nul \0", Rule::ControlCharacter, "U+0000 at byte 364"),
    ] {
        let document = read(image(title));
        assert_eq!(document.entries.len(), 3, "{title:?}");
        let example = document.deviations.examples().iter().find(|it| it.rule == rule).unwrap();
        assert_eq!(&*example.seen, seen, "{title:?}");
        assert_eq!(example.entry, if rule == Rule::ControlCharacter { 0 } else { 2 });
    }
    assert_eq!(read(image("a &amp; &#233; <![CDATA[&]]>\t\r\n")).broken(), []);
    let declared = image("&own;").replace("<urlset", "<!DOCTYPE urlset [<!ENTITY own 'x'>]><urlset");
    assert_eq!(read(declared).broken(), [], "it may be right");
}
