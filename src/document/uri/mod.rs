//! Absolute http and https URIs in one normal form (RFC 3986, 6.2.2), so that equal resources compare equal.

#[cfg(test)]
mod tests;

use crate::platform::userinfo::without_userinfo;
use percent_encoding::percent_encode_byte;
use serde::{Deserialize, Serialize};

/// An absolute `http` or `https` URI, normalised (RFC 3986 6.2.2 and 6.2.3: lower-case scheme and host, default port
/// dropped, dot segments removed, escapes upper-case, unreserved bytes unescaped, forbidden bytes escaped), without
/// fragment and userinfo. Hosts are written as clients look them up: IDNA in ASCII, IPv4 in four decimal numbers.
///
/// An item of a page is the one URI with a fragment: [`Uri::item`] alone makes it, and no published URI equals it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Uri(Box<str>);

/// Why a string is not a URI that a Source can list; said without user and password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// A scheme other than http or https.
    #[error("{:?}: only http and https can be mounted", without_userinfo(.0))]
    Scheme(String),
    /// A relative reference and nothing to resolve it against.
    #[error("{:?} is relative, and the address of the document is unknown", without_userinfo(.0))]
    Relative(String),
    /// No host, a bad port, or an empty string.
    #[error("{:?} is not a URI", without_userinfo(.0))]
    Malformed(String),
}

impl UriError {
    /// Addresses of another scheme, as of mail or a telephone, answer `true`; not those where a host with its port was meant, or
    /// `http` was misspelt.
    pub fn is_of_other_scheme(&self) -> bool {
        let UriError::Scheme(raw) = self else { return false };
        let (scheme, rest) = trim(raw).split_once(':').unwrap_or_default();
        let port = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let has_port = (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
        let is_host = has_port && (rest.len() > port.len() || scheme.contains('.') || scheme == "localhost");
        let folded = scheme.to_ascii_lowercase();
        let is_slip = folded.starts_with(['h', 't']) && folded.contains("tp") || folded.starts_with("hxxp");
        !is_host && !is_slip && scheme.len() > 1
    }
}

impl TryFrom<String> for Uri {
    type Error = UriError;

    fn try_from(raw: String) -> Result<Uri, UriError> {
        Uri::parse(&raw)
    }
}

impl Uri {
    /// Parses an absolute URI, tolerantly: blanks around it, raw UTF-8, raw blanks and brackets are mended.
    pub fn parse(raw: &str) -> Result<Uri, UriError> {
        Uri::resolve(None, raw)
    }

    /// Resolves `reference` against `base` (RFC 3986, 5.2); with no base it must be absolute.
    pub fn resolve(base: Option<&Uri>, reference: &str) -> Result<Uri, UriError> {
        if is_normal(reference.as_bytes()) { Ok(Uri(reference.into())) } else { mend(base, reference) }
    }

    /// Parses a URI that this program has written: an item stays one.
    pub fn parse_item(written: &str) -> Result<Uri, UriError> {
        match written.split_once('#') {
            Some((page, item)) => Ok(Uri(format!("{}#{item}", Uri::parse(page)?).into())),
            None => Uri::parse(written),
        }
    }

    /// The identity of an item of this page: the page and the item's path in its folder, segments divided by `/`;
    /// empty segments and dots do not count. It is never asked for.
    pub fn item(&self, path: &str) -> Uri {
        let mut item = format!("{}#", self.page().map_or(self.as_str(), |(page, _)| page));
        for (index, segment) in path.split('/').filter(|segment| !matches!(*segment, "" | "." | "..")).enumerate() {
            if index > 0 {
                item.push('/');
            }
            push_escaped(&mut item, &segment.replace('%', "%25"), RESERVED);
        }
        Uri(item.into())
    }

    /// The identity of another item of the same path, distinguished by `mark`: letters and digits.
    pub fn namesake(&self, mark: &str) -> Uri {
        Uri(format!("{self}#{mark}").into())
    }

    /// The page of an item, and behind the `#` the item's path in its folder, percent-encoded; `None` for any other URI. A namesake has a
    /// further `#` with its mark.
    pub fn page(&self) -> Option<(&str, &str)> {
        self.0.split_once('#')
    }

    /// The whole URI.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// `HOST` or `HOST:PORT`, the port only where it is not the scheme's own.
    pub fn authority(&self) -> &str {
        let rest = self.after_scheme();
        rest.split_once('/').map_or(rest, |(authority, _)| authority)
    }

    /// The host without port; an IPv6 literal keeps its brackets.
    pub fn host(&self) -> &str {
        split_port(self.authority()).0
    }

    /// The port, the scheme's own by default.
    pub fn port(&self) -> u16 {
        let published = split_port(self.authority()).1.and_then(|port| port.parse().ok());
        published.unwrap_or(default_port(self.scheme() == "https"))
    }

    /// The path, beginning with `/`, still percent-encoded.
    pub fn path(&self) -> &str {
        let rest = self.path_and_query();
        rest.split_once('?').map_or(rest, |(path, _)| path)
    }

    /// The part behind `?`, still percent-encoded; `Some("")` for a bare `?`.
    pub fn query(&self) -> Option<&str> {
        self.path_and_query().split_once('?').map(|(_, query)| query)
    }

    fn after_scheme(&self) -> &str {
        self.0.split_once("://").map_or("", |(_, rest)| rest)
    }

    fn path_and_query(&self) -> &str {
        let rest = self.after_scheme();
        rest.find('/').map_or("", |start| &rest[start..])
    }
}

impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The faults of a reference as published, though it can be mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flaws {
    /// No scheme is given.
    pub relative: bool,
    /// Bytes that RFC 3986 wants percent-encoded are not: blanks, non-ASCII, brackets, quotes.
    pub unescaped: bool,
    /// A `%` that two hex digits do not follow.
    pub bad_escape: bool,
}

impl Flaws {
    pub fn of(raw: &str) -> Flaws {
        let trimmed = trim(raw);
        let after_authority = trimmed.find("://").map_or(0, |scheme_end| {
            trimmed[scheme_end + 3..].find(['/', '?']).map_or(trimmed.len(), |end| scheme_end + 3 + end)
        });
        let legal = |b: u8| class(b) != FORBIDDEN || matches!(b, b'%' | b'#' | b'[' | b']');
        Flaws {
            relative: split_scheme(trimmed).is_none(),
            unescaped: !trimmed.bytes().all(legal) || trimmed[after_authority..].contains(['[', ']']),
            bad_escape: trimmed
                .bytes()
                .enumerate()
                .any(|(i, b)| b == b'%' && escaped(&trimmed.as_bytes()[i..]).is_none()),
        }
    }
}

const FORBIDDEN: u8 = 0;
/// A letter, digit, `-`, `.`, `_` or `~`: never escaped.
const UNRESERVED: u8 = 1;
/// Stands unescaped in a path segment and in a query.
const RESERVED: u8 = 2;
/// Stands unescaped in a query alone, or divides segments: `/` and `?`.
const QUERY: u8 = 3;

/// The class that RFC 3986 gives each byte in paths and queries.
static CLASSES: [u8; 256] = {
    let mut classes = [FORBIDDEN; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => UNRESERVED,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@' => RESERVED,
            b'/' | b'?' => QUERY,
            _ => FORBIDDEN,
        };
        byte += 1;
    }
    classes
};

/// Bytes that need no second look in a path or query of normal form.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        plain[byte] = CLASSES[byte] != FORBIDDEN && byte as u8 != b'.' && byte as u8 != b'?';
        byte += 1;
    }
    plain
};

fn class(byte: u8) -> u8 {
    CLASSES[usize::from(byte)]
}

/// The byte that an escape at the front of `text` stands for.
fn escaped(text: &[u8]) -> Option<u8> {
    match text {
        [b'%', high, low, ..] => {
            let digit = |b: &u8| char::from(*b).to_digit(16).and_then(|value| u8::try_from(value).ok());
            Some(digit(high)? << 4 | digit(low)?)
        }
        _ => None,
    }
}

fn default_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

fn trim(raw: &str) -> &str {
    raw.trim_matches(|c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}')
}

/// Splits the port off an authority without userinfo; the colons of an IPv6 literal are its own.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

/// Splits `SCHEME:` off (RFC 3986, 3.1).
fn split_scheme(reference: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = reference.split_once(':')?;
    let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    well_formed.then_some((scheme, rest))
}

/// Answers whether `raw` certainly is in normal form, so that nearly every URI costs one pass and one allocation. `false` only
/// means that [`mend`] must look.
fn is_normal(raw: &[u8]) -> bool {
    let (secure, rest) = match (raw.strip_prefix(b"https://"), raw.strip_prefix(b"http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return false,
    };
    let Some(path_start) = rest.iter().position(|b| *b == b'/') else {
        return false;
    };
    let (authority, path) = rest.split_at(path_start);
    let host = match authority.iter().position(|b| *b == b':') {
        Some(colon) if is_normal_port(&authority[colon + 1..], secure) => &authority[..colon],
        Some(_) => return false,
        None => authority,
    };
    (is_plain_host(host) || is_ipv4(host)) && is_normal_path(path)
}

/// Answers whether `port` is written without a leading zero and is not the scheme's own.
fn is_normal_port(port: &[u8], secure: bool) -> bool {
    let number = port.iter().try_fold(0_u16, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    });
    !port.starts_with(b"0") && number.is_some_and(|number| number != 0 && number != default_port(secure))
}

/// Answers whether `host` is an IPv4 address as it is written back: four decimal numbers without leading zeros.
fn is_ipv4(host: &[u8]) -> bool {
    std::str::from_utf8(host).is_ok_and(|host| host.parse::<std::net::Ipv4Addr>().is_ok())
}

/// Answers whether `host` is lower-case ASCII that neither IDNA nor the many spellings of IPv4 concern.
fn is_plain_host(host: &[u8]) -> bool {
    let mut before = b'.';
    let mut numeric_label = true;
    for &byte in host {
        match byte {
            b'.' => {}
            // Two hyphens may be those of `xn--`.
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' if byte != b'-' || before != b'-' => {
                if before == b'.' {
                    numeric_label = byte.is_ascii_digit();
                }
            }
            _ => return false,
        }
        before = byte;
    }
    !numeric_label
}

/// Answers whether a path with its query is in normal form; segments that begin with a dot are left to [`mend`].
fn is_normal_path(path: &[u8]) -> bool {
    let mut in_query = false;
    let mut rest = path;
    let mut before = b'/';
    while let Some(special) = rest.iter().position(|byte| !PLAIN[usize::from(*byte)]) {
        let byte = rest[special];
        before = if special > 0 { rest[special - 1] } else { before };
        rest = &rest[special..];
        let length = match byte {
            b'.' if before == b'/' && !in_query => return false,
            b'.' => 1,
            b'?' => {
                in_query = true;
                1
            }
            _ => {
                let upper_case = rest.iter().take(3).all(|b| !b.is_ascii_lowercase());
                let reserved = escaped(rest).is_some_and(|byte| class(byte) != UNRESERVED);
                if !upper_case || !reserved {
                    return false;
                }
                3
            }
        };
        before = byte;
        rest = &rest[length..];
    }
    true
}

/// Resolves and normalises any reference.
fn mend(base: Option<&Uri>, raw: &str) -> Result<Uri, UriError> {
    let malformed = || UriError::Malformed(raw.to_owned());
    let unbroken: String;
    let mut reference = trim(raw);
    if reference.contains(['\t', '\n', '\r']) {
        // A URI broken over lines, as by an editor; browsers join it likewise.
        unbroken = reference.replace(['\t', '\n', '\r'], "");
        reference = &unbroken;
    }
    let reference = reference.split_once('#').map_or(reference, |(before, _)| before);
    let (secure, relative) = match (split_scheme(reference), base) {
        (Some((scheme, rest)), _) => {
            let secure = scheme.eq_ignore_ascii_case("https");
            if !secure && !scheme.eq_ignore_ascii_case("http") {
                return Err(UriError::Scheme(raw.to_owned()));
            }
            (secure, rest)
        }
        (None, Some(base)) => (base.scheme() == "https", reference),
        (None, None) if reference.is_empty() => return Err(malformed()),
        (None, None) => return Err(UriError::Relative(raw.to_owned())),
    };
    // `http:g` without authority is resolved as `g` where the schemes agree (RFC 3986, 5.4.2).
    let base = base.filter(|base| (base.scheme() == "https") == secure);

    let mut out = String::with_capacity(relative.len() + base.map_or(16, |base| base.as_str().len()));
    let (path, query) = match relative.strip_prefix("//") {
        Some(after) => {
            let end = after.find(['/', '?']).unwrap_or(after.len());
            out.push_str(if secure { "https://" } else { "http://" });
            push_authority(&mut out, &after[..end], secure).ok_or_else(malformed)?;
            let (path, query) = split_query(&after[end..]);
            (path.strip_prefix('/').unwrap_or(path), query)
        }
        None => {
            let base = base.ok_or_else(malformed)?;
            let (path, query) = split_query(relative);
            let authority_end = base.as_str().len() - base.path_and_query().len();
            let path_end = authority_end + base.path().len();
            if path.is_empty() {
                out.push_str(&base.as_str()[..path_end]);
                push_query(&mut out, query.or(base.query()));
                return Ok(Uri(out.into_boxed_str()));
            }
            match path.strip_prefix('/') {
                Some(absolute) => {
                    out.push_str(&base.as_str()[..authority_end]);
                    (absolute, query)
                }
                None => {
                    let folder_end = base.as_str()[..path_end].rfind('/').unwrap_or(authority_end);
                    out.push_str(&base.as_str()[..folder_end]);
                    push_segments(&mut out, authority_end, path);
                    push_query(&mut out, query);
                    return Ok(Uri(out.into_boxed_str()));
                }
            }
        }
    };
    let root = out.len();
    push_segments(&mut out, root, path);
    push_query(&mut out, query);
    Ok(Uri(out.into_boxed_str()))
}

fn split_query(path: &str) -> (&str, Option<&str>) {
    path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)))
}

/// Appends host and port, without userinfo; `None` where there is no host or no such port.
fn push_authority(out: &mut String, raw: &str, secure: bool) -> Option<()> {
    let (_, without_userinfo) = raw.rsplit_once('@').unwrap_or(("", raw));
    let (host, port) = split_port(without_userinfo);
    if is_plain_host(host.as_bytes()) {
        out.push_str(host);
    } else {
        // IDNA, IPv4 in all its spellings, IPv6, escapes: what a client makes of the host is its identity.
        let host = url::Host::parse(host).ok()?;
        out.push_str(&host.to_string());
    }
    match port {
        None | Some("") => {}
        Some(port) => {
            let digits = port.bytes().all(|b| b.is_ascii_digit());
            let port: u16 = port.parse().ok().filter(|_| digits)?;
            if port != default_port(secure) {
                out.push_str(&format!(":{port}"));
            }
        }
    }
    Some(())
}

/// Appends `/` and the segments of `path` (its leading `/` removed), normalised. Dot segments are resolved within what
/// stands in `out` from `root` on, which itself holds none.
fn push_segments(out: &mut String, root: usize, path: &str) {
    let mut segments = path.split('/').peekable();
    while let Some(segment) = segments.next() {
        let slash = out.len();
        out.push('/');
        push_escaped(out, segment, RESERVED);
        let climbs = match &out[slash + 1..] {
            "." => false,
            ".." => true,
            _ => continue,
        };
        out.truncate(slash);
        if climbs {
            let parent = out[root..].rfind('/').unwrap_or(0);
            out.truncate(root + parent);
        }
        if segments.peek().is_none() {
            out.push('/');
        }
    }
}

fn push_query(out: &mut String, query: Option<&str>) {
    if let Some(query) = query {
        out.push('?');
        push_escaped(out, query, QUERY);
    }
}

/// Appends `raw` with escapes in normal form and every byte beyond class `widest` escaped.
fn push_escaped(out: &mut String, raw: &str, widest: u8) {
    let raw = raw.as_bytes();
    let mut position = 0;
    while let Some(&byte) = raw.get(position) {
        position += 1;
        let class_of_byte = class(byte);
        if class_of_byte != FORBIDDEN && class_of_byte <= widest {
            out.push(char::from(byte));
            continue;
        }
        match escaped(&raw[position - 1..]) {
            Some(byte) => {
                position += 2;
                if class(byte) == UNRESERVED {
                    out.push(char::from(byte));
                } else {
                    out.push_str(percent_encode_byte(byte));
                }
            }
            // A `%` that escapes nothing stands for itself.
            None => out.push_str(percent_encode_byte(byte)),
        }
    }
}
