//! Resource Dumps whose ZIPs the library `resync` wrote, served by the real nginx.

mod common;

use common::mounted::Mounted;
use common::nginx::Nginx;
use common::{eventually, tree};
use resyncfs::document::{PackageMember, Uri};
use resyncfs::source::http::{Client, HttpConfig};
use resyncfs::source::zip::{PackageConfig, Packages};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
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
        packages.want(&wanted);
        let mut member = packages.member(package, &wanted.path).await.unwrap();
        assert_eq!(Some(member.length()), entry.length);
        let mut bytes = Vec::new();
        while let Some(chunk) = member.chunk().await.unwrap() {
            bytes.extend_from_slice(&chunk);
        }
        let path = entry.loc.as_str().strip_prefix(root).unwrap();
        let path = percent_encoding::percent_decode_str(path).decode_utf8().unwrap();
        resources.insert(PathBuf::from(&*path), bytes);
    }
    resources
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

/// Each package costs a request for its directory, one for its manifest, and one for every few megabytes of members.
#[test]
fn packages_of_another_library_hold_the_published_folder() {
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

/// The lines of the access log that ask for a package, and for a resource of the published folder.
fn asked(nginx: &Nginx, before: usize) -> (usize, usize) {
    let log = nginx.access_log().split_off(before);
    let of_packages = log.iter().filter(|line| line.contains(".zip")).count();
    (of_packages, log.iter().filter(|line| line.contains("GET /") && !line.contains("/documents/")).count())
}

#[test]
fn a_source_of_dumps_alone_is_read_from_its_packages() {
    let nginx = Nginx::serving(FILES, &[]);
    nginx.write_dump(100, false);
    let before = nginx.access_log().len();
    let mounted = Mounted::new(&nginx.url(), "");

    assert!(tree(&mounted.path()) == tree(&nginx.files()));
    let (of_packages, of_resources) = asked(&nginx, before);
    assert!(of_packages + of_resources <= 100, "{of_packages} and {of_resources} requests for {} files", FILES + 1);

    // What only the packages have is read as well.
    let gone = Nginx::serving(FILES, &[]);
    gone.write_dump(100, false);
    let right = tree(&gone.files());
    gone.forget_files();
    let mounted = Mounted::new(&gone.url(), "");
    assert!(tree(&mounted.path()) == right);
    mounted.remount();
    assert!(tree(&mounted.path()) == right);
}

/// Every file below `folder`, by relative path; none is opened.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut names, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => drop(names.insert(entry.path().strip_prefix(folder).unwrap().to_owned())),
            }
        }
    }
    names
}

/// The lines of the access log with which a package's bytes came, or began to come.
fn fetched(nginx: &Nginx, before: usize) -> Vec<String> {
    let log = nginx.access_log().split_off(before);
    log.into_iter()
        .filter(|line| line.contains("\"GET ") && line.contains(".zip") && !line.contains("\" 304 "))
        .collect()
}

#[test]
fn without_ranges_the_copied_manifests_make_the_tree() {
    let nginx = Nginx::serving_without_ranges(FILES);
    nginx.write_dump(100, false);
    let right = tree(&nginx.files());
    assert_eq!(packages_of(&nginx).len(), 4);
    nginx.forget_files();
    let before = nginx.access_log().len();
    let mounted = Mounted::new(&nginx.url(), "");
    let shown = names(&mounted.path());
    assert!(shown.iter().eq(right.keys()), "{} of {} names", shown.len(), right.len());
    let at_mount = fetched(&nginx, before);
    assert!(at_mount.len() <= 2, "only what is small: {at_mount:?}");

    assert!(tree(&mounted.path()) == right);
    mounted.try_refresh().unwrap();
    assert!(tree(&mounted.path()) == right);
    mounted.remount();
    assert!(tree(&mounted.path()) == right);
}

#[test]
fn a_lying_manifest_copy_never_gives_wrong_bytes() {
    let nginx = Nginx::serving_without_ranges(FILES);
    nginx.write_dump(1000, false);
    let right = tree(&nginx.files());
    let copy = nginx.documents().join("package00000.xml");
    let published = fs::read_to_string(&copy).unwrap();
    // Without digests, and one name that is not there.
    let (start, end) = (published.find(" hash=\"").unwrap(), published.find("plain/").unwrap());
    assert!(start > 0 && end > 0);
    let mut lie = published.replace("plain/", "plain/not-");
    while let Some(at) = lie.find(" hash=\"") {
        let length = lie[at + 7..].find('"').unwrap() + 8;
        lie.replace_range(at..at + length, "");
    }
    fs::write(&copy, lie).unwrap();
    nginx.forget_files();
    let mounted = Mounted::new(&nginx.url(), "poll=1h");

    for name in names(&mounted.path()) {
        if let (Ok(bytes), Some(expected)) = (fs::read(mounted.join(name.to_str().unwrap())), right.get(&name)) {
            assert!(bytes == *expected, "{}", name.display());
        }
    }
    eventually("the manifest inside is taken over", || names(&mounted.path()).iter().eq(right.keys()));
    mounted.try_refresh().unwrap();
    assert!(tree(&mounted.path()) == right);
    assert!(mounted.said().contains("its own manifest is used"), "{}", mounted.said());
}

/// Lists this package too in the Resource Dump.
fn add_package(nginx: &Nginx, name: &str, bytes: &[u8]) {
    fs::write(nginx.documents().join(name), bytes).unwrap();
    let dump = nginx.documents().join("resourcedump.xml");
    let entry = format!("<url><loc>{}documents/{name}</loc></url></urlset>", nginx.url());
    fs::write(&dump, fs::read_to_string(&dump).unwrap().replace("</urlset>", &entry)).unwrap();
}

/// All files as `publish.py` takes them.
fn entries(nginx: &Nginx) -> Vec<Value> {
    tree(&nginx.files()).into_keys().map(|path| json!({"path": path})).collect()
}

#[test]
fn siblings_come_from_their_package_unless_it_is_no_zip() {
    let nginx = Nginx::serving(FILES, &[]);
    nginx.write_dump(100, true);
    add_package(&nginx, "more.tar.xz", b"\xfd7zXZ\0not a ZIP");
    let mounted = Mounted::new(&nginx.url(), "");
    let before = nginx.access_log().len();

    assert!(tree(&mounted.path()) == tree(&nginx.files()));

    let (of_packages, of_resources) = asked(&nginx, before);
    assert!(of_packages > 0);
    assert!(of_packages + of_resources < FILES as usize / 2, "{of_packages} and {of_resources} requests");
    assert!(mounted.said().contains("more.tar.xz"), "{}", mounted.said());
}

#[test]
fn a_resource_changed_since_the_dump_comes_by_its_own_uri() {
    let nginx = Nginx::serving_plain_names(FILES);
    nginx.publish(&json!([
        {"kind": "resourcedump", "name": "resourcedump.xml", "most": 100, "at": "2026-01-01T00:00:00Z", "entries": entries(&nginx)},
        {"kind": "capabilitylist", "name": "capabilitylist.xml",
         "capabilities": {"resourcelist": "resourcelist.xml", "resourcedump": "resourcedump.xml"}},
    ]));
    // Of the length and the time of before: nothing but the digest tells.
    let file = nginx.files().join("f0/file-0.txt");
    let (length, modified) = (fs::metadata(&file).unwrap().len(), fs::metadata(&file).unwrap().modified().unwrap());
    fs::write(&file, vec![b'!'; length as usize]).unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
    nginx.publish(&json!([{"kind": "resourcelist", "name": "resourcelist.xml", "entries": entries(&nginx)}]));
    let mounted = Mounted::new(&nginx.url(), "");
    let before = nginx.access_log().len();

    assert!(tree(&mounted.path()) == tree(&nginx.files()));

    let log = nginx.access_log().split_off(before);
    assert!(log.iter().any(|line| line.contains("GET /f0/file-0.txt")), "{}", log.join("\n"));
    let (of_packages, of_resources) = asked(&nginx, before);
    assert!(of_packages + of_resources < FILES as usize / 2, "{of_packages} and {of_resources} requests");
}

#[test]
fn a_change_dump_alone_brings_changes_and_their_bytes() {
    let nginx = Nginx::serving_plain_names(FILES);
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let mut packages: Vec<Value> = Vec::new();
    let publish = |packages: &[Value]| {
        nginx.publish(&json!([{"kind": "changedump", "name": "changedump.xml", "from": began, "packages": packages}]));
    };
    let all = entries(&nginx);
    nginx.publish(&json!([
        {"kind": "resourcedump", "name": "resourcedump.xml", "most": 100, "at": began, "entries": all},
        {"kind": "capabilitylist", "name": "capabilitylist.xml",
         "capabilities": {"resourcedump": "resourcedump.xml", "changedump": "changedump.xml"}},
    ]));
    publish(&packages);
    let mounted = Mounted::new(&nginx.url(), "poll=1h");
    let before = tree(&nginx.files());
    let mut open = fs::File::open(mounted.join("f0/file-0.txt")).unwrap();

    for round in 1..=2 {
        let from = began + f64::from(round) * 10.0;
        // The new versions are in the package alone: none of them is ever to be asked for by its own URI.
        let changed = ["f0/file-0.txt".to_owned(), format!("new/{round}.txt"), format!("f3/file-{round}3.txt")];
        for path in &changed {
            let file = nginx.files().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, format!("{path} of round {round}").repeat(50)).unwrap();
        }
        let gone = format!("f1/file-{round}1.txt");
        fs::remove_file(nginx.files().join(&gone)).unwrap();
        let change =
            |path: &str, change: &str, after: f64| json!({"path": path, "change": change, "time": from + after});
        // Of several bitstreams of a resource the last counts.
        let mut between = change(&changed[0], "updated", 0.5);
        between["text"] = json!("a version between");
        between["inside"] = json!("between");
        packages.push(json!({"from": from, "until": from + 9.0, "entries": [
            between,
            change(&changed[0], "updated", 1.0),
            change(&changed[1], "created", 2.0),
            change(&changed[2], "updated", 3.0),
            change(&gone, "deleted", 4.0),
        ]}));
        publish(&packages);
        let asked_before = nginx.access_log().len();

        mounted.try_refresh().unwrap();
        assert!(tree(&mounted.path()) == tree(&nginx.files()), "round {round}");

        let log = nginx.access_log().split_off(asked_before);
        let of_changed = |line: &&String| changed.iter().any(|path| line.contains(&format!("GET /{path}")));
        assert_eq!(log.iter().find(of_changed), None, "round {round}");
        if round == 1 {
            mounted.try_refresh().unwrap();
        }
    }

    let mut old = Vec::new();
    open.read_to_end(&mut old).unwrap();
    assert!(old == before[Path::new("f0/file-0.txt")], "an open file keeps its bytes");
    drop(open);
    mounted.remount();
    assert!(tree(&mounted.path()) == tree(&nginx.files()));
}

#[test]
fn a_dump_with_an_unreadable_package_shows_the_rest() {
    let nginx = Nginx::serving_plain_names(FILES);
    nginx.write_dump(100, false);
    let second = nginx.documents().join("package00001.zip");
    let aside = nginx.documents().join("aside");
    fs::rename(&second, &aside).unwrap();
    add_package(&nginx, "more.tar.xz", b"\xfd7zXZ\0not a ZIP");

    let mounted = Mounted::new(&nginx.url(), "poll=1h");

    let all = tree(&nginx.files());
    let shown = tree(&mounted.path());
    assert_eq!(shown.len(), 200);
    assert!(shown.iter().all(|(path, bytes)| all.get(path) == Some(bytes)));
    for unreadable in ["package00001.zip", "more.tar.xz"] {
        assert!(mounted.said().contains(unreadable), "{}", mounted.said());
    }

    // Another is unreadable for a while: what it holds is still there.
    let first = nginx.documents().join("package00000.zip");
    fs::rename(&first, nginx.documents().join("for a while")).unwrap();
    mounted.try_refresh().unwrap();
    assert!(tree(&mounted.path()) == shown);
    fs::rename(nginx.documents().join("for a while"), &first).unwrap();
    mounted.try_refresh().unwrap();
    assert!(tree(&mounted.path()) == shown);

    fs::rename(&aside, &second).unwrap();
    mounted.remount();
    mounted.try_refresh().unwrap();
    assert!(tree(&mounted.path()) == all);
}

#[test]
fn a_walk_through_a_package_takes_few_requests() {
    let nginx = Nginx::serving_plain_names(600);
    nginx.write_dump(50_000, false);
    let package = fs::read_dir(nginx.documents()).unwrap().map(|it| it.unwrap().path());
    let package = package
        .filter(|path| path.extension().is_some_and(|it| it == "zip"))
        .map(|path| path.metadata().unwrap().len());
    let bytes: u64 = package.sum();
    let mounted = Mounted::new(&format!("{}documents/capabilitylist.xml", nginx.url()), "");
    let before = nginx.access_log().len();

    assert_eq!(tree(&mounted.path()), tree(&nginx.files()));

    mounted.unmount();
    let asked: Vec<_> = nginx.access_log().split_off(before).into_iter().filter(|line| line.contains(".zip")).collect();
    let bytes_of = |line: &String| line.split('"').nth(2)?.split_whitespace().nth(1)?.parse::<u64>().ok();
    let fetched: u64 = asked.iter().filter_map(bytes_of).sum();
    assert!(asked.len() <= 16, "{} requests", asked.len());
    // Its folders are not in the order in which they are read: after some ranges the whole is cheaper.
    assert!(fetched <= 2 * bytes + bytes / 8, "{fetched} fetched of {bytes}: {asked:?}");
}
