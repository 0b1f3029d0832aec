use super::*;
use proptest::prelude::*;

#[track_caller]
fn becomes(raw: &str, expected: &str) {
    assert_eq!(Uri::parse(raw).map(|uri| uri.to_string()).as_deref(), Ok(expected), "{raw:?}");
}

#[track_caller]
fn resolves(reference: &str, expected: &str) {
    let base = Uri::parse("http://a/b/c/d;p?q").unwrap();
    let resolved = Uri::resolve(Some(&base), reference);
    assert_eq!(resolved.map(|uri| uri.to_string()).as_deref(), Ok(expected), "{reference:?}");
}

#[test]
fn normal_examples_of_rfc_3986() {
    for (reference, expected) in [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g/"),
        ("?y", "http://a/b/c/d;p?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d;p?q"),
        ("g#s", "http://a/b/c/g"),
        ("g?y#s", "http://a/b/c/g?y"),
        (";x", "http://a/b/c/;x"),
        ("g;x", "http://a/b/c/g;x"),
        ("g;x?y#s", "http://a/b/c/g;x?y"),
        ("", "http://a/b/c/d;p?q"),
        (".", "http://a/b/c/"),
        ("./", "http://a/b/c/"),
        ("..", "http://a/b/"),
        ("../", "http://a/b/"),
        ("../g", "http://a/b/g"),
        ("../..", "http://a/"),
        ("../../", "http://a/"),
        ("../../g", "http://a/g"),
    ] {
        resolves(reference, expected);
    }
    let base = Uri::parse("http://a/b/c/d;p?q").unwrap();
    assert_eq!(Uri::resolve(Some(&base), "g:h"), Err(UriError::Scheme("g:h".into())));
}

#[test]
fn abnormal_examples_of_rfc_3986() {
    for (reference, expected) in [
        ("../../../g", "http://a/g"),
        ("../../../../g", "http://a/g"),
        ("/./g", "http://a/g"),
        ("/../g", "http://a/g"),
        ("g.", "http://a/b/c/g."),
        (".g", "http://a/b/c/.g"),
        ("g..", "http://a/b/c/g.."),
        ("..g", "http://a/b/c/..g"),
        ("./../g", "http://a/b/g"),
        ("./g/.", "http://a/b/c/g/"),
        ("g/./h", "http://a/b/c/g/h"),
        ("g/../h", "http://a/b/c/h"),
        ("g;x=1/./y", "http://a/b/c/g;x=1/y"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("g?y/./x", "http://a/b/c/g?y/./x"),
        ("g?y/../x", "http://a/b/c/g?y/../x"),
        ("g#s/./x", "http://a/b/c/g"),
        ("g#s/../x", "http://a/b/c/g"),
        ("http:g", "http://a/b/c/g"),
    ] {
        resolves(reference, expected);
    }
}

#[test]
fn a_normal_uri_is_taken_as_it_is() {
    for raw in [
        "http://example.com/",
        "https://www.example.com/res1.html?a=b&c=/d?e",
        "http://example.com/a%20b/c%2Fd//e;f=g,h'(i)!$*+@:~_-.",
        "http://example.com/%E2%82%AC?",
    ] {
        assert!(is_normal(raw.as_bytes()), "{raw:?}");
        becomes(raw, raw);
    }
}

#[test]
fn ports_and_addresses_pass_only_as_they_are_written_back() {
    for raw in ["http://example.com:8080/a", "https://example.com:80/", "http://127.0.0.1/a", "http://10.0.0.255:1/"] {
        assert!(is_normal(raw.as_bytes()), "{raw:?}");
        becomes(raw, raw);
    }
    for (raw, expected) in [
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://0177.0.0.1/", "http://127.0.0.1/"),
        ("http://127.0.0.1:080/", "http://127.0.0.1/"),
        ("http://127.0.0.1:0/", "http://127.0.0.1:0/"),
    ] {
        assert!(!is_normal(raw.as_bytes()), "{raw:?}");
        becomes(raw, expected);
    }
    for raw in ["http://:8080/", "http://127.0.0.256/", "http://h:65536/", "http://h:8o/"] {
        assert!(!is_normal(raw.as_bytes()), "{raw:?}");
        assert!(Uri::parse(raw).is_err(), "{raw:?}");
    }
}

#[test]
fn scheme_host_port_and_escapes_are_normalised() {
    becomes("HTTP://Example.COM", "http://example.com/");
    becomes("http://example.com:80/a", "http://example.com/a");
    becomes("https://example.com:443/a", "https://example.com/a");
    becomes("https://example.com:80/a", "https://example.com:80/a");
    becomes("http://example.com:/a", "http://example.com/a");
    becomes("http://example.com:08080/a", "http://example.com:8080/a");
    becomes("http://example.com/%7euser/%2f%c3%a9", "http://example.com/~user/%2F%C3%A9");
    becomes("http://example.com/a/./b/../c", "http://example.com/a/c");
    becomes("http://example.com/a/%2e%2E/c", "http://example.com/c");
    becomes("http://example.com?q", "http://example.com/?q");
    becomes("http://example.com/a#part", "http://example.com/a");
}

#[test]
fn empty_segments_are_kept() {
    becomes("http://example.com//a///b//", "http://example.com//a///b//");
    becomes("http://example.com/a//../b", "http://example.com/a/b");
}

#[test]
fn userinfo_is_dropped() {
    becomes("http://user:secret@example.com/a", "http://example.com/a");
    becomes("http://user:p@ss@example.com:8080/a", "http://example.com:8080/a");
    becomes("http://example.com/@a:b@c", "http://example.com/@a:b@c");
}

#[test]
fn raw_blanks_utf8_brackets_and_quotes_in_loc() {
    becomes("  http://example.com/a b\t\n", "http://example.com/a%20b");
    becomes("http://example.com/é?ü", "http://example.com/%C3%A9?%C3%BC");
    becomes("http://example.com/[a]{b}\"c\"<d>|^`\\", "http://example.com/%5Ba%5D%7Bb%7D%22c%22%3Cd%3E%7C%5E%60%5C");
    becomes("http://example.com/it's", "http://example.com/it's");
    becomes("http://example.com/a\0b", "http://example.com/a%00b");
    becomes("http://example.com/long/\nname", "http://example.com/long/name");
}

#[test]
fn malformed_escapes_stand_for_themselves() {
    becomes("http://example.com/%zz", "http://example.com/%25zz");
    becomes("http://example.com/100%", "http://example.com/100%25");
    becomes("http://example.com/%%41?%4", "http://example.com/%25A?%254");
    becomes("http://example.com/%é", "http://example.com/%25%C3%A9");
}

#[test]
fn nfc_and_nfd_names_stay_apart() {
    becomes("http://example.com/\u{e9}", "http://example.com/%C3%A9");
    becomes("http://example.com/e\u{301}", "http://example.com/e%CC%81");
}

#[test]
fn identities_that_differ_only_in_the_query_string() {
    becomes("http://example.com/download?id=5", "http://example.com/download?id=5");
    assert_ne!(Uri::parse("http://example.com/a?"), Uri::parse("http://example.com/a"));
    assert_ne!(Uri::parse("http://example.com/a%3Fb"), Uri::parse("http://example.com/a?b"));
}

#[test]
fn hosts_of_every_kind() {
    becomes("http://localhost:8080/a", "http://localhost:8080/a");
    becomes("http://BÜCHER.example/a", "http://xn--bcher-kva.example/a");
    becomes("http://xn--bcher-kva.example/a", "http://xn--bcher-kva.example/a");
    becomes("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/a");
    becomes("http://0x7f.1/a", "http://127.0.0.1/a");
    becomes("http://[::1]/a", "http://[::1]/a");
    becomes("http://[0:0:0:0:0:0:0:1]:80/a", "http://[::1]/a");
    becomes("http://ex%61mple.com/a", "http://example.com/a");
}

#[test]
fn what_cannot_be_a_resource_is_refused() {
    let refused = |raw: &str| Uri::parse(raw).unwrap_err();
    for raw in ["ftp://example.com/a", "mailto:a@example.com", "gsiftp://example.com/a", "localhost:8080/a"] {
        assert_eq!(refused(raw), UriError::Scheme(raw.into()));
    }
    for raw in ["a/b", "/a", "//example.com/a", "?q", "example.com/a"] {
        assert_eq!(refused(raw), UriError::Relative(raw.into()));
    }
    for raw in [
        "",
        "  ",
        "http://",
        "http:///a",
        "http:a",
        "http://example.com:x/",
        "http://example.com:65536/",
        "http://example.com:+80/",
        "http://[::1/a",
        "http://a b/c",
        "http://user@/a",
        "http://1.2.3.4.5/",
    ] {
        assert_eq!(refused(raw), UriError::Malformed(raw.into()));
    }
}

#[test]
fn parts() {
    let uri = Uri::parse("https://[2001:db8::1]:8443/a/b?c?d").unwrap();
    assert_eq!((uri.scheme(), uri.authority()), ("https", "[2001:db8::1]:8443"));
    assert_eq!((uri.host(), uri.port()), ("[2001:db8::1]", 8443));
    assert_eq!((uri.path(), uri.query()), ("/a/b", Some("c?d")));

    let uri = Uri::parse("http://example.com?").unwrap();
    assert_eq!((uri.scheme(), uri.authority()), ("http", "example.com"));
    assert_eq!((uri.host(), uri.port()), ("example.com", 80));
    assert_eq!((uri.path(), uri.query()), ("/", Some("")));
    assert_eq!(Uri::parse("https://[::1]").unwrap().port(), 443);
}

#[test]
fn flaws_are_told_apart() {
    let clean = Flaws::default();
    assert_eq!(Flaws::of("http://[::1]/a?b#c"), clean);
    assert_eq!(Flaws::of("a/b"), Flaws { relative: true, ..clean });
    assert_eq!(Flaws::of("http://example.com/a b"), Flaws { unescaped: true, ..clean });
    assert_eq!(Flaws::of("http://example.com/é"), Flaws { unescaped: true, ..clean });
    assert_eq!(Flaws::of("http://example.com/a[1]"), Flaws { unescaped: true, ..clean });
    assert_eq!(Flaws::of("http://example.com/%zz"), Flaws { bad_escape: true, ..clean });
}

/// References made of what matters to the parser.
fn reference() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "http://",
        "https://",
        "//",
        "/",
        ".",
        "..",
        "?",
        "#",
        "%",
        "%2e",
        "%2F",
        "%zz",
        "%41",
        "a",
        "B",
        "é",
        " ",
        ":",
        "@",
        "[",
        "]",
        "::1",
        "80",
        "443",
        "example.com",
        "\n",
        "\\",
        "\u{feff}",
        "'",
        "\"",
        "xn--",
        "1.2",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(crate::document::fixed_cases(2_000))]

    #[test]
    fn normalisation_is_idempotent(raw in reference(), prefixed in any::<bool>()) {
        let raw = if prefixed { format!("http://example.com/{raw}") } else { raw };
        if let Ok(uri) = Uri::parse(&raw) {
            let again = mend(None, uri.as_str());
            prop_assert_eq!(again.as_ref(), Ok(&uri));
            prop_assert_eq!(Uri::parse(uri.as_str()), Ok(uri.clone()));
            let parts = format!("{}://{}{}", uri.scheme(), uri.authority(), uri.path());
            let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
            prop_assert_eq!(parts + &query, uri.as_str());
            prop_assert!(url::Url::parse(uri.as_str()).is_ok());
            prop_assert!(uri.as_str().bytes().all(|b| b.is_ascii_graphic()));
            prop_assert!(!uri.path().split('/').any(|segment| segment == "." || segment == ".."));
        }
    }

    #[test]
    fn any_reference_resolves_to_a_normal_uri_or_is_refused(base in reference(), raw in reference()) {
        let base = Uri::parse(&format!("http://example.com/{base}")).unwrap();
        if let Ok(uri) = Uri::resolve(Some(&base), &raw) {
            prop_assert_eq!(mend(None, uri.as_str()), Ok(uri));
        }
    }

    #[test]
    fn any_text_is_read_or_refused(raw in ".{0,60}") {
        let base = Uri::parse("http://example.com/a/b").unwrap();
        let _ = (Uri::resolve(Some(&base), &raw), Flaws::of(&raw));
    }
}

#[test]
fn an_item_is_its_page_with_a_path() {
    let page = Uri::parse("https://h/records/1?v=2").unwrap();

    let item = page.item("/data set//../50%/./a#b?.csv");

    assert_eq!(item.as_str(), "https://h/records/1?v=2#data%20set/50%25/a%23b%3F.csv");
    assert_eq!(item.page(), Some(("https://h/records/1?v=2", "data%20set/50%25/a%23b%3F.csv")));
    assert_eq!(Uri::parse_item(item.as_str()), Ok(item.clone()));
    assert_eq!(item.item("x").as_str(), "https://h/records/1?v=2#x");
    assert_eq!((page.page(), Uri::parse("https://h/a#b").unwrap().page()), (None, None), "no published URI is an item");
}
