//! Resources that the parts of a list do not list any more: what is believed of that, and what it costs.

use super::changes::silent;
use super::*;
use crate::source::tests::loopback::document;
use tokio::sync::Barrier;

const INDEX: &str = "/index.xml";

/// Resources on a page.
const PAGE: usize = 10;

/// How a Source publishes its pages, which are made by offset.
#[derive(Clone, Default)]
struct Pages {
    /// True if the index tells the newest `lastmod` of each page.
    are_dated: bool,
    /// True if the documents have an ETag.
    have_etags: bool,
    /// Requests for the second page wait here.
    gate: Option<Arc<Barrier>>,
}

impl Pages {
    fn publish(&self, server: &Loopback, numbers: impl IntoIterator<Item = usize>) {
        let numbers: Vec<usize> = numbers.into_iter().collect();
        let mut children = Vec::new();
        for (page, numbers) in numbers.chunks(PAGE).enumerate() {
            let newest = numbers.iter().map(|number| day(*number)).max().unwrap();
            let path = format!("/s{page}.xml");
            let dated = if self.are_dated { format!("<lastmod>2013-01-0{newest}</lastmod>") } else { String::new() };
            children.push(format!("<sitemap><loc>{}</loc>{dated}</sitemap>", server.uri(&path)));
            let mut answer =
                self.answer(urlset("", &[], &numbers.iter().map(|it| entry(server, *it)).collect::<Vec<_>>()));
            if let Some(gate) = self.gate.as_ref().filter(|_| page == 1) {
                answer = answer.together(gate);
            }
            server.put(&path, answer);
        }
        server.put(INDEX, self.answer(document("sitemapindex", "", &[], &children)));
    }

    fn answer(&self, body: String) -> Answer {
        let etag = xxhash_rust::xxh3::xxh3_64(body.as_bytes()).to_string();
        let answer = Answer::xml(body);
        if self.have_etags { answer.etag(&etag) } else { answer }
    }
}

/// The day on which a resource was last changed: 20 is the newest of the third page, and older than what is on the pages before.
fn day(number: usize) -> usize {
    match number {
        5 | 15 => 9,
        20 => 5,
        _ => 1,
    }
}

fn entry(server: &Loopback, number: usize) -> String {
    format!("<url><loc>{}</loc><lastmod>2013-01-0{}</lastmod></url>", server.uri(&path(number)), day(number))
}

fn path(number: usize) -> String {
    format!("/r{number:02}")
}

fn paths(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(path).collect()
}

/// A poll of all that is due, which is everything.
async fn poll(destination: &mut Destination) {
    destination.synchronizer.fetch.schedule.follow(std::iter::empty(), Instant::now());
    destination.synchronizer.refresh_of(Scope::Due, silent()).await.unwrap();
}

/// A Destination whose children of indexes are known to be unchanged.
async fn settled(server: &Loopback) -> Destination {
    let mut destination = Destination::of(server, INDEX);
    destination.commit().await;
    poll(&mut destination).await;
    server.asked();
    poll(&mut destination).await;
    destination
}

/// Waits until the first page was answered.
async fn first_page_is_read(server: &Loopback) {
    while !server.asked().iter().any(|asked| asked.path == "/s0.xml") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Promise: a listed name never answers ENOENT. A kept page is of another time than the page that was asked.
#[tokio::test]
async fn a_resource_that_moves_to_a_kept_page_stays() {
    let server = Loopback::start();
    let pages = Pages { are_dated: true, have_etags: true, gate: None };
    pages.publish(&server, 0..30);
    let mut destination = settled(&server).await;
    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(asked, [INDEX], "an unchanged poll");
    let before = destination.files();

    pages.publish(&server, 1..30);
    poll(&mut destination).await;

    assert_eq!(destination.paths(), paths(1..30));
    assert_eq!(destination.files()["/r20"], before["/r20"]);
}

/// Promise: a listed name never answers ENOENT. With validators and without.
#[tokio::test]
async fn a_resource_between_pages_that_are_republished_stays() {
    for have_etags in [true, false] {
        let server = Loopback::start();
        let gate = Arc::new(Barrier::new(2));
        let pages = Pages { have_etags, ..Pages::default() };
        pages.publish(&server, 0..20);
        let mut destination = Destination::of(&server, INDEX);
        destination.commit().await;
        let before = destination.files();
        let gated = Pages { gate: Some(gate.clone()), ..pages };
        gated.publish(&server, 0..20);
        server.asked();

        let republished = async {
            first_page_is_read(&server).await;
            gated.publish(&server, 1..20);
            // Each read of the second page passes, however late it asks.
            loop {
                gate.wait().await;
            }
        };
        let refreshed = async {
            tokio::select! {
                refreshed = destination.refresh() => refreshed,
                () = republished => unreachable!(),
            }
        };
        tokio::time::timeout(Duration::from_secs(60), refreshed).await.expect("it ends").unwrap();

        assert_eq!(destination.paths(), paths(1..20));
        assert_eq!(destination.files()["/r10"], before["/r10"]);
    }
}

/// A Source that changes faster than it can be read deletes nothing, adds what is new, and is believed once it rests.
#[tokio::test]
async fn deletions_of_pages_that_never_agree_are_held_back() {
    let server = Loopback::start();
    let gate = Arc::new(Barrier::new(2));
    let pages = Pages { have_etags: true, ..Pages::default() };
    pages.publish(&server, 0..20);
    let mut destination = Destination::of(&server, INDEX);
    destination.commit().await;
    let gated = Pages { gate: Some(gate.clone()), ..pages.clone() };
    gated.publish(&server, 0..20);
    server.asked();

    let republished = async {
        for read in 1..=4 {
            first_page_is_read(&server).await;
            gated.publish(&server, read..21);
            gate.wait().await;
        }
    };
    let both = async { tokio::join!(destination.refresh(), republished) };
    let (refreshed, ()) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("four reads");

    refreshed.unwrap();
    assert_eq!(destination.paths(), paths(0..21), "nothing goes, and what is new is there");
    let why = destination.synchronizer.status().borrow().clone().held.unwrap().why;
    assert!(why.contains("published again"), "{why}");

    pages.publish(&server, 4..21);
    destination.commit().await;
    assert_eq!(destination.paths(), paths(4..21));
    assert_eq!(destination.synchronizer.status().borrow().clone().held, None);
}

#[tokio::test]
async fn parts_are_asked_again_only_before_a_deletion() {
    let server = Loopback::start();
    let pages = Pages { are_dated: true, have_etags: true, gate: None };
    pages.publish(&server, 0..14);
    let mut destination = settled(&server).await;
    let asked = || server.asked().into_iter().map(|asked| (asked.path, asked.sent > 0)).collect::<Vec<_>>();
    let of = |paths: &[&str], is_sent: bool| paths.iter().map(|path| ((*path).to_owned(), is_sent)).collect::<Vec<_>>();
    asked();

    pages.publish(&server, (0..14).chain([15]));
    poll(&mut destination).await;
    assert_eq!(asked(), of(&[INDEX, "/s1.xml"], true), "nothing goes");
    pages.publish(&server, 0..14);
    poll(&mut destination).await;

    assert_eq!(destination.paths(), paths(0..14));
    let (sent, unchanged): (Vec<_>, Vec<_>) = asked().into_iter().partition(|(_, is_sent)| *is_sent);
    assert_eq!(sent, of(&[INDEX, "/s1.xml"], true));
    assert_eq!(unchanged, of(&[INDEX, "/s0.xml", "/s1.xml"], false), "all once more");
}

/// A cache on the way has the new index and the child of before.
#[tokio::test]
async fn a_child_that_a_cache_serves_stale_once_is_asked_again() {
    let server = Loopback::start();
    let listed = |day: usize, numbers: &[usize]| {
        let child = format!("<sitemap><loc>{}</loc><lastmod>2013-01-0{day}</lastmod></sitemap>", server.uri("/1.xml"));
        let entries: Vec<_> = numbers.iter().map(|number| entry(&server, *number)).collect();
        let index = document("sitemapindex", "", &[], &[child]);
        (Answer::xml(index).etag(&day.to_string()), Answer::xml(urlset("", &[], &entries)).etag(&day.to_string()))
    };
    let (old, new) = (listed(1, &[1, 2]), listed(2, &[1, 2, 3]));
    server.put(INDEX, old.0);
    server.put("/1.xml", old.1);
    let mut destination = settled(&server).await;

    server.put(INDEX, new.0);
    poll(&mut destination).await;
    assert_eq!(destination.paths(), paths([1, 2]));
    server.put("/1.xml", new.1);
    poll(&mut destination).await;

    assert_eq!(destination.paths(), paths([1, 2, 3]));
    server.asked();
    poll(&mut destination).await;
    let asked: Vec<_> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(asked, [INDEX], "its entry is as it was");
}
