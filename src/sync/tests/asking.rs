//! What of the Source is asked for while its changes are followed, and when.

use super::changes::{CHANGES, change, change_list, datetime, resource_list_at, silent, source};
use super::*;

#[tokio::test]
async fn of_an_index_only_what_may_be_new_is_fetched() {
    let server = source().await;
    let child = |path: &str, until: &str| format!("<sitemap><loc>{}</loc><rs:md {until}/></sitemap>", server.uri(path));
    let index = |children: &[String]| {
        Answer::xml(crate::source::tests::loopback::document(
            "sitemapindex",
            "capability=\"changelist\"",
            &[],
            children,
        ))
    };
    let one = [change(&server, "/e", &format!("change=\"created\" {}", datetime(10)))];
    let two = [change(&server, "/f", &format!("change=\"created\" {}", datetime(30)))];
    let first = "from=\"2013-01-03T09:00:00Z\" until=\"2013-01-03T10:20:00Z\"";
    server.put("/1.xml", change_list(first, &one));
    server.put("/2.xml", change_list("from=\"2013-01-03T10:20:00Z\"", &two));
    server.put(CHANGES, index(&[child("/1.xml", first), child("/2.xml", "from=\"2013-01-03T10:20:00Z\"")]));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
    server.asked();

    let three = [two[0].clone(), change(&server, "/g", &format!("change=\"created\" {}", datetime(40)))];
    server.put("/2.xml", change_list("from=\"2013-01-03T10:20:00Z\"", &three));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f", "/g"]);
    assert!(!server.asked().iter().any(|asked| asked.path == "/1.xml"), "it ended before what is known");
}

#[tokio::test]
async fn a_closed_list_leads_on_by_its_index() {
    let server = source().await;
    let index = format!("<rs:ln rel=\"index\" href=\"{}\"/>", server.uri("/index.xml"));
    let first = "from=\"2013-01-03T09:00:00Z\" until=\"2013-01-03T10:20:00Z\"";
    let head = format!("capability=\"changelist\" {first}");
    let one = [index, change(&server, "/e", &format!("change=\"created\" {}", datetime(10)))];
    server.put(CHANGES, Answer::xml(urlset(&head, &[], &one)));
    let two = [change(&server, "/f", &format!("change=\"created\" {}", datetime(30)))];
    server.put("/2.xml", change_list("from=\"2013-01-03T10:20:00Z\"", &two));
    let child =
        |path: &str, interval: &str| format!("<sitemap><loc>{}</loc><rs:md {interval}/></sitemap>", server.uri(path));
    let children = [child(CHANGES, first), child("/2.xml", "from=\"2013-01-03T10:20:00Z\"")];
    let document =
        crate::source::tests::loopback::document("sitemapindex", "capability=\"changelist\"", &[], &children);
    server.put("/index.xml", Answer::xml(document));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

/// A Source that announces resources and publishes no Change List.
#[tokio::test]
async fn a_list_that_changes_settles_what_was_announced_before() {
    // The newest `lastmod` stays the same, there is no time at all, and `at` is a date.
    for (at, lastmod) in [("", "<lastmod>2013-01-02</lastmod>"), ("", ""), ("at=\"2013-01-03\"", "")] {
        let server = source().await;
        let offers = [offer("resourcelist", server.uri(LIST).as_str())];
        server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
        let publish = |paths: &[&str]| {
            let entry = |path: &&str| format!("<url><loc>{}</loc>{lastmod}</url>", server.uri(path));
            server.put(LIST, resource_list_at(at, &paths.iter().map(entry).collect::<Vec<_>>()));
        };
        publish(&["/a", "/b", "/c"]);
        server.put("/x", Answer::html("new"));
        let mut destination = Destination::of(&server, "/caps.xml");
        destination.commit().await;
        let announced =
            [("/a", Change::Deleted), ("/x", Change::Created)].map(|(path, it)| (server.uri(path), it.into()));
        let announcement = command::Announcement::Resources(announced.into());
        destination.synchronizer.check(&announcement, false).await.unwrap();

        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
        assert_eq!(destination.paths(), ["/b", "/c", "/x"], "the same list says nothing new");
        publish(&["/a", "/b", "/c", "/d"]);
        destination.commit().await;

        assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d"], "{at}{lastmod}");
    }
}

#[tokio::test]
async fn announced_resources_without_an_answer_are_unseen() {
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    destination.synchronizer.tuning.answers_due = std::time::Duration::from_secs(2);
    let never = Arc::new(tokio::sync::Barrier::new(99));
    server.put("/new/00", Answer::html("new").together(&never));
    (1..25).for_each(|number| server.put(&format!("/new/{number:02}"), Answer::html("new")));
    let resources: Vec<_> = (0..26).map(|it| (server.uri(&format!("/new/{it:02}")), Change::Created.into())).collect();
    let of = |places: &[usize]| {
        Some(command::Announcement::Resources(places.iter().map(|at| resources[*at].clone()).collect()))
    };

    let checked = destination
        .synchronizer
        .check(&command::Announcement::Resources(resources.iter().cloned().collect()), false)
        .await
        .unwrap();

    assert!(matches!(checked.outcome, RefreshResult::Committed(_)));
    assert_eq!(destination.files().len(), 4 + 24);
    assert_eq!(checked.unseen, of(&[0, 25]));
    server.put("/new/00", Answer::html("new"));
    let checked = destination.synchronizer.check(&checked.unseen.unwrap(), true).await.unwrap();
    assert_eq!(checked.unseen, of(&[25]), "it answers 404 still");
    assert_eq!(destination.files().len(), 4 + 25);
}

#[tokio::test]
async fn a_change_list_that_answers_5xx_keeps_no_document_waiting() {
    let server = source().await;
    let documents = [("changelist", CHANGES), ("changelist", "/more.xml"), ("resourcelist", LIST)];
    let offers = documents.map(|(capability, path)| offer(capability, server.uri(path).as_str()));
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put(CHANGES, Answer::status(503));
    let more = [change(&server, "/e", &format!("change=\"created\" {}", datetime(1)))];
    server.put("/more.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &more));
    let mut destination = Destination::of(&server, "/caps.xml");
    let asked = || server.asked().iter().filter(|asked| asked.path == CHANGES).count();

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(asked(), 1);
    let entries = ["/a", "/b", "/c", "/e", "/z"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:45:00Z\"", &entries));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/e", "/z"], "a new baseline");
    assert_eq!(asked(), 1);

    let status = destination.synchronizer.status().borrow().clone();
    let failed = status.documents.iter().find(|it| it.location.ends_with(CHANGES)).unwrap();
    assert!(matches!(&failed.answer, status::PollAnswer::Failed(why) if why.contains("503")), "{failed:?}");
}

#[tokio::test]
async fn known_documents_are_followed_while_discovery_fails() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    for (minute, fault) in [(1, Answer::status(404)), (2, Answer::html("<html/>")), (3, Answer::status(403))] {
        server.put("/caps.xml", fault);
        destination.synchronizer.discovery.is_stale = true;
        let path = format!("/new{minute}");
        let new = [change(&server, &path, &format!("change=\"created\" {}", datetime(minute)))];
        server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &new));

        destination.commit().await;

        assert!(destination.paths().contains(&path));
        assert!(destination.refresh().await.is_err(), "that nothing else is known of is told");
    }
    let offers = [("resourcelist", LIST), ("changelist", "/moved.xml")];
    let offers = offers.map(|(capability, path)| offer(capability, server.uri(path).as_str()));
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let new = [change(&server, "/e", &format!("change=\"created\" {}", datetime(5)))];
    server.put("/moved.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &new));
    destination.commit().await;

    assert!(destination.paths().contains(&"/e".to_owned()), "it is looked for again");
}

#[tokio::test]
async fn the_newest_list_of_an_index_is_always_polled() {
    let server = source().await;
    let child = |path: &str, until: &str| format!("<sitemap><loc>{}</loc><rs:md {until}/></sitemap>", server.uri(path));
    let [first, second] = [("07:00", "08:00"), ("08:00", "08:30")]
        .map(|(from, until)| format!("from=\"2013-01-03T{from}:00Z\" until=\"2013-01-03T{until}:00Z\""));
    let children = [child("/1.xml", &first), child("/2.xml", &second)];
    let document =
        crate::source::tests::loopback::document("sitemapindex", "capability=\"changelist\"", &[], &children);
    server.put(CHANGES, Answer::xml(document).etag("index"));
    let old = change(&server, "/old", "change=\"created\" datetime=\"2013-01-03T08:10:00Z\"");
    server.put("/1.xml", change_list(&first, &[]));
    server.put("/2.xml", change_list(&second, std::slice::from_ref(&old)));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d"], "it ended before the list");
    let asked = |path: &str| server.asked().iter().filter(|asked| asked.path == path).count();
    assert_eq!(asked("/2.xml"), 1);
    // Its index is slow to tell that it goes on.
    let new = change(&server, "/e", &format!("change=\"created\" {}", datetime(1)));
    server.put("/2.xml", change_list("from=\"2013-01-03T08:00:00Z\"", &[old, new]));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(asked("/1.xml"), 0);
}

#[tokio::test]
async fn a_change_list_closed_at_each_request_makes_no_discovery() {
    let server = source().await;
    let closed = |minute: u32| {
        let interval = format!("from=\"2013-01-03T09:00:00Z\" until=\"2013-01-03T10:{minute:02}:00Z\"");
        change_list(&interval, &[])
    };
    server.put(CHANGES, closed(1));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    destination.refresh().await.unwrap();
    server.asked();
    let discoveries = || server.asked().iter().filter(|asked| asked.path == "/caps.xml").count();

    for minute in 2..6 {
        server.put(CHANGES, closed(minute));
        destination.refresh().await.unwrap();
    }
    assert!(discoveries() <= 1, "one from the look before");
    for _ in 0..3 {
        destination.refresh().await.unwrap();
    }

    assert!(discoveries() >= 1, "the Capability List may name the next");
}

#[tokio::test]
async fn what_the_server_says_may_be_kept_is_not_asked_for_before() {
    let server = source().await;
    let list = Answer::xml(list(&server, &["/a"])).header("Cache-Control", "max-age=3600");
    server.put(LIST, list);
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();

    destination.synchronizer.refresh_of(Scope::Due, silent()).await.unwrap();

    assert!(!server.asked().iter().any(|asked| asked.path == LIST));
    let documents = destination.synchronizer.status().borrow().clone().documents;
    let interval = documents.iter().find(|it| it.location.ends_with(LIST)).map(|it| it.interval);
    assert_eq!(interval, Some(3600));
}

#[tokio::test]
async fn a_due_change_list_is_polled_without_the_resource_list() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();
    // What is followed again is due at once.
    let list = DocumentLocation::Uri(server.uri(LIST));
    destination.synchronizer.fetch.schedule.follow([&list], Instant::now());

    destination.synchronizer.refresh_of(Scope::Due, silent()).await.unwrap();

    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert!(asked.iter().any(|path| path == CHANGES) && !asked.iter().any(|path| path == LIST), "{asked:?}");
}

/// What a refresh fetches belongs to no position yet: it would be dropped with what the revision before does not need.
#[tokio::test]
async fn nothing_is_fetched_while_the_spool_is_settled() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    destination.synchronizer.writer.tidying = Some(tokio::task::spawn_blocking(move || {
        let _ = ended.recv();
    }));

    let mut refresh = std::pin::pin!(destination.refresh());
    tokio::select! {
        _ = &mut refresh => panic!("it did not wait"),
        () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {}
    }
    assert!(server.asked().is_empty());

    end.send(()).unwrap();
    refresh.await.unwrap();
    assert!(!server.asked().is_empty());
}

/// Two that settle at one time might undo each other's work.
#[tokio::test]
async fn the_spool_is_settled_behind_one_commit_at_a_time() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    destination.synchronizer.writer.tidying = Some(tokio::task::spawn_blocking(move || {
        let _ = ended.recv();
    }));

    let mut tidied = std::pin::pin!(destination.synchronizer.tidy());
    tokio::select! {
        () = &mut tidied => panic!("it did not wait for the first"),
        () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {}
    }
    end.send(()).unwrap();
    tidied.await;
}

#[tokio::test]
async fn an_announced_update_changes_the_content_alone() {
    use crate::document::Href;
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let digest = "1".repeat(64);
    let entry = |path: &str| {
        let link = |rel: &str, to: &str| format!("<rs:ln rel=\"{rel}\" href=\"{to}\"/>");
        let links = [link("collection", "urn:c"), link("duplicate", "http://m.example/"), link("memento", "urn:old")];
        let md = format!("<rs:md type=\"application/pdf\" hash=\"sha-256:{digest}\" length=\"5\"/>");
        format!("<url><loc>{}</loc>{md}{}</url>", server.uri(path), links.concat())
    };
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &[entry("/a"), entry("/b"), entry("/c")]));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.selection.collections = vec![Href::parse("urn:c").unwrap()];
    destination.synchronizer.config.selection.types = vec!["application/pdf".into()];
    destination.commit().await;
    server.put("/a", Answer::html("longer than before"));
    server.put("/b", Answer::status(405));

    let said = ["/a", "/b"].map(|path| (server.uri(path), Change::Updated.into())).into();
    destination.synchronizer.check(&command::Announcement::Resources(said), false).await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/b", "/c"]);
    assert_eq!((destination.files()["/a"].1, destination.files()["/b"].1), (Some(18), None));
    let snapshot = destination.catalog.snapshot().unwrap();
    for path in ["a", "b"] {
        let resource = snapshot.resource(snapshot.find(path).unwrap().unwrap().ino).unwrap().unwrap();
        let links: Vec<_> = resource.links.iter().map(|link| &*link.rel).collect();
        assert_eq!(links, ["collection"], "of {path}: where its bytes lay too was said of the version before");
        assert_eq!((resource.media_type.as_deref(), resource.hashes.len()), (Some("application/pdf"), 0));
    }
}

/// A cache, or another node, may serve the old version for a while.
#[tokio::test]
async fn an_announced_resource_is_unseen_in_its_known_version() {
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let list = |at: &str, lastmod: &str, length: u32| {
        let md = format!("<lastmod>{lastmod}</lastmod><rs:md length=\"{length}\"/>");
        let entry = format!("<url><loc>{}</loc>{md}</url>", server.uri("/a"));
        server.put(LIST, resource_list_at(&format!("at=\"{at}\""), &[entry]));
    };
    list("2013-01-03T09:00:00Z", "2013-01-03T08:00:00Z", 3);
    let at = |hour: u32| format!("Thu, 03 Jan 2013 {hour:02}:00:00 GMT");
    server.put("/a", Answer::html("old").header("Last-Modified", &at(8)));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let announcement = command::Announcement::Resources([(server.uri("/a"), Change::Updated.into())].into());

    let checked = destination.synchronizer.check(&announcement, false).await.unwrap();
    assert!(matches!(checked.outcome, RefreshResult::Unchanged));
    assert_eq!(checked.unseen, Some(announcement.clone()));

    server.put("/a", Answer::html("newer").header("Last-Modified", &at(10)));
    let checked = destination.synchronizer.check(&announcement, true).await.unwrap();
    assert_eq!((destination.files()["/a"].1, checked.unseen), (Some(5), None));

    // Later by the Source's clock, though that is years behind ours.
    list("2013-01-03T09:30:00Z", "2013-01-03T09:20:00Z", 7);
    destination.commit().await;
    assert_eq!(destination.files()["/a"].1, Some(7));
}

/// A list without `lastmod` speaks for its `at`; a `lastmod` without a time of day stands for the whole day.
#[tokio::test]
async fn announced_resources_are_unseen_without_exact_lastmod() {
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let entry = |path: &str, lastmod: &str| format!("<url><loc>{}</loc>{lastmod}</url>", server.uri(path));
    let entries = [entry("/a", ""), entry("/b", "<lastmod>2013-01-03</lastmod>")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T20:00:00Z\"", &entries));
    let put = |body: &str, modified: &str| {
        ["/a", "/b"].iter().for_each(|path| {
            server.put(path, Answer::html(body).header("Last-Modified", modified));
        });
    };
    put("first", "Thu, 03 Jan 2013 08:00:00 GMT");
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let said = ["/a", "/b"].map(|path| (server.uri(path), Change::Updated.into()));
    let announcement = command::Announcement::Resources(said.into());

    let checked = destination.synchronizer.check(&announcement, false).await.unwrap();
    assert_eq!((checked.unseen, destination.files()["/a"].1), (Some(announcement.clone()), None));

    put("second", "Sat, 05 Jan 2013 08:00:00 GMT");
    let checked = destination.synchronizer.check(&announcement, true).await.unwrap();
    assert_eq!(checked.unseen, None);
    assert_eq!(["/a", "/b"].map(|path| destination.files()[path].1), [Some(6); 2]);
}

#[tokio::test]
async fn an_announced_resource_has_the_announced_length_or_digest() {
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let shown = "md5:1584abdf8ebdc9802ac0c6a7402c03b6";
    let entry = |path: &str, md: &str| format!("<url><loc>{}</loc>{md}</url>", server.uri(path));
    let entries = [entry("/a", ""), entry("/b", &format!("<rs:md hash=\"{shown}\"/>"))];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    ["/a", "/b"].iter().for_each(|path| {
        server.put(path, Answer::html("first"));
    });
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let before = destination.files();
    let long = command::AnnouncedChange { length: Some(6), ..Change::Updated.into() };
    let hashes = crate::document::Digest::parse_list(shown).0;
    let same = command::AnnouncedChange { hashes, ..Change::Updated.into() };
    let announcement = |changes: &[(&str, &command::AnnouncedChange)]| {
        let changes = changes.iter().map(|(path, change)| (server.uri(path), (*change).clone()));
        command::Announcement::Resources(changes.collect())
    };

    let said = announcement(&[("/a", &long), ("/b", &same)]);
    let checked = destination.synchronizer.check(&said, false).await.unwrap();
    assert_eq!(checked.unseen, Some(announcement(&[("/a", &long)])), "the tree shows /b");
    assert_eq!(destination.files(), before);

    server.put("/a", Answer::html("second"));
    let checked = destination.synchronizer.check(&checked.unseen.unwrap(), true).await.unwrap();
    assert_eq!((destination.files()["/a"].1, checked.unseen), (Some(6), None));
}

/// A server with `Last-Modified` alone cannot tell two versions of one second apart (RFC 9110, 8.8.2.2).
#[tokio::test]
async fn a_list_that_is_edited_twice_in_one_second_is_read_twice() {
    let server = source().await;
    let second = "Thu, 03 Jan 2013 12:00:00 GMT";
    let publish = |entries: &[String]| {
        let list = change_list("from=\"2013-01-03T09:00:00Z\"", entries);
        server.put(CHANGES, list.header("Last-Modified", second).header("Date", second));
    };
    let mut entries = vec![change(&server, "/e", &format!("change=\"created\" {}", datetime(10)))];
    publish(&entries);
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;

    entries.push(change(&server, "/f", &format!("change=\"created\" {}", datetime(30))));
    publish(&entries);
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
}
