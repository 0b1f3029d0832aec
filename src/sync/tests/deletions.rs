//! Deletions: which are believed, which wait for a person, which are counted.

use super::changes::{CHANGES, change, change_list, datetime, resource_list_at, source};
use super::*;
use std::collections::BTreeSet;

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
async fn without_at_an_undated_deletion_counts_once_answered_gone() {
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
    assert_eq!(destination.synchronizer.status().borrow().clone().unknown_deletions, 1);
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
    assert_eq!(destination.synchronizer.status().borrow().clone().held.unwrap().files, 1499);

    destination.catalog.write_in_place(1000);
    destination.synchronizer.accept_deletions().await.unwrap();
    let left = destination.synchronizer.status().borrow().clone().held.unwrap().files;
    assert!(left > 0 && destination.synchronizer.holds_deletions().unwrap(), "what is left is still told: {left}");
    destination.synchronizer.accept_deletions().await.unwrap();

    assert!(!destination.synchronizer.holds_deletions().unwrap());
    assert_eq!(destination.synchronizer.status().borrow().clone().held, None);
    assert_eq!(destination.paths(), ["/r1499"]);
}

/// What nobody knows need be no list; but where it was one, what it listed is not thereby gone.
#[tokio::test]
async fn files_of_a_broken_child_of_unknown_capability_stay() {
    let server = Loopback::start();
    let child = |path: &str, md: &str| format!("<sitemap><loc>{}</loc>{md}</sitemap>", server.uri(path));
    let children = child("/1.xml", "") + &child("/x", "<rs:md capability=\"hologram\"/>");
    let root = sitemapindex("capability=\"resourcelist\"", &[], &[]);
    server.put(LIST, Answer::xml(root.replace("</sitemapindex>", &format!("{children}</sitemapindex>"))));
    server.put("/1.xml", Answer::xml(list(&server, &["/a", "/b", "/c"])));
    server.put("/x", Answer::xml(list(&server, &["/d"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d"]);

    server.put("/x", Answer::html("<html>Please log in</html>"));
    destination.refresh().await.unwrap();
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().held.unwrap().files, 1);

    server.put("/x", Answer::xml(list(&server, &["/d", "/e"])));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c", "/d", "/e"]);
    assert_eq!(destination.synchronizer.status().borrow().clone().held, None);
}

#[tokio::test]
async fn held_deletions_that_are_taken_back_leave_the_status_at_once() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let gone = |path: &str| change(&server, path, &format!("change=\"deleted\" {}", datetime(1)));
    let back = |path: &str, minute| change(&server, path, &format!("change=\"created\" {}", datetime(minute)));
    let mut changes = vec![gone("/a"), gone("/b"), gone("/c")];
    let held =
        |destination: &Destination| destination.synchronizer.status().borrow().clone().held.map(|held| held.files);
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

/// What a status tells of deletions that are held back.
fn held(destination: &Destination) -> Option<u64> {
    destination.synchronizer.status().borrow().clone().held.map(|held| held.files)
}

#[tokio::test]
async fn a_missing_set_holds_back_its_own_deletions_until_it_is_back() {
    let server = two_sets().await;
    let of = |set: &str, names: &[&str]| {
        let paths: Vec<String> = names.iter().map(|name| format!("/{set}/{name}")).collect();
        Answer::xml(list(&server, &paths.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    server.put("/one/list.xml", of("one", &["1", "2", "3", "4", "5", "6"]));
    server.put("/two/list.xml", of("two", &["1", "2", "3"]));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let capabilities = server.answer("/one/caps.xml");

    server.put("/one/caps.xml", Answer::status(404));
    server.put("/two/list.xml", of("two", &["2", "3"]));
    destination.commit().await;
    let shown = ["/one/1", "/one/2", "/one/3", "/one/4", "/one/5", "/one/6", "/two/2", "/two/3"];
    assert_eq!(destination.paths(), shown);
    assert_eq!(held(&destination), Some(6));
    server.put("/two/list.xml", of("two", &["2", "3", "4"]));
    destination.commit().await;
    server.put("/two/list.xml", of("two", &["3", "4"]));
    destination.commit().await;
    assert_eq!(destination.paths()[6..], ["/two/3", "/two/4"], "what is held of the one does not count for the other");
    assert_eq!(held(&destination), Some(6));

    let mut destination = destination.restarted(&server);
    server.put("/one/caps.xml", capabilities);
    server.put("/one/list.xml", of("one", &["1", "2", "3", "5"]));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/one/1", "/one/2", "/one/3", "/one/5", "/two/3", "/two/4"]);
    assert_eq!(held(&destination), None);
}

#[tokio::test]
async fn a_set_that_comes_back_almost_empty_is_held_back() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(list(&server, &["/1", "/2", "/3", "/4", "/5", "/6"])));
    server.put("/two/list.xml", Answer::xml(list(&server, &["/a", "/b"])));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let capabilities = server.answer("/one/caps.xml");
    server.put("/one/caps.xml", Answer::status(404));
    destination.commit().await;

    server.put("/one/caps.xml", capabilities);
    server.put("/one/list.xml", Answer::xml(list(&server, &["/1"])));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/1", "/2", "/3", "/4", "/5", "/6", "/a", "/b"]);
    assert_eq!(held(&destination), Some(5));
    let why = destination.synchronizer.status().borrow().clone().held.unwrap().why;
    assert!(why.contains("max-delete"), "{why}");
    server.put("/two/list.xml", Answer::xml(list(&server, &["/b"])));
    destination.commit().await;
    assert_eq!(held(&destination), Some(6), "these were told, and count with what comes after");
}

/// What only a Change List told, and what it told of deletions, outlives a moment in which its set cannot be had: the Change List
/// of then need not tell it again.
#[tokio::test]
async fn what_changes_told_of_a_set_holds_when_the_set_is_back() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/1", "/one/2", "/one/3", "/one/4"])));
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/1"])));
    let at = |path: &str| server.uri(path).to_string();
    let offers = [offer("resourcelist", &at("/one/list.xml")), offer("changelist", &at("/one/changes.xml"))];
    let up = at("/description.xml");
    let capabilities = Answer::xml(urlset("capability=\"capabilitylist\"", &[("up", &up)], &offers));
    server.put("/one/caps.xml", capabilities.clone());
    let created = change(&server, "/one/new", &format!("change=\"created\" {}", datetime(1)));
    let deleted = change(&server, "/one/1", &format!("change=\"deleted\" {}", datetime(2)));
    server.put("/one/changes.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &[created, deleted.clone()]));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let shown = ["/one/2", "/one/3", "/one/4", "/one/new", "/two/1"];
    assert_eq!(destination.paths(), shown);

    server.put("/one/caps.xml", Answer::status(404));
    destination.commit().await;
    assert_eq!(destination.paths(), shown, "held back");
    let mut destination = destination.restarted(&server);
    server.put("/one/caps.xml", capabilities);
    let mut later = deleted;
    later.push_str(&change(&server, "/one/4", &format!("change=\"updated\" length=\"4\" {}", datetime(3))));
    server.put("/one/changes.xml", change_list("from=\"2013-01-03T09:02:00Z\"", &[later]));
    destination.commit().await;

    assert_eq!(destination.paths(), shown);
    assert_eq!(destination.files()["/one/4"].1, Some(4));
    assert_eq!(held(&destination), None);
}

/// Once a person has confirmed that a set is gone, nothing is left of it; should it come back it is read from its beginning.
#[tokio::test]
async fn of_a_set_that_is_gone_for_good_no_change_is_kept() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(list(&server, &["/one/1"])));
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/1"])));
    let at = |path: &str| server.uri(path).to_string();
    let offers = [offer("resourcelist", &at("/one/list.xml")), offer("changelist", &at("/one/changes.xml"))];
    let capabilities =
        Answer::xml(urlset("capability=\"capabilitylist\"", &[("up", &at("/description.xml"))], &offers));
    server.put("/one/caps.xml", capabilities.clone());
    let created = change(&server, "/one/new", &format!("change=\"created\" {}", datetime(1)));
    server.put("/one/changes.xml", change_list("from=\"2013-01-03T09:00:00Z\"", &[created]));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let journaled = |destination: &Destination| {
        let mut count = 0;
        destination.catalog.snapshot().unwrap().journal(&mut |_, _, _| {
            count += 1;
            Ok(())
        })?;
        Ok::<_, CatalogError>(count)
    };

    server.put("/one/caps.xml", Answer::status(404));
    destination.commit().await;
    assert_eq!(journaled(&destination).unwrap(), 1, "it rests");
    destination.synchronizer.accept_deletions().await.unwrap();
    server.put("/two/list.xml", Answer::xml(list(&server, &["/two/1", "/two/2"])));
    destination.commit().await;
    assert_eq!(journaled(&destination).unwrap(), 0);
    server.put("/one/caps.xml", capabilities);
    destination.commit().await;

    assert_eq!(destination.paths(), ["/one/1", "/one/new", "/two/1", "/two/2"]);
}

/// A Source of `/r0`, `/r1` and so on, of which its Change List says without any time that the first `gone` are deleted.
async fn undated(all: usize, gone: usize) -> (Loopback, Destination) {
    let server = source().await;
    let entry = |number| url(server.uri(&format!("/r{number}")).as_str(), "");
    server.put(LIST, resource_list_at("", &(0..all).map(entry).collect::<Vec<_>>()));
    let deleted = |number| change(&server, &format!("/r{number}"), "change=\"deleted\"");
    let changes: Vec<_> = (0..gone).map(deleted).collect();
    server.put(CHANGES, Answer::xml(urlset("capability=\"changelist\"", &[], &changes)).etag("changes"));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();
    (server, destination)
}

fn doubts(destination: &Destination) -> usize {
    destination.synchronizer.status().borrow().clone().sets[0].undated_deletions
}

#[tokio::test]
async fn many_undated_deletions_are_asked_about_refresh_by_refresh() {
    let (server, mut destination) = undated(130, 120).await;
    destination.synchronizer.tuning.asked = 50;
    server.put("/r7", Answer::html("still here"));
    server.put("/r110", Answer::html("still here"));

    destination.commit().await;
    let left = destination.paths().len();
    assert!((80..=82).contains(&left), "50 are asked: {left}");
    assert_eq!(doubts(&destination), 70);
    let mut destination = destination.restarted(&server);
    destination.synchronizer.tuning.asked = 50;
    destination.commit().await;
    assert_eq!(doubts(&destination), 20);
    destination.commit().await;

    let shown: Vec<_> = [7, 110].into_iter().chain(120..130).map(|number| format!("/r{number}")).collect();
    assert_eq!(destination.files().into_keys().collect::<BTreeSet<_>>(), shown.into_iter().collect());
    assert_eq!(doubts(&destination), 0);
    server.asked();
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert!(!server.asked().iter().any(|asked| asked.path.starts_with("/r")), "all have answered");
}

#[tokio::test]
async fn a_resource_that_does_not_answer_stays_and_is_asked_again() {
    let (server, mut destination) = undated(6, 2).await;
    server.put("/r0", Answer::status(503));

    destination.commit().await;
    assert_eq!(destination.paths(), ["/r0", "/r2", "/r3", "/r4", "/r5"]);
    assert_eq!(doubts(&destination), 1);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged), "it does not answer still");
    assert_eq!(doubts(&destination), 1);

    server.put("/r0", Answer::status(410));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/r2", "/r3", "/r4", "/r5"]);
    assert_eq!(doubts(&destination), 0);
}

#[tokio::test]
async fn a_later_change_supersedes_a_deletion_that_waits() {
    let (server, mut destination) = undated(6, 2).await;
    server.put("/r0", Answer::status(503));
    destination.commit().await;
    assert_eq!(doubts(&destination), 1);

    let told = [("/r0", "deleted"), ("/r1", "deleted"), ("/r0", "created")];
    let told = told.map(|(path, word)| change(&server, path, &format!("change=\"{word}\"")));
    server.put(CHANGES, Answer::xml(urlset("capability=\"changelist\"", &[], &told)).etag("more"));
    server.put("/r0", Answer::status(404));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/r0", "/r2", "/r3", "/r4", "/r5"]);
    assert_eq!(doubts(&destination), 0);
}

/// A damaged catalog cannot be read for what it would hold back: a person's word, or a whole list, has it built again.
#[tokio::test]
async fn a_damaged_catalog_is_built_again_once_deletions_are_accepted() {
    let server = Loopback::start();
    server.put(LIST, Answer::xml(list(&server, &["/1", "/2", "/3", "/4"])));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;
    destination.catalog.distrust();
    server.put(LIST, Answer::xml(list(&server, &["/1"])));

    let failed = crate::platform::error_chain::chain(&destination.refresh().await.unwrap_err()).to_string();
    assert!(failed.contains("refresh --accept-deletions"), "{failed}");
    assert_eq!(destination.paths().len(), 4);

    destination.synchronizer.accept_deletions().await.unwrap();
    assert!(!destination.synchronizer.holds_deletions().unwrap());
    destination.commit().await;
    assert_eq!(destination.paths(), ["/1"]);
    assert!(!destination.catalog.is_distrusted());
}

/// A Source whose Capability Lists move does not fill the state with those that it has left.
#[tokio::test]
async fn sets_that_have_left_the_source_leave_the_state() {
    let server = Loopback::start();
    let at = |path: &str| server.uri(path).to_string();
    let mut destination = Destination::of(&server, "/description.xml");
    let mut first = None;
    for edition in 0..200 {
        let (caps, lists) = (format!("/caps-{edition}.xml"), format!("/list-{edition}.xml"));
        let sets = [offer("capabilitylist", &at(&caps))];
        server.put("/description.xml", Answer::xml(urlset("capability=\"description\"", &[], &sets)));
        let up = at("/description.xml");
        let offers = [offer("resourcelist", &at(&lists)), offer("changelist", &at("/changes.xml"))];
        server.put(&caps, Answer::xml(urlset("capability=\"capabilitylist\"", &[("up", &up)], &offers)));
        server.put(&lists, Answer::xml(list(&server, &["/1", "/2", &format!("/new-{edition}")])));
        server.put("/changes.xml", Answer::xml(urlset("capability=\"changelist\"", &[], &[])));
        for _ in 0..2 {
            destination.synchronizer.discovery.is_stale = true;
            destination.refresh().await.unwrap();
        }
        while destination.synchronizer.holds_deletions().unwrap() {
            destination.synchronizer.accept_deletions().await.unwrap();
        }
        let size = destination.written().1.unwrap().len();
        let first = *first.get_or_insert(size);
        assert!(size < 3 * first, "{size} bytes at edition {edition}, {first} at first");
    }

    let position: serde_json::Value = serde_json::from_slice(&destination.written().1.unwrap()).unwrap();
    let sets = position["sets"].as_array().unwrap();
    assert!(sets.len() <= 2, "{} sets", sets.len());
    assert_eq!(destination.paths(), ["/1", "/2", "/new-199"]);
}

#[tokio::test]
async fn lists_among_resources_keep_what_is_not_listed() {
    let server = Loopback::start();
    let paths: Vec<String> = (0..12).map(|number| format!("/{number}")).collect();
    let listed = |count: usize| list(&server, &paths[..count].iter().map(String::as_str).collect::<Vec<_>>());
    server.put(LIST, Answer::xml(listed(12)));
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;

    let further = format!("<sitemap><loc>{}</loc></sitemap></urlset>", server.uri("/more.xml"));
    server.put(LIST, Answer::xml(listed(10).replace("</urlset>", &further)));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files().len(), 12, "the list may name them");
    server.put(LIST, Answer::xml(listed(10)));
    destination.refresh().await.unwrap();
    assert_eq!(destination.files().len(), 10);
}

/// Promise: what a person confirms is confirmed for the refresh that was asked for, and no later one.
#[tokio::test]
async fn a_confirmation_does_not_outlive_a_refresh_that_fails() {
    let server = Loopback::start();
    let mut destination = Destination::of(&server, LIST);
    server.put(LIST, Answer::status(404));
    destination.synchronizer.writer.confirms_rebuilding = true;

    destination.refresh().await.unwrap_err();

    assert!(!destination.synchronizer.writer.confirms_rebuilding);
}
