//! What a Source published earlier (section 15): the mount of an earlier time, and gaps that archives close; by the real mount.

mod common;

use common::mounted::Mounted;
use common::nginx::Nginx;
use common::source::{Fault, Resource, Source, URLSET, hex};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const FAST: &str = "timeout=3s,connect-timeout=1s,poll=1h";

/// An entry of a Capability List or of an archive: what it is, where, further attributes.
fn offered(source: &Source, capability: &str, path: &str, attributes: &str) -> String {
    format!("<url><loc>{}{path}</loc><rs:md capability=\"{capability}\" {attributes}/></url>\n", source.url())
}

fn document(source: &Source, path: &str, capability: &str, attributes: &str, entries: &[String]) {
    let up = format!("<rs:ln rel=\"up\" href=\"{}capabilitylist.xml\"/>", source.url());
    let head = format!("{URLSET}{up}<rs:md capability=\"{capability}\" {attributes}/>\n");
    source.document(path, format!("{head}{}</urlset>\n", entries.concat()));
}

/// The entry of a resource that has these bytes; `md` are further attributes, `links` its links.
fn entry(source: &Source, path: &str, bytes: &str, md: &str, links: &str) -> String {
    let digest = hex(&Sha256::digest(bytes));
    let md = format!("hash=\"sha-256:{digest}\" length=\"{}\" {md}", bytes.len());
    format!("<url><loc>{}{path}</loc><rs:md {md}/>{links}</url>\n", source.url())
}

fn updated(source: &Source, path: &str, bytes: &str, datetime: &str) -> String {
    entry(source, path, bytes, &format!("change=\"updated\" datetime=\"{datetime}\""), "")
}

fn deleted(source: &Source, path: &str, datetime: &str) -> String {
    format!("<url><loc>{}{path}</loc><rs:md change=\"deleted\" datetime=\"{datetime}\"/></url>\n", source.url())
}

/// Names and sizes of a folder.
fn sizes(folder: &Path) -> BTreeMap<String, u64> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|it| (it.file_name().into_string().unwrap(), it.metadata().unwrap().len())).collect()
}

fn tree<const N: usize>(files: [(&str, &str); N]) -> BTreeMap<String, u64> {
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes.len() as u64)).collect()
}

/// The time that the root says the tree speaks for.
fn speaks_for(mounted: &Mounted) -> String {
    let output = Command::new("getfattr")
        .args(["--absolute-names", "--only-values", "-n", "user.resyncfs.at"])
        .arg(mounted.path())
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A Source whose Resource List is of June, with an archive of lists, and Change Lists archived and current.
fn source_with_a_past() -> Source {
    let source = Source::start();
    let url = source.url();
    let gate = |path: &str| format!("<rs:ln rel=\"timegate\" href=\"{url}gate/{path}\"/>");
    for (path, bytes) in [("kept", "the same"), ("changed", "of today, in June"), ("new", "new")] {
        source.put(path, Resource::new(bytes));
    }
    document(
        &source,
        "capabilitylist.xml",
        "capabilitylist",
        "",
        &[
            offered(&source, "resourcelist", "resourcelist.xml", ""),
            offered(&source, "resourcelist-archive", "lists.xml", ""),
            offered(&source, "changelist", "changelist.xml", ""),
            offered(&source, "changelist-archive", "changes.xml", ""),
        ],
    );
    source.document("resourcelist.xml", source.resource_list_at("2024-06-01T00:00:00Z"));
    document(
        &source,
        "lists.xml",
        "resourcelist-archive",
        "",
        &[
            // Its own header tells the time of the first, the archive's entry that of the second.
            offered(&source, "resourcelist", "lists/march.xml", ""),
            offered(&source, "resourcelist", "lists/april.xml", "at=\"2024-04-01T00:00:00Z\""),
            offered(&source, "resourcelist", "resourcelist.xml", "at=\"2024-06-01T00:00:00Z\""),
        ],
    );
    let march = [entry(&source, "gone", "of March", "", &gate("gone"))];
    document(&source, "lists/march.xml", "resourcelist", "at=\"2024-03-01T00:00:00Z\"", &march);
    let april = [
        entry(&source, "kept", "the same", "", ""),
        entry(&source, "changed", "April", "", &gate("changed")),
        entry(&source, "lost", "lost bytes", "", ""),
        entry(&source, "gone", "of March", "", &gate("gone")),
    ];
    document(&source, "lists/april.xml", "resourcelist", "", &april);
    let interval = |from: &str, until: &str| format!("from=\"2024-{from}T00:00:00Z\" until=\"2024-{until}T00:00:00Z\"");
    document(
        &source,
        "changes.xml",
        "changelist-archive",
        "",
        &[
            offered(&source, "changelist", "changes/march.xml", &interval("03-01", "04-01")),
            offered(&source, "changelist", "changes/april.xml", &interval("04-01", "05-01")),
            offered(&source, "changelist", "changes/may.xml", &interval("05-01", "06-01")),
        ],
    );
    let april = [deleted(&source, "gone", "2024-04-10T00:00:00Z"), {
        let md = "change=\"created\" datetime=\"2024-04-20T00:00:00Z\"";
        entry(&source, "passing", "here for a week", md, &gate("passing"))
    }];
    document(&source, "changes/april.xml", "changelist", &interval("04-01", "05-01"), &april);
    let may = [
        updated(&source, "changed", "of today, in June", "2024-05-02T00:00:00Z"),
        deleted(&source, "passing", "2024-05-03T00:00:00Z"),
        deleted(&source, "lost", "2024-05-04T00:00:00Z"),
    ];
    document(&source, "changes/may.xml", "changelist", &interval("05-01", "06-01"), &may);
    document(&source, "changelist.xml", "changelist", "from=\"2024-06-01T00:00:00Z\"", &[]);
    source
}

/// Has the TimeGate of `path` lead to a version with these bytes.
fn archive_version(source: &Source, path: &str, bytes: &str, time: &str) {
    let headers = format!("Memento-Datetime: {time}\r\n");
    source.page(&format!("versions/{path}"), Resource { headers, ..Resource::new(bytes) });
    let location = format!("Location: {}versions/{path}\r\nVary: accept-datetime\r\n", source.url());
    source.fault(&format!("gate/{path}"), Fault::Status(302, location), 1000);
}

/// Names and sizes are those of the time, bytes come from the versions of the time or where the published hash proves them;
/// what is nowhere is EIO, never today's bytes.
#[test]
fn a_mount_of_an_earlier_time_shows_the_tree_of_then() {
    let source = source_with_a_past();
    archive_version(&source, "changed", "April", "Mon, 01 Apr 2024 00:00:00 GMT");
    source.put("lost", Resource::new("other byte"));

    let mounted = Mounted::new(&source.url(), &format!("{FAST},at=2024-05-01T12:00:00Z"));

    let then = [("kept", "the same"), ("changed", "April"), ("lost", "lost bytes"), ("passing", "here for a week")];
    assert_eq!(sizes(&mounted.path()), tree(then));
    assert_eq!(speaks_for(&mounted), "2024-05-01T12:00:00Z", "the list's own time is a month older");
    assert_eq!(fs::read_to_string(mounted.join("kept")).unwrap(), "the same");
    assert_eq!(fs::read_to_string(mounted.join("changed")).unwrap(), "April");
    let asked = source.requests_of("gate/changed");
    assert_eq!(asked[0].field("accept-datetime"), Some("Wed, 01 May 2024 12:00:00 GMT"));
    for path in ["lost", "passing"] {
        assert_eq!(fs::read(mounted.join(path)).unwrap_err().raw_os_error(), Some(libc::EIO), "{path}");
    }
    let log = source.take_log();
    assert!(log.iter().all(|logged| logged.path != "/changes/march.xml"), "it tells nothing of that time");

    // What was does not change any more.
    source.document("changes/april.xml", "");
    mounted.try_refresh().unwrap();
    mounted.remount();
    mounted.try_refresh().unwrap();
    assert_eq!(sizes(&mounted.path()), tree(then));
    let documents = source.take_log().into_iter().filter(|logged| logged.path.ends_with(".xml"));
    assert_eq!(documents.count(), 0, "nothing more is published of that time");
}

/// The moment itself is included, and a document in the archive may bear its time in its own header alone.
#[test]
fn mounts_of_two_times_do_not_mix() {
    let source = source_with_a_past();
    let before = Mounted::new(&source.url(), &format!("{FAST},at=2024-03-31"));
    let at_the_change = format!("{FAST},at=2024-05-02T00:00:00Z");
    let after = Mounted::with_cache(&source.url(), &at_the_change, before.cache());

    assert_eq!(sizes(&before.path()), tree([("gone", "of March")]));
    assert_eq!(
        sizes(&after.path()),
        tree([
            ("kept", "the same"),
            ("changed", "of today, in June"),
            ("lost", "lost bytes"),
            ("passing", "here for a week")
        ])
    );
    assert_eq!(fs::read_to_string(after.join("changed")).unwrap(), "of today, in June", "the hash proves it");
}

/// Promise: a tree is shown whole or not at all. The list alone is of another time than was asked for.
#[test]
fn a_mount_of_an_earlier_time_needs_its_change_documents() {
    // Without the current list the archive cannot be gone on from; April is one of several documents in the archive.
    for (path, fault) in [
        ("changelist.xml", Fault::Status(403, String::new())),
        ("changes.xml", Fault::Status(403, String::new())),
        ("changes/april.xml", Fault::Status(403, String::new())),
        ("changes/april.xml", Fault::Body(b"<urlset><url>".to_vec())),
    ] {
        let source = source_with_a_past();
        source.fault(path, fault, u64::MAX);
        let mounted = Mounted::prepared(&source.url(), &format!("{FAST},at=2024-05-01T12:00:00Z"));

        let refused = mounted.try_start().unwrap_err();
        assert!(refused.contains("the Source as of 2024-05-01 12:00:00") && refused.contains(path), "{refused}");

        source.mend();
        mounted.start();
        assert_eq!(sizes(&mounted.path()).len(), 4, "{path}");
    }
}

/// While more may be published of the time, it is asked again; what cannot be had then takes nothing back.
#[test]
fn a_tree_of_an_earlier_time_outlives_its_change_documents() {
    let source = source_with_a_past();
    let options = format!("{FAST},at=2999-01-01");
    let mounted = Mounted::new(&source.url(), &options);
    let before = tree([("kept", "the same"), ("changed", "of today, in June"), ("new", "new")]);
    assert_eq!(sizes(&mounted.path()), before);
    assert_eq!(speaks_for(&mounted), "2024-06-01T00:00:00Z", "nothing is published of the time after the list");
    let july = |day| format!("2024-07-{day}T00:00:00Z");
    let list = |entries: &[String]| {
        document(&source, "changelist.xml", "changelist", "from=\"2024-06-01T00:00:00Z\"", entries);
    };
    list(&[updated(&source, "later", "of July", &july("01"))]);
    mounted.try_refresh().unwrap();
    let after = tree([("kept", "the same"), ("changed", "of today, in June"), ("new", "new"), ("later", "of July")]);
    assert_eq!(sizes(&mounted.path()), after);
    assert_eq!(speaks_for(&mounted), july("01"));

    source.fault("changelist.xml", Fault::Status(403, String::new()), u64::MAX);
    let refused = mounted.try_refresh().unwrap_err();
    assert!(refused.contains("changelist.xml"), "{refused}");
    mounted.remount();
    assert_eq!(sizes(&mounted.path()), after);

    source.mend();
    list(&[updated(&source, "later", "of July", &july("01")), deleted(&source, "later", &july("02"))]);
    mounted.try_refresh().unwrap();
    assert_eq!(sizes(&mounted.path()), before);
}

#[test]
fn the_archive_of_a_lost_change_list_shows_the_earlier_time() {
    let source = source_with_a_past();
    source.fault("changelist.xml", Fault::Status(410, String::new()), u64::MAX);

    let mounted = Mounted::new(&source.url(), &format!("{FAST},at=2024-05-01T12:00:00Z"));

    assert_eq!(sizes(&mounted.path()).into_keys().collect::<Vec<_>>(), ["changed", "kept", "lost", "passing"]);
    assert_eq!(speaks_for(&mounted), "2024-05-01T12:00:00Z");
}

/// A list that is gone is never read: the tree is that of the other lists, and `status` names that time.
#[test]
fn a_tree_of_an_earlier_time_shows_how_far_it_goes() {
    for (status, paths) in [
        (404, &["changelist.xml", "changes.xml"][..]),
        (410, &["changes.xml", "changelist.xml"]),
        (404, &["changes/april.xml"]),
    ] {
        let source = source_with_a_past();
        paths.iter().for_each(|path| source.fault(path, Fault::Status(status, String::new()), u64::MAX));

        let mounted = Mounted::new(&source.url(), &format!("{FAST},at=2024-05-01T12:00:00Z"));

        assert!(sizes(&mounted.path()).contains_key("gone"), "no list has its deletion any more");
        assert_eq!(speaks_for(&mounted), "2024-04-01T00:00:00Z", "{status} {paths:?}");
        assert_eq!(mounted.status()["revision"]["at"], "2024-04-01T00:00:00Z");

        // Who was wrong about it is asked again.
        source.mend();
        mounted.try_refresh().unwrap();
        assert!(!sizes(&mounted.path()).contains_key("gone"), "{paths:?}");
        assert_eq!(speaks_for(&mounted), "2024-05-01T12:00:00Z", "{paths:?}");
    }
}

#[test]
fn a_time_before_all_lists_is_refused_with_the_earliest() {
    let source = source_with_a_past();

    let refused = Mounted::prepared(&source.url(), &format!("{FAST},at=2023-01-01")).try_start().unwrap_err();

    assert!(refused.contains("2023-01-01 00:00:00") && refused.contains("2024-03-01 00:00:00"), "{refused}");
}

/// A gap of the Change List is closed by the archive, without a new baseline, and only by what it has of the time between.
#[test]
fn a_gap_is_closed_by_the_archive_without_a_new_resource_list() {
    for named_by in ["capability list", "change list"] {
        let source = Source::start();
        let by_list = named_by == "change list";
        for path in ["a", "b"] {
            source.put(path, Resource::new(path));
        }
        let mut capabilities = vec![
            offered(&source, "resourcelist", "resourcelist.xml", ""),
            offered(&source, "changelist", "changelist.xml", ""),
        ];
        if !by_list {
            capabilities.push(offered(&source, "changelist-archive", "changes.xml", ""));
        }
        document(&source, "capabilitylist.xml", "capabilitylist", "", &capabilities);
        source.document("resourcelist.xml", source.resource_list_at("2024-05-01T00:00:00Z"));
        let interval =
            |from: &str, until: &str| format!("from=\"2024-{from}T00:00:00Z\" until=\"2024-{until}T00:00:00Z\"");
        document(&source, "changelist.xml", "changelist", "from=\"2024-05-01T00:00:00Z\"", &[]);
        let mounted = Mounted::new(&source.url(), FAST);
        mounted.try_refresh().unwrap();
        source.take_log();

        let archive = [
            offered(&source, "changelist", "changes/april.xml", &interval("04-01", "05-01")),
            offered(&source, "changelist", "changes/may.xml", &interval("05-01", "06-01")),
        ];
        document(&source, "changes.xml", "changelist-archive", "", &archive);
        let may =
            [updated(&source, "a", "of May", "2024-05-20T00:00:00Z"), deleted(&source, "b", "2024-05-21T00:00:00Z")];
        document(&source, "changes/may.xml", "changelist", "", &may);
        source.put("a", Resource::new("of May"));
        source.put("c", Resource::new("of June"));
        let june = updated(&source, "c", "of June", "2024-06-02T00:00:00Z");
        let link = format!("<rs:ln rel=\"archives\" href=\"{}changes.xml\"/>", source.url());
        let link = if by_list { link } else { String::new() };
        let head = "<rs:md capability=\"changelist\" from=\"2024-06-01T00:00:00Z\"/>";
        source.document("changelist.xml", format!("{URLSET}{link}{head}{june}</urlset>"));
        mounted.try_refresh().unwrap();

        assert_eq!(fs::read_to_string(mounted.join("a")).unwrap(), "of May", "{named_by}");
        assert_eq!(sizes(&mounted.path()), tree([("a", "of May"), ("c", "of June")]), "{named_by}");
        let lists = source.requests_of("resourcelist.xml");
        assert!(lists.iter().all(|logged| logged.status == 304), "{named_by}: no new baseline: {lists:?}");
        assert_eq!(source.requests_of("changes/april.xml").len(), 0, "{named_by}");
        assert_eq!(source.requests_of("changes/may.xml").len(), 1, "{named_by}");
    }
}

/// An archive alone is followed like an index; it need not bear a time itself.
#[test]
fn a_change_list_archive_alone_is_followed() {
    let source = Source::start();
    source.put("a", Resource::new("first"));
    let capabilities = [
        offered(&source, "resourcelist", "resourcelist.xml", ""),
        offered(&source, "changelist-archive", "changes.xml", ""),
    ];
    document(&source, "capabilitylist.xml", "capabilitylist", "", &capabilities);
    source.document("resourcelist.xml", source.resource_list_at("2024-05-01T00:00:00Z"));
    let interval = |from: &str, until: &str| format!("from=\"2024-{from}T00:00:00Z\" until=\"2024-{until}T00:00:00Z\"");
    let april = offered(&source, "changelist", "changes/april.xml", &interval("04-01", "05-01"));
    let may = offered(&source, "changelist", "changes/may.xml", &interval("05-01", "06-01"));
    let june = offered(&source, "changelist", "changes/june.xml", &interval("06-01", "07-01"));
    document(&source, "changes.xml", "changelist-archive", "", &[april.clone(), may.clone()]);
    document(&source, "changes/april.xml", "changelist", "", &[]);
    document(&source, "changes/may.xml", "changelist", "", &[]);
    let mounted = Mounted::new(&source.url(), FAST);
    mounted.try_refresh().unwrap();
    source.take_log();

    source.put("a", Resource::new("second"));
    document(&source, "changes/june.xml", "changelist", "", &[updated(&source, "a", "second", "2024-06-20T00:00:00Z")]);
    document(&source, "changes.xml", "changelist-archive", "", &[april, may, june]);
    mounted.try_refresh().unwrap();

    assert_eq!(fs::read_to_string(mounted.join("a")).unwrap(), "second");
    assert_eq!(source.requests_of("changes/april.xml").len(), 0, "it ended before the list");
}

/// The Capability List names the list that grows: the end of the one before stands in the index of both.
#[test]
fn changes_of_a_closed_list_are_found_by_the_next_index() {
    let source = Source::start();
    source.put("a", Resource::new("first"));
    let offer = |current: &str| {
        let offers =
            [offered(&source, "resourcelist", "resourcelist.xml", ""), offered(&source, "changelist", current, "")];
        document(&source, "capabilitylist.xml", "capabilitylist", "", &offers);
    };
    let list = |path: &str, interval: &str, changes: &str| {
        let index = format!("<rs:ln rel=\"index\" href=\"{}index.xml\"/>", source.url());
        let head = format!("{URLSET}{index}<rs:md capability=\"changelist\" {interval}/>");
        source.document(path, format!("{head}{changes}</urlset>"));
    };
    source.document("resourcelist.xml", source.resource_list_at("2024-05-01T00:00:00Z"));
    list("one.xml", "from=\"2024-05-01T00:00:00Z\"", "");
    offer("one.xml");
    let mounted = Mounted::new(&source.url(), FAST);
    mounted.try_refresh().unwrap();

    source.put("a", Resource::new("second"));
    let may = "from=\"2024-05-01T00:00:00Z\" until=\"2024-06-01T00:00:00Z\"";
    list("one.xml", may, &updated(&source, "a", "second", "2024-05-20T00:00:00Z"));
    list("two.xml", "from=\"2024-06-01T00:00:00Z\"", "");
    let lists = [
        offered(&source, "changelist", "one.xml", may),
        offered(&source, "changelist", "two.xml", "from=\"2024-06-01\""),
    ];
    document(&source, "index.xml", "changelist", "", &lists);
    offer("two.xml");
    mounted.try_refresh().unwrap();

    assert_eq!(fs::read_to_string(mounted.join("a")).unwrap(), "second");
}

/// Archives as the classes of an independent library write them, in both versions of the standard; the real nginx serves them.
#[test]
fn the_archives_of_another_library_lead_back() {
    const AT: u64 = 1_714_557_600;
    for spec in ["1.0", "1.1"] {
        let nginx = Nginx::serving_plain_names(1);
        let put = |path: &str, text: &str| fs::write(nginx.files().join(path), text).unwrap();
        let list = |name: &str, at: u64, entries: serde_json::Value| json!({"kind": "resourcelist", "name": name, "spec": spec, "at": at, "entries": entries});
        put("kept", "the same");
        put("changed", "of the first list");
        let first = json!([{"path": "kept", "lastmod": AT - 50}, {"path": "changed", "lastmod": AT - 50}]);
        nginx.publish(&json!([list("first.xml", AT, first)]));
        put("changed", "of minute eight");
        put("new", "of minute ten");
        let changes = json!([
            {"path": "changed", "change": "updated", "time": AT + 480, "lastmod": AT + 480},
            {"path": "new", "change": "created", "time": AT + 600, "lastmod": AT + 600},
        ]);
        let second = json!([
            {"path": "kept", "lastmod": AT - 50},
            {"path": "changed", "lastmod": AT + 480},
            {"path": "new", "lastmod": AT + 600},
        ]);
        let lists = json!([{"name": "first.xml", "at": AT}, {"name": "resourcelist.xml", "at": AT + 1000}]);
        let closed = json!([{"name": "changes.xml", "from": AT, "until": AT + 1000}]);
        let capabilities = json!({
            "resourcelist": "resourcelist.xml", "resourcelist-archive": "lists.xml", "changelist-archive": "archive.xml"
        });
        nginx.publish(&json!([
            list("resourcelist.xml", AT + 1000, second),
            {"kind": "changelist", "name": "changes.xml", "spec": spec, "from": AT, "until": AT + 1000, "entries": changes},
            {"kind": "resourcelist-archive", "name": "lists.xml", "spec": spec, "lists": lists},
            {"kind": "changelist-archive", "name": "archive.xml", "spec": spec, "lists": closed},
            {"kind": "capabilitylist", "name": "capabilitylist.xml", "capabilities": capabilities},
        ]));
        let shown_at = |minute: &str| {
            let mounted = Mounted::new(&nginx.url(), &format!("{FAST},at=2024-05-01T10:{minute}:00Z"));
            let shown = sizes(&mounted.path());
            (shown, fs::read_to_string(mounted.join("changed")).ok())
        };

        assert_eq!(
            shown_at("05"),
            (tree([("kept", "the same"), ("changed", "of the first list")]), None),
            "{spec}: today's bytes are not those of then"
        );
        assert_eq!(
            shown_at("09"),
            (tree([("kept", "the same"), ("changed", "of minute eight")]), Some("of minute eight".to_owned())),
            "{spec}"
        );
    }
}
