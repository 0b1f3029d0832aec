//! Versions out of packages: where that is cheaper, where nothing else has them, and never wrong bytes.

use super::super::failures::PackageFault;
use super::*;
use crate::document::{PackageMember, Timestamp};
use crate::source::tests::loopback::{Answer, Loopback, Ranges};
use crate::source::zip::{PackageConfig, Packages};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const DUMP: &str = "/dump.zip";

/// A Source with a package, and a mount's content that reads it.
struct Stage {
    server: Loopback,
    packages: Packages,
    content: Arc<Content>,
    _folder: TempDir,
}

/// A package of these members, deflated.
fn package(members: &[(&str, &[u8])]) -> Vec<u8> {
    packed(members, CompressionMethod::Deflated)
}

fn packed(members: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(method);
    for (name, bytes) in members {
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Bytes that deflate to a fifth.
fn text(length: usize, seed: u64) -> Vec<u8> {
    bytes(length / 8 + 1, seed).iter().flat_map(|byte| format!("{:08}", byte).into_bytes()).take(length).collect()
}

impl Stage {
    async fn with(dump: Vec<u8>) -> Stage {
        Stage::stalling(dump, PLENTY).await
    }

    async fn stalling(dump: Vec<u8>, stall: Duration) -> Stage {
        let answer = Answer::new("application/zip", dump).etag("v1").ranges(Ranges::Right);
        let server = Loopback::with(&[(DUMP, answer)]);
        let folder = TempDir::new().unwrap();
        let config = ContentConfig { stall, ..config(&folder, &server.uri("/")) };
        std::fs::create_dir_all(&config.metadata_folder).unwrap();
        let (sender, _) = unbounded_channel();
        let content = Content::open(config, server.client(), Handle::current(), sender).unwrap();
        let packages = Packages::open(server.client(), PackageConfig::new(folder.path().join("packages"))).unwrap();
        content.read_packages(packages.clone());
        Stage { server, packages, content, _folder: folder }
    }

    /// The version that is published at `/NAME` with these bytes, and lies in the package.
    fn spec(&self, ino: u64, name: &str, published: &[u8]) -> FetchSpec {
        FetchSpec {
            length: Some(published.len() as u64),
            hashes: vec![digest(Algorithm::Sha256, published)],
            member: Some(PackageMember { package: self.server.uri(DUMP), path: format!("/{name}").into() }),
            ..FetchSpec::new(Ino(ino), self.server.uri(&format!("/{name}")))
        }
    }

    async fn read(&self, spec: &FetchSpec) -> Result<Vec<u8>, ContentError> {
        read_all(&self.content, spec).await
    }

    /// How often the package was asked for, and all else.
    fn asked(&self) -> (usize, usize) {
        let asked = self.server.asked();
        let of_package = asked.iter().filter(|asked| asked.path == DUMP).count();
        (of_package, asked.len() - of_package)
    }
}

#[tokio::test]
async fn a_member_smaller_than_its_resource_is_read_from_the_package() {
    let (right, padding) = (text(500_000, 1), bytes(2 << 20, 2));
    let stage = Stage::with(package(&[("a", &right), ("padding", &padding)])).await;
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.asked();

    assert!(stage.read(&stage.spec(2, "a", &right)).await.unwrap() == right);
    assert_eq!(stage.asked(), (1, 0));
    assert_eq!(stage.content.state(Ino(2)).1, Verified::Digest(Algorithm::Sha256));
}

/// `ls -l` of names that were never sized reads nothing.
#[tokio::test]
async fn sizes_of_many_members_fetch_nothing_of_their_package() {
    let names: Vec<String> = (0..10).map(|number| format!("m{number}")).collect();
    let parts: Vec<Vec<u8>> = (0..10).map(|seed| bytes(200_000, seed)).collect();
    let members: Vec<_> = names.iter().zip(&parts).map(|(name, part)| (name.as_str(), part.as_slice())).collect();
    let stage = Stage::with(packed(&members, CompressionMethod::Stored)).await;
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.asked();
    for (number, (name, part)) in members.iter().enumerate() {
        stage.server.put(&format!("/{name}"), Answer::new("text/plain", *part));
        let unsized_yet = FetchSpec { length: None, hashes: Vec::new(), ..stage.spec(number as u64 + 2, name, part) };
        assert_eq!(stage.content.size(&unsized_yet, Requester::default(), false).await.unwrap(), 200_000);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(stage.asked().0, 0);

    for (number, (name, part)) in members.iter().enumerate().take(4) {
        assert!(stage.read(&stage.spec(number as u64 + 102, name, part)).await.unwrap() == *part);
    }
    assert!(stage.asked().0 > 0, "reads count");
}

#[tokio::test]
async fn a_resource_alone_comes_from_its_own_uri() {
    let (right, padding) = (bytes(50_000, 1), bytes(2 << 20, 2));
    let stage = Stage::with(package(&[("a", &right), ("padding", &padding)])).await;
    stage.server.put("/a", Answer::new("text/plain", right.clone()));

    assert!(stage.read(&stage.spec(2, "a", &right)).await.unwrap() == right);
    assert_eq!(stage.asked(), (0, 1));
}

#[tokio::test]
async fn siblings_come_from_the_package_together() {
    let names: Vec<String> = (0..200).map(|number| format!("m{number}")).collect();
    let parts: Vec<Vec<u8>> = (0..200).map(|seed| bytes(10_000, seed)).collect();
    let members: Vec<_> = names.iter().zip(&parts).map(|(name, part)| (name.as_str(), part.as_slice())).collect();
    let stage = Stage::with(package(&members)).await;
    for (name, part) in &members {
        stage.server.put(&format!("/{name}"), Answer::new("text/plain", *part));
    }
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.asked();

    for (number, (name, part)) in members.iter().enumerate() {
        assert!(stage.read(&stage.spec(number as u64 + 2, name, part)).await.unwrap() == *part);
    }
    let (of_package, of_others) = stage.asked();
    assert!(of_package <= 8 && of_others <= 3, "{of_package} and {of_others} requests for 200 resources");
}

#[tokio::test]
async fn what_only_the_package_has_is_read_and_sized_from_it() {
    let parts: Vec<Vec<u8>> = (0..5).map(|seed| bytes(600_000, seed)).collect();
    let names = ["a", "b", "c", "d", "e"];
    let members: Vec<_> = names.iter().zip(&parts).map(|(name, part)| (*name, part.as_slice())).collect();
    let stage = Stage::with(package(&members)).await;
    for (number, (name, part)) in members.iter().enumerate() {
        let spec = FetchSpec { length: None, ..stage.spec(number as u64 + 2, name, part) };
        assert_eq!(stage.content.size(&spec, Requester::default(), false).await.unwrap(), 600_000);
        assert!(stage.read(&spec).await.unwrap() == *part);
        let (_, of_others) = stage.asked();
        assert!(number == 0 || of_others == 0, "the package is relied on: {of_others} asked for {name}");
    }
}

#[tokio::test]
async fn a_wrong_package_leads_to_the_uri_of_the_resource() {
    let right = text(300_000, 1);
    let padding = bytes(2 << 20, 2);
    let good = package(&[("a", &right), ("padding", &padding)]);
    let damaged = {
        let mut damaged = good.clone();
        damaged[20_000] ^= 0xff;
        damaged
    };
    let dumps = [
        ("damaged", damaged, true),
        ("of other bytes", package(&[("a", &text(300_000, 9)), ("padding", &padding)]), true),
        ("of another length", package(&[("a", &text(300_001, 1)), ("padding", &padding)]), true),
        ("without the member", package(&[("b", &right), ("padding", &padding)]), true),
        ("truncated", good[..good.len() - 100].to_vec(), false),
        ("no ZIP", vec![b'<'; 3 << 20], false),
        ("empty", Vec::new(), false),
    ];
    for (what, dump, has_directory) in dumps {
        let stage = Stage::with(dump).await;
        stage.server.put("/a", Answer::new("text/plain", right.clone()));
        let directory = stage.packages.directory(&stage.server.uri(DUMP)).await;
        assert_eq!(directory.is_ok(), has_directory, "{what}");
        assert!(stage.read(&stage.spec(2, "a", &right)).await.unwrap() == right, "{what}");
    }
    let stage = Stage::with(good).await;
    stage.server.put("/a", Answer::new("text/plain", right.clone()));
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.server.put(DUMP, Answer::status(404));
    assert!(stage.read(&stage.spec(2, "a", &right)).await.unwrap() == right, "gone");
}

#[tokio::test]
async fn a_package_at_fault_is_not_asked_again_for_a_while() {
    let parts: Vec<Vec<u8>> = (0..20).map(|seed| text(100_000, seed)).collect();
    let names: Vec<String> = (0..20).map(|number| format!("m{number}")).collect();
    let mut members: Vec<_> = names.iter().zip(&parts).map(|(name, part)| (name.as_str(), part.as_slice())).collect();
    let padding = bytes(2 << 20, 77);
    members.push(("padding", &padding));
    let stage = Stage::with(package(&members)).await;
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.server.put(DUMP, Answer::status(403));
    stage.asked();
    for (number, (name, part)) in members[..20].iter().enumerate() {
        stage.server.put(&format!("/{name}"), Answer::new("text/plain", *part));
        assert!(stage.read(&stage.spec(number as u64 + 2, name, part)).await.unwrap() == *part);
    }
    let (of_package, of_others) = stage.asked();
    assert!(of_package <= 2 && of_others == 20, "{of_package} and {of_others}");
}

#[tokio::test]
async fn wrong_bytes_of_a_large_member_never_reach_its_end() {
    let right = bytes(LARGE, 1);
    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let stage = Stage::with(package(&[("a", &wrong)])).await;
    stage.server.put("/a", Answer::new("text/plain", right.clone()).etag("a"));
    // Several members are wanted: the package is the way to this one.
    let member = |path: &str| PackageMember { package: stage.server.uri(DUMP), path: path.into() };
    for path in ["b", "c", "d"] {
        stage.packages.want(&member(path));
    }
    assert!(stage.read(&stage.spec(2, "a", &right)).await.unwrap() == right);
    let (_, of_others) = stage.asked();
    assert_eq!(of_others, 1);
}

#[tokio::test]
async fn a_past_version_comes_from_the_package_alone() {
    let right = bytes(30_000, 1);
    let stage = Stage::with(package(&[("a", &right)])).await;
    stage.server.put("/a", Answer::new("text/plain", bytes(30_000, 2)));
    let then = Some(Timestamp { seconds: 1_000_000, nanos: 0 });
    let past = FetchSpec { hashes: Vec::new(), as_of: then, ..stage.spec(2, "a", &right) };
    assert!(stage.read(&past).await.unwrap() == right);
    assert_eq!(stage.asked().1, 0);

    let missing = FetchSpec { hashes: Vec::new(), as_of: then, ..stage.spec(3, "b", &right) };
    let error = stage.read(&missing).await.unwrap_err();
    assert_eq!(stage.asked().1, 0, "{error:?}");
}

#[tokio::test]
async fn a_reader_that_jumps_in_a_stored_member_gets_its_range_alone() {
    let right = bytes(LARGE, 1);
    let dump = packed(&[("before", &bytes(10_000, 2)), ("a", &right), ("after", b"x")], CompressionMethod::Stored);
    let stage = Stage::with(dump.clone()).await;
    stage.packages.directory(&stage.server.uri(DUMP)).await.unwrap();
    stage.server.put("/a", Answer::status(404));
    // From the beginning nobody ever comes to where this reader jumps; one range of a window does.
    let answer = Answer::new("application/zip", dump).etag("v1").ranges(Ranges::Right).stalls_after(1 << 20);
    stage.server.put(DUMP, answer);
    stage.server.asked_ranges(DUMP);

    let offset = 10 << 20;
    let spec = stage.spec(2, "a", &right);
    let read = stage.content.read(&spec, Requester::default(), offset, 200_000);
    let bytes = tokio::time::timeout(HANG, read).await.expect("a read hangs").unwrap();

    assert!(bytes[..] == right[offset as usize..][..200_000]);
    let asked = stage.server.asked_ranges(DUMP);
    assert_eq!(asked.len(), 2, "the stream and a window: {asked:?}");
}

#[tokio::test]
async fn a_wrongly_stated_member_never_stands_for_a_version() {
    let mine = bytes(1 << 20, 1);
    let manifest = |path: &str| {
        let entry = crate::source::tests::loopback::url("http://example.org/a", &format!("path=\"{path}\""));
        crate::source::tests::loopback::urlset("capability=\"resourcedump-manifest\"", &[], &[entry])
    };
    let (other, inside) = (bytes(1 << 20, 2), manifest("/mine"));
    let parts: [(&str, &[u8]); 3] = [("mine", &mine), ("other", &other), ("manifest.xml", inside.as_bytes())];
    let dump = packed(&parts, CompressionMethod::Stored);
    let stage = Stage::with(Vec::new()).await;
    stage.server.put(DUMP, Answer::new("application/zip", dump).etag("v1"));
    stage.server.put("/copy.xml", Answer::xml(manifest("/other")));
    stage.server.put("/other", Answer::status(404));
    let listed = crate::source::zip::Listed {
        package: stage.server.uri(DUMP),
        copy: Some(stage.server.uri("/copy.xml")),
        capability: crate::document::Capability::ResourceDumpManifest,
        state: 0,
    };
    stage.packages.stated(&listed).await.unwrap();

    let by_the_copy = FetchSpec { hashes: Vec::new(), length: None, ..stage.spec(2, "other", &mine) };
    stage.read(&by_the_copy).await.unwrap_err();
    assert!(stage.packages.is_contradicted(&listed.package));
    // What a digest vouches for is right whoever stated where it lies.
    assert!(stage.read(&stage.spec(3, "other", &other)).await.unwrap() == other);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_other_members_do_not_move_a_deadline() {
    let (right, other) = (text(500_000, 1), bytes(300_000, 2));
    let dump = package(&[("a", &right), ("b", &other), ("padding", &bytes(2 << 20, 3))]);
    let answer = Answer::new("application/zip", dump.clone()).etag("v1").ranges(Ranges::Right);
    let stage = Stage::stalling(dump, Duration::from_secs(2)).await;
    let package = stage.server.uri(DUMP);
    stage.packages.directory(&package).await.unwrap();
    stage.server.put(DUMP, answer.clone().stalls_after(10));
    stage.server.asked_ranges(DUMP);
    let (content, spec, begun) = (Arc::clone(&stage.content), stage.spec(2, "a", &right), Instant::now());
    let reading = tokio::spawn(async move { content.read(&spec, Requester::default(), 0, 1000).await });
    while stage.server.asked_ranges(DUMP).is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.server.put(DUMP, answer);

    while !reading.is_finished() && begun.elapsed() < Duration::from_secs(15) {
        let mut member = stage.packages.member(&package, "b").await.unwrap();
        while member.chunk().await.unwrap().is_some() {}
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    assert!(reading.is_finished(), "{:?}", begun.elapsed());
    reading.await.unwrap().unwrap_err();
    let until = |fault| stage.content.failures().packages.until(&(package.clone(), fault));
    assert!(until(PackageFault::Unreadable).is_none(), "it may pass");
    assert!(until(PackageFault::Unreachable).unwrap() <= Instant::now() + Duration::from_secs(30));
}
