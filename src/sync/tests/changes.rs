//! Changes followed: what is applied, what is known afterwards, and what is a gap.

use super::*;

pub(super) const CHANGES: &str = "/changes.xml";

/// A `<url>` of a change document: `md` as written.
pub(super) fn change(server: &Loopback, path: &str, md: &str) -> String {
    url(server.uri(path).as_str(), md)
}

pub(super) fn change_list(interval: &str, changes: &[String]) -> Answer {
    Answer::xml(urlset(&format!("capability=\"changelist\" {interval}"), &[], changes))
}

pub(super) fn resource_list_at(at: &str, entries: &[String]) -> Answer {
    Answer::xml(urlset(&format!("capability=\"resourcelist\" {at}"), &[], entries))
}

/// A Source of one set with a Resource List of `/a`, `/b`, `/c` and `/d` at nine o'clock and an empty Change List from then on.
pub(super) async fn source() -> Loopback {
    let server = Loopback::start();
    let offers = [offer("resourcelist", server.uri(LIST).as_str()), offer("changelist", server.uri(CHANGES).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])).etag("list"));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[]));
    server
}

pub(super) fn datetime(minute: u32) -> String {
    format!("datetime=\"2013-01-03T10:{minute:02}:00Z\"")
}

pub(super) fn silent() -> Progressing {
    Arc::new(|_| ())
}

#[tokio::test]
async fn changes_and_state_are_in_one_commit() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let before = destination.files();
    destination.refresh().await.unwrap();
    server.asked();

    let changes = [
        change(&server, "/e", &format!("change=\"created\" {} length=\"5\"", datetime(1))),
        change(&server, "/a", &format!("change=\"updated\" {} length=\"7\"", datetime(2))),
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(3))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes).etag("changes"));
    let committed = destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e"]);
    assert_eq!(destination.files()["/a"].1, Some(7));
    assert_ne!(destination.files()["/a"].0, before["/a"].0, "a new version is a new inode");
    assert_eq!(destination.files()["/c"], before["/c"]);
    assert_eq!((committed.created, committed.updated, committed.deleted), (1, 1, 1));
    let list_again: u64 = server.asked().iter().filter(|it| it.path == LIST).map(|it| it.sent as u64).sum();
    assert_eq!(list_again, 0, "the Resource List is not read again");
    let written = destination.written();
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!(destination.written(), written);
}

#[tokio::test]
async fn of_equal_times_in_two_change_lists_the_later_list_counts() {
    let server = source().await;
    let offers = [("resourcelist", LIST), ("changelist", CHANGES), ("changelist", "/more.xml")];
    let offers = offers.map(|(capability, path)| offer(capability, server.uri(path).as_str()));
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    for (path, length) in [(CHANGES, 5), ("/more.xml", 7)] {
        let md = format!("change=\"updated\" {} length=\"{length}\"", datetime(1));
        server.put(path, change_list("from=\"2013-01-03T09:00:00Z\"", &[change(&server, "/a", &md)]));
    }
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.files()["/a"].1, Some(7));
}

#[tokio::test]
async fn a_deletion_needs_its_loc_alone() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let changes = [
        change(&server, "/new", &format!("change=\"updated\" {} length=\"5\"", datetime(1))),
        change(&server, "/a", &format!("change=\"created\" {} length=\"7\"", datetime(2))),
        format!("<url><loc>{}</loc><rs:md change=\"deleted\"/></url>", server.uri("/b")),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));

    let committed = destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/new"]);
    assert_eq!((destination.files()["/new"].1, destination.files()["/a"].1), (Some(5), Some(7)));
    assert_eq!((committed.created, committed.updated, committed.deleted), (1, 1, 1));
}

#[tokio::test]
async fn a_crash_neither_skips_nor_repeats_a_change() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let changes = [
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(1))),
        change(&server, "/b", &format!("change=\"created\" {} length=\"9\"", datetime(2))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes).etag("changes"));
    // Everything is fetched, nothing committed.
    let stored = destination.synchronizer.position().unwrap().unwrap();
    let (source, _) = destination.synchronizer.source(false).await.unwrap();
    let sets = stored.clone().follow(&source);
    let read = destination.synchronizer.read_changes(&sets, &stored, &Scope::Everything).await.unwrap();
    assert_eq!(read.len(), 1);

    let mut destination = destination.restarted(&server);
    destination.commit().await;
    assert_eq!(destination.files()["/b"].1, Some(9));
    let written = destination.written();

    let mut destination = destination.restarted(&server);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged), "nothing is applied twice");
    assert_eq!(destination.written(), written);
}

#[tokio::test]
async fn a_resource_list_older_than_the_position_takes_nothing_back() {
    let server = source().await;
    let changes = [
        change(&server, "/e", &format!("change=\"created\" {}", datetime(1))),
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(2))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e"]);

    // Another list, of a time before the changes: it alone shows that /c is gone and /f is there.
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    let entries = ["/a", "/b", "/d", "/f"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:30:00Z\"", &entries));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/d", "/e", "/f"]);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn a_list_older_than_the_oldest_change_is_a_gap_without_a_loop() {
    let server = source().await;
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T10:20:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"], "the changes are applied all the same");
    let since = destination.synchronizer.status().borrow().clone().sets[0].gap_since;
    assert_eq!(since, "2013-01-03T09:00:00Z".parse().ok());
    let written = destination.written();
    for _ in 0..3 {
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    }
    assert_eq!(destination.written(), written);

    let entries = ["/a", "/b", "/c", "/e"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:25:00Z\"", &entries));
    destination.commit().await;
    assert_eq!(destination.synchronizer.status().borrow().clone().sets[0].gap_since, None, "a new list has closed it");
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/e"]);
}

#[tokio::test]
async fn a_list_that_is_older_than_a_gaps_end_does_not_close_it() {
    let server = source().await;
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T10:20:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let gap = |destination: &Destination| destination.synchronizer.status().borrow().clone().sets[0].gap_since;
    assert!(gap(&destination).is_some());
    let entries = ["/a", "/b"].map(|path| url(server.uri(path).as_str(), ""));

    // The Change List is as it was.
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:10:00Z\"", &entries));
    destination.commit().await;
    assert!(gap(&destination).is_some(), "what happened until 10:20 is in neither");

    // It has grown, and goes on where it was.
    let more = change(&server, "/f", &format!("change=\"created\" {}", datetime(40)));
    server.put(CHANGES, change_list("from=\"2013-01-03T10:20:00Z\"", &[changes[0].clone(), more]));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:15:00Z\"", &entries));
    destination.commit().await;
    assert!(gap(&destination).is_some());

    server.put(LIST, resource_list_at("at=\"2013-01-03T10:25:00Z\"", &entries));
    destination.commit().await;
    assert_eq!(gap(&destination), None);
}

#[tokio::test]
async fn a_window_that_has_rolled_on_asks_the_lists_by_itself() {
    let server = source().await;
    let first = [change(&server, "/e", &format!("change=\"created\" {}", datetime(1)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &first));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;

    let later = [change(&server, "/g", &format!("change=\"created\" {}", datetime(50)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T10:40:00Z\"", &later));
    let entries = ["/a", "/b", "/c", "/d", "/e", "/f"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:45:00Z\"", &entries));
    // Only the Change List is due.
    let roots = vec![DocumentLocation::Uri(server.uri(CHANGES))];
    let announced = command::AnnouncedDocuments { roots, ..Default::default() };
    destination.synchronizer.refresh_of(Scope::Announced(announced), silent()).await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f", "/g"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().sets[0].gap_since, None);
}

#[tokio::test]
async fn an_undated_change_behind_a_newer_list_counts() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let entries = ["/a", "/b", "/c", "/d", "/e"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:25:00Z\"", &entries));
    // Only the Resource List is due.
    let roots = vec![DocumentLocation::Uri(server.uri(LIST))];
    let announced = command::AnnouncedDocuments { roots, ..Default::default() };
    destination.synchronizer.refresh_of(Scope::Announced(announced), silent()).await.unwrap();
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);

    let undated = [change(&server, "/f", "change=\"created\"")];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &undated));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
}

#[tokio::test]
async fn a_broken_change_list_leaves_the_tree_and_is_read_later() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let before = destination.files();
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(1)))];
    let good = change_list("from=\"2013-01-03T09:00:00Z\"", &changes);

    let faults = [Answer::status(403), Answer::status(404), Answer::xml("<urlset><url>"), Answer::html("<html/>")];
    for (fault, is_gone) in faults.into_iter().zip([false, true, false, false]) {
        server.put(CHANGES, fault);

        let refreshed = destination.refresh().await;

        let gap_since = destination.synchronizer.status().borrow().clone().sets[0].gap_since;
        match refreshed {
            Ok(_) => assert!(is_gone && gap_since.is_some(), "what is gone may have told of changes"),
            Err(cause) => assert!(!is_gone && chain(&cause).contains(CHANGES), "whoever asked is told"),
        }
        assert_eq!(destination.files(), before);
    }
    server.put(CHANGES, good.etag("good"));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
}

#[tokio::test]
async fn a_change_list_that_cannot_be_read_stops_no_baseline() {
    let server = source().await;
    server.put(CHANGES, Answer::status(410));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;
    let entries = ["/a", "/b", "/c", "/z"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:45:00Z\"", &entries));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/z"]);
}

#[tokio::test]
async fn a_list_of_a_future_time_hides_no_change() {
    let server = source().await;
    let entries = ["/a", "/b", "/c", "/d"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2999-01-01T00:00:00Z\"", &entries));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;

    let changes = [
        change(&server, "/e", &format!("change=\"created\" {}", datetime(1))),
        change(&server, "/a", &format!("change=\"updated\" {} length=\"7\"", datetime(2))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(destination.files()["/a"].1, Some(7));
}

#[tokio::test]
async fn a_damaged_journal_is_made_again_of_what_is_published() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;
    destination.catalog.spoil_journal();
    destination.catalog.distrust();

    destination.commit().await;

    assert!(!destination.catalog.is_distrusted());
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().sets[0].gap_since, None);
}

#[tokio::test]
async fn a_second_change_list_is_applied_from_the_lists_time_on() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let first = [change(&server, "/a", &format!("change=\"updated\" {} length=\"7\"", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &first));
    destination.commit().await;

    let offers = ["/changes.xml", "/more.xml"].map(|path| offer("changelist", server.uri(path).as_str()));
    let offers = [&[offer("resourcelist", server.uri(LIST).as_str())], &offers[..]].concat();
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let second = [
        change(&server, "/early", "change=\"created\" datetime=\"2013-01-03T08:00:00Z\""),
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(5))),
        change(&server, "/a", &format!("change=\"updated\" {} length=\"1\"", datetime(10))),
        change(&server, "/e", &format!("change=\"created\" {}", datetime(20))),
    ];
    server.put("/more.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &second));
    destination.synchronizer.discovery.is_stale = true;
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e"], "what is older than the list is in it");
    assert_eq!(destination.files()["/a"].1, Some(7), "the later statement stands");
    let status = destination.synchronizer.status().borrow().clone();
    assert_eq!(status.sets[0].gap_since, None);
    assert_eq!(status.sets[0].changes_until, "2013-01-03T10:30:00Z".parse().ok());
}

#[tokio::test]
async fn a_change_list_in_the_place_of_another_goes_on_from_it() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let first = [change(&server, "/e", &format!("change=\"created\" {}", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &first));
    destination.commit().await;

    let offers = [("resourcelist", LIST), ("changelist", "/next.xml")];
    let offers = offers.map(|(capability, path)| offer(capability, server.uri(path).as_str()));
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    let next = [change(&server, "/f", &format!("change=\"created\" {}", datetime(50)))];
    server.put("/next.xml", change_list("from=\"2013-01-03T10:30:00Z\"", &next));
    destination.synchronizer.discovery.is_stale = true;
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().sets[0].gap_since, None);
}

#[tokio::test]
async fn status_names_the_rules_that_documents_break() {
    let server = source().await;
    let entries = [url(server.uri("/a").as_str(), "length=\"many\""), url(server.uri("/b").as_str(), "length=\"few\"")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let changes = [change(&server, "/e", &format!("change=\"created\" {} length=\"five\"", datetime(1)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");
    let lengths = |destination: &Destination| {
        let told = destination.synchronizer.status().borrow().clone().deviations;
        told.into_iter().find(|it| it.rule.starts_with("length"))
    };

    destination.commit().await;
    let told = lengths(&destination).unwrap();
    assert_eq!((told.count, told.section.as_str()), (3, "7"));
    assert_eq!(told.location, server.uri(CHANGES).to_string(), "it is read first");
    destination.refresh().await.unwrap();
    assert_eq!(lengths(&destination).unwrap().count, 3, "what is not read again still breaks it");

    let entries = ["/a", "/b"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[]));
    destination.commit().await;

    assert_eq!(lengths(&destination), None);
}

/// Promise: never stale longer than it says. A list that breaks keeps no change from being applied.
#[tokio::test]
async fn changes_are_followed_while_a_list_is_broken() {
    let whole = |server: &Loopback| list(server, &["/a", "/b", "/c", "/d"]);
    for broken in [r#"<urlset><url><loc>&base;a</loc></url></urlset>"#, "<urlset><url><loc>http://a/</loc></url>"] {
        let server = source().await;
        let mut destination = Destination::of(&server, "/caps.xml");
        destination.commit().await;
        server.put(LIST, Answer::xml(broken));
        let created = change(&server, "/e", &format!("change=\"created\" {}", datetime(1)));
        server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", std::slice::from_ref(&created)));

        destination.commit().await;

        assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"], "{broken}");
        let refused = destination.refresh().await;
        assert!(matches!(refused, Err(SyncError::Behind(_))), "{broken}: {refused:?}");
        let deleted = change(&server, "/a", &format!("change=\"deleted\" {}", datetime(2)));
        server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[created, deleted]));
        destination.commit().await;
        assert_eq!(destination.paths(), ["/b", "/c", "/d", "/e"], "{broken}");
        server.put(LIST, Answer::xml(whole(&server)));
        destination.refresh().await.unwrap();
        assert_eq!(destination.paths(), ["/b", "/c", "/d", "/e"], "{broken}");
    }
}

/// As above, where both were due and the changes have just been read.
#[tokio::test]
async fn due_changes_are_followed_while_a_list_is_broken() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.put(LIST, Answer::xml("<urlset><url><loc>http://a/</loc></url>"));
    let created = change(&server, "/e", &format!("change=\"created\" {}", datetime(1)));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[created]));
    // What is followed for the first time is due at once.
    destination.synchronizer.fetch.schedule.follow([], Instant::now());

    destination.synchronizer.refresh_of(Scope::Due, silent()).await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
}
