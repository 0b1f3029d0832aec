//! A Source made by somebody else's library and served by the real nginx: ordinary tools through the mount agree with the folder.

mod common;

use common::mounted::Mounted;
use common::nginx::{Nginx, resync_program};
use common::proxy::Proxy;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const FILES: u64 = 1000;

/// Runs a command line of bash; fails the test where it fails.
fn shell(line: &str, folder: &Path) -> String {
    let output = try_shell(line, folder);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{line}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn try_shell(line: &str, folder: &Path) -> Output {
    Command::new("bash").args(["-o", "pipefail", "-c", line]).current_dir(folder).output().unwrap()
}

/// Modification times in seconds, by path: the published ones are cut to what a file system shows.
fn times(folder: &Path) -> BTreeMap<PathBuf, String> {
    shell("find . -type f -printf '%P\\t%Ts\\n'", folder)
        .lines()
        .filter_map(|line| line.rsplit_once('\t').map(|(path, time)| (PathBuf::from(path), time.to_owned())))
        .collect()
}

fn assert_tools_agree(mounted: &Mounted, files: &Path) {
    let (mount, scratch) = (mounted.path(), tempfile::tempdir().unwrap());
    let copy = scratch.path().join("copy");
    let (mount_text, files_text, copy_text) = (mount.display(), files.display(), copy.display());

    shell(&format!("diff -r '{files_text}' '{mount_text}'"), files);
    assert_eq!(times(&mount), times(files));

    shell(&format!("mountpoint -q '{mount_text}' && rsync -ac --delete '{mount_text}/' '{copy_text}'"), files);
    let second = shell(&format!("rsync -acv --delete --stats '{mount_text}/' '{copy_text}'"), files);
    assert!(second.contains("Number of regular files transferred: 0"), "the second rsync transferred:\n{second}");
    shell(&format!("diff -r '{files_text}' '{copy_text}'"), files);

    let unpacked = scratch.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    shell(&format!("tar -C '{mount_text}' -cf - . | tar -C '{}' -xf -", unpacked.display()), files);
    shell(&format!("diff -r '{files_text}' '{}'", unpacked.display()), files);
    assert_eq!(times(&unpacked), times(files));

    let sums = "find . -type f -print0 | sort -z | xargs -0 md5sum";
    std::fs::write(scratch.path().join("sums"), shell(sums, files)).unwrap();
    shell(&format!("md5sum --quiet -c '{}'", scratch.path().join("sums").display()), &mount);

    let grep = "LC_ALL=C grep -rlF xyz . | sort; true";
    assert_eq!(shell(grep, &mount), shell(grep, files));
    let newer = "find . -type f -newermt '2020-01-03 UTC' -size +10k | sort";
    assert_eq!(shell(newer, &mount), shell(newer, files));
    let big = "tail -c 1000 big.bin | sha256sum; head -c 1000 big.bin | sha256sum; dd if=big.bin bs=1000 skip=777 count=3 2>/dev/null | sha256sum";
    assert_eq!(shell(big, &mount), shell(big, files));
}

/// Promise: `ls`, `find`, `grep -r`, `rsync`, `tar`, `md5sum` work unchanged on a Source.
#[test]
fn ordinary_tools_agree_with_the_published_folder() {
    let nginx = Nginx::serving(FILES, &[]);
    let mounted = Mounted::new(&nginx.url(), "");

    assert_tools_agree(&mounted, &nginx.files());

    mounted.remount();
    shell(&format!("diff -r '{}' '{}'", nginx.files().display(), mounted.path().display()), Path::new("/"));
}

#[test]
fn a_resource_list_index_is_one_tree() {
    let nginx = Nginx::serving(FILES, &["--max-sitemap-entries", "100"]);
    let mounted = Mounted::new(&nginx.url(), "");

    shell(&format!("diff -r '{}' '{}'", nginx.files().display(), mounted.path().display()), Path::new("/"));
    let lists = nginx.access_log().iter().filter(|line| line.contains("GET /documents/resourcelist")).count();
    assert!(lists > 10, "an index and at least ten lists are fetched, not {lists}");
}

#[test]
fn tls_with_a_private_authority_and_http2() {
    let nginx = Nginx::serving_tls(FILES);
    let mounted = Mounted::new(&nginx.url(), &format!("ca={}", nginx.ca().display()));

    shell(&format!("diff -r '{}' '{}'", nginx.files().display(), mounted.path().display()), Path::new("/"));
    assert!(nginx.access_log().iter().all(|line| line.contains("HTTP/2.0")), "every request goes over HTTP/2");

    let untrusted = Mounted::prepared(&nginx.url(), "");
    let said = untrusted.try_start().unwrap_err();
    assert!(said.contains("certificate"), "{said}");
}

#[test]
fn through_a_proxy() {
    let (nginx, proxy) = (Nginx::serving(FILES, &[]), Proxy::start());
    let mounted = Mounted::prepared(&nginx.url(), "").with_environment("http_proxy", &proxy.url());
    mounted.start();

    shell(&format!("diff -r '{}' '{}'", nginx.files().display(), mounted.path().display()), Path::new("/"));
    // Read first: what the server has logged by then, the proxy has passed on. Of a request that was given up, the proxy alone may know.
    let answered = nginx.access_log();
    assert!(answered.len() as u64 > FILES / 2, "most files are fetched, not {}", answered.len());
    let mut passed_on =
        counted(proxy.asked().iter().map(|line| line.replacen(nginx.url().trim_end_matches('/'), "", 1)));
    for line in answered {
        let request = line.split('"').nth(1).unwrap().to_owned();
        let left = passed_on.entry(request.clone()).or_default();
        assert!(*left > 0, "{request} did not go through the proxy");
        *left -= 1;
    }
}

/// The number of times that each line occurs.
fn counted(lines: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        *counts.entry(line).or_default() += 1;
    }
    counts
}

/// The library's own Destination brings the same files as rsync from the mount.
#[test]
fn the_other_destination_gets_the_same_files() {
    // It cannot fetch addresses that it lists itself unescaped.
    let nginx = Nginx::serving_plain_names(FILES);
    let mounted = Mounted::new(&nginx.url(), "");
    let scratch = tempfile::tempdir().unwrap();
    let (theirs, ours) = (scratch.path().join("theirs"), scratch.path().join("ours"));
    std::fs::create_dir(&theirs).unwrap();

    let list = format!("{}documents/resourcelist.xml", nginx.url());
    let output = Command::new(resync_program("resync-sync"))
        .args(["--baseline", "--noauth", "--sitemap", &list, &nginx.url()])
        .arg(&theirs)
        // It leaves a file where it is run.
        .current_dir(scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    shell(&format!("rsync -a '{}/' '{}'", mounted.path().display(), ours.display()), Path::new("/"));

    shell(&format!("diff -r '{}' '{}'", theirs.display(), ours.display()), Path::new("/"));
}
