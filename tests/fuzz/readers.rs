//! The readers under test, each with its first cases and what must hold of any bytes.

use crate::common::server::{Received, Reply, Server, honest};
use crate::corpus::literals;
use crate::crafted;
use bytes::Bytes;
use resyncfs::document::dataset::described_files;
use resyncfs::document::web_link::{links_of_header, links_of_html, links_of_link_set};
use resyncfs::document::{Href, Limits, Reader, Timestamp, Uri, WebLink};
use resyncfs::source::http::{Client, HttpConfig};
use resyncfs::source::zip::{PackageConfig, PackageError, Packages};
use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Reads bytes; its outcome in words.
type Run = dyn Fn(&[u8]) -> String;

/// A reader: bytes in, an outcome in words that tells one way through the code from another.
pub struct Target {
    pub name: &'static str,
    pub cases: Vec<Vec<u8>>,
    pub dictionary: Vec<Vec<u8>>,
    pub run: Box<Run>,
}

/// All of them.
pub fn targets() -> Vec<Target> {
    let documents = literals(&["document/reader"]);
    let links = literals(&["document/web_link", "document/parameters.rs"]);
    let datasets = literals(&["document/dataset.rs", "document/json.rs"]);
    let target = |name, cases: Vec<Vec<u8>>, words: &[Vec<u8>], run: fn(&[u8]) -> String| {
        let dictionary = words.iter().filter(|word| (1..=40).contains(&word.len())).cloned().collect();
        Target { name, cases, dictionary, run: Box::new(run) }
    };
    let holding = |words: &[Vec<u8>], mark: &[u8]| -> Vec<Vec<u8>> {
        words.iter().filter(|word| word.windows(mark.len()).any(|part| part == mark)).cloned().collect()
    };
    let markup = holding(&documents, b"<");
    let wrapped = markup.iter().flat_map(|body| {
        let roots = ["urlset", "sitemapindex", "feed", "rss"];
        roots.map(|root| [format!("<{root} {NAMESPACES}>").as_bytes(), body, format!("</{root}>").as_bytes()].concat())
    });
    let lines = documents.iter().map(|line| [b"http://h/", &line[..], b"\n"].concat().repeat(2));
    let values: Vec<_> = literals(&["document/uri", "document/timestamp.rs", "document/hash.rs"]);
    vec![
        target("documents", markup.iter().cloned().chain(wrapped).collect(), &documents, document),
        target("text lists", lines.collect(), &documents, document),
        target("Link header", holding(&links, b"<"), &links, |bytes| {
            links_found(&links_of_header([&*String::from_utf8_lossy(bytes)], &base()))
        }),
        target("HTML links", holding(&links, b"<"), &links, |bytes| {
            let (links, has_ended) = links_of_html(bytes, &base());
            format!("{has_ended} {}", links_found(&links))
        }),
        target("link sets in JSON", holding(&links, b"{"), &links, |bytes| link_set(bytes, true)),
        target("link sets in text", holding(&links, b"<"), &links, |bytes| link_set(bytes, false)),
        target("data sets", holding(&datasets, b"{"), &datasets, data_set),
        target("values", values.clone(), &values, value),
        packages(),
    ]
}

const NAMESPACES: &str =
    "xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\"";

fn base() -> Uri {
    Uri::parse("http://h/d/page").unwrap()
}

/// The beginning of an error, without what is of its case.
fn kind(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let words = text.split([':', '"', '`', '<']).next().unwrap_or_default();
    words.chars().filter(|letter| letter.is_ascii_alphabetic() || *letter == ' ').take(60).collect()
}

fn round_trips(uri: &Uri) {
    assert_eq!(Uri::parse(uri.as_str()).as_ref(), Ok(uri), "an address is not what it is written as");
}

/// A document is read to its end or its first error, alike in one piece and in small ones.
fn document(bytes: &[u8]) -> String {
    let outcome = read(bytes);
    assert_eq!(outcome, read(BufReader::with_capacity(7, bytes)), "in pieces it is read otherwise");
    outcome
}

fn read(bytes: impl BufRead) -> String {
    let limits = Limits { document: 1 << 20, text: 512, depth: 8, links: 16 };
    let mut reader = match Reader::new(bytes, Some(base()), limits) {
        Ok(reader) => reader,
        Err(error) => return kind(&error),
    };
    let end = loop {
        match reader.next_entry() {
            Ok(None) => break String::new(),
            Err(error) => break kind(&error),
            Ok(Some(entry)) => {
                assert!(entry.links.len() <= limits.links, "more links than the limit");
                round_trips(&entry.loc);
            }
        }
    };
    let rules: Vec<_> = reader.deviations().counts().map(|(rule, _)| rule).collect();
    format!("{:?} {rules:?} {end}", reader.header().capability)
}

fn links_found(links: &[WebLink]) -> String {
    for link in links {
        if let Href::Web(uri) = &link.href {
            round_trips(uri);
        }
    }
    format!("{} links", links.len().min(9))
}

fn link_set(bytes: &[u8], is_json: bool) -> String {
    links_of_link_set(bytes, is_json, &base()).map_or_else(|error| kind(&error), |links| links_found(&links))
}

fn data_set(bytes: &[u8]) -> String {
    match described_files(bytes, &base()) {
        Err(error) => kind(&error),
        Ok(None) => "describes nothing".into(),
        Ok(Some(files)) => {
            files.iter().filter_map(|file| file.address.as_ref()).for_each(round_trips);
            let has_length = files.iter().any(|file| file.length.is_some());
            let has_digest = files.iter().any(|file| !file.hashes.is_empty());
            format!("{} files {has_length} {has_digest}", files.len().min(9))
        }
    }
}

/// Addresses and times: what is understood is written as it is read again.
fn value(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let uri = Uri::resolve(Some(&base()), &text).inspect(round_trips);
    let time = Timestamp::parse(&text);
    if let Some(time) = time {
        assert_eq!(Timestamp::parse(&time.to_string()), Some(time), "a time is not what it is written as");
    }
    let refused = uri.as_ref().err().map(|error| kind(error as &dyn std::error::Error));
    format!("{refused:?} {}", time.is_some())
}

/// Packages as they come from a server: directory, manifest and members.
fn packages() -> Target {
    let manifest = format!(
        "<urlset {NAMESPACES}><rs:md capability=\"resourcedump-manifest\"/>\
         <url><loc>http://h/a</loc><rs:md path=\"/a\"/></url><url><loc>http://h/b</loc><rs:md path=\"/b\"/></url></urlset>"
    );
    let members = [
        crafted::deflated("manifest.xml", manifest.as_bytes()),
        crafted::stored("a", b"some bytes"),
        crafted::deflated("b", &[7; 3000]),
        crafted::stored("ü/c", b""),
    ];
    let whole = crafted::craft(&members);
    let cases = vec![
        whole.bytes.clone(),
        crafted::with_zip64_end(&whole, 4, (whole.end - whole.directory) as u64),
        crafted::craft(&members[1..]).bytes,
        crafted::craft(&[]).bytes,
    ];
    let marks: [&[u8]; 9] = [
        b"PK\x01\x02",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PK\x06\x06",
        b"PK\x06\x07",
        b"\x01\x00\x10\x00",
        b"\xff\xff\xff\xff",
        b"\xff\xff",
        b"\x00\x00\x00\x00",
    ];
    let dictionary = marks.iter().map(|mark| mark.to_vec()).collect();
    let served = Arc::new(Mutex::new(Bytes::new()));
    let serving = Arc::clone(&served);
    let server = Server::start(move |request: &Received| -> Reply {
        let etag = (request.path.len() % 2 == 0).then_some("\"v1\"");
        honest(request, &serving.lock().unwrap().clone(), etag)
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let client = {
        let _entered = runtime.enter();
        Client::new(HttpConfig { own_authority: Some(server.authority().into()), ..HttpConfig::default() }).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let packages = {
        let _entered = runtime.enter();
        Packages::open(client, PackageConfig::new(folder.path().to_owned())).unwrap()
    };
    let count = std::cell::Cell::new(0_u64);
    let run = move |bytes: &[u8]| {
        let _folder = &folder;
        *served.lock().unwrap() = Bytes::copy_from_slice(bytes);
        // Each case is another package: a failed one is not requested again at once.
        count.set(count.get() + 1);
        let strong = if bytes.first().is_some_and(|byte| byte % 4 == 0) { "" } else { "s" };
        let address = format!("http://{}/{:09}{strong}", server.authority(), count.get());
        let package = Uri::parse(&address).unwrap();
        let outcome = runtime.block_on(async {
            let reading = tokio::time::timeout(Duration::from_secs(20), package_outcome(&packages, &package));
            reading.await.expect("a package is read in time")
        });
        packages.retain(&HashSet::new()).unwrap();
        server.forget_received();
        outcome
    };
    Target { name: "packages", cases, dictionary, run: Box::new(run) }
}

async fn package_outcome(packages: &Packages, package: &Uri) -> String {
    let failed = |error: &PackageError| kind(error);
    let manifest = packages.manifest(package).await.map_or_else(|error| failed(&error), |_| "sound".into());
    let mut outcome = format!("{manifest}; ");
    for path in ["/a", "b", "ü/c"] {
        outcome += &match member(packages, package, path).await {
            Ok(()) => "read; ".to_owned(),
            Err(error) => failed(&error) + "; ",
        };
    }
    outcome
}

async fn member(packages: &Packages, package: &Uri, path: &str) -> Result<(), PackageError> {
    let mut member = packages.member(package, path).await?;
    let (mut length, announced) = (0, member.length());
    while let Some(chunk) = member.chunk().await? {
        length += chunk.len() as u64;
        assert!(length <= announced, "a member is longer than announced");
    }
    assert_eq!(length, announced, "a member ends before its length");
    Ok(())
}
