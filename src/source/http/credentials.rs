//! Which host gets which credentials.

use super::{HttpError, netrc};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use url::Url;

/// Credentials, never printed.
#[derive(Clone, Default)]
pub struct Credentials {
    /// Complete header fields (name, value), `Authorization` included.
    pub headers: Vec<(Box<str>, Box<str>)>,
    /// The content of a netrc file: entries count for their own hosts.
    pub netrc: Option<Box<str>>,
    /// Client certificate and key, PEM, sent to the Source's host.
    pub client_certificate: Option<Vec<u8>>,
    /// How the person can be reached, for those who run a host. `User-Agent` holds it for every host.
    pub contact: Option<Box<str>>,
    /// All of these as their files hold them now, where one has changed.
    pub changed: Option<ChangedCredentials>,
}

/// Looks at the files of credentials, which blocks on the disk.
pub type ChangedCredentials = Arc<dyn Fn() -> Option<Credentials> + Send + Sync>;

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// The credentials as header fields, checked once.
pub(super) struct Keys {
    headers: HeaderMap,
    netrc: Option<Box<str>>,
    certificate: Option<Vec<u8>>,
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
        let certificate = credentials.client_certificate.clone();
        Ok(Keys { headers, netrc: credentials.netrc.clone(), certificate })
    }

    /// The client certificate and its key, PEM.
    pub(super) fn certificate(&self) -> Option<&[u8]> {
        self.certificate.as_deref()
    }

    /// `request` with what the host of `url` may get: the header fields for the Source's own host, else the netrc entry for that host. They go over
    /// https, and over http to the own host unless `own_is_https`, because everyone on the way can read the rest.
    pub(super) fn apply(
        &self,
        request: reqwest::RequestBuilder,
        url: &Url,
        is_own: bool,
        own_is_https: bool,
    ) -> reqwest::RequestBuilder {
        if url.scheme() != "https" && (own_is_https || !is_own) {
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
