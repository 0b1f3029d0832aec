//! Changes followed: what is applied, what is known afterwards, and when the lists are asked instead.

use super::*;

const CHANGES: &str = "/changes.xml";

/// A `<url>` of a change document: `md` as written.
pub(super) fn change(server: &Loopback, path: &str, md: &str) -> String {
    url(server.uri(path).as_str(), md)
}

fn change_list(interval: &str, changes: &[String]) -> Answer {
    Answer::xml(urlset(&format!("capability=\"changelist\" {interval}"), &[], changes))
}

pub(super) fn resource_list_at(at: &str, entries: &[String]) -> Answer {
    Answer::xml(urlset(&format!("capability=\"resourcelist\" {at}"), &[], entries))
}

/// A Source of one set with a Resource List of `/a`, `/b`, `/c` and `/d` at nine o'clock and an empty Change List from then on.
pub(super) async fn source() -> Loopback {
    let server = Loopback::start().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str()), offer("changelist", server.uri(CHANGES).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put(LIST, Answer::xml(list(&server, &["/a", "/b", "/c", "/d"])).etag("list"));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[]));
    server
}

fn datetime(minute: u32) -> String {
    format!("datetime=\"2013-01-03T10:{minute:02}:00Z\"")
}

#[tokio::test]
async fn changes_are_applied_over_the_baseline_with_the_position_in_one_commit() {
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
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
    assert_eq!(destination.written(), written);
}

#[tokio::test]
async fn a_synchronizer_that_died_before_its_commit_repeats_and_one_after_it_skips_nothing() {
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
    let sets = followed(&source, Some(&stored));
    let read = destination.synchronizer.read_changes(&sets, &stored, &Extent::Everything, &silent()).await.unwrap();
    assert_eq!(read.0.len(), 1);

    let mut destination = destination.restarted(&server);
    destination.commit().await;
    assert_eq!(destination.files()["/b"].1, Some(9));
    let written = destination.written();

    let mut destination = destination.restarted(&server);
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged), "nothing is applied twice");
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
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
}

#[tokio::test]
async fn a_resource_list_older_than_the_oldest_change_is_a_gap_that_is_told_and_makes_no_loop_of_baselines() {
    let server = source().await;
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(30)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T10:20:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"], "the changes are applied all the same");
    let since = destination.synchronizer.status().read().sets[0].gap_since.clone();
    assert_eq!(since.as_deref(), Some("2013-01-03T09:00:00Z"));
    let written = destination.written();
    for _ in 0..3 {
        assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
    }
    assert_eq!(destination.written(), written);

    let entries = ["/a", "/b", "/c", "/e"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T10:25:00Z\"", &entries));
    destination.commit().await;
    assert_eq!(destination.synchronizer.status().read().sets[0].gap_since, None, "a new list has closed it");
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/e"]);
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
    let announced = extent::Announced { roots, ..Default::default() };
    destination.synchronizer.refresh_of(Extent::Announced(announced), silent()).await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f", "/g"]);
    assert_eq!(destination.synchronizer.status().read().sets[0].gap_since, None);
}

#[tokio::test]
async fn a_change_list_that_cannot_be_read_leaves_the_tree_and_is_read_when_it_can_be() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let before = destination.files();
    let changes = [change(&server, "/e", &format!("change=\"created\" {}", datetime(1)))];
    let good = change_list("from=\"2013-01-03T09:00:00Z\"", &changes);

    for fault in [Answer::status(403), Answer::status(404), Answer::xml("<urlset><url>"), Answer::html("<html/>")] {
        server.put(CHANGES, fault);
        destination.refresh().await.unwrap();
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
async fn a_resource_in_two_sets_goes_when_both_have_deleted_it() {
    let server = two_sets().await;
    for set in ["/one", "/two"] {
        let at = |path: &str| server.uri(&format!("{set}/{path}")).to_string();
        let offers = [offer("resourcelist", &at("list.xml")), offer("changelist", &at("changes.xml"))];
        let up = server.uri("/description.xml").to_string();
        let capabilities = urlset("capability=\"capabilitylist\"", &[("up", &up)], &offers);
        server.put(&format!("{set}/caps.xml"), Answer::xml(capabilities));
        let own = [format!("{set}/1"), format!("{set}/2")];
        server.put(&format!("{set}/list.xml"), Answer::xml(list(&server, &["/shared", &own[0], &own[1]])));
        server.put(&format!("{set}/changes.xml"), change_list("from=\"2013-01-03T09:00:00Z\"", &[]));
    }
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let whole = ["/one/1", "/one/2", "/shared", "/two/1", "/two/2"];
    assert_eq!(destination.paths(), whole);

    let gone = [change(&server, "/shared", &format!("change=\"deleted\" {}", datetime(1)))];
    server.put("/one/changes.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &gone));
    destination.refresh().await.unwrap();
    assert_eq!(destination.paths(), whole, "the other set has it still");
    server.put("/two/changes.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &gone));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/one/1", "/one/2", "/two/1", "/two/2"]);
}

#[tokio::test]
async fn without_at_every_change_at_hand_counts_and_an_undated_deletion_only_where_the_resource_is_gone() {
    let server = source().await;
    let entries = ["/a", "/b", "/c", "/d"].map(|path| url(server.uri(path).as_str(), ""));
    server.put(LIST, resource_list_at("", &entries));
    let changes = [
        change(&server, "/e", "change=\"created\""),
        change(&server, "/a", "change=\"deleted\""),
        change(&server, "/b", "change=\"deleted\""),
    ];
    server.put(CHANGES, change_list("", &changes));
    server.put("/b", Answer::html("still here"));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/b", "/c", "/d", "/e"], "/a answers 404");
}

#[tokio::test]
async fn a_deletion_of_what_was_never_here_is_counted() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let before = destination.files();
    let gone = [change(&server, "/never", &format!("change=\"deleted\" {}", datetime(1)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &gone));

    destination.refresh().await.unwrap();

    assert_eq!(destination.files(), before);
    assert_eq!(destination.synchronizer.status().read().unknown_deletions, 1);
}

#[tokio::test]
async fn deletions_of_more_than_half_wait_for_a_person_and_the_rest_is_applied() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let gone = |path: &str| change(&server, path, &format!("change=\"deleted\" {}", datetime(1)));
    let new = change(&server, "/e", &format!("change=\"created\" {}", datetime(1)));
    let changes = [gone("/a"), gone("/b"), gone("/c"), new];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(destination.synchronizer.status().read().held.unwrap().files, 3);

    // Neither a restart nor another look applies them.
    let mut destination = destination.restarted(&server);
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
    assert_eq!(destination.synchronizer.status().read().held.unwrap().files, 3);

    destination.synchronizer.accept_deletions().await.unwrap();
    assert_eq!(destination.paths(), ["/d", "/e"]);
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
    assert_eq!(destination.synchronizer.status().read().held, None);
}

#[tokio::test]
async fn a_resource_list_of_a_time_that_is_yet_to_come_hides_no_change() {
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
async fn a_person_accepts_all_that_is_held_back_however_much_it_is() {
    let server = source().await;
    let paths: Vec<String> = (0..1500).map(|number| format!("/r{number}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    server.put(LIST, Answer::xml(list(&server, &paths)));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let gone = |path: &&str| change(&server, path, &format!("change=\"deleted\" {}", datetime(1)));
    let changes: Vec<String> = paths[..1499].iter().map(gone).collect();
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;
    assert_eq!(destination.synchronizer.status().read().held.unwrap().files, 1499);

    destination.synchronizer.accept_deletions().await.unwrap();
    let left = destination.synchronizer.status().read().held.unwrap().files;
    assert!(left > 0 && destination.synchronizer.holds_deletions().unwrap(), "what is left is still told: {left}");
    destination.synchronizer.accept_deletions().await.unwrap();

    assert!(!destination.synchronizer.holds_deletions().unwrap());
    assert_eq!(destination.synchronizer.status().read().held, None);
    assert_eq!(destination.paths(), ["/r1499"]);
}

#[tokio::test]
async fn of_an_index_only_what_may_be_new_is_fetched() {
    let server = source().await;
    let child = |path: &str, until: &str| format!("<sitemap><loc>{}</loc><rs:md {until}/></sitemap>", server.uri(path));
    let index = |children: &[String]| {
        Answer::xml(crate::source::loopback::document("sitemapindex", "capability=\"changelist\"", &[], children))
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
    let document = crate::source::loopback::document("sitemapindex", "capability=\"changelist\"", &[], &children);
    server.put("/index.xml", Answer::xml(document));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
    assert!(matches!(destination.refresh().await.unwrap(), Outcome::Unchanged));
}

#[tokio::test]
async fn a_look_at_a_change_list_fetches_that_document_and_nothing_else() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();
    let new = [change(&server, "/e", &format!("change=\"created\" {}", datetime(1)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &new));

    let look = poll::Look::Document { document: server.uri(CHANGES), index: None };
    let looked = destination.synchronizer.look(&look, false).await.unwrap();

    assert!(matches!(looked, Outcome::Committed(_)));
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(asked, [CHANGES]);
}

#[tokio::test]
async fn announced_resources_of_a_set_without_change_list_are_asked_themselves() {
    let server = source().await;
    let offers = [offer("resourcelist", server.uri(LIST).as_str())];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put("/a", Answer::html("still here"));
    server.put("/e", Answer::html("new"));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;

    let said = [("/a", Change::Deleted), ("/b", Change::Deleted), ("/e", Change::Created), ("/f", Change::Created)];
    let resources = said.map(|(path, change)| (server.uri(path), change)).to_vec();
    destination.synchronizer.look(&poll::Look::Resources(resources), false).await.unwrap();

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e"], "/b answers 404, /f too");
    assert_eq!(destination.files()["/e"].1, Some(3));
}

#[tokio::test]
async fn a_second_change_list_of_a_set_that_is_found_later_is_applied_from_the_lists_time_on() {
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
    destination.synchronizer.is_stale = true;
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e"], "what is older than the list is in it");
    assert_eq!(destination.files()["/a"].1, Some(7), "the later statement stands");
    let status = destination.synchronizer.status().read();
    assert_eq!(status.sets[0].gap_since, None);
    assert_eq!(status.sets[0].changes_until.as_deref(), Some("2013-01-03T10:30:00Z"));
}

#[tokio::test]
async fn a_change_list_in_the_place_of_another_goes_on_where_that_ended() {
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
    destination.synchronizer.is_stale = true;
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e", "/f"]);
    assert_eq!(destination.synchronizer.status().read().sets[0].gap_since, None);
}

#[tokio::test]
async fn a_change_list_that_answers_5xx_is_asked_once_and_keeps_neither_another_nor_the_lists_waiting() {
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

    let status = destination.synchronizer.status().read();
    let failed = status.documents.iter().find(|it| it.location.ends_with(CHANGES)).unwrap();
    assert!(matches!(&failed.answer, status::Answer::Failed(why) if why.contains("503")), "{failed:?}");
}

#[tokio::test]
async fn while_the_source_cannot_be_discovered_what_is_known_of_is_followed_on() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    for (minute, fault) in [(1, Answer::status(404)), (2, Answer::html("<html/>")), (3, Answer::status(403))] {
        server.put("/caps.xml", fault);
        destination.synchronizer.is_stale = true;
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
async fn status_tells_the_rules_that_documents_break_as_of_their_last_reading() {
    let server = source().await;
    let entries = [url(server.uri("/a").as_str(), "length=\"many\""), url(server.uri("/b").as_str(), "length=\"few\"")];
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:00:00Z\"", &entries));
    let changes = [change(&server, "/e", &format!("change=\"created\" {} length=\"five\"", datetime(1)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");
    let lengths = |destination: &Destination| {
        let told = destination.synchronizer.status().read().deviations;
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

#[tokio::test]
async fn deletions_that_are_held_back_and_are_taken_back_are_told_at_once() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let gone = |path: &str| change(&server, path, &format!("change=\"deleted\" {}", datetime(1)));
    let back = |path: &str, minute| change(&server, path, &format!("change=\"created\" {}", datetime(minute)));
    let mut changes = vec![gone("/a"), gone("/b"), gone("/c")];
    let held = |destination: &Destination| destination.synchronizer.status().read().held.map(|held| held.files);
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;
    assert_eq!(held(&destination), Some(3));

    for (path, minute, left) in [("/a", 2, Some(2)), ("/b", 3, Some(1)), ("/c", 4, None)] {
        changes.push(back(path, minute));
        server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
        destination.commit().await;

        assert_eq!(held(&destination), left, "in the status of the very commit");
    }
}

#[tokio::test]
async fn the_newest_list_of_an_index_is_read_at_the_first_look_and_polled_though_all_ended_before_the_lists() {
    let server = source().await;
    let child = |path: &str, until: &str| format!("<sitemap><loc>{}</loc><rs:md {until}/></sitemap>", server.uri(path));
    let [first, second] = [("07:00", "08:00"), ("08:00", "08:30")]
        .map(|(from, until)| format!("from=\"2013-01-03T{from}:00Z\" until=\"2013-01-03T{until}:00Z\""));
    let children = [child("/1.xml", &first), child("/2.xml", &second)];
    let document = crate::source::loopback::document("sitemapindex", "capability=\"changelist\"", &[], &children);
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
async fn a_change_list_that_ends_at_each_request_makes_no_discovery_until_it_stops_changing() {
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

    destination.synchronizer.refresh_of(Extent::Due, silent()).await.unwrap();

    assert!(!server.asked().iter().any(|asked| asked.path == LIST));
    let documents = destination.synchronizer.status().read().documents;
    let interval = documents.iter().find(|it| it.location.ends_with(LIST)).map(|it| it.interval);
    assert_eq!(interval, Some(3600));
}

#[tokio::test]
async fn where_a_change_list_is_due_the_resource_list_is_not_asked_for() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();
    // What is followed anew is due at once.
    let list = DocumentLocation::Uri(server.uri(LIST));
    destination.synchronizer.schedule.follow([&list], Instant::now());

    destination.synchronizer.refresh_of(Extent::Due, silent()).await.unwrap();

    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert!(asked.iter().any(|path| path == CHANGES) && !asked.iter().any(|path| path == LIST), "{asked:?}");
}

fn silent() -> Progressing {
    Arc::new(|_| ())
}

/// What a refresh fetches belongs to no position yet: whoever settles the spool for the revision before would drop it.
#[tokio::test]
async fn nothing_is_fetched_while_the_spool_is_settled_behind_the_last_commit() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.asked();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    destination.synchronizer.settling = Some(tokio::task::spawn_blocking(move || {
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
