//! Many members of one package, wanted one by one.

use super::super::windows::{Window, Windows};
use super::crafted::{craft, stored};
use super::*;
use crate::source::http::{HttpConfig, Priority, Request};
use std::sync::atomic::{AtomicU64, Ordering};

/// A package of so many members of 10 kB, and their bytes.
fn many(count: u32) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let parts: Vec<_> = (0..count).map(|number| (format!("m{number}"), noise(number, 10_000))).collect();
    let members: Vec<_> = parts.iter().map(|(name, part)| stored(name, part)).collect();
    (craft(&members).bytes, parts)
}

#[tokio::test]
async fn siblings_come_together_and_get_cheaper() {
    let (bytes, parts) = many(400);
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.asked();
    let mut prices = Vec::new();
    for (name, part) in &parts {
        let (price, bytes) = stage.wanted(name).await;
        assert!(bytes == *part, "{name}");
        prices.push(price.unwrap().requests);
    }
    assert!(prices[..3] == [1, 1, 1] && prices[3..].iter().all(|requests| *requests == 0), "{prices:?}");
    let asked = stage.asked();
    assert!(asked.len() <= 10, "{} requests for 400 members", asked.len());
}

#[tokio::test]
async fn those_who_ask_for_siblings_at_once_share_their_bytes() {
    let (bytes, parts) = many(200);
    let size = bytes.len() as u64;
    let stage = std::sync::Arc::new(Stage::with(bytes, Ranges::Right).await);
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.asked();
    let reading: Vec<_> = parts
        .into_iter()
        .map(|(name, part)| {
            let stage = std::sync::Arc::clone(&stage);
            tokio::spawn(async move { stage.wanted(&name).await.1 == part })
        })
        .collect();
    for task in reading {
        assert!(task.await.unwrap());
    }
    let asked = stage.asked();
    assert!(asked.len() <= 12, "{asked:?}");
    let range = |asked: &String| {
        let (first, last) = asked.strip_prefix("bytes=")?.split_once('-')?;
        Some(last.parse::<u64>().ok()? + 1 - first.parse::<u64>().ok()?)
    };
    let fetched: u64 = asked.iter().filter_map(range).sum();
    assert!(fetched <= size + size / 5, "no byte twice: {fetched} of {size}, {asked:?}");
}

/// What a deleted member has left belongs to none.
#[tokio::test]
async fn a_gap_between_members_costs_its_bytes_and_no_more_requests() {
    let parts: Vec<_> = (0..800).map(|number| (format!("m{number}"), noise(number, 10_000))).collect();
    let mut members: Vec<_> = parts.iter().map(|(name, part)| stored(name, part)).collect();
    members[250].after = vec![0; 5 << 20];
    let stage = Stage::with(craft(&members).bytes, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.asked();

    for (name, part) in &parts {
        assert!(stage.wanted(name).await.1 == *part, "{name}");
    }

    let asked = stage.asked();
    assert!(asked.len() <= 30, "{} requests for 13 MB", asked.len());
}

#[tokio::test]
async fn members_far_apart_come_by_themselves_until_the_whole_is_no_dearer() {
    // A package of 6 MB is worth about 20 requests.
    let (bytes, parts) = many(600);
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.asked();
    for number in (0..600).map(|step| (step * 401) % 600) {
        let (name, part) = &parts[number];
        assert!(stage.wanted(name).await.1 == *part, "{name}");
    }
    let asked = stage.asked();
    assert!(asked.len() <= 40, "{} requests for 600 members", asked.len());
}

#[tokio::test]
async fn a_window_of_a_version_that_is_gone_is_not_used() {
    let (bytes, parts) = many(100);
    let stage = Stage::with(bytes, Ranges::Right).await;
    for (name, part) in &parts[..50] {
        assert!(stage.wanted(name).await.1 == *part);
    }
    let renewed: Vec<_> = (0..100).map(|number| (format!("m{number}"), noise(number + 1000, 12_000))).collect();
    let members: Vec<_> = renewed.iter().map(|(name, part)| stored(name, part)).collect();
    let answer = Answer::new("application/zip", craft(&members).bytes).etag("v2").ranges(Ranges::Right);
    stage.server.put("/dump.zip", answer);
    for (number, (name, part)) in parts.iter().enumerate().skip(50) {
        let bytes = stage.wanted(name).await.1;
        assert!(bytes == *part || bytes == renewed[number].1, "one version or the other, never a mixture");
    }
    stage.packages.current(&stage.uri()).await.unwrap();
    assert!(stage.wanted("m99").await.1 == renewed[99].1);
}

#[tokio::test]
async fn what_cannot_be_had_has_no_price() {
    let (bytes, _) = many(3);
    let stage = Stage::with(bytes, Ranges::Right).await;
    let price = |path: &str| stage.packages.price(&PackageMember { package: stage.uri(), path: path.into() });
    assert_eq!(price("m1").unwrap().requests, 3, "the directory is not known");
    stage.packages.directory(&stage.uri()).await.unwrap();
    assert_eq!(price("m1"), Some(Price::default()), "a small package is here");
    stage.packages.member(&stage.uri(), "gone").await.unwrap_err();
    assert_eq!(price("gone"), None);

    let gone = PackageMember { package: stage.server.uri("/gone.zip"), path: "a".into() };
    assert!(stage.packages.price(&gone).is_some());
    stage.packages.directory(&gone.package).await.unwrap_err();
    assert_eq!(stage.packages.price(&gone), None);
}

#[tokio::test]
async fn a_reader_comes_before_members_and_windows_that_nobody_waits_for_yet() {
    const DUE: Duration = Duration::from_secs(60);
    let (bytes, parts) = many(400);
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.server.put("/held", Answer::new("text/plain", noise(1, 8 << 20)));
    stage.server.put("/read", Answer::new("text/plain", "read"));
    let own_authority = Some(stage.server.authority.as_str().into());
    let client = Client::new(HttpConfig { own_authority, connections: 1, ..HttpConfig::default() }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let packages = Packages::open(client.clone(), PackageConfig::new(folder.path().to_owned())).unwrap();
    packages.directory(&stage.uri()).await.unwrap();
    let get = |path| Request::get(stage.server.uri(path), DUE);
    // The one place of the host is taken.
    let held = client.send(get("/held")).await.unwrap();
    stage.server.asked_in_order();
    // All of them run on this one thread: whoever can go on has done so after some rounds.
    let all_wait = || async {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    };
    let mut ahead = Vec::new();
    for (name, _) in &parts[..8] {
        let (packages, member) = (packages.clone(), PackageMember { package: stage.uri(), path: name.as_str().into() });
        packages.want(&member);
        let awaited = Priority::Background;
        ahead.push(tokio::spawn(
            async move { packages.member_for(&member.package, &member.path, awaited).await.map(drop) },
        ));
    }
    all_wait().await;
    let (asking, request) = (client.clone(), get("/read"));
    let reading = tokio::spawn(async move { asking.send(request).await.map(drop) });
    all_wait().await;

    drop(held);

    reading.await.unwrap().unwrap();
    assert_eq!(stage.server.asked_in_order().first().map(String::as_str), Some("/read"));
    for member in ahead {
        member.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn whoever_waits_for_a_window_whose_fetch_panics_or_is_dropped_goes_on_without_it() {
    let stage = Stage::with(noise(1, 8 << 20), Ranges::Right).await;
    let (package, client) = (stage.uri(), stage.server.client());
    let version = remote::version(&package, &remote::ask_whole(&client, &package).await.unwrap(), 8 << 20).unwrap();
    for panics in [true, false] {
        let window = Arc::new(Window::new(&version, 0..8 << 20));
        let goes_on = move |_: u64| -> bool {
            assert!(!panics, "a test");
            true
        };
        let fetch = tokio::spawn(Arc::clone(&window).bring(client.clone(), package.clone(), goes_on));
        if !panics {
            fetch.abort();
        }

        let last = (8 << 20) - 1..8 << 20;
        let waited = tokio::time::timeout(std::time::Duration::from_secs(20), window.bytes(&last)).await;

        assert!(waited.expect("it does not wait for ever").unwrap().is_none());
        assert_eq!(fetch.await.unwrap_err().is_panic(), panics);
    }
}

#[tokio::test]
async fn a_window_that_nobody_holds_any_more_is_not_fetched_to_its_end() {
    let stage = Stage::with(noise(1, 8 << 20), Ranges::Right).await;
    let (package, client) = (stage.uri(), stage.server.client());
    let version = remote::version(&package, &remote::ask_whole(&client, &package).await.unwrap(), 8 << 20).unwrap();
    for is_held in [true, false] {
        let window = Arc::new(Window::new(&version, 0..8 << 20));
        let mut windows = Windows::default();
        windows.put(&package, Arc::clone(&window));
        if !is_held {
            windows = Windows::default();
        }
        let came = AtomicU64::new(0);
        let goes_on = |bytes| {
            came.fetch_add(bytes, Ordering::Relaxed);
            true
        };
        window.bring(client.clone(), package.clone(), goes_on).await;
        assert_eq!(came.into_inner() == 8 << 20, is_held);
        drop(windows);
    }
}
