//! The limits that a host announces in the heads of its answers. Pure.
//!
//! | form | fields |
//! |---|---|
//! | IETF draft, structured | `RateLimit: "default";r=50;t=30`, `RateLimit-Policy: "default";q=100;w=60` |
//! | IETF draft, combined | `RateLimit: limit=100, remaining=50, reset=30`, `RateLimit-Policy: 100;w=60` |
//! | older draft, and what is in use | `RateLimit-Limit`, `-Remaining`, `-Reset`, with `X-RateLimit-` and `X-Rate-Limit-` as well |

use super::field;
use reqwest::header::{self, HeaderMap, HeaderName};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A reset from this number on is a time in seconds since 1970, and one of a thousand times as many in milliseconds.
const EPOCH: f64 = 1e9;

/// A window is asked about again after so long.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Prefixes of the three separate fields.
static PREFIXES: [[HeaderName; 3]; 3] = [
    names("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
    names("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    names("x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"),
];

const fn names(limit: &'static str, remaining: &'static str, reset: &'static str) -> [HeaderName; 3] {
    [HeaderName::from_static(limit), HeaderName::from_static(remaining), HeaderName::from_static(reset)]
}

/// The limit of a host, as one answer announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnnouncedLimits {
    /// Requests in a window.
    pub(super) limit: Option<u64>,
    /// The length of a window.
    pub(super) window: Option<Duration>,
    /// Requests that are left.
    pub(super) remaining: u64,
    /// The time until the next window.
    pub(super) reset: Duration,
}

/// The limit that `headers` announce. `now` is the machine's time, which counts only where the host does not say its own.
pub(super) fn announced(headers: &HeaderMap, now: SystemTime) -> Option<AnnouncedLimits> {
    // A cache repeats what its host said once.
    if field::text(headers, header::AGE).and_then(field::digits).is_some_and(|age| age > 0) {
        return None;
    }
    let policies = joined(headers, HeaderName::from_static("ratelimit-policy"));
    let policies: Vec<StructuredItem> = items(&policies).collect();
    let text = joined(headers, HeaderName::from_static("ratelimit"));
    let combined = || {
        let whole = StructuredItem(text.split([',', ';']).map(str::trim).collect());
        let remaining = whole.number("remaining")?;
        Some(([whole.number("limit"), Some(remaining), whole.number("reset")], policies.first()))
    };
    // Of several limits the one that is nearest to its end.
    let structured = || {
        let of = |item: StructuredItem| {
            let policy = policies.iter().find(|policy| policy.name() == item.name());
            Some(([policy.and_then(StructuredItem::quota), Some(item.number("r")?), item.number("t")], policy))
        };
        items(&text).filter_map(of).min_by(|(a, _), (b, _)| a[1].unwrap_or(0.0).total_cmp(&b[1].unwrap_or(0.0)))
    };
    let separate = || {
        PREFIXES.iter().find_map(|[limit, remaining, reset]| {
            let remaining = number(&joined(headers, remaining.clone()))?;
            let reset = joined(headers, reset.clone());
            let date = || field::date(&reset).map(|date| date.seconds as f64);
            let limit = number(&joined(headers, limit.clone()));
            Some(([limit, Some(remaining), date().or_else(|| number(&reset))], policies.first()))
        })
    };
    let ([limit, remaining, reset], policy) = combined().or_else(structured).or_else(separate)?;
    let window = policy.and_then(|policy| policy.number("w")).and_then(seconds).map(|window| window.min(LONGEST));
    let reset = match reset {
        Some(at) if at >= EPOCH => {
            let at = if at >= EPOCH * 1000.0 { at / 1000.0 } else { at };
            let host_now = field::server_time(headers).unwrap_or(now).duration_since(UNIX_EPOCH).ok()?;
            seconds((at - host_now.as_secs_f64()).max(0.0))
        }
        reset => reset.and_then(seconds).or(window),
    };
    let limit = limit.or_else(|| policy.and_then(StructuredItem::quota)).map(|limit| limit as u64);
    // Some hosts say 0 where there is no limit.
    let is_limit = limit != Some(0);
    is_limit.then_some(AnnouncedLimits { limit, window, remaining: remaining? as u64, reset: reset?.min(LONGEST) })
}

fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

/// All lines of a field as one.
fn joined(headers: &HeaderMap, name: HeaderName) -> String {
    let lines: Vec<&str> = headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect();
    lines.join(",")
}

/// The number at the beginning: `100, 100;w=60` begins with 100.
fn number(text: &str) -> Option<f64> {
    let first = text.split([',', ';']).next().unwrap_or_default().trim();
    let is_plain = first.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    first.parse().ok().filter(|_| is_plain)
}

/// One item of a structured field: its name or number, then its parameters.
struct StructuredItem<'a>(Vec<&'a str>);

fn items(text: &str) -> impl Iterator<Item = StructuredItem<'_>> {
    let items = text.split(',').map(|item| StructuredItem(item.split(';').map(str::trim).collect()));
    items.filter(|item| !item.name().is_empty())
}

impl StructuredItem<'_> {
    fn name(&self) -> &str {
        self.0.first().map_or("", |name| name.trim_matches('"'))
    }

    fn number(&self, key: &str) -> Option<f64> {
        let mut values = self.0.iter().filter_map(|part| part.split_once('='));
        values.find_map(|(name, value)| number(value).filter(|_| name.trim().eq_ignore_ascii_case(key)))
    }

    /// The requests of a policy: `"default";q=100;w=60`, or `100;w=60`.
    fn quota(&self) -> Option<f64> {
        self.number("q").or_else(|| number(self.0.first()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    fn read(lines: &[(&'static str, &'static str)]) -> Option<(Option<u64>, Option<u64>, u64, u64)> {
        let headers: HeaderMap =
            lines.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect();
        let of = |it: AnnouncedLimits| (it.limit, it.window.map(|it| it.as_secs()), it.remaining, it.reset.as_secs());
        announced(&headers, UNIX_EPOCH + Duration::from_secs(2_000_000_000)).map(of)
    }

    #[test]
    fn each_form_of_an_announced_limit_is_read() {
        let date = ("Date", "Thu, 01 Jan 2026 00:00:00 GMT");
        let table: [(&[(&str, &str)], _); 17] = [
            (&[("RateLimit", "\"default\";r=50;t=30")], Some((None, None, 50, 30))),
            (
                &[("RateLimit", "\"default\";r=50;t=30"), ("RateLimit-Policy", "\"default\";q=100;w=60")],
                Some((Some(100), Some(60), 50, 30)),
            ),
            (
                &[
                    ("RateLimit", "\"burst\";r=9;t=1, \"day\";r=4;t=7000"),
                    ("RateLimit-Policy", "\"burst\";q=10;w=1,\"day\";q=1000;w=86400"),
                ],
                Some((Some(1000), Some(86400), 4, 7000)),
            ),
            // A window that no clock can count is cut to a day.
            (
                &[("RateLimit", "\"d\";r=50;t=0"), ("RateLimit-Policy", "\"d\";q=100;w=9223372036854775807")],
                Some((Some(100), Some(24 * 3600), 50, 0)),
            ),
            (
                &[("RateLimit", "limit=100, remaining=50, reset=30"), ("RateLimit-Policy", "100;w=60")],
                Some((Some(100), Some(60), 50, 30)),
            ),
            (
                &[("RateLimit-Limit", "100, 100;w=60"), ("RateLimit-Remaining", "5"), ("RateLimit-Reset", "7")],
                Some((Some(100), None, 5, 7)),
            ),
            (
                &[("X-RateLimit-Limit", "133"), ("X-RateLimit-Remaining", "132"), ("X-RateLimit-Reset", "60")],
                Some((Some(133), None, 132, 60)),
            ),
            (
                &[("X-Rate-Limit-Limit", "15"), ("X-Rate-Limit-Remaining", "0"), ("X-Rate-Limit-Reset", "900")],
                Some((Some(15), None, 0, 900)),
            ),
            // By the host's own clock, which is years behind this machine's.
            (&[date, ("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "1767225660")], Some((None, None, 3, 60))),
            (
                &[date, ("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "1767225660000")],
                Some((None, None, 3, 60)),
            ),
            (
                &[date, ("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "Thu, 01 Jan 2026 00:01:00 GMT")],
                Some((None, None, 3, 60)),
            ),
            (&[("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "2000000010")], Some((None, None, 3, 10))),
            (&[("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "1000000010")], Some((None, None, 3, 0))),
            (&[("X-RateLimit-Remaining", "3"), ("X-RateLimit-Reset", "2.5")], Some((None, None, 3, 2))),
            (&[("X-RateLimit-Limit", "0"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "0")], None),
            (&[("X-RateLimit-Remaining", "-1"), ("X-RateLimit-Reset", "10")], None),
            (&[("X-RateLimit-Limit", "60"), ("X-RateLimit-Remaining", "59")], None),
        ];
        for (lines, expected) in table {
            assert_eq!(read(lines), expected, "{lines:?}");
        }
    }
}
