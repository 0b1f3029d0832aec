//! The tree as the real kernel shows it: names, attributes, changes, the end of a mount.

mod common;

use common::mounted::Mounted;
use common::source::{Resource, Source, URLSET};
use common::{eventually, set, tree};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn names(mounted: &Mounted, folder: &str) -> BTreeSet<String> {
    let folder = fs::read_dir(mounted.join(folder)).unwrap();
    folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn getfattr(arguments: &[&str], path: PathBuf) -> String {
    let output = Command::new("getfattr").arg("--absolute-names").args(arguments).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_tree_is_what_the_source_published() {
    let source = Source::start();
    for (path, bytes) in [
        ("a/b%20c.txt", "one"),
        ("a/d", ""),
        ("download?id=5", "two"),
        ("x", "file"),
        ("x/y", "below"),
        ("dir/", "index"),
    ] {
        source.put(path, Resource::new(bytes));
    }
    let mounted = Mounted::new(&source.url(), "");

    let shown: Vec<_> =
        tree(&mounted.path()).into_iter().map(|(path, bytes)| (path.to_str().unwrap().to_owned(), bytes)).collect();

    let expected = [
        ("a/b c.txt", "one"),
        ("a/d", ""),
        ("dir/%index", "index"),
        ("download?id=5", "two"),
        ("x/y", "below"),
        ("x%file", "file"),
    ];
    assert_eq!(shown, expected.map(|(path, bytes)| (path.to_owned(), bytes.as_bytes().to_vec())));
}

#[test]
fn attributes_are_those_published() {
    let source = Source::start();
    source.put("f/a", Resource { lastmod: Some("2019-05-06T07:08:09Z".into()), ..Resource::new("12345") });
    let mounted = Mounted::new(&source.url(), "umask=027");

    let file = fs::metadata(mounted.join("f/a")).unwrap();
    let folder = fs::metadata(mounted.join("f")).unwrap();

    assert_eq!(
        (file.len(), file.mtime(), file.mode() & 0o7777, file.nlink(), file.blocks()),
        (5, 1_557_126_489, 0o440, 1, 1)
    );
    assert_eq!((folder.mode() & 0o7777, folder.mtime()), (0o550, 1_557_126_489));
    assert_eq!(folder.ino(), fs::metadata(mounted.join("f/.")).unwrap().ino());
}

#[test]
fn nothing_can_be_written() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    let (path, read_only) = (mounted.join("a"), Some(libc::EROFS));

    assert_eq!(fs::write(&path, "x").unwrap_err().raw_os_error(), read_only);
    assert_eq!(fs::write(mounted.join("new"), "x").unwrap_err().raw_os_error(), read_only);
    assert_eq!(fs::create_dir(mounted.join("new")).unwrap_err().raw_os_error(), read_only);
    assert_eq!(fs::remove_file(&path).unwrap_err().raw_os_error(), read_only);
    assert_eq!(fs::rename(&path, mounted.join("b")).unwrap_err().raw_os_error(), read_only);
    assert_eq!(fs::hard_link(&path, mounted.join("b")).unwrap_err().raw_os_error(), read_only);
    assert_eq!(std::os::unix::fs::symlink("a", mounted.join("b")).unwrap_err().raw_os_error(), read_only);
    assert_eq!(
        fs::set_permissions(&path, fs::metadata(&path).unwrap().permissions()).unwrap_err().raw_os_error(),
        read_only
    );
}

#[test]
fn extended_attributes_tell_what_was_published() {
    let source = Source::start();
    let links = "<rs:ln rel=\"collection\" href=\"http://example.org/c1\"/><rs:ln rel=\"collection\" href=\"http://example.org/c2\"/>\
                 <rs:ln rel=\"describedby\" href=\"http://example.org/d\"/>";
    let md = Resource::new("bytes").md + " type=\"text/plain\"";
    source.put("a", Resource { links: links.into(), md, ..Resource::new("bytes") });
    let mounted = Mounted::new(&source.url(), "");

    let listed = getfattr(&["-d"], mounted.join("a"));

    assert!(listed.contains(&format!("user.xdg.origin.url=\"{}a\"", source.url())), "{listed}");
    assert!(listed.contains("user.mime_type=\"text/plain\""), "{listed}");
    assert!(listed.contains("user.resyncfs.hash.sha-256=\""), "{listed}");
    assert!(
        listed.contains("user.resyncfs.collection=\"http://example.org/c1\\012http://example.org/c2\""),
        "{listed}"
    );
    assert!(listed.contains("user.resyncfs.describedby=\"http://example.org/d\""), "{listed}");
    assert!(!listed.contains("user.resyncfs.state"), "{listed}");
    let value = |name: &str| getfattr(&["--only-values", "-n", name], mounted.join("a"));
    assert_eq!(value("user.resyncfs.state"), "remote");
    fs::read(mounted.join("a")).unwrap();
    assert_eq!(value("user.resyncfs.state"), "cached");
    assert_eq!(value("user.resyncfs.verified"), "sha-256");
    let root = getfattr(&["--only-values", "-n", "user.resyncfs.source"], mounted.path());
    assert_eq!(root, source.url());
}

/// Promise: an open file keeps its bytes; a new open gets the new ones.
#[test]
fn a_change_is_pushed_and_an_open_file_keeps_its_bytes() {
    let source = Source::start();
    source.put("f/changed", Resource::new("old bytes"));
    source.put("f/deleted", Resource::new("last words"));
    source.put("f/same", Resource::new("always"));
    let mounted = Mounted::new(&source.url(), "");
    let mut changed = fs::File::open(mounted.join("f/changed")).unwrap();
    let mut deleted = fs::File::open(mounted.join("f/deleted")).unwrap();
    let mut text = String::new();
    changed.read_to_string(&mut text).unwrap();
    deleted.read_to_string(&mut text).unwrap();
    let (same, before) =
        (fs::metadata(mounted.join("f/same")).unwrap(), fs::metadata(mounted.join("f/changed")).unwrap());
    assert!(!mounted.join("f/created").exists());

    source.put(
        "f/changed",
        Resource { lastmod: Some("2024-05-02T00:00:00Z".into()), ..Resource::new("new bytes, and more") },
    );
    source.put("f/created", Resource::new("hello"));
    source.remove("f/deleted");
    mounted.refresh();
    eventually("the new name is seen", || mounted.join("f/created").exists());
    eventually("the new bytes are seen", || fs::read(mounted.join("f/changed")).unwrap() == b"new bytes, and more");
    eventually("the deleted name is gone", || !mounted.join("f/deleted").exists());

    assert_eq!(names(&mounted, "f"), set(&["changed", "created", "same"]));
    let after = fs::metadata(mounted.join("f/same")).unwrap();
    assert_eq!((after.ino(), after.mtime()), (same.ino(), same.mtime()));
    assert_ne!(fs::metadata(mounted.join("f/changed")).unwrap().ino(), before.ino());
    let mut again = |file: &mut fs::File| {
        text.clear();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        text.clone()
    };
    assert_eq!(again(&mut changed), "old bytes");
    assert_eq!(again(&mut deleted), "last words");
}

#[test]
fn a_file_becomes_a_folder_and_a_file_again() {
    let source = Source::start();
    source.put("a", Resource::new("a file"));
    let mounted = Mounted::new(&source.url(), "");
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"a file");

    source.put("a/b", Resource::new("below"));
    mounted.refresh();
    eventually("a is a folder", || mounted.join("a").is_dir());
    assert_eq!(fs::read(mounted.join("a/b")).unwrap(), b"below");
    assert_eq!(fs::read(mounted.join("a%file")).unwrap(), b"a file");

    source.remove("a/b");
    mounted.refresh();
    eventually("a is a file", || mounted.join("a").is_file());
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"a file");
    assert_eq!(names(&mounted, ""), set(&["a"]));
}

/// Promise: a restart mounts at once from the last revision, with the Source down too.
#[test]
fn a_restart_shows_the_same_tree_without_the_source() {
    let source = Source::start();
    for number in 0..50 {
        source.put(&format!("f{}/{number}", number % 7), Resource::new(format!("file {number}")));
    }
    let mounted = Mounted::new(&source.url(), "");
    let before = tree(&mounted.path());
    let inodes = |mounted: &Mounted| -> Vec<u64> {
        before.keys().map(|path| fs::metadata(mounted.path().join(path)).unwrap().ino()).collect()
    };
    let inodes_before = inodes(&mounted);
    mounted.unmount();

    for document in [".well-known/resourcesync", "capabilitylist.xml", "resourcelist.xml"] {
        source.fault(document, common::source::Fault::Status(503, String::new()), u64::MAX);
    }
    mounted.start();

    assert_eq!(inodes(&mounted), inodes_before);
    assert_eq!(tree(&mounted.path()), before);
}

#[test]
fn a_second_mount_of_the_same_source_names_the_first() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    let second = Mounted::prepared(&source.url(), "");

    let output = Command::new(common::mounted::PROGRAM)
        .args(["mount", "-o", &format!("cache={}", mounted.cache().display()), &source.url()])
        .arg(second.path())
        .output()
        .unwrap();

    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains(mounted.path().to_str().unwrap()), "{said}");
}

#[test]
fn other_documents_in_an_index_of_lists_are_not_files() {
    let source = Source::start();
    let base = source.url();
    source.put("a", Resource::new("a"));
    let list = |capability: &str, entry: &str| {
        format!("{URLSET}<rs:md capability=\"{capability}\" from=\"2024-06-01T00:00:00Z\"/><url>{entry}</url></urlset>")
    };
    let changed = format!("<loc>{base}gone</loc><rs:md change=\"updated\" datetime=\"2024-06-02T00:00:00Z\"/>");
    source.document("changelist.xml", list("changelist", &changed));
    source.document("dump.xml", list("resourcedump", &format!("<loc>{base}dump.zip</loc>")));
    let entries: String = ["resourcelist.xml", "changelist.xml", "dump.xml"]
        .iter()
        .map(|path| format!("<sitemap><loc>{base}{path}</loc></sitemap>"))
        .collect();
    let index = format!("<sitemapindex xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\">{entries}</sitemapindex>");
    source.document("sitemap.xml", index);

    let mounted = Mounted::new(&format!("{base}sitemap.xml"), "");

    assert_eq!(names(&mounted, ""), set(&["a"]));
}

#[test]
fn two_sources_share_a_cache_folder() {
    let (first, second) = (Source::start(), Source::start());
    first.put("a", Resource::new("same bytes"));
    second.put("b", Resource::new("same bytes"));
    let one = Mounted::new(&first.url(), "");
    let other = Mounted::with_cache(&second.url(), "", one.cache());

    assert_eq!(fs::read(one.join("a")).unwrap(), b"same bytes");
    assert_eq!(fs::read(other.join("b")).unwrap(), b"same bytes");

    assert!(second.requests_of("b").is_empty(), "the bytes are here already, under their digest");
}

#[test]
fn a_dead_mount_at_the_same_place_is_detached_at_start() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    mounted.signal(libc::SIGKILL);
    eventually("the mount is dead", || {
        fs::metadata(mounted.path()).is_err_and(|cause| cause.raw_os_error() == Some(libc::ENOTCONN))
    });

    let output = mounted.command("-v").output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
    let ended = Command::new(common::mounted::PROGRAM).arg("unmount").arg(mounted.path()).status().unwrap();
    assert!(ended.success());
}

#[test]
fn a_dead_mount_is_detached_while_its_attributes_are_known() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    // The kernel keeps the attributes, and learns that there are no others to ask for.
    for _ in 0..2 {
        fs::metadata(mounted.path()).unwrap();
    }
    let _open = fs::File::open(mounted.join("a")).unwrap();
    mounted.signal(libc::SIGKILL);
    eventually("the mount is dead", || rustix::fs::statfs(mounted.path()).err() == Some(rustix::io::Errno::NOTCONN));
    assert!(fs::metadata(mounted.path()).is_ok(), "they are not known");

    let output = mounted.command("-v").output().unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(mounted.join("a")).unwrap(), b"bytes");
}

/// Never a stuck process.
#[test]
fn a_start_over_a_mount_that_hangs_does_not_hang() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");
    mounted.signal(libc::SIGSTOP);

    let mut second = mounted.command("-v").stderr(Stdio::piped()).spawn().unwrap();
    let mut ended = None;
    eventually("the second start ends", || {
        ended = second.try_wait().unwrap();
        ended.is_some()
    });

    mounted.signal(libc::SIGCONT);
    let mut message = String::new();
    second.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(ended.and_then(|ended| ended.code()), Some(5), "{message}");
    assert!(message.contains("is mounted here already"), "{message}");
}

#[test]
fn sigterm_detaches_at_once_and_serves_who_still_reads() {
    let source = Source::start();
    source.put("a", Resource::new(vec![7; 100_000]));
    let mounted = Mounted::new(&source.url(), "");
    let mut open = fs::File::open(mounted.join("a")).unwrap();

    mounted.signal(libc::SIGTERM);
    eventually("the mount point is free", || !mounted.is_mounted());

    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, vec![7; 100_000]);
}

#[test]
fn a_file_of_unknown_length_is_never_shown_empty() {
    let source = Source::start();
    source.put("f/a", Resource::bare("twelve bytes"));
    source.put("f/empty", Resource::bare(""));
    let mounted = Mounted::new(&source.url(), "");

    let listing = Command::new("ls").arg("-U").arg(mounted.join("f")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&listing.stdout).lines().count(), 2);
    let found = Command::new("find").arg(mounted.path()).args(["-type", "f"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout).lines().count(), 2);
    assert!(source.requests_of("f/a").is_empty(), "names alone ask nothing");

    assert_eq!(fs::metadata(mounted.join("f/a")).unwrap().len(), 12);
    assert_eq!(fs::metadata(mounted.join("f/empty")).unwrap().len(), 0);
    let copy = tempfile::tempdir().unwrap();
    let copied = Command::new("rsync").arg("-a").arg(mounted.join("f/")).arg(copy.path()).status().unwrap();
    assert!(copied.success());
    assert_eq!(fs::read(copy.path().join("a")).unwrap(), b"twelve bytes");
}

#[test]
fn a_huge_flat_folder_lists_every_name_once_while_it_changes() {
    let source = Source::start();
    for number in 0..20_000 {
        source.put(&format!("flat/{number:05}"), Resource::new("x"));
    }
    let mounted = Mounted::new(&source.url(), "");
    let mut listing = fs::read_dir(mounted.join("flat")).unwrap();
    let mut seen: Vec<String> =
        listing.by_ref().take(5000).map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();

    for number in (0..20_000).step_by(10) {
        source.remove(&format!("flat/{number:05}"));
    }
    source.put("flat/new", Resource::new("x"));
    mounted.refresh();
    eventually("the new name is seen", || mounted.join("flat/new").exists());
    seen.extend(listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()));

    let unique: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(unique.len(), seen.len(), "a name came twice");
    let missing: Vec<_> =
        (0..20_000).filter(|n| n % 10 != 0).map(|n| format!("{n:05}")).filter(|name| !unique.contains(name)).collect();
    assert!(missing.is_empty(), "{} names were lost, such as {:?}", missing.len(), missing.first());
    assert_eq!(names(&mounted, "flat").len(), 18_001);
}

#[test]
fn statfs_tells_the_sum_of_sizes_and_no_free_space() {
    let source = Source::start();
    source.put("a", Resource::new(vec![1; 10_000]));
    source.put("b", Resource::new(vec![2; 20_000]));
    let mounted = Mounted::new(&source.url(), "");

    let output = Command::new("stat").args(["-f", "-c", "%b %S %f %c"]).arg(mounted.path()).output().unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect();
    assert!((30_000..40_000).contains(&(numbers[0] * numbers[1])), "{text}");
    assert_eq!(numbers[2], 0, "{text}");
    assert!((2..=4).contains(&numbers[3]), "{text}");
}

/// What monitors of disks leave out by the type raises no alarm; nothing else is left out with it.
#[test]
fn df_leaves_a_mount_out_by_its_type() {
    let source = Source::start();
    source.put("a", Resource::new(vec![1; 10_000]));
    let mounted = Mounted::new(&source.url(), "");
    let df = |arguments: &[&str]| {
        let output = Command::new("df").args(arguments).arg("--output=fstype,pcent,ipcent,target").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find(|line| line.ends_with(mounted.path().to_str().unwrap())).map(str::to_owned)
    };

    let (shown, left) = (df(&["-a"]).unwrap(), df(&["-a", "-x", "fuse.resyncfs"]));

    assert!(shown.starts_with("fuse.resyncfs ") && shown.contains("100%"), "{shown}");
    assert_eq!(left, None);
}

/// Promise: an entry that does not show its changes is asked about, and other bytes are another version.
#[test]
fn an_unlisted_change_is_seen_after_the_interval() {
    let source = Source::start();
    source.put("a", Resource::bare("one"));
    let mounted = Mounted::new(&source.url(), "revalidate=1s");
    let path = mounted.join("a");
    let mut open = fs::File::open(&path).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    let before = fs::metadata(&path).unwrap();

    source.put("a", Resource::bare("two"));

    eventually("the new bytes are shown", || fs::read_to_string(&path).unwrap() == "two");
    let after = fs::metadata(&path).unwrap();
    assert_ne!(after.ino(), before.ino());
    assert!(after.mtime() > before.mtime(), "rsync would take it for unchanged");
    open.seek(SeekFrom::Start(0)).unwrap();
    text.clear();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
}

#[test]
fn an_unannounced_change_is_an_error_or_its_own_version() {
    for show in [false, true] {
        let source = Source::start();
        let (base, published) = (source.url(), Resource::new("as published").md);
        let list = format!(
            "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-06-01T00:00:00Z\"/>\
             <url><loc>{base}a</loc><rs:md {published}/></url></urlset>"
        );
        source.document("resourcelist.xml", list);
        let headers = "Last-Modified: Sun, 02 Jun 2024 00:00:00 GMT\r\n".into();
        source.put("a", Resource { headers, ..Resource::new("newer") });
        let mounted = Mounted::new(&source.url(), if show { "unannounced=show" } else { "" });
        let path = mounted.join("a");

        assert!(fs::read(&path).is_err(), "not what was published");

        if show {
            eventually("the newer bytes are shown", || fs::read(&path).is_ok_and(|bytes| bytes == b"newer"));
            assert!(getfattr(&["-n", "user.resyncfs.verified"], path).contains("transfer"));
        } else {
            assert!(fs::read(&path).is_err());
        }
        assert!(getfattr(&["-n", "user.resyncfs.unannounced"], mounted.path()).contains("\"1\""));
    }
}

/// Who sees the mount may signal at once.
#[test]
fn a_refresh_at_the_moment_of_the_mount_ends_nothing() {
    let source = Source::start();
    source.put("a", Resource::new("bytes"));
    let mounted = Mounted::new(&source.url(), "");

    for edition in 0..2 * common::rounds() {
        mounted.unmount();
        source.put("a", Resource::new(format!("edition {edition}")));
        mounted.start();
        (0..5).for_each(|_| mounted.refresh());

        eventually("the new edition is shown", || {
            fs::read(mounted.join("a")).is_ok_and(|bytes| bytes == format!("edition {edition}").into_bytes())
        });
    }
}

/// The one catalog in the mount's cache folder.
fn catalog(mounted: &Mounted) -> PathBuf {
    let mut mounts = fs::read_dir(mounted.cache().join("mounts")).unwrap();
    mounts.next().unwrap().unwrap().path().join("catalog")
}

#[test]
fn after_a_crash_of_the_machine_damage_is_found_when_it_is_read() {
    let source = Source::start();
    source.put("folder/unmistakable-name", Resource::new("bytes"));
    source.put("other", Resource::new("other"));
    let mounted = Mounted::new(&source.url(), "poll=1h");
    let shown = tree(&mounted.path());
    mounted.unmount();

    let found = fs::read_dir(catalog(&mounted)).unwrap().map(|found| found.unwrap());
    let stores: Vec<_> = found.filter(|found| found.file_name().as_encoded_bytes().starts_with(b"store-")).collect();
    assert_eq!(stores.len(), 1);
    let file = stores[0].path().join("data.mdb");
    let mut bytes = fs::read(&file).unwrap();
    let name = b"unmistakable-name";
    let places: Vec<_> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at] = b'U');
    fs::write(&file, bytes).unwrap();
    mounted.start();

    assert_eq!(fs::read(mounted.join("other")).unwrap(), b"other", "what is not damaged is served");
    // The reading finds the damage, and the catalog is built again behind the mount.
    eventually("everything is shown again", || {
        fs::read(mounted.join("folder/unmistakable-name")).is_ok_and(|bytes| bytes == b"bytes")
            && tree(&mounted.path()) == shown
    });
    assert!(mounted.said().contains("the catalog is damaged"));
}
