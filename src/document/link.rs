//! One `rs:ln` (sections 7 and 14): a relation and where it leads.

use super::{Digest, Timestamp, Uri, UriError};

/// The priority of a link without `pri` (section 7).
pub const LOWEST_PRIORITY: u32 = 999_999;

/// One `rs:ln` (section 7, section 14).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// `rel`, ASCII-lowercased where it is a registered relation (no `:`).
    pub rel: Box<str>,
    /// `href`, resolved and normalised.
    pub href: Href,
    /// `pri`, 1 (highest) to 999,999 (default).
    pub pri: u32,
    /// `type`
    pub media_type: Option<Box<str>>,
    /// `encoding`
    pub encoding: Option<Box<str>>,
    /// `length`
    pub length: Option<u64>,
    /// `hash`
    pub hashes: Vec<Digest>,
    /// `modified`
    pub modified: Option<Timestamp>,
    /// `path`
    pub path: Option<Box<str>>,
}

/// The target of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Href {
    /// An http or https URI: it can be asked.
    Web(Uri),
    /// A URI of another scheme (`urn:`, `info:`, `gsiftp:`), as published but for blanks around it and control
    /// characters: it identifies and is never asked.
    Name(Box<str>),
}

impl Link {
    /// A link that says nothing but its relation and where it leads.
    pub fn new(rel: &str, href: impl Into<Href>) -> Link {
        Link {
            rel: rel.into(),
            href: href.into(),
            pri: LOWEST_PRIORITY,
            media_type: None,
            encoding: None,
            length: None,
            hashes: Vec::new(),
            modified: None,
            path: None,
        }
    }

    /// The target of the link, if that can be asked.
    pub fn uri(&self) -> Option<&Uri> {
        self.href.uri()
    }
}

impl Href {
    /// Parses an absolute URI of any scheme.
    pub fn parse(raw: &str) -> Result<Href, UriError> {
        Href::read(Uri::parse(raw))
    }

    /// The result of an attempt to read an http or https URI gave; one of another scheme is a name.
    pub(super) fn read(uri: Result<Uri, UriError>) -> Result<Href, UriError> {
        match uri {
            Ok(uri) => Ok(Href::Web(uri)),
            Err(UriError::Scheme(raw)) => Ok(Href::Name(raw.trim().chars().filter(|c| !c.is_control()).collect())),
            Err(error) => Err(error),
        }
    }

    /// The URI, of any scheme.
    pub fn as_str(&self) -> &str {
        match self {
            Href::Web(uri) => uri.as_str(),
            Href::Name(name) => name,
        }
    }

    /// The URI, if it can be asked.
    pub fn uri(&self) -> Option<&Uri> {
        match self {
            Href::Web(uri) => Some(uri),
            Href::Name(_) => None,
        }
    }
}

impl From<Uri> for Href {
    fn from(uri: Uri) -> Href {
        Href::Web(uri)
    }
}

impl std::fmt::Display for Href {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Relations compare without letter case unless they are URIs (RFC 8288, 2.1).
pub(super) fn normal_relation(mut rel: Box<str>) -> Box<str> {
    if !rel.contains(':') {
        rel.make_ascii_lowercase();
    }
    rel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_and_https_can_be_asked() {
        for (raw, read, uri) in [
            ("HTTP://Example.org", "http://example.org/", true),
            (" urn:nbn:nl:ui:12-85062\n", "urn:nbn:nl:ui:12-85062", false),
            ("info:eu-repo/semantics\u{7}/openAccess", "info:eu-repo/semantics/openAccess", false),
            ("gsiftp://grid.example.org/a b", "gsiftp://grid.example.org/a b", false),
        ] {
            let href = Href::parse(raw).unwrap();

            assert_eq!((href.as_str(), href.uri().is_some()), (read, uri), "{raw:?}");
            assert_eq!(Href::parse(href.as_str()), Ok(href), "reading it again changes nothing");
        }
    }

    #[test]
    fn what_is_no_absolute_uri_leads_nowhere() {
        for raw in ["", "a/b", "http://", "//h/a"] {
            assert!(Href::parse(raw).is_err(), "{raw:?}");
        }
    }
}
