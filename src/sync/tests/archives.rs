//! What was published earlier: states of an earlier time, and gaps that archives close or do not.

use super::dumps::{destination, manifest, member_of, package, source};
use super::*;

fn document(server: &Loopback, path: &str, md: &str, entries: &[String]) {
    server.put(path, Answer::xml(urlset(md, &[], entries)));
}

/// An hour of the day that everything happens on.
fn hour(hour: u32) -> String {
    format!("2013-01-03T{hour:02}:00:00Z")
}

/// An entry of an archive or of a dump that tells of these hours.
fn interval(server: &Loopback, path: &str, from: u32, until: u32) -> String {
    url(server.uri(path).as_str(), &format!("from=\"{}\" until=\"{}\"", hour(from), hour(until)))
}

fn created(server: &Loopback, path: &str, at: u32) -> String {
    url(server.uri(path).as_str(), &format!("change=\"created\" datetime=\"{}\"", hour(at)))
}

fn as_of(server: &Loopback, time: &str) -> Destination {
    let mut destination = destination(server);
    destination.synchronizer.config.as_of = Timestamp::parse(time);
    destination
}

fn gap_since(destination: &Destination) -> Option<String> {
    destination.synchronizer.status().borrow().clone().sets[0].gap_since.map(|since| since.to_string())
}

/// A Source with a list of 9 h, a Change List from 13 h on, and this archive.
async fn with_archive(archived: &[(&str, u32, u32)]) -> Loopback {
    let server =
        source(&[("resourcelist", LIST), ("changelist", "/changes.xml"), ("changelist-archive", "/archive.xml")]).await;
    server.put(LIST, Answer::xml(list(&server, &["/a"])).etag("list"));
    let entries: Vec<_> = archived.iter().map(|(path, from, until)| interval(&server, path, *from, *until)).collect();
    document(&server, "/archive.xml", "capability=\"changelist-archive\"", &entries);
    for (path, from, _) in archived {
        let resource = format!("/of{path}");
        document(&server, path, "capability=\"changelist\"", &[created(&server, &resource, from + 1)]);
    }
    let open = format!("capability=\"changelist\" from=\"{}\"", hour(13));
    document(&server, "/changes.xml", &open, &[created(&server, "/now", 14)]);
    server
}

#[tokio::test]
async fn an_archive_closes_the_time_before_the_oldest_change() {
    let server = with_archive(&[("/early", 1, 9), ("/one", 9, 11), ("/two", 11, 13)]).await;
    let mut destination = destination(&server);

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/now", "/of/one", "/of/two"]);
    assert_eq!(gap_since(&destination), None);
    let asked = server.asked();
    assert_eq!(asked.iter().filter(|asked| asked.path == "/archive.xml").count(), 1);
}

#[tokio::test]
async fn an_archive_that_leaves_a_gap_closes_none() {
    let server = with_archive(&[("/one", 9, 11)]).await;
    let mut destination = destination(&server);

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/now"]);
    assert_eq!(gap_since(&destination), Some(hour(9)));
}

#[tokio::test]
async fn of_an_earlier_time_an_archive_leaves_the_gap_marked() {
    let server = with_archive(&[("/one", 9, 11), ("/two", 12, 13)]).await;
    let mut whole = as_of(&server, &hour(10));
    let mut torn = as_of(&server, &hour(13));

    whole.commit().await;
    torn.commit().await;

    assert_eq!((whole.paths(), gap_since(&whole)), (vec!["/a".into(), "/of/one".into()], None));
    assert_eq!(torn.paths(), ["/a", "/of/one", "/of/two"]);
    assert_eq!(gap_since(&torn), Some(hour(9)));
}

#[tokio::test]
async fn a_state_of_an_earlier_time_is_asked_for_until_whole() {
    let server = source(&[("resourcelist", LIST), ("changelist", "/changes.xml")]).await;
    server.put(LIST, Answer::xml(list(&server, &["/a"])).etag("list"));
    let open = format!("capability=\"changelist\" from=\"{}\"", hour(9));
    let mut told = vec![created(&server, "/b", 10)];
    document(&server, "/changes.xml", &open, &told);
    let mut destination = as_of(&server, &hour(12));

    destination.commit().await;
    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));
    told.push(created(&server, "/c", 11));
    document(&server, "/changes.xml", &open, &told);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/b", "/c"]);
    told.push(created(&server, "/d", 13));
    document(&server, "/changes.xml", &open, &told);
    destination.refresh().await.unwrap();
    server.asked();

    assert!(matches!(destination.refresh().await.unwrap(), RefreshResult::Unchanged));

    assert!(server.asked().is_empty(), "what came after is told: so is all that came before");
    assert_eq!(destination.paths(), ["/a", "/b", "/c"]);
}

/// A turn of the poller has failed downloads tried again.
#[tokio::test]
async fn a_state_of_an_earlier_time_is_idle_once_it_is_known() {
    use crate::sync::poller::Listeners;
    use std::sync::atomic::{AtomicU64, Ordering};
    use tokio::sync::mpsc;
    let server = with_archive(&[]).await;
    let open = format!("capability=\"changelist\" from=\"{}\"", hour(9));
    document(&server, "/changes.xml", &open, &[created(&server, "/b", 10), created(&server, "/c", 13)]);
    let mut destination = as_of(&server, &hour(12));
    destination.commit().await;
    let restarted = destination.restarted(&server);
    server.asked();
    let turns = Arc::new(AtomicU64::new(0));
    let count = turns.clone();
    let refreshed = Box::new(move || _ = count.fetch_add(1, Ordering::Relaxed));
    let listeners = Listeners { invalidate: Arc::new(|_| ()), refreshed };
    let Destination { synchronizer, catalog: _catalog, _folder } = restarted;
    let status = synchronizer.status();
    let ((commands, receiver), (_renewals, renewed)) = (mpsc::channel(64), mpsc::unbounded_channel());
    tokio::time::pause();

    let running = tokio::spawn(poller::run(synchronizer, receiver, renewed, mpsc::channel(1).1, listeners, true));
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;

    assert_eq!((turns.load(Ordering::Relaxed), status.borrow().next_poll), (1, None));
    assert!(server.asked().is_empty());
    drop(commands);
    running.abort();
}

#[tokio::test]
async fn a_time_to_come_is_the_present_until_it_comes() {
    let server = with_archive(&[]).await;
    let mut destination = as_of(&server, "2999-01-01");

    destination.commit().await;
    assert_eq!(destination.paths(), ["/a", "/now"]);
    let open = format!("capability=\"changelist\" from=\"{}\"", hour(13));
    document(&server, "/changes.xml", &open, &[created(&server, "/now", 14), created(&server, "/then", 15)]);
    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/now", "/then"]);
}

/// A dump of an archive is a state of its time, and dumps of changes bring it forward.
#[tokio::test]
async fn a_source_of_dumps_is_shown_as_it_was() {
    let server = source(&[
        ("resourcedump", "/dump.xml"),
        ("resourcedump-archive", "/dumps.xml"),
        ("changedump", "/changes.xml"),
        ("changedump-archive", "/archive.xml"),
    ])
    .await;
    let dump = |path: &str, at: u32, member: &str| {
        let zip = format!("{path}.zip");
        let held = [("/a", format!("path=\"/{member}\""))];
        let held = held.each_ref().map(|(resource, md)| (*resource, md.as_str()));
        server.put(&zip, package(&manifest(&server, "resourcedump-manifest", &held), &[member]));
        let md = format!("capability=\"resourcedump\" at=\"{}\"", hour(at));
        document(&server, path, &md, &[url(server.uri(&zip).as_str(), "")]);
    };
    dump("/dump.xml", 20, "today.bin");
    dump("/dumps/9.xml", 9, "then.bin");
    let at = |path: &str, at: u32| url(server.uri(path).as_str(), &format!("at=\"{}\"", hour(at)));
    let archived = [at("/dumps/9.xml", 9), at("/dump.xml", 20)];
    document(&server, "/dumps.xml", "capability=\"resourcedump-archive\"", &archived);
    let changed = [("/b", "change=\"created\" datetime=\"2013-01-03T10:00:00Z\" path=\"/b.bin\"")];
    let changed = manifest(&server, "changedump-manifest", &changed).replace("at=", "from=");
    server.put("/changed.zip", package(&changed, &["b.bin"]));
    let md = format!("capability=\"changedump\" from=\"{}\" until=\"{}\"", hour(9), hour(12));
    document(&server, "/changes/9.xml", &md, &[interval(&server, "/changed.zip", 9, 12)]);
    let archived = [interval(&server, "/changes/9.xml", 9, 12)];
    document(&server, "/archive.xml", "capability=\"changedump-archive\"", &archived);
    document(&server, "/changes.xml", &format!("capability=\"changedump\" from=\"{}\"", hour(12)), &[]);
    let mut destination = as_of(&server, &hour(11));

    destination.commit().await;

    assert_eq!(destination.paths(), ["/a", "/b"]);
    assert_eq!(member_of(&destination, "a").as_deref(), Some("/then.bin"));
    assert_eq!(member_of(&destination, "b").as_deref(), Some("/b.bin"));
}
