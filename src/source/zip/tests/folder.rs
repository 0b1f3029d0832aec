//! What outlives a process, and what a disk does to it.

use super::crafted::{craft, stored};
use super::servers::package;
use super::*;
use std::fs;

/// The one file of the folder that is of this kind.
pub(super) fn file(stage: &Stage, kind: &str) -> std::path::PathBuf {
    super::super::folder::file(stage.folder.path(), &stage.uri(), kind)
}

#[tokio::test]
async fn a_manifest_is_asked_about_and_not_fetched_again() {
    let entries: Vec<String> = (0..4000).map(|number| entry(&format!("{number}"), &format!("/{number}"))).collect();
    let listed = manifest(&entries);
    let bytes = craft(&[stored("manifest.xml", &listed), stored("padding", &noise(1, 2 << 20))]).bytes;
    let mut stage = Stage::with(bytes, Ranges::Right).await;
    stage.packages.manifest(&stage.uri()).await.unwrap();
    assert_eq!(stage.asked().len(), 2);
    for _ in 0..2 {
        stage.server.asked();
        let manifest = stage.packages.manifest(&stage.uri()).await.unwrap();
        let asked = stage.server.asked();
        assert!(asked.len() == 1 && asked[0].conditional && asked[0].sent == 0, "{asked:?}");
        let mut reader = manifest.reader().unwrap();
        let mut entries = 0;
        while reader.next_entry().unwrap().is_some() {
            entries += 1;
        }
        assert_eq!(entries, 4000);
    }
    // After a restart the directory is read again, the manifest is not.
    stage.restart();
    stage.asked();
    stage.packages.manifest(&stage.uri()).await.unwrap();
    assert_eq!(stage.asked(), ["bytes=-131072"]);
}

#[tokio::test]
async fn a_whole_package_is_fetched_once_and_serves_every_member() {
    let (bytes, parts) = package(1);
    let length = bytes.len();
    let mut stage = Stage::with(bytes, Ranges::Right).await;
    copied(&stage.packages, &stage.uri()).await.unwrap();
    assert_eq!(stage.asked(), ["bytes=-131072".to_owned(), format!("bytes=0-{}", length - 1)]);
    for _ in 0..2 {
        for (name, part) in ["a", "b", "c"].iter().zip(&parts) {
            assert!(stage.member(name).await.unwrap() == *part);
        }
        assert_eq!(stage.asked().len(), 0);
        stage.restart();
    }
}

#[tokio::test]
async fn whole_packages_evict_each_other_and_keep_to_their_limit() {
    let stage = Stage::with(Vec::new(), Ranges::Right).await;
    let config = PackageConfig { whole: 4 << 20, ..stage.config() };
    let packages = Packages::open(stage.server.client(), config).unwrap();
    let mut members = Vec::new();
    for number in 0..4 {
        let path = format!("/{number}.zip");
        let (bytes, parts) = package(number * 10);
        stage.server.put(&path, Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right));
        copied(&packages, &stage.server.uri(&path)).await.unwrap();
        // Begun before it is evicted, read to its end after.
        members.push((packages.member(&stage.server.uri(&path), "b").await.unwrap(), parts));
        let lengths = fs::read_dir(stage.folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(lengths.sum::<u64>() <= 5 << 20);
    }
    for (mut member, parts) in members {
        let mut bytes = Vec::new();
        while let Some(chunk) = member.chunk().await.unwrap() {
            bytes.extend_from_slice(&chunk);
        }
        assert!(bytes == parts[1]);
    }
}

#[tokio::test]
async fn whole_packages_evict_each_other_for_the_reserve() {
    let stage = Stage::with(package(1).0, Ranges::Right).await;
    let (other, _) = package(2);
    stage.server.put("/other.zip", Answer::new("application/zip", other).etag("v1").ranges(Ranges::Right));
    let other = stage.server.uri("/other.zip");
    let open = |reserve| {
        let free_space = |_: &std::path::Path| Ok(8 << 20);
        Packages::open(stage.server.client(), PackageConfig { reserve, free_space, ..stage.config() }).unwrap()
    };

    copied(&open(1 << 20), &stage.uri()).await.unwrap();
    let error = copied(&open(1 << 40), &other).await.unwrap_err();
    assert!(
        matches!(&error, PackageError::Folder { cause, .. } if cause.kind() == std::io::ErrorKind::StorageFull),
        "{error:?}"
    );
    assert!(file(&stage, "whole").exists(), "nothing goes where that would not do");

    let packages = open((8 << 20) + 1);
    copied(&packages, &other).await.unwrap_err();
    assert!(file(&stage, "whole").exists(), "one byte more than it takes itself");
    copied(&open(8 << 20), &other).await.unwrap();
    assert!(!file(&stage, "whole").exists());
}

#[tokio::test]
async fn packages_that_are_downloaded_do_not_evict_each_other() {
    let stage = Stage::with(package(1).0, Ranges::Right).await;
    let packages = Packages::open(stage.server.client(), PackageConfig { whole: 5 << 20, ..stage.config() }).unwrap();
    let (second, way) = (stage.server.uri("/second.zip"), stage.server.uri("/way.zip"));
    stage.server.put("/second.zip", Answer::new("application/zip", package(2).0).etag("v1").ranges(Ranges::Right));
    copied(&packages, &stage.uri()).await.unwrap();

    let reservation = packages.reserve(&way, 2 << 20, None);
    copied(&packages, &second).await.unwrap();
    assert!(!file(&stage, "whole").exists(), "what is still to come has its room too");

    drop(reservation);
    copied(&packages, &stage.uri()).await.unwrap();
    assert!(super::super::folder::file(stage.folder.path(), &second, "whole").exists());
}

#[tokio::test]
async fn a_package_waits_for_those_on_their_way_that_leave_it_no_room() {
    let stage = Stage::with(package(1).0, Ranges::Ignored).await;
    let packages = Packages::open(stage.server.client(), PackageConfig { whole: 4 << 20, ..stage.config() }).unwrap();
    let (second, way) = (stage.server.uri("/second.zip"), stage.server.uri("/way.zip"));
    stage.server.put("/second.zip", Answer::new("application/zip", package(2).0).etag("v1").ranges(Ranges::Right));
    let reservation = packages.reserve(&way, 4 << 20, None).unwrap();
    assert!(packages.reserve(&second, 1, None).is_none());

    let first = stage.uri();
    let fetching = async { tokio::join!(packages.directory(&first), copied(&packages, &second)) };
    let mut fetching = std::pin::pin!(fetching);
    let asked = async {
        while packages.known(&second).is_none() || stage.server.asked_ranges("/dump.zip").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut fetching => panic!("there is no room"),
        () = asked => {}
    }
    drop(reservation);

    let (first, second) = fetching.await;
    assert_eq!((first.unwrap().len(), second.unwrap().len()), (3, 3));
}

/// While its directory is read its reservation is held too.
#[tokio::test]
async fn a_copy_that_is_complete_counts_once() {
    let limit = 4 << 20;
    let stage = Stage::with(package(1).0, Ranges::Right).await;
    let packages = Packages::open(stage.server.client(), PackageConfig { whole: limit, ..stage.config() }).unwrap();
    let version = copied(&packages, &stage.uri()).await.unwrap().version.clone();
    let (length, path) = (version.length, super::super::folder::file(stage.folder.path(), &stage.uri(), "whole"));
    let mut file = super::super::folder::Unnamed::new(stage.folder.path()).unwrap();
    file.write(&fs::read(&path).unwrap()).unwrap();
    let _own = packages.reserve(&stage.uri(), length, None).unwrap();

    packages.complete(&stage.uri(), version, file).await.unwrap();
    let _other = packages.reserve(&stage.server.uri("/other.zip"), limit - length, None).unwrap();
    packages.make_space(0).unwrap();

    assert!(path.exists(), "there is space for both");
}

/// A refresh asks for the directory while a reader has the whole brought here.
#[tokio::test]
async fn a_directory_is_had_while_the_whole_is_on_its_way() {
    let (bytes, parts) = package(1);
    let answer = |bytes: &[u8]| Answer::new("application/zip", bytes).etag("v1").ranges(Ranges::Right);
    // The end of the package comes, the whole never does.
    let mut stage = Stage::answering(answer(&bytes).stalls_after(200_000)).await;
    let uri = stage.uri();
    stage.packages.directory(&uri).await.unwrap();
    let directory = stage.packages.known(&uri).unwrap();
    let copy = stage.packages.begin_local_copy(&directory).unwrap();
    while copy.here() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let current = tokio::time::timeout(Duration::from_secs(20), stage.packages.current(&uri)).await;

    assert_eq!(current.expect("nothing waits for the copy").unwrap().len(), 3);
    stage.packages.retain(&HashSet::new()).unwrap();
    assert!(copy.end() == copy.range.end && fs::read_dir(stage.folder.path()).unwrap().count() >= 1, "it stays");
    drop(copy);
    stage.restart();
    stage.server.put("/dump.zip", answer(&bytes));
    assert!(matches!(copied(&stage.packages, &uri).await.unwrap().place, BytesPlace::File { .. }));
    // What is here stays known as here, whichever request asks for the directory.
    assert!(matches!(stage.packages.current(&uri).await.unwrap().place, BytesPlace::File { .. }));
    assert!(stage.member("b").await.unwrap() == parts[1]);
}

#[tokio::test]
async fn a_whole_package_of_weak_validators_is_asked_about() {
    let (bytes, parts) = package(1);
    let answer = Answer::new("application/zip", bytes).header("ETag", "W/\"1\"").ranges(Ranges::Right);
    let mut stage = Stage::answering(answer).await;
    stage.packages.current(&stage.uri()).await.unwrap();
    stage.restart();
    stage.server.asked();
    stage.packages.current(&stage.uri()).await.unwrap();
    let asked = stage.server.asked();
    assert!(asked.len() == 1 && asked[0].conditional && asked[0].sent == 0, "{asked:?}");
    assert!(stage.member("a").await.unwrap() == parts[0]);
}

#[tokio::test]
async fn what_is_no_longer_listed_is_dropped() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes, Ranges::Right).await;
    copied(&stage.packages, &stage.uri()).await.unwrap();
    let uri = stage.uri();
    stage.packages.manifest(&uri).await.unwrap_err();
    stage.packages.retain(&HashSet::from([uri.clone()])).unwrap();
    assert!(file(&stage, "whole").exists());
    stage.packages.retain(&HashSet::new()).unwrap();
    assert_eq!(fs::read_dir(stage.folder.path()).unwrap().count(), 0);
    assert!(stage.packages.known(&uri).is_none());
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    let (bytes, _) = package(1);
    let stage = Stage::with(bytes, Ranges::Ignored).await;
    fs::remove_dir_all(stage.folder.path()).unwrap();
    let error = stage.packages.directory(&stage.uri()).await.unwrap_err();
    assert!(matches!(error, PackageError::Folder { .. }), "{error:?}");
}
