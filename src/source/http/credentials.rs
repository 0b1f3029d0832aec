//! Who gets which credentials.

use super::{HttpError, netrc, policy::AddressPolicy};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::OnceLock;
use url::Url;

/// Credentials, never printed.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Complete header fields (name, value), `Authorization` included.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The content of a netrc file: entries count for their own hosts.
    pub netrc: Option<Box<str>>,
    /// How the person can be reached, for those who run a host: `User-Agent` says it to all.
    pub contact: Option<Box<str>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// The credentials as header fields, checked once.
pub(super) struct Keys {
    headers: HeaderMap,
    netrc: Option<Box<str>>,
}

impl Keys {
    /// Errors name the field, never its value.
    pub(super) fn new(credentials: &Credentials) -> Result<Keys, HttpError> {
        let mut headers = HeaderMap::new();
        for (name, value) in &credentials.headers {
            let refused =
                || HttpError::Config { what: format!("{name:?} with its value is not a header field"), cause: None };
            let field = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| refused())?;
            let mut value = HeaderValue::from_str(value.trim()).map_err(|_| refused())?;
            value.set_sensitive(true);
            headers.append(field, value);
        }
        Ok(Keys { headers, netrc: credentials.netrc.clone() })
    }

    /// `request` with what the host of `url` may get: the header fields for the Source's own host, else the netrc
    /// entry for that host; over https, or over the own host's own http, because anyone on the way reads the rest.
    pub(super) fn apply(
        &self,
        request: reqwest::RequestBuilder,
        url: &Url,
        policy: &AddressPolicy,
        own_scheme: &OwnScheme,
    ) -> reqwest::RequestBuilder {
        let is_own = policy.is_own(url);
        let is_http_meant = is_own && own_scheme.is_or_becomes(url.scheme());
        if url.scheme() != "https" && !is_http_meant {
            return request;
        }
        let mut request = request;
        if is_own {
            request = request.headers(self.headers.clone());
            if self.headers.contains_key(reqwest::header::AUTHORIZATION) {
                return request;
            }
        }
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        match self.netrc.as_deref().and_then(|text| netrc::login(text, host, is_own)) {
            Some(login) => request.basic_auth(login.user, Some(login.password)),
            None => request,
        }
    }
}

/// The scheme of the Source's own hosts: as configured, else that of the first request to one.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnScheme(OnceLock<Box<str>>);

impl OwnScheme {
    pub(super) fn new(configured: Option<&str>) -> OwnScheme {
        OwnScheme(configured.map_or_else(OnceLock::new, |scheme| OnceLock::from(Box::from(scheme))))
    }

    /// Whether `told` counts from now on, where the Source has moved: it must say a scheme, and not one below https.
    pub(super) fn gives_way_to(&self, told: &OwnScheme) -> bool {
        let is_https = self.0.get().is_some_and(|scheme| &**scheme == "https");
        told.0.get().is_some() && !is_https
    }

    fn is_or_becomes(&self, scheme: &str) -> bool {
        &**self.0.get_or_init(|| scheme.into()) == scheme
    }
}
