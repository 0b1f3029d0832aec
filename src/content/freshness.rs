//! When an entry that does not announce its changes is revalidated, and what the answer proves. Pure.
//!
//! An entry with neither `lastmod` nor hash, as in most sitemaps, is revalidated when it is looked at. The local bytes are the answer at
//! once. The Source is asked conditionally in the background, and other bytes become a new version through sync.
//! Bytes that the Source confirms keep their inode, and the kernel its pages.

use super::FetchSpec;
use super::metadata::Observation;
use crate::document::{ChangeFrequency, Digest, Timestamp};
use std::time::Duration;

/// The interval without option and `changefreq`.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(3600);

/// The interval of `always`, which stands for a change at each access.
const ALWAYS: Duration = Duration::from_secs(5 * 60);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The most bytes of a body that is fetched whole and compared, where validators prove nothing. Larger ones are compared by length
/// and validators alone.
pub const COMPARE_LIMIT: u64 = 16 << 20;

/// How often entries that do not announce their changes are revalidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revalidate {
    /// The interval of the entry's `changefreq`, else each hour.
    #[default]
    AsPublished,
    /// This often, also against `changefreq`.
    Every(Duration),
    /// Never.
    Never,
}

impl Revalidate {
    /// How long the bytes of an entry count as current once the Source has confirmed them; `None`: for ever.
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

/// How long from `now` bytes that were validated at `validated_at` are current; zero: they are due. A clock set back makes them due,
/// as a validation cannot be in the future.
pub fn remaining(validated_at: Timestamp, interval: Duration, now: Timestamp) -> Duration {
    match u64::try_from(now.seconds.saturating_sub(validated_at.seconds)) {
        Ok(age) => interval.saturating_sub(Duration::from_secs(age)),
        Err(_) => Duration::ZERO,
    }
}

/// The head of a full answer to a conditional request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer<'a> {
    /// `ETag`, as sent.
    pub etag: Option<&'a str>,
    /// `Last-Modified`, as sent.
    pub last_modified: Option<&'a str>,
    /// Bytes of the body, where announced.
    pub length: Option<u64>,
}

/// Conclusion from an answer about the version that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The Source has the same bytes.
    Same,
    /// The Source has other bytes.
    Other,
    /// The body decides: the same if it has this digest.
    Compare(Digest),
    /// Nothing.
    Unclear,
}

/// Compares an answer, which has the published length, with the known version of `spec`; `decoded`: a read returns other bytes than its body.
pub fn finding(spec: &FetchSpec, observed: &Observation, decoded: bool, answer: Answer<'_>) -> Finding {
    let is_strong = |etag: &&str| etag.starts_with('"');
    if answer.etag.filter(is_strong).is_some_and(|etag| observed.etag.as_deref() == Some(etag)) {
        return Finding::Same;
    }
    if answer.length.zip(observed.size).is_some_and(|(announced, size)| !decoded && size != announced) {
        return Finding::Other;
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
        (true, Some(_)) if spec.mirrors.is_empty() => Finding::Other,
        (true, Some(_)) => Finding::Unclear,
        // Only the size of this version was shown, and it is the same.
        (true, None) | (false, _) => Finding::Same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Uri};
    use crate::platform::ino::Ino;

    fn spec() -> FetchSpec {
        FetchSpec::new(Ino(2), Uri::parse("http://example.org/a").unwrap())
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
    fn the_option_counts_then_changefreq_then_an_hour() {
        let minute = Duration::from_secs(60);

        assert_eq!(Revalidate::Every(minute).interval(Some(ChangeFrequency::Never)), Some(minute));
        assert_eq!(Revalidate::Never.interval(Some(ChangeFrequency::Always)), None);
        assert_eq!(Revalidate::AsPublished.interval(None), Some(DEFAULT_INTERVAL));
        assert_eq!(Revalidate::AsPublished.interval(Some(ChangeFrequency::Never)), None);
        assert_eq!(Revalidate::AsPublished.interval(Some(ChangeFrequency::Daily)), Some(DAY));
    }

    #[test]
    fn a_validation_counts_for_its_interval_not_from_the_future() {
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let interval = Duration::from_secs(60);

        assert_eq!(remaining(at(1000), interval, at(1010)), Duration::from_secs(50));
        assert_eq!(remaining(at(1000), interval, at(1060)), Duration::ZERO);
        assert_eq!(remaining(at(1000), interval, at(999)), Duration::ZERO);
    }

    #[test]
    fn an_equal_validator_keeps_the_version() {
        let none = Observation { digests: Vec::new(), ..observed(9) };

        assert_eq!(finding(&spec(), &observed(9), false, full(Some("\"v1\""), 9)), Finding::Same);
        let other = finding(&spec(), &none, false, full(Some("\"v2\""), 9));
        assert_eq!(other, Finding::Same, "the old bytes were never read");
    }

    #[test]
    fn another_length_is_another_version() {
        assert_eq!(finding(&spec(), &observed(9), false, full(None, 10)), Finding::Other);
    }

    #[test]
    fn without_equal_validators_a_small_body_decides() {
        let (small, large) = (observed(9), observed(COMPARE_LIMIT + 1));
        let mirrored = FetchSpec { mirrors: vec![Uri::parse("http://m.example/a").unwrap()], ..spec() };
        let weak = Observation { etag: Some("W/\"v1\"".into()), ..observed(9) };

        assert_eq!(finding(&spec(), &small, false, full(Some("\"v2\""), 9)), Finding::Compare(small.digests[0]));
        assert_eq!(finding(&spec(), &weak, false, full(Some("W/\"v1\""), 9)), Finding::Compare(small.digests[0]));
        let plain = spec();
        let of_large = |spec, etag| finding(spec, &large, false, full(etag, COMPARE_LIMIT + 1));
        assert_eq!(of_large(&plain, Some("\"v2\"")), Finding::Other);
        assert_eq!(of_large(&plain, None), Finding::Same, "a length alone keeps it");
        assert_eq!(of_large(&mirrored, Some("\"v2\"")), Finding::Unclear);
    }

    #[test]
    fn a_coded_body_is_compared_by_its_validators_alone() {
        let answer = full(Some("\"v2\""), 5);

        assert_eq!(finding(&spec(), &observed(9), true, answer), Finding::Other);
        assert_eq!(finding(&spec(), &observed(9), true, full(None, 5)), Finding::Same);
    }
}
