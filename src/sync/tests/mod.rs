//! Whole refreshes of a catalog from a Source on loopback: what is committed, what is refused, what is never written.

mod absence;
mod archives;
mod asking;
mod changes;
mod deletions;
mod dumps;
mod lists;
mod lost;
mod many;
mod older;
mod times;
mod waiting;

use super::deletion_guard::MaxDelete;
use super::selection::Selection;
use super::*;
use crate::catalog::CatalogError;
use crate::catalog::{EntryId, Kind, Node, Revision};
use crate::document::{Change, Limits, Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::source::tests::loopback::{Answer, Loopback, offer, resource_list, sitemapindex, url, urlset};
use crate::source::zip::PackageConfig;
use crate::source::{DocumentLocation, EntryPoint};
use std::collections::BTreeMap;
use tempfile::TempDir;

const LIST: &str = "/list.xml";

/// A synchronizer with its folders and the catalog that it writes.
struct Destination {
    synchronizer: Synchronizer,
    catalog: Arc<Catalog>,
    _folder: TempDir,
}

impl Destination {
    fn of(server: &Loopback, entry: &str) -> Destination {
        Destination::new(server, EntryPoint::Uri(server.uri(entry)))
    }

    fn new(server: &Loopback, entry: EntryPoint) -> Destination {
        Destination::over_with(server, entry, tempfile::tempdir().unwrap())
    }

    /// A process over what lies in `folder` already.
    fn over(server: &Loopback, folder: TempDir) -> Destination {
        Destination::over_with(server, EntryPoint::Uri(server.uri("/caps.xml")), folder)
    }

    fn over_with(server: &Loopback, entry: EntryPoint, folder: TempDir) -> Destination {
        let catalog = Arc::new(Catalog::open(&folder.path().join("catalog"), "a test").unwrap());
        let spool = DocumentCache::open(&folder.path().join("spool")).unwrap();
        let config = SyncConfig {
            entry,
            set: None,
            host: None,
            maps: Vec::new(),
            extension_by_type: false,
            follows_items: false,
            selection: Selection::default(),
            limits: Limits::default(),
            poll: None,
            max_delete: MaxDelete::default(),
            as_of: None,
            reserve: 0,
        };
        let packages = packages(server, &folder.path().join("packages"));
        let mut synchronizer = Synchronizer::new(config, server.client(), Arc::clone(&catalog), spool, packages);
        synchronizer.tuning.least_part = 1;
        Destination { synchronizer, catalog, _folder: folder }
    }

    /// Another process over what this one has left, as after a crash.
    fn restarted(self, server: &Loopback) -> Destination {
        let Destination { synchronizer, catalog, _folder: folder } = self;
        let config = synchronizer.config.clone();
        drop((synchronizer, catalog));
        let catalog = Arc::new(Catalog::open(&folder.path().join("catalog"), "a test").unwrap());
        let spool = DocumentCache::open(&folder.path().join("spool")).unwrap();
        let packages = packages(server, &folder.path().join("packages"));
        let mut synchronizer = Synchronizer::new(config, server.client(), Arc::clone(&catalog), spool, packages);
        synchronizer.tuning.least_part = 1;
        Destination { synchronizer, catalog, _folder: folder }
    }

    async fn refresh(&mut self) -> Result<RefreshResult, SyncError> {
        self.synchronizer.refresh(Arc::new(|_| ())).await
    }

    async fn commit(&mut self) -> Committed {
        match self.refresh().await.unwrap() {
            RefreshResult::Committed(committed) => committed,
            RefreshResult::Unchanged => panic!("nothing is committed"),
        }
    }

    /// Every file by its path, with what its inode stands for.
    fn files(&self) -> BTreeMap<String, (u64, Option<u64>)> {
        let snapshot = self.catalog.snapshot().unwrap();
        let mut files = BTreeMap::new();
        let mut folders = vec![(String::new(), crate::platform::ino::Ino::ROOT)];
        while let Some((path, folder)) = folders.pop() {
            let mut visit = |_, name: &[u8], node: Node| {
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                match node.kind {
                    Kind::Folder => folders.push((path, node.ino)),
                    Kind::File => drop(files.insert(path, (node.ino.0, node.size))),
                }
                true
            };
            snapshot.children(folder, EntryId(0), &mut visit).unwrap();
        }
        files
    }

    fn paths(&self) -> Vec<String> {
        self.files().into_keys().collect()
    }

    /// What a write would change: the number of the revision and the position stored with it.
    fn written(&self) -> (Option<Revision>, Option<Box<[u8]>>) {
        let snapshot = self.catalog.snapshot().unwrap();
        (snapshot.revision().unwrap(), snapshot.position().unwrap())
    }
}

fn packages(server: &Loopback, folder: &std::path::Path) -> Packages {
    std::fs::create_dir_all(folder).unwrap();
    Packages::open(server.client(), PackageConfig::new(folder.to_path_buf())).unwrap()
}

fn list(server: &Loopback, paths: &[&str]) -> String {
    let entries: Vec<_> = paths.iter().map(|path| url(server.uri(path).as_str(), "")).collect();
    urlset("capability=\"resourcelist\" at=\"2013-01-03T09:00:00Z\"", &[], &entries)
}

/// An index of these lists.
fn index(server: &Loopback, children: &[&str]) -> String {
    let children: Vec<_> = children.iter().map(|child| server.uri(child).to_string()).collect();
    let children: Vec<_> = children.iter().map(String::as_str).collect();
    sitemapindex("capability=\"resourcelist\" at=\"2013-01-03T09:00:00Z\"", &[], &children)
}

/// A Source Description of two sets, each with a list of its own.
async fn two_sets() -> Loopback {
    let server = Loopback::start();
    let at = |path: &str| server.uri(path).to_string();
    let sets = [offer("capabilitylist", &at("/one/caps.xml")), offer("capabilitylist", &at("/two/caps.xml"))];
    server.put("/description.xml", Answer::xml(urlset("capability=\"description\"", &[], &sets)));
    for set in ["/one", "/two"] {
        let lists = [offer("resourcelist", &at(&format!("{set}/list.xml")))];
        let up = at("/description.xml");
        let capabilities = urlset("capability=\"capabilitylist\"", &[("up", &up)], &lists);
        server.put(&format!("{set}/caps.xml"), Answer::xml(capabilities));
    }
    server
}

#[tokio::test]
async fn an_unchanged_poll_costs_one_304_a_document() {
    let server = Loopback::start();
    server.put(LIST, Answer::xml(index(&server, &["/a.xml", "/b.xml"])).etag("index"));
    server.put("/a.xml", Answer::xml(list(&server, &["/a/1", "/a/2"])).etag("a"));
    server.put("/b.xml", Answer::xml(list(&server, &["/b/1"])).etag("b"));
    let mut destination = Destination::of(&server, LIST);
    assert_eq!(destination.commit().await.created, 3);
    // A commit is followed by one more look at what discovery reads.
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    let written = destination.written();
    server.asked();

    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

    let asked = server.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.iter().all(|asked| asked.conditional && asked.sent == 0), "{asked:?}");
    assert_eq!(destination.written(), written);
}

#[tokio::test]
async fn a_list_that_breaks_off_or_is_none_changes_nothing() {
    let server = Loopback::start();
    let good = |paths: &[&str]| list(&server, paths);
    server.put(LIST, Answer::xml(good(&["/a", "/b"])).etag("1"));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    let before = (destination.written(), destination.files());
    let next = good(&["/a", "/c"]);
    let broken = [
        next[..next.len() / 2].to_owned(),
        next.replace("</urlset>", ""),
        next.replace("</loc>", ""),
        "<html><body>maintenance</body></html>".to_owned(),
        String::new(),
    ];

    for body in broken {
        server.put(LIST, Answer::xml(body.clone()).etag("2"));
        let refused = destination.refresh().await;
        assert!(refused.is_err(), "{body}: {refused:?}");
        assert_eq!((destination.written(), destination.files()), before, "{body}");
    }

    // Under the very ETag that the broken one had.
    server.put(LIST, Answer::xml(next).etag("2"));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c"]);
}

#[tokio::test]
async fn no_list_however_well_formed_empties_the_tree() {
    let server = Loopback::start();
    server.put(LIST, Answer::xml(index(&server, &["/a.xml", "/b.xml"])));
    server.put("/a.xml", Answer::xml(list(&server, &["/a/1", "/a/2"])));
    server.put("/b.xml", Answer::xml(list(&server, &["/b/1"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    let before = destination.files();

    server.put("/a.xml", Answer::xml(list(&server, &[])));
    server.put("/b.xml", Answer::xml(list(&server, &[])));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files(), before, "empty lists");
    server.put(LIST, Answer::xml(index(&server, &[])));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files(), before, "an index of nothing");
    server.put(LIST, Answer::xml(list(&server, &[])));
    destination.refresh().await.unwrap();

    assert_eq!(destination.files(), before, "an empty list");
    assert_eq!(destination.synchronizer.status().borrow().clone().held.unwrap().files, 3);
}

#[tokio::test]
async fn an_index_with_a_broken_list_leaves_the_whole_tree() {
    let server = Loopback::start();
    let whole = index(&server, &["/a.xml", "/b.xml"]);
    server.put(LIST, Answer::xml(whole.clone()));
    server.put("/a.xml", Answer::xml(list(&server, &["/a/1"])));
    server.put("/b.xml", Answer::xml(list(&server, &["/b/1"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    let before = destination.files();

    let cut = list(&server, &["/b/1", "/b/2"]);
    for fault in [Answer::status(403), Answer::xml(&cut[..cut.len() / 2])] {
        server.put("/b.xml", fault);
        assert!(destination.refresh().await.is_err());
        assert_eq!(destination.files(), before);
    }
    server.put("/b.xml", Answer::status(404));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files(), before, "a list that is gone does not say that what it listed is gone");
    server.put("/b.xml", Answer::xml(list(&server, &["/b/1"])));
    server.put(LIST, Answer::xml(whole.replace("http://127.0.0.1", "no address")));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files(), before, "lists whose addresses are wrong say nothing");
    server.put(LIST, Answer::xml(whole.replacen("<loc>http", "<loc>no address, http", 1)));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files(), before);
}

#[tokio::test]
async fn a_list_named_twice_in_its_index_is_one_list() {
    let server = Loopback::start();
    server.put("/a.xml", Answer::xml(list(&server, &["/a/1", "/a/2"])));
    server.put(LIST, Answer::xml(index(&server, &["/a.xml", "/a.xml"])));
    let mut destination = Destination::of(&server, LIST);

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a/1", "/a/2"]);
}

#[tokio::test]
async fn of_two_sets_the_later_statement_of_a_resource_counts() {
    let server = two_sets().await;
    let shared = server.uri("/shared").to_string();
    let stated = |lastmod: &str, length: u64, own: &str| {
        let entry = format!("<url><loc>{shared}</loc><lastmod>{lastmod}</lastmod><rs:md length=\"{length}\"/></url>");
        urlset("capability=\"resourcelist\"", &[], &[entry, url(server.uri(own).as_str(), "")])
    };
    server.put("/one/list.xml", Answer::xml(stated("2020-02-02T00:00:00Z", 2, "/one/own")));
    server.put("/two/list.xml", Answer::xml(stated("2020-01-01T00:00:00Z", 1, "/two/own")));
    let mut destination = Destination::of(&server, "/description.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/one/own", "/shared", "/two/own"]);
    let first = destination.files()["/shared"];
    assert_eq!(first.1, Some(2), "the later lastmod, though its list is read first");

    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/own"])));
    destination.commit().await;
    assert_eq!(destination.files()["/shared"].1, Some(1), "it goes when the last set drops it");
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/own"])));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/one/own", "/two/own"]);
}

#[tokio::test]
async fn a_set_that_cannot_be_reached_keeps_its_files() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/own"])));
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/own"])));
    let capabilities =
        urlset("capability=\"capabilitylist\"", &[], &[offer("resourcelist", server.uri("/two/list.xml").as_str())]);
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let before = destination.files();

    server.put("/two/caps.xml", Answer::status(404));
    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/own", "/one/new"])));
    destination.synchronizer.discovery.is_stale = true;
    destination.refresh().await.unwrap();
    let with_new: Vec<_> = ["/one/new"].into_iter().map(str::to_owned).chain(before.into_keys()).collect();
    assert_eq!(destination.paths(), with_new, "the rest is applied");
    let mut newcomer = Destination::of(&server, "/description.xml");
    newcomer.commit().await;
    assert_eq!(newcomer.paths(), ["/one/new", "/one/own"]);

    // Discovered again after a failure, so that it is found as soon as it is back.
    server.put("/two/caps.xml", Answer::xml(capabilities));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/one/new", "/one/own", "/two/own"]);
}

#[tokio::test]
async fn a_position_that_is_damaged_is_made_anew_with_all_else() {
    let server = Loopback::start();
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    destination.catalog.spoil_position();
    destination.synchronizer.writer.position = None;

    destination.refresh().await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert!(!destination.catalog.is_distrusted());
    assert!(destination.catalog.snapshot().unwrap().position().unwrap().is_some());
}

#[tokio::test]
async fn the_own_host_of_a_list_on_disk_is_that_of_its_smallest_uri() {
    let server = Loopback::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("list.xml");
    let entries = ["http://b.example/x", "http://a.example/y", "http://a.example/z"].map(|loc| url(loc, ""));
    std::fs::write(&file, urlset("capability=\"resourcelist\"", &[], &entries)).unwrap();
    let mut destination = Destination::new(&server, EntryPoint::File(file.clone()));
    destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();

    destination.commit().await;
    assert_eq!(destination.paths(), ["/%host/b.example/x", "/y", "/z"]);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

    std::fs::write(&file, urlset("capability=\"resourcelist\"", &[], &entries[..1])).unwrap();
    destination.commit().await;
    assert_eq!(destination.paths(), ["/x"], "another own host");
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn the_same_documents_under_another_own_host_are_another_tree() {
    let server = Loopback::start();
    server.put("/old/list.xml", Answer::redirect(LIST));
    server.put(LIST, Answer::xml(resource_list("http://elsewhere.example/a")));
    let mut destination = Destination::of(&server, "/old/list.xml");
    destination.commit().await;
    assert_eq!(destination.paths(), ["/%host/elsewhere.example/a"]);
    let ino = destination.files()["/%host/elsewhere.example/a"].0;

    destination.synchronizer.config.host = Some("elsewhere.example".into());
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a"]);
    assert_ne!(destination.files()["/a"].0, ino, "an inode is of its path");
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn after_a_failure_the_source_is_discovered_anew() {
    for old in [403, 404] {
        let server = two_sets().await;
        server.put("/one/list.xml", Answer::xml(list(&server, &["/one/own"])));
        server.put("/two/list.xml", Answer::xml(list(&server, &["/two/own"])));
        let mut destination = Destination::of(&server, "/description.xml");
        destination.commit().await;
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

        // The set moves its list; the old address is refused, or gone.
        server.put("/two/list.xml", Answer::status(old));
        server.put("/two/moved.xml", Answer::xml(list(&server, &["/two/own", "/two/more"])));
        let moved = [offer("resourcelist", server.uri("/two/moved.xml").as_str())];
        server.put("/two/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &moved)));
        assert_eq!(destination.refresh().await.is_err(), old == 403);
        assert_eq!(destination.paths(), ["/one/own", "/two/own"]);
        destination.commit().await;

        assert_eq!(destination.paths(), ["/one/own", "/two/more", "/two/own"]);
    }
}

#[tokio::test]
async fn a_source_without_resource_list_says_what_it_offers() {
    let server = Loopback::start();
    let offers = [offer("changelist", server.uri("/changes.xml").as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));

    let refused = Destination::of(&server, "/caps.xml").refresh().await;

    match refused {
        Err(SyncError::NothingToShow(why)) => assert!(why.contains("only: changelist"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn nothing_offered_beside_the_resource_list_stops_a_refresh() {
    let server = Loopback::start();
    let at = |path: &str| server.uri(path).to_string();
    let offers = [
        offer("resourcedump", &at("/gone-dump.xml")),
        offer("changelist", &at("/cut-changes.xml")),
        offer("changedump", &at("/dump.tar.xz")),
        offer("changelist-archive", &at("/archive.xml")),
        offer("something-new", &at("/page.html")),
        offer("resourcelist", &at(LIST)),
    ];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put("/cut-changes.xml", Answer::xml("<urlset><url><loc>"));
    server.put("/dump.tar.xz", Answer::new("application/x-xz", b"\xfd7zXZ\0".as_slice()));
    server.put("/page.html", Answer::html("<html></html>"));
    server.put(LIST, Answer::xml(list(&server, &["/a"])));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b"])));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b"]);
}

#[tokio::test]
async fn a_list_without_validators_keeps_every_inode() {
    let server = Loopback::start();
    let made_at = |second: u32| {
        let entries = [url(server.uri("/a").as_str(), ""), url(server.uri("/b").as_str(), "")];
        Answer::xml(urlset(&format!("capability=\"resourcelist\" at=\"2013-01-03T09:00:{second:02}Z\""), &[], &entries))
    };
    server.put(LIST, made_at(0));
    let mut destination = Destination::of(&server, LIST);
    let first = destination.commit().await.revision;
    let before = destination.files();

    for second in 1..4 {
        server.put(LIST, made_at(second));
        let again = destination.commit().await;

        assert_eq!((again.revision, again.created + again.updated + again.touched + again.deleted), (first, 0));
        assert!(again.invalidations.is_empty(), "{:?}", again.invalidations);
    }

    assert_eq!(destination.files(), before);
}

#[tokio::test]
async fn a_document_that_is_no_resource_list_makes_no_tree() {
    let server = Loopback::start();
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let packages = [url(server.uri("/dump.zip").as_str(), "")];
    server.put(LIST, Answer::xml(urlset("capability=\"resourcedump\"", &[], &packages)));

    let refused = Destination::of(&server, "/caps.xml").refresh().await;

    assert!(refused.as_ref().is_err_and(|cause| cause.to_string().contains("no Resource List")), "{refused:?}");
}

#[tokio::test]
async fn rediscovery_holds_back_a_vanished_set_and_shows_a_new_one() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/own"])));
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/own"])));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let at = |path: &str| server.uri(path).to_string();
    let sets = [offer("capabilitylist", &at("/one/caps.xml")), offer("capabilitylist", &at("/three/caps.xml"))];
    server.put("/description.xml", Answer::xml(urlset("capability=\"description\"", &[], &sets)));
    let lists = [offer("resourcelist", &at("/three/list.xml"))];
    let up = at("/description.xml");
    server.put("/three/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[("up", &up)], &lists)));
    server.put("/three/list.xml", Answer::xml(list(&server, &["/three/own"])));

    destination.synchronizer.check(&command::Announcement::Source, false).await.unwrap();

    assert_eq!(destination.paths(), ["/one/own", "/three/own", "/two/own"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().held.unwrap().files, 1);
}
