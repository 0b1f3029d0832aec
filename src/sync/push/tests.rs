//! The table of what is announced, a test for each row, and what comes twice or broken.

use super::*;
use crate::document::{Change, Digest};
use crate::sync::command::AnnouncedChange;
use std::collections::BTreeMap;

const HEAD: &str =
    "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\">";

impl From<Change> for AnnouncedChange {
    fn from(change: Change) -> AnnouncedChange {
        AnnouncedChange { change, length: None, hashes: Vec::new() }
    }
}

fn uri(raw: &str) -> Uri {
    Uri::parse(raw).unwrap()
}

/// The channel of the set number `set`, which has Change Lists.
fn channel_of(set: u32, capability: Capability, change_lists: &[&str]) -> SetChannel {
    SetChannel {
        set: Some(uri(&format!("http://example.com/dataset{set}/capabilitylist.xml"))),
        channel: Channel {
            topic: uri(&format!("http://example.com/dataset{set}/topic/")),
            hub: uri("http://hub.example.org/websub/"),
            capability,
        },
        change_lists: change_lists.iter().map(|list| DocumentLocation::Uri(uri(list))).collect(),
        own_authority: "example.com".into(),
    }
}

fn framework() -> SetChannel {
    channel_of(1, Capability::FrameworkNotification, &["http://example.com/dataset1/changelist.xml"])
}

fn framework_document(entries: &str) -> String {
    format!("{HEAD}<rs:md capability=\"framework-notification\"/>{entries}</urlset>")
}

fn announcing(capability: &str, change: &str) -> String {
    let (capability, change) = (attribute("capability", capability), attribute("change", change));
    framework_document(&format!(
        "<url><loc>http://example.com/dataset1/doc.xml</loc><rs:md{change}{capability}/></url>"
    ))
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{value}\"") }
}

fn announced_by(body: &str) -> Vec<Announcement> {
    read(body.as_bytes(), &framework()).unwrap().announced
}

fn document(raw: &str) -> Announcement {
    Announcement::Document { document: uri(raw), index: None }
}

#[track_caller]
fn is_looked_at_itself(capability: &str) {
    for change in ["created", "updated"] {
        assert_eq!(
            announced_by(&announcing(capability, change)),
            [document("http://example.com/dataset1/doc.xml")],
            "{change}"
        );
        let below_index = framework_document(&format!(
            "<url><loc>http://example.com/dataset1/doc.xml</loc><rs:md change=\"{change}\" capability=\"{capability}\"/>\
             <rs:ln rel=\"index\" href=\"http://example.com/dataset1/index.xml\"/></url>"
        ));
        let index = Some(uri("http://example.com/dataset1/index.xml"));
        let document = uri("http://example.com/dataset1/doc.xml");
        assert_eq!(announced_by(&below_index), [Announcement::Document { document, index }], "{change}");
    }
    assert_eq!(announced_by(&announcing(capability, "deleted")), [Announcement::Everything]);
}

#[test]
fn resource_list() {
    is_looked_at_itself("resourcelist");
}

#[test]
fn resource_dump() {
    is_looked_at_itself("resourcedump");
}

#[test]
fn change_list() {
    is_looked_at_itself("changelist");
}

#[test]
fn change_dump() {
    is_looked_at_itself("changedump");
}

#[test]
fn resource_list_archive() {
    is_looked_at_itself("resourcelist-archive");
}

#[test]
fn resource_dump_archive() {
    is_looked_at_itself("resourcedump-archive");
}

#[test]
fn change_list_archive() {
    is_looked_at_itself("changelist-archive");
}

#[test]
fn change_dump_archive() {
    is_looked_at_itself("changedump-archive");
}

#[test]
fn capability_list_is_discovered_again() {
    for change in ["created", "updated", "deleted"] {
        assert_eq!(announced_by(&announcing("capabilitylist", change)), [Announcement::Source], "{change}");
    }
}

#[test]
fn source_description_is_discovered_again() {
    for change in ["created", "updated", "deleted"] {
        assert_eq!(announced_by(&announcing("description", change)), [Announcement::Source], "{change}");
    }
}

#[test]
fn any_other_pair_announces_everything() {
    let others = [
        ("hologram", "created"),
        ("resourcedump-manifest", "updated"),
        ("change-notification", "created"),
        ("", "created"),
        ("resourcelist", ""),
        ("resourcelist", "vanished"),
        ("description", ""),
    ];
    for (capability, change) in others {
        assert_eq!(announced_by(&announcing(capability, change)), [Announcement::Everything], "{capability} {change}");
    }
    let several = others.map(|(capability, _)| {
        format!("<url><loc>http://example.com/x</loc><rs:md{}/></url>", attribute("capability", capability))
    });
    let announced = announced_by(&framework_document(&several.concat()));
    assert!(announced.iter().all(|it| *it == Announcement::Everything), "{announced:?}");
}

#[test]
fn an_empty_body_announces_everything() {
    for body in ["", " \r\n"] {
        assert_eq!(announced_by(body), [Announcement::Everything]);
    }
    assert_eq!(announced_by(&framework_document("")), [Announcement::Everything]);
}

/// Example 1 of the standard.
#[test]
fn a_new_resource_list() {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>{HEAD}<rs:ln rel=\"up\" href=\"http://example.com/dataset1/capabilitylist.xml\"/>\
         <rs:md capability=\"framework-notification\"/><url><loc>http://example.com/resourceset1/resourcelist.xml</loc>\
         <rs:md change=\"created\" datetime=\"2013-01-03T00:07:22Z\" capability=\"resourcelist\"/></url></urlset>"
    );
    let notification = read(body.as_bytes(), &framework()).unwrap();

    assert_eq!(notification.announced, [document("http://example.com/resourceset1/resourcelist.xml")]);
    assert!(notification.is_dated);
}

/// Example 2, which has no `up` and no times.
#[test]
fn several_changes_at_once() {
    let body = framework_document(
        "<url><loc>http://example.com/dataset1/resourcelist.xml</loc><rs:md change=\"created\" capability=\"resourcelist\"/>\
         <rs:ln rel=\"index\" href=\"http://example.com/dataset1/resourcelist-index.xml\"/></url>\
         <url><loc>http://example.com/dataset1/resourcedump.xml</loc><rs:md change=\"created\" capability=\"resourcedump\"/></url>\
         <url><loc>http://example.com/dataset1/changelist.xml</loc><rs:md change=\"updated\" capability=\"changelist\"/></url>",
    );
    let notification = read(body.as_bytes(), &framework()).unwrap();

    let index = Some(uri("http://example.com/dataset1/resourcelist-index.xml"));
    assert_eq!(
        notification.announced,
        [
            Announcement::Document { document: uri("http://example.com/dataset1/resourcelist.xml"), index },
            document("http://example.com/dataset1/resourcedump.xml"),
            document("http://example.com/dataset1/changelist.xml"),
        ]
    );
    assert!(!notification.is_dated);
}

const CHANGES: &str = "<url><loc>http://example.com/res1</loc><rs:md change=\"updated\" hash=\"md5:1584abdf8ebdc9802ac0c6a7402c03b6\"/></url>\
                       <url><loc>http://example.com/res2</loc><rs:md change=\"deleted\"/></url>\
                       <url><loc>http://example.com/res3</loc></url>";

fn change_notification(entries: &str) -> String {
    format!(
        "{HEAD}<rs:ln rel=\"up\" href=\"http://example.com/dataset1/capabilitylist.xml\"/>\
         <rs:md capability=\"change-notification\" from=\"2013-01-03T00:00:00Z\"/>{entries}</urlset>"
    )
}

#[test]
fn change_notification_announces_the_change_lists_of_its_set() {
    let lists = ["http://example.com/dataset1/changes1.xml", "http://example.com/dataset1/changes2.xml"];
    let channel = channel_of(1, Capability::ChangeNotification, &lists);
    let found = read(change_notification(CHANGES).as_bytes(), &channel).unwrap().announced;

    assert_eq!(found, [document(lists[0]), document(lists[1])]);
}

#[test]
fn change_notification_without_change_list_announces_resources() {
    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let found = read(change_notification(CHANGES).as_bytes(), &channel).unwrap().announced;

    let hashes = Digest::parse_list("md5:1584abdf8ebdc9802ac0c6a7402c03b6").0;
    let resources = vec![
        (uri("http://example.com/res1"), AnnouncedChange { hashes, ..Change::Updated.into() }),
        (uri("http://example.com/res2"), Change::Deleted.into()),
        (uri("http://example.com/res3"), Change::Updated.into()),
    ];
    assert_eq!(found, [Announcement::Resources(resources.into_iter().collect())]);
}

/// A notification must not send us to hosts that the set is not about.
#[test]
fn change_notification_of_other_hosts_is_a_poll() {
    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let entries = "<url><loc>http://intranet.example.net/admin</loc><rs:md change=\"updated\"/></url>\
                   <url><loc>http://example.com:8080/other-port</loc><rs:md change=\"updated\"/></url>\
                   <url><loc>http://example.com/res1</loc><rs:md change=\"created\"/></url>";
    let found = read(change_notification(entries).as_bytes(), &channel).unwrap().announced;

    assert_eq!(
        found,
        [
            Announcement::Resources(BTreeMap::from([(uri("http://example.com/res1"), Change::Created.into())])),
            Announcement::Everything
        ]
    );
}

#[test]
fn an_untyped_document_is_known_by_its_entries_and_channel() {
    let plain = |entries: &str| format!("{HEAD}{entries}</urlset>");
    let entry =
        "<url><loc>http://example.com/dataset1/l.xml</loc><rs:md change=\"updated\" capability=\"changelist\"/></url>";
    assert_eq!(announced_by(&plain(entry)), [document("http://example.com/dataset1/l.xml")]);

    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let found = read(plain(CHANGES).as_bytes(), &channel).unwrap().announced;
    assert!(matches!(&found[..], [Announcement::Resources(resources)] if resources.len() == 3), "{found:?}");
    assert_eq!(announced_by(&plain(CHANGES)), [Announcement::Everything], "resources on a channel for documents");
}

/// Some hubs fetch the topic themselves, and Sources serve other things there.
#[test]
fn any_other_document_announces_everything() {
    let list = format!("{HEAD}<rs:md capability=\"resourcelist\"/>{CHANGES}</urlset>");
    assert_eq!(announced_by(&list), [Announcement::Everything]);
}

#[test]
fn what_is_no_document_is_an_error() {
    let bomb = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE urlset [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">\
         <!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;\">]>{HEAD}<rs:md capability=\"framework-notification\"/>\
         <url><loc>http://example.com/&c;</loc><rs:md change=\"created\" capability=\"resourcelist\"/></url></urlset>"
    );
    let cut = announcing("resourcelist", "created");
    let deep = format!("{HEAD}{}", "<a>".repeat(1000));
    let long = framework_document(&format!("<url><loc>http://example.com/{}</loc></url>", "a".repeat(1 << 20)));
    let wrong = [
        "hello",
        "{\"loc\": 1}",
        "<html><body>login</body></html>",
        "<feed xmlns=\"http://www.w3.org/2005/Atom\"/>",
        &cut[..cut.len() - 5],
        &bomb,
        &deep,
        &long,
        "\u{0}\u{1}\u{2}",
    ];
    for body in wrong {
        assert!(read(body.as_bytes(), &framework()).is_err(), "{}", &body[..body.len().min(60)]);
    }
    let mut inflated = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut inflated, &vec![b' '; 64 << 20]).unwrap();
    let bomb = inflated.finish().unwrap();
    assert!(bomb.len() < 1 << 20 && read(&bomb, &framework()).is_err(), "a gzip bomb");
}

#[test]
fn one_entry_that_cannot_be_understood_makes_a_poll_of_the_rest() {
    let body = framework_document(
        "<url><loc>http://example.com/l.xml</loc><rs:md change=\"updated\" capability=\"changelist\"/></url><url><loc/></url>",
    );
    assert_eq!(announced_by(&body), [Announcement::Everything, document("http://example.com/l.xml")]);
}

fn dated(capability: &str, minute: u32) -> String {
    framework_document(&format!(
        "<url><loc>http://example.com/doc.xml</loc><rs:md change=\"updated\" datetime=\"2013-01-03T00:{minute:02}:00Z\" \
         capability=\"{capability}\"/></url>"
    ))
}

#[test]
fn a_replayed_delivery_changes_nothing() {
    let mut inbox = NotificationInbox::default();
    let body = dated("changelist", 1);
    assert_eq!(inbox.take(body.as_bytes(), &framework()).unwrap().len(), 1);

    assert_eq!(inbox.take(body.as_bytes(), &framework()).unwrap(), []);
    assert_eq!(inbox.take(dated("changelist", 2).as_bytes(), &framework()).unwrap().len(), 1);
    let other = channel_of(2, Capability::FrameworkNotification, &[]);
    assert_eq!(inbox.take(body.as_bytes(), &other).unwrap().len(), 1, "another channel");
    assert_eq!(inbox.take(body.as_bytes(), &framework()).unwrap(), []);
}

/// Without times the same bytes may announce the next change of the kind.
#[test]
fn an_undated_notification_counts_each_time() {
    let mut inbox = NotificationInbox::default();
    for _ in 0..3 {
        let body = announcing("changelist", "updated");
        let announced = inbox.take(body.as_bytes(), &framework()).unwrap();
        assert_eq!(announced, [document("http://example.com/dataset1/doc.xml")]);
    }
}

#[test]
fn channels_of_every_set_with_their_change_lists() {
    let set = |number: u32, channels: Vec<Channel>| Set {
        capability_list: Some(uri(&format!("http://example.com/dataset{number}/capabilitylist.xml"))),
        described_by: None,
        documents: vec![
            (Capability::ResourceList, DocumentLocation::Uri(uri("http://example.com/list.xml"))),
            (Capability::ChangeList, DocumentLocation::Uri(uri(&format!("http://example.com/changes{number}.xml")))),
        ],
        channels,
    };
    let source = Source {
        entry: None,
        own_authority: Some("example.com".into()),
        moved_to: None,
        description: None,
        page: None,
        sets: vec![set(1, vec![framework().channel]), set(2, vec![]), set(3, vec![framework().channel])],
        missing: Vec::new(),
        deviations: Vec::new(),
    };
    let SetChannels { all: found, are_complete } = channels(&source, None);

    assert!(!are_complete, "the second set has none");
    assert_eq!(found.len(), 2, "one for each set, although the channel is the same");
    assert_eq!(found[1].set, Some(uri("http://example.com/dataset3/capabilitylist.xml")));
    assert_eq!(found[1].change_lists, [DocumentLocation::Uri(uri("http://example.com/changes3.xml"))]);
    assert_eq!(&*found[0].own_authority, "example.com");
    assert_eq!(&*channels(&source, Some("data.example.com")).all[0].own_authority, "data.example.com");
}
