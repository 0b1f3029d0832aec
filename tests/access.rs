//! Who reaches the Source by which way and with which keys, and who may see the mount.

mod common;

use common::mounted::{Mounted, PROGRAM};
use common::nginx::Nginx;
use common::proxy::{BEHIND, Proxy};
use common::source::{Fault, Resource, Source, URLSET};
use common::user::User;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn authority(source: &Source) -> String {
    source.url().trim_start_matches("http://").trim_end_matches('/').to_owned()
}

fn secret(folder: &Path, name: &str, text: &str) -> String {
    let file = folder.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_source_behind_a_proxy_is_mounted_through_it() {
    let (source, proxy) = (Source::start(), Proxy::start());
    source.put("a", Resource::new("bytes"));
    let behind = source.url().replace("127.0.0.1", BEHIND);
    source.document("list.xml", format!("{URLSET}<url><loc>{behind}a</loc></url></urlset>"));

    let mounted = Mounted::prepared(&format!("{behind}list.xml"), "").with_environment("http_proxy", &proxy.url());
    mounted.start();

    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let whole = format!("GET {behind}a HTTP/1.1");
    assert!(proxy.asked().contains(&whole), "{:?}", proxy.asked());
}

#[test]
fn tls_goes_through_the_proxy_unread() {
    let (nginx, proxy) = (Nginx::serving_tls(20), Proxy::start());
    let mounted = Mounted::prepared(&nginx.url(), &format!("ca={}", nginx.ca().display()))
        .with_environment("https_proxy", &proxy.url());
    mounted.start();

    assert_eq!(common::tree(&mounted.path()), common::tree(&nginx.files()));
    let asked = proxy.asked();
    assert!(!asked.is_empty() && asked.iter().all(|line| line.starts_with("CONNECT localhost:")), "{asked:?}");
}

#[test]
fn credentials_follow_a_moved_source_and_no_strangers() {
    let scratch = tempfile::tempdir().unwrap();
    let token = secret(scratch.path(), "token", "s3cr3t");
    for (host, is_trusted) in [("127.0.0.1", true), ("localhost", false)] {
        let (source, target) = (Source::start(), Source::start());
        target.put("a", Resource::new("bytes"));
        let there = target.url().replace("127.0.0.1", host);
        let list = format!("{URLSET}<url><loc>{there}a</loc></url></urlset>");
        target.document("moved.xml", list);
        source.fault("list.xml", Fault::Status(302, format!("Location: {there}moved.xml\r\n")), u64::MAX);
        let allowed = authority(&target).replace("127.0.0.1", host);

        let mounted =
            Mounted::new(&format!("{}list.xml", source.url()), &format!("bearer-file={token},allow-host={allowed}"));

        assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
        let keys: Vec<bool> = target.take_log().iter().map(|logged| logged.head.contains("s3cr3t")).collect();
        // The redirect itself is not trusted before its answer is known.
        assert!(keys[1..].iter().all(|sent| *sent == is_trusted), "{host}: {keys:?}");
        assert!(keys.len() > 1 && !keys[0], "{host}: {keys:?}");
    }
}

#[test]
fn credentials_go_to_the_sources_own_host_and_nowhere_else() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let basic = "Basic cmVhZGVyOnMzY3IzdA==";
    for (option, file, field, value) in [
        ("bearer-file", secret(folder, "token", "s3cr3t\n"), "authorization", "Bearer s3cr3t"),
        ("header-file", secret(folder, "fields", "X-Api-Key: s3cr3t\nX-Other: 1\n"), "x-api-key", "s3cr3t"),
        ("netrc", secret(folder, "netrc", "machine 127.0.0.1\nlogin reader password s3cr3t\n"), "authorization", basic),
    ] {
        let (source, other) = (Source::start(), Source::start());
        source.put("a", Resource::new("ours"));
        other.put("b", Resource::new("theirs"));
        let list =
            format!("{URLSET}<url><loc>{}a</loc></url><url><loc>{}b</loc></url></urlset>", source.url(), other.url());
        source.document("resourcelist.xml", list);

        let mounted = Mounted::new(&source.url(), &format!("{option}={file},allow-host={}", authority(&other)));
        let shown = common::tree(&mounted.path());

        assert_eq!(shown.len(), 2, "{option}: {shown:?}");
        let (ours, theirs) = (source.take_log(), other.take_log());
        assert!(ours.iter().all(|logged| logged.field(field) == Some(value)), "{option}: {ours:?}");
        assert!(
            !theirs.is_empty() && theirs.iter().all(|logged| !logged.head.contains("s3cr3t")),
            "{option}: {theirs:?}"
        );
        assert!(theirs.iter().all(|logged| logged.field("authorization").is_none()), "{option}: {theirs:?}");
        assert!(!mounted.said().contains("s3cr3t"), "{option}: {}", mounted.said());
    }
}

/// Replaces a file as those do who renew tokens.
fn replace(file: &str, text: &str) {
    let new = Path::new(file).with_extension("new");
    secret(new.parent().unwrap(), new.file_name().unwrap().to_str().unwrap(), text);
    fs::rename(new, file).unwrap();
}

/// Promise: a token that is renewed is taken up without a remount, and no reader sees an error.
#[test]
fn credentials_that_were_replaced_are_sent_from_then_on() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    type Make = fn(&str) -> String;
    let kinds: [(&str, &str, Make); 4] = [
        ("bearer-file", "token", |key| format!("{key}\n")),
        ("header-file", "fields", |key| format!("Authorization: Bearer {key}\n")),
        ("netrc", "netrc", |key| format!("machine 127.0.0.1 login reader password {key}\n")),
        ("", "bearer", |key| format!("{key}\n")),
    ];
    for (option, name, text) in kinds {
        let source = Source::start();
        ["a", "b"].into_iter().for_each(|name| source.put(name, Resource::new(name)));
        let file = secret(folder, name, &text("one"));
        let options = if option.is_empty() { String::new() } else { format!("{option}={file},") };
        let mounted = Mounted::prepared(&source.url(), &format!("{options}poll=1h"));
        let mounted = match option {
            "" => mounted.with_environment("CREDENTIALS_DIRECTORY", folder.to_str().unwrap()),
            _ => mounted,
        };
        mounted.start();
        let keys = |path: &str| -> Vec<_> {
            let sent = source.requests_of(path).into_iter().map(|it| it.field("authorization").unwrap().to_owned());
            sent.collect()
        };
        source.fault("a", Fault::Status(401, String::new()), 1);
        replace(&file, &text("two"));

        assert_eq!(fs::read(mounted.join("a")).unwrap(), b"a", "{option}");

        let sent = keys("a");
        assert!(sent.len() == 2 && sent[0] != sent[1], "{option}: {sent:?}");
        let two = sent[1].clone();
        fs::remove_file(&file).unwrap();
        source.fault("b", Fault::Status(503, String::new()), 1);
        assert_eq!(fs::read(mounted.join("b")).unwrap(), b"b", "{option}");
        mounted.refresh();
        assert!(keys("b").iter().chain(&keys("resourcelist.xml")[1..]).all(|sent| *sent == two), "{option}");
        replace(&file, &text("three"));
        source.take_log();
        mounted.signal(libc::SIGHUP);
        common::eventually("the lists are read with the new ones", || {
            keys("resourcelist.xml").last().is_some_and(|sent| *sent != two)
        });
        assert!(!mounted.said().contains("three"), "{}", mounted.said());
    }
}

#[test]
fn a_client_certificate_opens_a_source_that_asks_for_it() {
    let nginx = Nginx::serving_tls_to_clients(20);
    let trusted = format!("ca={}", nginx.ca().display());

    let with = Mounted::new(&nginx.url(), &format!("{trusted},cert={}", nginx.client_certificate().display()));
    assert_eq!(common::tree(&with.path()), common::tree(&nginx.files()));

    let without = Mounted::prepared(&nginx.url(), &trusted).try_start().unwrap_err();
    assert!(without.contains("400"), "{without}");
}

#[test]
fn owner_and_modes_are_those_asked_for() {
    let source = Source::start();
    source.put("f/a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "uid=1234,gid=4321,umask=0027");

    for (path, mode) in [("", 0o550), ("f", 0o550), ("f/a", 0o440)] {
        let shown = fs::metadata(mounted.join(path)).unwrap();
        assert_eq!((shown.uid(), shown.gid(), shown.mode() & 0o7777), (1234, 4321, mode), "{path:?}");
    }
}

#[test]
fn a_user_without_rights_mounts_for_themselves_alone() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let user = User::new();
    let message = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();

    let others = user.runs(&format!("./resyncfs mount -o allow_other {} mnt", source.url()));
    if !fs::read_to_string("/etc/fuse.conf").unwrap_or_default().lines().any(|line| line.trim() == "user_allow_other") {
        assert_eq!(others.status.code(), Some(5), "{}", message(&others));
        assert!(message(&others).contains("user_allow_other in /etc/fuse.conf"), "{}", message(&others));
        assert_eq!(message(&others).trim_end().lines().count(), 1, "{}", message(&others));
    } else {
        assert!(user.runs("./resyncfs unmount mnt").status.success());
    }

    let mounted = user.runs(&format!("./resyncfs mount {} mnt && cat mnt/a && stat -c %u mnt/a", source.url()));
    assert!(mounted.status.success(), "{}", message(&mounted));
    assert_eq!(String::from_utf8_lossy(&mounted.stdout), "bytes65534\n");
    let refused = fs::read(user.mount_point().join("a")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "not even root looks in");
    assert!(user.home().join(".cache/resyncfs/mounts").is_dir());

    let busy = user.runs("exec 5<mnt/a; ./resyncfs unmount mnt; echo $?; ./resyncfs unmount --lazy mnt; cat <&5");
    assert_eq!(String::from_utf8_lossy(&busy.stdout), "5\nbytes", "{}", message(&busy));
    assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(user.mount_point().to_str().unwrap()));
}

/// Every file and folder below, with its mode.
fn modes(folder: &Path, found: &mut Vec<(PathBuf, u32)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        found.push((path.clone(), metadata.mode() & 0o777));
        if metadata.is_dir() {
            modes(&path, found);
        }
    }
}

#[test]
fn neither_the_cache_nor_the_socket_nor_a_core_is_for_others() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::prepared(&source.list_url(), "");
    let mut command = mounted.command("--foreground");
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\"", PROGRAM]).args(arguments);
    let mut process = command.spawn().unwrap();
    common::eventually("the mount is there", || mounted.is_mounted());
    fs::read(mounted.join("a")).unwrap();

    let mut found = Vec::new();
    modes(mounted.cache(), &mut found);
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.id())).unwrap();
    let unmounted = Command::new(PROGRAM).arg("unmount").arg(mounted.path()).status().unwrap();
    process.wait().unwrap();

    assert!(unmounted.success());
    assert!(found.len() > 10, "{found:?}");
    // Files in a folder that nobody else can enter need no modes.
    let entered = |path: &Path| path.parent() == Some(mounted.cache());
    let open: Vec<_> = found.iter().filter(|(path, mode)| entered(path) && mode & 0o077 != 0).collect();
    assert!(open.is_empty(), "{open:?}");
    let (_, socket) = found.iter().find(|(path, _)| path.ends_with("control")).unwrap();
    assert_eq!(socket & 0o077, 0, "{socket:o}");
    let core: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
}

#[test]
fn a_cache_folder_of_others_is_not_used() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    for (owner, mode, says) in [(0, 0o777, "chmod go-w"), (65534, 0o700, "it belongs to user 65534")] {
        let cache = tempfile::tempdir().unwrap();
        fs::set_permissions(cache.path(), Permissions::from_mode(mode)).unwrap();
        chown(cache.path(), Some(owner), None).unwrap();
        let mounted = Mounted::prepared_with_cache(&source.list_url(), "", cache.path());

        let said = mounted.try_start().unwrap_err();

        assert!(said.contains(says) && said.contains("another"), "{said}");
    }
}
