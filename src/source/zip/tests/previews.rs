//! Copies of manifests of packages that cannot be read in place: right ones, lies and nonsense.

use super::crafted::{craft, stored};
use super::*;

const COPY: &str = "/manifest-copy.xml";

/// A package of three members of 600 kB with this manifest.
fn package(listed: &[u8]) -> (Vec<u8>, [Vec<u8>; 3]) {
    let parts = [noise(1, 600_000), noise(2, 600_000), noise(3, 600_000)];
    let mut members: Vec<_> = ["a", "b", "c"].iter().zip(&parts).map(|(name, part)| stored(name, part)).collect();
    members.push(stored("manifest.xml", listed));
    (craft(&members).bytes, parts)
}

fn listed() -> Vec<u8> {
    manifest(&[entry("a", "/a"), entry("b", "/b"), entry("c", "/c")])
}

/// A server with a package and a copy of its manifest.
async fn stage(inside: &[u8], copy: Answer, ranges: Ranges) -> (Stage, [Vec<u8>; 3]) {
    let (bytes, parts) = package(inside);
    let stage = Stage::with(bytes, ranges).await;
    stage.server.put(COPY, copy);
    (stage, parts)
}

fn copy(bytes: &[u8]) -> Answer {
    Answer::xml(bytes).etag("copy")
}

impl Stage {
    fn listed(&self) -> Listed {
        let mut entry = Entry::new(self.uri());
        let link = urlset("", &[("contents", self.server.uri(COPY).as_str())], &[]);
        let mut reader = crate::document::Reader::new(link.as_bytes(), None, Limits::default()).unwrap();
        while reader.next_entry().unwrap().is_some() {}
        entry.links = reader.header().links.clone();
        Listed::of(&entry, Capability::ResourceDumpManifest)
    }

    /// (URI, path) of what the package is stated to hold.
    async fn stated(&self) -> Vec<(String, String)> {
        let manifest = self.packages.stated(&self.listed()).await.unwrap();
        let mut reader = manifest.reader().unwrap();
        let mut entries = Vec::new();
        while let Some(entry) = reader.next_entry().unwrap() {
            entries.push((entry.loc.to_string(), entry.path.unwrap().to_string()));
        }
        entries
    }

    /// Bytes of the package, and of all else, that were sent since the last look.
    fn sent(&self) -> (usize, usize) {
        let asked = self.server.asked();
        let of_package: usize = asked.iter().filter(|asked| asked.path == "/dump.zip").map(|asked| asked.sent).sum();
        (of_package, asked.iter().map(|asked| asked.sent).sum::<usize>() - of_package)
    }

    async fn is_told(&self) -> bool {
        let told = self.packages.contradiction_found();
        tokio::time::timeout(std::time::Duration::from_millis(1), told).await.is_ok()
    }
}

#[tokio::test]
async fn a_package_without_ranges_is_previewed_then_fetched() {
    let (mut stage, parts) = stage(&listed(), copy(&listed()), Ranges::Ignored).await;

    assert_eq!(stage.stated().await.len(), 3);
    assert_eq!(stage.sent(), (0, listed().len()), "nothing of the package");
    assert_eq!(stage.stated().await.len(), 3);
    assert_eq!(stage.sent(), (0, 0), "both are as they were");
    stage.restart();
    assert_eq!(stage.stated().await.len(), 3);
    assert_eq!(stage.sent(), (0, 0), "after a restart too");

    assert!(stage.member("/b").await.unwrap() == parts[1]);
    assert!(stage.member("/c").await.unwrap() == parts[2]);
    let (of_package, _) = stage.sent();
    assert!(of_package > 1_800_000, "now it comes: {of_package}");
    assert!(!stage.packages.is_contradicted(&stage.uri()) && !stage.is_told().await);
    assert_eq!(stage.stated().await.len(), 3);
    assert_eq!(stage.sent(), (0, 0));
}

#[tokio::test]
async fn where_there_are_ranges_the_manifest_inside_comes_first() {
    let lie = manifest(&[entry("lie", "/a")]);
    let (stage, _) = stage(&listed(), copy(&lie), Ranges::Right).await;
    assert_eq!(stage.stated().await.len(), 3);
    assert!(stage.server.asked().iter().all(|asked| asked.path == "/dump.zip"));
    assert_eq!(stage.stated().await.len(), 3);
    let asked = stage.server.asked();
    assert_eq!(asked.len(), 1, "that the host has ranges is known: {asked:?}");
}

#[tokio::test]
async fn a_copy_that_is_nonsense_is_as_none() {
    let broken = listed()[..listed().len() - 20].to_vec();
    let of_changes = urlset("capability=\"changedump-manifest\"", &[], &[entry("a", "/a")]);
    let nonsense = [
        ("gone", Answer::status(404)),
        ("a page", Answer::html("<html><body>Not found</body></html>")),
        ("broken off", Answer::xml(broken)),
        ("of another capability", Answer::xml(of_changes)),
        ("of no capability", Answer::xml(urlset("", &[], &[entry("a", "/a")]))),
        ("empty", Answer::xml(manifest(&[]))),
    ];
    for (what, answer) in nonsense {
        let (stage, parts) = stage(&listed(), answer, Ranges::Ignored).await;
        assert_eq!(stage.stated().await.len(), 3, "{what}");
        assert!(stage.sent().0 > 1_800_000, "{what}: the whole package had to come");
        assert!(stage.member("/a").await.unwrap() == parts[0], "{what}");
    }
}

#[tokio::test]
async fn a_copy_above_the_limit_is_as_none() {
    let (stage, _) = stage(&listed(), copy(&[listed(), vec![b' '; 100_000]].concat()), Ranges::Ignored).await;
    let documents = Limits { document: 50_000, ..Limits::default() };
    let folder = tempfile::tempdir().unwrap();
    let config = PackageConfig { documents, ..PackageConfig::new(folder.path().to_owned()) };
    let packages = Packages::open(stage.server.client(), config).unwrap();
    packages.stated(&stage.listed()).await.unwrap();
    assert!(stage.sent().0 > 1_800_000);
}

#[tokio::test]
async fn the_manifest_inside_wins_over_a_copy_that_lies() {
    let lie = manifest(&[entry("a", "/b"), entry("more", "/more")]);
    let (mut stage, _) = stage(&listed(), copy(&lie), Ranges::Ignored).await;
    assert_eq!(stage.stated().await.len(), 2);
    assert!(!stage.packages.is_contradicted(&stage.uri()));

    let error = stage.member("/more").await.unwrap_err();
    assert!(matches!(error, PackageError::NoMember { .. }), "{error:?}");
    assert!(stage.packages.is_contradicted(&stage.uri()) && stage.is_told().await);
    // Nobody has taken it over when the process is killed.
    stage.restart();
    assert!(stage.packages.is_contradicted(&stage.uri()) && stage.is_told().await);

    let contradicted = stage.packages.contradicted();
    assert_eq!(stage.stated().await.len(), 3);
    stage.packages.corrected(&contradicted);
    assert!(!stage.packages.is_contradicted(&stage.uri()));
    stage.restart();
    stage.sent();
    assert_eq!(stage.stated().await.len(), 3);
    assert!(!stage.packages.is_contradicted(&stage.uri()) && !stage.is_told().await);
    assert_eq!(stage.sent(), (0, 0));

    // Evicted, it is not believed again.
    std::fs::remove_file(super::folder::file(&stage, "whole")).unwrap();
    stage.restart();
    assert_eq!(stage.stated().await.len(), 3);
    assert_eq!(stage.sent(), (0, 0));
}

#[tokio::test]
async fn a_copy_with_the_paths_of_the_publishers_disk_says_the_same() {
    let copied: Vec<_> = ["a", "b", "c"].iter().map(|name| entry(name, &format!("/srv/data/{name}"))).collect();
    let (mut stage, parts) = stage(&listed(), copy(&manifest(&copied)), Ranges::Ignored).await;
    let stated = stage.stated().await;
    for _ in 0..2 {
        for ((_, path), part) in stated.iter().zip(&parts) {
            assert!(stage.member(path).await.unwrap() == *part, "{path}");
        }
        assert!(!stage.packages.is_contradicted(&stage.uri()) && !stage.is_told().await);
        stage.restart();
    }
}

#[tokio::test]
async fn a_new_version_of_a_package_is_previewed_by_its_new_copy() {
    let (stage, _) = stage(&listed(), copy(&listed()), Ranges::Ignored).await;
    assert_eq!(stage.stated().await.len(), 3);
    stage.packages.directory(&stage.uri()).await.unwrap();
    let renewed = manifest(&[entry("a", "/a"), entry("b", "/b")]);
    stage.server.put("/dump.zip", Answer::new("application/zip", package(&renewed).0).etag("v2"));
    stage.server.put(COPY, Answer::xml(renewed).etag("copy2"));
    stage.sent();

    assert_eq!(stage.stated().await.len(), 2);
    assert_eq!(stage.sent().0, 0);
    assert!(!stage.packages.is_contradicted(&stage.uri()));
}

/// Without ranges the whole is on its way for a reader; what the copy says is had meanwhile.
#[tokio::test]
async fn a_copy_is_had_while_the_whole_is_on_its_way() {
    let (stage, _) = stage(&listed(), copy(&listed()), Ranges::Ignored).await;
    stage.stated().await;
    let body = package(&listed()).0;
    stage.server.put("/dump.zip", Answer::new("application/zip", body).etag("v1").stalls_after(200_000));
    let (packages, uri) = (stage.packages.clone(), stage.uri());
    let whole = tokio::spawn(async move { packages.directory(&uri).await });
    while stage.packages.shared.copies.packages().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    let stated = tokio::time::timeout(Duration::from_secs(20), stage.stated()).await;

    assert_eq!(stated.expect("nothing waits for the whole").len(), 3);
    whole.abort();
}

/// Sizes that are asked for say nothing of what is read.
#[tokio::test]
async fn several_wanted_members_bring_a_small_package() {
    let (stage, parts) = stage(&listed(), copy(&listed()), Ranges::Ignored).await;
    stage.stated().await;
    let want = |path: &str| stage.packages.want(&PackageMember { package: stage.uri(), path: path.into() });
    for _ in 0..1000 {
        assert!(!want("/a"), "one member, however often");
        tokio::task::yield_now().await;
    }
    assert!(!want("/b") && want("/c"));
    assert_eq!(stage.sent().0, 0, "nothing comes before it is read");
    assert!(stage.member("/c").await.unwrap() == parts[2]);
    assert!(want("/a"));
    assert!(stage.sent().0 > 1_800_000);
}

/// A comparison that waits for the network stops no other package.
#[tokio::test]
async fn a_manifest_that_stalls_holds_up_no_other_package() {
    let entries: Vec<String> = (0..4000).map(|number| entry(&format!("{number}"), "/a")).collect();
    let long = manifest(&entries);
    let (stage, _) = stage(&long, copy(&long), Ranges::Ignored).await;
    stage.stated().await;
    // The server has ranges now: the package is compared in place, by a manifest that comes half.
    let in_place = Answer::new("application/zip", package(&long).0).etag("v1").ranges(Ranges::Right);
    stage.server.put("/dump.zip", in_place.stalls_after(150_000));
    stage.asked();
    let (packages, uri) = (stage.packages.clone(), stage.uri());
    let comparing = tokio::spawn(async move { packages.directory(&uri).await });
    let mut asked = 0;
    while asked < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        asked += stage.asked().len();
    }

    stage.server.put("/other.zip", Answer::new("application/zip", package(&listed()).0).etag("v1"));
    stage.server.put("/other-copy.xml", copy(&listed()));
    let [package, other_copy] = ["/other.zip", "/other-copy.xml"].map(|path| stage.server.uri(path));
    let other = Listed { package, copy: Some(other_copy), capability: Capability::ResourceDumpManifest, state: 0 };
    let stated = tokio::time::timeout(Duration::from_secs(20), stage.packages.stated(&other)).await;

    assert!(stated.expect("it waits for no other package").is_ok() && !comparing.is_finished());
    comparing.abort();
}
