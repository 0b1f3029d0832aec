//! Dumps followed by the manifests of their packages.

use super::*;
use crate::source::tests::loopback::document;
use std::io::{Cursor, Write};
use std::sync::Arc;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A package with this manifest and members of five bytes.
pub(super) fn package(manifest: &str, members: &[&str]) -> Answer {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for name in members.iter().chain(&["manifest.xml"]) {
        writer.start_file(*name, SimpleFileOptions::default()).unwrap();
        let bytes = if *name == "manifest.xml" { manifest.as_bytes() } else { b"bytes" };
        writer.write_all(bytes).unwrap();
    }
    Answer::new("application/zip", writer.finish().unwrap().into_inner()).etag("package")
}

pub(super) fn manifest(server: &Loopback, capability: &str, resources: &[(&str, &str)]) -> String {
    let entries: Vec<_> = resources.iter().map(|(path, md)| url(server.uri(path).as_str(), md)).collect();
    let md = format!("capability=\"{capability}\" at=\"2013-01-03T09:00:00Z\"");
    urlset(&md, &[], &entries)
}

pub(super) fn destination(server: &Loopback) -> Destination {
    Destination::of(server, "/caps.xml")
}

/// A Source that offers these documents.
pub(super) async fn source(offers: &[(&str, &str)]) -> Loopback {
    let server = Loopback::start();
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
async fn packages_do_not_hide_that_no_list_is_understood() {
    let server = source(&[("resourcelist", "/list.xml"), ("resourcedump", "/dump.xml")]).await;
    let held = [("/a", "path=\"/a.bin\"")];
    server.put("/1.zip", package(&manifest(&server, "resourcedump-manifest", &held), &["a.bin"]));
    let time = "at=\"2013-01-03T09:00:00Z\"";
    let packages = [url(server.uri("/1.zip").as_str(), "")];
    server.put("/dump.xml", Answer::xml(urlset(&format!("capability=\"resourcedump\" {time}"), &[], &packages)));
    let foreign = [url("mailto:a@example.org", "")];
    server.put("/list.xml", Answer::xml(urlset(&format!("capability=\"resourcelist\" {time}"), &[], &foreign)));

    let refused = destination(&server).refresh().await;

    assert!(matches!(&refused, Err(SyncError::NothingToShow(why)) if why.contains("list.xml")), "{refused:?}");
}

#[tokio::test]
async fn a_source_of_dumps_is_mounted_and_followed_by_manifests() {
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
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

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
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn files_of_a_package_go_with_the_last_dump_that_lists_it() {
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
    destination.synchronizer.tidy().await;
    destination.synchronizer.writer.tidied().await;
    assert_eq!(kept(), 3, "a manifest of each");

    server.put("/dump.xml", dump("resourcedump", &["/2.zip"]));
    destination.commit().await;
    destination.synchronizer.tidy().await;
    destination.synchronizer.writer.tidied().await;
    assert_eq!(kept(), 2);
}

#[tokio::test]
async fn next_to_lists_a_dump_holds_only_provable_versions() {
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

/// A package of members of a megabyte each, with this manifest, which cannot be read in place.
fn large_package(manifest: &str, members: &[&str]) -> Answer {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for name in members {
        writer.start_file(*name, stored).unwrap();
        writer.write_all(&vec![b'x'; 1 << 20]).unwrap();
    }
    writer.start_file("manifest.xml", stored).unwrap();
    writer.write_all(manifest.as_bytes()).unwrap();
    Answer::new("application/zip", writer.finish().unwrap().into_inner()).etag("package")
}

/// A dump of one package and the copy of its manifest.
fn dump(server: &Loopback, capability: &str, package: &str, copy: &str) -> Answer {
    let (package, copy) = (server.uri(package), server.uri(copy));
    let listed = format!("<url><loc>{package}</loc><rs:ln rel=\"contents\" href=\"{copy}\"/></url>");
    Answer::xml(urlset(&format!("capability=\"{capability}\" from=\"2013-01-03T09:00:00Z\""), &[], &[listed]))
}

/// Bytes of `path` sent since the last call.
fn sent(server: &Loopback, path: &str) -> usize {
    server.asked().iter().filter(|asked| asked.path == path).map(|asked| asked.sent).sum()
}

#[tokio::test]
async fn copies_of_manifests_spare_packages_without_ranges() {
    let server = source(&[("resourcedump", "/dump.xml")]).await;
    let held = manifest(&server, "resourcedump-manifest", &[("/a", "path=\"/a.bin\""), ("/b", "path=\"/b.bin\"")]);
    server.put("/1.zip", large_package(&held, &["a.bin", "b.bin"]));
    server.put("/1.xml", Answer::xml(held.clone()).etag("copy"));
    server.put("/dump.xml", dump(&server, "resourcedump", "/1.zip", "/1.xml"));
    let mut destination = destination(&server);

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert_eq!(member_of(&destination, "b").as_deref(), Some("/b.bin"));
    assert_eq!(sent(&server, "/1.zip"), 0);

    let packages = destination.synchronizer.fetch.packages.clone();
    packages.directory(&server.uri("/1.zip")).await.unwrap();
    assert!(
        matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged),
        "the manifest inside says the same"
    );
}

/// A dump may be published as an index of its packages.
#[tokio::test]
async fn packages_that_an_index_lists_have_their_copies_and_times_too() {
    let server = source(&[("resourcedump", "/dump.xml"), ("changedump", "/changes.xml")]).await;
    let index = |capability: &str, package: &str, copy: &str, md: &str| {
        let (package, copy) = (server.uri(package), server.uri(copy));
        let listed = format!("<sitemap><loc>{package}</loc>{md}<rs:ln rel=\"contents\" href=\"{copy}\"/></sitemap>");
        let own = format!("capability=\"{capability}\" from=\"2013-01-03T09:00:00Z\"");
        Answer::xml(document("sitemapindex", &own, &[], &[listed]))
    };
    let held = manifest(&server, "resourcedump-manifest", &[("/a", "path=\"/a.bin\""), ("/b", "path=\"/b.bin\"")]);
    server.put("/1.zip", large_package(&held, &["a.bin", "b.bin"]));
    server.put("/1.xml", Answer::xml(held));
    server.put("/dump.xml", index("resourcedump", "/1.zip", "/1.xml", ""));
    server
        .put("/changes.xml", Answer::xml(urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &[])));
    let mut destination = destination(&server);

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert_eq!(sent(&server, "/1.zip"), 0);

    let old = "<rs:md from=\"2013-01-01T00:00:00Z\" until=\"2013-01-02T00:00:00Z\"/>";
    server.put("/changes.xml", index("changedump", "/0.zip", "/0.xml", old));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    let asked = server.asked();
    assert!(asked.iter().all(|asked| !asked.path.starts_with("/0")), "its changes are in the dump: {asked:?}");
}

#[tokio::test]
async fn a_wrong_copy_is_corrected_by_the_manifest_inside() {
    let server = source(&[("resourcedump", "/dump.xml")]).await;
    let held = [("/a", "path=\"/b.bin\""), ("/b", "path=\"/a.bin\""), ("/c", "path=\"/a.bin\"")];
    let lies = [("/a", "path=\"/a.bin\""), ("/b", "path=\"/b.bin\""), ("/more", "path=\"/more.bin\"")];
    let held = manifest(&server, "resourcedump-manifest", &held);
    server.put("/1.zip", large_package(&held, &["a.bin", "b.bin"]));
    server.put("/1.xml", Answer::xml(manifest(&server, "resourcedump-manifest", &lies)));
    server.put("/dump.xml", dump(&server, "resourcedump", "/1.zip", "/1.xml"));
    let mut destination = destination(&server);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/more"]);

    let (package, packages) = (server.uri("/1.zip"), destination.synchronizer.fetch.packages.clone());
    packages.directory(&package).await.unwrap();
    assert!(packages.is_contradicted(&package));
    // The next refresh of any scope reads the package too.
    let outcome = destination.synchronizer.refresh_of(Scope::Due, Arc::new(|_: Stage| ())).await.unwrap();

    assert!(matches!(outcome, RefreshResult::Committed(_)));
    assert_eq!(destination.paths(), ["/a", "/b", "/c"]);
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/b.bin"));
    assert!(!packages.is_contradicted(&package));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn a_wrong_copy_stays_wrong_until_its_dump_is_read_again() {
    let server = source(&[("resourcedump", "/dump.xml"), ("changelist", "/changes.xml")]).await;
    let held = [("/a", "path=\"/b.bin\""), ("/b", "path=\"/a.bin\"")];
    let lies = [("/a", "path=\"/a.bin\""), ("/b", "path=\"/b.bin\"")];
    let held = manifest(&server, "resourcedump-manifest", &held);
    server.put("/1.zip", large_package(&held, &["a.bin", "b.bin"]));
    server.put("/1.xml", Answer::xml(manifest(&server, "resourcedump-manifest", &lies)));
    server.put("/dump.xml", dump(&server, "resourcedump", "/1.zip", "/1.xml"));
    let changes = |entries: &[String]| {
        Answer::xml(urlset("capability=\"changelist\" from=\"2013-01-03T09:00:00Z\"", &[], entries))
    };
    server.put("/changes.xml", changes(&[]));
    let mut destination = destination(&server);
    destination.commit().await;
    let (package, packages) = (server.uri("/1.zip"), destination.synchronizer.fetch.packages.clone());
    packages.directory(&package).await.unwrap();
    let listed = server.answer("/dump.xml");
    server.put("/dump.xml", Answer::status(403));
    let new = url(server.uri("/c").as_str(), "change=\"created\" datetime=\"2013-01-03T10:00:00Z\"");
    server.put("/changes.xml", changes(&[new]));

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c"], "changes are followed");
    assert!(packages.is_contradicted(&package), "no member of it may stand for a version that no digest vouches for");
    assert!(destination.refresh().await.is_err() && packages.is_contradicted(&package));

    server.put("/dump.xml", listed);
    destination.commit().await;
    assert!(!packages.is_contradicted(&package));
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/b.bin"));
}

#[tokio::test]
async fn a_copy_of_changes_is_applied_and_completed_by_the_manifest() {
    let server = source(&[("resourcelist", LIST), ("changedump", "/changes.xml")]).await;
    let list =
        urlset("capability=\"resourcelist\" at=\"2013-01-03T09:00:00Z\"", &[], &[url(server.uri("/a").as_str(), "")]);
    server.put(LIST, Answer::xml(list));
    let created = |path| format!("change=\"created\" datetime=\"2013-01-03T10:00:00Z\" path=\"/{path}.bin\"");
    let (b, c) = (created("b"), created("c"));
    let copied = manifest(&server, "changedump-manifest", &[("/b", &b)]);
    let held = manifest(&server, "changedump-manifest", &[("/b", &b), ("/c", &c)]);
    server.put("/1.zip", large_package(&held, &["b.bin", "c.bin"]));
    server.put("/1.xml", Answer::xml(copied));
    server.put("/changes.xml", dump(&server, "changedump", "/1.zip", "/1.xml"));
    let mut destination = destination(&server);

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert_eq!(sent(&server, "/1.zip"), 0);

    let packages = destination.synchronizer.fetch.packages.clone();
    packages.directory(&server.uri("/1.zip")).await.unwrap();
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c"]);
    assert_eq!(member_of(&destination, "c").as_deref(), Some("/c.bin"));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn packages_of_changes_are_read_together_and_applied_in_order() {
    let server = source(&[("resourcelist", LIST), ("changedump", "/changes.xml")]).await;
    let list =
        urlset("capability=\"resourcelist\" at=\"2013-01-03T09:00:00Z\"", &[], &[url(server.uri("/a").as_str(), "")]);
    server.put(LIST, Answer::xml(list));
    // None is answered before all are asked.
    let barrier = Arc::new(tokio::sync::Barrier::new(8));
    let mut listed = Vec::new();
    for number in 0..8 {
        let (path, member) = (format!("/{number}.zip"), format!("{number}.bin"));
        let change = if number % 2 == 0 { "updated" } else { "deleted" };
        let changed = match number {
            7 => format!("change=\"updated\" path=\"/{member}\""),
            _ => format!("change=\"{change}\" path=\"/{member}\""),
        };
        // Only the order of the packages says which of these is the last.
        let manifest = manifest(&server, "changedump-manifest", &[("/a", &changed)]);
        server.put(&path, package(&manifest, &[&member]).together(&barrier));
        let times = format!("from=\"2013-01-03T1{number}:00:00Z\" until=\"2013-01-03T1{}:00:00Z\"", number + 1);
        listed.push(url(server.uri(&path).as_str(), &times));
    }
    server.put(
        "/changes.xml",
        Answer::xml(urlset("capability=\"changedump\" from=\"2013-01-03T09:00:00Z\"", &[], &listed)),
    );
    let mut destination = destination(&server);

    let committing = destination.commit();
    tokio::time::timeout(std::time::Duration::from_secs(60), committing).await.expect("they are asked one by one");

    assert_eq!(destination.paths(), ["/a"]);
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/7.bin"));
}

/// A Source whose list has pages, and whose dump the packages of their files.
struct PagesSource {
    server: Loopback,
}

impl PagesSource {
    async fn of(pages: &[&str]) -> PagesSource {
        let server = source(&[("resourcelist", LIST), ("resourcedump", "/dump.xml")]).await;
        server.put(LIST, Answer::xml(list(&server, pages)));
        PagesSource { server }
    }

    /// Lists these packages, each with the time of its entry, and a dump of the time `at`, where that is stated.
    fn dump(&self, at: &str, packages: &[(u32, &str)]) {
        let entry = |(number, lastmod): &(u32, &str)| {
            let [package, copy] = ["zip", "xml"].map(|kind| self.server.uri(&format!("/{number}.{kind}")));
            format!(
                "<url><loc>{package}</loc><lastmod>{lastmod}</lastmod><rs:ln rel=\"contents\" href=\"{copy}\"/></url>"
            )
        };
        let entries: Vec<_> = packages.iter().map(entry).collect();
        self.server.put("/dump.xml", Answer::xml(urlset(&format!("capability=\"resourcedump\" {at}"), &[], &entries)));
    }

    /// A package of these files, and the copy of its manifest.
    fn package(&self, number: u32, files: &[&str]) {
        let held: Vec<_> = files.iter().map(|file| (*file, format!("path=\"{file}\""))).collect();
        let held: Vec<_> = held.iter().map(|(file, md)| (*file, md.as_str())).collect();
        let manifest = manifest(&self.server, "resourcedump-manifest", &held);
        self.server.put(&format!("/{number}.zip"), large_package(&manifest, files).etag(&number.to_string()));
        self.server.put(&format!("/{number}.xml"), Answer::xml(manifest));
    }

    /// The requests since the last call that name a package or a manifest.
    fn asked(&self) -> Vec<String> {
        let names = |path: &String| {
            path.ends_with(".zip") || path.trim_matches(['/', '.', 'x', 'm', 'l']).parse::<u32>().is_ok()
        };
        self.server.asked().into_iter().map(|asked| asked.path).filter(names).collect()
    }
}

const AT: &str = "at=\"2013-01-03T08:00:00Z\"";
const OLD: &str = "2013-01-01T00:00:00Z";
const NEW: &str = "2013-01-02T00:00:00Z";

/// Promise: never an accidental emptiness.
#[tokio::test]
async fn files_that_only_manifests_name_go_by_a_manifest_alone() {
    let pages = PagesSource::of(&["/p/1", "/p/2"]).await;
    pages.package(1, &["/f/1", "/f/1b"]);
    pages.package(2, &["/f/2"]);
    pages.dump(AT, &[(1, OLD), (2, OLD)]);
    let mut destination = destination(&pages.server);
    destination.commit().await;
    let all = ["/f/1", "/f/1b", "/f/2", "/p/1", "/p/2"];
    assert_eq!(destination.paths(), all);
    assert_eq!(member_of(&destination, "f/2").as_deref(), Some("/f/2"));
    pages.asked();
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!(pages.asked(), [""; 0], "nothing is asked for again");

    // Its entry is new, and for now it fails; then a page stands in its place.
    pages.dump(AT, &[(1, NEW), (2, OLD)]);
    ["/1.zip", "/1.xml"].iter().for_each(|path| pages.server.put(path, Answer::status(503)));
    let usual = std::mem::replace(&mut destination.synchronizer.tuning.packages.1, Duration::from_millis(200));
    let _ = destination.refresh().await;
    assert_eq!(destination.paths(), all, "it fails for now");
    destination.synchronizer.tuning.packages.1 = usual;
    destination.synchronizer.fetch.reading.shutdown().await;
    ["/1.zip", "/1.xml"].iter().for_each(|path| pages.server.put(path, Answer::new("text/html", *b"<html>home")));
    destination.refresh().await.unwrap();
    assert_eq!(destination.paths(), all, "it is a page");
    let missing = destination.synchronizer.status().borrow().missing.clone();
    assert!(missing.iter().any(|missing| missing.location.ends_with("/1.zip")), "{missing:?}");
    assert!(destination.synchronizer.status().borrow().held.is_none());
    pages.server.put("/dump.xml", Answer::status(404));
    pages.server.put(LIST, Answer::xml(list(&pages.server, &["/p/1", "/p/2", "/p/3"])));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/f/1", "/f/1b", "/f/2", "/p/1", "/p/2", "/p/3"], "the dump is gone for now");

    pages.package(1, &["/f/1"]);
    pages.dump(AT, &[(1, "2013-01-02T01:00:00Z"), (2, OLD)]);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/f/1", "/f/2", "/p/1", "/p/2", "/p/3"], "the manifest lacks one");
    assert!(destination.synchronizer.status().borrow().missing.is_empty());
    pages.dump(AT, &[(1, "2013-01-02T01:00:00Z")]);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/f/1", "/p/1", "/p/2", "/p/3"], "the package has left the dump");
}

#[tokio::test]
async fn lists_speak_for_what_exists_unless_a_dump_is_later() {
    let pages = PagesSource::of(&["/a", "/b"]).await;
    pages.package(1, &["/b", "/c"]);
    for (at, shown) in
        [(AT, &["/a", "/b"][..]), ("", &["/a", "/b"]), ("at=\"2013-01-03T10:00:00Z\"", &["/a", "/b", "/c"])]
    {
        pages.dump(at, &[(1, OLD)]);
        let mut destination = destination(&pages.server);
        destination.commit().await;

        assert_eq!(destination.paths(), shown, "{at}");
    }
}

#[tokio::test]
async fn many_manifests_are_read_behind_the_first_tree() {
    let pages = PagesSource::of(&["/p/1"]).await;
    let numbers: Vec<u32> = (1..=20).collect();
    numbers.iter().for_each(|number| pages.package(*number, &[&format!("/f/{number}")]));
    let mut entries: Vec<_> = numbers.iter().map(|number| (*number, OLD)).collect();
    pages.dump(AT, &entries);
    let mut destination = destination(&pages.server);
    destination.synchronizer.tuning.packages.0 = 3;
    let packages = destination.synchronizer.fetch.packages.clone();

    destination.commit().await;
    assert_eq!(destination.paths(), ["/p/1"], "the tree does not wait");
    packages.contradiction_found().await;
    destination.commit().await;

    assert_eq!(destination.paths().len(), 21);
    pages.asked();
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    let mut destination = destination.restarted(&pages.server);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!(pages.asked(), [""; 0], "nothing is asked for again");
    entries[7].1 = NEW;
    pages.dump(AT, &entries);
    let _ = destination.refresh().await.unwrap();
    assert!(pages.asked().iter().all(|path| path.starts_with("/8.")));
}

/// Promise: never an accidental emptiness.
#[tokio::test]
async fn a_list_that_names_one_file_takes_no_other_away() {
    let pages = PagesSource::of(&["/p/1"]).await;
    let files: Vec<_> = (10..30).map(|number| format!("/f/{number}")).collect();
    pages.package(1, &files.iter().map(String::as_str).collect::<Vec<_>>());
    pages.dump(AT, &[(1, OLD)]);
    let mut destination = destination(&pages.server);
    destination.commit().await;
    assert_eq!(destination.paths().len(), 21);

    pages.server.put(LIST, Answer::xml(list(&pages.server, &["/p/1", "/f/10"])));
    destination.refresh().await.unwrap();

    assert_eq!(destination.paths().len(), 21);
    assert_eq!(destination.synchronizer.status().borrow().held.as_ref().map(|held| held.files), Some(19));
}
