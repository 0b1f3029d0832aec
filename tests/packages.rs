//! Resource Dumps whose ZIPs the library `resync` wrote, served by the real nginx.

mod common;

use common::nginx::Nginx;
use common::tree;
use resyncfs::document::{PackageMember, Uri};
use resyncfs::source::http::{Client, HttpConfig};
use resyncfs::source::package::{PackageConfig, Packages};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const FILES: u64 = 300;

/// The packages that a Source's documents folder has.
fn packages_of(nginx: &Nginx) -> Vec<Uri> {
    let names = tree(&nginx.documents()).into_keys().filter(|path| path.extension().is_some_and(|kind| kind == "zip"));
    names.map(|path| Uri::parse(&format!("{}documents/{}", nginx.url(), path.display())).unwrap()).collect()
}

fn open(nginx: &Nginx, folder: &Path) -> Packages {
    let url = Uri::parse(&nginx.url()).unwrap();
    let http = HttpConfig { own_authority: Some(url.authority().into()), ..HttpConfig::default() };
    Packages::open(Client::new(http).unwrap(), PackageConfig::new(folder.to_owned())).unwrap()
}

/// Every resource of a manifest by its path below the Source's root, read one after another.
async fn read_all(packages: &Packages, package: &Uri, root: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let manifest = packages.manifest(package).await.unwrap();
    let mut reader = manifest.reader().unwrap();
    let mut resources = BTreeMap::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        let wanted: PackageMember = manifest.member(&entry).unwrap();
        packages.price(&wanted).unwrap();
        let mut member = packages.member(package, &wanted.path).await.unwrap();
        assert_eq!(Some(member.length()), entry.length);
        let mut octets = Vec::new();
        while let Some(chunk) = member.chunk().await.unwrap() {
            octets.extend_from_slice(&chunk);
        }
        let path = entry.loc.as_str().strip_prefix(root).unwrap();
        let path = percent_encoding::percent_decode_str(path).decode_utf8().unwrap();
        resources.insert(PathBuf::from(&*path), octets);
    }
    resources
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

/// Each package costs a request for its directory, one for its manifest, and one for every few megabytes of members.
#[test]
fn packages_written_by_another_library_hold_the_published_folder() {
    let nginx = Nginx::serving(FILES, &[]);
    nginx.write_dump(100, false);
    let all = packages_of(&nginx);
    assert_eq!(all.len(), 4);
    let folder = tempfile::tempdir().unwrap();
    let before = nginx.access_log().len();

    let found = run(async {
        let packages = open(&nginx, folder.path());
        let mut found = BTreeMap::new();
        for package in &all {
            found.extend(read_all(&packages, package, &nginx.url()).await);
        }
        found
    });

    assert!(found == tree(&nginx.files()), "{} of {} files", found.len(), FILES + 1);
    let asked = nginx.access_log().split_off(before);
    assert!(asked.len() <= 48, "{} requests for {} resources:\n{}", asked.len(), FILES + 1, asked.join("\n"));
}
