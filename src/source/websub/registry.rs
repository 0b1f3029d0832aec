//! All subscriptions of a mount, by the path that each was given, and the file that keeps paths and secrets for the next mount.

use super::WebsubError;
use super::subscription::Subscription;
use crate::document::Uri;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Random bytes of a path and of a secret; the standard of capability URLs is 16, secrets stay below 200 characters.
const RANDOM: usize = 24;

/// Ended subscriptions that are kept: a late delivery gets a 410, and a path can be used again.
const MOST_OVER: usize = 256;

/// Subject of a subscription. One set may have several channels, and two sets may share one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// The Capability List of the set that the channel belongs to, where there is one.
    pub set: Option<Uri>,
    /// Topic of the subscription.
    pub topic: Uri,
    /// Hub that is asked.
    pub hub: Uri,
}

/// A subscription with all that its listener and its requests need. It has no `Debug`: the secret is never printed.
#[derive(Clone)]
pub struct Member {
    /// Subject of the subscription.
    pub subject: Subject,
    /// Only where the way to the hub is private.
    pub(super) secret: Option<Box<str>>,
    /// Its state.
    pub subscription: Subscription,
    /// Deliveries accepted since the mount began.
    pub deliveries: u64,
    /// When the last was accepted.
    pub last_delivery: Option<SystemTime>,
}

/// The subscriptions, and what the listener received.
#[derive(Default)]
pub(super) struct Registry {
    /// Path below the callback's base -> subscription.
    pub members: HashMap<Box<str>, Member>,
    /// Name in `status` -> how often since the mount began.
    pub counts: BTreeMap<&'static str, u64>,
    /// True if all is left for good.
    has_left: bool,
}

/// An entry of the file.
#[derive(Serialize, Deserialize)]
struct KeptSubscription {
    #[serde(flatten)]
    subject: Subject,
    path: Box<str>,
    secret: Option<Box<str>>,
    /// Seconds since 1970.
    lease_ends: Option<u64>,
}

impl Member {
    fn new(subject: Subject, secret: Option<Box<str>>, subscription: Subscription) -> Member {
        Member { subject, secret, subscription, deliveries: 0, last_delivery: None }
    }
}

impl KeptSubscription {
    fn of(path: &str, member: &Member) -> KeptSubscription {
        let since_1970 = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
        let lease_ends = member.subscription.lease_ends().and_then(since_1970).map(|since| since.as_secs());
        KeptSubscription {
            subject: member.subject.clone(),
            path: path.into(),
            secret: member.secret.clone(),
            lease_ends,
        }
    }

    fn member(self) -> (Box<str>, Member) {
        let lease_ends = self.lease_ends.and_then(|end| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(end)));
        (self.path, Member::new(self.subject, self.secret, Subscription::kept(lease_ends)))
    }
}

impl Registry {
    /// Registry that `file` keeps; an empty one where the file is missing or cannot be understood: the paths are new then.
    pub fn load(file: &Path) -> Registry {
        let read = fs::read_to_string(file).and_then(|text| Ok(serde_json::from_str::<Vec<KeptSubscription>>(&text)?));
        let kept = read.unwrap_or_else(|cause| {
            if cause.kind() != io::ErrorKind::NotFound {
                tracing::warn!(file = %file.display(), %cause, "earlier subscriptions cannot be read");
            }
            Vec::new()
        });
        Registry { members: kept.into_iter().map(KeptSubscription::member).collect(), ..Registry::default() }
    }

    /// The text that [`Registry::load`] reads; the same for the same state.
    pub fn text(&self) -> String {
        let mut kept: Vec<KeptSubscription> =
            self.members.iter().map(|(path, member)| KeptSubscription::of(path, member)).collect();
        kept.sort_by(|a, b| a.path.cmp(&b.path));
        // Strings and numbers alone: writing them cannot fail.
        serde_json::to_string_pretty(&kept).unwrap_or_default()
    }

    /// Counts one more of `name`; how many there are now.
    pub fn count(&mut self, name: &'static str) -> u64 {
        let count = self.counts.entry(name).or_default();
        *count += 1;
        *count
    }

    /// Makes the subscriptions those of `wanted`: what is new is asked for, what is not among them is left.
    pub fn follow(&mut self, wanted: &[Subject], now: SystemTime) -> Result<(), WebsubError> {
        if self.has_left {
            return Ok(());
        }
        for member in self.members.values_mut() {
            if wanted.contains(&member.subject) {
                member.subscription.join(now);
            } else {
                member.subscription.leave(now);
            }
        }
        for subject in wanted {
            if self.members.values().any(|member| member.subject == *subject) {
                continue;
            }
            let secret = is_private(&subject.hub).then(random).transpose()?;
            self.members.insert(random()?, Member::new(subject.clone(), secret, Subscription::new(now)));
        }
        if self.members.values().filter(|member| member.subscription.is_over()).count() > MOST_OVER {
            self.members.retain(|_, member| !member.subscription.is_over());
        }
        Ok(())
    }

    /// Leaves all of them.
    pub fn leave(&mut self, now: SystemTime) {
        self.has_left = true;
        self.members.values_mut().for_each(|member| member.subscription.leave(now));
    }

    /// Returns whether all are left, and every hub has confirmed that or was asked often enough.
    pub fn is_over(&self) -> bool {
        self.members.values().all(|member| member.subscription.is_over())
    }

    /// The next time at which a subscription has a request to send.
    pub fn due(&self) -> Option<SystemTime> {
        self.members.values().filter_map(|member| member.subscription.due()).min()
    }
}

/// Writes what must outlive the process: whole or not at all, readable by its owner alone.
pub(super) fn save(file: &Path, text: &str) -> io::Result<()> {
    let mut new = tempfile::NamedTempFile::new_in(file.parent().unwrap_or(Path::new(".")))?;
    new.write_all(text.as_bytes())?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

/// Returns whether what is sent to `hub` stays private: over TLS, or within this machine.
pub(super) fn is_private(hub: &Uri) -> bool {
    let host = hub.host().trim_matches(['[', ']']);
    let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    hub.scheme() == "https" || host == "localhost" || is_loopback
}

/// Hexadecimal digits that cannot be guessed.
fn random() -> Result<Box<str>, WebsubError> {
    let mut bytes = [0; RANDOM];
    getrandom::fill(&mut bytes).map_err(|cause| WebsubError::Random { cause })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::websub::subscription::{Mode, Standing};
    use std::os::unix::fs::PermissionsExt;

    fn uri(raw: &str) -> Uri {
        Uri::parse(raw).unwrap()
    }

    fn subject(topic: &str, hub: &str) -> Subject {
        Subject { set: Some(uri("http://example.org/cl.xml")), topic: uri(topic), hub: uri(hub) }
    }

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn each_subscription_has_a_path_that_cannot_be_guessed() {
        let mut registry = Registry::default();
        let wanted: Vec<_> =
            (0..50).map(|n| subject(&format!("http://example.org/{n}"), "https://hub.example.org/")).collect();
        registry.follow(&wanted, now()).unwrap();

        assert_eq!(registry.members.len(), 50);
        let secrets: std::collections::HashSet<_> = registry.members.values().map(|member| &member.secret).collect();
        assert_eq!(secrets.len(), 50);
        for path in registry.members.keys() {
            assert!(path.len() >= 32 && path.bytes().all(|digit| digit.is_ascii_hexdigit()), "{path}");
        }
    }

    #[test]
    fn a_secret_is_sent_over_private_ways_only() {
        for (hub, is_kept) in [
            ("https://hub.example.org/", true),
            ("http://hub.example.org/", false),
            ("http://localhost:8080/", true),
            ("http://127.0.0.1/", true),
            ("http://127.8.0.1/", true),
            ("http://[::1]:9/", true),
            ("http://10.0.0.1/", false),
            ("http://localhost.example.org/", false),
        ] {
            let mut registry = Registry::default();
            registry.follow(&[subject("http://example.org/topic", hub)], now()).unwrap();
            assert_eq!(registry.members.values().all(|member| member.secret.is_some()), is_kept, "{hub}");
        }
    }

    #[test]
    fn paths_secrets_and_leases_outlive_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("websub.json");
        let wanted =
            [subject("http://example.org/a", "http://127.0.0.1/"), subject("http://example.org/b", "http://h.org/")];
        let mut registry = Registry::default();
        registry.follow(&wanted, now()).unwrap();
        for member in registry.members.values_mut() {
            member.subscription.wake(now());
            assert!(member.subscription.verify(now(), Mode::Subscribe, Some(500)));
        }
        let text = registry.text();
        fs::write(&file, "older and open to all").unwrap();
        save(&file, &text).unwrap();

        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let mut again = Registry::load(&file);
        assert_eq!(again.text(), text);
        assert!(again.members.values().all(|member| member.subscription.is_active(now())));
        again.follow(&wanted, now()).unwrap();
        assert_eq!(again.text(), text, "what is wanted again keeps its path");
        assert_eq!(again.due(), Some(now()), "and is asked for again");
    }

    #[test]
    fn what_is_no_longer_wanted_is_left_and_its_path_kept() {
        let (a, b) =
            (subject("http://example.org/a", "http://h.org/"), subject("http://example.org/b", "http://h.org/"));
        let mut registry = Registry::default();
        registry.follow(&[a.clone(), b.clone()], now()).unwrap();
        registry.follow(std::slice::from_ref(&b), now()).unwrap();

        let standings: Vec<_> = registry
            .members
            .values()
            .map(|member| (member.subject == a, member.subscription.standing(now())))
            .collect();
        assert!(standings.contains(&(true, Standing::Left)) && standings.contains(&(false, Standing::Asked)));
        registry.leave(now());
        assert!(registry.is_over());
    }

    #[test]
    fn another_hub_or_set_is_another_subscription() {
        let mut registry = Registry::default();
        let first = subject("http://example.org/a", "http://h.org/");
        let moved = Subject { hub: uri("http://h.net/"), ..first.clone() };
        let shared = Subject { set: Some(uri("http://example.org/cl2.xml")), ..first.clone() };
        registry.follow(&[first], now()).unwrap();
        registry.follow(&[moved, shared], now()).unwrap();

        assert_eq!(registry.members.len(), 3);
        assert_eq!(registry.members.values().filter(|member| member.subscription.is_wanted()).count(), 2);
    }

    #[test]
    fn subscriptions_that_are_over_do_not_pile_up() {
        let mut registry = Registry::default();
        for n in 0..MOST_OVER + 50 {
            registry.follow(&[subject(&format!("http://example.org/{n}"), "http://h.org/")], now()).unwrap();
        }
        assert!(registry.members.len() <= MOST_OVER + 1);
    }

    #[test]
    fn a_damaged_file_means_new_paths_and_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("websub.json");
        assert!(Registry::load(&file).members.is_empty());
        for text in ["", "[", "{}", "[{\"topic\": 7}]", "[{\"set\":null,\"topic\":\"x\",\"hub\":\"y\",\"path\":\"z\"}]"]
        {
            fs::write(&file, text).unwrap();
            assert!(Registry::load(&file).members.is_empty(), "{text}");
        }
    }
}
