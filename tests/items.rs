//! Landing pages: their items and metadata records as files, of one page as of a whole repository.

mod common;

use common::deadline::{errno, read};
use common::mounted::{Mounted, PROGRAM, run};
use common::repository::Repository;
use common::source::{Fault, Resource, URLSET, hex};
use common::{eventually, set, tree};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const ALWAYS: u64 = u64::MAX;
const FOLLOW: &str = "items=follow,poll=1h,max-delete=100";
const JSON: &str = "application/linkset+json";

/// The files below `folder`, by path; none where it is not there.
fn names(folder: &Path) -> BTreeSet<String> {
    if !folder.exists() {
        return BTreeSet::new();
    }
    let files = walk(folder);
    files.into_iter().map(|path| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned()).collect()
}

/// Every file below `folder`, without a read.
fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    // A folder may go while it is looked at.
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() { files.extend(walk(&entry.path())) } else { files.push(entry.path()) }
    }
    files
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn pages(mounted: &Mounted) -> Value {
    mounted.status()["sync"]["pages"].clone()
}

/// Waits until the mount has read, or tried to read, each of `count` pages.
fn wait_for_pages(mounted: &Mounted, count: u64) {
    eventually("each page has been asked", || {
        let pages = pages(mounted);
        let number = |name: &str| pages[name].as_u64().unwrap_or_default();
        number("all") == count && number("read") + number("failed") >= count
    });
}

/// A mount of the whole repository, once each of its `count` pages has been asked.
fn followed(repository: &Repository, count: u64) -> Mounted {
    let mounted = Mounted::new(&repository.sitemap(), FOLLOW);
    wait_for_pages(&mounted, count);
    mounted
}

fn xattr(path: &Path, name: &str) -> Option<String> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = std::ffi::CString::new(name).unwrap();
    let mut value = vec![0; 4096];
    // SAFETY: both names end with NUL, and the buffer has the length that is passed.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    Some(String::from_utf8_lossy(value.get(..usize::try_from(length).ok()?)?).into_owned())
}

fn origin(path: &Path) -> String {
    xattr(path, "user.xdg.origin.url").unwrap_or_else(|| panic!("{} has no address", path.display()))
}

/// A page with two items, one metadata record and what is said of it.
fn one_page() -> Repository {
    let repository = Repository::start();
    repository.file("files/1/data.csv", "text/csv", "a,b\n");
    repository.file("files/1/plot.png", "image/png", "no picture");
    repository.file("meta/1.xml", "application/xml", "<dc/>");
    let links = [
        repository.link("item", "files/1/data.csv", "text/csv"),
        repository.link("item", "files/1/plot.png", "image/png"),
        repository.link("describedby", "meta/1.xml", "application/xml"),
        repository.link("cite-as", "https://doi.org/10.5555/1", ""),
        repository.link("license", "https://spdx.org/licenses/CC0-1.0", ""),
        repository.link("author", "https://orcid.org/0000-0002-1825-0097", ""),
        repository.link("type", "https://schema.org/AboutPage", ""),
        repository.link("type", "https://schema.org/Dataset", ""),
    ];
    repository.record(1, &links);
    repository
}

#[test]
fn a_page_is_mounted_as_its_items_its_records_and_itself() {
    let repository = one_page();
    repository.source.fault("sitemap.xml", Fault::Status(404, String::new()), ALWAYS);
    let page = repository.address("records/1");

    let mounted = Mounted::new(&page, "poll=1h");

    assert_eq!(names(&mounted.path()), set(&["%page", "1.xml", "data.csv", "plot.png"]));
    assert_eq!(fs::read(mounted.join("data.csv")).unwrap(), b"a,b\n");
    assert_eq!(fs::read(mounted.join("1.xml")).unwrap(), b"<dc/>");
    assert!(fs::read_to_string(mounted.join("%page")).unwrap().contains("<title>records/1</title>"));
    assert_eq!(origin(&mounted.join("%page")), page);
}

/// As doi.org redirects to the page of a repository on another host.
#[test]
fn an_address_that_redirects_leads_to_its_page() {
    let (repository, resolver) = (one_page(), Repository::start());
    let location = format!("Location: {}\r\n", repository.address("records/1"));
    resolver.source.fault("10.5555/1", Fault::Status(302, location), ALWAYS);
    let authority = repository.source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();

    let mounted = Mounted::new(&resolver.address("10.5555/1"), &format!("poll=1h,allow-host={authority}"));

    assert_eq!(names(&mounted.path()), set(&["%page", "1.xml", "data.csv", "plot.png"]));
    assert_eq!(fs::read(mounted.join("data.csv")).unwrap(), b"a,b\n");
    assert_eq!(xattr(&mounted.join("data.csv"), "user.resyncfs.page"), Some(repository.address("records/1")));
}

#[test]
fn links_of_header_html_head_and_link_sets_are_items_alike() {
    let repository = Repository::start();
    for name in ["header", "html", "json", "text", "other"] {
        repository.file(&format!("files/{name}.txt"), "text/plain", name);
    }
    let address = |path: &str| repository.address(path);
    let json = json!({"linkset": [
        {"anchor": address("records/1"), "item": [{"href": address("files/json.txt"), "type": "text/plain"}]},
        {"anchor": address("records/2"), "item": [{"href": address("files/other.txt")}]},
    ]});
    let text = format!(
        "<{}>\n ; rel=\"item\"\n ; anchor=\"{}\",\n<{}>;rel=item;anchor=\"{}\"\n",
        address("files/text.txt"),
        address("records/1"),
        address("files/other.txt"),
        address("records/2")
    );
    repository.file("sets/1.json", JSON, json.to_string());
    repository.file("sets/1.txt", "application/linkset", text);
    let links = [
        repository.link("item", "files/header.txt", "text/plain"),
        format!("{};anchor=\"{}\"", repository.link("item", "files/other.txt", ""), address("records/2")),
        repository.link("linkset", "sets/1.json", JSON),
        repository.link("linkset", "sets/1.txt", "application/linkset"),
    ];
    let head = "<base href=\"../files/\"><link rel=\"stylesheet item\" href=html.txt type='text/plain'>";
    repository.page_with_head("records/1", &links, head);

    let mounted = Mounted::new(&address("records/1"), "poll=1h");

    assert_eq!(names(&mounted.path()), set(&["%page", "header.txt", "html.txt", "json.txt", "text.txt"]));
    for name in ["header", "html", "json", "text"] {
        assert_eq!(fs::read_to_string(mounted.join(&format!("{name}.txt"))).unwrap(), name);
    }
}

#[test]
fn a_page_without_items_says_so_and_what_to_give_instead() {
    let repository = Repository::start();
    repository.page("records/1", &[repository.link("cite-as", "https://doi.org/10.5555/1", "")]);
    let page = repository.address("records/1");

    let mounting = Mounted::prepared(&page, "").try_start().unwrap_err();
    let exploring = run(&["explore", &page]);

    assert!(!exploring.status.success());
    for said in [mounting, String::from_utf8_lossy(&exploring.stderr).into_owned()] {
        assert!(said.replace("sitemap", "").contains("item"), "the links it lacks: {said}");
        assert!(said.contains("sitemap") && said.contains(&page), "what to give instead: {said}");
    }
}

#[test]
fn explore_shows_the_items_of_a_page() {
    let repository = one_page();

    let explored = stdout(&run(&["explore", &repository.address("records/1")]));

    for name in ["data.csv", "plot.png", "1.xml"] {
        assert!(explored.contains(name), "{name} is missing in:\n{explored}");
    }
}

#[test]
fn explore_says_that_pages_have_files_and_how_to_mount_them() {
    let repository = Repository::start();
    // The sample is the 1st, 2nd, 4th, 8th and 16th.
    for number in 1..=16 {
        let path = format!("files/{number}/a.csv");
        repository.file(&path, "text/csv", "a");
        repository.record(number, &[repository.link("item", &path, "text/csv")]);
    }

    let explored = stdout(&run(&["explore", &repository.sitemap()]));

    assert!(explored.contains("5 of 5 have files; mount with -o items=follow"), "{explored}");
}

/// A whole repository: a folder beside each page that has items, and nothing of it before it is whole.
#[test]
fn items_of_a_page_appear_all_at_once_beside_it() {
    let repository = one_page();
    let many: Vec<_> = (0..20).map(|number| repository.link("item", &format!("api/{number}"), "")).collect();
    (0..20).for_each(|number| {
        repository.named(&format!("api/{number}"), &format!("attachment; filename=n{number}.txt"), "x")
    });
    repository.record(2, &many);
    repository.record(3, &[]);
    repository.source.pause(Duration::from_millis(10));

    let mounted = Mounted::new(&repository.sitemap(), FOLLOW);

    let mut first = BTreeSet::new();
    eventually("the second page has its folder", || {
        first = names(&mounted.join("records/2%items"));
        !first.is_empty()
    });
    assert_eq!(first, (0..20).map(|number| format!("n{number}.txt")).collect());
    wait_for_pages(&mounted, 3);
    assert_eq!(names(&mounted.join("records/1%items")), set(&["1.xml", "data.csv", "plot.png"]));
    assert_eq!(fs::read(mounted.join("records/1%items/data.csv")).unwrap(), b"a,b\n");
    assert!(mounted.join("records/1").is_file() && !mounted.join("records/3%items").exists());
    let pages = pages(&mounted);
    assert_eq!((&pages["read"], &pages["all"], &pages["failed"]), (&json!(3), &json!(3), &json!(0)));
}

/// What a person opens is not behind what nobody waits for.
#[test]
fn a_page_that_is_opened_is_read_before_the_others() {
    let repository = Repository::start();
    for number in 1..=60 {
        repository.file(&format!("files/{number}.csv"), "text/csv", "a");
        repository.record(number, &[repository.link("item", &format!("files/{number}.csv"), "text/csv")]);
    }
    let mounted = Mounted::new(&repository.sitemap(), &format!("{FOLLOW},rate=10"));

    // Neither the first nor the last in any order of names or addresses.
    fs::read(mounted.join("records/37")).unwrap();

    eventually("its items are there", || mounted.join("records/37%items/37.csv").exists());
    let read = pages(&mounted)["read"].as_u64().unwrap();
    assert!(read < 60, "before all are: {read}");
}

#[test]
fn an_item_has_the_name_that_says_most() {
    let repository = Repository::start();
    let uuid = "bitstreams/123e4567-e89b-12d3-a456-426614174000";
    let asked = [
        ("bitstreams/7/download", "attachment; filename=\"fallback.pdf\"; filename*=UTF-8''caf%C3%A9.pdf", "café.pdf"),
        ("records/9/files/x/content", "inline; filename=\"with \\\"quotes\\\".txt\"", "with \"quotes\".txt"),
        (uuid, "attachment; filename=by-uuid.zip", "by-uuid.zip"),
        ("api/access/datafile/42", "attachment; filename=by-number.tab", "by-number.tab"),
        ("files/README", "inline", "README"),
    ];
    repository.file("files/real%20name.csv", "text/csv", "bytes");
    let mut links = vec![repository.link("item", "files/real%20name.csv", "text/csv")];
    for (path, disposition, _) in asked {
        repository.named(path, disposition, format!("bytes of {path}"));
        links.push(repository.link("item", path, ""));
    }
    repository.record(1, &links);

    let mounted = followed(&repository, 1);

    let folder = mounted.join("records/1%items");
    assert_eq!(
        names(&folder),
        asked.iter().map(|(_, _, name)| (*name).to_owned()).chain(["real name.csv".to_owned()]).collect()
    );
    assert_eq!(repository.asked("HEAD", "files/real%20name.csv"), 0, "its address names it");
    for (path, _, name) in asked {
        let bytes = format!("bytes of {path}");
        let is_named = path == "files/README";
        assert_eq!(repository.asked("HEAD", path), usize::from(!is_named), "its name: {path}");
        assert_eq!(repository.asked("GET", path), 0, "{path}");
        assert_eq!(fs::metadata(folder.join(name)).unwrap().len(), bytes.len() as u64);
        assert_eq!(fs::read_to_string(folder.join(name)).unwrap(), bytes);
    }
}

#[test]
fn one_address_with_several_types_is_a_file_each() {
    let repository = Repository::start();
    let record = |media_type: &str, text: &str| Resource { media_type: media_type.into(), ..Resource::bare(text) };
    repository.file("records/1/export", "text/html", "neither");
    for (media_type, text) in [("application/json", "{}"), ("application/xml", "<dc/>")] {
        repository.source.variant("records/1/export", record(media_type, text));
    }
    let links =
        ["application/json", "application/xml"].map(|of| repository.link("describedby", "records/1/export", of));
    repository.page("records/1", &links);

    let mounted = Mounted::new(&repository.address("records/1"), "poll=1h");

    assert_eq!(names(&mounted.path()), set(&["%page", "export.json", "export.xml"]));
    assert_eq!(fs::read(mounted.join("export.json")).unwrap(), b"{}");
    assert_eq!(fs::read(mounted.join("export.xml")).unwrap(), b"<dc/>");
    assert_eq!(xattr(&mounted.join("export.xml"), "user.mime_type").as_deref(), Some("application/xml"));
}

#[test]
fn of_two_items_of_one_name_the_smaller_address_keeps_it() {
    let repository = Repository::start();
    let paths = ["x/a.csv", "y/a.csv"];
    paths.iter().for_each(|path| repository.file(path, "text/csv", *path));
    repository.page("records/1", &[repository.link("item", paths[1], ""), repository.link("item", paths[0], "")]);

    let mounted = Mounted::new(&repository.address("records/1"), "poll=1h");

    let shown = names(&mounted.path());
    let other = shown.iter().find(|name| !["%page", "a.csv"].contains(&name.as_str())).expect("the other has a name");
    let digits =
        other.strip_prefix("a%~").and_then(|rest| rest.strip_suffix(".csv")).unwrap_or_else(|| panic!("{other}"));
    assert!(digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{other}");
    assert_eq!(shown.len(), 3);
    assert_eq!(fs::read(mounted.join("a.csv")).unwrap(), b"x/a.csv");
    assert_eq!(fs::read(mounted.join(other)).unwrap(), b"y/a.csv");
}

/// A page with two items whose addresses are no names, and this description.
fn described(media_type: &str, path: &str, description: impl Fn(&Repository) -> Value) -> Repository {
    let repository = Repository::start();
    repository.named("access/datafile/4", "attachment; filename=wrong.py", "print()\n");
    repository.named("access/datafile/5", "attachment; filename=wrong.csv", "a,b\n");
    repository.file(path, media_type, description(&repository).to_string());
    let links = [
        repository.link("item", "access/datafile/4", "text/x-python"),
        repository.link("item", "access/datafile/5", "text/csv"),
        repository.link("describedby", path, media_type),
    ];
    repository.record(1, &links);
    repository
}

fn md5(bytes: &[u8]) -> String {
    hex(&md5::Md5::digest(bytes))
}

fn croissant(repository: &Repository, digest: &str) -> Value {
    json!({
        "@type": "sc:Dataset", "conformsTo": "http://mlcommons.org/croissant/1.0", "name": "a data set",
        "distribution": [
            {"@type": "cr:FileObject", "@id": "code/compute.py", "name": "compute.py", "contentSize": "8 B",
             "contentUrl": repository.address("access/datafile/4"), "md5": digest},
            {"@type": "cr:FileObject", "@id": "data/survey.csv", "name": "survey.csv", "contentSize": "4",
             "contentUrl": repository.address("access/datafile/5"), "md5": md5(b"a,b\n")},
        ],
    })
}

fn crate_of_files(repository: &Repository) -> Value {
    let sha256 = |bytes: &str| hex(&Sha256::digest(bytes));
    json!({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": [
        {"@id": "ro-crate-metadata.json", "@type": "CreativeWork", "about": {"@id": "./"},
         "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"}},
        {"@id": "./", "@type": "Dataset"},
        {"@id": "code/compute.py", "@type": ["File", "SoftwareSourceCode"], "contentSize": "8",
         "contentUrl": repository.address("access/datafile/4"), "sha256": sha256("print()\n")},
        {"@id": "data/survey.csv", "@type": "File", "contentSize": 4,
         "contentUrl": [repository.address("access/datafile/5")], "sha256": sha256("a,b\n")},
    ]})
}

/// A data set is its paths, not its numbers in a repository.
#[test]
fn a_description_gives_paths_sizes_and_digests() {
    let data_sets = [
        ("md5", described("application/ld+json", "exports/1", |it| croissant(it, &md5(b"print()\n")))),
        ("sha-256", described("application/ld+json", "exports/ro-crate-metadata.json", crate_of_files)),
    ];
    for (algorithm, repository) in data_sets {
        let mounted = followed(&repository, 1);

        let folder = mounted.join("records/1%items");
        for (path, bytes, item) in [("code/compute.py", "print()\n", 4), ("data/survey.csv", "a,b\n", 5)] {
            let item = format!("access/datafile/{item}");
            assert_eq!(fs::metadata(folder.join(path)).unwrap().len(), bytes.len() as u64);
            assert_eq!(repository.asked("HEAD", &item), 0, "the description says it all");
            assert_eq!(fs::read_to_string(folder.join(path)).unwrap(), bytes);
            assert_eq!(xattr(&folder.join(path), "user.resyncfs.verified").as_deref(), Some(algorithm));
            assert_eq!(origin(&folder.join(path)), repository.address(&item));
        }
        assert_eq!(names(&folder).len(), 3, "beside them the description: {:?}", names(&folder));
    }
}

/// Frictionless has no addresses but paths, which lead from the description to the items.
#[test]
fn a_data_package_gives_paths_sizes_and_digests() {
    let repository = Repository::start();
    let package = json!({"name": "x", "resources": [
        {"name": "one", "path": "data/one.csv", "bytes": 3, "hash": format!("sha256:{}", hex(&Sha256::digest("one")))},
        {"name": "two", "path": ["data/two.csv"], "bytes": 3, "hash": md5(b"two"), "mediatype": "text/csv"},
        {"name": "inline", "data": [1, 2]},
    ]});
    repository.file("package/datapackage.json", "application/json", package.to_string());
    ["one", "two"].iter().for_each(|name| repository.file(&format!("package/data/{name}.csv"), "text/csv", *name));
    let links = [
        repository.link("item", "package/data/one.csv", "text/csv"),
        repository.link("describedby", "package/datapackage.json", "application/json"),
    ];
    repository.page("records/1", &links);

    let mounted = Mounted::new(&repository.address("records/1"), "poll=1h");

    assert_eq!(names(&mounted.path()), set(&["%page", "datapackage.json", "data/one.csv", "data/two.csv"]));
    for (name, algorithm) in [("one", "sha-256"), ("two", "md5")] {
        let path = mounted.join(&format!("data/{name}.csv"));
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
        assert_eq!(fs::read_to_string(&path).unwrap(), name);
        assert_eq!(xattr(&path, "user.resyncfs.verified").as_deref(), Some(algorithm));
    }
}

#[test]
fn bytes_that_the_description_does_not_know_are_an_error() {
    let repository = described("application/ld+json", "exports/1", |it| croissant(it, &md5(b"others")));
    let mounted = followed(&repository, 1);

    assert_eq!(errno(read(&mounted.join("records/1%items/code/compute.py"))), Some(libc::EIO));
    assert_eq!(fs::read(mounted.join("records/1%items/data/survey.csv")).unwrap(), b"a,b\n");
}

#[test]
fn items_and_pages_carry_what_is_said_of_the_page() {
    let repository = one_page();
    let whole = followed(&repository, 1);
    let single = Mounted::new(&repository.address("records/1"), "poll=1h");

    for path in
        [whole.join("records/1%items/data.csv"), whole.join("records/1"), single.join("data.csv"), single.join("%page")]
    {
        let value = |name: &str| xattr(&path, name).unwrap_or_default();
        assert_eq!(value("user.resyncfs.link.cite-as"), "https://doi.org/10.5555/1", "{}", path.display());
        assert_eq!(value("user.resyncfs.link.license"), "https://spdx.org/licenses/CC0-1.0");
        assert_eq!(value("user.resyncfs.link.author"), "https://orcid.org/0000-0002-1825-0097");
        let types = value("user.resyncfs.link.type");
        assert_eq!(types.lines().collect::<Vec<_>>(), ["https://schema.org/AboutPage", "https://schema.org/Dataset"]);
    }
    for item in [whole.join("records/1%items/data.csv"), single.join("data.csv")] {
        assert_eq!(origin(&item), repository.address("files/1/data.csv"));
        assert_eq!(xattr(&item, "user.mime_type").as_deref(), Some("text/csv"));
        assert_eq!(xattr(&item, "user.resyncfs.page"), Some(repository.address("records/1")));
    }
}

#[test]
fn path_prints_each_place_of_an_item() {
    let repository = Repository::start();
    repository.file("files/shared.csv", "text/csv", "shared");
    let links = [repository.link("item", "files/shared.csv", "text/csv")];
    repository.record(1, &links);
    repository.record(2, &links);
    repository.list("files/shared.csv", 1);
    let mounted = Mounted::new(&repository.sitemap(), FOLLOW);
    let folder = mounted.path();
    eventually("both pages have their folder", || {
        (1..=2).all(|number| folder.join(format!("records/{number}%items")).exists())
    });

    let address = repository.address("files/shared.csv");
    let printed = stdout(&run(&["path", "--in", folder.to_str().unwrap(), &address]));

    let paths: BTreeSet<_> =
        printed.lines().map(|line| Path::new(line).strip_prefix(&folder).unwrap().to_str().unwrap()).collect();
    let places = ["files/shared.csv", "records/1%items/shared.csv", "records/2%items/shared.csv"];
    assert_eq!(paths, BTreeSet::from(places));
    let identified =
        stdout(&Command::new(PROGRAM).arg("uri").args(places.map(|place| mounted.join(place))).output().unwrap());
    assert_eq!(identified.lines().collect::<Vec<_>>(), [&address; 3]);
}

/// Never an accidental emptiness: only what a page says takes an item away.
#[test]
fn items_go_by_what_a_page_says_not_by_its_failure() {
    let repository = Repository::start();
    let link = |name: &str| repository.link("item", &format!("files/{name}.csv"), "text/csv");
    ["a", "b"].iter().for_each(|name| repository.file(&format!("files/{name}.csv"), "text/csv", *name));
    (1..=4).for_each(|number| repository.record(number, &[link("a"), link("b")]));
    let mounted = followed(&repository, 4);
    let shown = |number: usize| names(&mounted.join(&format!("records/{number}%items")));
    assert_eq!(shown(2), set(&["a.csv", "b.csv"]));

    repository.unlist("records/1");
    repository.source.fault("records/2", Fault::Status(500, String::new()), ALWAYS);
    repository.list("records/2", 2);
    repository.page("records/3", &[link("a")]);
    repository.list("records/3", 2);
    mounted.try_refresh().unwrap();

    eventually("the page that was taken off the list has no items", || shown(1).is_empty());
    eventually("the page that lost an item does not have it", || shown(3) == set(&["a.csv"]));
    eventually("the failure is counted", || pages(&mounted)["failed"] == 1);
    assert!(!mounted.join("records/1").exists());
    assert_eq!(shown(2), set(&["a.csv", "b.csv"]));
    assert_eq!(shown(4), set(&["a.csv", "b.csv"]));
    assert_eq!(pages(&mounted)["all"], 3);

    repository.page("records/2", &[link("b")]);
    repository.mend();
    mounted.try_refresh().unwrap();
    eventually("it is asked again", || shown(2) == set(&["b.csv"]) && pages(&mounted)["failed"] == 0);
}

#[test]
fn a_page_is_asked_once_for_each_lastmod_restarts_included() {
    let repository = Repository::start();
    let link = |name: &str| repository.link("item", &format!("files/{name}.csv"), "text/csv");
    ["a", "b"].iter().for_each(|name| repository.file(&format!("files/{name}.csv"), "text/csv", *name));
    (1..=6).for_each(|number| repository.record(number, &[link("a")]));
    let asked = || -> Vec<usize> {
        (1..=6).map(|number| repository.source.requests_of(&format!("records/{number}")).len()).collect()
    };
    let mounted = followed(&repository, 6);
    assert_eq!(asked(), [1; 6]);

    mounted.try_refresh().unwrap();
    mounted.remount();
    mounted.kill();
    mounted.start();
    assert_eq!(names(&mounted.join("records/6%items")), set(&["a.csv"]), "there at once");
    repository.source.wait_for_quiet();
    assert_eq!(asked(), [1; 6]);

    [2, 5].iter().for_each(|number| {
        repository.page(&format!("records/{number}"), &[link("a"), link("b")]);
        repository.list(&format!("records/{number}"), 2);
    });
    mounted.try_refresh().unwrap();
    eventually("both have their new item", || {
        [2, 5].iter().all(|number| mounted.join(&format!("records/{number}%items/b.csv")).exists())
    });
    repository.source.wait_for_quiet();
    assert_eq!(asked(), [1, 2, 1, 1, 2, 1]);
}

#[test]
fn an_item_of_a_host_not_allowed_is_listed_and_refused() {
    let (repository, elsewhere) = (Repository::start(), Repository::start());
    elsewhere.file("there.csv", "text/csv", "there");
    repository.file("here.csv", "text/csv", "here");
    let links = [repository.link("item", "here.csv", ""), repository.link("item", &elsewhere.address("there.csv"), "")];
    repository.page("records/1", &links);
    let page = repository.address("records/1");

    let refused = Mounted::new(&page, "poll=1h");
    assert_eq!(names(&refused.path()), set(&["%page", "here.csv", "there.csv"]));
    assert!(read(&refused.join("there.csv")).is_err());
    assert_eq!(fs::read(refused.join("here.csv")).unwrap(), b"here");
    let authority = elsewhere.source.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    assert!(refused.said().contains(&authority) && refused.said().contains("not allowed"), "{}", refused.said());
    assert!(elsewhere.source.take_log().is_empty());

    let allowed = Mounted::new(&page, &format!("poll=1h,allow-host={authority}"));
    assert_eq!(fs::read(allowed.join("there.csv")).unwrap(), b"there");
}

#[test]
fn a_prefetch_waits_for_the_pages_below() {
    let repository = Repository::start();
    for number in 1..=3 {
        repository.file(&format!("files/{number}.csv"), "text/csv", format!("bytes {number}"));
        repository.record(number, &[repository.link("item", &format!("files/{number}.csv"), "text/csv")]);
    }
    let mounted = Mounted::prepared(&repository.sitemap(), FOLLOW);
    repository.source.pause(Duration::from_millis(100));
    mounted.start();

    let prefetched = run(&["prefetch", mounted.join("records").to_str().unwrap()]);

    assert!(prefetched.status.success(), "{}", String::from_utf8_lossy(&prefetched.stderr));
    (1..=3).for_each(|number| {
        repository.source.fault(&format!("files/{number}.csv"), Fault::Status(503, String::new()), ALWAYS)
    });
    let files = tree(&mounted.join("records"));
    assert_eq!(files.len(), 6);
    assert_eq!(files[Path::new("2%items/2.csv")], b"bytes 2");
}

/// Loops are names, not requests without end.
#[test]
fn a_page_that_is_an_item_of_itself_or_of_its_item_ends() {
    let repository = Repository::start();
    repository.file("files/a.csv", "text/csv", "a");
    let a = repository.link("item", "files/a.csv", "text/csv");
    for (number, item) in [(1, 1), (2, 3), (3, 2)] {
        repository.record(number, &[repository.link("item", &format!("records/{item}"), "text/html"), a.clone()]);
    }

    let mounted = followed(&repository, 3);

    repository.source.wait_for_quiet();
    for number in 1..=3 {
        let shown = names(&mounted.join(&format!("records/{number}%items")));
        assert!(shown.len() == 2 && shown.contains("a.csv"), "{shown:?}");
        assert_eq!(repository.asked("GET", &format!("records/{number}")), 1);
    }
}

/// A link set as servers write it: relative, wrapped, with members that the standard does not know.
#[test]
fn link_sets_of_real_servers_are_read() {
    let repository = Repository::start();
    repository.file("files/a.csv", "text/csv", "a");
    let context = |number: usize| {
        json!({"anchor": repository.address(&format!("records/{number}")), "item": [
        {"href": repository.address("files/a.csv"), "type": "text/csv", "title*": [{"value": "A", "language": "de"}]}]})
    };
    let relative = json!({"anchor": "../1", "item": [{"href": "../../files/a.csv"}]});
    let sets = [
        json!({"linkset": [relative]}),
        json!({"status": "OK", "data": {"linkset": [context(2)]}}),
        json!({"linkset": [context(3)], "lset": [{"cite-as": "x"}], "_links": {"self": {"href": "x"}}}),
        json!({"linkset": [7, null, {"anchor": 5, "item": "x"}, {"item": [{"href": 5}, 3]}, context(4)]}),
    ];
    for (number, set) in (1..).zip(sets) {
        let path = format!("records/{number}");
        repository.page_with_link_set(&path, JSON, set.to_string());
        repository.list(&path, 1);
    }

    let mounted = followed(&repository, 4);

    for number in 1..=4 {
        assert_eq!(names(&mounted.join(&format!("records/{number}%items"))), set(&["a.csv"]), "records/{number}");
    }
}

/// A page whose link set is broken is reported, and keeps what was shown of it.
#[test]
fn a_link_set_that_is_none_is_told_and_takes_nothing() {
    let repository = Repository::start();
    ["a", "b"].iter().for_each(|name| repository.file(&format!("files/{name}.csv"), "text/csv", *name));
    let whole = |number: usize, name: &str| {
        let item = json!({"href": repository.address(&format!("files/{name}.csv"))});
        json!({"linkset": [{"anchor": repository.address(&format!("records/{number}")), "item": [item]}]}).to_string()
    };
    let html = "<!doctype html><title>Please wait</title>".to_owned();
    let broken = [html.clone(), whole(2, "a")[..60].to_owned(), format!("{{\"linkset\":{}", "[".repeat(100_000)), html];
    let put = |number: usize, day: u32, body: &str| {
        let path = format!("records/{number}");
        repository.page_with_link_set(&path, JSON, body);
        repository.list(&path, day);
    };
    (1..).zip(&broken).for_each(|(number, body)| put(number, 1, body));
    put(4, 1, &whole(4, "a"));
    let mounted = followed(&repository, 4);
    let shown = |number: usize| names(&mounted.join(&format!("records/{number}%items")));
    assert_eq!(shown(4), set(&["a.csv"]));
    for number in 1..=3 {
        assert!(shown(number).is_empty(), "records/{number}");
        assert!(mounted.said().contains(&format!("records/{number}/linkset")), "{}", mounted.said());
    }

    put(4, 2, &broken[3]);
    mounted.try_refresh().unwrap();
    eventually("its link set is asked again", || repository.asked("GET", "records/4/linkset") > 1);
    repository.source.wait_for_quiet();
    assert_eq!(shown(4), set(&["a.csv"]));

    (1..=4).for_each(|number| put(number, 3, &whole(number, "b")));
    mounted.try_refresh().unwrap();
    eventually("all are read when they are right", || (1..=4).all(|number| shown(number) == set(&["b.csv"])));
}

/// All or nothing, and bounded: a link set beyond a limit is reported, and takes no other page with it.
#[test]
fn a_link_set_of_10_mb_and_10_000_items_are_whole_or_told() {
    let repository = Repository::start();
    repository.file("files/a.csv", "text/csv", "a");
    let title = "x".repeat(10_000);
    let target = |number: usize| json!({"href": repository.address(&format!("files/{number}.csv")), "title": title});
    let anchor = repository.address("records/1");
    let items: Vec<_> = (0..1050).map(target).collect();
    repository.page_with_link_set(
        "records/1",
        JSON,
        json!({"linkset": [{"anchor": anchor, "item": items}]}).to_string(),
    );
    let base = repository.address("files/");
    let many: Vec<_> = (0..10_000).map(|number| format!("<{base}{number}.csv>;rel=item;anchor=\"../2\"")).collect();
    repository.page_with_link_set("records/2", "application/linkset", many.join(",\n"));
    repository.page("records/3", &[repository.link("item", "files/a.csv", "text/csv")]);
    (1..=3).for_each(|number| repository.list(&format!("records/{number}"), 1));

    let mounted = followed(&repository, 3);

    assert_eq!(names(&mounted.join("records/3%items")), set(&["a.csv"]));
    for (number, count) in [(1, 1050), (2, 10_000)] {
        let shown = names(&mounted.join(&format!("records/{number}%items"))).len();
        let is_reported = mounted.said().contains(&format!("records/{number}"));
        assert!(
            shown == count || (shown == 0 && is_reported),
            "records/{number}: {shown} of {count}; {}",
            mounted.said()
        );
    }
}

/// A type that is none says nothing, and a page in place of a file is an error.
#[test]
fn wrong_types_of_items_are_borne_and_login_pages_refused() {
    let repository = Repository::start();
    ["a", "b"].iter().for_each(|name| repository.file(&format!("files/{name}.csv"), "text/csv", *name));
    repository.file("files/c.pdf", "text/html", "<!doctype html><title>Please log in</title>");
    let links = [
        repository.link("item", "files/a.csv", "csv"),
        repository.link("item", "files/b.csv", "text/csv;charset=UTF-8"),
        repository.link("item", "files/c.pdf", "application/pdf"),
    ];
    repository.page("records/1", &links);

    let mounted = Mounted::new(&repository.address("records/1"), "poll=1h");

    assert_eq!(fs::read(mounted.join("a.csv")).unwrap(), b"a");
    assert_eq!(fs::read(mounted.join("b.csv")).unwrap(), b"b");
    assert_eq!(errno(read(&mounted.join("c.pdf"))), Some(libc::EIO));
}

#[test]
fn no_name_of_an_item_leaves_the_folder_of_its_page() {
    let repository = Repository::start();
    let dispositions = [
        "attachment; filename=\"../../etc/passwd\"",
        "attachment; filename=\"..\"",
        "attachment; filename=\"/etc/shadow\"",
        "attachment; filename*=UTF-8''..%2F..%2Fclimbs.txt",
        "attachment; filename*=UTF-8''%00%1B%5B31m.txt",
        "attachment; filename=\"\"",
    ];
    let mut links = Vec::new();
    for (number, disposition) in dispositions.iter().enumerate() {
        repository.named(&format!("api/{number}"), disposition, format!("bytes of {number}"));
        links.push(repository.link("item", &format!("api/{number}"), ""));
    }
    repository.record(1, &links);
    let paths = ["../../climbs.txt", "/etc/passwd", "a/../../b.txt", "..", "a//b.txt", "ok/c.txt"];
    let file = |number: usize, path: &str| {
        repository.file(&format!("files/{number}"), "text/plain", format!("bytes of {number}"));
        json!({"@id": path, "@type": "File", "contentUrl": repository.address(&format!("files/{number}"))})
    };
    let mut graph =
        vec![json!({"@id": "ro-crate-metadata.json", "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"}})];
    graph.extend(paths.iter().enumerate().map(|(number, path)| file(number, path)));
    repository.file("2/ro-crate-metadata.json", "application/ld+json", json!({"@graph": graph}).to_string());
    repository.record(2, &[repository.link("describedby", "2/ro-crate-metadata.json", "application/ld+json")]);

    let mounted = followed(&repository, 2);

    for (folder, below, least) in [("records/1%items", "api/", dispositions.len()), ("records/2%items", "files/", 1)] {
        let shown = names(&mounted.join(folder));
        let items: Vec<_> =
            shown.iter().filter(|name| origin(&mounted.join(folder).join(name)).contains(below)).collect();
        assert!(items.len() >= least, "{shown:?}");
        for name in items {
            let path = mounted.join(folder).join(name);
            let number = origin(&path).rsplit('/').next().unwrap().to_owned();
            assert!(!name.chars().any(char::is_control), "{name:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("bytes of {number}"), "{name:?}");
        }
    }
    assert!(names(&mounted.join("records/2%items")).contains("ok/c.txt"));
    assert_eq!(names(&mounted.path()).iter().filter(|name| !name.contains("%items/")).count(), 2, "the pages alone");
}

/// A page says where the list of its site is.
#[test]
fn a_site_leads_to_its_sitemap_by_html_and_by_api_catalog() {
    for by_catalog in [false, true] {
        let repository = one_page();
        let list = hidden_sitemap(&repository);
        let head = if by_catalog { String::new() } else { format!("<link rel=\"sitemap\" href=\"{list}\">") };
        repository.page_with_head("", &[], &head);
        if by_catalog {
            let catalog = json!({"linkset": [{"anchor": repository.source.url(), "sitemap": [{"href": list}]}]});
            repository.file(".well-known/api-catalog", JSON, catalog.to_string());
        }

        let mounted = Mounted::new(&repository.source.url(), "poll=1h");

        assert_eq!(names(&mounted.path()), set(&["records/1"]), "by catalog: {by_catalog}");
    }
}

/// The repository's sitemap at an address that cannot be guessed.
fn hidden_sitemap(repository: &Repository) -> String {
    let entry = format!("<url><loc>{}</loc></url>", repository.address("records/1"));
    repository.source.document("lists/all.xml", format!("{}{entry}</urlset>", URLSET));
    repository.source.fault("sitemap.xml", Fault::Status(404, String::new()), ALWAYS);
    repository.address("lists/all.xml")
}

/// A login page, or one of maintenance, answers 200 and says nothing of items.
#[test]
fn a_page_that_links_to_nothing_keeps_its_items() {
    let repository = one_page();
    let mounted = followed(&repository, 1);
    let before = names(&mounted.join("records/1%items"));
    assert!(!before.is_empty());

    repository.page("records/1", &[]);
    repository.list("records/1", 2);
    mounted.try_refresh().unwrap();

    eventually("the failure is counted", || pages(&mounted)["failed"] == 1);
    assert_eq!(names(&mounted.join("records/1%items")), before);
    assert!(mounted.said().contains("had items and has no typed links now"));
}

/// No list names the items of a followed page: they are no difference between tree and lists.
#[test]
fn an_audit_finds_no_fault_in_items() {
    let repository = one_page();
    let mounted = followed(&repository, 1);

    let audited = run(&["audit", mounted.path().to_str().unwrap()]);

    assert!(audited.status.success(), "{}", String::from_utf8_lossy(&audited.stdout));
}
