//! Servers that lie about ranges and versions, or answer slowly.

use super::crafted::{craft, stored};
use super::*;

/// A package of three members of 600 kB, too large to come at once.
pub fn package(seed: u32) -> (Vec<u8>, [Vec<u8>; 3]) {
    let parts = [noise(seed, 600_000), noise(seed + 1, 600_000), noise(seed + 2, 600_000)];
    let members: Vec<_> = ["a", "b", "c"].iter().zip(&parts).map(|(name, part)| stored(name, part)).collect();
    (craft(&members).bytes, parts)
}

#[tokio::test]
async fn a_server_without_ranges_is_asked_for_the_whole_once() {
    let (bytes, parts) = package(1);
    let stage = Stage::with(bytes, Ranges::Ignored).await;
    for (name, part) in ["a", "b", "c"].iter().zip(&parts) {
        assert!(stage.member(name).await.unwrap() == *part);
    }
    let asked = stage.asked();
    assert!(asked.len() <= 2, "{asked:?}");
}

#[tokio::test]
async fn a_server_that_cannot_count_from_the_end_is_asked_by_offsets() {
    let (bytes, parts) = package(1);
    let stage = Stage::with(bytes, Ranges::FromStart).await;
    assert!(stage.member("b").await.unwrap() == parts[1]);
    let asked = stage.asked();
    assert!(asked[0] == "bytes=-131072" && asked[1].is_empty() && asked.len() == 4, "{asked:?}");
}

#[tokio::test]
async fn ranges_without_a_strong_etag_are_not_used() {
    let (bytes, parts) = package(1);
    for etag in [None, Some("W/\"weak\"")] {
        let answer = Answer::new("application/zip", bytes.clone()).ranges(Ranges::Right);
        let answer = etag.into_iter().fold(answer, |answer, etag| answer.header("ETag", etag));
        let stage = Stage::answering(answer).await;
        assert!(stage.member("b").await.unwrap() == parts[1]);
        assert!(stage.member("c").await.unwrap() == parts[2]);
        assert_eq!(stage.asked(), ["bytes=-131072", ""], "{etag:?}");
    }
}

#[tokio::test]
async fn a_wrong_range_is_an_error_and_never_bytes() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes.clone(), Ranges::Shifted).await;
    let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
    assert!(matches!(error, PackageError::Http { .. }), "{error:?}");

    let stage = Stage::with(bytes.clone(), Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.server.put("/dump.zip", Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Shifted));
    stage.member("a").await.unwrap_err();
}

/// A 206 whose length is `*` does not show where the end lies.
#[tokio::test]
async fn a_range_without_the_whole_length_is_requested_otherwise() {
    let (bytes, parts) = package(1);
    let stage = Stage::with(bytes, Ranges::Lengthless).await;
    assert!(stage.member("b").await.unwrap() == parts[1]);
}

#[tokio::test]
async fn a_package_changed_between_ranges_is_read_anew_by_directory() {
    let (before, _) = package(1);
    let (after, parts) = package(7);
    let stage = Stage::with(before, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    stage.server.put("/dump.zip", Answer::new("application/zip", after).etag("v2").ranges(Ranges::Right));
    assert!(stage.member("b").await.unwrap() == parts[1]);
}

#[tokio::test]
async fn an_etag_that_changes_with_every_answer_is_an_error() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    // The directory answers 416 to any range but from the end: as if it had shrunk.
    stage.server.put("/dump.zip", Answer::new("application/zip", vec![0; 10]).etag("v2").ranges(Ranges::Refused));
    let error = stage.member("a").await.unwrap_err();
    assert!(matches!(error, PackageError::Changed { .. } | PackageError::NotZip { .. }), "{error:?}");
}

#[tokio::test]
async fn a_range_that_breaks_off_goes_on_where_it_broke() {
    let (bytes, parts) = package(1);
    let stage = Stage::with(bytes.clone(), Ranges::Right).await;
    stage.packages.directory(&stage.uri()).await.unwrap();
    let answer = Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right);
    stage.server.put("/dump.zip", answer.clone().cut(3));
    stage.asked();
    assert!(stage.member("a").await.unwrap() == parts[0]);
    assert_eq!(stage.asked().len(), 4);

    stage.server.put("/dump.zip", answer.cut(1000));
    assert!(stage.member("b").await.is_ok() || stage.asked().len() < 40, "it ends");
}

#[tokio::test]
async fn a_content_coding_that_nobody_asked_for_is_refused() {
    let (bytes, _) = package(1);
    let answer = Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right);
    let stage = Stage::answering(answer.header("Content-Encoding", "gzip")).await;
    let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
    assert!(crate::platform::error_chain::chain(&error).contains("content coding"), "{error}");
}

#[tokio::test]
async fn a_package_that_is_gone_is_told_so() {
    let stage = Stage::answering(Answer::status(404)).await;
    let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
    assert!(!error.is_retryable() && crate::platform::error_chain::chain(&error).contains("404"), "{error}");
}

#[tokio::test]
async fn a_whole_package_above_the_limit_is_not_fetched() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes, Ranges::Ignored).await;
    let folder = tempfile::tempdir().unwrap();
    let config = PackageConfig { whole: 1 << 20, ..PackageConfig::new(folder.path().to_owned()) };
    let packages = Packages::open(stage.server.client(), config).unwrap();
    let error = packages.directory(&stage.uri()).await.unwrap_err();
    assert!(matches!(error, PackageError::TooLarge { limit, .. } if limit == 1 << 20), "{error:?}");
}

#[tokio::test]
async fn those_who_ask_at_once_share_one_question() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes, Ranges::Right).await;
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let (packages, uri) = (stage.packages.clone(), stage.uri());
            tokio::spawn(async move { packages.directory(&uri).await.map(|directory| directory.len()) })
        })
        .collect();
    for task in asking {
        assert_eq!(task.await.unwrap().unwrap(), 3);
    }
    assert_eq!(stage.asked().len(), 1);
}

#[tokio::test]
async fn directories_take_no_more_memory_than_allowed() {
    let stage = Stage::with(Vec::new(), Ranges::Right).await;
    let folder = tempfile::tempdir().unwrap();
    let config = PackageConfig { memory: 100 << 10, ..PackageConfig::new(folder.path().to_owned()) };
    let packages = Packages::open(stage.server.client(), config).unwrap();
    for number in 0..10 {
        let path = format!("/{number}.zip");
        let bytes = craft(&[stored("a", &noise(number, 40_000))]).bytes;
        stage.server.put(&path, Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right));
        packages.directory(&stage.server.uri(&path)).await.unwrap();
    }
    let known = (0..10).filter(|number| packages.known(&stage.server.uri(&format!("/{number}.zip"))).is_some());
    assert_eq!(known.count(), 2);
}

#[tokio::test]
async fn of_what_is_no_zip_only_the_beginning_is_fetched() {
    let beginnings: [(&[u8], &str); 3] =
        [(b"\xfd7zXZ\0", "xz"), (b"\n<!DOCTYPE html>", "an HTML or XML page"), (b"\x1f\x8b\x08", "gzip")];
    for (first, told) in beginnings {
        let bytes = [first, &noise(1, 3 << 20)].concat();
        // Whoever wants more of it waits in vain.
        let stage = Stage::answering(Answer::new("application/zip", bytes).stalls_after(1000)).await;
        let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
        assert!(matches!(&error, PackageError::NotZip { seen, .. } if seen.contains(told)), "{error:?}");
        assert_eq!(fs::read_dir(stage.folder.path()).unwrap().count(), 0);
    }
}

/// A server with `Last-Modified` alone cannot distinguish two versions of one second (RFC 9110, 8.8.2.2).
#[tokio::test]
async fn a_package_replaced_within_its_last_second_is_read_again() {
    let second = "Thu, 03 Jan 2013 12:00:00 GMT";
    let publish = |bytes: Vec<u8>| {
        let answer = Answer::new("application/zip", bytes).ranges(Ranges::Right);
        answer.header("Last-Modified", second).header("Date", second)
    };
    let [before, after] = [b"before", b"after!"].map(|bytes| zip(&[("a", bytes.to_vec(), false)]));
    let stage = Stage::answering(publish(before)).await;
    assert_eq!(stage.member("a").await.unwrap(), b"before");

    stage.server.put("/dump.zip", publish(after));
    stage.packages.current(&stage.uri()).await.unwrap();

    assert_eq!(stage.member("a").await.unwrap(), b"after!");
}
