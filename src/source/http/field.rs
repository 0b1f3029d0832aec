//! Single fields of the head of an answer: text, numbers, times. Pure.

use crate::document::Timestamp;
use reqwest::header::{self, HeaderMap, HeaderName};
use std::time::{Duration, SystemTime};

/// The first line of a field, `None` where it is empty or not ASCII.
pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|text| !text.is_empty())
}

/// Digits alone: `parse` would take a sign too.
pub(super) fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// A time as HTTP writes it.
pub(super) fn date(raw: &str) -> Option<Timestamp> {
    httpdate::parse_http_date(raw).ok().map(Timestamp::from)
}

/// A time as HTTP writes it, in whole seconds; `None` for years that it cannot write.
pub(super) fn date_text(time: Timestamp) -> Option<String> {
    const YEAR_10000: i64 = 253_402_300_800;
    (0..YEAR_10000).contains(&time.seconds).then(|| httpdate::fmt_http_date(Timestamp { nanos: 0, ..time }.into()))
}

/// The time by the host's own clock.
pub(super) fn server_time(headers: &HeaderMap) -> Option<SystemTime> {
    text(headers, header::DATE).and_then(|raw| httpdate::parse_http_date(raw).ok())
}

/// Seconds, or a date, which is measured from the server's own `Date` where there is one: its clock may be wrong.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let field = text(headers, header::RETRY_AFTER)?;
    if let Some(seconds) = digits(field) {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(field).ok()?;
    Some(date.duration_since(server_time(headers).unwrap_or(now)).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn retry_after_in_seconds_and_as_a_date_by_the_servers_clock() {
        let wait = |lines: &[(&'static str, &'static str)]| retry_after(&headers(lines), SystemTime::UNIX_EPOCH);
        assert_eq!(wait(&[("retry-after", "120")]), Some(Duration::from_secs(120)));
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 1970 00:02:00 GMT")]), Some(Duration::from_secs(120)));
        let date = ("date", "Thu, 01 Jan 1970 00:01:30 GMT");
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 1970 00:02:00 GMT"), date]), Some(Duration::from_secs(30)));
        assert_eq!(wait(&[("retry-after", "Thu, 01 Jan 1970 00:01:00 GMT"), date]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "-1")]), None);
    }
}
