use super::*;
use std::collections::{HashMap, HashSet};

mod random;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CatalogPath {
    path: Box<str>,
    invertible: bool,
}

impl Naming {
    fn found(&self, uri: &Uri, media_type: Option<&str>) -> CatalogPath {
        let (path, invertible) = self.path(uri, media_type);
        CatalogPath { path: path.into_boxed_str(), invertible }
    }
}

fn uri(raw: &str) -> Uri {
    Uri::parse(raw).unwrap()
}

fn own(authority: &str) -> Naming {
    Naming::new(authority, [], false).unwrap()
}

fn mapped(maps: &[(&str, &str)]) -> Naming {
    Naming::new("h", maps.iter().copied(), false).unwrap()
}

/// `raw` has the path `expected`, and the path gives `raw` in its normal form back.
#[track_caller]
fn names(naming: &Naming, raw: &str, expected: &str) {
    let uri = uri(raw);
    let found = naming.found(&uri, None);
    assert_eq!((&*found.path, found.invertible), (expected, true), "{raw}");
    assert_eq!(naming.uri(expected, raw.starts_with("https")), Some(uri), "{expected}");
}

#[track_caller]
fn is_legal(path: &str) {
    for name in path.split('/') {
        assert!(!matches!(name, "" | "." | ".."), "{path}");
        assert!(name.len() <= NAME_MAX, "{} bytes: {path}", name.len());
        assert!(!name.contains(char::is_control), "{path:?}");
    }
}

#[test]
fn own_host_is_the_root_and_other_hosts_are_below_one_folder() {
    let naming = own("h");
    names(&naming, "http://h/a/b.pdf", "a/b.pdf");
    names(&naming, "http://o.example/a/b.pdf", "%host/o.example/a/b.pdf");
    names(&naming, "http://h:8080/a", "%host/h:8080/a");
    names(&naming, "http://www.h/a", "%host/www.h/a");
    names(&naming, "http://localhost:8080/a", "%host/localhost:8080/a");
    names(&naming, "http://[2001:db8::1]:81/a", "%host/[2001:db8::1]:81/a");
    names(&naming, "http://o.example/", "%host/o.example/%index");
    names(&own("h:8080"), "http://h:8080/a", "a");
    names(&own("h:8080"), "http://h/a", "%host/h/a");
    names(&Naming::default(), "http://h/a", "%host/h/a");
}

#[test]
fn the_scheme_does_not_count() {
    let naming = own("h");
    names(&naming, "http://h/a", "a");
    names(&naming, "https://h/a", "a");
    names(&naming, "https://o.example/a", "%host/o.example/a");
    // Port 443 is another resource by http and the same by https.
    names(&naming, "http://h:443/a", "%host/h:443/a");
    names(&naming, "https://h:443/a", "a");
}

#[test]
fn over_long_hosts_are_cut_as_names_are() {
    let host = "a.".repeat(120) + &"b".repeat(20);
    let path = own("h").found(&uri(&format!("http://{host}/x")), None);
    assert!(!path.invertible && path.path.ends_with("/x"), "{path:?}");
    is_legal(&path.path);
}

#[test]
fn segments_are_decoded_where_that_gives_valid_utf8() {
    let naming = own("h");
    names(&naming, "http://h/a%20b", "a b");
    names(&naming, "http://h/%C3%A9t%C3%A9.txt", "été.txt");
    names(&naming, "http://h/%F0%9F%90%87", "🐇");
    names(&naming, "http://h/%C3", "%C3");
    names(&naming, "http://h/%C3%C3%A9%A9", "%C3é%A9");
    names(&naming, "http://h/%C0%AF%ED%A0%80", "%C0%AF%ED%A0%80");
    names(&naming, "http://h/%41", "A");
}

#[test]
fn raw_blanks_brackets_and_quotes_of_loc_show_as_they_are() {
    let naming = own("h");
    names(&naming, "http://h/a b[1] \"c\" {d} <e>|^`\\", "a b[1] \"c\" {d} <e>|^`\\");
    names(&naming, "http://h/it's (1), 2+2=4; a&b!", "it's (1), 2+2=4; a&b!");
    names(&naming, "http://h/é", "é");
}

#[test]
fn nfc_and_nfd_stay_apart() {
    let naming = own("h");
    names(&naming, "http://h/%C3%A9", "\u{e9}");
    names(&naming, "http://h/e%CC%81", "e\u{301}");
}

#[test]
fn what_would_mislead_stays_escaped() {
    let naming = own("h");
    for kept in [
        "%2F",
        "%00",
        "%0A",
        "%1F",
        "%7F",
        "%C2%80",
        "%C2%9F",
        "%25",
        "%3F",
        "%23",
        "%E2%80%8B",
        "%E2%80%8F",
        "%E2%80%AA",
        "%E2%80%AE",
        "%E2%81%A6",
        "%E2%81%A9",
        "%E2%81%AA",
        "%EF%BB%BF",
        "%C2%AD",
        "%D8%9C",
        "%E1%A0%8E",
        "%E2%80%A8",
        "%E2%80%A9",
        "%EF%BF%B9",
        "%EF%B8%8F",
        "%F3%A0%81%81",
    ] {
        names(&naming, &format!("http://h/a{kept}b"), &format!("a{kept}b"));
    }
    // Their neighbours are harmless.
    names(&naming, "http://h/%C2%AC%C2%A0%E2%80%90%E2%80%AF%E2%81%B0", "\u{ac}\u{a0}\u{2010}\u{202f}\u{2070}");
}

#[test]
fn delimiters_show_escaped_or_not_and_plain_ones_lead_back() {
    let naming = own("h");
    for reserved in "!$&'()*+,;=:@".chars() {
        let escape = format!("%{:02X}", u32::from(reserved));
        names(&naming, &format!("http://h/a{reserved}b"), &format!("a{reserved}b"));
        let escaped = naming.found(&uri(&format!("http://h/a{escape}b")), None);
        assert_eq!((&*escaped.path, escaped.invertible), (&*format!("a{reserved}b"), false));
    }
}

#[test]
fn escaped_dots_are_no_names() {
    let naming = own("h");
    names(&naming, "http://h/a/%2e%2E/b", "b");
    names(&naming, "http://h/a/%2e/b", "a/b");
    names(&naming, "http://h/.hidden/..a/...", ".hidden/..a/...");
    for (host, name) in [(".", "%2E"), ("..", "%2E%2E")] {
        if let Ok(uri) = Uri::parse(&format!("http://{host}/a")) {
            names(&naming, uri.as_str(), &format!("%host/{name}/a"));
        }
    }
}

#[test]
fn the_query_belongs_to_the_name() {
    let naming = own("h");
    names(&naming, "http://h/download?id=5", "download?id=5");
    names(&naming, "http://h/download?id=6", "download?id=6");
    names(&naming, "http://h/a?b=/c/d", "a?b=%2Fc%2Fd");
    names(&naming, "http://h/a?b=%2Fc", "a?b=%252Fc");
    names(&naming, "http://h/a?b=%20%C3%A9", "a?b=%2520%25C3%25A9");
    names(&naming, "http://h/a?b?c", "a?b?c");
    names(&naming, "http://h/a?", "a?");
    names(&naming, "http://h/a%3F", "a%3F");
    names(&naming, "http://h/a%3Fb?c", "a%3Fb?c");
    names(&naming, "http://h/a?..", "a?..");
}

#[test]
fn the_fragment_does_not_exist() {
    names(&own("h"), "http://h/a#b", "a");
    names(&own("h"), "http://h/a?b#c", "a?b");
}

#[test]
fn a_uri_that_ends_in_a_slash_is_the_index_of_its_folder() {
    let naming = own("h");
    names(&naming, "http://h/", "%index");
    names(&naming, "http://h", "%index");
    names(&naming, "http://h?q", "%index?q");
    names(&naming, "http://h/dir/", "dir/%index");
    names(&naming, "http://h/dir/?page=2", "dir/%index?page=2");
    names(&naming, "http://h/dir/?", "dir/%index?");
    names(&naming, "http://h/dir?/", "dir?%2F");
}

#[test]
fn an_empty_segment_is_a_folder_named_percent() {
    let naming = own("h");
    names(&naming, "http://h//a", "%/a");
    names(&naming, "http://h/a//b", "a/%/b");
    names(&naming, "http://h///", "%/%/%index");
    names(&naming, "http://o.example//a", "%host/o.example/%/a");
}

#[test]
fn uris_that_look_like_our_own_names_are_none() {
    let naming = own("h");
    names(&naming, "http://h/%", "%25");
    names(&naming, "http://h/%25", "%25");
    names(&naming, "http://h/%index", "%25index");
    names(&naming, "http://h/a%file", "a%25file");
    names(&naming, "http://h/%host/o.example/a", "%25host/o.example/a");
    names(&naming, "http://h/a%~00", "a%25~00");
    names(&naming, "http://h/a?%file", "a?%2525file");
    names(&naming, "http://h/index", "index");
}

#[test]
fn long_names_are_cut_and_keep_their_extension() {
    let naming = own("h");
    let fits = "n".repeat(251) + ".pdf";
    names(&naming, &format!("http://h/a/{fits}"), &format!("a/{fits}"));

    let long = "n".repeat(252) + ".pdf";
    let found = naming.found(&uri(&format!("http://h/{long}")), None);
    // The first half of the SHA-256 of the whole name, as sha256sum prints it.
    assert_eq!(&*found.path, "n".repeat(217) + "%~a7755e1f67a46fe763aa3df1877d45bc.pdf");
    assert!(!found.invertible);
    assert_eq!(naming.uri(&found.path, false), None);

    let folder = naming.found(&uri(&format!("http://h/{long}/b")), None);
    assert_eq!(&*folder.path, format!("{}/b", found.path));
    let query = naming.found(&uri(&format!("http://h/a?{}", "q".repeat(300))), None);
    assert_eq!(query.path.len(), NAME_MAX);
}

#[test]
fn names_are_cut_between_characters() {
    let naming = own("h");
    for front in ["", "a", "aa"] {
        let found = naming.found(&uri(&format!("http://h/{front}{}", "€".repeat(100))), None);
        is_legal(&found.path);
        let (stem, _) = found.path.split_once("%~").unwrap();
        assert!(stem.trim_start_matches('a').chars().all(|shown| shown == '€'), "{stem}");
    }
}

#[test]
fn a_resource_beside_its_folder_is_led_back_to() {
    let naming = mapped(&[("http://o.example/", "data")]);
    for (raw, path) in [
        ("http://h/a/b.pdf", "a/b.pdf"),
        ("http://h/a?b", "a?b"),
        ("http://o.example/a", "data/a"),
        ("http://p.example/a", "%host/p.example/a"),
    ] {
        names(&naming, raw, path);
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let beside = format!("{folder}/{}", beside_folder(name));
        assert_eq!(naming.uri(beside.trim_start_matches('/'), false), Some(uri(raw)), "{beside}");
    }
}

#[test]
fn what_is_no_plain_path_has_no_uri() {
    let naming = own("h");
    let lost = disambiguated("a.pdf", &uri("https://h/a.pdf"));
    for path in [
        "",
        "/",
        "a/",
        "a//b",
        "/a",
        "%",
        "a/%",
        "%host",
        "%host/h/a",
        "%host/o.example",
        "%file",
        "a/%file",
        "%2E",
        ".",
        "a/../b",
        "a/%2E%2E/b",
        "a%41",
        "a%2c",
        "a%C3%A9",
        "a%",
        "a%zz",
        "b?%41",
        "a?b/c",
        "a\n",
        "a\u{200b}",
        "a#b",
        "%index/a",
        "%host/O/a",
        &lost,
    ] {
        assert_eq!(naming.uri(path, false), None, "{path}");
    }
    assert_eq!(Naming::default().uri("a", false), None);
}

#[test]
fn maps_override_hosts_and_the_longest_prefix_wins() {
    let naming = mapped(&[
        ("http://o.example/", "other"),
        ("http://o.example/papers", "papers/2020"),
        ("http://h/get?id=5", "five.pdf"),
    ]);
    names(&naming, "http://o.example/a/b", "other/a/b");
    names(&naming, "https://o.example/a/b", "other/a/b");
    names(&naming, "http://o.example/", "other/%index");
    names(&naming, "http://o.example/?page=2", "other/%index?page=2");
    names(&naming, "http://o.example/papers", "papers/2020");
    names(&naming, "http://o.example/papers?a/b", "papers/2020?a%2Fb");
    names(&naming, "http://o.example/papers/", "papers/2020/%index");
    names(&naming, "http://o.example/papers/a%20b//c", "papers/2020/a b/%/c");
    names(&naming, "http://o.example/papers2", "other/papers2");
    names(&naming, "http://h/get?id=5", "five.pdf");
    names(&naming, "http://h/get?id=55", "get?id=55");
    names(&naming, "http://p.example/a", "%host/p.example/a");
    let archive = mapped(&[("https://o.example/web/http://h/", "copy")]);
    names(&archive, "https://o.example/web/http://h/a", "copy/a");
}

#[test]
fn what_is_mapped_onto_the_root_comes_before_what_lies_there() {
    let naming = mapped(&[("http://h/long/way", "")]);
    names(&naming, "http://h/long/way/home", "home");
    names(&naming, "http://h/long/way/", "%index");
    names(&naming, "http://o.example/a", "%host/o.example/a");
    for (raw, path) in [("http://h/home", "home"), ("http://h/long/way", "long/way")] {
        assert_eq!(naming.found(&uri(raw), None), CatalogPath { path: path.into(), invertible: false });
        assert_eq!(naming.uri(path, false), Some(uri(&format!("http://h/long/way/{path}"))));
    }
}

#[test]
fn of_two_uris_mapped_to_one_path_one_is_led_back_to() {
    let naming = mapped(&[("http://one.example/", "x"), ("http://other.example/", "x")]);
    names(&naming, "http://other.example/a", "x/a");
    assert_eq!(naming.found(&uri("http://one.example/a"), None), CatalogPath { path: "x/a".into(), invertible: false });
    // The Source's own `x/a` meets them too.
    assert!(!naming.found(&uri("http://h/x/a"), None).invertible);
}

#[test]
fn names_without_an_extension_get_that_of_their_type() {
    let naming = Naming::new("h", [], true).unwrap();
    for (raw, media_type, expected, invertible) in [
        ("http://h/bitstreams/1234", Some("application/pdf"), "bitstreams/1234.pdf", false),
        ("http://h/bitstreams/1234", Some("text/html; charset=utf-8"), "bitstreams/1234.html", false),
        ("http://h/bitstreams/1234", Some("application/octet-stream"), "bitstreams/1234", true),
        ("http://h/bitstreams/1234", None, "bitstreams/1234", true),
        ("http://h/a.PDF", Some("application/pdf"), "a.PDF", true),
        ("http://h/a.htm", Some("text/html"), "a.htm", true),
        ("http://h/10.1000", Some("application/pdf"), "10.1000.pdf", false),
        ("http://h/get.php?id=5", Some("application/pdf"), "get.php?id=5.pdf", false),
        ("http://h/dir/", Some("text/html"), "dir/%index.html", false),
    ] {
        let expected = CatalogPath { path: expected.into(), invertible };
        assert_eq!(naming.found(&uri(raw), media_type), expected, "{raw}");
    }
    let long = naming.found(&uri(&format!("http://h/{}", "n".repeat(255))), Some("application/pdf"));
    assert!(long.path.len() == 255 && long.path.ends_with(".pdf"), "{long:?}");
    assert_eq!(&*own("h").found(&uri("http://h/a"), Some("application/pdf")).path, "a");
}

#[test]
fn identities_differ_where_names_may() {
    let naming =
        |maps: &[(&str, &str)], extension| Naming::new("h", maps.iter().copied(), extension).unwrap().identity();
    let identities = [
        naming(&[], false),
        naming(&[], true),
        own("h:81").identity(),
        naming(&[("http://o/", "x")], false),
        naming(&[("http://o/x", "")], false),
        naming(&[("http://o/\"=\"", "x")], false),
        naming(&[("http://o/", "\"=\"x")], false),
        naming(&[("http://o/", "x"), ("http://p/", "y")], false),
    ];
    assert_eq!(identities.iter().collect::<HashSet<_>>().len(), identities.len());
    assert_eq!(
        naming(&[("http://o/", "x"), ("http://p/", "y")], true),
        naming(&[("https://p/", "y"), ("http://o/", "x")], true)
    );
    assert_eq!(naming(&[("http://o/é", "ü")], true), "names=2\nhost=h\nmap=\"o/%C3%A9\"=\"\\u{fc}\"\nextension=type\n");
}

#[test]
fn items_are_in_a_folder_next_to_their_page() {
    let naming = own("h");
    let item = |page: &str, path: &str| uri(page).item(path);
    for (page, path, expected) in [
        ("http://h/records/1", "a.csv", "records/1%items/a.csv"),
        ("https://h/records/1", "data set/50% ?.csv", "records/1%items/data set/50%25 %3F.csv"),
        ("http://h/records/", "../x", "records/%index%items/x"),
        ("http://h/d?id=doi:10.1/2", "a", "d?id=doi:10.1%2F2%items/a"),
        ("http://o.example/1", "a", "%host/o.example/1%items/a"),
    ] {
        let item = item(page, path);
        let found = naming.found(&item, None);
        assert_eq!((&*found.path, found.invertible), (expected, true));
        assert_eq!(naming.uri(expected, page.starts_with("https")), Some(item));
        is_legal(expected);
    }
    let long = item(&format!("http://h/{}", "n".repeat(252)), "a");
    let found = naming.found(&long, None);
    assert!(!found.invertible, "the pair is stored");
    is_legal(&found.path);
}

#[test]
fn the_items_of_a_page_that_is_mounted_alone_are_at_the_root() {
    let page = uri("https://h/records/1");
    let naming = Naming { page: Some(page.clone()), ..own("h") };
    for (uri, expected) in [(page.item("code/run.py"), "code/run.py"), (page.item("%page"), "%25page"), (page, "%page")]
    {
        let found = naming.found(&uri, None);
        assert_eq!((&*found.path, found.invertible), (expected, true));
        assert_eq!(naming.uri(expected, true), Some(uri));
    }
    assert_ne!(naming.identity(), own("h").identity());
}
