//! Single fields of the head of an answer: text, numbers, times. Pure.

use crate::document::Timestamp;
use crate::document::parameters::{Scanner, extended};
use reqwest::header::{self, HeaderMap, HeaderName};
use std::borrow::Cow;
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

/// The text of a field's value, which may be raw UTF-8 or ISO-8859-1 where only ASCII may stand.
pub(super) fn any_text(value: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(value).map_or_else(|_| encoding_rs::mem::decode_latin1(value), Cow::Borrowed)
}

/// The name that `Content-Disposition` gives a file (RFC 6266), `filename*` before `filename`. It is one segment of a path and
/// has no control characters.
pub(crate) fn filename(disposition: &str) -> Option<String> {
    // The type of the disposition reads as a parameter without a value; some servers leave it out.
    let field = format!(";{disposition}");
    let mut scanner = Scanner { rest: &field, is_list: false };
    let (mut plain, mut coded) = (None, None);
    while let Some((name, value)) = scanner.parameter() {
        match name.as_str() {
            "filename*" => coded = coded.or_else(|| extended(&value)),
            "filename" => plain = plain.or(Some(value)),
            _ => {}
        }
        // What stands between a quoted value and the next parameter says nothing.
        scanner.take_until(|c| c == ';');
    }
    [coded, plain].into_iter().flatten().find_map(|name| {
        let segment = name.rsplit(['/', '\\']).next().unwrap_or_default();
        let segment: String = segment.chars().filter(|c| !c.is_control()).collect();
        Some(segment.trim().to_owned()).filter(|segment| !matches!(segment.as_str(), "" | "." | ".."))
    })
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

    #[test]
    fn names_of_files_in_every_form() {
        let table = [
            ("attachment; filename=\"survey 1.csv\"", "survey 1.csv"),
            ("attachment; filename=survey.csv", "survey.csv"),
            ("ATTACHMENT ; FileName = survey 1, final.csv ; size=5", "survey 1, final.csv"),
            ("inline; filename=\"a;b\\\"c.pdf\"; filename=no", "a;b\"c.pdf"),
            ("attachment; filename=\"EURO.txt\"; filename*=UTF-8''%e2%82%ac.txt", "€.txt"),
            ("attachment; filename*=utf-8'de'Gr%C3%B6%C3%9Fe.txt; filename=Groesse.txt", "Größe.txt"),
            ("attachment; filename*=ISO-8859-1''%FCber.txt", "über.txt"),
            ("attachment; filename*=\"UTF-8''a%20b.txt\"", "a b.txt"),
            ("attachment; filename*=UTF-8''%ff; filename=plain.txt", "plain.txt"),
            ("attachment; filename*=UTF-8''%2e%2e; filename=plain.txt", "plain.txt"),
            ("filename=\"x.pdf\"", "x.pdf"),
            ("attachment; filename=\"x.pdf\" junk; size=1", "x.pdf"),
            ("attachment; filename=\"never closed.pdf", "never closed.pdf"),
            ("attachment; filename=\"../../etc/passwd\"", "passwd"),
            ("attachment; filename=\"C:\\\\data\\\\x.csv\"", "x.csv"),
            ("attachment; filename*=UTF-8''..%2f..%5cx%00%0a%7f.csv", "x.csv"),
            ("attachment; filename=\"Größe.txt\"", "Größe.txt"),
        ];
        for (disposition, expected) in table {
            assert_eq!(filename(disposition).as_deref(), Some(expected), "{disposition}");
        }
    }

    #[test]
    fn a_disposition_without_a_name_gives_none() {
        for disposition in [
            "",
            "attachment",
            "attachment; filename",
            "inline; filename=",
            "x; filename=\"\"",
            "x; filename=..",
            "x; filename=\"a/\"",
        ] {
            assert_eq!(filename(disposition), None, "{disposition}");
        }
        let long = format!("x; filename=\"{}", "\\".repeat(1 << 20));
        assert!(filename(&long).is_none());
    }

    #[test]
    fn a_name_in_raw_bytes_is_utf_8_or_latin_1() {
        let raw = |bytes: &[u8]| filename(&any_text(bytes));
        assert_eq!(raw(b"attachment; filename=\"Gr\xc3\xb6\xc3\x9fe.txt\"").as_deref(), Some("Größe.txt"));
        assert_eq!(raw(b"attachment; filename=\"Gr\xf6\xdfe.txt\"").as_deref(), Some("Größe.txt"));
    }

    #[test]
    fn every_cut_of_a_disposition_is_survived() {
        let disposition = "attachment; filename=\"a\\\"é.txt\"; filename*=UTF-8''%e2%82%ac.txt";
        for end in (0..disposition.len()).filter(|end| disposition.is_char_boundary(*end)) {
            assert!(filename(&disposition[..end]).is_none_or(|name| !name.is_empty()));
        }
    }
}
