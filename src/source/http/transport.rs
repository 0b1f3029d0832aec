//! The connection pools: one for each kind of connection, because a pool decides which addresses it connects to, which
//! certificate it shows and which protocols it offers.

use super::bulk::Way;
use super::names::Names;
use super::opening::OpeningLayer;
use super::{HttpConfig, HttpError, policy::AddressRefusal, policy::Reach};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// `resyncfs/VERSION`
const USER_AGENT: &str = concat!("resyncfs/", env!("CARGO_PKG_VERSION"));
/// Shorter than the 75 s after which common servers close: a connection found closed costs a round trip.
const IDLE: Duration = Duration::from_secs(60);
/// The same of connections that a request has for itself, of which there are many for a short time.
const IDLE_APART: Duration = Duration::from_secs(15);
/// A host that does not take further connections may leave them without an answer: then what was to come over one comes over the
/// shared one, before its reader loses patience.
const CONNECT_APART: Duration = Duration::from_secs(3);
/// HTTP/2 flow control for one body.
const STREAM_WINDOW: u32 = 2 << 20;
/// How often a connection with requests under way is asked whether it is alive, and how long it may take to answer.
const HTTP2_PING: Duration = Duration::from_secs(15);

/// The proxies of the environment; empty where not set.
#[derive(Clone, Default)]
pub(super) struct ProxySettings {
    pub(super) http: String,
    pub(super) https: String,
    pub(super) except: String,
}

impl ProxySettings {
    /// `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, or the same in capitals.
    pub(super) fn from_environment() -> ProxySettings {
        let read = |name: &str| {
            let capitals = name.to_ascii_uppercase();
            // A CGI program is handed the request's `Proxy` field as HTTP_PROXY.
            let is_forged = name == "http_proxy" && std::env::var_os("REQUEST_METHOD").is_some();
            std::env::var(name).ok().or_else(|| std::env::var(capitals).ok().filter(|_| !is_forged)).unwrap_or_default()
        };
        let all = read("all_proxy");
        let or_all = |own: String| if own.is_empty() { all.clone() } else { own };
        ProxySettings { http: or_all(read("http_proxy")), https: or_all(read("https_proxy")), except: read("no_proxy") }
    }

    fn matcher(&self) -> Matcher {
        Matcher::builder().http(self.http.as_str()).https(self.https.as_str()).no(self.except.as_str()).build()
    }

    /// The same for reqwest. An address that is no http proxy is an error: to go directly is not what was meant.
    fn proxies(&self) -> Result<Vec<reqwest::Proxy>, HttpError> {
        let refused = |name: &str, cause: Option<reqwest::Error>| HttpError::Config {
            what: format!("{name}_proxy does not name an http or https proxy"),
            cause: cause.map(|cause| cause.without_url().into()),
        };
        let mut proxies = Vec::new();
        for (name, address) in [("http", &self.http), ("https", &self.https)] {
            if address.is_empty() {
                continue;
            }
            if address.split_once("://").is_some_and(|(scheme, _)| !matches!(scheme, "http" | "https")) {
                return Err(refused(name, None));
            }
            let proxy = if name == "http" { reqwest::Proxy::http(address) } else { reqwest::Proxy::https(address) };
            let proxy = proxy.map_err(|cause| refused(name, Some(cause)))?;
            proxies.push(proxy.no_proxy(reqwest::NoProxy::from_string(&self.except)));
        }
        Ok(proxies)
    }
}

/// Every pool that is needed; cheap to share, independent of which host is the Source's own.
pub(super) struct Transport {
    public: Pools,
    trusted: Pools,
    proxied: Option<Pools>,
    /// The last two with the client certificate, where there is one.
    own: Option<Pools>,
    own_proxied: Option<Pools>,
    proxy_matcher: Matcher,
}

impl Transport {
    pub(super) fn new(config: &HttpConfig, settings: &ProxySettings) -> Result<Transport, HttpError> {
        let anonymous = tls(config, None)?;
        let identified = config.client_certificate.as_deref().map(|pem| tls(config, Some(pem))).transpose()?;
        let proxies = settings.proxies()?;
        let names = Arc::new(Names::default());
        let direct = |tls: &rustls::ClientConfig, reach| {
            Pools::new(config, tls, |pool| {
                let resolver = CheckedResolver { reach, names: Arc::clone(&names) };
                pool.no_proxy().dns_resolver(resolver)
            })
        };
        let proxied = |tls: &rustls::ClientConfig| {
            // The resolver only ever sees the proxy's name here, which the person chose.
            let through = |pool| proxies.iter().cloned().fold(pool, reqwest::ClientBuilder::proxy);
            (!proxies.is_empty()).then(|| Pools::new(config, tls, through)).transpose()
        };
        Ok(Transport {
            public: direct(&anonymous, Reach::Public)?,
            trusted: direct(&anonymous, Reach::Trusted)?,
            proxied: proxied(&anonymous)?,
            own: identified.as_ref().map(|tls| direct(tls, Reach::Trusted)).transpose()?,
            own_proxied: identified.as_ref().map(proxied).transpose()?.flatten(),
            proxy_matcher: settings.matcher(),
        })
    }

    /// Whether requests for `url` go to a proxy.
    pub(super) fn is_proxied(&self, url: &Url) -> bool {
        self.proxied.is_some()
            && url.as_str().parse().is_ok_and(|target| self.proxy_matcher.intercept(&target).is_some())
    }

    /// The pools for requests to a host of that reach.
    pub(super) fn pools(&self, reach: Reach, is_own: bool, is_proxied: bool) -> &Pools {
        let direct = match reach {
            Reach::Public => &self.public,
            Reach::Trusted => &self.trusted,
        };
        let (own, other) = match is_proxied {
            true => (self.own_proxied.as_ref(), self.proxied.as_ref().unwrap_or(direct)),
            false => (self.own.as_ref(), direct),
        };
        own.filter(|_| is_own).unwrap_or(other)
    }
}

/// The pools of one kind of connection.
pub(super) struct Pools {
    shared: reqwest::Client,
    apart: reqwest::Client,
}

impl Pools {
    /// With the same addresses, proxies, certificates and sessions; `through` says how hosts are reached.
    fn new(
        config: &HttpConfig,
        tls: &rustls::ClientConfig,
        through: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Pools, HttpError> {
        let mut alone = tls.clone();
        alone.alpn_protocols = vec![b"http/1.1".to_vec()];
        let apart = through(pool(config, &alone))
            .pool_idle_timeout(IDLE_APART)
            .connect_timeout(config.connect_timeout.min(CONNECT_APART));
        Ok(Pools { shared: build(through(pool(config, tls)))?, apart: build(apart)? })
    }

    /// The one for requests that go this way.
    pub(super) fn of(&self, way: Way) -> &reqwest::Client {
        match way {
            Way::Shared => &self.shared,
            Way::Apart => &self.apart,
        }
    }
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, HttpError> {
    builder
        .build()
        .map_err(|cause| HttpError::Config { what: "no HTTP client can be made".to_owned(), cause: Some(cause.into()) })
}

/// What all pools have in common.
fn pool(config: &HttpConfig, tls: &rustls::ClientConfig) -> reqwest::ClientBuilder {
    // As many windows as there can be bodies, so that one that nobody reads cannot stop the others of its connection.
    let connection_window = STREAM_WINDOW.saturating_mul(u32::try_from(config.connections).unwrap_or(u32::MAX));
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .user_agent(USER_AGENT)
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(config.connect_timeout)
        .connector_layer(OpeningLayer)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(config.connections.max(1))
        // What a vanished peer does not acknowledge within the time of a connect is as dead as one that never came up.
        .tcp_user_timeout(config.connect_timeout)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(connection_window.clamp(STREAM_WINDOW, i32::MAX as u32))
        .http2_keep_alive_interval(HTTP2_PING)
        .http2_keep_alive_timeout(config.connect_timeout)
}

/// TLS 1.2 and 1.3, HTTP/2 and HTTP/1.1 offered, the system's certificates and the extra ones trusted.
fn tls(config: &HttpConfig, client_certificate: Option<&[u8]>) -> Result<rustls::ClientConfig, HttpError> {
    let failed = |what: &str, cause: Box<dyn std::error::Error + Send + Sync>| HttpError::Config {
        what: what.to_owned(),
        cause: Some(cause),
    };
    let mut roots = rustls::RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in native.errors {
        tracing::warn!(%error, "a system certificate is left out");
    }
    roots.add_parsable_certificates(native.certs);
    if let Some(pem) = &config.ca_bundle {
        let what = "the CA bundle is not PEM with certificates in it";
        let certificates = certificates(pem, what)?;
        for certificate in certificates {
            roots.add(certificate).map_err(|cause| failed(what, cause.into()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|cause| failed("no TLS version is available", cause.into()))?
        .with_root_certificates(roots);
    let mut tls = match client_certificate {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let what = "the client certificate is not PEM with a certificate and its key";
            let key = PrivateKeyDer::from_pem_slice(pem).map_err(|cause| failed(what, cause.into()))?;
            builder.with_client_auth_cert(certificates(pem, what)?, key).map_err(|cause| failed(what, cause.into()))?
        }
    };
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

/// The certificates of a PEM file, at least one; `what` is the error's text.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, HttpError> {
    let failed = |cause| HttpError::Config { what: what.to_owned(), cause };
    let certificates = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| failed(Some(cause.into())))?;
    if certificates.is_empty() { Err(failed(None)) } else { Ok(certificates) }
}

/// The system's resolver, without the addresses that a connection of its reach may not go to.
struct CheckedResolver {
    reach: Reach,
    names: Arc<Names>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, names) = (self.reach, Arc::clone(&self.names));
        Box::pin(async move {
            // Port 0 stands for the port of the URL.
            let ask =
                || async { Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.map(|found| found.ip()).collect()) };
            let found = names.addresses(name.as_str(), ask).await?;
            let mut refusal: Option<AddressRefusal> = None;
            let mut addresses: Vec<SocketAddr> = Vec::new();
            for address in found.iter() {
                match reach.check(name.as_str(), *address) {
                    Ok(()) => addresses.push(SocketAddr::new(*address, 0)),
                    Err(refused) => refusal = refusal.or(Some(refused)),
                }
            }
            match refusal {
                Some(refusal) if addresses.is_empty() => Err(refusal.into()),
                _ => Ok(Box::new(addresses.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[tokio::test]
    async fn what_the_resolver_said_lately_it_is_not_asked_again() {
        let names = Arc::new(Names::default());
        // No resolver knows such a name (RFC 6761, section 6.4).
        let known = "source.invalid";
        names.addresses(known, || async { Ok(vec![IpAddr::from([9, 9, 9, 9])]) }).await.unwrap();
        let resolver = CheckedResolver { reach: Reach::Public, names };

        let found = resolver.resolve(known.parse().unwrap()).await.unwrap();

        assert_eq!(found.collect::<Vec<_>>(), [SocketAddr::from(([9, 9, 9, 9], 0))]);
    }
}
