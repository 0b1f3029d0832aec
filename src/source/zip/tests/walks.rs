//! Many members of one package, wanted one by one.

use super::super::arriving::Arriving;
use super::super::window::SMALL;
use super::crafted::{craft, stored};
use super::*;
use crate::source::http::{HttpConfig, Priority, Request};

/// A package of so many members of 10 kB, and their bytes.
fn many(count: u32) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let parts: Vec<_> = (0..count).map(|number| (format!("m{number}"), noise(number, 10_000))).collect();
    let members: Vec<_> = parts.iter().map(|(name, part)| stored(name, part)).collect();
    (craft(&members).bytes, parts)
}

/// The same, too large for a local copy.
fn large(count: u32) -> (Vec<u8>, Vec<(String, Vec<u8>)>) {
    let parts: Vec<_> = (0..count).map(|number| (format!("m{number}"), noise(number, 10_000))).collect();
    let padding = noise(77, SMALL as usize);
    let members = parts.iter().map(|(name, part)| stored(name, part)).chain([stored("padding", &padding)]);
    (craft(&members.collect::<Vec<_>>()).bytes, parts)
}

/// A server with this package, whose directory is known.
async fn stage_of(bytes: Vec<u8>) -> Stage {
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.asked();
    stage
}

/// Bytes that ranges asked for.
fn bytes_of(asked: &[String]) -> u64 {
    let range = |asked: &String| {
        let (first, last) = asked.strip_prefix("bytes=")?.split_once('-')?;
        Some(last.parse::<u64>().ok()? + 1 - first.parse::<u64>().ok()?)
    };
    asked.iter().filter_map(range).sum()
}

#[tokio::test]
async fn a_small_package_comes_whole_when_three_members_are_wanted() {
    let (bytes, parts) = many(400);
    let length = bytes.len() as u64;
    let stage = stage_of(bytes).await;
    for (number, (name, part)) in parts.iter().enumerate() {
        let (is_way, bytes) = stage.wanted(name).await;
        assert!(bytes == *part, "{name}");
        assert_eq!(is_way, number >= 2, "{name}");
    }
    let asked = stage.asked();
    assert!(asked.len() <= 4 && bytes_of(&asked) <= length + 100_000, "{asked:?}");
}

#[tokio::test]
async fn one_or_two_members_bring_nothing_but_themselves() {
    let (bytes, parts) = many(400);
    let stage = stage_of(bytes).await;
    for _ in 0..5 {
        for (name, part) in &parts[100..102] {
            assert!(stage.wanted(name).await.1 == *part);
        }
    }
    assert!(bytes_of(&stage.asked()) <= 10 * 11_000);
}

#[tokio::test]
async fn a_walk_through_a_large_package_takes_windows() {
    let (bytes, parts) = large(2000);
    let stage = stage_of(bytes).await;
    for (name, part) in &parts {
        assert!(stage.wanted(name).await.1 == *part, "{name}");
    }
    let asked = stage.asked();
    assert!(asked.len() <= 6 && bytes_of(&asked) <= 29 << 20, "{asked:?}");
}

#[tokio::test]
async fn members_wanted_at_once_share_their_bytes() {
    for (bytes, parts) in [many(300), large(600)] {
        let size = 300 * 10_300;
        let stage = std::sync::Arc::new(stage_of(bytes).await);
        let reading: Vec<_> = parts
            .into_iter()
            .take(300)
            .map(|(name, part)| {
                let stage = std::sync::Arc::clone(&stage);
                tokio::spawn(async move { stage.wanted(&name).await.1 == part })
            })
            .collect();
        for task in reading {
            assert!(task.await.unwrap());
        }
        let asked = stage.asked();
        assert!(asked.len() <= 6 && bytes_of(&asked) <= size + (9 << 20), "{asked:?}");
    }
}

/// What a deleted member has left belongs to none.
#[tokio::test]
async fn a_gap_between_members_costs_its_bytes_and_no_more_requests() {
    let parts: Vec<_> = (0..2000).map(|number| (format!("m{number}"), noise(number, 10_000))).collect();
    let mut members: Vec<_> = parts.iter().map(|(name, part)| stored(name, part)).collect();
    members[250].after = vec![0; 5 << 20];
    let stage = stage_of(craft(&members).bytes).await;
    for (name, part) in &parts {
        assert!(stage.wanted(name).await.1 == *part, "{name}");
    }
    let asked = stage.asked();
    assert!(asked.len() <= 12, "{asked:?}");
}

#[tokio::test]
async fn members_wanted_far_apart_cost_at_most_twice_the_package() {
    let parts: Vec<_> = (0..30).map(|number| (format!("m{number}"), noise(number, 2 << 20))).collect();
    let members: Vec<_> = parts.iter().map(|(name, part)| stored(name, part)).collect();
    let bytes = craft(&members).bytes;
    let length = bytes.len() as u64;
    let stage = stage_of(bytes).await;
    for round in 0..4 {
        for number in (0..30).map(|step| (step * 17 + round) % 30) {
            let (name, part) = &parts[number];
            assert!(stage.wanted(name).await.1 == *part, "{name}");
        }
    }
    let asked = stage.asked();
    assert!(bytes_of(&asked) <= 2 * length + (9 << 20), "{} of {length}: {asked:?}", bytes_of(&asked));
}

#[tokio::test]
async fn bytes_of_a_version_that_is_gone_are_not_used() {
    let (bytes, parts) = large(100);
    let stage = stage_of(bytes).await;
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
async fn bytes_of_earlier_versions_make_no_package_small() {
    let (bytes, parts) = large(100);
    let length = bytes.len();
    let stage = stage_of(bytes).await;
    stage.member("padding").await.unwrap();
    for (name, part) in &parts {
        assert!(stage.wanted(name).await.1 == *part);
    }
    let members: Vec<_> = parts.iter().rev().map(|(name, part)| stored(name, part)).collect();
    let padding = stored("padding", &noise(78, SMALL as usize));
    let renewed = craft(&[&members[..], &[padding]].concat()).bytes;
    stage.server.put("/dump.zip", Answer::new("application/zip", renewed).etag("v2").ranges(Ranges::Right));
    stage.packages.current(&stage.uri()).await.unwrap();
    stage.asked();

    for (name, part) in &parts[..5] {
        assert!(stage.wanted(name).await.1 == *part);
    }
    let asked = bytes_of(&stage.asked());
    assert!(asked < length as u64 / 2, "{asked} of {length}");
}

#[tokio::test]
async fn bytes_of_other_members_count_for_no_reader() {
    let (bytes, parts) = many(400);
    let stage = stage_of(bytes).await;
    let open = async |name: &str, received: &Received| {
        let mut member = stage.packages.member_for(&stage.uri(), name, Priority::default(), received).await.unwrap();
        while member.chunk().await.unwrap().is_some() {}
    };
    let (first, second) = (Received::default(), Received::default());
    open(&parts[0].0, &first).await;
    let before = first.bytes();
    open(&parts[300].0, &second).await;
    assert!(before >= 10_000 && first.bytes() == before && second.bytes() >= 10_000);

    // The directory is waited for by each of them.
    let packages = Packages::open(stage.server.client(), stage.config()).unwrap();
    let received = Received::default();
    packages.directory_for(&stage.uri(), &received).await.unwrap();
    assert!(received.bytes() >= 100_000, "{}", received.bytes());
}

/// Memory is bounded: without any, each member comes by its own range.
#[tokio::test]
async fn without_memory_for_windows_members_come_by_themselves() {
    let (bytes, parts) = large(50);
    let mut stage = stage_of(bytes).await;
    let budget = crate::platform::memory_budget::Budget::new(16 << 20);
    let _taken = budget.try_reserve((16 << 20) - 15_000).unwrap();
    let config = PackageConfig { budget: budget.clone(), ..stage.config() };
    stage.packages = Packages::open(stage.server.client(), config).unwrap();
    for (name, part) in &parts {
        assert!(stage.wanted(name).await.1 == *part, "{name}");
    }
    // The directory, and each member.
    assert_eq!((stage.asked().len(), budget.free()), (51, 15_000));
}

#[tokio::test]
async fn a_reader_comes_before_what_is_fetched_for_no_reader_yet() {
    const DEADLINE: Duration = Duration::from_secs(60);
    for (bytes, parts) in [many(400), large(400)] {
        let stage = Stage::with(bytes, Ranges::Right).await;
        stage.server.put("/held", Answer::new("text/plain", noise(1, 8 << 20)));
        stage.server.put("/read", Answer::new("text/plain", "read"));
        let own_authority = Some(stage.server.authority.as_str().into());
        let client = Client::new(HttpConfig { own_authority, connections: 1, ..HttpConfig::default() }).unwrap();
        let packages = Packages::open(client.clone(), stage.config()).unwrap();
        packages.directory(&stage.uri()).await.unwrap();
        let get = |path| Request::get(stage.server.uri(path), DEADLINE);
        // The one connection to the host is taken.
        let held = client.send(get("/held")).await.unwrap();
        stage.server.asked_in_order();
        // All of them run on this one thread: each task that can go on has done so after some rounds.
        let all_wait = || async {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
        };
        let mut ahead = Vec::new();
        for (name, _) in &parts[..8] {
            let (packages, member) =
                (packages.clone(), PackageMember { package: stage.uri(), path: name.as_str().into() });
            packages.want(&member);
            let awaited = Priority::background();
            ahead.push(tokio::spawn(async move {
                packages.member_for(&member.package, &member.path, awaited, &Received::default()).await.map(drop)
            }));
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
}

#[tokio::test]
async fn a_reader_goes_on_without_a_fetch_that_ends_or_fails() {
    let stage = Stage::with(many(400).0, Ranges::Right).await;
    let version = stage.packages.directory(&stage.uri()).await.unwrap().version.clone();
    for is_reported in [true, false] {
        let memory = crate::platform::memory_budget::Budget::new(100).try_reserve(100).unwrap();
        let (window, mut feed) = Arriving::window(&version, 10..110, memory, &Counter::default());
        feed.add(vec![7; 40].into());
        feed.add(Default::default());
        let priority = Priority::default();
        assert_eq!(window.read(15, 100, &priority).await.unwrap().unwrap(), vec![7; 35]);
        assert_eq!(window.read(9, 1, &priority).await.unwrap(), None);
        let (own, waiting) = (Arc::clone(&window), window.end());
        let waited = tokio::spawn(async move { own.read(60, 10, &Priority::default()).await });
        tokio::task::yield_now().await;
        match is_reported {
            true => feed.fail(PackageError::Folder {
                path: "/".into(),
                cause: Arc::new(std::io::ErrorKind::StorageFull.into()),
            }),
            false => drop(feed),
        }
        assert_eq!(waited.await.unwrap().unwrap(), None);
        assert_eq!((waiting, window.end()), (110, 50));
        assert_eq!(window.read(49, 5, &priority).await.unwrap().unwrap(), vec![7; 1], "what is here stays");
    }
}

#[tokio::test]
async fn bytes_of_a_manifest_count_for_each_reader_and_outlive_it() {
    let entries: Vec<String> = (0..4000).map(|number| entry(&format!("{number}"), "/srv/data/a")).collect();
    let listed = manifest(&entries);
    let bytes = craft(&[stored("manifest.xml", &listed), stored("a", b"a"), stored("pad", &noise(1, 1 << 20))]).bytes;
    let answer = Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right);
    let read = async |stage: &Stage, received: &Received| {
        stage.packages.member_for(&stage.uri(), "/srv/data/a", Priority::default(), received).await.map(drop)
    };

    let stage = Stage::answering(answer.clone()).await;
    let (first, second) = (Received::default(), Received::default());
    let both = tokio::join!(read(&stage, &first), read(&stage, &second));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    assert!([first, second].iter().all(|received| received.bytes() >= listed.len() as u64));

    let stage = Stage::answering(answer.clone()).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    let held = Arc::new(tokio::sync::Barrier::new(2));
    stage.server.put("/dump.zip", answer.clone().together(&held));
    let left = tokio::time::timeout(Duration::from_millis(200), read(&stage, &Received::default())).await;
    assert!(left.is_err(), "its manifest is held");
    stage.server.put("/dump.zip", answer);
    held.wait().await;
    let is_here = || {
        let mut files = std::fs::read_dir(stage.folder.path()).unwrap();
        files.any(|file| file.unwrap().file_name().to_string_lossy().ends_with(".manifest"))
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_here() {
        assert!(Instant::now() < deadline, "it came no further than its reader");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
