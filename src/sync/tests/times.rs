//! Which time lists speak for that do not say it.

use super::changes::{CHANGES, change, change_list, resource_list_at, source};
use super::*;

/// The time that the lists of a Source of one set speak for, as status tells it, where LIST is `answer`.
async fn time_of(answer: impl FnOnce(&Loopback) -> Answer) -> Option<String> {
    let server = source().await;
    server.put(LIST, answer(&server));
    let mut destination = Destination::of(&server, "/caps.xml");
    destination.commit().await;
    destination.synchronizer.status().borrow().clone().sets[0].at.map(|at| at.to_string())
}

fn dated(server: &Loopback, path: &str, lastmod: &str) -> String {
    format!("<url><loc>{}</loc><lastmod>{lastmod}</lastmod></url>", server.uri(path))
}

#[tokio::test]
async fn lists_without_at_speak_for_the_time_of_their_index() {
    let at = time_of(|server| {
        server.put("/1.xml", resource_list_at("", &[dated(server, "/a", "2011-01-01T00:00:00Z")]));
        Answer::xml(index(server, &["/1.xml"]))
    });
    assert_eq!(at.await.as_deref(), Some("2013-01-03T09:00:00Z"));
}

#[tokio::test]
async fn an_index_without_at_speaks_for_the_time_of_its_earliest_list() {
    let at = time_of(|server| {
        let list_at = |path: &str, at: &str| server.put(path, resource_list_at(at, &[change(server, path, "")]));
        list_at("/1.xml", "at=\"2013-01-03T09:20:00Z\"");
        list_at("/2.xml", "at=\"2013-01-03T09:10:00Z\"");
        Answer::xml(index(server, &["/1.xml", "/2.xml"]).replace(" at=\"2013-01-03T09:00:00Z\"", ""))
    });
    assert_eq!(at.await.as_deref(), Some("2013-01-03T09:10:00Z"));
}

#[tokio::test]
async fn lists_without_any_at_speak_for_the_newest_past_lastmod() {
    let at = time_of(|server| {
        let lastmods = [("/a", "2012-01-01T00:00:00Z"), ("/b", "2012-06-01T00:00:00Z"), ("/c", "2999-01-01T00:00:00Z")];
        let entries = lastmods.map(|(path, lastmod)| dated(server, path, lastmod));
        resource_list_at("", &entries).header("Last-Modified", "Thu, 03 Jan 2013 12:00:00 GMT")
    });
    assert_eq!(at.await.as_deref(), Some("2012-06-01T00:00:00Z"));
}

#[tokio::test]
async fn lists_without_any_time_speak_for_their_last_modified() {
    let at = time_of(|server| {
        let entries = [change(server, "/a", "")];
        resource_list_at("", &entries).header("Last-Modified", "Thu, 03 Jan 2013 12:00:00 GMT")
    });
    assert_eq!(at.await.as_deref(), Some("2013-01-03T12:00:00Z"));
}

#[tokio::test]
async fn lists_without_any_time_at_all_speak_for_none() {
    let at = time_of(|server| resource_list_at("", &[change(server, "/a", "")]));
    assert_eq!(at.await, None);
}

/// The first list is of nine o'clock; the second was begun before the changes of its day too.
#[tokio::test]
async fn changes_dated_to_the_day_outlast_lists_of_that_day() {
    let server = source().await;
    let lastmod = |path: &str, change: &str| {
        let loc = server.uri(path);
        format!("<url><loc>{loc}</loc><lastmod>2013-01-03</lastmod><rs:md change=\"{change}\"/></url>")
    };
    let changes = [lastmod("/e", "created"), lastmod("/a", "deleted")];
    server.put(CHANGES, change_list("from=\"2013-01-02\"", &changes));
    let mut destination = Destination::of(&server, "/caps.xml");

    destination.commit().await;
    let by_the_first = destination.paths();
    let listed = ["/a", "/b", "/c", "/d"].map(|path| change(&server, path, ""));
    server.put(LIST, resource_list_at("at=\"2013-01-03T09:30:00Z\"", &listed).etag("later"));
    destination.refresh().await.unwrap();

    assert_eq!(by_the_first, ["/b", "/c", "/d", "/e"]);
    assert_eq!(destination.paths(), by_the_first);
}
