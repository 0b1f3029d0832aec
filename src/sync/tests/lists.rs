//! Lists that several threads parse, those of a first tree while others are fetched.

use super::*;
use std::ops::ControlFlow;
use tokio::sync::Barrier;

const INDEX: &str = "/index.xml";

/// A list of these resources, each with its length and one time for all.
fn listing(server: &Loopback, resources: &[(&str, u64)]) -> String {
    let entry = |(path, length): &(&str, u64)| url(server.uri(path).as_str(), &format!("length=\"{length}\""));
    urlset("capability=\"resourcelist\"", &[], &resources.iter().map(entry).collect::<Vec<_>>())
}

/// A list that breaks a rule, which is counted once the list was read.
fn misspelt(server: &Loopback, path: &str) -> String {
    let entry = url(server.uri(path).as_str(), "length=\"many\"");
    urlset("capability=\"resourcelist\"", &[], &[entry])
}

async fn waits_until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn lists_are_read_while_another_is_on_its_way() {
    let server = Loopback::start();
    let gate = Arc::new(Barrier::new(2));
    server.put(INDEX, Answer::xml(index(&server, &["/1.xml", "/2.xml"])));
    server.put("/1.xml", Answer::xml(misspelt(&server, "/a")));
    server.put("/2.xml", Answer::xml(misspelt(&server, "/b")).together(&gate));
    let mut destination = Destination::of(&server, INDEX);
    let seen = destination.synchronizer.fetch.spool.deviations.clone();
    let read = || seen.rules().values().map(|(count, _)| count).sum::<u64>();

    let one_by_one = async {
        waits_until(|| read() > 0).await;
        let of_the_first = read();
        gate.wait().await;
        of_the_first
    };
    let (_, of_the_first) = tokio::join!(destination.commit(), one_by_one);

    assert!(read() >= 2 * of_the_first, "the other was read too");
    assert_eq!(destination.paths(), ["/a", "/b"]);
}

#[tokio::test]
async fn a_list_that_is_broken_off_leaves_what_was_noted() {
    let server = Loopback::start();
    let list = urlset("", &[], &["/a", "/b"].map(|path| url(server.uri(path).as_str(), "")));
    server.put("/list.xml", Answer::xml(list.replace("</urlset>", "<url><loc>http://</loc></url></urlset>")));
    let mut destination = Destination::of(&server, "/list.xml");
    destination.commit().await;
    let (spool, location) = (&destination.synchronizer.fetch.spool, DocumentLocation::Uri(server.uri("/list.xml")));
    let skipped = || spool.deviations.not_understood(&location).map(|(entries, _)| entries.skipped);
    assert_eq!(skipped(), Some(1));

    let list = spool.cache.known(&location).unwrap();
    spool.each_resource(&list, &mut |_| Ok(ControlFlow::Break(()))).unwrap();

    assert_eq!(skipped(), Some(1), "only the first entry was read");
}

#[tokio::test]
async fn lists_count_in_document_order_however_they_come() {
    let server = Loopback::start();
    let gate = Arc::new(Barrier::new(2));
    server.put(INDEX, Answer::xml(index(&server, &["/1.xml", "/2.xml", "/3.xml"])));
    server.put("/1.xml", Answer::xml(listing(&server, &[("/a", 1), ("/b", 1), ("/c", 1)])).together(&gate));
    server.put("/2.xml", Answer::xml(listing(&server, &[("/b", 2), ("/c", 2)])));
    server.put("/3.xml", Answer::xml(listing(&server, &[("/c", 3)])).together(&gate));
    let mut destination = Destination::of(&server, INDEX);

    destination.commit().await;

    let sizes: Vec<_> = destination.files().into_values().map(|(_, size)| size).collect();
    assert_eq!(sizes, [Some(1), Some(2), Some(3)], "the last of those that list a resource counts");
    let position = String::from_utf8(destination.synchronizer.position().unwrap().unwrap().encode()).unwrap();
    let counts = position.split("\"entries\":").skip(1).map(|rest| &rest[..1]).collect::<String>();
    assert_eq!(counts, "0321", "the index, and each list");
}

#[tokio::test]
async fn a_truncated_list_fails_the_first_tree_and_is_requested_again() {
    let server = Loopback::start();
    let gate = Arc::new(Barrier::new(2));
    server.put(
        INDEX,
        Answer::xml(sitemapindex(
            "capability=\"resourcelist\"",
            &[],
            &[server.uri("/1.xml").as_str(), server.uri("/2.xml").as_str()],
        )),
    );
    // More than the head that a crawl reads.
    let listed: Vec<_> = (0..100).map(|number| (format!("/a/{number:02}"), number)).collect();
    let listed: Vec<_> = listed.iter().map(|(path, length)| (path.as_str(), *length)).collect();
    let whole = listing(&server, &listed);
    server.put("/1.xml", Answer::xml(&whole[..whole.len() - 20]));
    server.put("/2.xml", Answer::xml(misspelt(&server, "/c")).together(&gate));
    // Lists without a time are read once more if changes are followed.
    let at = |path| server.uri(path).to_string();
    let offers = [offer("resourcelist", &at(INDEX)), offer("changelist", &at("/changes.xml"))];
    server.put("/caps.xml", Answer::xml(urlset("capability=\"capabilitylist\"", &[], &offers)));
    server.put("/changes.xml", Answer::xml(urlset("capability=\"changelist\"", &[], &[])));
    let mut destination = Destination::of(&server, "/caps.xml");

    let (refreshed, _) = tokio::join!(destination.refresh(), gate.wait());

    let Err(SyncError::Document { location, .. }) = refreshed else { panic!("{refreshed:?}") };
    assert_eq!(location, DocumentLocation::Uri(server.uri("/1.xml")));
    assert_eq!(destination.catalog.revision().unwrap(), None);
    server.put("/1.xml", Answer::xml(whole));
    server.put("/2.xml", Answer::xml(listing(&server, &[("/d", 1)])));
    destination.commit().await;
    assert_eq!(destination.paths().len(), 101);
}

#[tokio::test]
async fn a_list_that_fails_leaves_nothing_of_the_others() {
    let server = Loopback::start();
    server.put(INDEX, Answer::xml(index(&server, &["/1.xml", "/2.xml"])));
    server.put("/1.xml", Answer::xml(listing(&server, &[("/a", 1)])));
    server.put("/2.xml", Answer::status(403));
    let mut destination = Destination::of(&server, INDEX);

    assert!(matches!(destination.refresh().await, Err(SyncError::Source(_))));

    assert_eq!(destination.catalog.revision().unwrap(), None);
    waits_until(|| Arc::strong_count(&destination.catalog) == 2).await;
    server.put("/1.xml", Answer::xml(listing(&server, &[("/b", 1)])));
    server.put("/2.xml", Answer::xml(listing(&server, &[("/c", 1)])));
    let mut destination = destination.restarted(&server);
    destination.commit().await;
    assert_eq!(destination.paths(), ["/b", "/c"]);
}

#[tokio::test]
async fn the_lists_of_every_set_are_parsed_on_their_own() {
    let server = two_sets().await;
    server.put("/one/list.xml", Answer::xml(listing(&server, &[("/a", 1), ("/both", 1)])));
    server.put("/two/list.xml", Answer::xml(listing(&server, &[("/b", 2), ("/both", 2)])));
    let mut destination = Destination::of(&server, "/description.xml");

    destination.commit().await;

    let files = destination.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["/a", "/b", "/both"]);
    assert_eq!(destination.synchronizer.position().unwrap().unwrap().sets().count(), 2);
}

#[tokio::test]
async fn each_of_many_lists_is_entered_once_and_only_what_is_chosen() {
    let server = Loopback::start();
    let lists: Vec<String> = (0..40).map(|number| format!("/{number}.xml")).collect();
    server.put(INDEX, Answer::xml(index(&server, &lists.iter().map(String::as_str).collect::<Vec<_>>())));
    for (number, list) in lists.iter().enumerate() {
        let listed = [(format!("/a/{number}"), 1), (format!("/b/{number}"), 2), ("/a/all".to_owned(), number as u64)];
        let listed: Vec<_> = listed.iter().map(|(path, length)| (path.as_str(), *length)).collect();
        server.put(list, Answer::xml(listing(&server, &listed)));
    }
    let mut destination = Destination::of(&server, INDEX);
    destination.synchronizer.config.selection.included.add("a/").unwrap();

    destination.commit().await;

    let files = destination.files();
    assert_eq!(files.len(), 41);
    assert_eq!(files["/a/all"].1, Some(39), "the last of all that list it");
    let position = String::from_utf8(destination.synchronizer.position().unwrap().unwrap().encode()).unwrap();
    assert_eq!(position.matches("\"entries\":2").count(), 40, "of each list what is chosen");
}

#[tokio::test]
async fn a_later_baseline_reads_its_lists_together_and_in_order() {
    let server = Loopback::start();
    server.put(INDEX, Answer::xml(index(&server, &["/1.xml", "/2.xml", "/3.xml"])));
    for path in ["/1.xml", "/2.xml", "/3.xml"] {
        server.put(path, Answer::xml(listing(&server, &[("/a", 1), ("/b", 1), ("/c", 1)])));
    }
    let mut destination = Destination::of(&server, INDEX);
    destination.commit().await;
    let whole = listing(&server, &[("/b", 2), ("/c", 2), ("/d", 2)]);
    server.put("/2.xml", Answer::xml(&whole[..whole.len() - 20]));
    server.put("/3.xml", Answer::xml(listing(&server, &[("/c", 3)])));

    let refreshed = destination.refresh().await;

    assert!(refreshed.is_err(), "{refreshed:?}");
    assert_eq!(destination.paths(), ["/a", "/b", "/c"], "the tree stays as it is");
    server.put("/2.xml", Answer::xml(whole));
    destination.commit().await;
    let sizes: Vec<_> = destination.files().into_values().map(|(_, size)| size).collect();
    assert_eq!(sizes, [Some(1), Some(2), Some(3), Some(2)], "the last of those that list a resource counts");
}
