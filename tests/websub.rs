//! Notifications from the Source through a hub to the mount: the change is there long before anybody polls.

mod common;

use common::eventually;
use common::hub::{Hub, Manner};
use common::mounted::Mounted;
use common::source::{Resource, Source, URLSET};
use std::fs;

/// Nobody polls in these tests, and the hub lies at another port of this machine.
const OPTIONS: &str = "poll=1h,allow-host=127.0.0.1,websub-listen=127.0.0.1:0";

/// A Source with one file and a Framework Notification channel at `hub`.
struct Announcing {
    source: Source,
    hub: Hub,
}

impl Announcing {
    fn start() -> Announcing {
        let announcing = Announcing { source: Source::start(), hub: Hub::start() };
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
            self.hub.url()
        ));
    }

    /// Announces a new Resource List as the standard's example 1 does.
    fn announce(&self) {
        let notification = format!(
            "{URLSET}<rs:ln rel=\"up\" href=\"{}\"/><rs:md capability=\"framework-notification\"/><url><loc>{}</loc>\
             <rs:md change=\"created\" capability=\"resourcelist\"/></url></urlset>",
            self.capability_list(),
            self.source.list_url()
        );
        self.hub.publish(&self.topic(), &self.capability_list(), &notification);
    }
}

fn shows(mounted: &Mounted, file: &str, bytes: &str) -> bool {
    fs::read(mounted.join(file)).is_ok_and(|read| read == bytes.as_bytes())
}

/// Promise: what the Source announces is there at once. The hub verifies before or after it accepts the subscription.
#[test]
fn a_notification_shows_the_change_at_once() {
    for verifies_first in [false, true] {
        let announcing = Announcing::start();
        announcing.hub.behave(Manner { verifies_first, ..Manner::default() });
        let mounted = Mounted::new(&announcing.source.url(), OPTIONS);
        announcing.hub.wait_for_subscriber(&announcing.topic());
        assert!(shows(&mounted, "a.txt", "first"));

        announcing.source.put("a.txt", Resource::new("second"));
        announcing.source.put("new.txt", Resource::new("new"));
        announcing.announce();

        eventually("the change is there", || shows(&mounted, "a.txt", "second") && shows(&mounted, "new.txt", "new"));
        assert_eq!(announcing.hub.delivered(), [202]);
    }
}
