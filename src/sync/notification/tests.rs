//! The table of what is looked at, a test for each row, and what comes twice, too fast or broken.

use super::*;
use std::time::{Duration, Instant};

const HEAD: &str =
    "<urlset xmlns=\"http://www.sitemaps.org/schemas/sitemap/0.9\" xmlns:rs=\"http://www.openarchives.org/rs/terms/\">";

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

fn announced(capability: &str, change: &str) -> String {
    let (capability, change) = (attribute("capability", capability), attribute("change", change));
    framework_document(&format!(
        "<url><loc>http://example.com/dataset1/doc.xml</loc><rs:md{change}{capability}/></url>"
    ))
}

fn attribute(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!(" {name}=\"{value}\"") }
}

fn looks(body: &str) -> Vec<Look> {
    read(body.as_bytes(), &framework()).unwrap().looks
}

fn document(raw: &str) -> Look {
    Look::Document { document: uri(raw), index: None }
}

#[track_caller]
fn is_looked_at_itself(capability: &str) {
    for change in ["created", "updated"] {
        assert_eq!(
            looks(&announced(capability, change)),
            [document("http://example.com/dataset1/doc.xml")],
            "{change}"
        );
        let below_index = framework_document(&format!(
            "<url><loc>http://example.com/dataset1/doc.xml</loc><rs:md change=\"{change}\" capability=\"{capability}\"/>\
             <rs:ln rel=\"index\" href=\"http://example.com/dataset1/index.xml\"/></url>"
        ));
        let index = Some(uri("http://example.com/dataset1/index.xml"));
        let document = uri("http://example.com/dataset1/doc.xml");
        assert_eq!(looks(&below_index), [Look::Document { document, index }], "{change}");
    }
    assert_eq!(looks(&announced(capability, "deleted")), [Look::Poll]);
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
        assert_eq!(looks(&announced("capabilitylist", change)), [Look::Rediscover], "{change}");
    }
}

#[test]
fn source_description_is_discovered_again() {
    for change in ["created", "updated", "deleted"] {
        let mut inbox = Inbox::new(Instant::now());
        let body = announced("description", change);
        assert_eq!(inbox.take(body.as_bytes(), &framework(), Instant::now()).unwrap(), Taken::New);
        assert_eq!(taken(&mut inbox, Instant::now()), [Look::Rediscover], "{change}");
    }
}

#[test]
fn any_other_pair_is_one_poll() {
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
        assert_eq!(looks(&announced(capability, change)), [Look::Poll], "{capability} {change}");
    }
    let several = others.map(|(capability, _)| {
        format!("<url><loc>http://example.com/x</loc><rs:md{}/></url>", attribute("capability", capability))
    });
    assert_eq!(looks(&framework_document(&several.concat())), [Look::Poll], "one for all");
}

#[test]
fn an_empty_body_is_a_reason_to_look() {
    for body in ["", " \r\n"] {
        assert_eq!(looks(body), [Look::Poll]);
    }
    assert_eq!(looks(&framework_document("")), [Look::Poll]);
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

    assert_eq!(notification.looks, [document("http://example.com/resourceset1/resourcelist.xml")]);
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
        notification.looks,
        [
            Look::Document { document: uri("http://example.com/dataset1/resourcelist.xml"), index },
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
fn change_notification_of_a_set_with_change_lists_is_a_look_at_these() {
    let lists = ["http://example.com/dataset1/changes1.xml", "http://example.com/dataset1/changes2.xml"];
    let channel = channel_of(1, Capability::ChangeNotification, &lists);
    let found = read(change_notification(CHANGES).as_bytes(), &channel).unwrap().looks;

    assert_eq!(found, [document(lists[0]), document(lists[1])]);
}

#[test]
fn change_notification_of_a_set_without_change_list_is_a_look_at_the_resources() {
    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let found = read(change_notification(CHANGES).as_bytes(), &channel).unwrap().looks;

    let resources = vec![
        (uri("http://example.com/res1"), Change::Updated),
        (uri("http://example.com/res2"), Change::Deleted),
        (uri("http://example.com/res3"), Change::Updated),
    ];
    assert_eq!(found, [Look::Resources(resources)]);
}

/// A notification must not send us to hosts that the set is not about.
#[test]
fn change_notification_of_other_hosts_is_a_poll() {
    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let entries = "<url><loc>http://intranet.example.net/admin</loc><rs:md change=\"updated\"/></url>\
                   <url><loc>http://example.com:8080/other-port</loc><rs:md change=\"updated\"/></url>\
                   <url><loc>http://example.com/res1</loc><rs:md change=\"created\"/></url>";
    let found = read(change_notification(entries).as_bytes(), &channel).unwrap().looks;

    assert_eq!(found, [Look::Resources(vec![(uri("http://example.com/res1"), Change::Created)]), Look::Poll]);
}

#[test]
fn a_document_that_does_not_say_what_it_is_is_known_by_its_entries_and_its_channel() {
    let plain = |entries: &str| format!("{HEAD}{entries}</urlset>");
    let entry =
        "<url><loc>http://example.com/dataset1/l.xml</loc><rs:md change=\"updated\" capability=\"changelist\"/></url>";
    assert_eq!(looks(&plain(entry)), [document("http://example.com/dataset1/l.xml")]);

    let channel = channel_of(1, Capability::ChangeNotification, &[]);
    let found = read(plain(CHANGES).as_bytes(), &channel).unwrap().looks;
    assert!(matches!(&found[..], [Look::Resources(resources)] if resources.len() == 3), "{found:?}");
    assert_eq!(looks(&plain(CHANGES)), [Look::Poll], "resources on a channel for documents");
}

/// Some hubs fetch the topic themselves, and Sources serve other things there.
#[test]
fn any_other_document_is_a_reason_to_look() {
    let list = format!("{HEAD}<rs:md capability=\"resourcelist\"/>{CHANGES}</urlset>");
    assert_eq!(looks(&list), [Look::Poll]);
}

#[test]
fn what_is_no_document_is_an_error() {
    let bomb = format!(
        "<?xml version=\"1.0\"?><!DOCTYPE urlset [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;\">\
         <!ENTITY c \"&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;\">]>{HEAD}<rs:md capability=\"framework-notification\"/>\
         <url><loc>http://example.com/&c;</loc><rs:md change=\"created\" capability=\"resourcelist\"/></url></urlset>"
    );
    let cut = announced("resourcelist", "created");
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
    assert_eq!(looks(&body), [Look::Poll, document("http://example.com/l.xml")]);
}

#[test]
fn what_names_more_documents_than_can_be_looked_at_is_a_poll() {
    let entry = |number: usize| {
        format!(
            "<url><loc>http://example.com/{number}</loc><rs:md change=\"updated\" capability=\"changelist\"/></url>"
        )
    };
    let named = |many: usize| framework_document(&(0..many).map(entry).collect::<String>());

    assert_eq!(looks(&named(MOST_NAMED)).len(), MOST_NAMED);
    assert_eq!(looks(&named(MOST_NAMED + 1)), [Look::Poll]);
    assert_eq!(looks(&named(MOST_ENTRIES + 5)), [Look::Poll]);
}

/// Everything that may be looked at now.
fn taken(inbox: &mut Inbox, now: Instant) -> Vec<Look> {
    std::iter::from_fn(|| inbox.next(now)).collect()
}

fn dated(capability: &str, minute: u32) -> String {
    framework_document(&format!(
        "<url><loc>http://example.com/doc.xml</loc><rs:md change=\"updated\" datetime=\"2013-01-03T00:{minute:02}:00Z\" \
         capability=\"{capability}\"/></url>"
    ))
}

#[test]
fn a_replayed_delivery_changes_nothing() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    let body = dated("changelist", 1);
    assert_eq!(inbox.take(body.as_bytes(), &framework(), now).unwrap(), Taken::New);
    assert_eq!(taken(&mut inbox, now).len(), 1);

    for seconds in [0, 1, 86_400] {
        let now = now + Duration::from_secs(seconds);
        assert_eq!(inbox.take(body.as_bytes(), &framework(), now).unwrap(), Taken::Known);
        assert_eq!((taken(&mut inbox, now), inbox.due(now)), (vec![], None));
    }
    assert_eq!(inbox.take(dated("changelist", 2).as_bytes(), &framework(), now).unwrap(), Taken::New);
}

/// Without times the same octets may announce the next change of the kind.
#[test]
fn an_undated_notification_counts_each_time() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    for _ in 0..3 {
        let body = announced("changelist", "updated");
        assert_eq!(inbox.take(body.as_bytes(), &framework(), now).unwrap(), Taken::New);
        assert_eq!(taken(&mut inbox, now), [document("http://example.com/dataset1/doc.xml")]);
    }
}

#[test]
fn a_change_of_the_source_description_comes_on_all_channels_and_is_acted_on_once() {
    let now = Instant::now();
    for body in [dated("description", 1), announced("description", "updated")] {
        let mut inbox = Inbox::new(now);
        let mut acted = 0;
        for set in 1..=5 {
            let channel = channel_of(set, Capability::FrameworkNotification, &[]);
            let when = now + Duration::from_secs(u64::from(set) * 20);
            let expected = if set == 1 { Taken::New } else { Taken::Known };
            assert_eq!(inbox.take(body.as_bytes(), &channel, when).unwrap(), expected, "{set}");
            acted += taken(&mut inbox, when).len();
        }
        assert_eq!(acted, 1);
    }
}

#[test]
fn the_next_change_of_the_source_description_is_acted_on_again() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    let (first, second) = (framework(), channel_of(2, Capability::FrameworkNotification, &[]));
    let body = announced("description", "updated");
    let mut take = |channel: &SetChannel, seconds: u64| {
        let when = now + Duration::from_secs(seconds);
        let result = inbox.take(body.as_bytes(), channel, when).unwrap();
        taken(&mut inbox, when);
        result
    };

    assert_eq!((take(&first, 0), take(&second, 1)), (Taken::New, Taken::Known));
    assert_eq!((take(&second, 60), take(&first, 61)), (Taken::New, Taken::Known));
    assert_eq!(take(&second, 3600), Taken::New);
}

#[test]
fn what_is_announced_twice_before_it_is_looked_at_is_looked_at_once() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    let resources = channel_of(2, Capability::ChangeNotification, &[]);
    for _ in 0..3 {
        inbox.take(announced("changelist", "updated").as_bytes(), &framework(), now).unwrap();
        inbox.take(b"", &framework(), now).unwrap();
        inbox.take(change_notification(CHANGES).as_bytes(), &resources, now).unwrap();
    }
    let found = taken(&mut inbox, now);

    assert!(
        matches!(&found[..], [Look::Document { .. }, Look::Resources(resources), Look::Poll] if resources.len() == 3),
        "{found:?}"
    );
}

#[test]
fn discovery_looks_at_everything() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    for body in [announced("changelist", "updated"), String::new(), announced("capabilitylist", "updated")] {
        inbox.take(body.as_bytes(), &framework(), now).unwrap();
    }
    assert_eq!(taken(&mut inbox, now), [Look::Rediscover]);
}

/// Whoever knows a path can make us ask the Source, but not as often as they like; and nothing is lost.
#[test]
fn what_comes_too_fast_is_looked_at_later_and_together() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    let mut looks = 0;
    for _ in 0..1000 {
        inbox.take(b"", &framework(), now).unwrap();
        looks += taken(&mut inbox, now).len();
    }
    assert_eq!(looks, 120);

    let due = inbox.due(now).unwrap();
    assert_eq!(due, now + Duration::from_millis(500));
    assert_eq!(taken(&mut inbox, due), [Look::Poll]);
    assert_eq!(inbox.due(due), None);
    inbox.take(b"", &framework(), due).unwrap();
    assert_eq!(taken(&mut inbox, now + Duration::from_secs(3600)).len(), 1);
    assert_eq!(inbox.due(now + Duration::from_secs(3600)), None);
}

#[test]
fn too_many_documents_become_one_poll() {
    let now = Instant::now();
    let mut inbox = Inbox::new(now);
    let entries: String = (0..1000)
        .map(|n| {
            format!("<url><loc>http://example.com/{n}</loc><rs:md change=\"updated\" capability=\"changelist\"/></url>")
        })
        .collect();
    inbox.take(framework_document(&entries).as_bytes(), &framework(), now).unwrap();
    let found = taken(&mut inbox, now);

    assert_eq!((found.len(), found.last()), (65, Some(&Look::Poll)));
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
        sets: vec![set(1, vec![framework().channel]), set(2, vec![]), set(3, vec![framework().channel])],
        missing: Vec::new(),
        deviations: Vec::new(),
    };
    let found = channels(&source, None);

    assert_eq!(found.len(), 2, "one for each set, although the channel is the same");
    assert_eq!(found[1].set, Some(uri("http://example.com/dataset3/capabilitylist.xml")));
    assert_eq!(found[1].change_lists, [DocumentLocation::Uri(uri("http://example.com/changes3.xml"))]);
    assert_eq!(&*found[0].own_authority, "example.com");
    assert_eq!(&*channels(&source, Some("data.example.com"))[0].own_authority, "data.example.com");
}
