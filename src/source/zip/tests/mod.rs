//! Packages as they are published, well and badly, over a server that keeps count.

mod crafted;
mod folder;
mod hostile;
mod previews;
mod servers;
mod walks;

use super::*;
use crate::document::{Capability, Entry, PackageMember};
use crate::source::tests::loopback::{Answer, Loopback, Ranges, url, urlset};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

/// A member of a ZIP to be: name, bytes, whether they are deflated.
type Part<'a> = (&'a str, Vec<u8>, bool);

fn zip(parts: &[Part<'_>]) -> Vec<u8> {
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes, deflated) in parts {
        let method = if *deflated { CompressionMethod::Deflated } else { CompressionMethod::Stored };
        writer.start_file(*name, SimpleFileOptions::default().compression_method(method)).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Bytes that deflate does not make smaller, different for each seed.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// An entry of a manifest.
fn entry(name: &str, path: &str) -> String {
    url(&format!("http://example.org/{name}"), &format!("path=\"{path}\""))
}

fn manifest(entries: &[String]) -> Vec<u8> {
    urlset("capability=\"resourcedump-manifest\" at=\"2013-01-03T09:00:00Z\"", &[], entries).into_bytes()
}

struct Stage {
    server: Loopback,
    packages: Packages,
    folder: tempfile::TempDir,
}

impl Stage {
    /// A server that has `bytes` at /dump.zip.
    async fn with(bytes: Vec<u8>, ranges: Ranges) -> Stage {
        Stage::answering(Answer::new("application/zip", bytes).etag("v1").ranges(ranges)).await
    }

    async fn answering(answer: Answer) -> Stage {
        let server = Loopback::with(&[("/dump.zip", answer)]);
        let folder = tempfile::tempdir().unwrap();
        let packages = Packages::open(server.client(), PackageConfig::new(folder.path().to_owned())).unwrap();
        Stage { server, packages, folder }
    }

    /// The same after the process has ended and begun again.
    fn restart(&mut self) {
        self.packages = Packages::open(self.server.client(), self.config()).unwrap();
    }

    fn config(&self) -> PackageConfig {
        PackageConfig::new(self.folder.path().to_owned())
    }

    fn uri(&self) -> Uri {
        self.server.uri("/dump.zip")
    }

    async fn member(&self, path: &str) -> Result<Vec<u8>, PackageError> {
        let mut member = self.packages.member(&self.uri(), path).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = member.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        assert_eq!(bytes.len() as u64, member.length());
        Ok(bytes)
    }

    /// As a resource is read: wanted first, which shows whether its package is the way to it.
    async fn wanted(&self, path: &str) -> (bool, Vec<u8>) {
        let is_way = self.packages.want(&PackageMember { package: self.uri(), path: path.into() });
        (is_way, self.member(path).await.unwrap())
    }

    fn asked(&self) -> Vec<String> {
        self.server.asked_ranges("/dump.zip")
    }
}

/// Has a local copy made of a package, as several members that are wanted together do.
async fn copied(packages: &Packages, package: &Uri) -> Result<Arc<Directory>, PackageError> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        match (packages.known(package), packages.failure(package, Piece::LocalCopy)) {
            (Some(known), _) if !known.is_read_in_place() => return Ok(known),
            (_, Some(error)) => return Err(error),
            _ => {}
        }
        packages.begin_local_copy(&packages.directory(package).await?);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("no local copy came");
}

#[tokio::test]
async fn a_small_package_takes_one_request() {
    let listed = manifest(&[entry("a", "/resources/a"), entry("b", "/resources/b")]);
    let (a, b) = (b"hello".repeat(100), noise(1, 1000));
    let bytes =
        zip(&[("manifest.xml", listed, true), ("resources/a", a.clone(), true), ("resources/b", b.clone(), false)]);
    let stage = Stage::with(bytes, Ranges::Right).await;

    let manifest = stage.packages.manifest(&stage.uri()).await.unwrap();
    let mut reader = manifest.reader().unwrap();
    let first = reader.next_entry().unwrap().unwrap();

    assert_eq!(manifest.capability(), Some(Capability::ResourceDumpManifest));
    assert_eq!(manifest.member(&first).unwrap().path.as_ref(), "/resources/a");
    assert_eq!(stage.member("/resources/a").await.unwrap(), a);
    assert_eq!(stage.member("/resources/b").await.unwrap(), b);
    assert_eq!(stage.asked().len(), 1);
}

#[tokio::test]
async fn a_large_package_is_read_in_place_a_request_a_member() {
    let parts: Vec<Vec<u8>> = (0..4).map(|seed| noise(seed, 400_000)).collect();
    let names = ["a", "b", "c", "d"];
    let all: Vec<Part> = names.iter().zip(&parts).map(|(name, part)| (*name, part.clone(), *name != "b")).collect();
    let stage = Stage::with(zip(&all), Ranges::Right).await;

    for (name, part) in names.iter().zip(&parts).skip(2) {
        assert!(stage.member(name).await.unwrap() == *part, "{name}");
    }
    let asked = stage.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert_eq!(asked[0], "bytes=-131072");
}

#[tokio::test]
async fn a_directory_larger_than_the_end_takes_one_more_range() {
    let names: Vec<String> = (0..3000).map(|number| format!("{}/{number:05}", "folder".repeat(8))).collect();
    let all: Vec<Part> = names.iter().map(|name| (name.as_str(), name.clone().into_bytes(), false)).collect();
    let stage = Stage::with(zip(&all), Ranges::Right).await;

    let directory = stage.packages.directory(&stage.uri()).await.unwrap();

    assert_eq!(directory.len(), 3000);
    assert_eq!(stage.asked().len(), 2);
    assert_eq!(stage.member(&names[1234]).await.unwrap(), names[1234].as_bytes());
    assert_eq!(stage.asked().len(), 1);
}
