mod asking;

use super::*;
use crate::platform::error_chain::chain;
use crate::source::tests::loopback::{
    Answer, Asked, Loopback, limits, offer, resource_list, sitemapindex, url, urlset,
};
use flate2::{Compression, write::GzEncoder};
use std::io::Write as _;

/// A server, and the cache of its crawls.
struct Scene {
    server: Loopback,
    cache: DocumentCache,
    _folder: tempfile::TempDir,
}

impl Scene {
    async fn new(table: &[(&str, Answer)]) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let cache = DocumentCache::open(folder.path()).unwrap();
        Scene { server: Loopback::with(table), cache, _folder: folder }
    }

    fn at(&self, path: &str) -> DocumentLocation {
        DocumentLocation::Uri(self.server.uri(path))
    }

    async fn crawl(&self, root: &str) -> Result<Crawled, SourceError> {
        self.crawl_asking(root, EVERYTHING).await
    }

    async fn crawl_asking(&self, root: &str, asking: Asking<'_>) -> Result<Crawled, SourceError> {
        crawl(&self.server.client(), &self.cache, &self.at(root), limits(), asking, &|_| {}).await
    }

    /// Crawls, and drops all other documents as sync does when all is stored.
    async fn crawl_and_keep(&self, root: &str) -> Crawled {
        let crawled = self.crawl(root).await.unwrap();
        keep(&self.cache, &crawled);
        crawled
    }

    /// The resources of the leaves, as sync reads them: paths in document order.
    fn resources(&self, crawled: &Crawled) -> Vec<String> {
        let mut paths = Vec::new();
        for leaf in &crawled.leaves {
            let mut reader = self.cache.reader(&leaf.document, limits()).unwrap();
            while let Some(entry) = reader.next_entry().unwrap() {
                paths.push(entry.loc.path().to_owned());
            }
        }
        paths
    }
}

fn keep(cache: &DocumentCache, crawled: &Crawled) {
    let locations: Vec<_> = crawled.documents().map(|document| document.location.clone()).collect();
    cache.keep(&locations).unwrap();
}

/// What sync compares to know that nothing has changed.
fn digests(crawled: &Crawled) -> Vec<u64> {
    crawled.documents().map(|document| document.digest).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn list(resource: &str) -> Answer {
    Answer::xml(resource_list(resource))
}

fn index(md: &str, children: &[&str]) -> Answer {
    Answer::xml(sitemapindex(md, &[], children))
}

#[tokio::test]
async fn a_plain_resource_list_is_one_leaf() {
    let scene = Scene::new(&[("/list.xml", list("/a").header("Last-Modified", "Thu, 03 Jan 2013 09:00:00 GMT"))]).await;
    let crawled = scene.crawl("/list.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/a"]);
    let leaf = &crawled.leaves[0];
    assert_eq!(leaf.capability, Some(Capability::ResourceList));
    assert_eq!(leaf.document.modified.unwrap().to_string(), "2013-01-03T09:00:00Z");
    assert!(leaf.header.at.is_some());
    assert_eq!((crawled.indexes.len(), crawled.packages.len()), (0, 0));
}

#[tokio::test]
async fn indexes_of_indexes_give_their_leaves_in_document_order() {
    let scene = Scene::new(&[
        ("/root.xml", index("capability=\"resourcelist\"", &["/i1.xml", "/l3.xml", "/i2.xml"])),
        ("/i1.xml", index("", &["l1.xml", "l2.xml"])),
        ("/i2.xml", index("", &["l4.xml"])),
        ("/l1.xml", list("/1")),
        ("/l2.xml", Answer::xml(urlset("", &[], &[url("/2", "")]))),
        ("/l3.xml", list("/3")),
        ("/l4.xml", list("/4")),
    ])
    .await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/1", "/2", "/3", "/4"]);
    assert_eq!(crawled.leaves[1].capability, Some(Capability::ResourceList), "a plain child is what its index is");
    let indexes: Vec<String> = crawled.indexes.iter().map(|index| index.location.to_string()).collect();
    assert!(indexes[0].ends_with("/root.xml") && indexes[1].ends_with("/i1.xml") && indexes[2].ends_with("/i2.xml"));
    assert_eq!(crawled.index_headers[0].capability, Some(Capability::ResourceList));
}

#[tokio::test]
async fn an_unchanged_poll_is_one_304_a_document() {
    let scene = Scene::new(&[
        ("/root.xml", index("", &["/1.xml", "/2.xml"]).etag("r")),
        ("/1.xml", list("/1").etag("1")),
        ("/2.xml", list("/2").header("Last-Modified", "Thu, 03 Jan 2013 09:00:00 GMT")),
    ])
    .await;
    let first = scene.crawl_and_keep("/root.xml").await;
    scene.server.asked();
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(digests(&crawled), digests(&first));
    let asked = scene.server.asked();
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|asked| asked.conditional && asked.sent == 0), "{asked:?}");
    assert_eq!(scene.resources(&crawled), scene.resources(&first));
}

#[tokio::test]
async fn without_validators_the_bytes_are_compared() {
    let scene =
        Scene::new(&[("/root.xml", index("", &["/1.xml", "/2.xml"])), ("/1.xml", list("/1")), ("/2.xml", list("/2"))])
            .await;
    let first = digests(&scene.crawl_and_keep("/root.xml").await);
    assert_eq!(digests(&scene.crawl_and_keep("/root.xml").await), first);
    scene.server.put("/2.xml", list("/other"));
    let crawled = scene.crawl("/root.xml").await.unwrap();
    let now = digests(&crawled);
    assert_eq!((&now[..2], now[2] == first[2]), (&first[..2], false));
    assert_eq!(scene.resources(&crawled), ["/1", "/other"]);
}

#[tokio::test]
async fn an_index_that_lost_a_child_is_another_document() {
    let scene =
        Scene::new(&[("/root.xml", index("", &["/1.xml", "/2.xml"])), ("/1.xml", list("/1")), ("/2.xml", list("/2"))])
            .await;
    let first = digests(&scene.crawl_and_keep("/root.xml").await);
    scene.server.put("/root.xml", index("", &["/1.xml"]));
    let crawled = scene.crawl_and_keep("/root.xml").await;
    let now = digests(&crawled);
    assert_eq!((now[0] == first[0], now[1]), (false, first[1]));
    assert_eq!(scene.cache.known(&scene.at("/2.xml")), None, "what is not listed any more takes no room");
}

#[tokio::test]
async fn a_crawl_that_was_killed_goes_on_where_it_stopped() {
    let scene = Scene::new(&[
        ("/root.xml", index("", &["/1.xml", "/2.xml"]).etag("r")),
        ("/1.xml", list("/1").etag("1")),
        ("/2.xml", Answer::status(403)),
    ])
    .await;
    assert!(scene.crawl("/root.xml").await.is_err());
    // The first child may have been under way when the second failed.
    assert!(scene.crawl("/1.xml").await.is_ok());
    scene.server.put("/2.xml", list("/2").etag("2"));
    scene.server.asked();
    let crawled = scene.crawl("/root.xml").await.unwrap();
    let unconditional: Vec<Asked> = scene.server.asked().into_iter().filter(|asked| asked.sent > 0).collect();
    assert_eq!(unconditional.len(), 1);
    assert_eq!((unconditional[0].path.as_str(), unconditional[0].conditional), ("/2.xml", false));
    assert_eq!(scene.resources(&crawled), ["/1", "/2"]);
}

#[tokio::test]
async fn a_child_that_fails_is_named_with_its_index() {
    let scene = Scene::new(&[("/root.xml", index("", &["/1.xml", "/secret.xml"])), ("/1.xml", list("/1"))]).await;
    scene.server.put("/secret.xml", Answer::status(403));

    let error = scene.crawl("/root.xml").await.unwrap_err();

    let SourceError::Part { location, named_by, .. } = &error else { panic!("{error:?}") };
    assert_eq!((location, named_by), (&scene.at("/secret.xml"), &scene.at("/root.xml")));
    let message = chain(&error);
    assert!(message.contains("403") && message.contains("another list"), "{message}");
}

#[tokio::test]
async fn children_that_are_not_lists_are_missing() {
    let others = [
        ("login", Answer::html("<!DOCTYPE html><html><body>Please log in</body></html>").etag("login")),
        ("OAI-PMH", Answer::xml("<OAI-PMH xmlns=\"http://www.openarchives.org/OAI/2.0/\"><Identify/></OAI-PMH>")),
        ("text", Answer::new("text/plain", "nothing here")),
        ("nothing", Answer::xml("")),
        ("no content", Answer::status(204)),
        ("package", Answer::new("application/zip", "PK\x03\x04")),
    ];
    for (what, other) in others {
        let root = index("", &["/1.xml", "/other", "/2.xml"]);
        let scene =
            Scene::new(&[("/root.xml", root), ("/1.xml", list("/1")), ("/other", other), ("/2.xml", list("/2"))]).await;

        let crawled = scene.crawl("/root.xml").await.unwrap();

        assert_eq!(scene.resources(&crawled), ["/1", "/2"], "{what}");
        assert_eq!(crawled.missing[0].location, scene.at("/other"), "{what}");
        assert_eq!(scene.cache.known(&scene.at("/other")), None, "{what}");
    }
}

#[tokio::test]
async fn an_index_that_ends_early_fails_and_is_fetched_again() {
    let whole = sitemapindex("", &[], &["/1.xml", "/2.xml"]);
    let cut = whole[..whole.len() - 20].to_owned();
    let scene =
        Scene::new(&[("/root.xml", Answer::xml(cut).etag("x")), ("/1.xml", list("/1")), ("/2.xml", list("/2"))]).await;
    assert!(matches!(scene.crawl("/root.xml").await, Err(SourceError::Document { .. })));
    scene.server.put("/root.xml", Answer::xml(whole).etag("x"));
    assert_eq!(scene.crawl("/root.xml").await.unwrap().leaves.len(), 2);
}

#[tokio::test]
async fn a_body_that_breaks_is_fetched_again() {
    let scene = Scene::new(&[("/list.xml", list("/a").cut(2))]).await;
    let crawled = scene.crawl("/list.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/a"]);
    assert_eq!(scene.server.asked().len(), 3);
}

#[tokio::test]
async fn a_hurried_crawl_does_not_repeat_a_broken_body() {
    let scene = Scene::new(&[("/list.xml", list("/a").cut(1))]).await;
    let hurried = Asking { is_patient: false, ..EVERYTHING };
    assert!(matches!(scene.crawl_asking("/list.xml", hurried).await, Err(SourceError::Http { .. })));
    assert_eq!(scene.server.asked().len(), 1);
    assert_eq!(scene.crawl_asking("/list.xml", hurried).await.unwrap().leaves.len(), 1, "the next time");
}

#[tokio::test]
async fn a_body_that_always_breaks_leaves_the_document_of_before() {
    let scene = Scene::new(&[("/list.xml", list("/a"))]).await;
    let before = scene.crawl_and_keep("/list.xml").await;
    scene.server.put("/list.xml", list("/b").cut(usize::MAX));
    let error = scene.crawl("/list.xml").await.unwrap_err();
    assert!(matches!(&error, SourceError::Http { .. }), "{error:?}");
    assert_eq!(scene.resources(&before), ["/a"]);
}

#[tokio::test]
async fn cycles_end_and_a_child_listed_twice_is_one_leaf() {
    let scene = Scene::new(&[
        ("/root.xml", index("", &["/root.xml", "/i.xml", "/1.xml"])),
        ("/i.xml", index("", &["/root.xml", "/1.xml", "/2.xml"])),
        ("/1.xml", list("/1")),
        ("/2.xml", list("/2")),
    ])
    .await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    let mut resources = scene.resources(&crawled);
    resources.sort();
    assert_eq!(resources, ["/1", "/2"]);
    assert_eq!(scene.server.asked().len(), 4);
}

#[tokio::test]
async fn an_index_that_contains_only_itself_is_no_empty_source() {
    let scene = Scene::new(&[("/root.xml", index("", &["/root.xml"]))]).await;
    let error = scene.crawl("/root.xml").await.unwrap_err();
    assert!(matches!(error, SourceError::Structure { .. }), "{error:?}");
    scene.server.put("/root.xml", index("", &[]));
    assert_eq!(scene.crawl("/root.xml").await.unwrap().leaves.len(), 0, "an index of nothing is one");
}

#[tokio::test]
async fn index_entries_that_cannot_be_understood_are_counted() {
    let scene = Scene::new(&[("/root.xml", index("", &["ftp://a/1.xml", "/1.xml"])), ("/1.xml", list("/1"))]).await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!((crawled.leaves.len(), crawled.skipped, crawled.deviations.len()), (1, 1, 1));
    scene.server.put("/root.xml", index("", &["ftp://a/1.xml"]));
    assert!(matches!(scene.crawl("/root.xml").await, Err(SourceError::Structure { .. })));
}

#[tokio::test]
async fn indexes_without_end_are_refused() {
    let scene = Scene::new(&[]).await;
    for depth in 0..=DEPTH + 1 {
        scene.server.put(&format!("/{depth}.xml"), index("", &[&format!("/{}.xml", depth + 1)]));
    }
    let error = scene.crawl("/0.xml").await.unwrap_err();
    assert!(matches!(&error, SourceError::Structure { what, .. } if what.contains("more than 8")), "{error:?}");
}

#[tokio::test]
async fn an_index_of_too_many_documents_is_refused_at_once() {
    let children: Vec<String> = (0..=DOCUMENTS).map(|n| format!("/{n}")).collect();
    let children: Vec<&str> = children.iter().map(String::as_str).collect();
    let scene = Scene::new(&[("/root.xml", index("", &children))]).await;
    let error = scene.crawl("/root.xml").await.unwrap_err();
    assert!(matches!(&error, SourceError::Structure { what, .. } if what.contains("50000")), "{error:?}");
    assert_eq!(scene.server.asked().len(), 1);
}

#[tokio::test]
async fn of_the_links_of_documents_those_that_lead_on_are_kept() {
    let links = [("up", "/up"), ("up", "/up2"), ("next", "/2.xml"), ("index", "/i"), ("author", "/a"), ("x", "/y")];
    let mirrored = |path: &str| format!("<sitemap><loc>{path}</loc><rs:ln rel=\"duplicate\" href=\"/m\"/></sitemap>");
    let root = sitemapindex("capability=\"resourcedump\"", &links, &[])
        .replace("</sitemapindex>", &format!("{}{}</sitemapindex>", mirrored("/1.xml"), mirrored("/1.zip")));
    let leaf = Answer::xml(urlset("capability=\"resourcedump\"", &links[3..], &[]));
    let scene = Scene::new(&[("/root.xml", Answer::xml(root)), ("/1.xml", leaf.clone()), ("/2.xml", leaf)]).await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    let relations = |links: &[crate::document::Link]| links.iter().map(|link| link.rel.to_string()).collect::<Vec<_>>();
    assert_eq!(relations(&crawled.index_headers[0].links), ["up", "next", "index"]);
    assert_eq!(crawled.index_headers[0].link("up"), Some(&scene.server.uri("/up")));
    assert_eq!(relations(&crawled.leaves[0].header.links), ["index"]);
    assert_eq!(crawled.leaves[0].listed.as_ref().unwrap().links, []);
    assert_eq!(crawled.packages[0].links, []);
}

#[tokio::test]
async fn indexes_of_more_packages_than_the_bound_are_refused() {
    let children: Vec<String> = (0..=PACKAGES).map(|number| format!("/{number}.zip")).collect();
    let children: Vec<&str> = children.iter().map(String::as_str).collect();
    let scene = Scene::new(&[("/root.xml", index("capability=\"resourcedump\"", &children))]).await;
    let error = scene.crawl("/root.xml").await.unwrap_err();
    assert!(matches!(&error, SourceError::Structure { what, .. } if what.contains("packages")), "{error:?}");
}

#[tokio::test]
async fn a_urlset_of_lists_is_an_index() {
    let entries = [offer("resourcelist", "/1.xml"), offer("resourcelist", "/2.xml")];
    let scene = Scene::new(&[
        ("/same.xml", Answer::xml(urlset("capability=\"resourcelist\"", &[], &entries))),
        ("/none.xml", Answer::xml(urlset("", &[], &entries))),
        ("/1.xml", list("/1")),
        ("/2.xml", list("/2")),
    ])
    .await;
    for root in ["/same.xml", "/none.xml"] {
        let crawled = scene.crawl(root).await.unwrap();
        assert_eq!(scene.resources(&crawled), ["/1", "/2"], "{root}");
    }
}

#[tokio::test]
async fn an_archive_is_an_index_of_lists() {
    let entries = [url("/1.xml", "from=\"2013-01-01\" until=\"2013-01-02\""), url("/2.xml", "from=\"2013-01-02\"")];
    let changes = urlset("", &[], &[url("/a", "change=\"updated\"")]);
    let scene = Scene::new(&[
        ("/archive.xml", Answer::xml(urlset("capability=\"changelist-archive\"", &[], &entries))),
        ("/1.xml", Answer::xml(changes.clone())),
        ("/2.xml", Answer::xml(changes)),
    ])
    .await;
    let crawled = scene.crawl("/archive.xml").await.unwrap();
    assert!(crawled.leaves.iter().all(|leaf| leaf.capability == Some(Capability::ChangeList)));
    assert_eq!(crawled.leaves.len(), 2);
}

#[tokio::test]
async fn packages_of_a_dump_are_recorded_and_not_fetched() {
    let zip: Vec<u8> = [b"PK\x03\x04".to_vec(), vec![0; 1000]].concat();
    let scene = Scene::new(&[
        ("/dump.xml", index("capability=\"resourcedump\"", &["/part1.zip", "/part?n=2", "/list.xml"])),
        ("/part?n=2", Answer::new("application/zip", zip)),
        ("/list.xml", Answer::xml(urlset("capability=\"resourcedump\"", &[], &[url("/part3.zip", "")]))),
    ])
    .await;
    let crawled = scene.crawl("/dump.xml").await.unwrap();
    let packages: Vec<&str> = crawled.packages.iter().map(|entry| entry.loc.path()).collect();
    assert_eq!(packages, ["/part1.zip", "/part"]);
    assert_eq!(crawled.leaves.len(), 1);
    assert!(!scene.server.asked().iter().any(|asked| asked.path.ends_with(".zip")));
}

#[tokio::test]
async fn a_package_is_known_by_however_few_bytes_come_first() {
    let zip = [b"PK\x03\x04".to_vec(), vec![0; 1000]].concat();
    let chunked = |first: usize| {
        let chunk = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        [chunk(&zip[..first]), chunk(&zip[first..]), b"0\r\n\r\n".to_vec()].concat()
    };
    for first in 1..6 {
        let part = Answer::new("application/zip", chunked(first)).header("Transfer-Encoding", "chunked");
        let scene =
            Scene::new(&[("/dump.xml", index("capability=\"resourcedump\"", &["/part?n=2"])), ("/part?n=2", part)])
                .await;

        let crawled = scene.crawl("/dump.xml").await.unwrap();

        assert_eq!(crawled.packages.len(), 1, "{first} bytes");
    }
}

#[tokio::test]
async fn packages_in_a_change_list_are_not_changes() {
    let packages = [url("/1.zip", "from=\"2013-01-01\""), url("/2.zip", "type=\"application/zip\"")];
    let changes = [url("/1.zip", "change=\"updated\""), url("/2.zip", "change=\"updated\"")];
    let scene = Scene::new(&[
        ("/packages.xml", Answer::xml(urlset("capability=\"changelist\"", &[], &packages))),
        ("/changes.xml", Answer::xml(urlset("capability=\"changelist\"", &[], &changes))),
    ])
    .await;
    let has_packages = async |root: &str| scene.crawl(root).await.unwrap().leaves[0].has_packages;
    assert!(has_packages("/packages.xml").await);
    assert!(!has_packages("/changes.xml").await, "changes of resources that are packages");
}

#[tokio::test]
async fn children_of_an_unknown_capability_do_not_stop_the_walk() {
    let page = Answer::html("<p>no list");
    let scene = Scene::new(&[("/root.xml", index_with_hologram()), ("/1.xml", list("/1")), ("/x", page)]).await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/1"]);
    assert_eq!(crawled.missing.len(), 1);
    assert_eq!(crawled.missing[0].location, scene.at("/x"));
    scene.server.put("/x", list("/2"));
    assert_eq!(scene.resources(&scene.crawl("/root.xml").await.unwrap()), ["/1", "/2"], "its own capability counts");
}

/// The root of a Resource List whose second child is of an unknown capability.
fn index_with_hologram() -> Answer {
    let entries =
        "<sitemap><loc>/1.xml</loc></sitemap><sitemap><loc>/x</loc><rs:md capability=\"hologram\"/></sitemap>";
    let root = sitemapindex("capability=\"resourcelist\"", &[], &[]);
    Answer::xml(root.replace("</sitemapindex>", &format!("{entries}</sitemapindex>")))
}

#[tokio::test]
async fn a_package_of_an_unknown_capability_is_missing() {
    let zip = Answer::new("application/zip", "PK\x03\x04");
    let scene = Scene::new(&[("/root.xml", index_with_hologram()), ("/1.xml", list("/1")), ("/x", zip)]).await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/1"]);
    assert_eq!(crawled.missing[0].location, scene.at("/x"));
}

#[tokio::test]
async fn nothing_of_a_broken_index_of_unknown_capability_is_used() {
    // It breaks behind the bytes that show what it is.
    let children: Vec<String> = (2..20).map(|number| format!("/{number}.xml")).collect();
    let children: Vec<&str> = children.iter().map(String::as_str).collect();
    let cut = sitemapindex("", &[], &children).replace("</sitemapindex>", "<sitemap><loc>");
    let scene = Scene::new(&[
        ("/root.xml", index_with_hologram()),
        ("/1.xml", index("", &["/2.xml"])),
        ("/x", Answer::xml(cut)),
        ("/2.xml", list("/2")),
    ])
    .await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/2"], "what a whole index lists too");
    assert_eq!(crawled.missing[0].location, scene.at("/x"));
}

#[tokio::test]
async fn pages_are_turned() {
    let page = |resource: &str, next: &[(&str, &str)]| {
        Answer::xml(urlset("capability=\"resourcelist\"", next, &[url(resource, "")]))
    };
    let scene = Scene::new(&[
        ("/root.xml", index("", &["/list?page=1", "/last.xml"])),
        ("/list?page=1", page("/1", &[("next", "?page=2")])),
        ("/list?page=2", page("/2", &[("next", "?page=3")])),
        ("/list?page=3", page("/3", &[("next", "?page=1")])),
        ("/last.xml", list("/4")),
    ])
    .await;
    let crawled = scene.crawl("/root.xml").await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/1", "/2", "/3", "/4"]);
}

#[tokio::test]
async fn several_compressions_are_undone_and_kept() {
    let plain = resource_list("/a").into_bytes();
    let twice = gzip(&gzip(&plain));
    let scene = Scene::new(&[
        ("/by-name.xml.gz", Answer::new("application/octet-stream", gzip(&plain))),
        ("/by-coding.xml", Answer::xml(gzip(&plain)).header("Content-Encoding", "gzip")),
        ("/by-both.xml.gz", Answer::new("application/gzip", twice.clone()).header("Content-Encoding", "gzip")),
        ("/unsaid", Answer::new("text/plain", gzip(&plain))),
    ])
    .await;
    for root in ["/by-name.xml.gz", "/by-coding.xml", "/by-both.xml.gz", "/unsaid"] {
        let crawled = scene.crawl_and_keep(root).await;
        assert_eq!(scene.resources(&crawled), ["/a"], "{root}");
        assert_eq!(digests(&scene.crawl(root).await.unwrap()), digests(&crawled));
    }
    let size = scene.crawl("/by-both.xml.gz").await.unwrap().leaves[0].document.size;
    assert_eq!(size, twice.len() as u64);
}

#[tokio::test]
async fn relative_locations_are_resolved_after_redirects() {
    let scene =
        Scene::new(&[("/list.xml", Answer::redirect("/deep/er/list.xml")), ("/deep/er/list.xml", list("a/b"))]).await;
    let crawled = scene.crawl_and_keep("/list.xml").await;
    assert_eq!(scene.resources(&crawled), ["/deep/er/a/b"]);
    assert_eq!(crawled.leaves[0].document.location, scene.at("/list.xml"));
}

#[tokio::test]
async fn bytes_that_move_to_another_folder_are_another_document() {
    for etag in ["", "1"] {
        let listed = || if etag.is_empty() { list("a/b") } else { list("a/b").etag(etag) };
        let scene = Scene::new(&[
            ("/list.xml", Answer::redirect("/old/list.xml")),
            ("/old/list.xml", listed()),
            ("/new/list.xml?1", listed()),
            ("/new/list.xml?2", listed()),
        ])
        .await;
        let before = scene.crawl_and_keep("/list.xml").await;
        scene.server.put("/list.xml", Answer::redirect("/new/list.xml?1"));

        let crawled = scene.crawl_and_keep("/list.xml").await;

        assert_eq!(scene.resources(&crawled), ["/new/a/b"], "{etag}");
        assert_ne!(digests(&crawled), digests(&before));
        assert_eq!(digests(&scene.crawl("/list.xml").await.unwrap()), digests(&crawled), "{etag}");
        scene.server.put("/list.xml", Answer::redirect("/new/list.xml?2"));
        let other_query = scene.crawl("/list.xml").await.unwrap();
        assert_eq!(digests(&other_query), digests(&crawled), "{etag}");
    }
}

#[tokio::test]
async fn a_list_on_disk_is_walked_and_its_children_are_fetched() {
    let scene = Scene::new(&[("/1.xml", list("/1"))]).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.xml");
    std::fs::write(&path, sitemapindex("", &[], &[scene.server.uri("/1.xml").as_str()])).unwrap();
    let root = DocumentLocation::File(path.clone());
    let (cache, client) = (&scene.cache, scene.server.client());
    let crawled = crawl(&client, cache, &root, limits(), EVERYTHING, &|_| {}).await.unwrap();
    assert_eq!(scene.resources(&crawled), ["/1"]);
    keep(cache, &crawled);
    let again = crawl(&client, cache, &root, limits(), EVERYTHING, &|_| {}).await.unwrap();
    assert_eq!(digests(&again), digests(&crawled));
    std::fs::remove_file(&path).unwrap();
    let error = crawl(&client, cache, &root, limits(), EVERYTHING, &|_| {}).await.unwrap_err();
    assert!(matches!(&error, SourceError::File { path: named, .. } if *named == path), "{error:?}");
}

#[tokio::test]
async fn a_document_above_the_limit_is_refused() {
    let scene = Scene::new(&[("/list.xml", list("/a"))]).await;
    let limits = Limits { document: 100, ..limits() };
    let error = crawl(&scene.server.client(), &scene.cache, &scene.at("/list.xml"), limits, EVERYTHING, &|_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, SourceError::Structure { .. }), "{error:?}");
}
