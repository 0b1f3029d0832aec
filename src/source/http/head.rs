//! What a response head says, checked against what was asked.

use super::announced::announced;
use super::field::{any_text, date, digits, filename, retry_after, text};
use super::{Body, HttpError, Method, Request, Response, Status};
use crate::document::{Uri, web_link::links_of_header};
use percent_encoding::{AsciiSet, percent_encode};
use reqwest::header::{self, HeaderMap, HeaderName};
use std::borrow::Cow;
use std::time::{Duration, SystemTime};

/// Set of no ASCII characters: only the others are escaped.
const NO_ASCII: AsciiSet = AsciiSet::EMPTY;

/// Reads the head of an answer that is not a redirect, and checks it against the request. `now` is the machine's time, `body` that of a response without one.
pub(super) fn read(
    request: &Request,
    final_uri: Uri,
    (status, headers): (u16, &HeaderMap),
    now: SystemTime,
    body: Body,
) -> Result<Response, HttpError> {
    let content_length = content_length(headers);
    let status = match status {
        200 => Status::Full,
        206 => partial(request, headers, content_length)?,
        304 if request.is_conditional() => Status::NotModified,
        _ => {
            // Some hosts refuse by 403 what is too much.
            let is_too_much = || announced(headers, now).is_some_and(|announced| announced.remaining == 0);
            let status = if status == 403 && is_too_much() { 429 } else { status };
            let retry_after = retry_after(headers, now);
            return Err(HttpError::Status { uri: request.uri.clone(), status, retry_after });
        }
    };
    let last_modified = only(headers, header::LAST_MODIFIED);
    let validates = last_modified.is_some_and(|modified| outlasts_its_second(modified, headers));
    Ok(Response {
        status,
        content_length,
        etag: only(headers, header::ETAG).filter(|tag| tag.matches('"').count() <= 2).map(Box::from),
        date: text(headers, header::DATE).and_then(date),
        last_modified: last_modified.map(Box::from),
        modified_validator: last_modified.filter(|_| validates).map(Box::from),
        modified: last_modified.and_then(date),
        memento_datetime: text(headers, HeaderName::from_static("memento-datetime")).and_then(date),
        media_type: text(headers, header::CONTENT_TYPE).and_then(media_type),
        encoding: encoding(headers),
        filename: headers.get(header::CONTENT_DISPOSITION).and_then(|value| filename(&any_text(value.as_bytes()))),
        max_age: max_age(headers),
        accepts_ranges: lines(headers, header::ACCEPT_RANGES).any(|units| units.to_ascii_lowercase().contains("bytes")),
        links: links_of_header(lines(headers, header::LINK), &final_uri),
        final_uri,
        round_trip: Duration::ZERO,
        body,
    })
}

/// Bytes that the body of `response` must have, where that is known.
pub(super) fn body_length(method: Method, response: &Response) -> Option<u64> {
    match (method, response.status) {
        (Method::Head, _) | (_, Status::NotModified) => Some(0),
        (Method::Get, Status::Partial { first, last, .. }) => Some(last - first + 1),
        (Method::Get, Status::Full) => response.content_length,
    }
}

/// The target of a redirect; `None` where the answer is not a redirect that can be followed. Some servers do not escape where
/// it leads: UTF-8 is taken as it is, bytes of any other encoding are escaped one by one.
pub(super) fn redirect(status: u16, headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    let value = headers.get(header::LOCATION).filter(|_| is_redirect)?.as_bytes().trim_ascii();
    let target = match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text.trim()),
        Err(_) => Cow::Owned(percent_encode(value, &NO_ASCII).to_string()),
    };
    (!target.is_empty()).then_some(target)
}

/// Every line of a field that is text.
fn lines(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers.get_all(name).iter().filter_map(|value| std::str::from_utf8(value.as_bytes()).ok())
}

/// The only line of a field. Of several it is unknown which one is meant, so they count as none.
fn only(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    (headers.get_all(&name).iter().count() == 1).then(|| text(headers, name))?
}

/// Returns whether a `Last-Modified` distinguishes this version from every later one: it is at least one second older than the answer, by the
/// server's own clock (RFC 9110, 8.8.2.2). Where there is no clock, or no date, it is taken as it is.
fn outlasts_its_second(modified: &str, headers: &HeaderMap) -> bool {
    match (date(modified), text(headers, header::DATE).and_then(date)) {
        (Some(modified), Some(answered)) => modified.seconds < answered.seconds,
        _ => true,
    }
}

/// A chunked body has no Content-Length, even if the field is there (RFC 9112, 6.3).
fn content_length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    digits(text(headers, header::CONTENT_LENGTH)?)
}

/// Checks a 206 against the range asked for: it begins where asked and ends where asked or with the whole, and its
/// length is what it says.
fn partial(request: &Request, headers: &HeaderMap, content_length: Option<u64>) -> Result<Status, HttpError> {
    let field = text(headers, header::CONTENT_RANGE);
    let wrong = || HttpError::WrongRange {
        uri: request.uri.clone(),
        asked: range_text(request).unwrap_or_else(|| "the whole".to_owned()),
        got: match (field, content_length) {
            (Some(field), Some(length)) => format!("{field:?} and {length} bytes"),
            (Some(field), None) => format!("{field:?}"),
            (None, _) => "a 206 without Content-Range".to_owned(),
        },
    };
    let (first, last, total) = field.and_then(content_range).ok_or_else(wrong)?;
    let (asked_first, asked_last) = match (request.range, request.suffix, total) {
        (Some(range), ..) => range,
        (None, Some(bytes), Some(total)) => (total.saturating_sub(bytes), None),
        (None, Some(_), None) | (None, None, _) => return Err(wrong()),
    };
    let ends_right = match (asked_last, total) {
        (Some(asked), Some(total)) => last == asked.min(total - 1),
        (Some(asked), None) => last == asked,
        (None, Some(total)) => last == total - 1,
        (None, None) => true,
    };
    let is_length_right =
        request.method == Method::Head || content_length.is_none_or(|length| length == last - first + 1);
    if first == asked_first && ends_right && is_length_right {
        Ok(Status::Partial { first, last, total })
    } else {
        Err(wrong())
    }
}

/// `bytes FIRST-LAST/TOTAL` with FIRST <= LAST < TOTAL; TOTAL may be `*`.
fn content_range(field: &str) -> Option<(u64, u64, Option<u64>)> {
    let (unit, rest) = field.split_once(' ')?;
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (digits(first)?, digits(last)?);
    let total = if total == "*" { None } else { Some(digits(total)?) };
    // The length of all 64 bits would not fit.
    let is_sound = first <= last && last < total.unwrap_or(u64::MAX);
    (unit.eq_ignore_ascii_case("bytes") && is_sound).then_some((first, last, total))
}

/// The `Range` field of a request.
pub(super) fn range_text(request: &Request) -> Option<String> {
    match (request.range, request.suffix) {
        (Some((first, Some(last))), _) => Some(format!("bytes={first}-{last}")),
        (Some((first, None)), _) => Some(format!("bytes={first}-")),
        (None, suffix) => suffix.map(|bytes| format!("bytes=-{bytes}")),
    }
}

fn media_type(field: &str) -> Option<Box<str>> {
    let essence = field.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    (!essence.is_empty()).then(|| essence.into())
}

/// All codings in the order in which they were applied, without `identity`.
fn encoding(headers: &HeaderMap) -> Option<Box<str>> {
    let codings: Vec<String> = lines(headers, header::CONTENT_ENCODING)
        .flat_map(|line| line.split(','))
        .map(|coding| coding.trim().to_ascii_lowercase())
        .filter(|coding| !coding.is_empty() && coding != "identity")
        .collect();
    (!codings.is_empty()).then(|| codings.join(", ").into())
}

fn max_age(headers: &HeaderMap) -> Option<Duration> {
    let mut age = None;
    for directive in lines(headers, header::CACHE_CONTROL).flat_map(|line| line.split(',')) {
        let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
        match name.trim().to_ascii_lowercase().as_str() {
            "no-cache" | "no-store" => return Some(Duration::ZERO),
            "max-age" => age = age.or(digits(value.trim().trim_matches('"')).map(Duration::from_secs)),
            _ => {}
        }
    }
    age
}

#[cfg(test)]
mod tests {
    use super::super::body::LowSpeed;
    use super::*;
    use reqwest::header::HeaderValue;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    fn answer(request: &Request, status: u16, headers: &HeaderMap) -> Result<Response, HttpError> {
        let body = Body::empty(request.uri.clone(), LowSpeed::new(0, Duration::ZERO));
        super::read(request, request.uri.clone(), (status, headers), SystemTime::UNIX_EPOCH, body)
    }

    fn read(range: Option<(u64, Option<u64>)>, status: u16, headers: &HeaderMap) -> Result<Response, HttpError> {
        let uri = Uri::parse("http://example.org/a").unwrap();
        let request = Request { range, ..Request::get(uri.clone(), Duration::from_secs(1)) };
        answer(&request, status, headers)
    }

    #[test]
    fn a_range_is_taken_only_as_asked() {
        let table = [
            ((10, Some(19)), "bytes 10-19/100", Some(Some(100))),
            ((10, Some(19)), "Bytes 10-19/*", Some(None)),
            ((10, None), "bytes 10-99/100", Some(Some(100))),
            ((10, None), "bytes 10-99/*", Some(None)),
            ((10, Some(500)), "bytes 10-99/100", Some(Some(100))),
            ((10, Some(19)), "bytes 0-19/100", None),
            ((10, Some(19)), "bytes 10-18/100", None),
            ((10, Some(19)), "bytes 10-20/100", None),
            ((10, Some(19)), "bytes 10-18/*", None),
            ((10, None), "bytes 10-98/100", None),
            ((10, Some(19)), "bytes 10-19/19", None),
            ((10, Some(19)), "bytes 19-10/100", None),
            ((10, Some(19)), "bytes 10-19", None),
            ((10, Some(19)), "bytes */100", None),
            ((10, Some(19)), "items 10-19/100", None),
            ((10, Some(19)), "bytes +10-19/100", None),
            ((0, None), "bytes 0-18446744073709551615/*", None),
            ((10, Some(19)), "", None),
        ];
        for ((first, last), field, expected) in table {
            let answer = read(Some((first, last)), 206, &headers(&[("content-range", field)]));
            match (answer, expected) {
                (Ok(head), Some(expected)) => {
                    assert!(matches!(head.status, Status::Partial { total, .. } if total == expected), "{field}");
                }
                (Err(HttpError::WrongRange { .. }), None) => {}
                (answer, _) => panic!("{field}: {:?}", answer.map(|head| head.status)),
            }
        }
    }

    #[test]
    fn a_206_must_have_been_asked_for_and_have_its_length() {
        let range = [("content-range", "bytes 0-9/10")];
        assert!(matches!(read(None, 206, &headers(&range)), Err(HttpError::WrongRange { .. })));
        let short = headers(&[("content-range", "bytes 0-9/10"), ("content-length", "9")]);
        assert!(matches!(read(Some((0, None)), 206, &short), Err(HttpError::WrongRange { .. })));
    }

    #[test]
    fn a_suffix_is_taken_only_where_it_ends_with_the_whole() {
        let table = [
            ("bytes 90-99/100", true),
            ("bytes 0-4/5", true),
            ("bytes 89-99/100", false),
            ("bytes 91-99/100", false),
            ("bytes 90-98/100", false),
            ("bytes 90-99/*", false),
        ];
        for (field, is_right) in table {
            let uri = Uri::parse("http://example.org/a").unwrap();
            let request = Request { suffix: Some(10), ..Request::get(uri.clone(), Duration::from_secs(1)) };
            let answer = answer(&request, 206, &headers(&[("content-range", field)]));
            assert_eq!(answer.is_ok(), is_right, "{field}");
        }
    }

    #[test]
    fn a_304_must_have_been_asked_for() {
        assert!(matches!(read(None, 304, &HeaderMap::new()), Err(HttpError::Status { status: 304, .. })));
    }

    #[test]
    fn fields_are_read_as_documented() {
        let head = read(
            None,
            200,
            &headers(&[
                ("content-length", "12"),
                ("content-type", " Text/XML; charset=utf-8"),
                ("content-encoding", "identity"),
                ("content-encoding", "GZIP"),
                ("etag", "W/\"x\""),
                ("last-modified", "Thu, 01 Jan 1970 00:01:00 GMT"),
                ("cache-control", "public, Max-Age=\"60\""),
            ]),
        )
        .unwrap();
        assert_eq!(head.content_length, Some(12));
        assert_eq!(head.media_type.as_deref(), Some("text/xml"));
        assert_eq!(head.encoding.as_deref(), Some("gzip"));
        assert_eq!(head.etag.as_deref(), Some("W/\"x\""));
        assert_eq!(head.modified.map(|time| time.seconds), Some(60));
        assert_eq!(head.max_age, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_validator_sent_twice_is_none() {
        let twice = [
            ("etag", "\"a\""),
            ("etag", "\"b\""),
            ("last-modified", "Thu, 01 Jan 1970 00:01:00 GMT"),
            ("last-modified", "Thu, 01 Jan 1970 00:02:00 GMT"),
        ];
        let head = read(None, 200, &headers(&twice)).unwrap();
        assert_eq!((head.etag, head.last_modified, head.modified, head.modified_validator), (None, None, None, None));
        let joined = read(None, 200, &headers(&[("etag", "\"a\", \"b\"")])).unwrap();
        assert_eq!(joined.etag, None, "and so are two that a proxy has joined");
    }

    #[test]
    fn a_last_modified_validates_once_its_second_is_over() {
        let modified = ("last-modified", "Thu, 01 Jan 1970 00:01:00 GMT");
        let validates = |lines: &[(&'static str, &'static str)]| {
            let head = read(None, 200, &headers(lines)).unwrap();
            assert_eq!(head.last_modified.as_deref(), Some(modified.1));
            head.modified_validator.is_some()
        };
        assert!(!validates(&[modified, ("date", "Thu, 01 Jan 1970 00:01:00 GMT")]));
        assert!(!validates(&[modified, ("date", "Thu, 01 Jan 1970 00:00:59 GMT")]));
        assert!(validates(&[modified, ("date", "Thu, 01 Jan 1970 00:01:01 GMT")]));
        assert!(validates(&[modified]), "a server without a clock");
    }

    #[test]
    fn what_may_not_be_kept_has_no_age() {
        let head =
            read(None, 200, &headers(&[("cache-control", "max-age=60"), ("cache-control", "no-cache")])).unwrap();
        assert_eq!(head.max_age, Some(Duration::ZERO));
    }
}
