//! Dumps followed by the manifests of their packages.

use super::*;
use crate::source::package::{PackageConfig, Packages};
use std::io::{Cursor, Write};
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A package with this manifest and members of five octets.
pub(super) fn package(manifest: &str, members: &[&str]) -> Answer {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for name in members.iter().chain(&["manifest.xml"]) {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        let octets = if *name == "manifest.xml" { manifest.as_bytes() } else { b"bytes" };
        writer.write_all(octets).unwrap();
    }
    Answer::new("application/zip", writer.finish().unwrap().into_inner()).etag("package")
}

pub(super) fn manifest(server: &Loopback, capability: &str, resources: &[(&str, &str)]) -> String {
    let entries: Vec<_> = resources.iter().map(|(path, md)| url(server.uri(path).as_str(), md)).collect();
    let md = format!("capability=\"{capability}\" at=\"2013-01-03T09:00:00Z\"");
    urlset(&md, &[], &entries)
}

pub(super) fn destination(server: &Loopback) -> Destination {
    let mut destination = Destination::of(server, "/caps.xml");
    let folder = destination._folder.path().join("packages");
    std::fs::create_dir_all(&folder).unwrap();
    let packages = Packages::open(server.client(), PackageConfig::new(folder)).unwrap();
    destination.synchronizer.read_packages(packages);
    destination
}

/// A Source that offers these documents.
pub(super) async fn source(offers: &[(&str, &str)]) -> Loopback {
    let server = Loopback::start().await;
    let offers: Vec<_> = offers.iter().map(|(capability, path)| offer(capability, server.uri(path).as_str())).collect();
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server
}

pub(super) fn member_of(destination: &Destination, path: &str) -> Option<String> {
    let snapshot = destination.catalog.snapshot().unwrap();
    let node = snapshot.find(path).unwrap().unwrap();
    snapshot.resource(node.ino).unwrap().unwrap().member.map(|member| member.path.into())
}

#[tokio::test]
async fn a_source_with_dumps_and_no_list_is_mounted_from_the_manifests_and_followed_by_change_dumps() {
    let server = source(&[("resourcedump", "/dump.xml"), ("changedump", "/changes.xml")]).await;
    let held = [("/a", "path=\"/a.bin\""), ("/b", "path=\"/b.bin\"")];
    server.put("/1.zip", package(&manifest(&server, "resourcedump-manifest", &held), &["a.bin", "b.bin"]));
    let tar = Answer::new("application/x-xz", b"\xfd7zXZ\0".as_slice());
    server.put("/2.tar.xz", tar);
    let packages = ["/1.zip", "/2.tar.xz"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(
        "/dump.xml",
        Answer::xml(urlset("capability=\"resourcedump\" at=\"2013-01-03T09:00:00Z\"", &[], &packages)),
    );
    let none = urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &[]);
    server.put("/changes.xml", Answer::xml(none));
    let mut destination = destination(&server);

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/a.bin"));
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));

    let changes = [
        ("/c", "change=\"created\" datetime=\"2013-01-03T10:00:00Z\" path=\"/c.bin\""),
        ("/c", "change=\"updated\" datetime=\"2013-01-03T11:00:00Z\" path=\"/c2.bin\""),
        ("/b", "change=\"deleted\" datetime=\"2013-01-03T10:00:00Z\""),
    ];
    let changes = manifest(&server, "changedump-manifest", &changes);
    server.put("/c.zip", package(&changes, &["c.bin", "c2.bin"]));
    let packages = [url(server.uri("/c.zip").as_str(), "")];
    let dump = urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &packages);
    server.put("/changes.xml", Answer::xml(dump));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c"]);
    assert_eq!(member_of(&destination, "c").as_deref(), Some("/c2.bin"), "of several bitstreams the last counts");
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
}

#[tokio::test]
async fn what_is_kept_of_packages_goes_with_the_last_dump_that_lists_them() {
    let server = source(&[("resourcedump", "/dump.xml"), ("changedump", "/changes.xml")]).await;
    let held = |path: &str, member: &str| manifest(&server, "resourcedump-manifest", &[(path, member)]);
    server.put("/1.zip", package(&held("/a", "path=\"/a.bin\""), &["a.bin"]));
    server.put("/2.zip", package(&held("/b", "path=\"/b.bin\""), &["b.bin"]));
    let changed = "change=\"created\" datetime=\"2013-01-03T10:00:00Z\" path=\"/c.bin\"";
    server.put("/c.zip", package(&manifest(&server, "changedump-manifest", &[("/c", changed)]), &["c.bin"]));
    let dump = |capability: &str, paths: &[&str]| {
        let packages: Vec<_> = paths.iter().map(|path| url(server.uri(path).as_str(), "")).collect();
        let md = format!("capability=\"{capability}\" from=\"2013-01-03T09:00:00Z\"");
        Answer::xml(urlset(&md, &[], &packages))
    };
    server.put("/dump.xml", dump("resourcedump", &["/1.zip", "/2.zip"]));
    server.put("/changes.xml", dump("changedump", &["/c.zip"]));
    let mut destination = destination(&server);
    let folder = destination._folder.path().join("packages");
    let kept = || std::fs::read_dir(&folder).unwrap().count();

    destination.commit().await;
    destination.synchronizer.tidy();
    destination.synchronizer.settled().await;
    assert_eq!(kept(), 3, "a manifest of each");

    server.put("/dump.xml", dump("resourcedump", &["/2.zip"]));
    destination.commit().await;
    destination.synchronizer.tidy();
    destination.synchronizer.settled().await;
    assert_eq!(kept(), 2);
}

#[tokio::test]
async fn beside_lists_a_dump_holds_what_is_provably_this_version_and_stops_nothing() {
    let server = source(&[("resourcelist", LIST), ("resourcedump", "/dump.xml")]).await;
    let hashed = |path: &str, digest: char| {
        url(server.uri(path).as_str(), &format!("hash=\"md5:{}\" length=\"5\"", digest.to_string().repeat(32)))
    };
    let listed = [hashed("/a", '1'), hashed("/b", '2')];
    let list_of = |at: &str| Answer::xml(urlset(&format!("capability=\"resourcelist\" at=\"{at}\""), &[], &listed));
    server.put(LIST, list_of("2013-01-03T09:00:00Z"));
    let mut destination = destination(&server);

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b"], "the dump answers 404");
    assert_eq!(member_of(&destination, "a"), None);

    let held = |path: &str, digest: char, member: &str| {
        let md = format!("hash=\"md5:{}\" length=\"5\" path=\"{member}\"", digest.to_string().repeat(32));
        url(server.uri(path).as_str(), &md)
    };
    let held = [held("/a", '1', "/a.bin"), held("/b", '3', "/b.bin"), held("/c", '4', "/c.bin")];
    let manifest = urlset("capability=\"resourcedump-manifest\" at=\"2013-01-03T09:00:00Z\"", &[], &held);
    server.put("/1.zip", package(&manifest, &["a.bin", "b.bin", "c.bin"]));
    let packages = [url(server.uri("/1.zip").as_str(), "")];
    server.put("/dump.xml", Answer::xml(urlset("capability=\"resourcedump\"", &[], &packages)));
    server.put(LIST, list_of("2013-01-03T09:10:00Z"));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b"], "a dump says nothing of what exists where there is a list");
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/a.bin"));
    assert_eq!(member_of(&destination, "b"), None, "another version");
}
