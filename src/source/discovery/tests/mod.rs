mod bounds;
mod ways;

use super::*;
use crate::document::Capability;
use crate::source::tests::loopback::{Answer, Loopback, limits, offer, resource_list, sitemapindex, url, urlset};

fn xml(text: String) -> Answer {
    Answer::xml(text)
}

/// A Capability List with `up` and a Resource List and Change List below `/NAME/`.
fn capability_list(name: &str) -> Answer {
    let links = [("describedby", &*format!("/{name}/about")), ("up", WELL_KNOWN)];
    let entries =
        [offer("resourcelist", &format!("/{name}/list.xml")), offer("changelist", &format!("/{name}/changes.xml"))];
    xml(urlset("capability=\"capabilitylist\"", &links, &entries))
}

fn description(capability_lists: &[&str]) -> Answer {
    let entries: Vec<String> = capability_lists.iter().map(|loc| offer("capabilitylist", loc)).collect();
    xml(urlset("capability=\"description\"", &[], &entries))
}

fn list_with_up(up: &str) -> Answer {
    xml(urlset("capability=\"resourcelist\" at=\"2013\"", &[("up", up)], &[url("/a", "")]))
}

fn plain_sitemap() -> Answer {
    xml(urlset("", &[], &[url("/a", "")]))
}

/// Two sets named by the well-known URI.
async fn two_sets() -> Loopback {
    Loopback::with(&[
        (WELL_KNOWN, description(&["/one/cl.xml", "/two/cl.xml"])),
        ("/one/cl.xml", capability_list("one")),
        ("/two/cl.xml", capability_list("two")),
        ("/one/list.xml", list_with_up("/one/cl.xml")),
        ("/two/list.xml", list_with_up("/two/cl.xml")),
    ])
}

async fn found(server: &Loopback, path: &str) -> Result<Source, SourceError> {
    discover(&server.client(), &EntryPoint::Uri(server.uri(path)), None, limits()).await
}

/// The sets as text: `CAPABILITY LIST: capability DOCUMENT, …`, paths only.
fn sets(source: &Source) -> Vec<String> {
    let path = |location: &DocumentLocation| match location {
        DocumentLocation::Uri(uri) => uri.path().to_owned(),
        DocumentLocation::File(path) => path.display().to_string(),
    };
    let name = |capability: &Capability| format!("{capability:?}");
    source
        .sets
        .iter()
        .map(|set| {
            let documents: Vec<String> =
                set.documents.iter().map(|(what, at)| format!("{} {}", name(what), path(at))).collect();
            let list = set.capability_list.as_ref().map_or("-", |uri| uri.path());
            format!("{list}: {}", documents.join(", "))
        })
        .collect()
}

const ONE: &str = "/one/cl.xml: ResourceList /one/list.xml, ChangeList /one/changes.xml";
const TWO: &str = "/two/cl.xml: ResourceList /two/list.xml, ChangeList /two/changes.xml";

#[tokio::test]
async fn a_site_root_names_all_sets_of_its_well_known_description() {
    let server = two_sets().await;
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), [ONE, TWO]);
    assert_eq!(source.description, Some(server.uri(WELL_KNOWN)));
    assert_eq!(source.own_authority.as_deref(), Some(&*server.authority));
    assert_eq!(source.sets[0].described_by, Some(server.uri("/one/about")));
    assert_eq!(source.entry, Some(server.uri("/")));
}

#[tokio::test]
async fn documents_pasted_directly_name_their_scope() {
    let server = two_sets().await;
    assert_eq!(sets(&found(&server, WELL_KNOWN).await.unwrap()), [ONE, TWO]);
    assert_eq!(sets(&found(&server, "/two/cl.xml").await.unwrap()), [TWO]);
    let source = found(&server, "/one/list.xml").await.unwrap();
    assert_eq!(sets(&source), [ONE], "up is followed");
    assert_eq!(source.description, Some(server.uri(WELL_KNOWN)));
}

#[tokio::test]
async fn an_index_of_source_descriptions_names_all_their_sets() {
    let server = two_sets().await;
    server
        .put("/index.xml", xml(sitemapindex("capability=\"description\"", &[], &["/d1.xml", "/d2.xml", "/index.xml"])));
    server.put("/d1.xml", description(&["/one/cl.xml"]));
    server.put("/d2.xml", description(&["/two/cl.xml", "/one/cl.xml"]));
    let source = found(&server, "/index.xml").await.unwrap();
    assert_eq!(sets(&source), [ONE, TWO]);
    assert_eq!(source.description, Some(server.uri("/index.xml")));
}

#[tokio::test]
async fn a_set_is_picked_by_its_capability_list_or_its_description() {
    let server = two_sets().await;
    let client = server.client();
    let entry = EntryPoint::Uri(server.uri("/"));
    for wanted in ["/two/cl.xml", "/two/about"] {
        let source = discover(&client, &entry, Some(&server.uri(wanted)), limits()).await.unwrap();
        assert_eq!(sets(&source), [TWO], "{wanted}");
    }
    let error = discover(&client, &entry, Some(&server.uri("/three")), limits()).await.unwrap_err().to_string();
    for named in ["/three", "/one/cl.xml", "/one/about", "/two/cl.xml"] {
        assert!(error.contains(named), "{error}");
    }
}

#[tokio::test]
async fn only_the_wanted_set_is_asked_for() {
    let server = two_sets().await;
    server.put("/two/cl.xml", Answer::status(404));
    let entry = EntryPoint::Uri(server.uri("/"));
    let source = discover(&server.client(), &entry, Some(&server.uri("/one/cl.xml")), limits()).await.unwrap();
    assert_eq!(sets(&source), [ONE]);
    assert!(!server.asked().iter().any(|asked| asked.path == "/two/cl.xml"));
}

#[tokio::test]
async fn plain_sitemaps_are_resource_lists_compressed_or_not() {
    use std::io::Write as _;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(urlset("", &[], &[url("/a", "")]).as_bytes()).unwrap();
    let server = Loopback::with(&[
        ("/sitemap.xml", plain_sitemap()),
        ("/sitemap.xml.gz", Answer::new("application/x-gzip", gzip.finish().unwrap())),
        ("/index.xml", xml(sitemapindex("", &[], &["/sitemap.xml"]))),
    ]);
    for path in ["/sitemap.xml", "/sitemap.xml.gz", "/index.xml"] {
        let source = found(&server, path).await.unwrap();
        assert_eq!(sets(&source), [format!("-: ResourceList {path}")]);
    }
}

#[tokio::test]
async fn the_link_up_may_lead_through_an_index_and_may_fail() {
    let server = two_sets().await;
    server.put("/one/part.xml", list_with_up("/one/list.xml"));
    assert_eq!(sets(&found(&server, "/one/part.xml").await.unwrap()), [ONE]);
    server.put("/unlisted.xml", list_with_up("/one/cl.xml"));
    server.put("/one/other.xml", list_with_up("/unlisted.xml"));
    assert_eq!(
        sets(&found(&server, "/one/other.xml").await.unwrap()),
        ["/one/cl.xml: ResourceList /one/other.xml, ChangeList /one/changes.xml"],
        "by an index that its Capability List does not know"
    );
    server.put(
        "/two/part.xml",
        xml(urlset("capability=\"resourcelist\"", &[("up", WELL_KNOWN), ("index", "/two/list.xml")], &[])),
    );
    assert_eq!(
        sets(&found(&server, "/two/part.xml").await.unwrap()),
        [TWO],
        "by index among the sets of the description"
    );
    for up in ["/gone.xml", "/page", "/lost.xml", "/dead-end.xml"] {
        server.put("/dead-end.xml", list_with_up("/gone.xml"));
        server.put("/page", Answer::html("<html>"));
        server.put("/lost.xml", list_with_up("/lost.xml"));
        server.put("/lost.xml", list_with_up(up));
        assert_eq!(sets(&found(&server, "/lost.xml").await.unwrap()), ["-: ResourceList /lost.xml"], "{up}");
    }
}

#[tokio::test]
async fn a_list_unknown_to_its_capability_list_keeps_the_changes() {
    let server = two_sets().await;
    server.put("/extra.xml", list_with_up("/one/cl.xml"));
    let source = found(&server, "/extra.xml").await.unwrap();
    assert_eq!(sets(&source), ["/one/cl.xml: ResourceList /extra.xml, ChangeList /one/changes.xml"]);
}

#[tokio::test]
async fn everything_offered_is_kept_and_several_of_one_capability_too() {
    let entries = [
        offer("resourcelist", "/l1.xml"),
        offer("resourcelist", "/l2.xml"),
        offer("resourcedump", "/dump.xml"),
        offer("changelist-archive", "/archive.xml"),
        offer("hologram", "/hologram"),
        url("/unsaid.xml", ""),
    ];
    let server = Loopback::with(&[
        ("/cl.xml", xml(urlset("capability=\"capabilitylist\"", &[], &entries))),
        ("/unsaid.xml", xml(urlset("capability=\"changelist\"", &[], &[]))),
    ]);
    let source = found(&server, "/cl.xml").await.unwrap();
    assert_eq!(
        sets(&source),
        [
            "/cl.xml: ResourceList /l1.xml, ResourceList /l2.xml, ResourceDump /dump.xml, ChangeListArchive /archive.xml, \
          Other(\"hologram\") /hologram, ChangeList /unsaid.xml"
        ]
    );
}

/// A channel is an entry with a hub, of any capability: it is subscribed to and never read.
#[tokio::test]
async fn an_entry_with_a_hub_is_a_channel() {
    let hub = |uri: &str| format!("<rs:ln rel=\"hub\" href=\"{uri}\"/>");
    let channel = |capability: &str, path: &str, hubs: &str| {
        format!("<url><loc>{path}</loc><rs:md capability=\"{capability}\"/>{hubs}</url>")
    };
    let entries = [
        offer("resourcelist", "/list.xml"),
        channel("framework-notification", "/framework", &hub("http://hub.example.org/websub/")),
        channel(
            "change-notification",
            "/changes",
            &(hub("http://hub.example.org/1") + &hub("https://hub.example.org/2")),
        ),
        channel("changelist-notification", "/old", &hub("/own-hub")),
        channel("resourcelist", "/odd", &hub("/own-hub")),
        format!("<url><loc>/silent</loc>{}</url>", hub("/own-hub")),
        channel("framework-notification", "/framework", &hub("/other-hub")),
    ];
    let server = Loopback::with(&[("/cl.xml", xml(urlset("capability=\"capabilitylist\"", &[], &entries)))]);
    let source = found(&server, "/cl.xml").await.unwrap();

    assert_eq!(sets(&source), ["/cl.xml: ResourceList /list.xml"]);
    let own = format!("http://{}/own-hub", server.authority);
    let channels: Vec<_> = source.sets[0]
        .channels
        .iter()
        .map(|channel| (channel.capability.as_str(), channel.topic.path(), channel.hub.as_str()))
        .collect();
    assert_eq!(
        channels,
        [
            ("framework-notification", "/framework", "http://hub.example.org/websub/"),
            ("change-notification", "/changes", "https://hub.example.org/2"),
            ("change-notification", "/old", &own),
            ("resourcelist", "/odd", &own),
            ("", "/silent", &own),
        ]
    );
    assert!(server.asked().iter().all(|asked| asked.path == "/cl.xml"));
}

#[tokio::test]
async fn wrong_hints_are_corrected_by_the_documents() {
    let server = Loopback::with(&[
        (
            "/description.xml",
            xml(urlset("capability=\"resourcesync\"", &[], &[offer("unknown", "/cl.xml"), url("/cl2.xml", "")])),
        ),
        (
            "/cl.xml",
            xml(urlset(
                "capability=\"capability\"",
                &[],
                &[offer("changelist", "/list.xml"), offer("changelist", "/gone")],
            )),
        ),
        ("/cl2.xml", xml(urlset("", &[], &[offer("resourcelist", "/list2.xml"), offer("changelistindex", "/c.xml")]))),
        ("/list.xml", xml(resource_list("/a"))),
    ]);
    let source = found(&server, "/description.xml").await.unwrap();
    assert_eq!(
        sets(&source),
        ["/cl.xml: ResourceList /list.xml, ChangeList /gone", "/cl2.xml: ResourceList /list2.xml, ChangeList /c.xml"]
    );
}

#[tokio::test]
async fn a_description_that_lists_documents_itself_is_one_set() {
    let entries = [offer("resourcelist", "/list.xml"), offer("changelist", "/changes.xml")];
    let server = Loopback::with(&[(WELL_KNOWN, xml(urlset("capability=\"description\"", &[], &entries)))]);
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), [format!("{WELL_KNOWN}: ResourceList /list.xml, ChangeList /changes.xml")]);
}

#[tokio::test]
async fn the_pages_of_a_description_are_turned() {
    let server = two_sets().await;
    let page = |capability_list, next| {
        let links = [("next", next)];
        xml(urlset("capability=\"description\"", &links, &[offer("capabilitylist", capability_list)]))
    };
    server.put(WELL_KNOWN, page("/one/cl.xml", "?page=2"));
    server.put(&format!("{WELL_KNOWN}?page=2"), page("/two/cl.xml", "?page=2"));
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), [ONE, TWO]);
    assert_eq!(source.description, Some(server.uri(WELL_KNOWN)));
}

#[tokio::test]
async fn descriptions_that_contain_each_other_end() {
    let server = Loopback::with(&[
        ("/a.xml", xml(urlset("capability=\"description\"", &[], &[offer("description", "/b.xml")]))),
        (
            "/b.xml",
            xml(urlset(
                "capability=\"description\"",
                &[],
                &[offer("description", "/a.xml"), offer("capabilitylist", "/one/cl.xml")],
            )),
        ),
        ("/one/cl.xml", capability_list("one")),
    ]);
    assert_eq!(sets(&found(&server, "/a.xml").await.unwrap()), [ONE]);
}

#[tokio::test]
async fn a_dead_capability_list_is_missing_and_the_others_are_used() {
    let server = two_sets().await;
    server.put("/one/cl.xml", Answer::html("<html>Please log in</html>"));
    let source = found(&server, "/").await.unwrap();
    assert_eq!(sets(&source), [TWO]);
    assert_eq!(source.missing[0].location, DocumentLocation::Uri(server.uri("/one/cl.xml")));
    assert!(source.missing[0].why.contains("text/html"), "{:?}", source.missing);
}

#[tokio::test]
async fn a_truncated_description_is_an_error_and_no_smaller_source() {
    let whole = urlset(
        "capability=\"description\"",
        &[],
        &[offer("capabilitylist", "/one/cl.xml"), offer("capabilitylist", "/two/cl.xml")],
    );
    let server = two_sets().await;
    server.put(WELL_KNOWN, xml(whole[..whole.len() - 30].to_owned()));
    server.put("/sitemap.xml", plain_sitemap());
    let error = found(&server, "/").await.unwrap_err();
    assert!(
        matches!(&error, SourceError::Document { location, .. } if *location == DocumentLocation::Uri(server.uri(WELL_KNOWN))),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_description_longer_than_its_beginning_is_read_to_its_end() {
    let entries: Vec<String> =
        (0..800).map(|_| offer("capabilitylist", &format!("/one/cl.xml?{}", "x".repeat(100)))).collect();
    let last = offer("capabilitylist", "/two/cl.xml");
    let server = two_sets().await;
    server.put(WELL_KNOWN, xml(urlset("capability=\"description\"", &[], &[entries, vec![last]].concat())));
    server.put(&format!("/one/cl.xml?{}", "x".repeat(100)), capability_list("one"));
    assert_eq!(found(&server, "/").await.unwrap().sets.len(), 2);
}

#[tokio::test]
async fn of_a_long_list_only_the_beginning_is_read() {
    let entries: Vec<String> = (0..200_000).map(|n| url(&format!("/{n}"), "")).collect();
    let list = urlset("capability=\"resourcelist\" at=\"2013\"", &[("up", "/one/cl.xml")], &entries);
    let server = two_sets().await;
    server.put("/one/list.xml", xml(list));
    assert_eq!(sets(&found(&server, "/one/list.xml").await.unwrap()), [ONE]);
}

#[tokio::test]
async fn a_way_that_fails_for_now_is_not_left_for_the_next() {
    let server = two_sets().await;
    server.put("/sitemap.xml", plain_sitemap());
    let busy = Answer::status(503).header("Retry-After", "3600");
    server.put(WELL_KNOWN, busy.clone());
    assert!(matches!(found(&server, "/").await, Err(SourceError::Http { .. })));
    let server = two_sets().await;
    server.put("/one/cl.xml", busy);
    let failed = found(&server, "/").await.unwrap_err();
    assert!(matches!(failed, SourceError::Part { .. }), "half the sets are no Source: {failed:?}");
    let message = crate::platform::error_chain::chain(&failed);
    let others = format!("-o set={}", server.uri("/two/cl.xml"));
    assert!(message.contains(WELL_KNOWN) && message.contains(&others), "{message}");
}

/// The same entry point must not name one tree while a server is busy and another when it is not.
#[tokio::test]
async fn what_fails_for_now_on_the_way_to_the_sets_is_no_last_word() {
    let busy = || Answer::status(503).header("Retry-After", "3600");
    let unclear =
        urlset("capability=\"capabilitylist\"", &[], &[url("/unsaid.xml", ""), offer("changelist", "/c.xml")]);
    let silent = sitemapindex("", &[], &["/busy.xml", "/two/cl.xml"]);
    let hinted = [offer("changelist", "/busy.xml"), offer("changelist", "/one/list.xml")];
    for (pasted, document, at) in [
        ("/part.xml", list_with_up("/busy.xml"), "/busy.xml"),
        ("/part.xml", list_with_up("/description.xml"), "/one/cl.xml"),
        ("/cl.xml", xml(unclear), "/unsaid.xml"),
        ("/index.xml", xml(silent), "/busy.xml"),
        (WELL_KNOWN, xml(urlset("", &[], &[url("/busy.xml", ""), url("/page", "")])), "/busy.xml"),
        ("/cl.xml", xml(urlset("capability=\"capabilitylist\"", &[], &hinted)), "/busy.xml"),
    ] {
        let server = two_sets().await;
        server.put("/page", Answer::html("<p>"));
        server.put("/description.xml", description(&["/one/cl.xml"]));
        server.put("/c.xml", xml(urlset("capability=\"changelist\"", &[], &[])));
        server.put(pasted, document);
        server.put(at, busy());
        let failed = found(&server, pasted).await;
        let Err(SourceError::Part { location, .. }) = &failed else { panic!("{pasted} with {at}: {failed:?}") };
        assert_eq!(*location, DocumentLocation::Uri(server.uri(at)));
    }
}

#[tokio::test]
async fn the_first_child_decides_what_a_silent_index_lists() {
    let server = two_sets().await;
    for md in ["", "at=\"2013-01-01\"", "capability=\"unknown\""] {
        server.put("/index.xml", xml(sitemapindex(md, &[], &["/one/cl.xml", "/two/cl.xml"])));
        assert_eq!(sets(&found(&server, "/index.xml").await.unwrap()), [ONE, TWO], "{md}");
    }
}

#[tokio::test]
async fn a_list_on_disk_has_the_changes_of_its_capability_list() {
    let server = two_sets().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.xml");
    let up = server.uri("/one/cl.xml");
    let entries = [url(server.uri("/a").as_str(), "")];
    let go = async |links: &[(&str, &str)]| {
        std::fs::write(&path, urlset("capability=\"resourcelist\"", links, &entries)).unwrap();
        discover(&server.client(), &EntryPoint::File(path.clone()), None, limits()).await.unwrap()
    };
    let source = go(&[("up", up.as_str())]).await;
    assert_eq!(sets(&source), [format!("/one/cl.xml: ResourceList {}, ChangeList /one/changes.xml", path.display())]);
    assert_eq!((&source.entry, &source.own_authority), (&None, &None));
    let source = go(&[]).await;
    assert_eq!(sets(&source), [format!("-: ResourceList {}", path.display())]);
    assert_eq!(source.sets[0].documents[0].1, DocumentLocation::File(path.clone()));
}

#[tokio::test]
async fn other_documents_on_disk_lead_to_their_sets() {
    let server = two_sets().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("document.xml");
    let (one, two) = (server.uri("/one/cl.xml"), server.uri("/two/cl.xml"));
    let entries = [offer("capabilitylist", one.as_str()), offer("capabilitylist", two.as_str())];
    std::fs::write(&path, urlset("capability=\"description\"", &[], &entries)).unwrap();
    let entry = EntryPoint::File(path.clone());
    assert_eq!(sets(&discover(&server.client(), &entry, None, limits()).await.unwrap()), [ONE, TWO]);
    std::fs::write(&path, "<html></html>").unwrap();
    let error = discover(&server.client(), &entry, None, limits()).await.unwrap_err();
    assert!(matches!(error, SourceError::Document { .. }), "{error:?}");
    std::fs::remove_file(&path).unwrap();
    let error = discover(&server.client(), &entry, None, limits()).await.unwrap_err();
    assert!(matches!(error, SourceError::File { .. }), "{error:?}");
}
