//! Links of resources (section 14): mirrors, versions by time, patches; through a real mount.

mod common;

use common::eventually;
use common::mounted::Mounted;
use common::random::Random;
use common::source::{Fault, Resource, Source, hex};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::process::Command;

const FAST: &str = "timeout=3s,connect-timeout=1s,poll=1h";

/// The standard's relation for patches.
const PATCH: &str = "http://www.openarchives.org/rs/terms/patch";

fn link(rel: &str, source: &Source, path: &str, attributes: &str) -> String {
    format!("<rs:ln rel=\"{rel}\" href=\"{}{path}\" {attributes}/>", source.url())
}

/// The resource with these links.
fn linked(resource: Resource, links: String) -> Resource {
    Resource { links, ..resource }
}

fn paths(source: &Source) -> Vec<String> {
    source.take_log().into_iter().map(|logged| logged.path).collect()
}

/// Publishes at `path` and waits until the mount shows its length.
fn republish(source: &Source, mounted: &Mounted, path: &str, resource: Resource) {
    let length = resource.bytes.len() as u64;
    source.put(path, resource);
    mounted.refresh();
    eventually("the new version is shown", || fs::metadata(mounted.join(path)).is_ok_and(|it| it.len() == length));
    source.wait_for_quiet();
    source.take_log();
}

/// Mirrors come first, by `pri`; one that fails is followed by the next and asked last from then on.
#[test]
fn a_mirror_that_fails_is_asked_last_from_then_on() {
    let (source, dead, alive) = (Source::start(), Source::start(), Source::start());
    for name in ["one", "two"] {
        let bytes = Random::new(name.len() as u64 + u64::from(name.as_bytes()[0])).bytes(50_000);
        let mirrors = link("duplicate", &dead, name, "pri=\"1\"") + &link("duplicate", &alive, name, "pri=\"2\"");
        alive.put(name, Resource::new(bytes.clone()));
        source.put(name, linked(Resource::new(bytes), mirrors));
        dead.fault(name, Fault::Status(403, String::new()), 1000);
    }
    let mounted = Mounted::new(&source.url(), "poll=1h,allow-host=127.0.0.1");
    source.take_log();

    assert_eq!(fs::read(mounted.join("one")).unwrap(), source.published()["one"]);
    assert!(!dead.take_log().is_empty(), "the first by priority is asked first");
    assert_eq!(fs::read(mounted.join("two")).unwrap(), source.published()["two"]);

    assert_eq!(paths(&dead), [""; 0]);
    assert_eq!(paths(&alive), ["/one", "/two"]);
    assert_eq!(paths(&source), [""; 0]);
}

/// `memento` serves the listed version when the resource has changed again.
#[test]
fn an_older_version_comes_from_its_memento_or_timegate() {
    let source = Source::start();
    let (listed, now) = (Random::new(1).bytes(40_000), Random::new(2).bytes(40_000));
    let versions = link("memento", &source, "versions/1", "");
    let timegate = link("timegate", &source, "gate", "");
    source.page("versions/1", Resource::new(listed.clone()));
    source.fault("gate", Fault::Status(302, format!("Location: {}versions/1\r\n", source.url())), 1000);
    source.put("by-memento", linked(Resource::new(listed.clone()), versions));
    source.put("by-timegate", linked(Resource::new(listed.clone()), timegate));
    source.put("by-nothing", Resource::new(listed.clone()));
    let mounted = Mounted::new(&source.url(), FAST);
    for path in ["by-memento", "by-timegate", "by-nothing"] {
        source.fault(path, Fault::Body(now.clone()), 1000);
    }

    assert_eq!(fs::read(mounted.join("by-nothing")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(mounted.join("by-timegate")).unwrap(), listed);
    let asked = source.requests_of("gate");
    assert_eq!(asked[0].field("accept-datetime"), Some("Wed, 01 May 2024 10:00:00 GMT"), "its lastmod");

    // The digest names the object: without its own cache it would be found there.
    let mounted = Mounted::new(&source.url(), FAST);
    assert_eq!(fs::read(mounted.join("by-memento")).unwrap(), listed);
    assert_eq!(source.requests_of("versions/1").len(), 2);
}

/// Promise: an open file keeps its bytes or gets ESTALE, never others.
#[test]
fn a_replaced_version_comes_from_its_memento_or_is_stale() {
    let source = Source::start();
    let old = Random::new(1).bytes(30_000);
    let bare = |bytes: &[u8]| Resource { md: format!("length=\"{}\"", bytes.len()), ..Resource::new(bytes.to_vec()) };
    let memento = Resource {
        headers: "Memento-Datetime: Wed, 01 May 2024 10:00:00 GMT\r\n".into(),
        ..Resource::new(old.clone())
    };
    source.page("versions/1", memento);
    source.put("kept", linked(bare(&old), link("memento", &source, "versions/1", "")));
    source.put("lost", bare(&old));
    let mounted = Mounted::new(&source.url(), FAST);
    let mut kept = File::open(mounted.join("kept")).unwrap();
    let mut lost = File::open(mounted.join("lost")).unwrap();

    let new = Resource { lastmod: Some("2024-05-02T10:00:00Z".into()), ..bare(&Random::new(2).bytes(30_001)) };
    for path in ["kept", "lost"] {
        republish(&source, &mounted, path, new.clone());
    }

    let mut bytes = Vec::new();
    kept.read_to_end(&mut bytes).unwrap();
    assert!(bytes == old, "the version that was opened");
    assert_eq!(lost.read_to_end(&mut Vec::new()).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!(fs::read(mounted.join("lost")).unwrap(), *new.bytes);
}

/// A JSON document and its versions, written as Python writes it.
fn version(number: u32) -> Vec<u8> {
    let text = "lorem ipsum ".repeat(1000);
    format!(
        "{{\"id\": 7, \"version\": {number}, \"text\": \"{text}\", \"padding\": \"{}\"}}\n",
        "x".repeat(number as usize)
    )
    .into_bytes()
}

fn patch_to(number: u32) -> Vec<u8> {
    let padding = "x".repeat(number as usize);
    format!(
        r#"[{{"op":"replace","path":"/version","value":{number}}},{{"op":"replace","path":"/padding","value":"{padding}"}}]"#
    )
    .into_bytes()
}

/// A version as it is published, with its patch of that media type.
fn published(source: &Source, number: u32, media_type: &str) -> Resource {
    let digest = hex(&Sha256::digest(patch_to(number)));
    let length = patch_to(number).len();
    let attributes = format!("type=\"{media_type}\" length=\"{length}\" hash=\"sha-256:{digest}\"");
    source.page(&format!("patch/{number}"), Resource::new(patch_to(number)));
    let resource =
        Resource { lastmod: Some(format!("2024-05-01T10:00:{number:02}Z")), ..Resource::new(version(number)) };
    let json = Resource { md: format!("{} type=\"application/json\"", resource.md), ..resource };
    linked(json, link(PATCH, source, &format!("patch/{number}"), &attributes))
}

/// A patch makes the new version of the one that is cached; what cannot be used costs no more than the whole.
#[test]
fn a_new_version_comes_by_its_patch_where_it_can() {
    let source = Source::start();
    source.put("doc", published(&source, 1, "application/json-patch"));
    let mounted = Mounted::new(&source.url(), FAST);
    assert!(fs::read(mounted.join("doc")).unwrap() == version(1));

    republish(&source, &mounted, "doc", published(&source, 2, "application/json-patch"));
    assert!(fs::read(mounted.join("doc")).unwrap() == version(2));
    assert_eq!(paths(&source), ["/patch/2"], "only the patch is fetched");

    republish(&source, &mounted, "doc", published(&source, 3, "application/x-some-diff"));
    assert!(fs::read(mounted.join("doc")).unwrap() == version(3));
    assert_eq!(paths(&source), ["/doc"], "a patch of unknown type is ignored");

    let wrong = published(&source, 5, "application/json-patch+json");
    source.page("patch/5", Resource::new(patch_to(4)));
    republish(&source, &mounted, "doc", wrong);
    assert!(fs::read(mounted.join("doc")).unwrap() == version(5));
    assert_eq!(paths(&source), ["/patch/5", "/doc"], "a patch that is not the one published is not used");

    // The document as kept is not the one before: this change follows one that was never seen.
    let unseen = Resource {
        bytes: version(7).into_iter().chain(*b" ").collect(),
        ..published(&source, 7, "application/json-patch+json")
    };
    let digest = hex(&Sha256::digest(&*unseen.bytes));
    let md = format!("hash=\"sha-256:{digest}\" length=\"{}\" type=\"application/json\"", unseen.bytes.len());
    republish(&source, &mounted, "doc", Resource { md, ..unseen.clone() });
    assert!(fs::read(mounted.join("doc")).unwrap() == *unseen.bytes);
    assert_eq!(paths(&source), ["/patch/7", "/doc"]);
}

/// A page that stays the same, and the paper it is about, which does not.
#[test]
fn a_changed_alternate_of_an_unchanged_entry_is_a_new_version() {
    let source = Source::start();
    let about = |paper: &[u8], day: u32| {
        let digest = hex(&Sha256::digest(paper));
        let attributes = format!("type=\"application/pdf\" length=\"{}\" hash=\"sha-256:{digest}\"", paper.len());
        source.page("paper.pdf", Resource::new(paper));
        let page = Resource { lastmod: Some(format!("2024-05-0{day}T10:00:00Z")), ..Resource::new("<html>") };
        linked(page, link("alternate", &source, "paper.pdf", &attributes))
    };
    source.put("work", about(b"%PDF first", 1));
    let mounted = Mounted::new(&source.url(), &format!("{FAST},alternate=application/pdf"));
    let path = mounted.join("work");
    assert_eq!(fs::metadata(&path).unwrap().len(), 10);
    assert_eq!(fs::read(&path).unwrap(), b"%PDF first");
    let mut before = File::open(&path).unwrap();

    source.put("work", about(b"%PDF the second", 2));
    mounted.refresh();

    eventually("the new paper is shown", || fs::read(&path).is_ok_and(|bytes| bytes == b"%PDF the second"));
    let mut bytes = Vec::new();
    before.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"%PDF first", "an open file keeps its bytes");
}

/// Every link of the standard is shown, also a name that cannot be fetched.
#[test]
fn links_are_shown_by_extended_attributes() {
    let source = Source::start();
    let links = [
        ("describedby", "http://example.com/about.xml"),
        ("describes", "http://example.com/described.pdf"),
        ("profile", "urn:isbn:0451450523"),
        ("collection", "info:eu-repo/collection/7"),
        ("via", "http://original.example.com/res1.html"),
        ("canonical", "http://example.com/res1"),
        ("alternate", "http://example.com/res1.pdf"),
        ("timegate", "http://example.com/timegate/http://example.com/res1"),
        ("license", "http://creativecommons.org/licenses/by/4.0/"),
    ];
    let published = links.iter().map(|(rel, href)| format!("<rs:ln rel=\"{rel}\" href=\"{href}\"/>")).collect();
    source.put("res1.html", linked(Resource::new("a page"), published));
    let mounted = Mounted::new(&source.url(), FAST);
    let getfattr = |arguments: &[&str]| {
        let output = Command::new("getfattr").args(arguments).arg(mounted.join("res1.html")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };

    for (rel, href) in links {
        let name = if rel == "license" { "user.resyncfs.link.license".into() } else { format!("user.resyncfs.{rel}") };
        assert_eq!(getfattr(&["--absolute-names", "--only-values", "-n", &name]), href, "{rel}");
        assert!(getfattr(&["--absolute-names"]).lines().any(|line| line == name), "{name} is listed");
    }
}
