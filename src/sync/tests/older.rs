//! Lists that are older than what is shown: a cache's, or the Source's own.

use super::changes::{CHANGES, change, change_list, datetime, resource_list_at, silent, source};
use super::refresh::LONGEST_STALE;
use super::*;

/// A Resource List of the third of January.
fn list_of(server: &Loopback, at: &str, paths: &[&str]) -> Answer {
    let entries: Vec<_> = paths.iter().map(|path| url(server.uri(path).as_str(), "")).collect();
    resource_list_at(&format!("at=\"2013-01-03T{at}:00Z\""), &entries)
}

/// As if all stale lists had been served for as long as it takes to believe them.
fn age(destination: &mut Destination) {
    destination.synchronizer.stale_lists.values_mut().for_each(|(_, since)| *since -= LONGEST_STALE);
}

#[tokio::test]
async fn an_older_list_that_is_served_for_a_day_is_believed() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    server.put(LIST, list_of(&server, "10:30", &["/a", "/c", "/d"]));
    destination.commit().await;
    // Made of the newest date in it, which is gone now.
    server.put(LIST, list_of(&server, "10:10", &["/a", "/c"]));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

    age(&mut destination);
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c"]);
}

/// An old node answers, or a mirror that has not been copied yet.
#[tokio::test]
async fn a_sitemap_that_goes_back_changes_nothing_for_a_day() {
    let server = Loopback::start();
    let sitemap = |entries: &[(&str, &str)]| {
        let entry = |(path, lastmod): &(&str, &str)| {
            let lastmod = if lastmod.is_empty() { String::new() } else { format!("<lastmod>{lastmod}</lastmod>") };
            format!("<url><loc>{}</loc>{lastmod}</url>", server.uri(path))
        };
        let entries: String = entries.iter().map(entry).collect();
        format!("<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{entries}</urlset>")
    };
    let by_lastmod = [
        Answer::xml(sitemap(&[("/a", "2013-01-03"), ("/b", "2013-01-04"), ("/c", "2013-01-02")])),
        Answer::xml(sitemap(&[("/a", "2013-01-03"), ("/c", "2013-01-01")])),
        Answer::xml(sitemap(&[("/a", "2013-01-03"), ("/b", "2013-01-05")])),
    ];
    let modified = |paths: &[(&str, &str)], second: u32| {
        Answer::xml(sitemap(paths)).header("Last-Modified", &format!("Thu, 03 Jan 2013 12:00:{second:02} GMT"))
    };
    let by_header = [
        modified(&[("/a", ""), ("/b", ""), ("/c", "")], 20),
        modified(&[("/a", ""), ("/c", "")], 10),
        modified(&[("/a", ""), ("/b", "")], 30),
    ];
    for [first, older, newer] in [by_lastmod, by_header] {
        server.put(LIST, first);
        let mut destination = Destination::of(&server, LIST);
        destination.synchronizer.config.max_delete = MaxDelete::percent(100).unwrap();
        destination.commit().await;
        let shown = destination.files();

        server.put(LIST, older.clone());
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
        let mut destination = destination.restarted(&server);
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
        assert_eq!(destination.files(), shown);
        server.put(LIST, newer);
        destination.commit().await;
        assert_eq!(destination.paths(), ["/a", "/b"]);
        server.put(LIST, older);
        destination.refresh().await.unwrap();
        age(&mut destination);
        destination.commit().await;

        assert_eq!(destination.paths(), ["/a", "/c"], "what is served for a day is what the Source publishes");
    }
}

/// A sitemap: paths with their `lastmod`, and the second at which its server says that it was written.
fn written_at(server: &Loopback, second: u32, entries: &[(&str, &str)]) -> Answer {
    let entry = |(path, lastmod): &(&str, &str)| {
        format!("<url><loc>{}</loc><lastmod>{lastmod}</lastmod></url>", server.uri(path))
    };
    let entries: String = entries.iter().map(entry).collect();
    let sitemap = format!("<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{entries}</urlset>");
    Answer::xml(sitemap).header("Last-Modified", &format!("Thu, 03 Jan 2013 12:00:{second:02} GMT"))
}

#[tokio::test]
async fn a_sitemap_written_anew_without_its_newest_entry_is_not_older() {
    let server = Loopback::start();
    let first = written_at(&server, 10, &[("/a", "2013-01-01"), ("/b", "2013-01-02"), ("/c", "2013-01-01")]);
    server.put(LIST, first.clone());
    let mut destination = Destination::of(&server, LIST);
    destination.commit().await;

    server.put(LIST, written_at(&server, 20, &[("/a", "2013-01-01"), ("/c", "2013-01-01"), ("/d", "2013-01-01")]));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c", "/d"]);
    // An old node has the newest date, but was written before.
    server.put(LIST, first);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!(destination.paths(), ["/a", "/c", "/d"]);
    let mut destination = destination.restarted(&server);
    server.put(LIST, written_at(&server, 30, &[("/a", "2013-01-01"), ("/c", "2013-01-01"), ("/e", "2013-01-01")]));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/e"]);
}

#[tokio::test]
async fn an_older_list_that_is_ignored_is_reported() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    server.put(LIST, list_of(&server, "10:30", &["/a", "/c", "/d"]));
    destination.commit().await;
    server.put(LIST, list_of(&server, "10:10", &["/a", "/c"]));

    destination.refresh().await.unwrap();

    let status = destination.synchronizer.status().borrow().clone();
    let failed = status.last_refresh.unwrap().failed;
    assert_eq!(failed.iter().map(|failed| failed.kind).collect::<Vec<_>>(), [FailureKind::Unusable]);
    assert!(failed[0].why.contains("/list.xml dates from 2013-01-03T10:10:00Z and is older"), "{failed:?}");
    let list = status.documents.iter().find(|it| it.location.ends_with(LIST)).unwrap();
    assert!(matches!(&list.answer, status::PollAnswer::Failed(why) if why.contains("older")), "{list:?}");
}

#[tokio::test]
async fn an_older_list_behind_a_newer_one_takes_nothing_back() {
    let server = source().await;
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let old = server.answer(LIST);
    let changes = [
        change(&server, "/e", &format!("change=\"created\" {}", datetime(1))),
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(2))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;
    server.put(LIST, list_of(&server, "10:30", &["/a", "/c", "/d", "/e"]));
    destination.commit().await;
    let before = (destination.written(), destination.files());

    // A cache that has not heard of the newer one.
    server.put(LIST, old);
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!((destination.written(), destination.files()), before);
    let mut destination = destination.restarted(&server);
    let new = change(&server, "/f", &format!("change=\"created\" {}", datetime(31)));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &[&changes[..], &[new]].concat()));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e", "/f"], "changes are followed meanwhile");
    server.put(LIST, list_of(&server, "10:45", &["/a", "/c", "/d", "/e", "/g"]));
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes));
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/c", "/d", "/e", "/g"]);
}

#[tokio::test]
async fn an_older_list_that_comes_and_goes_is_not_believed() {
    // However little the look in between asks for.
    for between in [Scope::Everything, Scope::Due] {
        let server = source().await;
        let mut destination = Destination::of(&server, "/caps.xml");
        let right = list_of(&server, "10:30", &["/a", "/c", "/d"]);
        server.put(LIST, right.clone());
        destination.commit().await;
        server.put(LIST, list_of(&server, "10:10", &["/a", "/c"]));
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

        server.put(LIST, right);
        if between == Scope::Due {
            destination.synchronizer.fetch.schedule.follow([], Instant::now());
        }
        destination.synchronizer.refresh_of(between, silent()).await.unwrap();
        age(&mut destination);
        server.put(LIST, list_of(&server, "10:10", &["/a", "/c"]));
        assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
        assert_eq!(destination.paths(), ["/a", "/c", "/d"]);

        age(&mut destination);
        destination.commit().await;
        assert_eq!(destination.paths(), ["/a", "/c"]);
    }
}

#[tokio::test]
async fn an_older_list_is_believed_for_its_set_alone() {
    let server = two_sets().await;
    server.put("/one/list.xml", list_of(&server, "10:30", &["/one/a", "/one/b"]));
    server.put("/two/list.xml", list_of(&server, "10:30", &["/two/a", "/two/b"]));
    let mut destination = Destination::of(&server, "/description.xml");
    destination.commit().await;
    let before = destination.files();
    server.put("/one/list.xml", list_of(&server, "10:10", &["/one/a"]));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    age(&mut destination);

    // Of the same time even.
    server.put("/two/list.xml", list_of(&server, "10:10", &["/two/a"]));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    assert_eq!(destination.files(), before);
    server.put("/two/list.xml", list_of(&server, "10:30", &["/two/a", "/two/b"]));
    destination.commit().await;

    assert_eq!(destination.paths(), ["/one/a", "/two/a", "/two/b"]);
}

#[tokio::test]
async fn changes_since_an_older_list_that_is_believed_are_read_again() {
    let server = source().await;
    let changes = [
        change(&server, "/b", &format!("change=\"deleted\" {}", datetime(15))),
        change(&server, "/e", &format!("change=\"created\" {} length=\"5\"", datetime(20))),
        change(&server, "/f", &format!("change=\"created\" {}", datetime(40))),
    ];
    server.put(CHANGES, change_list("from=\"2013-01-03T09:00:00Z\"", &changes).etag("changes"));
    server.put(LIST, list_of(&server, "10:30", &["/a", "/c", "/d", "/e"]));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    let shown = ["/a", "/c", "/d", "/e", "/f"];
    assert_eq!(destination.paths(), shown);
    server.put(LIST, list_of(&server, "10:10", &["/a", "/b", "/c", "/d"]));
    destination.refresh().await.unwrap();

    age(&mut destination);
    destination.commit().await;

    assert_eq!(destination.paths(), shown);
    assert_eq!(destination.files()["/e"].1, Some(5));
    let status = destination.synchronizer.status().borrow().clone();
    assert_eq!((status.sets[0].at, status.sets[0].gap_since), ("2013-01-03T10:10:00Z".parse().ok(), None));
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
}

#[tokio::test]
async fn changes_since_an_older_list_that_are_unpublished_are_a_gap() {
    let server = source().await;
    server.put(LIST, list_of(&server, "10:30", &["/a", "/c", "/d"]));
    let kept = [change(&server, "/f", &format!("change=\"created\" {}", datetime(40)))];
    server.put(CHANGES, change_list("from=\"2013-01-03T10:20:00Z\"", &kept));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    server.put(LIST, list_of(&server, "10:10", &["/a", "/c"]));
    destination.refresh().await.unwrap();

    age(&mut destination);
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/c", "/f"]);
    let gap_since = destination.synchronizer.status().borrow().clone().sets[0].gap_since;
    assert_eq!(gap_since, "2013-01-03T10:10:00Z".parse().ok());
}
