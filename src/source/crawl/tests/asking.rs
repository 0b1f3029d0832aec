//! What a crawl asks for, tolerates and reports.

use super::*;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Barrier;

#[tokio::test]
async fn only_chosen_entries_are_followed() {
    let scene = Scene::new(&[
        ("/root.xml", index("capability=\"changelist\"", &["/old.xml", "/new.xml"])),
        ("/new.xml", list("/1")),
    ])
    .await;
    let choice = |header: &Header, entry: &Entry| {
        assert_eq!(header.capability, Some(Capability::ChangeList));
        if entry.loc.path() == "/old.xml" { Child::Leave } else { Child::Ask }
    };

    let crawled = scene.crawl_asking("/root.xml", Asking { choice: &choice, ..EVERYTHING }).await.unwrap();

    assert_eq!(crawled.leaves.len(), 1);
    assert_eq!(crawled.leaves[0].listed.as_ref().map(|entry| entry.loc.path()), Some("/new.xml"));
}

#[tokio::test]
async fn a_child_that_is_kept_is_asked_for_only_where_it_is_not_here() {
    let scene =
        Scene::new(&[("/root.xml", index("", &["/1.xml", "/2.xml"])), ("/1.xml", list("/1")), ("/2.xml", list("/2"))])
            .await;
    let keeping = Asking { choice: &|_, _| Child::Keep, ..EVERYTHING };
    assert_eq!(scene.crawl_asking("/root.xml", keeping).await.unwrap().leaves.len(), 2);
    scene.server.put("/1.xml", list("/changed"));
    scene.server.asked();

    let crawled = scene.crawl_asking("/root.xml", keeping).await.unwrap();

    assert_eq!(scene.resources(&crawled), ["/1", "/2"]);
    assert_eq!(scene.server.asked().len(), 1, "the index alone");
}

#[tokio::test]
async fn a_child_that_is_gone_for_good_is_recorded() {
    let scene = Scene::new(&[("/root.xml", index("", &["/1.xml", "/gone.xml"])), ("/1.xml", list("/1"))]).await;

    let crawled = scene.crawl("/root.xml").await.unwrap();

    assert_eq!(scene.resources(&crawled), ["/1"]);
    assert_eq!(crawled.missing.len(), 1);
    assert_eq!(crawled.missing[0].location, scene.at("/gone.xml"));
    scene.server.put("/gone.xml", Answer::status(403));
    assert!(scene.crawl("/root.xml").await.is_err(), "that it may not be read does not mean gone");
    assert!(scene.crawl("/nothing.xml").await.is_err(), "the root itself");
}

#[tokio::test]
async fn only_so_many_children_that_fail_are_tolerated() {
    let children: Vec<String> = (0..=FAILURES).map(|number| format!("/{number}.xml")).collect();
    let children: Vec<&str> = children.iter().map(String::as_str).collect();
    let scene = Scene::new(&[("/root.xml", index("", &children)), ("/0.xml", list("/0"))]).await;
    let tolerant = Asking { tolerates_failure: true, is_patient: false, ..EVERYTHING };
    children[1..].iter().for_each(|child| scene.server.put(child, Answer::html("<html/>")));
    scene.server.put("/1.xml", Answer::status(403));

    let crawled = scene.crawl_asking("/root.xml", tolerant).await.unwrap();

    assert_eq!((scene.resources(&crawled), crawled.failed.len()), (vec!["/0".to_owned()], FAILURES));
    assert!(crawled.failed[0].1.why().contains("403"), "{:?}", crawled.failed[0]);
    children.iter().for_each(|child| scene.server.put(child, Answer::status(503)));
    assert!(scene.crawl_asking("/root.xml", tolerant).await.is_err(), "one more than that");
    assert!(scene.crawl_asking("/nothing.xml", tolerant).await.is_err(), "the root itself");
}

#[tokio::test]
async fn the_cost_of_a_crawl_and_the_age_of_its_root_are_known() {
    let root = index("", &["/1.xml"]).etag("1").header("Cache-Control", "max-age=600");
    let scene = Scene::new(&[("/root.xml", root), ("/1.xml", list("/1").etag("2"))]).await;

    let first = scene.crawl("/root.xml").await.unwrap();
    let second = scene.crawl("/root.xml").await.unwrap();

    let bytes: u64 = first.documents().map(|document| document.size).sum();
    assert_eq!((first.transferred, second.transferred), (bytes, 0));
    assert_eq!(second.max_age, Some(Duration::from_secs(600)));
}

#[tokio::test]
async fn progress_counts_up_to_everything() {
    let scene =
        Scene::new(&[("/root.xml", index("", &["/1.xml", "/2.xml"])), ("/1.xml", list("/1")), ("/2.xml", list("/2"))])
            .await;
    let seen = Mutex::new(Vec::new());
    let progress = |progress: Progress| seen.lock().unwrap().push(progress);
    let crawled = crawl(&scene.server.client(), &scene.cache, &scene.at("/root.xml"), limits(), EVERYTHING, &progress)
        .await
        .unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].documents <= pair[1].documents && pair[0].bytes <= pair[1].bytes));
    let bytes = crawled.documents().map(|document| document.size).sum();
    assert_eq!(seen.last(), Some(&Progress { documents: 3, known: 3, bytes, of_bytes: None }));
    assert!(
        seen.iter().any(|it| it.known == 1 && it.of_bytes.is_some()),
        "the length of the first is announced: {seen:?}"
    );
}

#[tokio::test]
async fn leaves_are_reported_early_and_in_document_order() {
    let (first, last) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let scene = Scene::new(&[
        ("/root.xml", index("", &["/below.xml", "/3.xml", "/4.xml"])),
        ("/below.xml", index("", &["/1.xml", "/2.xml"]).together(&first)),
        ("/1.xml", list("/1")),
        ("/2.xml", list("/2")),
        ("/3.xml", list("/3")),
        ("/4.xml", list("/4").together(&last)),
    ])
    .await;
    let reported = Mutex::new(Vec::new());
    let reached = |leaf: &Leaf| reported.lock().unwrap().push(leaf.document.location.to_string());
    let count = || reported.lock().unwrap().len();
    let opening = async {
        while scene.cache.known(&scene.at("/3.xml")).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(count(), 0, "what comes before them is not here");
        first.wait().await;
        while count() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        last.wait().await;
    };

    let (crawled, ()) =
        tokio::join!(scene.crawl_asking("/root.xml", Asking { reached: &reached, ..EVERYTHING }), opening);

    let leaves: Vec<_> = crawled.unwrap().leaves.iter().map(|leaf| leaf.document.location.to_string()).collect();
    assert_eq!(leaves.len(), 4);
    assert_eq!(*reported.lock().unwrap(), leaves);
}
