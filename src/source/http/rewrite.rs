//! Where a published URI is fetched from (`rewrite=FROM=TO`).

use super::HttpError;
use crate::document::Uri;

/// The prefixes, longest FROM first.
pub(super) struct Rewrites(Vec<(Box<str>, Box<str>)>);

impl Rewrites {
    /// Checks that both sides of each pair are http or https URIs and brings FROM into the form that URIs have here.
    pub(super) fn new(pairs: &[(Box<str>, Box<str>)]) -> Result<Rewrites, HttpError> {
        let mut normalised = Vec::with_capacity(pairs.len());
        for (from, to) in pairs {
            normalised.push((prefix(from)?, prefix(to)?));
        }
        normalised.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        Ok(Rewrites(normalised))
    }

    /// The URI to fetch instead of `uri`; `uri` itself where no FROM is a prefix of it.
    pub(super) fn apply(&self, uri: &Uri) -> Uri {
        for (from, to) in &self.0 {
            let Some(rest) = uri.as_str().strip_prefix(&**from) else { continue };
            // `http://host` is not a prefix of `http://host:8080/` nor of `http://host.example/`.
            if is_bare_authority(from) && !rest.is_empty() && !rest.starts_with(['/', '?']) {
                continue;
            }
            if let Ok(rewritten) = Uri::parse(&format!("{to}{rest}")) {
                return rewritten;
            }
        }
        uri.clone()
    }

    /// The URIs that rewriting leads to.
    pub(super) fn targets(&self) -> impl Iterator<Item = Uri> {
        self.0.iter().filter_map(|(_, to)| Uri::parse(to).ok())
    }
}

/// The normal form of a URI prefix. Normalisation gives every URI a path: it is taken away again where there was none.
fn prefix(raw: &str) -> Result<Box<str>, HttpError> {
    let uri = Uri::parse(raw).map_err(|cause| HttpError::Config {
        what: "rewrite=FROM=TO: both must be http or https URIs".to_owned(),
        cause: Some(Box::new(cause)),
    })?;
    let normal = uri.as_str();
    Ok(if is_bare_authority(raw.trim()) { normal.trim_end_matches('/').into() } else { normal.into() })
}

/// Returns whether a URI ends with its authority.
fn is_bare_authority(uri: &str) -> bool {
    uri.split_once("://").is_some_and(|(_, rest)| !rest.contains(['/', '?', '#']))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(pairs: &[(&str, &str)], uri: &str) -> String {
        let pairs: Vec<_> = pairs.iter().map(|&(from, to)| (from.into(), to.into())).collect();
        Rewrites::new(&pairs).unwrap().apply(&Uri::parse(uri).unwrap()).to_string()
    }

    #[test]
    fn a_prefix_is_replaced_and_the_rest_kept() {
        let pairs = [("http://localhost:8080/", "https://repo.example.org/")];
        assert_eq!(rewritten(&pairs, "http://localhost:8080/a?b=c"), "https://repo.example.org/a?b=c");
        assert_eq!(rewritten(&pairs, "http://localhost:8081/a"), "http://localhost:8081/a");
    }

    #[test]
    fn a_bare_authority_is_a_whole_one() {
        let pairs = [("HTTP://localhost:80", "https://repo.example.org")];
        assert_eq!(rewritten(&pairs, "http://localhost/a"), "https://repo.example.org/a");
        assert_eq!(rewritten(&pairs, "http://localhost:8080/a"), "http://localhost:8080/a");
        assert_eq!(rewritten(&pairs, "http://localhost.example/a"), "http://localhost.example/a");
    }

    #[test]
    fn the_longest_prefix_counts() {
        let pairs = [("http://a.example/", "http://b.example/"), ("http://a.example/x/", "http://c.example/")];
        assert_eq!(rewritten(&pairs, "http://a.example/x/1"), "http://c.example/1");
        assert_eq!(rewritten(&pairs, "http://a.example/y/1"), "http://b.example/y/1");
    }

    #[test]
    fn what_is_no_uri_is_refused() {
        assert!(matches!(Rewrites::new(&[("ftp://a/".into(), "http://b/".into())]), Err(HttpError::Config { .. })));
    }
}
