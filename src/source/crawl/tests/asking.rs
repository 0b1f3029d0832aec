//! What a walk asks for, what it bears, and of what it tells.

use super::*;
use std::sync::Arc;
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

    let walked = scene.walk_asking("/root.xml", Asking { choice: &choice, ..EVERYTHING }).await.unwrap();

    assert_eq!(walked.leaves.len(), 1);
    assert_eq!(walked.leaves[0].listed.as_ref().map(|entry| entry.loc.path()), Some("/new.xml"));
}

#[tokio::test]
async fn a_child_that_is_kept_is_asked_for_only_where_it_is_not_here() {
    let scene =
        Scene::new(&[("/root.xml", index("", &["/1.xml", "/2.xml"])), ("/1.xml", list("/1")), ("/2.xml", list("/2"))])
            .await;
    let keeping = Asking { choice: &|_, _| Child::Keep, ..EVERYTHING };
    assert_eq!(scene.walk_asking("/root.xml", keeping).await.unwrap().leaves.len(), 2);
    scene.server.put("/1.xml", list("/changed"));
    scene.server.asked();

    let walked = scene.walk_asking("/root.xml", keeping).await.unwrap();

    assert_eq!(scene.resources(&walked), ["/1", "/2"]);
    assert_eq!(scene.server.asked().len(), 1, "the index alone");
}

#[tokio::test]
async fn a_child_that_is_gone_for_good_is_recorded() {
    let scene = Scene::new(&[("/root.xml", index("", &["/1.xml", "/gone.xml"])), ("/1.xml", list("/1"))]).await;

    let walked = scene.walk("/root.xml").await.unwrap();

    assert_eq!(scene.resources(&walked), ["/1"]);
    assert_eq!(walked.missing.len(), 1);
    assert_eq!(walked.missing[0].location, scene.at("/gone.xml"));
    scene.server.put("/gone.xml", Answer::status(403));
    assert!(scene.walk("/root.xml").await.is_err(), "that it may not be read does not mean gone");
    assert!(scene.walk("/nothing.xml").await.is_err(), "the root itself");
}

#[tokio::test]
async fn children_that_fail_are_told_where_the_walk_bears_it_but_only_so_many_are_waited_for() {
    let children: Vec<String> = (0..=FAILURES).map(|number| format!("/{number}.xml")).collect();
    let children: Vec<&str> = children.iter().map(String::as_str).collect();
    let scene = Scene::new(&[("/root.xml", index("", &children)), ("/0.xml", list("/0"))]).await;
    let bearing = Asking { bears_failure: true, is_patient: false, ..EVERYTHING };
    children[1..].iter().for_each(|child| scene.server.put(child, Answer::html("<html/>")));
    scene.server.put("/1.xml", Answer::status(403));

    let walked = scene.walk_asking("/root.xml", bearing).await.unwrap();

    assert_eq!((scene.resources(&walked), walked.failed.len()), (vec!["/0".to_owned()], FAILURES));
    assert!(walked.failed[0].why.contains("403"), "{:?}", walked.failed[0]);
    children.iter().for_each(|child| scene.server.put(child, Answer::status(503)));
    assert!(scene.walk_asking("/root.xml", bearing).await.is_err(), "one more than that");
    assert!(scene.walk_asking("/nothing.xml", bearing).await.is_err(), "the root itself");
}

#[tokio::test]
async fn what_a_walk_costs_and_how_long_its_root_keeps_are_told() {
    let root = index("", &["/1.xml"]).etag("1").header("Cache-Control", "max-age=600");
    let scene = Scene::new(&[("/root.xml", root), ("/1.xml", list("/1").etag("2"))]).await;

    let first = scene.walk("/root.xml").await.unwrap();
    let second = scene.walk("/root.xml").await.unwrap();

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
    let walked = walk(&scene.server.client(), &scene.spool, &scene.at("/root.xml"), limits(), &progress).await.unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].documents <= pair[1].documents && pair[0].bytes <= pair[1].bytes));
    let bytes = walked.documents().map(|document| document.size).sum();
    assert_eq!(seen.last(), Some(&Progress { documents: 3, known: 3, bytes }));
}

#[tokio::test]
async fn leaves_are_told_of_in_document_order_each_as_soon_as_all_before_it_are_here() {
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
    let told = Mutex::new(Vec::new());
    let reached = |leaf: &Leaf| told.lock().unwrap().push(leaf.document.location.to_string());
    let count = || told.lock().unwrap().len();
    let opening = async {
        while scene.spool.known(&scene.at("/3.xml")).is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(count(), 0, "what comes before them is not here");
        first.wait().await;
        while count() < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        last.wait().await;
    };

    let (walked, ()) =
        tokio::join!(scene.walk_asking("/root.xml", Asking { reached: &reached, ..EVERYTHING }), opening);

    let leaves: Vec<_> = walked.unwrap().leaves.iter().map(|leaf| leaf.document.location.to_string()).collect();
    assert_eq!(leaves.len(), 4);
    assert_eq!(*told.lock().unwrap(), leaves);
}
