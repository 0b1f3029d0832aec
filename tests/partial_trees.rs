//! Sources of which a part is missing, is something else than a list, or cannot be understood: the tree is what there is, nothing
//! is deleted for its absence, and the program says what the tree lacks.

mod common;

use common::deadline::FAST;
use common::mounted::{Mounted, PROGRAM};
use common::set;
use common::source::{Fault, Resource, Source, URLSET};
use std::collections::BTreeSet;
use std::io::{Cursor, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};

const SUCCESS: i32 = 0;
const FAILURE: i32 = 1;
const UNREACHABLE: i32 = 3;
const NO_SOURCE: i32 = 4;
const CANNOT_TELL: i32 = 11;

const INDEX: &str = "<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">";

/// The files shown, by path below the mount.
fn files(mounted: &Mounted) -> BTreeSet<String> {
    common::tree(&mounted.path()).into_keys().map(|path| path.into_os_string().into_string().unwrap()).collect()
}

/// A list of these resources as they are named.
fn list(source: &Source, paths: &[&str]) -> String {
    let entry = |path: &&str| format!("<url><loc>{}{path}</loc></url>", source.url());
    format!("{URLSET}{}</urlset>", paths.iter().map(entry).collect::<String>())
}

/// An index of these lists.
fn index(source: &Source, lists: &[&str]) -> String {
    let entry = |path: &&str| format!("<sitemap><loc>{}{path}</loc></sitemap>", source.url());
    format!("{INDEX}{}</sitemapindex>", lists.iter().map(entry).collect::<String>())
}

/// A document of this capability that offers others.
fn offers(source: &Source, capability: &str, of: &str, paths: &[&str]) -> String {
    let entry = |path: &&str| format!("<url><loc>{}{path}</loc><rs:md capability=\"{of}\"/></url>", source.url());
    let entries: String = paths.iter().map(entry).collect();
    format!("{URLSET}<rs:md capability=\"{capability}\"/>{entries}</urlset>")
}

/// A Source with the files `a` to `d` that says nowhere by itself what it lists.
fn source() -> Source {
    let source = Source::start();
    ["a", "b", "c", "d"].iter().for_each(|name| source.put(name, Resource::bare(*name)));
    source
}

/// What the program says and how it ends.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    outcome(Command::new(PROGRAM).args(arguments).output().unwrap())
}

/// Mounts in the background, as from a terminal.
fn mount(mounted: &Mounted) -> (Option<i32>, String) {
    outcome(mounted.command("-v").output().unwrap())
}

fn outcome(output: Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.code(), text.into_owned())
}

/// Checks that every description of a tree names a missing part.
fn is_reported_everywhere(mounted: &Mounted, address: &str, part: &str) {
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();
    let holds = |(code, text): (Option<i32>, String), expected: i32, what: &str| {
        assert_eq!((code, text.contains(part)), (Some(expected), true), "{what}: {text}");
    };
    holds(run(&["status", directory]), SUCCESS, "status");
    holds(run(&["status", "--json", directory]), SUCCESS, "status --json");
    holds(run(&["audit", directory]), CANNOT_TELL, "audit of the mount");
    holds(run(&["audit", address]), CANNOT_TELL, "audit of the Source");
    holds(run(&["explore", address]), SUCCESS, "explore");
    holds(run(&["explore", "--json", address]), SUCCESS, "explore --json");
    assert!(log(mounted.cache()).contains(part), "the log");
}

/// The log of the mount with this cache folder.
fn log(folder: &Path) -> String {
    let mounts = std::fs::read_dir(folder.join("mounts")).unwrap();
    mounts.map(|mount| std::fs::read_to_string(mount.unwrap().path().join("log")).unwrap_or_default()).collect()
}

/// Promise: one bad thing never takes the rest away.
#[test]
fn an_offered_list_that_is_none_is_passed_over_and_told() {
    let source = source();
    let other = Resource {
        media_type: "application/xml".into(),
        ..Resource::bare("<OAI-PMH xmlns=\"http://www.openarchives.org/OAI/2.0/\"><Identify/></OAI-PMH>")
    };
    source.page("oai.xml", other);
    source.document("list.xml", list(&source, &["a"]).replace("<url>", &up(&source, "caps.xml")));
    source.document("caps.xml", offers(&source, "capabilitylist", "resourcelist", &["list.xml", "oai.xml"]));
    source.document(".well-known/resourcesync", offers(&source, "description", "capabilitylist", &["caps.xml"]));

    for address in [source.url(), format!("{}caps.xml", source.url()), format!("{}list.xml", source.url())] {
        let mounted = Mounted::prepared(&address, FAST);
        let (code, said) = mount(&mounted);

        assert_eq!((code, said.contains("oai.xml")), (Some(SUCCESS), true), "{address}: {said}");
        assert_eq!(files(&mounted), set(&["a"]), "{address}");
        is_reported_everywhere(&mounted, &address, "oai.xml");
    }
}

/// The link to the Capability List that the standard asks for, before the first entry.
fn up(source: &Source, path: &str) -> String {
    format!("<rs:ln rel=\"up\" href=\"{}{path}\"/><rs:md capability=\"resourcelist\"/><url>", source.url())
}

/// Promise: the first mount and a later refresh follow one rule.
#[test]
fn an_index_with_a_dead_child_is_followed_without_it() {
    let page = "<!DOCTYPE html><html><body>not here</body></html>";
    let dead =
        [("404", 404, ""), ("410", 410, ""), ("a page", 200, page), ("a ZIP", 200, "PK\x03\x04"), ("nothing", 200, "")];
    for (what, status, body) in dead {
        let source = source();
        let address = format!("{}sitemap.xml", source.url());
        source.document("sitemap.xml", index(&source, &["one.xml", "two.xml"]));
        source.document("one.xml", list(&source, &["a"]));
        let end = || match status {
            200 => source.document("two.xml", body),
            status => source.fault("two.xml", Fault::Status(status, String::new()), u64::MAX),
        };
        end();

        let first = Mounted::prepared(&address, FAST);
        let (code, said) = mount(&first);

        assert_eq!((code, said.contains("two.xml")), (Some(SUCCESS), true), "{what}: {said}");
        assert_eq!(files(&first), set(&["a"]), "{what}");
        is_reported_everywhere(&first, &address, "two.xml");

        source.mend();
        source.document("two.xml", list(&source, &["c", "d"]));
        first.try_refresh().unwrap();
        assert_eq!(files(&first), set(&["a", "c", "d"]), "{what}, once it is there");
        assert!(!run(&["status", first.path().to_str().unwrap()]).1.contains("Missing"), "{what}");

        end();
        source.document("one.xml", list(&source, &["a", "b"]));
        first.try_refresh().unwrap();
        assert_eq!(files(&first), set(&["a", "b", "c", "d"]), "{what}, later");
        is_reported_everywhere(&first, &address, "two.xml");
    }
}

/// Promise: never an accidental emptiness. If nothing is left, nothing is mounted.
#[test]
fn an_index_of_dead_children_is_no_empty_tree() {
    let source = source();
    source.document("sitemap.xml", index(&source, &["one.xml", "two.xml"]));
    for path in ["one.xml", "two.xml"] {
        source.fault(path, Fault::Status(404, String::new()), u64::MAX);
    }

    let (code, said) = mount(&Mounted::prepared(&format!("{}sitemap.xml", source.url()), FAST));

    assert_eq!((code, said.contains("one.xml")), (Some(NO_SOURCE), true), "{said}");
}

#[test]
fn a_sitemap_line_that_leads_nowhere_is_told() {
    let source = source();
    source.fault(".well-known/resourcesync", Fault::Status(404, String::new()), u64::MAX);
    source.fault("", Fault::Status(404, String::new()), u64::MAX);
    let lines = format!("Sitemap: {0}one.xml\nSitemap: {0}dead.xml\n", source.url());
    source.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(lines) });
    source.document("one.xml", list(&source, &["a"]));
    source.fault("dead.xml", Fault::Status(404, String::new()), u64::MAX);
    let mounted = Mounted::prepared(&source.url(), FAST);

    let (code, said) = mount(&mounted);

    assert_eq!((code, said.contains("dead.xml")), (Some(SUCCESS), true), "{said}");
    is_reported_everywhere(&mounted, &source.url(), "dead.xml");
    let (_, said) = run(&["unmount", mounted.path().to_str().unwrap()]);
    let (_, again) = mount(&mounted);
    assert!(again.contains("dead.xml"), "reported with each mount: {said} {again}");
}

/// A Source Description of two sets of a list each.
fn two_sets() -> Source {
    let source = source();
    source.document(
        ".well-known/resourcesync",
        offers(&source, "description", "capabilitylist", &["one/caps.xml", "two/caps.xml"]),
    );
    for (name, files) in [("one", ["a", "b"]), ("two", ["c", "d"])] {
        let caps = offers(&source, "capabilitylist", "resourcelist", &[&format!("{name}/list.xml")]);
        source.document(&format!("{name}/caps.xml"), caps);
        source.document(&format!("{name}/list.xml"), list(&source, &files));
    }
    source
}

#[test]
fn of_several_sets_one_whose_list_is_gone_is_borne() {
    let source = two_sets();
    source.fault("two/list.xml", Fault::Status(410, String::new()), u64::MAX);
    let mounted = Mounted::prepared(&source.url(), FAST);

    let (code, said) = mount(&mounted);

    assert_eq!((code, said.contains("two/list.xml")), (Some(SUCCESS), true), "{said}");
    assert_eq!(files(&mounted), set(&["a", "b"]));
    is_reported_everywhere(&mounted, &source.url(), "two/list.xml");
    source.mend();
    mounted.try_refresh().unwrap();
    assert_eq!(files(&mounted), set(&["a", "b", "c", "d"]));
    source.fault("two/list.xml", Fault::Status(404, String::new()), u64::MAX);
    source.document("one/list.xml", list(&source, &["a"]));
    mounted.try_refresh().unwrap();
    assert_eq!(files(&mounted), set(&["a", "c", "d"]), "the set that is gone keeps its files, the other is followed");
}

/// Promise: a tree is shown whole or not at all, and the program says what helps.
#[test]
fn what_fails_for_now_fails_a_first_mount_and_is_named() {
    let helps = |source: &Source, fails: &str, named_by: &str, expected: i32| {
        let (code, said) = mount(&Mounted::prepared(&source.url(), FAST));
        let set = format!("-o set={}one/caps.xml", source.url());
        let named = [format!("{}{fails}", source.url()), format!("{}{named_by}", source.url()), set.clone()];
        assert!(code == Some(expected) && named.iter().all(|it| said.contains(it)), "{code:?}: {said}");
        let alone = Mounted::new(&source.url(), &format!("{FAST},{}", &set[3..]));
        assert_eq!(files(&alone), self::set(&["a", "b"]));
    };
    let source = two_sets();
    source.fault("two/list.xml", Fault::Status(403, String::new()), u64::MAX);
    helps(&source, "two/list.xml", "two/caps.xml", NO_SOURCE);
    source.mend();
    source.document("two/list.xml", index(&source, &["two/part.xml"]));
    source.document("two/part.xml", format!("{URLSET}<url><loc>"));
    helps(&source, "two/part.xml", "two/list.xml", NO_SOURCE);
    let source = two_sets();
    source.fault("two/caps.xml", Fault::Status(503, String::new()), u64::MAX);
    helps(&source, "two/caps.xml", ".well-known/resourcesync", UNREACHABLE);
}

/// Promise: never an accidental emptiness. What is absent may only be hidden.
#[test]
fn while_entries_are_not_understood_no_absence_deletes() {
    let source = source();
    let published = |entries: &[String]| {
        let base = source.url();
        let entries: String = entries.iter().map(|entry| entry.replace("AT/", &base)).collect();
        source.document("sitemap.xml", format!("{URLSET}{entries}</urlset>"));
    };
    let good = |name: &str| format!("<url><loc>AT/{name}</loc></url>");
    let bad = |name: &str| format!("<url><location>AT/{name}</location></url>");
    published(&["a", "b", "c", "d"].map(good));
    let mounted = Mounted::new(&format!("{}sitemap.xml", source.url()), FAST);
    let directory = mounted.path();
    let status = || run(&["status", directory.to_str().unwrap()]).1;

    published(&[good("a"), bad("b"), "<url><loc>&base;c</loc></url>".to_owned(), good("d"), good("e")]);
    mounted.try_refresh().unwrap();
    assert_eq!(names(&mounted), set(&["a", "b", "c", "d", "e"]), "what is new is applied");
    assert!(status().contains("2 of its 5 entries cannot be understood"), "{}", status());

    let (code, text) = run(&["audit", directory.to_str().unwrap()]);
    assert_eq!((code, text.contains("understood")), (Some(CANNOT_TELL), true), "{text}");

    published(&[good("a"), good("b"), bad("c"), bad("d"), good("e")]);
    mounted.try_refresh().unwrap();
    assert_eq!(names(&mounted), set(&["a", "b", "c", "d", "e"]), "as many as before, but others");
    published(&[good("a"), good("b"), bad("c"), good("e")]);
    mounted.try_refresh().unwrap();
    assert_eq!(names(&mounted), set(&["a", "b", "c", "d", "e"]), "fewer than before");

    published(&["a", "b", "c", "e"].map(good));
    mounted.try_refresh().unwrap();
    assert_eq!(names(&mounted), set(&["a", "b", "c", "e"]), "all of it is understood");
    assert!(!status().contains("understood"), "{}", status());
}

/// The names at the top of the tree; not every file is served.
fn names(mounted: &Mounted) -> BTreeSet<String> {
    let names = std::fs::read_dir(mounted.path()).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Promise: a list of which nothing can be understood has failed, at a first mount and later.
#[test]
fn a_list_of_which_nothing_is_understood_has_failed() {
    let source = source();
    let address = format!("{}sitemap.xml", source.url());
    let nothing = [
        format!("{URLSET}<url><loc>&base;a.txt</loc></url></urlset>"),
        format!("{URLSET}<url><loc>mailto:a@example.org</loc></url><url><loc>ftp://example.org/x</loc></url></urlset>"),
        format!("{URLSET}<url><location>{}a</location></url></urlset>", source.url()),
    ];
    for list in &nothing {
        source.document("sitemap.xml", list.clone());
        let (code, said) = mount(&Mounted::prepared(&address, FAST));
        assert_eq!(code, Some(NO_SOURCE), "{said}");
        assert!(said.contains("be understood") && said.contains("sitemap.xml"), "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let on_disk = folder.path().join("list.xml");
    std::fs::write(&on_disk, format!("{URLSET}<url><loc>a.txt</loc></url></urlset>")).unwrap();
    let (code, said) = mount(&Mounted::prepared(on_disk.to_str().unwrap(), ""));
    assert_eq!((code, said.contains("a.txt")), (Some(NO_SOURCE), true), "{said}");

    source.document("sitemap.xml", list(&source, &["a", "b"]));
    let mounted = Mounted::new(&address, FAST);
    for list in nothing {
        source.document("sitemap.xml", list);
        assert!(mounted.try_refresh().unwrap_err().contains("be understood"));
        assert_eq!(names(&mounted), set(&["a", "b"]));
    }
    source.document("sitemap.xml", index(&source, &["one.xml", "two.xml"]));
    source.document("one.xml", list(&source, &["a", "b", "c"]));
    source.document("two.xml", format!("{URLSET}<url><loc>&base;a.txt</loc></url></urlset>"));
    mounted.try_refresh().unwrap();
    assert_eq!(names(&mounted), set(&["a", "b", "c"]), "one of two");
    is_reported_everywhere_but_the_log(&mounted, &address);
}

fn is_reported_everywhere_but_the_log(mounted: &Mounted, address: &str) {
    for (arguments, expected) in [
        (vec!["status", mounted.path().to_str().unwrap()], SUCCESS),
        (vec!["audit", mounted.path().to_str().unwrap()], CANNOT_TELL),
        (vec!["explore", address], SUCCESS),
    ] {
        let (code, text) = run(&arguments);
        assert_eq!(
            (code, text.contains("two.xml: its only entry cannot be understood")),
            (Some(expected), true),
            "{text}"
        );
    }
}

#[test]
fn a_tree_of_nothing_is_told_with_its_mount() {
    let source = source();
    source.document("sitemap.xml", list(&source, &[]));
    let mounted = Mounted::prepared(&format!("{}sitemap.xml", source.url()), FAST);

    let (code, said) = mount(&mounted);

    assert_eq!((code, said.contains("the tree is empty")), (Some(SUCCESS), true), "{said}");
}

/// A package with a manifest of these files and their bytes.
fn package(source: &Source, names: &[&str]) -> Resource {
    let entry = |name: &&str| {
        let length = name.len();
        format!("<url><loc>{}{name}</loc><rs:md path=\"/{name}\" length=\"{length}\"/></url>", source.url())
    };
    let entries: String = names.iter().map(entry).collect();
    let manifest = format!("{URLSET}<rs:md capability=\"resourcedump-manifest\"/>{entries}</urlset>");
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("manifest.xml", &*manifest)].into_iter().chain(names.iter().map(|name| (*name, *name))) {
        zip.start_file(name, stored).unwrap();
        zip.write_all(bytes.as_bytes()).unwrap();
    }
    Resource { media_type: "application/zip".into(), ..Resource::bare(zip.finish().unwrap().into_inner()) }
}

/// Every command works on a Source of dumps alone as a mount does.
#[test]
fn a_source_of_dumps_alone_is_explored_audited_and_asked() {
    let source = Source::start();
    let address = format!("{}dump.xml", source.url());
    source.page("1.zip", package(&source, &["a", "b"]));
    source.page("2.zip", package(&source, &["c"]));
    let dump = list(&source, &["1.zip", "2.zip"]);
    let md = "<rs:md capability=\"resourcedump\" at=\"2024-01-02T00:00:00Z\"/><url>";
    source.document("dump.xml", dump.replacen("<url>", md, 1));
    let mounted = Mounted::prepared(&address, FAST);
    assert_eq!(mount(&mounted), (Some(SUCCESS), String::new()));
    let directory = mounted.path();
    let directory = directory.to_str().unwrap();

    for (arguments, said) in [
        (&["audit", directory][..], "names, sizes and times of 3 files agree"),
        (&["audit", &address], "the Source's lists have 3 files"),
        (&["audit", "--fetch", directory], "3 of 3 files are in sync"),
        (&["audit", "--fetch", &address], "3 of 3 files are in sync"),
    ] {
        let (code, text) = run(arguments);
        assert_eq!((code, text.contains(said)), (Some(SUCCESS), true), "{arguments:?}: {text}");
    }
    let (code, text) = run(&["explore", &address]);
    assert_eq!((code, text.contains("3 in 2 packages")), (Some(SUCCESS), true), "{text}");
    let (_, text) = run(&["path", "--ask", "--in", directory, &format!("{}nowhere", source.url())]);
    assert!(text.contains("the Source does not list it"), "{text}");

    source.fault("2.zip", Fault::Status(404, String::new()), u64::MAX);
    let dead = Mounted::prepared(&address, FAST);
    let (code, said) = mount(&dead);
    assert_eq!((code, said.contains("2.zip")), (Some(SUCCESS), true), "{said}");
    assert_eq!(files(&dead), set(&["a", "b"]));
    is_reported_everywhere(&dead, &address, "2.zip");
    source.fault("1.zip", Fault::Status(404, String::new()), u64::MAX);
    let (code, said) = mount(&Mounted::prepared(&address, FAST));
    assert_eq!((code, said.contains("1.zip")), (Some(NO_SOURCE), true), "{said}");
}

/// Makes `source` list three pages, and a dump whose packages hold their files: made at each request, without validators and ranges. The
/// third is a page. `times` are those of the packages' entries; the manifests say that their files are of the time `now`.
fn repository(source: &Source, times: [&str; 3], now: &str) {
    let base = source.url();
    source.document("capabilitylist.xml", {
        let offer = |capability: &str, path: &str| {
            format!("<url><loc>{base}{path}</loc><rs:md capability=\"{capability}\"/></url>")
        };
        let offered = [offer("resourcelist", "resourcelist.xml"), offer("resourcedump", "dump.xml")].concat();
        format!("{URLSET}<rs:md capability=\"capabilitylist\"/>{offered}</urlset>")
    });
    let mut dump = format!("{URLSET}<rs:md capability=\"resourcedump\" at=\"{now}\"/>");
    for (number, lastmod) in (1..).zip(times) {
        let fresh = |resource: Resource, kind: &str| Resource { etag: None, media_type: kind.into(), ..resource };
        let paper = Resource::new(format!("paper {number}"));
        let manifest = format!(
            "{URLSET}<rs:md capability=\"resourcedump-manifest\"/><url><loc>{base}files/{number}/paper {number}.txt</loc>\
             <lastmod>{now}</lastmod><rs:md {} path=\"/recid/paper.txt\"/></url></urlset>",
            paper.md
        );
        let packed = zip(&[("manifest.xml", &manifest), ("recid/paper.txt", &format!("paper {number}"))]);
        let package = match number {
            3 => fresh(Resource::bare("<html>home</html>"), "text/html"),
            _ => fresh(packed, "application/zip"),
        };
        source.page(&format!("{number}.zip"), package);
        source.fault(&format!("{number}.zip"), Fault::NoRanges, u64::MAX);
        source.page(&format!("{number}.xml"), fresh(Resource::bare(manifest), "application/xml"));
        dump.push_str(&format!(
            "<url><loc>{base}{number}.zip</loc><lastmod>{lastmod}</lastmod><rs:ln rel=\"contents\" href=\"{base}{number}.xml\"/></url>"
        ));
        // The second paper is in its package alone.
        if number != 2 {
            source.page(&format!("files/{number}/paper%20{number}.txt"), fresh(paper, "text/plain"));
        }
    }
    source.document("dump.xml", dump + "</urlset>");
}

/// Lists name the pages, and only the manifests of packages the papers on them.
#[test]
fn files_that_only_manifests_name_are_shown_and_read() {
    let source = Source::start();
    (1..=3).for_each(|number| source.put(&format!("records/{number}"), Resource::bare(format!("page {number}"))));
    let [old, new] = ["2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"];
    repository(&source, [old; 3], "2024-02-01T00:00:00Z");
    let asked = || {
        let is_asked = |path: &str| path.ends_with(".zip") || ["/1.xml", "/2.xml", "/3.xml"].contains(&path);
        source.take_log().into_iter().filter(|it| is_asked(&it.path)).map(|it| it.path).collect::<Vec<_>>()
    };
    let mounted = Mounted::new(&source.url(), FAST);
    let right = set(&["records/1", "records/2", "records/3", "files/1/paper 1.txt", "files/2/paper 2.txt"]);

    assert_eq!(files(&mounted), right);
    let read =
        |number: u32| std::fs::read_to_string(mounted.join(&format!("files/{number}/paper {number}.txt"))).unwrap();
    assert_eq!((read(1), read(2)), ("paper 1".to_owned(), "paper 2".to_owned()));
    let second = Mounted::prepared(&source.url(), FAST);
    let (code, text) = mount(&second);
    assert_eq!((code, text.contains("3.zip is not a ZIP file, it is an HTML")), (Some(SUCCESS), true), "{text}");
    is_reported_everywhere(&second, &source.url(), "3.zip");
    let (_, text) = run(&["explore", &source.url()]);
    assert!(text.contains("2 files that no list has"), "{text}");

    // Only the times of the request are others: no manifest is requested, and no file is another version.
    let shown = || std::fs::metadata(mounted.join("files/1/paper 1.txt")).unwrap().ino();
    let (inode, _) = (shown(), asked());
    repository(&source, [old; 3], "2024-02-02T00:00:00Z");
    mounted.try_refresh().unwrap();
    mounted.remount();
    mounted.try_refresh().unwrap();
    assert_eq!((asked(), files(&mounted)), (Vec::new(), right.clone()));
    let before = shown();
    repository(&source, [new, old, old], "2024-02-03T00:00:00Z");
    mounted.try_refresh().unwrap();
    assert_eq!(asked(), ["/1.zip", "/1.xml"], "the state of one entry has changed");
    assert_eq!((shown(), inode), (before, before), "the digest is the same");
}

/// A document that is called a Change List, but lists packages, is not a list of files.
#[test]
fn packages_in_a_change_list_are_not_files() {
    for md in ["<rs:md capability=\"changelist\" from=\"2024-01-02T00:00:00Z\"/><url>", "<url>"] {
        let source = source();
        source.document("changes.xml", list(&source, &["1.zip", "2.zip"]).replacen("<url>", md, 1));
        source.document("list.xml", list(&source, &["a"]));
        let caps = offers(&source, "capabilitylist", "resourcelist", &["list.xml"]);
        let changes =
            format!("<url><loc>{}changes.xml</loc><rs:md capability=\"changelist\"/></url></urlset>", source.url());
        source.document("caps.xml", caps.replace("</urlset>", &changes));
        let mounted = Mounted::new(&format!("{}caps.xml", source.url()), FAST);
        assert_eq!(names(&mounted), set(&["a"]));

        mounted.try_refresh().unwrap();

        assert_eq!(names(&mounted), set(&["a"]));
    }
}

/// DSpace names its sitemap for people beside the one for programs.
#[test]
fn a_web_page_in_robots_txt_is_no_missing_part() {
    let source = source();
    for path in [".well-known/resourcesync", ""] {
        source.fault(path, Fault::Status(404, String::new()), u64::MAX);
    }
    let lines = ["index.html", "htmlmap", "one.xml"].map(|path| format!("Sitemap: {}{path}\n", source.url())).concat();
    source.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(lines) });
    source.document("one.xml", list(&source, &["a", "b"]));
    for path in ["index.html", "htmlmap", "two.xml"] {
        source.page(path, Resource { media_type: "text/html".into(), ..Resource::bare("<html>") });
    }
    let mounted = Mounted::prepared(&source.url(), FAST);

    assert_eq!(mount(&mounted), (Some(SUCCESS), String::new()));

    let (code, text) = run(&["audit", mounted.path().to_str().unwrap()]);
    assert_eq!(code, Some(SUCCESS), "{text}");
    let (_, text) = run(&["explore", &source.url()]);
    assert!(text.contains("web pages that robots.txt names as sitemaps: 2") && text.contains("htmlmap"), "{text}");
    assert!(!text.contains("Missing") && log(mounted.cache()).contains("index.html"), "{text}");

    let lines = format!("Sitemap: {0}one.xml\nSitemap: {0}two.xml\n", source.url());
    source.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(lines) });
    let (code, text) = run(&["audit", &source.url()]);
    assert_eq!((code, text.contains("two.xml")), (Some(CANNOT_TELL), true), "it may have been a list: {text}");
}

/// Neither a failing sitemap nor a dead set matters to a mount of another one.
#[test]
fn what_set_did_not_choose_is_never_missing() {
    let source = two_sets();
    source.fault("two/caps.xml", Fault::Status(404, String::new()), u64::MAX);
    let of_description = format!("set={}one/caps.xml", source.url());
    let robots = self::source();
    for path in [".well-known/resourcesync", ""] {
        robots.fault(path, Fault::Status(404, String::new()), u64::MAX);
    }
    let lines = ["one.xml", "dead.xml", "busy.xml"].map(|path| format!("Sitemap: {}{path}\n", robots.url())).concat();
    robots.page("robots.txt", Resource { media_type: "text/plain".into(), ..Resource::bare(lines) });
    robots.document("one.xml", list(&robots, &["a", "b"]));
    robots.fault("dead.xml", Fault::Status(404, String::new()), u64::MAX);
    robots.fault("busy.xml", Fault::Status(503, String::new()), u64::MAX);
    let of_robots = format!("set={}one.xml", robots.url());

    for (source, option) in [(&source, of_description), (&robots, of_robots)] {
        let mounted = Mounted::prepared(&source.url(), &format!("{FAST},{option}"));
        assert_eq!(mount(&mounted), (Some(SUCCESS), String::new()));
        assert_eq!(files(&mounted), set(&["a", "b"]));
        let (code, text) = run(&["audit", mounted.path().to_str().unwrap()]);
        assert_eq!(code, Some(SUCCESS), "{text}");
        let (_, text) = run(&["status", mounted.path().to_str().unwrap()]);
        assert!(!text.contains("Missing") && !text.contains("dead.xml"), "{text}");
        let (code, text) = run(&["explore", "-o", &option, &source.url()]);
        assert_eq!((code, text.contains("Missing")), (Some(SUCCESS), false), "{text}");
    }
}

/// An audit cannot judge what a mount says is missing, however many files there are.
#[test]
fn an_audit_names_entries_that_are_not_understood() {
    let source = source();
    let bad = "<url><location>x</location></url></urlset>";
    source.document("sitemap.xml", list(&source, &["a", "b"]).replace("</urlset>", bad));
    let address = format!("{}sitemap.xml", source.url());
    let mounted = Mounted::prepared(&address, FAST);
    let why = "1 of its 3 entries cannot be understood";

    let (code, said) = mount(&mounted);

    assert_eq!((code, said.contains(why)), (Some(SUCCESS), true), "{said}");
    for tree in [mounted.path().to_str().unwrap(), &address] {
        let (code, text) = run(&["audit", tree]);
        assert_eq!((code, text.contains(why)), (Some(CANNOT_TELL), true), "{text}");
        assert!(text.contains(" 2 files"), "{text}");
    }
}

/// A Source whose Capability List offers `list.xml` of January and this other document.
fn with_changes(capability: &str, changes: &str) -> Source {
    let source = source();
    let of_list = "<rs:md capability=\"resourcelist\" at=\"2024-01-01T00:00:00Z\"/><url>";
    source.document("list.xml", list(&source, &["a", "b"]).replacen("<url>", of_list, 1));
    let caps = offers(&source, "capabilitylist", "resourcelist", &["list.xml"]);
    let entry =
        format!("<url><loc>{}changes.xml</loc><rs:md capability=\"{capability}\"/></url></urlset>", source.url());
    source.document("caps.xml", caps.replace("</urlset>", &entry));
    source.document("changes.xml", changes.replace("AT/", &source.url()));
    source
}

/// As py-resourcesync writes a Change Dump: its entries are the changes, and there are no packages.
#[test]
fn the_changes_of_a_change_dump_without_packages_count() {
    let change = |path: &str, change: &str| {
        let md = format!("<rs:md change=\"{change}\" datetime=\"2024-01-02T00:00:00Z\"/>");
        format!("<url><loc>AT/{path}</loc>{md}</url>")
    };
    let changes = |kind: &str| {
        let md = format!("<rs:md capability=\"{kind}\" from=\"2024-01-01T00:00:00Z\"/>");
        format!("{URLSET}{md}{}{}</urlset>", change("c", "created"), change("b", "deleted"))
    };
    for capability in ["changedump", "changelist"] {
        let source = with_changes(capability, &changes("changedump"));
        let address = format!("{}caps.xml", source.url());
        let mounted = Mounted::prepared(&address, FAST);

        assert_eq!(mount(&mounted), (Some(SUCCESS), String::new()));

        assert_eq!(files(&mounted), set(&["a", "c"]), "{capability}");
        mounted.try_refresh().unwrap();
        assert_eq!(files(&mounted), set(&["a", "c"]), "{capability}");
        let (code, text) = run(&["audit", mounted.path().to_str().unwrap()]);
        assert_eq!(code, Some(SUCCESS), "{text}");
        let (_, text) = run(&["status", mounted.path().to_str().unwrap()]);
        assert!(!text.contains("GAP"), "{text}");
    }
}

/// While changes may be missing, every description of the tree says so, with the time since when.
#[test]
fn a_gap_is_told_with_its_time_wherever_the_tree_is() {
    let late = format!("{URLSET}<rs:md capability=\"changelist\" from=\"2024-02-01T00:00:00Z\"/></urlset>");
    let lost = format!(
        "{URLSET}<rs:md capability=\"changedump\" from=\"2024-01-01T00:00:00Z\"/><url><loc>AT/dead.zip</loc></url></urlset>"
    );
    for (capability, changes) in [("changelist", late), ("changedump", lost)] {
        let source = with_changes(capability, &changes);
        source.fault("dead.zip", Fault::Status(404, String::new()), u64::MAX);
        let address = format!("{}caps.xml", source.url());
        let mounted = Mounted::prepared(&address, FAST);

        let (code, said) = mount(&mounted);

        assert_eq!((code, said.contains("changes since 2024-01-01")), (Some(SUCCESS), true), "{said}");
        let directory = mounted.path();
        for (arguments, expected) in [
            (["status", directory.to_str().unwrap()], SUCCESS),
            (["audit", directory.to_str().unwrap()], CANNOT_TELL),
            (["audit", &address], CANNOT_TELL),
            (["explore", &address], SUCCESS),
        ] {
            let (code, text) = run(&arguments);
            assert_eq!(
                (code, text.contains("hanges since 2024-01-01")),
                (Some(expected), true),
                "{arguments:?}: {text}"
            );
        }
    }
}

/// A ZIP of these members.
fn zip(members: &[(&str, &str)]) -> Resource {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes.as_bytes()).unwrap();
    }
    Resource { media_type: "application/zip".into(), ..Resource::bare(zip.finish().unwrap().into_inner()) }
}

/// A Resource Dump, at `dump.xml`, of the package `1.zip`; the copy of its manifest lists these files.
fn dump_of(source: &Source, package: Resource, copied: &[&str]) -> String {
    source.page("1.zip", package);
    let md = "<rs:md capability=\"resourcedump\" at=\"2024-01-02T00:00:00Z\"/><url>";
    let copy = format!("<rs:ln rel=\"contents\" href=\"{}copy.xml\"/></url>", source.url());
    source.document("dump.xml", list(source, &["1.zip"]).replacen("<url>", md, 1).replace("</url>", &copy));
    let entry = |name: &&str| format!("<url><loc>{}x/{name}</loc><rs:md path=\"/{name}\"/></url>", source.url());
    let entries: String = copied.iter().map(entry).collect();
    source.document("copy.xml", format!("{URLSET}<rs:md capability=\"resourcedump-manifest\"/>{entries}</urlset>"));
    format!("{}dump.xml", source.url())
}

#[test]
fn a_package_without_manifest_is_what_its_copy_says() {
    let source = Source::start();
    let address = dump_of(&source, zip(&[("a", "alpha"), ("b", "beta")]), &["a", "b"]);
    let mounted = Mounted::prepared(&address, FAST);

    assert_eq!(mount(&mounted), (Some(SUCCESS), String::new()));

    for _ in 0..2 {
        let read = |name: &str| std::fs::read_to_string(mounted.join(name)).unwrap();
        assert_eq!((read("x/a"), read("x/b")), ("alpha".to_owned(), "beta".to_owned()));
        mounted.try_refresh().unwrap();
    }
    let (code, text) = run(&["audit", mounted.path().to_str().unwrap()]);
    assert_eq!((code, text.contains("of 2 files agree")), (Some(SUCCESS), true), "{text}");
    let (code, text) = run(&["explore", &address]);
    assert_eq!((code, text.contains("2 in 1 package")), (Some(SUCCESS), true), "{text}");
}

/// Promise: explore ends as a mount would.
#[test]
fn explore_ends_as_a_mount_would() {
    let source = Source::start();
    let tar = Resource { media_type: "application/x-tar".into(), ..Resource::bare("no ZIP at all") };
    let of_tar = dump_of(&source, tar, &["a"]);
    source.document("nothing.xml", format!("{URLSET}<url><loc>&base;a</loc></url></urlset>"));
    source.document("empty.xml", format!("{URLSET}</urlset>"));

    for (address, expected) in [
        (of_tar, NO_SOURCE),
        (format!("{}nothing.xml", source.url()), NO_SOURCE),
        (format!("{}empty.xml", source.url()), SUCCESS),
    ] {
        let (mounted, said) = mount(&Mounted::prepared(&address, FAST));
        let (explored, text) = run(&["explore", &address]);
        assert_eq!((mounted, explored), (Some(expected), Some(expected)), "{said} {text}");
        assert_eq!(text.contains("a mount would be refused"), expected != SUCCESS, "{text}");
        assert!(!said.contains("their own addresses"), "{said}");
    }
}

/// The answer of its own address does not hide what is wrong with a member.
#[test]
fn a_member_that_cannot_be_read_has_its_cause_in_status() {
    let source = Source::start();
    let manifest = format!(
        "{URLSET}<rs:md capability=\"resourcedump-manifest\"/><url><loc>{}x/a</loc><rs:md path=\"/other\"/></url></urlset>",
        source.url()
    );
    let address = dump_of(&source, zip(&[("manifest.xml", &manifest), ("a", "alpha")]), &[]);
    let mounted = Mounted::new(&address, FAST);

    assert!(std::fs::read(mounted.join("x/a")).is_err());

    let (_, text) = run(&["status", mounted.path().to_str().unwrap()]);
    assert!(text.contains("1.zip has no member \"/other\""), "{text}");
}

/// A refresh says which document failed and ends with its code, whatever else was new.
#[test]
fn a_refresh_in_which_a_document_failed_says_which() {
    let source = Source::start();
    let base = source.url();
    let named = ["resourcelist", "changelist"]
        .map(|list| format!("<url><loc>{base}{list}.xml</loc><rs:md capability=\"{list}\"/></url>"));
    let md = "<rs:md capability=\"capabilitylist\"/>";
    source.document("capabilitylist.xml", format!("{URLSET}{md}{}</urlset>", named.concat()));
    source.document("changelist.xml", format!("{URLSET}<rs:md capability=\"changelist\"/></urlset>"));
    source.put("a", Resource::bare("a"));
    let mounted = Mounted::new(&base, FAST);
    let directory = mounted.path();
    let refresh = || run(&["refresh", directory.to_str().unwrap()]);
    assert_eq!(refresh().0, Some(SUCCESS));

    let cut = || Fault::StallHead(std::time::Duration::ZERO);
    let faults = [(cut(), UNREACHABLE), (Fault::Status(403, String::new()), FAILURE)];
    for (number, (fault, code)) in faults.into_iter().enumerate() {
        source.fault("changelist.xml", fault, u64::MAX);
        source.put(&format!("new-{number}"), Resource::bare("new"));

        let (ended, said) = refresh();

        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains("1 file new") && said.contains("changelist.xml"), "{said}");
        let (ended, said) = refresh();
        assert_eq!((ended, said.contains("changelist.xml")), (Some(code), true), "nothing else is new: {said}");
        source.mend();
        assert_eq!(refresh().0, Some(SUCCESS));
    }
    for document in [".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml", "changelist.xml"] {
        source.fault(document, cut(), u64::MAX);
    }
    let (ended, said) = refresh();
    assert_eq!(ended, Some(UNREACHABLE), "{said}");
}
