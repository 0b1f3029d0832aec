//! Notifications from the Source through a hub to the mount: the change is there long before anybody polls.

mod common;

use common::flask_hub::FlaskHub;
use common::hub::{Hub, Manner, get, post, signature};
use common::mounted::Mounted;
use common::source::{Resource, Source, URLSET};
use common::{eventually, eventually_within};
use std::fs;
use std::time::{Duration, Instant};

/// These tests do not poll, and the hub is at another port of this machine.
const OPTIONS: &str = "poll=1h,allow-host=127.0.0.1,websub-listen=127.0.0.1:0";

/// A Source with one file and a Framework Notification channel at some hub.
struct Announcing {
    source: Source,
    hub: String,
}

impl Announcing {
    fn at(hub: String) -> Announcing {
        let announcing = Announcing { source: Source::start(), hub };
        announcing.source.put("a.txt", Resource::new("first"));
        announcing.offer_channel();
        announcing
    }

    fn topic(&self) -> String {
        format!("{}framework/", self.source.url())
    }

    fn capability_list(&self) -> String {
        format!("{}capabilitylist.xml", self.source.url())
    }

    /// Publishes a Capability List with these channels.
    fn offer(&self, channels: &str) {
        let base = self.source.url();
        self.source.document(
            "capabilitylist.xml",
            format!(
                "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
                 <url><loc>{base}resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>{channels}</urlset>"
            ),
        );
    }

    fn offer_channel(&self) {
        self.offer(&format!(
            "<url><loc>{}</loc><rs:ln rel=\"hub\" href=\"{}\"/><rs:md capability=\"framework-notification\"/></url>",
            self.topic(),
            self.hub
        ));
    }

    /// Says that there is a new Resource List, as the standard's example 1 does; `datetime` is left out where it is empty.
    fn notification(&self, datetime: &str) -> String {
        let datetime = if datetime.is_empty() { String::new() } else { format!(" datetime=\"{datetime}\"") };
        format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{}\"/><rs:md capability=\"framework-notification\"/><url><loc>{}</loc>\
             <rs:md change=\"created\"{datetime} capability=\"resourcelist\"/></url></urlset>",
            self.capability_list(),
            self.source.list_url()
        )
    }

    fn announce_at(&self, hub: &Hub) {
        hub.publish(&self.topic(), &self.capability_list(), &self.notification(""));
    }

    /// `Link` as a hub relays it (example 7).
    fn link(&self) -> String {
        format!("<{}> ; rel=\"self\", <{}> ; rel=\"resourcesync\"", self.topic(), self.capability_list())
    }
}

fn shows(mounted: &Mounted, file: &str, bytes: &str) -> bool {
    fs::read(mounted.join(file)).is_ok_and(|read| read == bytes.as_bytes())
}

/// Publishes another version and announces it until it is shown: a subscription that is being renewed misses nothing.
#[track_caller]
fn assert_notified(announcing: &Announcing, hub: &Hub, mounted: &Mounted, version: &str) {
    announcing.source.put("a.txt", Resource::new(version));
    announcing.announce_at(hub);
    eventually("the announced version is shown", || shows(mounted, "a.txt", version));
}

/// Promise: what the Source announces is there at once. The hub verifies before or after it accepts the subscription.
#[test]
fn a_notification_shows_the_change_at_once() {
    for verifies_first in [false, true] {
        let hub = Hub::start();
        let announcing = Announcing::at(hub.url());
        hub.behave(Manner { verifies_first, ..Manner::default() });
        let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
        hub.wait_for_subscriber(&announcing.topic());
        assert!(shows(&mounted, "a.txt", "first"));

        announcing.source.put("a.txt", Resource::new("second"));
        announcing.source.put("new.txt", Resource::new("new"));
        announcing.announce_at(&hub);

        eventually("the change is there", || shows(&mounted, "a.txt", "second") && shows(&mounted, "new.txt", "new"));
        eventually("the hub knows that it was delivered", || hub.delivered() == [202]);
        let asked = &hub.asked()[0];
        assert_eq!((asked.mode.as_str(), &asked.topic), ("subscribe", &announcing.topic()));
        assert_eq!(asked.lease.as_deref(), Some("86400"));
        assert!(asked.secret.is_some() && asked.callback.starts_with("http://127.0.0.1:"));
    }
}

/// A notification may be faster than the document, or than a cache on the way: it is looked again, past caches.
#[test]
fn a_document_without_the_change_is_requested_past_caches() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let source = &announcing.source;
    let mounted = Mounted::new(&source.url(), OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());
    source.wait_for_quiet();
    source.take_log();
    let looks = || source.requests_of("resourcelist.xml");
    announcing.announce_at(&hub);
    eventually("it is looked at once", || !looks().is_empty());

    source.put("a.txt", Resource::new("second"));

    eventually("the change is there", || shows(&mounted, "a.txt", "second"));
    let past_caches: Vec<_> = looks().iter().map(|look| look.field("cache-control") == Some("no-cache")).collect();
    assert!(!past_caches[0] && past_caches.len() > 1 && past_caches[1..].iter().all(|it| *it), "{past_caches:?}");
}

/// Polling is rarer only while notifications do arrive.
#[test]
fn a_channel_is_alive_once_something_has_come_on_it() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    let callback = hub.wait_for_subscriber(&announcing.topic());
    let shown = || mounted.status();
    assert_eq!(shown()["sync"]["channels_live"], false, "a subscription alone shows nothing");

    assert_notified(&announcing, &hub, &mounted, "second");
    eventually("it lives", || shown()["sync"]["channels_live"] == true);
    let channel = &shown()["notifications"]["channels"][0];
    assert_eq!((&channel["standing"], &channel["deliveries"]), (&"active".into(), &1.into()));

    let topic: String = url::form_urlencoded::byte_serialize(announcing.topic().as_bytes()).collect();
    assert_eq!(get(&format!("{callback}?hub.mode=denied&hub.topic={topic}")), 200);
    eventually("it does not", || shown()["sync"]["channels_live"] == false);
}

/// One subscription for each mounted set and channel: those of other sets are none of ours.
#[test]
fn channels_of_mounted_sets_alone_are_subscribed_to() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let base = announcing.source.url();
    announcing.source.document(
        "second/capabilitylist.xml",
        format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{base}.well-known/resourcesync\"/><rs:md capability=\"capabilitylist\"/>\
             <url><loc>{base}second/resourcelist.xml</loc><rs:md capability=\"resourcelist\"/></url>\
             <url><loc>{base}second/framework/</loc><rs:ln rel=\"hub\" href=\"{}\"/></url></urlset>",
            hub.url()
        ),
    );
    announcing.source.document(
        "second/resourcelist.xml",
        format!("{URLSET}<rs:md capability=\"resourcelist\"/><url><loc>{base}second/b.txt</loc></url></urlset>"),
    );
    let sets = ["capabilitylist.xml", "second/capabilitylist.xml"]
        .map(|list| format!("<url><loc>{base}{list}</loc><rs:md capability=\"capabilitylist\"/></url>"));
    announcing.source.document(
        ".well-known/resourcesync",
        format!("{URLSET}<rs:md capability=\"description\"/>{}</urlset>", sets.concat()),
    );

    let one = Mounted::new(&base, &format!("{OPTIONS},set={base}second/capabilitylist.xml"));
    hub.wait_for_subscriber(&format!("{base}second/framework/"));
    assert_eq!(hub.asked().len(), 1);
    one.unmount();
    let _both = Mounted::new(&base, OPTIONS);
    hub.wait_for_subscriber(&format!("{base}second/framework/"));
    hub.wait_for_subscriber(&announcing.topic());
    let callbacks: std::collections::BTreeSet<_> = hub.asked().into_iter().map(|asked| asked.callback).collect();
    assert_eq!(callbacks.len(), 3, "each mount and set has its own: {callbacks:?}");
}

#[test]
fn a_lease_is_renewed_before_it_ends() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    hub.behave(Manner { lease: 3, ..Manner::default() });
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());

    eventually("the lease is renewed twice", || hub.asked().len() >= 3);

    let asked = hub.asked();
    for (one, next) in asked.iter().zip(&asked[1..]) {
        let after = next.at - one.at;
        assert!(after >= Duration::from_millis(1900), "renewed at two thirds of 3 s, not after {after:?}");
        assert_eq!((&one.callback, &one.secret, &one.mode), (&next.callback, &next.secret, &next.mode));
    }
    assert_notified(&announcing, &hub, &mounted, "second");
}

#[test]
fn a_hub_that_denies_is_believed_and_polling_goes_on() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    hub.behave(Manner { denies: true, ..Manner::default() });
    let mounted = Mounted::new(&announcing.source.url(), &OPTIONS.replace("poll=1h", "poll=1s"));
    eventually("the mount tells of the denial", || mounted.said().contains("denies"));

    let asked = &hub.asked()[0];
    let signed = signature(asked.secret.as_ref().unwrap(), b"");
    let headers = [("Link", announcing.link()), ("X-Hub-Signature", signed)];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(post(&asked.callback, &headers, b""), 410);
    announcing.source.put("a.txt", Resource::new("second"));
    eventually("the change is found by polling", || shows(&mounted, "a.txt", "second"));
    assert_eq!(hub.asked().len(), 1, "nobody asks again soon");
}

#[test]
fn a_hub_that_refuses_is_asked_again() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    hub.behave(Manner { status: 503, ..Manner::default() });
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    eventually("the mount tells of the refusal", || mounted.said().contains("refuses"));

    hub.behave(Manner::default());
    eventually_within(Duration::from_secs(60), "the hub is asked again", || hub.subscribers(&announcing.topic()) == 1);
    assert_notified(&announcing, &hub, &mounted, "second");
}

/// Promise: a callback outlives a restart, whether the process was asked to end or killed; a hub that goes on delivering to it
/// is heard.
#[test]
fn a_callback_outlives_a_restart() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = OPTIONS.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
    let mounted = Mounted::new(&announcing.source.url(), &options);
    let callback = hub.wait_for_subscriber(&announcing.topic());
    let secret = hub.last_secret();

    mounted.kill();
    mounted.start();
    eventually("subscribed again", || hub.asked().len() == 2 && hub.asked()[1].verified == Some(true));
    assert_eq!((hub.asked()[1].callback.clone(), hub.last_secret()), (callback.clone(), secret.clone()));
    assert_notified(&announcing, &hub, &mounted, "second");

    mounted.remount();
    eventually("subscribed again", || hub.asked().len() == 4 && hub.asked()[3].verified == Some(true));
    assert_eq!((hub.asked()[3].callback.clone(), hub.last_secret()), (callback, secret));
    assert_notified(&announcing, &hub, &mounted, "third");
}

/// Behind a proxy hubs get the address of the proxy.
#[test]
fn a_callback_is_below_the_url_that_was_named() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let callback = format!("http://localhost:{port}/hooks/of/this/mount");
    let options = OPTIONS.replace("127.0.0.1:0", &format!("127.0.0.1:{port},websub-callback={callback}"));
    let mounted = Mounted::new(&announcing.source.url(), &options);

    let callback_given = hub.wait_for_subscriber(&announcing.topic());
    assert!(callback_given.starts_with(&format!("{callback}/")), "{callback_given}");
    assert_notified(&announcing, &hub, &mounted, "second");
}

#[test]
fn an_unmount_unsubscribes() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    let callback = hub.wait_for_subscriber(&announcing.topic());

    mounted.unmount();

    let asked = hub.asked();
    let last = asked.last().unwrap();
    assert_eq!((last.mode.as_str(), &last.callback), ("unsubscribe", &callback));
    assert_eq!(hub.subscribers(&announcing.topic()), 0);
}

#[test]
fn a_signal_unsubscribes_too() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());

    mounted.signal(libc::SIGTERM);

    eventually("the hub has nobody left", || hub.subscribers(&announcing.topic()) == 0);
}

/// Promise: an unmount waits 5 s for hubs at most, and a delivery meanwhile is answered by 410.
#[test]
fn an_unmount_does_not_wait_for_a_dead_hub() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    let callback = hub.wait_for_subscriber(&announcing.topic());
    hub.behave(Manner { hangs: true, ..Manner::default() });

    let began = Instant::now();
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| mounted.unmount());
        eventually("the hub is asked to unsubscribe", || hub.asked().len() == 2);
        assert_eq!(post(&callback, &[("Link", &announcing.link())], b""), 410);
        unmounting.join().unwrap();
    });
    let took = began.elapsed();
    assert!((Duration::from_secs(4)..Duration::from_secs(15)).contains(&took), "{took:?}");
}

/// Promise: a forged, replayed or malformed delivery changes nothing: not even the Source is asked.
#[test]
fn hostile_deliveries_change_nothing() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    let callback = hub.wait_for_subscriber(&announcing.topic());
    let secret = hub.last_secret().unwrap();
    let (link, dated) = (announcing.link(), announcing.notification("2024-05-01T10:00:00Z"));
    let deliver = |link: &str, signature: &str, body: &[u8]| {
        post(&callback, &[("Link", link), ("X-Hub-Signature", signature)], body)
    };
    announcing.source.put("a.txt", Resource::new("second"));
    assert_eq!(deliver(&link, &signature(&secret, dated.as_bytes()), dated.as_bytes()), 202);
    eventually("a genuine one is heard", || shows(&mounted, "a.txt", "second"));
    announcing.source.wait_for_quiet();
    announcing.source.take_log();

    announcing.source.put("a.txt", Resource::new("third"));
    let undated = announcing.notification("");
    let bomb = format!(
        "<!DOCTYPE urlset [<!ENTITY a \"{}\"><!ENTITY b \"{}\">]>{}",
        "a".repeat(1000),
        "&a;".repeat(1000),
        undated.replace("<loc>", "<loc>&b;")
    );
    let other_topic = link.replace("/framework/", "/other/");
    let elsewhere = callback.replace(callback.rsplit('/').next().unwrap(), &"0".repeat(48));
    assert_eq!(deliver(&link, "", undated.as_bytes()), 202);
    assert_eq!(post(&callback, &[("Link", &link)], undated.as_bytes()), 202);
    assert_eq!(deliver(&link, &signature("wrong", undated.as_bytes()), undated.as_bytes()), 202);
    assert_eq!(deliver(&other_topic, &signature(&secret, undated.as_bytes()), undated.as_bytes()), 202);
    assert_eq!(post(&elsewhere, &[("Link", &link)], undated.as_bytes()), 404);
    assert_eq!(post(&callback, &[("Link", &link)], &vec![b' '; 1 << 20 | 1]), 413);
    for body in ["hello", "<html/>", &undated[..undated.len() - 3], &bomb] {
        assert_eq!(deliver(&link, &signature(&secret, body.as_bytes()), body.as_bytes()), 202);
    }
    let signed = signature(&secret, dated.as_bytes());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                for _ in 0..50 {
                    // As a hub does that is told to come again.
                    let answers = std::iter::repeat_with(|| deliver(&link, &signed, dated.as_bytes()));
                    assert_eq!(answers.take(1000).find(|answer| *answer != 503), Some(202));
                }
            });
        }
    });

    let counts = || {
        let seen = &mounted.status()["notifications"]["seen"];
        ["delivered", "forged", "wrong-topic", "unknown", "too-large", "malformed", "replayed"]
            .map(|name| seen[name].as_u64().unwrap_or(0))
    };
    eventually("all deliveries are looked at", || counts()[6] >= 1000);
    announcing.source.wait_for_quiet();
    assert_eq!(announcing.source.log(), [], "a thousand replays and all others");
    assert_eq!(counts(), [1 + 4 + 1000, 3, 1, 1, 1, 4, 1000]);
    assert!(shows(&mounted, "a.txt", "second"));
    assert_notified(&announcing, &hub, &mounted, "fourth");
}

/// Whoever has a path and a signed notification without a time can make the mount ask, but not often.
#[test]
fn a_flood_of_notifications_is_a_trickle_at_the_source() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    let callback = hub.wait_for_subscriber(&announcing.topic());
    announcing.source.wait_for_quiet();
    announcing.source.take_log();
    let body = announcing.notification("");
    let (link, signed) = (announcing.link(), signature(&hub.last_secret().unwrap(), body.as_bytes()));

    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let status = post(&callback, &[("Link", &link), ("X-Hub-Signature", &signed)], body.as_bytes());
                    assert!(matches!(status, 202 | 503), "{status}");
                }
            });
        }
    });

    announcing.source.put("a.txt", Resource::new("second"));
    announcing.announce_at(&hub);
    eventually("the last one is heard", || shows(&mounted, "a.txt", "second"));
    let asked = announcing.source.requests_of("resourcelist.xml").len();
    assert!(asked <= 300, "asked {asked} times for a thousand notifications");
}

#[test]
fn a_channel_that_is_gone_is_left() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());

    announcing.offer("");
    let capability_list = announcing.capability_list();
    let notification = format!(
        "{URLSET}<rs:md capability=\"framework-notification\"/><url><loc>{capability_list}</loc>\
         <rs:md change=\"updated\" capability=\"capabilitylist\"/></url></urlset>"
    );
    hub.publish(&announcing.topic(), &capability_list, &notification);

    eventually("the hub knows", || hub.subscribers(&announcing.topic()) == 0);
    assert!(shows(&mounted, "a.txt", "first"));
}

#[test]
fn without_the_option_no_hub_is_asked() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), "poll=1h,allow-host=127.0.0.1");
    announcing.source.wait_for_quiet();

    assert!(shows(&mounted, "a.txt", "first"));
    assert!(hub.asked().is_empty());
}

/// A Source cannot send us to a hub at a private address.
#[test]
fn a_hub_that_nobody_allowed_is_not_reached() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let mounted = Mounted::new(&announcing.source.url(), "poll=1h,websub-listen=127.0.0.1:0");
    eventually("the mount says so", || mounted.said().contains("allow-host=127.0.0.1"));

    assert!(hub.asked().is_empty());
}

#[test]
fn an_address_nothing_can_listen_on_fails_before_the_mount() {
    let source = Source::start();
    source.put("a.txt", Resource::new("first"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (options, reason) in [
        (format!("websub-listen={address}"), address.as_str()),
        ("websub-listen=0.0.0.0:0".to_owned(), "websub-callback=URL"),
        ("websub-callback=http://example.org/".to_owned(), "websub-listen=HOST:PORT"),
        ("websub-listen=8090".to_owned(), "HOST:PORT"),
    ] {
        let said = Mounted::prepared(&source.url(), &options).try_start().unwrap_err();
        assert!(said.contains(reason), "{options}: {said}");
    }
}

/// The real hub of another project: it fetches the topic when the Source says publish, or relays what the Source posts.
#[test]
fn flask_websub_delivers() {
    let hub = FlaskHub::start();
    let announcing = Announcing::at(hub.url());
    let (topic, base) = (announcing.topic(), announcing.source.url());
    let mounted = Mounted::new(&base, OPTIONS);
    hub.wait_for_subscriber(&topic);
    let links = format!("<{topic}>; rel=\"self\", <{}>; rel=\"hub\"", hub.url());

    announcing.source.put("a.txt", Resource::new("second"));
    let headers = [("Content-Type", "application/xml"), ("Link", links.as_str())];
    assert_eq!(post(&hub.relay_url(), &headers, announcing.notification("").as_bytes()), 204);
    eventually("what the Source posts is heard", || shows(&mounted, "a.txt", "second"));

    let publish = format!("hub.mode=publish&hub.topic={topic}");
    let form = [("Content-Type", "application/x-www-form-urlencoded")];
    for (version, topic_says) in [("third", announcing.notification("")), ("fourth", String::new())] {
        let headers = format!("Link: {links}\r\n");
        announcing.source.page("framework/", Resource { headers, ..Resource::bare(topic_says) });
        announcing.source.put("a.txt", Resource::new(version));
        assert_eq!(post(&hub.url(), &form, publish.as_bytes()), 202);
        eventually("what lies at the topic, or nothing, is heard", || shows(&mounted, "a.txt", version));
    }

    mounted.unmount();
    assert_eq!(hub.subscribers(&topic), Vec::<String>::new());
}

/// What changes a channel announces, as the standard's Change Notification does.
fn change_notification(announcing: &Announcing, entries: &str) -> String {
    format!(
        "{URLSET}<rs:ln rel=\"up\" href=\"{}\"/><rs:md capability=\"change-notification\"/>{entries}</urlset>",
        announcing.capability_list()
    )
}

fn changed(uri: &str, change: &str) -> String {
    format!("<url><loc>{uri}</loc><rs:md change=\"{change}\"/></url>")
}

/// A Source with Change Notifications and no Change List: each announced resource is asked itself, whatever the Resource List
/// still says.
#[test]
fn announced_resources_are_requested_without_change_lists() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let (source, base) = (&announcing.source, announcing.source.url());
    announcing.offer(&format!(
        "<url><loc>{}</loc><rs:ln rel=\"hub\" href=\"{}\"/><rs:md capability=\"change-notification\"/></url>",
        announcing.topic(),
        announcing.hub
    ));
    let entries = ["changed.txt", "gone.txt", "kept.txt"].map(|name| format!("<url><loc>{base}{name}</loc></url>"));
    source.document(
        "resourcelist.xml",
        format!(
            "{URLSET}<rs:md capability=\"resourcelist\" at=\"2024-05-01T10:00:00Z\"/>{}</urlset>",
            entries.concat()
        ),
    );
    for name in ["changed.txt", "gone.txt", "kept.txt"] {
        source.put(name, Resource::bare("first"));
    }
    let mounted = Mounted::new(&base, OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());
    assert!(["changed.txt", "gone.txt", "kept.txt"].iter().all(|name| shows(&mounted, name, "first")));

    source.put("changed.txt", Resource::bare("the second edition"));
    source.put("new.txt", Resource::bare("new"));
    source.remove("gone.txt");
    let said = [("changed.txt", "updated"), ("new.txt", "created"), ("gone.txt", "deleted"), ("kept.txt", "deleted")]
        .map(|(name, change)| changed(&format!("{base}{name}"), change));
    let foreign = changed("http://127.0.0.2/elsewhere.txt", "created");
    let notification = change_notification(&announcing, &(said.concat() + &foreign));
    hub.publish(&announcing.topic(), &announcing.capability_list(), &notification);

    eventually("the change is there", || shows(&mounted, "changed.txt", "the second edition"));
    eventually("the new one is there", || shows(&mounted, "new.txt", "new"));
    eventually("the deleted one is gone", || !mounted.join("gone.txt").exists());
    assert!(shows(&mounted, "kept.txt", "first"), "nobody is deleted by a word");
    assert!(!mounted.join("%host").exists(), "nobody is sent to another host");
}

/// A Source with Change Notifications and a Change List: the list is looked at.
#[test]
fn announced_changes_are_read_in_the_change_list() {
    let hub = Hub::start();
    let announcing = Announcing::at(hub.url());
    let (source, base) = (&announcing.source, announcing.source.url());
    announcing.offer(&format!(
        "<url><loc>{base}changelist.xml</loc><rs:md capability=\"changelist\"/></url>\
         <url><loc>{}</loc><rs:ln rel=\"hub\" href=\"{}\"/><rs:md capability=\"change-notification\"/></url>",
        announcing.topic(),
        announcing.hub
    ));
    let list = |entries: &str| {
        format!("{URLSET}<rs:md capability=\"changelist\" from=\"2024-01-01T00:00:00Z\"/>{entries}</urlset>")
    };
    source.document("changelist.xml", list(""));
    let mounted = Mounted::new(&base, OPTIONS);
    hub.wait_for_subscriber(&announcing.topic());
    source.wait_for_quiet();
    source.take_log();

    let second = Resource::new("second");
    let entry = format!(
        "<url><loc>{base}a.txt</loc><rs:md change=\"updated\" datetime=\"2025-01-01T00:00:00Z\" {}/></url>",
        second.md
    );
    source.put("a.txt", second);
    source.document("changelist.xml", list(&entry));
    let notification = change_notification(&announcing, &changed(&format!("{base}a.txt"), "updated"));
    hub.publish(&announcing.topic(), &announcing.capability_list(), &notification);

    eventually("the change is there", || shows(&mounted, "a.txt", "second"));
    assert_eq!(source.requests_of("resourcelist.xml").len(), 0, "nobody reads the whole list for one change");
}
