//! Random URIs from a fixed seed: legal names, no two alike, all led back to.

use super::*;

/// Xorshift, so that every run sees the same URIs.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(bound).unwrap()).unwrap()
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }

    fn uri(&mut self) -> Uri {
        loop {
            let mut raw = format!("{}://{}", self.of(&["http", "https"]), self.of(HOSTS_OF_URIS));
            for _ in 0..self.below(9) {
                raw += self.of(PIECES);
            }
            if let Ok(uri) = Uri::parse(&raw) {
                return uri;
            }
        }
    }
}

const HOSTS_OF_URIS: &[&str] = &[
    "h/",
    "h/",
    "h/",
    "h:8080/",
    "h:443/",
    "h:80/",
    "o.example/",
    "[2001:db8::1]/",
    "[::1]:81/",
    "localhost:8080/",
    "www.h/",
    "%68/",
    "./",
];

const PIECES: &[&str] = &[
    // What divides segments, and what looks like it.
    "/",
    "/",
    "//",
    "%2F",
    "%2f",
    "?",
    "?",
    "%3F",
    "%23",
    "#",
    // What looks like names of ours.
    "%",
    "%25",
    "%2525",
    "index",
    "%index",
    "%25index",
    "%25file",
    "%file",
    "%host/",
    "%25host/o.example/",
    "%25~",
    "%~0123456789abcdef0123456789abcdef",
    // Dots, raw and escaped.
    ".",
    "..",
    "%2e",
    "%2E%2E",
    "/../",
    "/%2e/",
    // Reserved and its escapes, unreserved and its escapes.
    "!$&'()*+,;=:@",
    "%2C",
    ",",
    "%3a",
    ":",
    "[",
    "%5D",
    "%41",
    "A",
    "%7E",
    "~",
    // What names show unescaped.
    " ",
    "%20",
    "%22%3C%3E%5C%5E%60%7B%7C%7D",
    "\\",
    // Controls, and what hides or turns.
    "%00",
    "%0A",
    "%1B",
    "%7F",
    "%C2%85",
    "%E2%80%8B",
    "%E2%80%AE",
    "%E2%81%A6",
    "%EF%BB%BF",
    "\u{200d}",
    // UTF-8: whole, NFC, NFD, in parts, overlong, surrogate, beyond the last.
    "é",
    "%C3%A9",
    "e%CC%81",
    "%C3",
    "%A9",
    "%E2%82",
    "%AC",
    "%FF",
    "%C0%AF",
    "%ED%A0%80",
    "%F0%9F%90%87",
    "%F4%90%80%80",
    // Plain.
    "a",
    "b",
    ".pdf",
    "?page=2",
    "id=5",
];

/// `address` with `sub-delims`, `:` and `@` unescaped in its path: URIs equal in that may share a path, and no others.
fn unescaped_delimiters(address: &str) -> String {
    let (path, query) = address.split_at(address.find('?').unwrap_or(address.len()));
    let mut path = path.to_owned();
    for delimiter in "!$&'()*+,;=:@".chars() {
        path = path.replace(&format!("%{:02X}", u32::from(delimiter)), &delimiter.to_string());
    }
    path + query
}

#[test]
fn random_uris_are_named_uniquely_and_legally_and_led_back_to() {
    let naming = own("h");
    let mut random = Xorshift(0x5EED);
    let mut known: HashMap<Box<str>, String> = HashMap::new();
    let mut distinct = HashSet::new();
    for round in 0..100_000 {
        let mut uri = random.uri();
        if round % 20 == 0 {
            // A long segment whose front many others share, at the front, in the middle or at the end.
            let long = random.of(&["n", "é", "%2F", "%E2%80%8B"]).repeat(70 + random.below(200));
            let tail = uri.as_str().split_once("://").and_then(|(_, rest)| rest.split_once('/')).unwrap().1.to_owned();
            uri = Uri::parse(&format!(
                "http://h/{}{long}{}{tail}",
                random.of(&["", "a/"]),
                random.of(&["", ".pdf", "/", "?"])
            ))
            .unwrap();
        }
        distinct.insert(uri.clone());
        let found = naming.found(&uri, Some("text/html"));
        is_legal(&found.path);
        let back = naming.uri(&found.path, uri.scheme() == "https");
        if found.invertible {
            assert_eq!(back.as_ref(), Some(&uri), "{found:?}");
        } else {
            assert_ne!(back.as_ref(), Some(&uri), "{found:?}");
        }
        let address = unescaped_delimiters(without_scheme(uri.as_str()));
        if !found.invertible {
            let cut = found.path.contains("%~");
            assert!(cut || address != without_scheme(uri.as_str()), "{found:?} of {uri}");
        }
        let first = known.entry(found.path).or_insert_with(|| address.clone());
        assert_eq!(first, &address);
    }
    assert!(distinct.len() > 60_000, "{}", distinct.len());
}

#[test]
fn every_short_uri_has_a_path_of_its_own() {
    const TOKENS: &[&str] =
        &["/", "?", "%2F", "%3F", "%25", "%20", "%2C", ",", ".", "2", "F", "index", "file", "%C3", "%A9"];
    let naming = own("h");
    let mut known: HashMap<Box<str>, Uri> = HashMap::new();
    for number in 0..TOKENS.len().pow(4) {
        let token = |place: u32| TOKENS[number / TOKENS.len().pow(place) % TOKENS.len()];
        let uri = uri(&format!("http://h/{}{}{}{}", token(3), token(2), token(1), token(0)));
        let found = naming.found(&uri, None);
        is_legal(&found.path);
        let plain = Uri::parse(&unescaped_delimiters(uri.as_str())).unwrap();
        assert_eq!(found.invertible, uri == plain, "{found:?} of {uri}");
        assert_eq!(naming.uri(&found.path, false).as_ref(), Some(&plain), "{found:?}");
        assert_eq!(known.entry(found.path).or_insert_with(|| plain.clone()), &plain);
    }
}

#[test]
fn settled_names_are_never_plain_names() {
    let naming = own("h");
    let mut random = Xorshift(0xF11E);
    let mut plain = HashSet::new();
    let mut settled: HashMap<String, (String, Option<Uri>)> = HashMap::new();
    for round in 0..20_000 {
        let mut uri = random.uri();
        if round % 10 == 0 {
            let long = "n".repeat(245 + random.below(20));
            uri = Uri::parse(&format!("{uri}{long}{}", random.of(&["", ".pdf", "%25file", "/"]))).unwrap();
        }
        let path = naming.found(&uri, None).path;
        let name = path.rsplit('/').next().unwrap();
        plain.extend(path.split('/').map(str::to_owned));
        for (made, of) in [
            (beside_folder(name), (name.to_owned(), None)),
            (disambiguated(name, &uri), (name.to_owned(), Some(uri.clone()))),
            (beside_folder(&disambiguated(name, &uri)), (disambiguated(name, &uri), None)),
        ] {
            is_legal(&made);
            assert_eq!(settled.entry(made).or_insert_with(|| of.clone()), &of);
        }
    }
    assert_eq!(settled.keys().find(|name| plain.contains(*name)), None);
}

#[test]
fn maps_lead_back_or_say_that_they_do_not() {
    let naming = mapped(&[
        ("http://o.example/", "data"),
        ("http://h/a", "a/b"),
        ("http://h/b/", ""),
        ("https://localhost:8080/", "b"),
        ("http://h/?id=5", "data/five.pdf"),
        ("http://www.h/", "data"),
    ]);
    let mut random = Xorshift(0x3A9);
    let mut inverse: HashMap<Box<str>, String> = HashMap::new();
    let mut lost = 0;
    for _ in 0..50_000 {
        let uri = random.uri();
        let found = naming.found(&uri, None);
        is_legal(&found.path);
        let back = naming.uri(&found.path, uri.scheme() == "https");
        assert_eq!(back.as_ref() == Some(&uri), found.invertible, "{found:?} of {uri}");
        if found.invertible {
            let address = without_scheme(uri.as_str());
            assert_eq!(inverse.entry(found.path).or_insert_with(|| address.to_owned()), address);
        } else {
            lost += 1;
        }
    }
    assert!(lost > 0);
}

#[test]
fn whatever_path_is_asked_its_uri_has_it() {
    let naming = mapped(&[("http://o.example/a", "data"), ("http://h/b/", "")]);
    let mut random = Xorshift(0xBAC);
    let mut answered = 0;
    for _ in 0..50_000 {
        let path: String = (0..random.below(6)).map(|_| random.of(PIECES)).collect();
        if let Some(uri) = naming.uri(&path, false) {
            let plain = path.strip_suffix(FILE_SUFFIX).unwrap_or(&path);
            assert_eq!(&*naming.found(&uri, None).path, plain, "{uri}");
            answered += 1;
        }
    }
    assert!(answered > 5_000, "{answered}");
}
