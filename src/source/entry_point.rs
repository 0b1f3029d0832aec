//! The SOURCE that a person pastes.

use crate::document::{Uri, UriError};
use std::path::PathBuf;

/// The SOURCE that a person pastes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryPoint {
    /// A site root, a page, or any document.
    Uri(Uri),
    /// A document on disk (`file:` or a path); the resources it lists are fetched over HTTP.
    File(PathBuf),
}

/// The URI, or the path.
impl std::fmt::Display for EntryPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EntryPoint::Uri(uri) => uri.fmt(f),
            EntryPoint::File(path) => path.display().fmt(f),
        }
    }
}

/// Why the text that was pasted names no Source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryPointError {
    /// Nothing was given.
    #[error("the SOURCE is empty: paste the address of a site or of a ResourceSync document")]
    Empty,
    /// A scheme that cannot be fetched.
    #[error("{0:?}: only https:, http: and file: can be mounted")]
    Scheme(String),
    /// A user name or password before the host. The message does not repeat it.
    #[error(
        "the SOURCE has a user name or password before its host, and every user of this machine can read them in the list of \
         processes: write https://HOST/… and name a file with them, -o netrc=FILE or -o header-file=FILE"
    )]
    Credentials,
    /// A `file:` URI of another machine, or with escapes that make no path.
    #[error("{0:?}: a file: URI must name an absolute path on this machine, as in file:///path/list.xml")]
    File(String),
    /// Neither a host nor, by its spelling, a path.
    #[error("{0:?} is neither an address nor a path: write https://HOST/… or ./FILE")]
    Unclear(String),
    /// Not a URI.
    #[error(transparent)]
    Uri(#[from] UriError),
}

impl EntryPoint {
    /// Understands `https://…`, `http://…`, `file:///…`, `/path`, `./path`, `../path`, and `HOST[:PORT][/…]`, for which
    /// https is assumed. A DOI stands for the address of its resolver, unless a file has its name. A path is made absolute, because a
    /// mount is known by it in every folder. Host and file need not exist.
    pub fn parse(pasted: &str) -> Result<EntryPoint, EntryPointError> {
        let pasted = pasted.trim();
        if pasted.is_empty() {
            return Err(EntryPointError::Empty);
        }
        if pasted.starts_with('/') || matches!(pasted.split('/').next(), Some("." | "..")) {
            // Without a working folder the path stays as it is, and opening it fails.
            return Ok(EntryPoint::File(std::path::absolute(pasted).unwrap_or_else(|_| PathBuf::from(pasted))));
        }
        if let Some(resolved) = doi(pasted) {
            let named = std::path::absolute(pasted).unwrap_or_else(|_| PathBuf::from(pasted));
            return Ok(if named.exists() { EntryPoint::File(named) } else { EntryPoint::Uri(resolved) });
        }
        if has_credentials(pasted) {
            return Err(EntryPointError::Credentials);
        }
        let Some((scheme, rest)) = scheme(pasted) else { return address(pasted) };
        match scheme.to_ascii_lowercase().as_str() {
            "http" | "https" => Ok(EntryPoint::Uri(Uri::parse(pasted)?)),
            "file" => file(rest).ok_or_else(|| EntryPointError::File(pasted.to_owned())),
            _ => Err(EntryPointError::Scheme(pasted.to_owned())),
        }
    }

    /// Address over http, where it was pasted without a scheme and https was assumed.
    pub fn over_http(pasted: &str) -> Option<Uri> {
        let pasted = pasted.trim();
        let is_address = matches!(EntryPoint::parse(pasted), Ok(EntryPoint::Uri(_)));
        let has_scheme = scheme(pasted).is_some();
        (is_address && !has_scheme).then(|| Uri::parse(&format!("http://{pasted}")).ok()).flatten()
    }
}

/// The address of the resolver for a DOI, `10.NUMBER/…` with or without `doi:` before it.
fn doi(pasted: &str) -> Option<Uri> {
    let (scheme, rest) = pasted.split_once(':').unwrap_or(("doi", pasted));
    let name = if scheme.eq_ignore_ascii_case("doi") { rest.trim_start() } else { pasted };
    let (prefix, suffix) = name.strip_prefix("10.")?.split_once('/')?;
    // The first number of an address of a host has three digits at most.
    let registrant = prefix.split('.').next().unwrap_or_default();
    let is_prefix = registrant.len() >= 4 && prefix.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let suffix = suffix.replace('%', "%25").replace('?', "%3F").replace('#', "%23");
    (is_prefix && !suffix.is_empty())
        .then(|| Uri::parse(&format!("https://doi.org/10.{prefix}/{suffix}")).ok())
        .flatten()
}

/// The scheme and the text after its colon. `HOST:PORT` has none: a port is digits, and no scheme is followed by those.
fn scheme(pasted: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = pasted.split_once(':')?;
    let spelled = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (spelled && !rest.starts_with(|c: char| c.is_ascii_digit())).then_some((scheme, rest))
}

/// Returns whether something stands before the host: `USER:PASSWORD@HOST`, with a scheme or without. An e-mail address is not a host.
fn has_credentials(pasted: &str) -> bool {
    let authority = pasted.split_once("://").map_or(pasted, |(_, authority)| authority);
    let authority = authority.split(['/', '?', '#']).next().unwrap_or_default();
    let is_postal = pasted.get(..7).is_some_and(|scheme| scheme.eq_ignore_ascii_case("mailto:"));
    authority.contains('@') && !is_postal
}

/// The text after `file:`: a path, with `//`, `///` or `//localhost/` before it.
fn file(rest: &str) -> Option<EntryPoint> {
    use std::os::unix::ffi::OsStringExt;
    let path = match rest.strip_prefix("//") {
        Some(authority) => authority.strip_prefix("localhost").unwrap_or(authority),
        None => rest,
    };
    let path: Vec<u8> = percent_encoding::percent_decode_str(path).collect();
    (path.starts_with(b"/") && !path.contains(&0))
        .then(|| EntryPoint::File(PathBuf::from(std::ffi::OsString::from_vec(path))))
}

/// An address without scheme. A single word without a dot, and a lone name that ends like a document, are more likely
/// slips than hosts.
fn address(pasted: &str) -> Result<EntryPoint, EntryPointError> {
    let (host, further) = pasted.split_at(pasted.find(['/', '?', '#']).unwrap_or(pasted.len()));
    let looks_like_host = host.contains('.') || host.contains(':') || host == "localhost";
    let looks_like_file = further.is_empty()
        && [".xml", ".gz", ".txt", ".zip"].iter().any(|end| host.to_ascii_lowercase().ends_with(end));
    if !looks_like_host || looks_like_file || host.contains(char::is_whitespace) {
        return Err(EntryPointError::Unclear(pasted.to_owned()));
    }
    Ok(EntryPoint::Uri(Uri::parse(&format!("https://{pasted}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> EntryPoint {
        EntryPoint::Uri(Uri::parse(text).unwrap())
    }

    fn path(text: &str) -> EntryPoint {
        EntryPoint::File(PathBuf::from(text))
    }

    #[test]
    fn addresses_are_understood_with_and_without_scheme() {
        for (pasted, understood) in [
            (" https://example.org/a \n", "https://example.org/a"),
            ("HTTP://Example.ORG", "http://example.org/"),
            ("example.org", "https://example.org/"),
            ("example.org/path?x=1", "https://example.org/path?x=1"),
            ("example.org:8080/path", "https://example.org:8080/path"),
            ("localhost:8080", "https://localhost:8080/"),
            ("localhost", "https://localhost/"),
            ("[::1]:8080/list.xml", "https://[::1]:8080/list.xml"),
            ("example.org/list.xml", "https://example.org/list.xml"),
        ] {
            assert_eq!(EntryPoint::parse(pasted), Ok(uri(understood)), "{pasted}");
        }
    }

    #[test]
    fn what_was_assumed_of_an_address_is_known() {
        for (pasted, over_http) in [
            ("localhost:8080", Some("http://localhost:8080/")),
            (" [::1]:8080/list.xml", Some("http://[::1]:8080/list.xml")),
            ("example.org", Some("http://example.org/")),
            ("https://example.org", None),
            ("http://example.org", None),
            ("file:///list.xml", None),
            ("./example.org", None),
            ("list.xml", None),
        ] {
            assert_eq!(EntryPoint::over_http(pasted).as_ref().map(Uri::as_str), over_http, "{pasted}");
        }
    }

    #[test]
    fn paths_are_understood_by_their_beginning_and_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        for (pasted, understood) in [
            ("/srv/list.xml", "/srv/list.xml"),
            ("./list.xml", &format!("{here}/list.xml")),
            ("../list.xml", &format!("{here}/../list.xml")),
            ("file:///srv/a%20b.xml", "/srv/a b.xml"),
            ("file:/srv/list.xml", "/srv/list.xml"),
            ("FILE://localhost/srv/list.xml", "/srv/list.xml"),
        ] {
            assert_eq!(EntryPoint::parse(pasted), Ok(path(understood)), "{pasted}");
        }
    }

    #[test]
    fn credentials_are_refused_wherever_they_stand_before_a_host() {
        for pasted in [
            "https://ann:secret@example.org/list.xml",
            "http://ann@example.org",
            "ann:secret@example.org/list.xml",
            "ann@example.org:8080",
            "ftp://ann:secret@example.org/",
            "https://ann:se@cret@example.org?x",
        ] {
            assert_eq!(EntryPoint::parse(pasted), Err(EntryPointError::Credentials), "{pasted}");
        }
        assert_eq!(EntryPoint::parse("https://example.org/@ann"), Ok(uri("https://example.org/@ann")));
        assert_eq!(EntryPoint::parse("example.org/a//b@c"), Ok(uri("https://example.org/a//b@c")));
        assert_eq!(EntryPoint::parse("file:///srv/a@b.xml"), Ok(path("/srv/a@b.xml")));
    }

    #[test]
    fn everything_else_is_refused_with_the_way_out() {
        assert_eq!(EntryPoint::parse("  "), Err(EntryPointError::Empty));
        for pasted in ["ftp://example.org/", "mailto:a@example.org", "urn:isbn:1", "s3://bucket/key"] {
            assert_eq!(EntryPoint::parse(pasted), Err(EntryPointError::Scheme(pasted.to_owned())));
        }
        for pasted in ["file://other/srv/list.xml", "file:list.xml", "file:///a%00b"] {
            assert_eq!(EntryPoint::parse(pasted), Err(EntryPointError::File(pasted.to_owned())));
        }
        for pasted in ["list.xml", "sitemap.xml.gz", "repository", "two words.org"] {
            assert_eq!(EntryPoint::parse(pasted), Err(EntryPointError::Unclear(pasted.to_owned())), "{pasted}");
        }
        assert!(matches!(EntryPoint::parse("https://"), Err(EntryPointError::Uri(_))));
    }

    #[test]
    fn a_doi_is_the_address_of_its_resolver() {
        let resolved = |pasted: &str| match EntryPoint::parse(pasted).unwrap() {
            EntryPoint::Uri(uri) => uri.to_string(),
            file => panic!("{file}"),
        };
        assert_eq!(resolved("10.5281/zenodo.1234"), "https://doi.org/10.5281/zenodo.1234");
        assert_eq!(resolved("doi:10.5281/zenodo.1234"), "https://doi.org/10.5281/zenodo.1234");
        assert_eq!(resolved("DOI: 10.1002/(SICI)1<a#b?"), "https://doi.org/10.1002/(SICI)1%3Ca%23b%3F");
        assert_eq!(resolved("10.0.0.1/list"), "https://10.0.0.1/list", "an address of a host");
    }
}
