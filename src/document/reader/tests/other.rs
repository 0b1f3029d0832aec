//! Feeds, texts, and documents that hold more than one kind of entry.

use super::*;

fn names(document: &ReadDocument) -> Vec<&str> {
    document.locs().into_iter().map(|loc| loc.trim_start_matches("http://example.com/")).collect()
}

#[test]
fn a_text_has_a_uri_a_line() {
    let document =
        read("\u{feff}# all\r\nhttp://example.com/a\r\n\n  HTTPS://example.com/b c \rhttp://example.com/d\nno\n");

    assert_eq!(document.header.root, Root::Text);
    assert_eq!(document.locs(), ["http://example.com/a", "https://example.com/b%20c", "http://example.com/d"]);
    assert_eq!(document.broken(), [(Rule::LineUnreadable, 2), (Rule::UriUnescaped, 1)]);
    assert_eq!(names(&read("http://example.com/a")), ["a"], "no line has an end");
    assert_eq!(names(&read(gzip(b"http://example.com/a\n"))), ["a"]);
}

#[test]
fn a_text_without_uris_or_with_some_in_prose_is_no_list() {
    for text in [
        "Read me\n",
        "Project\n=======\nhttp://example.com/\n",
        "http://example.com/ is where we are.\nSee there.\n",
        "User-agent: *\nSitemap: http://example.com/sitemap.xml\n",
        "/a\n/b\n",
        "ftp://example.com/a\n",
        "# nothing\n",
        "name,url\na,http://example.com/a\n",
        "http://example.com/\0",
    ] {
        assert!(matches!(failure(text), DocumentError::NotXml { .. }), "{text:?}");
    }
}

#[test]
fn a_text_that_is_nearly_a_list_is_refused_with_the_line() {
    for (text, number, cause) in [
        ("http://example.com/a\t2024-01-01 10:00\nhttp://example.com/b\t2024-01-02\n", 1, "has more than the URL"),
        ("# all\n\nexample.com/a\nexample.com:8080/b\n", 3, "has no http:// or https://"),
        ("\"url\",\"lastmod\"\n\"http://example.com/a\",\"2024-01-01\"\n", 2, "does not begin with the URL"),
        ("- http://example.com/a\n- http://example.com/b\n", 1, "does not begin with the URL"),
    ] {
        let error = failure(text);
        assert!(matches!(error, DocumentError::NotLines { line, .. } if line == number), "{error:?}");
        assert!(error.to_string().contains(cause), "{error}");
    }
}

#[test]
fn an_item_without_link_is_its_enclosure() {
    let item = |content: &str| format!("<rss><channel><item>{content}</item></channel></rss>");
    let episode = item(
        r#"<enclosure url="http://example.com/1.mp3" type="audio/mpeg"/><enclosure url="http://example.com/1.ogg"/>
        <guid isPermaLink="false">1</guid><link/><pubDate>Thu, 03 Jan 2013 09:00:00 GMT</pubDate>"#,
    );

    let document = read(&episode);

    assert_eq!(names(&document), ["1.mp3", "1.ogg"]);
    let [first, second] = &document.entries[..] else { panic!("{:?}", document.entries) };
    assert_eq!((first.lastmod, first.media_type.as_deref()), (time("2013-01-03T09:00:00Z"), Some("audio/mpeg")));
    assert_eq!(second.lastmod, None);
    assert_eq!((document.broken(), counted(&episode)), (vec![], (1, 0)));
    let nowhere = item(r#"<title>x</title><enclosure url="http://"/>"#);
    assert_eq!(
        (counted(&nowhere), read(&nowhere).broken()),
        ((1, 1), vec![(Rule::ItemWithoutLink, 1), (Rule::LinkMalformed, 1)])
    );
    let no_page = r#"<link>http://</link><enclosure url="http://example.com/1.mp3"/>"#;
    assert_eq!(counted(&item(no_page)), (2, 1), "the page is not understood");
    let magnet = item(r#"<enclosure url="magnet:?xt=urn:btih:1"/>"#)
        .replace("</channel>", "<item><link>/a</link></item></channel>");
    assert_eq!(counted(&magnet.replace("/a", "http://example.com/a")), (2, 0), "it is no file of ours");
}

#[test]
fn xml_base_of_feed_entry_and_link_counts() {
    let document = read(
        r#"<feed xmlns="http://www.w3.org/2005/Atom" xml:base="http://other.example/x/"><link rel="next" href="2"/>
        <entry xml:base="a/"><link href="1"/></entry><entry><link xml:base="/&amp;/" href="é"/></entry>
        <entry xml:base="urn:x:1"><link href="3"/></entry><title xml:base="no/"/><entry><link href="//h/4"/></entry></feed>"#,
    );

    assert_eq!(document.header.link("next").unwrap().as_str(), "http://other.example/x/2");
    let expected =
        ["http://other.example/x/a/1", "http://other.example/&/%C3%A9", "http://other.example/x/3", "http://h/4"];
    assert_eq!(document.locs(), expected);
    assert_eq!(document.broken(), []);
    let sitemap = read(urlset("").replace("<urlset", "<urlset xml:base='http://other.example/'") + &url("a"));
    assert!(sitemap.locs().is_empty(), "it stands behind the root element");
}

#[test]
fn feeds_keep_the_rules_of_feeds() {
    let atom =
        r#"<feed><link rel="next" href="/2"/><entry><link href="/a"/><link rel="self" href="tag:x"/></entry></feed>"#;
    let rss = "<rss><channel><item><link>/a</link><title>x &#8212; y</title></item></channel></rss>";
    for feed in [atom, rss] {
        let document = read(feed);
        assert_eq!((names(&document), document.broken()), (vec!["a"], vec![]), "{feed}");
    }
}

#[test]
fn addresses_of_other_schemes_are_understood_and_no_files() {
    for address in ["mailto:a@example.com", "tel:+391234", "JavaScript:void(0)", "ftp://example.com/a", "data:,x"] {
        let xml = urlset(&format!("<url><loc>{address}</loc></url>{}", url("a")));
        assert_eq!((counted(&xml), read(&xml).broken()), ((2, 0), vec![(Rule::OtherScheme, 1)]), "{address}");
        let text = format!("http://example.com/a\n{address}\n");
        assert_eq!((counted(&text), read(&text).broken()), ((2, 0), vec![(Rule::OtherScheme, 1)]), "{address}");
    }
    assert_eq!(counted(&urlset("<url><loc>mailto:a@example.com</loc></url>")), (1, 1), "nothing is listed");
    let list = urlset(&format!("<sitemap><loc>ftp://example.com/1.xml</loc></sitemap>{}", url("a")));
    assert_eq!(counted(&list), (2, 1), "what it lists is not known");
    for slip in ["example.org:8080/a", "localhost:8080/a", "htp://example.com/a", "ttps://example.com/a", "C:/a"] {
        let xml = urlset(&format!("<url><loc>{slip}</loc></url>{}", url("a")));
        assert_eq!((counted(&xml), read(&xml).broken()), ((2, 1), vec![(Rule::LocMalformed, 1)]), "{slip}");
    }
}

#[test]
fn one_bad_line_takes_no_other_away() {
    let long = "a".repeat(Limits::TEXT);
    let text = format!(
        "http://example.com/a\nhttp://example.com/{long}\nhttp://\nhttp://example.com/b\n\u{fffd}\nhttp://example.com/c"
    );
    let document = read(text);

    assert_eq!(names(&document), ["a", "b", "c"]);
    assert_eq!(document.deviations.count(Rule::TextTooLong), 1);
    assert_eq!(document.deviations.count(Rule::LocMalformed), 1);
    assert_eq!(document.deviations.count(Rule::LineUnreadable), 1);
}

#[test]
fn a_text_is_within_the_limits_of_documents() {
    let text = "http://example.com/a\n".repeat(50);
    let limits = Limits { document: text.len() as u64 - 1, ..Limits::default() };
    assert!(matches!(read_with(text.as_bytes(), limits), Err(DocumentError::TooLong { .. })));
    let limits = Limits { document: text.len() as u64, ..limits };
    assert_eq!(read_with(text.as_bytes(), limits).unwrap().entries.len(), 50);
    let packed = gzip(text.as_bytes());
    assert!(matches!(failure(&packed[..packed.len() - 9]), DocumentError::Truncated { .. }));
}

#[test]
fn fetch_txt_of_bagit_has_lengths_and_paths() {
    let document = read(
        "http://example.com/a 12 data/a b.txt\nhttp://example.com/b\t-\tdata/b\nhttp://example.com/c  7  data/c\n",
    );

    assert_eq!(names(&document), ["a", "b", "c"]);
    let found: Vec<_> = document.entries.iter().map(|entry| (entry.length, entry.path.as_deref())).collect();
    assert_eq!(found, [(Some(12), Some("data/a b.txt")), (None, Some("data/b")), (Some(7), Some("data/c"))]);
    assert_eq!(document.broken(), []);
}

#[test]
fn items_of_rss_link_to_pages_and_have_enclosures() {
    let document = read(
        r#"<?xml version="1.0"?><rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
        <title>News &copy;</title><link>http://example.com/</link><atom:link rel="self" href="/feed"/>
        <atom:link rel="next" href="/feed?page=2"/>
        <item><title>One</title><link>http://example.com/1</link><pubDate>Thu, 03 Jan 2013 09:00:00 GMT</pubDate>
          <guid isPermaLink="false">1</guid>
          <enclosure url="http://example.com/1.mp3" length="0" type="audio/mpeg"/></item>
        <item><guid>http://example.com/2</guid><atom:link href="/no" rel="replies"/></item>
        <item><title>nowhere</title><guid isPermaLink="false">http://example.com/no</guid></item>
        </channel></rss>"#,
    );

    assert_eq!(document.header.root, Root::Rss);
    assert_eq!(document.header.link("next").unwrap().as_str(), "http://example.com/feed?page=2");
    assert_eq!(names(&document), ["1", "1.mp3", "2"]);
    assert_eq!(document.entries[0].lastmod, time("2013-01-03T09:00:00Z"));
    assert_eq!((document.entries[1].length, document.entries[1].media_type.as_deref()), (None, Some("audio/mpeg")));
    assert_eq!(document.deviations.count(Rule::ItemWithoutLink), 1);
}

#[test]
fn entries_of_atom_link_to_pages() {
    let document = read(
        r#"<feed xmlns="http://www.w3.org/2005/Atom"><title>x</title><link href="http://example.com/"/>
        <entry><link rel="enclosure" href="1.pdf" type="application/pdf"/><link rel="edit" href="no"/><link href="1"/>
          <id>urn:x:1</id><updated>2013-01-03T09:00:00Z</updated><summary>&nbsp;</summary>
          <source><link href="no"/><updated>2000-01-01T00:00:00Z</updated></source></entry>
        <entry><link rel="alternate" href="http://example.com/2"/><link rel="alternate" href="no"/></entry></feed>"#,
    );

    assert_eq!(document.header.root, Root::Atom);
    assert_eq!(names(&document), ["dataset1/1", "dataset1/1.pdf", "2"]);
    assert_eq!(document.entries[0].lastmod, time("2013-01-03T09:00:00Z"));
    assert!(document.header.links.is_empty());
}

#[test]
fn images_and_videos_are_listed_with_their_page() {
    let content = r#"<url><loc>http://example.com/a</loc><lastmod>2013-01-03</lastmod>
        <image:image><image:loc>http://example.com/1.jpg</image:loc><loc>http://example.com/no</loc></image:image>
        <image:image><image:loc>&none;</image:loc></image:image>
        <image:image><image:loc>http://example.com/a</image:loc></image:image>
        <video:video><video:thumbnail_loc>http://example.com/no</video:thumbnail_loc>
          <video:content_loc> 1.mp4 </video:content_loc></video:video></url>"#;
    let google = "http://www.google.com/schemas/sitemap";
    for declared in [format!(r#" xmlns:image="{google}-image/1.1" xmlns:video="{google}-video/1.1""#), String::new()] {
        let document = read(format!(r#"<urlset xmlns="{SITEMAP}"{declared}>{content}</urlset>"#));
        assert_eq!(names(&document), ["a", "1.jpg", "dataset1/1.mp4"]);
        assert_eq!(document.entries[1].lastmod, None);
    }
}

#[test]
fn changes_and_documents_have_no_images() {
    let image = "<image:image><image:loc>http://example.com/1.jpg</image:loc></image:image>";
    let entry = |md: &str| read(urlset(&format!("<url><loc>http://example.com/a</loc>{md}{image}</url>")));
    assert_eq!(names(&entry(r#"<rs:md change="updated"/>"#)), ["a"]);
    assert_eq!(names(&entry(r#"<rs:md capability="resourcelist"/>"#)), ["a"]);
    let images = image.repeat(Limits::LINKS + 1);
    let document = read(urlset(&format!("<url><loc>http://example.com/a</loc>{images}</url>")));
    assert_eq!((document.entries.len(), document.deviations.count(Rule::TooManyLinks)), (Limits::LINKS + 1, 1));
    let limits = Limits { text: 30, ..Limits::default() };
    let bounded = read_with(urlset(&format!("<url><loc>http://example.com/a</loc>{images}</url>")).as_bytes(), limits);
    assert_eq!(
        bounded.unwrap().entries.len(),
        1 + 30 * 256 / "http://example.com/1.jpg".len(),
        "all together are bounded"
    );
}

#[test]
fn lists_within_lists_and_behind_lists_count() {
    let within = read(urlset(&format!("<urlset>{}<urlset/></urlset>{}", url("a"), url("b"))));
    assert_eq!(names(&within), ["a", "b"]);
    assert_eq!(within.deviations.count(Rule::EntryElement), 2);
    let behind = read(urlset(&url("a")) + &urlset(&url("b")) + &urlset(&url("c")));
    assert_eq!(names(&behind), ["a", "b", "c"]);
    assert_eq!(behind.deviations.count(Rule::ContentAfterRoot), 2);
    let cut = failure(urlset(&url("a")) + &format!("<urlset>{}", url("b")));
    assert!(matches!(cut, DocumentError::Truncated { .. }), "{cut:?}");
    let bound =
        read(format!("<x:urlset xmlns:x=\"{SITEMAP}\"><urlset xmlns=\"y\"><loc/>{0}</urlset></x:urlset>", url("a")));
    assert_eq!(names(&bound), [""; 0], "the elements of another namespace stay foreign");
}

#[test]
fn mixed_entries_say_whether_they_are_lists() {
    let document = read(urlset(
        "<sitemap><loc>http://example.com/1.xml</loc></sitemap><url><loc>http://example.com/a</loc></url>
        <loc>http://example.com/b</loc><url><url><loc>http://example.com/c</loc></url></url>",
    ));

    let found: Vec<_> = document.entries.iter().map(|entry| entry.is_list).collect();
    assert_eq!(names(&document), ["1.xml", "a", "b", "c"]);
    assert_eq!(found, [true, false, false, false]);
    assert_eq!(document.deviations.count(Rule::EntryElement), 3);
}

#[test]
fn each_loc_of_an_entry_counts() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/a</loc><loc>http://example.com/b</loc><loc>http://example.com/a</loc>
        <lastmod>2013-01-03</lastmod><rs:md length="5"/></url><url><loc>ftp://x/</loc><loc>http://example.com/c</loc></url>"#,
    ));

    assert_eq!(names(&document), ["a", "b", "c"]);
    let found: Vec<_> = document.entries.iter().map(|entry| (entry.length, entry.lastmod.is_some())).collect();
    assert_eq!(found, [(Some(5), true), (None, true), (None, false)]);
    assert_eq!(document.deviations.count(Rule::LocRepeated), 3);
}

/// (entries, those that cannot be understood).
fn counted(xml: &str) -> (u64, u64) {
    let mut reader = Reader::new(xml.as_bytes(), None, Limits::default()).unwrap();
    while reader.next_entry().unwrap().is_some() {}
    (reader.entries(), reader.skipped())
}

#[test]
fn parts_that_cannot_be_understood_are_counted_like_entries() {
    let image = |loc: &str| format!("<image:image><image:loc>{loc}</image:loc></image:image>");
    let entry = |content: &str| counted(&urlset(&format!("<url><loc>http://example.com/a</loc>{content}</url>")));
    assert_eq!(entry(&image("http://example.com/1.jpg")), (1, 0));
    assert_eq!(entry(&image("")), (1, 0), "it names nothing");
    assert_eq!(entry(&image("http://")), (2, 1));
    assert_eq!(entry(&image("http://example.com/&none;")), (2, 1));
    assert_eq!(entry("<video:video><video:content_loc>ftp://x/</video:content_loc></video:video>"), (1, 0));
    assert_eq!(entry("<loc>http://</loc>"), (2, 1));
    assert_eq!(entry(r#"<rs:md change="deleted"/><image:image><image:loc>http://</image:loc></image:image>"#), (1, 0));
    assert_eq!(entry(&image("http://example.com/1.jpg").repeat(Limits::LINKS + 2)), (3, 2));
    let first = urlset("<url><loc>http://</loc><loc>http://example.com/a</loc></url>");
    assert_eq!(counted(&first), (2, 1));
    assert_eq!(read(&first).broken(), [(Rule::LocRepeated, 1), (Rule::LocMalformed, 1)]);
    let second = read(urlset("<url><loc>http://example.com/a</loc><loc>http://</loc></url>"));
    assert_eq!(second.broken(), [(Rule::LocRepeated, 1), (Rule::LocMalformed, 1)]);
    let item = |enclosure: &str| {
        counted(&format!("<rss><channel><item><link>http://example.com/a</link>{enclosure}</item></channel></rss>"))
    };
    assert_eq!(item(r#"<enclosure url="http://example.com/1"/>"#), (1, 0));
    assert_eq!(item(r#"<enclosure url="http://"/>"#), (2, 1));
}

#[test]
fn unknown_elements_between_entries_are_counted_like_entries() {
    let between = |element: &str| counted(&urlset(&format!("{}{element}{}", url("a"), url("b"))));
    for element in ["<entry><id>http://example.com/c</id></entry>", "<ulr><loc>http://example.com/c</loc></ulr>"] {
        assert_eq!(between(element), (3, 1), "{element}");
    }
    for element in ["<ulr/>", "<rs:md at='2013-01-03'/>", "<x:y xmlns:x='z'><x:ulr/></x:y>"] {
        assert_eq!(between(element), (2, 0), "{element}");
    }
}

#[test]
fn other_spellings_of_elements_are_read_or_counted() {
    let document = read(urlset(
        "<url><loc>http://example.com/a</loc><lastMod>2013-01-03</lastMod></url>
        <url><location>http://example.com/b</location></url><URL><LOC>http://example.com/c</LOC></URL>",
    ));

    assert_eq!(names(&document), ["a"]);
    assert_eq!(document.entries[0].lastmod, time("2013-01-03"));
    assert_eq!(document.broken(), [(Rule::ElementSpelling, 1), (Rule::ElementUnknown, 2), (Rule::LocMissing, 1)]);
    let capitals = urlset(&url("a").replace("url>", "URL>").replace("loc>", "LOC>"));
    assert_eq!(counted(&capitals), (1, 1), "an entry that cannot be understood");
    assert_eq!(names(&read(format!("<URLSET xmlns=\"{SITEMAP}\">{}</URLSET>", url("a")))), ["a"]);
}

#[test]
fn names_of_html_stand_for_their_characters() {
    let document = read(urlset(
        r#"<url><loc>http://example.com/caf&eacute;&amp;&hellip;</loc><rs:ln rel="x" href="/&Uuml;"/></url><url><loc>&none;</loc></url>"#,
    ));

    assert_eq!(names(&document), ["caf%C3%A9&%E2%80%A6"]);
    assert_eq!(document.entries[0].links[0].href.as_str(), "http://example.com/%C3%9C");
    assert_eq!((document.deviations.count(Rule::HtmlEntity), document.deviations.count(Rule::UndefinedEntity)), (3, 1));
}

#[test]
fn other_formats_are_named() {
    for (bytes, name) in [
        ("<OAI-PMH xmlns='http://www.openarchives.org/OAI/2.0/'/>", "an OAI-PMH response"),
        ("<ListBucketResult/>", "an S3 bucket listing"),
        ("{\"@context\":\"http://iiif.io/api/presentation/3/context.json\"}", "a IIIF manifest"),
        ("<!doctype html><html>", "an HTML page"),
        ("<rdf:RDF xmlns:rdf='x'>", "RDF"),
    ] {
        let said = failure(bytes).to_string();
        assert!(said.contains(name) && said.contains("which is not supported"), "{said}");
    }
}

/// Every encoding that is not UTF-16 is found by its declaration, in the document itself and in one that is packed.
#[test]
fn documents_come_in_every_encoding_that_they_declare() {
    for (label, text) in [
        ("ISO-8859-1", "é"),
        ("latin-1", "é"),
        ("ISO8859_15", "€"),
        ("iso-8859-2", "ł"),
        ("ISO-8859-5", "ж"),
        ("ISO-8859-7", "λ"),
        ("windows-1250", "ł"),
        ("Cp1251", "ж"),
        ("windows-1256", "ش"),
        ("KOI8-R", "ж"),
        ("macintosh", "é"),
        ("Shift_JIS", "表"),
        ("MS932", "表"),
        ("cp932", "表"),
        ("EUC-JP", "表"),
        ("EUC_JP", "表"),
        ("ISO-2022-JP", "表"),
        ("GBK", "表"),
        ("CP936", "表"),
        ("gb2312", "表"),
        ("GB18030", "表"),
        ("Big5", "表"),
        ("EUC-KR", "한"),
        ("UTF_8", "表"),
    ] {
        let encoding = input::encoding_of_label(label.as_bytes()).unwrap_or_else(|| panic!("{label}"));
        let xml = format!("<?xml version='1.0' encoding='{label}'?><urlset xmlns='{SITEMAP}'>{}</urlset>", url(text));
        let (bytes, _, is_lossy) = encoding.encode(&xml);
        assert!(!is_lossy, "{label}");
        let expected = Uri::parse(&format!("http://example.com/{text}")).unwrap();
        for bytes in [bytes.to_vec(), gzip(&bytes)] {
            let document = read(bytes);
            assert_eq!(document.locs(), [expected.as_str()], "{label}");
            assert_eq!(document.deviations.count(Rule::EncodingUnknown), 0, "{label}");
        }
    }
    let unknown = read(format!("<?xml version='1.0' encoding='x-none'?><urlset xmlns='{SITEMAP}'/>"));
    assert_eq!(unknown.broken(), [(Rule::EncodingUnknown, 1)]);
}

#[test]
fn texts_come_in_utf_16_with_and_without_bom() {
    let text = "http://example.com/é\nhttp://example.com/b\n";
    for (bom, to_bytes) in [
        ("\u{feff}", u16::to_le_bytes as fn(u16) -> [u8; 2]),
        ("\u{feff}", u16::to_be_bytes),
        ("", u16::to_le_bytes),
        ("", u16::to_be_bytes),
    ] {
        let bytes: Vec<u8> = format!("{bom}{text}").encode_utf16().flat_map(to_bytes).collect();
        assert_eq!(names(&read(&bytes)), ["%C3%A9", "b"]);
        assert_eq!(names(&read(gzip(&bytes))), ["%C3%A9", "b"]);
    }
}
