//! A mount of a part of a Source: by path, type, collection and format.

mod common;

use common::mounted::Mounted;
use common::nginx::Nginx;
use common::source::{Resource, Source, URLSET};
use common::{eventually, set, tree};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;

const DC: &str = "http://purl.org/dc/terms/";
const MODS: &str = "urn:x-format:mods";

fn shown(mounted: &Mounted) -> BTreeSet<String> {
    tree(&mounted.path()).into_keys().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn linked(source: &Source, links: &[(&str, &str)]) -> Resource {
    let base = source.url();
    let absolute = |to: &str| if to.contains(':') { to.to_owned() } else { format!("{base}{to}") };
    let links: Vec<_> =
        links.iter().map(|(rel, to)| format!("<rs:ln rel=\"{rel}\" href=\"{}\"/>", absolute(to))).collect();
    Resource { links: links.concat(), ..Resource::new(format!("bytes of {links:?}")) }
}

fn typed(media_type: &str, resource: Resource) -> Resource {
    Resource { md: format!("{} type=\"{media_type}\"", resource.md), ..resource }
}

/// The documents of the profile for metadata harvesting: bitstreams with `describedby` and `collection`, records with
/// `describes`, `collection` and their format as `describedby`.
fn harvesting_profile() -> Source {
    let source = Source::start();
    let put = |path: &str, media_type: &str, links: &[(&str, &str)]| {
        source.put(path, typed(media_type, linked(&source, links)));
    };
    let (one, two) =
        (("collection", "http://example.com/collection1"), ("collection", "http://example.com/collection2"));
    put("item1/a.pdf", "application/pdf", &[("describedby", "item1/dc"), ("describedby", "item1/mods"), one]);
    put("item1/b.txt", "text/plain", &[one]);
    put(
        "item1/dc",
        "application/xml",
        &[("describes", "item1/a.pdf"), ("describes", "item1/b.txt"), ("describedby", DC), one],
    );
    put("item1/mods", "application/xml", &[("describes", "item1/a.pdf"), ("describedby", MODS), one]);
    put("item2/c.pdf", "application/pdf", &[("describedby", "item2/dc"), two]);
    put("item2/dc", "application/xml", &[("profile", DC), two]);
    put("lone.txt", "text/plain", &[]);
    source
}

#[test]
fn a_format_is_its_records_and_described_by_either_link() {
    let source = harvesting_profile();
    let shown = |options: &str| shown(&Mounted::new(&source.url(), options));

    assert_eq!(
        shown(&format!("conforms={DC}")),
        set(&["item1/a.pdf", "item1/b.txt", "item1/dc", "item2/c.pdf", "item2/dc"])
    );
    assert_eq!(shown(&format!("conforms={MODS}")), set(&["item1/a.pdf", "item1/mods"]));
    assert_eq!(
        shown(&format!("conforms={DC},conforms={MODS},type=application/pdf")),
        set(&["item1/a.pdf", "item2/c.pdf"])
    );
    assert_eq!(
        shown(&format!("conforms={DC},collection=http://example.com/collection2")),
        set(&["item2/c.pdf", "item2/dc"])
    );
}

#[test]
fn a_selection_of_metadata_can_bring_what_it_describes() {
    let source = harvesting_profile();
    let shown = |options: &str| shown(&Mounted::new(&source.url(), options));

    assert_eq!(shown("type=application/xml"), set(&["item1/dc", "item1/mods", "item2/dc"]));
    assert_eq!(
        shown("type=application/xml,with=describes"),
        set(&["item1/a.pdf", "item1/b.txt", "item1/dc", "item1/mods", "item2/c.pdf", "item2/dc"])
    );
    assert_eq!(shown("include=item1/mods,with=describes"), set(&["item1/a.pdf", "item1/mods"]));
    assert_eq!(shown("include=item1/,with=describes,exclude=*.pdf"), set(&["item1/b.txt", "item1/dc", "item1/mods"]));
}

#[test]
fn paths_are_chosen_by_patterns_and_an_exclusion_wins() {
    let source = harvesting_profile();
    source.put("item1", Resource::new("a file where a folder is"));
    let shown = |options: &str| shown(&Mounted::new(&source.url(), options));

    assert_eq!(shown("include=*.pdf"), set(&["item1/a.pdf", "item2/c.pdf"]));
    assert_eq!(shown("include=item2/**,include=lone.*"), set(&["item2/c.pdf", "item2/dc", "lone.txt"]));
    assert_eq!(shown(r"include={a\,b}.*"), set(&["item1/a.pdf", "item1/b.txt"]));
    assert_eq!(shown("exclude=item?/*,exclude=lone.txt"), set(&["item1"]));
    assert_eq!(shown("include=*.pdf,exclude=/item1"), set(&["item2/c.pdf"]));
}

/// What is not chosen is neither stored nor asked for, and two selections of one Source do not mix.
#[test]
fn two_selections_of_one_source_are_two_trees_at_once() {
    let source = harvesting_profile();
    let cache = tempfile::tempdir().unwrap();
    let texts = Mounted::with_cache(&source.url(), "type=text/plain", cache.path());
    let records = Mounted::with_cache(&source.url(), &format!("conforms={MODS}"), cache.path());
    let (only_texts, only_records) = (set(&["item1/b.txt", "lone.txt"]), set(&["item1/a.pdf", "item1/mods"]));
    assert_eq!((shown(&texts), shown(&records)), (only_texts.clone(), only_records.clone()));

    texts.remount();
    source.put("new.txt", typed("text/plain", Resource::new("new")));
    texts.refresh();
    records.refresh();

    eventually("the new text is shown where texts are", || texts.join("new.txt").exists());
    assert_eq!(shown(&texts), &only_texts | &set(&["new.txt"]));
    assert_eq!(shown(&records), only_records);
    assert!(source.requests_of("item2/c.pdf").is_empty());
}

#[test]
fn resources_go_and_come_as_they_match() {
    let source = harvesting_profile();
    // The guard would hold back what goes of so small a tree.
    let mounted = Mounted::new(&source.url(), &format!("conforms={MODS},max-delete=100"));
    assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/mods"]));

    source.put("item1/mods", linked(&source, &[("describes", "item1/a.pdf"), ("profile", DC)]));
    source.put("item2/dc", linked(&source, &[("describes", "lone.txt"), ("profile", MODS)]));
    mounted.refresh();

    eventually("the other record is shown", || mounted.join("item2/dc").exists());
    assert_eq!(shown(&mounted), set(&["item2/c.pdf", "item2/dc", "lone.txt"]));
}

#[test]
fn a_pattern_that_is_none_is_refused_with_an_example() {
    let source = harvesting_profile();

    let said = Mounted::prepared(&source.url(), "include=[").try_start().unwrap_err();

    assert!(said.contains("-o include=[") && said.contains("*.pdf"), "{said}");
}

#[test]
fn a_landing_page_is_shown_by_its_alternate() {
    let source = Source::start();
    source.put("page", typed("text/html", linked(&source, &[])));
    source.page("files/paper.pdf", Resource::new("%PDF the paper"));
    let alternate =
        format!("<rs:ln rel=\"alternate\" type=\"application/pdf\" href=\"{}files/paper.pdf\"/>", source.url());
    source.put("work", Resource { links: alternate, ..typed("text/html", Resource::bare("<html>about it</html>")) });
    let mounted = Mounted::new(&source.url(), "alternate=application/pdf");

    assert_eq!(std::fs::read(mounted.join("work")).unwrap(), b"%PDF the paper");
    assert_eq!(std::fs::metadata(mounted.join("work")).unwrap().len(), 14);
    assert_eq!(tree(&mounted.path())[std::path::Path::new("page")], b"bytes of []");
}

/// A change of a resource: what happened, its path, and its links as (relation, path).
type Change<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

/// The entries of a Change List, a minute apart on the first of June.
fn entries(source: &Source, changes: &[Change<'_>]) -> String {
    let base = source.url();
    let entry = |(minute, (change, path, links)): (usize, &Change<'_>)| {
        let links = linked(source, links).links;
        format!(
            "<url><loc>{base}{path}</loc><lastmod>2024-06-01T00:{minute:02}:00Z</lastmod>\
             <rs:md change=\"{change}\"/>{links}</url>"
        )
    };
    changes.iter().enumerate().map(entry).collect()
}

/// Offers documents as (name, capability, further attributes) in the document `name` of `capability`.
fn offer(source: &Source, name: &str, capability: &str, offers: &[(&str, &str, &str)]) {
    let base = source.url();
    let offers: String = offers
        .iter()
        .map(|(name, capability, md)| {
            format!("<url><loc>{base}{name}</loc><rs:md capability=\"{capability}\" {md}/></url>")
        })
        .collect();
    source.document(name, format!("{URLSET}<rs:md capability=\"{capability}\"/>{offers}</urlset>"));
}

/// From now on the Resource List is the one of now, and a Change List beside it tells of `changes`.
fn publish_changes(source: &Source, changes: &[Change<'_>]) {
    let offers = [("resourcelist.xml", "resourcelist", ""), ("changelist.xml", "changelist", "")];
    offer(source, "capabilitylist.xml", "capabilitylist", &offers);
    let header = "<rs:md capability=\"changelist\" from=\"2024-05-01T00:00:00Z\"/>";
    source.document("changelist.xml", format!("{URLSET}{header}{}</urlset>", entries(source, changes)));
}

/// As the profile for metadata harvesting has it: records of a format with what they describe, an archive of Change Lists and no
/// Change List.
#[test]
fn a_format_is_followed_through_an_archive_of_change_lists() {
    let source = harvesting_profile();
    source.document("resourcelist.xml", source.resource_list_at("2024-05-20T00:00:00Z"));
    let offers = [("resourcelist.xml", "resourcelist", ""), ("changes.xml", "changelist-archive", "")];
    offer(&source, "capabilitylist.xml", "capabilitylist", &offers);
    let (may, june) = (
        "from=\"2024-05-01T00:00:00Z\" until=\"2024-06-01T00:00:00Z\"",
        "from=\"2024-06-01T00:00:00Z\" until=\"2024-07-01T00:00:00Z\"",
    );
    let list = |md: &str, changes: &[Change<'_>]| {
        format!("{URLSET}<rs:md capability=\"changelist\" {md}/>{}</urlset>", entries(&source, changes))
    };
    source.document("may.xml", list(may, &[]));
    offer(&source, "changes.xml", "changelist-archive", &[("may.xml", "changelist", may)]);
    let mounted = Mounted::new(&source.url(), &format!("conforms={DC}"));
    let before = ["item1/a.pdf", "item1/b.txt", "item1/dc", "item2/c.pdf", "item2/dc"];
    assert_eq!(shown(&mounted), set(&before));

    source.put("item3/dc", linked(&source, &[("describedby", DC)]));
    source.put("item3/mods", linked(&source, &[("describedby", MODS)]));
    source.remove("item2/c.pdf");
    let changes: [Change<'_>; 3] = [
        ("created", "item3/dc", &[("describedby", DC)]),
        ("created", "item3/mods", &[("describedby", MODS)]),
        ("deleted", "item2/c.pdf", &[]),
    ];
    source.document("june.xml", list(june, &changes));
    let lists = [("may.xml", "changelist", may), ("june.xml", "changelist", june)];
    offer(&source, "changes.xml", "changelist-archive", &lists);
    mounted.refresh();

    eventually("the change can be seen", || mounted.join("item3/dc").exists());
    assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/b.txt", "item1/dc", "item2/dc", "item3/dc"]));
}

/// A record that a change makes one of the format brings what it describes, of which no change tells, and one that ceases to be
/// takes away what it had brought: the lists are chosen from again, though they have not changed.
#[test]
fn changes_of_records_bring_and_take_what_they_describe() {
    let source = harvesting_profile();
    source.document("resourcelist.xml", source.resource_list_at("2024-05-20T00:00:00Z"));
    publish_changes(&source, &[]);
    // The guard would hold back what goes of so small a tree.
    let mounted = Mounted::new(&source.url(), &format!("conforms={MODS},max-delete=100"));
    assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/mods"]));
    let moved: &[(&str, &str)] = &[("describes", "lone.txt"), ("profile", MODS)];
    let left: &[(&str, &str)] = &[("describes", "item1/a.pdf"), ("profile", DC)];

    publish_changes(&source, &[("updated", "item2/dc", moved)]);
    mounted.refresh();
    eventually("what the record describes is there", || mounted.join("lone.txt").exists());
    assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/mods", "item2/c.pdf", "item2/dc", "lone.txt"]));

    publish_changes(&source, &[("updated", "item2/dc", moved), ("updated", "item1/mods", left)]);
    mounted.refresh();
    eventually("the other record is gone", || !mounted.join("item1").exists());
    assert_eq!(shown(&mounted), set(&["item2/c.pdf", "item2/dc", "lone.txt"]));
}

/// The same as the classes of an independent library write it, in both versions of the standard; the real nginx serves it.
#[test]
fn a_harvesting_profile_is_selected_from_and_followed() {
    const AT: u64 = 1_714_557_600;
    for spec in ["1.0", "1.1"] {
        let nginx = Nginx::serving_plain_names(1);
        let described = |path: &str, media_type: &str, links: &[(&str, &str)], time: u64| {
            let file = nginx.files().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("bytes of {path}")).unwrap();
            json!({"path": path, "type": media_type, "links": links, "lastmod": time})
        };
        let change = |word: &str, time: u64, mut entry: Value| {
            (entry["change"], entry["time"]) = (word.into(), time.into());
            entry
        };
        let (pdf, xml) = ("application/pdf", "application/xml");
        let resources = [
            described("item1/a.pdf", pdf, &[("describedby", "item1/dc"), ("collection", "urn:x-collection:1")], AT - 9),
            described("item1/dc", xml, &[("describes", "item1/a.pdf"), ("profile", DC)], AT - 9),
            described("item1/mods", xml, &[("describes", "item1/a.pdf"), ("describedby", MODS)], AT - 9),
            described("item2/c.pdf", pdf, &[("describedby", "item2/dc")], AT - 9),
            described("item2/dc", xml, &[("describedby", DC)], AT - 9),
            described("lone.pdf", pdf, &[], AT - 9),
        ];
        let capabilities = json!({"resourcelist": "resourcelist.xml", "changelist-archive": "archive.xml"});
        let list = |name: &str, from: u64, until: u64, entries: &[Value]| json!({"kind": "changelist", "name": name, "spec": spec, "from": from, "until": until, "entries": entries});
        let archive = |lists: &[(&str, u64, u64)]| {
            let lists: Vec<_> =
                lists.iter().map(|(name, from, until)| json!({"name": name, "from": from, "until": until})).collect();
            json!({"kind": "changelist-archive", "name": "archive.xml", "spec": spec, "lists": lists})
        };
        nginx.publish(&json!([
            {"kind": "capabilitylist", "name": "capabilitylist.xml", "capabilities": capabilities},
            {"kind": "resourcelist", "name": "resourcelist.xml", "spec": spec, "at": AT, "entries": resources},
            list("first.xml", AT - 100, AT, &[]),
            archive(&[("first.xml", AT - 100, AT)]),
        ]));
        let mounted = Mounted::new(&nginx.url(), &format!("poll=1h,conforms={DC}"));
        assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/dc", "item2/c.pdf", "item2/dc"]), "{spec}");

        fs::remove_file(nginx.files().join("item2/c.pdf")).unwrap();
        let changes = [
            change("created", AT + 10, described("item3/d.pdf", pdf, &[("describedby", "item3/dc")], AT + 10)),
            change("created", AT + 20, described("item3/mods", xml, &[("profile", MODS)], AT + 20)),
            change("created", AT + 30, described("item3/dc", xml, &[("profile", DC)], AT + 30)),
            json!({"path": "item2/c.pdf", "change": "deleted", "time": AT + 40}),
        ];
        nginx.publish(&json!([
            list("second.xml", AT, AT + 100, &changes),
            archive(&[("first.xml", AT - 100, AT), ("second.xml", AT, AT + 100)]),
        ]));
        mounted.try_refresh().unwrap();

        assert_eq!(shown(&mounted), set(&["item1/a.pdf", "item1/dc", "item2/dc", "item3/d.pdf", "item3/dc"]), "{spec}");
        assert_eq!(fs::read_to_string(mounted.join("item3/d.pdf")).unwrap(), "bytes of item3/d.pdf", "{spec}");
    }
}
