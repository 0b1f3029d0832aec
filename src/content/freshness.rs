//! When an entry that does not tell of its changes is asked about again, and what the answer means. Pure.
//!
//! An entry with neither `lastmod` nor hash, as most sitemaps have, is revalidated behind whoever looks at it: what is
//! here is answered at once, the Source is asked conditionally, and other bytes become a new version through sync.
//! Bytes that the Source still vouches for keep their inode, and the kernel its pages.

use super::FetchSpec;
use super::metadata::Observation;
use crate::document::{ChangeFrequency, Digest, Timestamp};
use fuser::INodeNo;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// Without option and `changefreq` an entry is revalidated so often.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(3600);

/// What `changefreq` calls `always` changes at each look; so often it is looked at.
const ALWAYS: Duration = Duration::from_secs(5 * 60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An inode that was asked about is left alone for so long (or its interval, if that is shorter), whatever came of it.
const PAUSE: Duration = Duration::from_secs(60);

/// Inodes whose last question is remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(16_383);

/// Bodies up to so many bytes are fetched whole and compared where no validator tells; of larger ones length and
/// validators alone tell.
pub const COMPARE_LIMIT: u64 = 16 << 20;

/// How often entries that do not tell of their changes are revalidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revalidate {
    /// As their `changefreq` says, else each hour.
    #[default]
    AsPublished,
    /// This often, whatever `changefreq` says.
    Every(Duration),
    /// Never.
    Never,
}

impl Revalidate {
    /// How long the bytes of an entry are taken for current once the Source has said so; `None`: for ever.
    pub fn interval(self, changefreq: Option<ChangeFrequency>) -> Option<Duration> {
        match (self, changefreq) {
            (Revalidate::Every(interval), _) => Some(interval),
            (Revalidate::Never, _) | (_, Some(ChangeFrequency::Never)) => None,
            (_, None | Some(ChangeFrequency::Hourly)) => Some(DEFAULT_INTERVAL),
            (_, Some(ChangeFrequency::Always)) => Some(ALWAYS),
            (_, Some(ChangeFrequency::Daily)) => Some(DAY),
            (_, Some(ChangeFrequency::Weekly)) => Some(7 * DAY),
            (_, Some(ChangeFrequency::Monthly)) => Some(30 * DAY),
            (_, Some(ChangeFrequency::Yearly)) => Some(365 * DAY),
        }
    }
}

/// How long from `now` what was validated at `validated_at` is current; nothing where it must be asked about. A clock set
/// back makes it due: what lies in the future is no validation.
pub fn remaining(validated_at: Timestamp, interval: Duration, now: Timestamp) -> Duration {
    match u64::try_from(now.seconds.saturating_sub(validated_at.seconds)) {
        Ok(age) => interval.saturating_sub(Duration::from_secs(age)),
        Err(_) => Duration::ZERO,
    }
}

/// Which inodes were asked about lately.
pub struct Asked {
    until: LruCache<INodeNo, Instant>,
}

impl Default for Asked {
    fn default() -> Self {
        Asked { until: LruCache::new(REMEMBERED) }
    }
}

impl Asked {
    /// Whether `ino` may be asked about now; from then on it may not for a while.
    pub fn may_ask(&mut self, ino: INodeNo, interval: Duration, now: Instant) -> bool {
        if self.until.get(&ino).is_some_and(|until| now < *until) {
            return false;
        }
        self.until.put(ino, now + interval.min(PAUSE));
        true
    }
}

/// The head of an answer to a conditional request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// 304.
    pub not_modified: bool,
    /// As sent.
    pub etag: Option<&'a str>,
    /// As sent.
    pub last_modified: Option<&'a str>,
    /// Bytes of the body, where announced.
    pub length: Option<u64>,
}

/// What an answer says of the version that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The Source has the same bytes.
    Same,
    /// It has others.
    Other,
    /// The body tells: the same if it gives this digest.
    Compare(Digest),
    /// Nothing that can be relied upon.
    Unclear,
}

/// Compares an answer with what was observed of `wanted`; `decoded`: its body is not what a read returns.
pub fn finding(wanted: &FetchSpec, observed: &Observation, decoded: bool, answer: Answer<'_>) -> Finding {
    if answer.not_modified {
        return Finding::Same;
    }
    let is_strong = |etag: &&str| etag.starts_with('"');
    if answer.etag.filter(is_strong).is_some_and(|etag| observed.etag.as_deref() == Some(etag)) {
        return Finding::Same;
    }
    if let Some(announced) = answer.length {
        // Only the list can say that its own length is no longer right.
        if wanted.length.is_some_and(|published| published != announced) {
            return Finding::Unclear;
        }
        if !decoded && observed.size.is_some_and(|size| size != announced) {
            return Finding::Other;
        }
    }
    let read = observed.digests.first();
    if let Some(digest) = read.filter(|_| !decoded && observed.size.is_some_and(|size| size <= COMPARE_LIMIT)) {
        return Finding::Compare(*digest);
    }
    let differ = |known: Option<&str>, now: Option<&str>| known.zip(now).is_some_and(|(known, now)| known != now);
    let validators_differ = differ(observed.etag.as_deref(), answer.etag)
        || (answer.etag.is_none() && differ(observed.last_modified.as_deref(), answer.last_modified));
    match (validators_differ, read) {
        // The validators of mirrors are not those of `loc`.
        (true, Some(_)) if wanted.mirrors.is_empty() => Finding::Other,
        (true, Some(_)) => Finding::Unclear,
        // Of a version of which nobody has read anything only the size was told, and it is the same.
        (true, None) | (false, _) => Finding::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Uri};

    fn wanted() -> FetchSpec {
        FetchSpec::new(INodeNo(2), Uri::parse("http://example.org/a").unwrap())
    }

    fn observed(size: u64) -> Observation {
        Observation {
            size: Some(size),
            etag: Some("\"v1\"".into()),
            last_modified: Some("Mon, 01 Jan 2024 00:00:00 GMT".into()),
            digests: vec![Digest::new(Algorithm::Sha256, &[1; 32]).unwrap()],
            ..Observation::default()
        }
    }

    fn full(etag: Option<&'static str>, length: u64) -> Answer<'static> {
        Answer { etag, length: Some(length), ..Answer::default() }
    }

    #[test]
    fn the_option_wins_then_changefreq_then_an_hour() {
        let minute = Duration::from_secs(60);

        assert_eq!(Revalidate::Every(minute).interval(Some(ChangeFrequency::Never)), Some(minute));
        assert_eq!(Revalidate::Never.interval(Some(ChangeFrequency::Always)), None);
        assert_eq!(Revalidate::AsPublished.interval(None), Some(DEFAULT_INTERVAL));
        assert_eq!(Revalidate::AsPublished.interval(Some(ChangeFrequency::Never)), None);
        assert_eq!(Revalidate::AsPublished.interval(Some(ChangeFrequency::Daily)), Some(DAY));
    }

    #[test]
    fn what_was_validated_is_current_for_its_interval_and_never_from_the_future() {
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let interval = Duration::from_secs(60);

        assert_eq!(remaining(at(1000), interval, at(1010)), Duration::from_secs(50));
        assert_eq!(remaining(at(1000), interval, at(1060)), Duration::ZERO);
        assert_eq!(remaining(at(1000), interval, at(999)), Duration::ZERO);
    }

    #[test]
    fn an_inode_is_asked_about_once_in_a_while_whatever_came_of_it() {
        let (mut asked, now) = (Asked::default(), Instant::now());
        let hour = Duration::from_secs(3600);

        assert!(asked.may_ask(INodeNo(2), hour, now));
        assert!(!asked.may_ask(INodeNo(2), hour, now));
        assert!(asked.may_ask(INodeNo(3), hour, now));
        assert!(asked.may_ask(INodeNo(2), hour, now + PAUSE));
        assert!(asked.may_ask(INodeNo(4), Duration::ZERO, now) && asked.may_ask(INodeNo(4), Duration::ZERO, now));
    }

    #[test]
    fn validators_and_304_keep_the_version() {
        let unmodified = Answer { not_modified: true, ..Answer::default() };
        let none = Observation { digests: Vec::new(), ..observed(9) };

        assert_eq!(finding(&wanted(), &observed(9), false, unmodified), Finding::Same);
        assert_eq!(finding(&wanted(), &observed(9), false, full(Some("\"v1\""), 9)), Finding::Same);
        assert_eq!(
            finding(&wanted(), &none, false, full(Some("\"v2\""), 9)),
            Finding::Same,
            "nobody read the old bytes"
        );
    }

    #[test]
    fn another_length_is_another_version_unless_the_list_publishes_it() {
        let listed = FetchSpec { length: Some(9), ..wanted() };

        assert_eq!(finding(&wanted(), &observed(9), false, full(None, 10)), Finding::Other);
        assert_eq!(finding(&listed, &observed(9), false, full(None, 10)), Finding::Unclear);
    }

    #[test]
    fn without_equal_validators_the_body_tells_if_it_is_small() {
        let (small, large) = (observed(9), observed(COMPARE_LIMIT + 1));
        let mirrored = FetchSpec { mirrors: vec![(1, Uri::parse("http://m.example/a").unwrap())], ..wanted() };
        let weak = Observation { etag: Some("W/\"v1\"".into()), ..observed(9) };

        assert_eq!(finding(&wanted(), &small, false, full(Some("\"v2\""), 9)), Finding::Compare(small.digests[0]));
        assert_eq!(finding(&wanted(), &weak, false, full(Some("W/\"v1\""), 9)), Finding::Compare(small.digests[0]));
        let plain = wanted();
        let of_large = |wanted, etag| finding(wanted, &large, false, full(etag, COMPARE_LIMIT + 1));
        assert_eq!(of_large(&plain, Some("\"v2\"")), Finding::Other);
        assert_eq!(of_large(&plain, None), Finding::Same, "a length alone keeps it");
        assert_eq!(of_large(&mirrored, Some("\"v2\"")), Finding::Unclear);
    }

    #[test]
    fn a_coded_body_is_told_by_its_validators_alone() {
        let answer = full(Some("\"v2\""), 5);

        assert_eq!(finding(&wanted(), &observed(9), true, answer), Finding::Other);
        assert_eq!(finding(&wanted(), &observed(9), true, full(None, 5)), Finding::Same);
    }
}
