//! The connection pools: one for each kind of connection, because a pool decides which addresses it connects to, which
//! certificate it shows and which protocols it offers.

use super::certificates::tls;
use super::policy::{AddressRefusal, Reach, is_public};
use super::resolver::{self, NameCache};
use super::{HttpConfig, HttpError, Way, silence};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderValue;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use url::Url;

/// The program, and what it is.
const USER_AGENT: &str = concat!("resyncfs/", env!("CARGO_PKG_VERSION"), " (ResourceSync file system)");
/// Lines of a response head: as many as a client of curl's kind takes. A browser's are some dozens.
const HEAD_LINES: usize = 1000;
/// Bytes of a response head over HTTP/2.
const HTTP2_HEAD: u32 = 256 << 10;
/// Shorter than the 75 s after which common servers close: a connection found closed costs a round trip.
const IDLE: Duration = Duration::from_secs(60);
/// Idle time of connections for ranges, of which there are many for a short time.
const IDLE_RANGES: Duration = Duration::from_secs(15);
/// A host that takes no further connections may leave them without an answer. The range is then asked for over the shared connection. A probe for
/// dead connections would replace that one first, so it comes later.
const CONNECT_RANGES: Duration = Duration::from_secs(2);
const _: () = assert!(CONNECT_RANGES.as_millis() + 500 < silence::PATIENCE.as_millis());
/// HTTP/2 flow control for one body.
const STREAM_WINDOW: u32 = 2 << 20;
/// How often a connection with requests under way is asked whether it is alive, and how long it may take to answer.
const HTTP2_PING: Duration = Duration::from_secs(15);

/// The proxies of the environment.
#[derive(Clone, Default)]
pub(super) struct ProxySettings {
    pub(super) http: Option<Proxy>,
    pub(super) https: Option<Proxy>,
    /// Hosts that are reached without one, as `no_proxy` lists them.
    pub(super) except: String,
}

/// The hosts of the proxies of the environment; an error where one of them cannot be used.
pub fn proxies_in_use() -> Result<Vec<Box<str>>, HttpError> {
    ProxySettings::from_environment().checked().map(|(_, hosts)| hosts)
}

/// The address of a proxy, and the variable of the environment that holds it.
#[derive(Clone)]
pub(super) struct Proxy {
    pub(super) variable: String,
    pub(super) address: String,
}

impl ProxySettings {
    /// `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, or the same in capitals.
    pub(super) fn from_environment() -> ProxySettings {
        // A CGI program gets the request's `Proxy` field as HTTP_PROXY.
        let is_forged = |variable: &String| variable == "HTTP_PROXY" && std::env::var_os("REQUEST_METHOD").is_some();
        let read = |name: &str| {
            let variables = [name.to_owned(), name.to_ascii_uppercase()].into_iter().filter(|it| !is_forged(it));
            let mut set = variables.filter_map(|it| std::env::var(&it).ok().map(|value| (it, value)));
            let (variable, value) = set.next()?;
            Some(Proxy { variable, address: value.trim().to_owned() }).filter(|proxy| !proxy.address.is_empty())
        };
        let or_all = |name| read(name).or_else(|| read("all_proxy"));
        let except = read("no_proxy").map_or_else(String::new, |hosts| hosts.address);
        ProxySettings { http: or_all("http_proxy"), https: or_all("https_proxy"), except }
    }

    /// The proxies in use, and their hosts. An address that is not a proxy's is an error: a direct request is not what was meant.
    fn checked(&self) -> Result<(Vec<reqwest::Proxy>, Vec<Box<str>>), HttpError> {
        let (mut proxies, mut hosts) = (Vec::new(), Vec::new());
        // A `*` stands for every host, addresses included.
        let is_everything = self.except.split(',').any(|host| host.trim() == "*");
        for (proxy, is_https) in [(&self.http, false), (&self.https, true)] {
            let Some(proxy) = proxy.as_ref().filter(|_| !is_everything) else { continue };
            hosts.push(proxy.host()?);
            let address = proxy.address.as_str();
            let made = if is_https { reqwest::Proxy::https(address) } else { reqwest::Proxy::http(address) };
            let made = made.map_err(|cause| proxy.refused(Some(cause)))?;
            proxies.push(made.no_proxy(reqwest::NoProxy::from_string(&self.except)));
        }
        Ok((proxies, hosts))
    }
}

impl Proxy {
    /// Its host; an error where the address is not one of a proxy that can be used. Without a scheme it is an http proxy.
    fn host(&self) -> Result<Box<str>, HttpError> {
        let address = match self.address.contains("://") {
            true => self.address.clone(),
            false => format!("http://{}", self.address),
        };
        let url = Url::parse(&address).ok();
        let url =
            url.filter(|url| matches!(url.scheme(), "http" | "https" | "socks4" | "socks4a" | "socks5" | "socks5h"));
        let host = url.as_ref().and_then(Url::host_str).filter(|host| !host.is_empty());
        host.map(|host| host.trim_matches(['[', ']']).into()).ok_or_else(|| self.refused(None))
    }

    /// The value without its password.
    fn refused(&self, cause: Option<reqwest::Error>) -> HttpError {
        let (scheme, rest) = self.address.split_once("://").map_or((None, &*self.address), |(s, rest)| (Some(s), rest));
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        let value = scheme.map_or_else(|| host.to_owned(), |scheme| format!("{scheme}://{host}"));
        let variable = &self.variable;
        HttpError::Config {
            what: format!(
                "{variable}={value:?} in the environment is not a usable proxy: \
                 http, https, socks5, socks5h, socks4 or socks4a, as in socks5h://HOST:PORT"
            ),
            cause: cause.map(|cause| cause.without_url().into()),
        }
    }
}

/// The pools in use, and what others are made of. They do not depend on which host is the Source's own.
pub(super) struct Transport {
    maker: Maker,
    current: RwLock<Arc<Generation>>,
}

struct Maker {
    config: HttpConfig,
    /// TLS without a client certificate.
    anonymous: rustls::ClientConfig,
    proxies: Vec<reqwest::Proxy>,
    names: Arc<NameCache>,
}

/// Every pool that is needed, until connections are found to be dead or another certificate is to be shown.
pub(super) struct Generation {
    /// Rises with each generation.
    pub(super) number: u64,
    public: Pools,
    trusted: Pools,
    /// The trusted ones with the client certificate, where there is one, and how it is shown.
    own: Option<(rustls::ClientConfig, Pools)>,
}

impl Transport {
    /// `allowed` are the names of hosts that may have any address.
    pub(super) fn new(
        config: &HttpConfig,
        settings: &ProxySettings,
        allowed: Vec<Box<str>>,
    ) -> Result<Transport, HttpError> {
        let anonymous = tls(config, None)?;
        let identified =
            config.credentials.client_certificate.as_deref().map(|pem| tls(config, Some(pem))).transpose()?;
        let (proxies, proxy_hosts) = settings.checked()?;
        let names = Arc::new(NameCache::new(allowed, proxy_hosts));
        let maker = Maker { config: config.clone(), anonymous, proxies, names };
        let current = RwLock::new(Arc::new(maker.generation(0, identified)?));
        Ok(Transport { maker, current })
    }

    /// The pools in use.
    pub(super) fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pools without the idle connections of generation `number`, which are likely to be dead. Requests under way keep theirs.
    pub(super) fn renewed(&self, number: u64) -> Result<Arc<Generation>, HttpError> {
        self.replace(|current| (current.number == number).then(|| current.own.as_ref().map(|(tls, _)| tls.clone())))
    }

    /// Pools that show another client certificate.
    pub(super) fn identify(&self, certificate: Option<&[u8]>) -> Result<(), HttpError> {
        let identified = certificate.map(|pem| tls(&self.maker.config, Some(pem))).transpose()?;
        self.replace(|_| Some(identified)).map(drop)
    }

    /// A generation with the client certificate that `identified` gives; `None`: the current one stays.
    fn replace(
        &self,
        identified: impl FnOnce(&Generation) -> Option<Option<rustls::ClientConfig>>,
    ) -> Result<Arc<Generation>, HttpError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(identified) = identified(&current) {
            *current = Arc::new(self.maker.generation(current.number + 1, identified)?);
        }
        Ok(Arc::clone(&current))
    }

    /// No connection to the host of `url` came about: its name is looked up again by the next request.
    pub(super) fn forget_addresses(&self, url: &Url) {
        if let Some(name) = url.domain() {
            self.maker.names.forget(name);
        }
    }

    /// Refuses the name of a proxy as that of a host that a Source names: the proxy's addresses are not checked.
    pub(super) fn check_not_proxy(&self, url: &Url) -> Result<(), AddressRefusal> {
        let host = url.host_str().unwrap_or_default();
        match self.maker.names.is_proxy(host) {
            true => Err(AddressRefusal { host: host.into(), address: None, allowable: true }),
            false => Ok(()),
        }
    }
}

impl Generation {
    /// The pools for requests to a host of that reach.
    pub(super) fn pools(&self, reach: Reach, is_own: bool) -> &Pools {
        match (reach, &self.own) {
            (Reach::Public, _) => &self.public,
            (Reach::Trusted, Some((_, own))) if is_own => own,
            (Reach::Trusted, _) => &self.trusted,
        }
    }
}

impl Maker {
    fn generation(&self, number: u64, identified: Option<rustls::ClientConfig>) -> Result<Generation, HttpError> {
        Ok(Generation {
            number,
            public: self.pools(&self.anonymous, Reach::Public)?,
            trusted: self.pools(&self.anonymous, Reach::Trusted)?,
            own: identified.map(|tls| Ok((tls.clone(), self.pools(&tls, Reach::Trusted)?))).transpose()?,
        })
    }

    fn pools(&self, tls: &rustls::ClientConfig, reach: Reach) -> Result<Pools, HttpError> {
        // It resolves the proxy's own name, which the person chose, and with socks5 and socks4 those of hosts.
        let resolver = CheckedResolver { reach, names: Arc::clone(&self.names) };
        Pools::new(&self.config, tls, |pool| {
            let pool = pool.no_proxy().dns_resolver(resolver.clone());
            self.proxies.iter().cloned().fold(pool, reqwest::ClientBuilder::proxy)
        })
    }
}

/// The pools of one kind of connection.
pub(super) struct Pools {
    shared: reqwest::Client,
    /// Pool of HTTP/1.1 alone.
    ranges: reqwest::Client,
}

impl Pools {
    /// With the same addresses, proxies, certificates and sessions; `through` says how hosts are reached.
    fn new(
        config: &HttpConfig,
        tls: &rustls::ClientConfig,
        through: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Pools, HttpError> {
        let user_agent = user_agent(config)?;
        let mut alone = tls.clone();
        alone.alpn_protocols = vec![b"http/1.1".to_vec()];
        let ranges = through(pool(config, &alone, &user_agent))
            .http1_only()
            .pool_idle_timeout(IDLE_RANGES)
            .connect_timeout(config.connect_timeout.min(CONNECT_RANGES));
        Ok(Pools { shared: build(through(pool(config, tls, &user_agent)))?, ranges: build(ranges)? })
    }

    /// The one for requests that go this way.
    pub(super) fn of(&self, way: Way) -> &reqwest::Client {
        match way {
            Way::Shared => &self.shared,
            Way::Ranges => &self.ranges,
        }
    }
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, HttpError> {
    builder
        .build()
        .map_err(|cause| HttpError::Config { what: "no HTTP client can be made".to_owned(), cause: Some(cause.into()) })
}

/// The program, and the contact that the person added.
fn user_agent(config: &HttpConfig) -> Result<HeaderValue, HttpError> {
    let contact = config.credentials.contact.as_deref().unwrap_or_default();
    HeaderValue::from_str(format!("{USER_AGENT} {contact}").trim()).map_err(|cause| HttpError::Config {
        what: "user-agent= is not one line of text".to_owned(),
        cause: Some(cause.into()),
    })
}

/// Settings that all pools have in common.
fn pool(config: &HttpConfig, tls: &rustls::ClientConfig, user_agent: &HeaderValue) -> reqwest::ClientBuilder {
    // As many windows as there can be bodies, so that one that is not read cannot stop the others of its connection.
    let connection_window = STREAM_WINDOW.saturating_mul(u32::try_from(config.connections).unwrap_or(u32::MAX));
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .user_agent(user_agent.clone())
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(config.connect_timeout)
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(config.connections.max(1))
        // What a vanished peer does not acknowledge within the time of a connect is as dead as one that never came up.
        .tcp_user_timeout(config.connect_timeout)
        // A head that curl can read is read: what is malformed of it is passed over.
        .http1_allow_spaces_after_header_name_in_responses(true)
        .http1_allow_obsolete_multiline_headers_in_responses(true)
        .http1_ignore_invalid_headers_in_responses(true)
        .http1_max_headers(HEAD_LINES)
        .http2_max_header_list_size(HTTP2_HEAD)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(connection_window.clamp(STREAM_WINDOW, i32::MAX as u32))
        .http2_keep_alive_interval(HTTP2_PING)
        .http2_keep_alive_timeout(config.connect_timeout)
}

/// The system's resolver, without the addresses that a connection of its reach may not go to.
#[derive(Clone)]
struct CheckedResolver {
    reach: Reach,
    names: Arc<NameCache>,
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (reach, names) = (self.reach, Arc::clone(&self.names));
        Box::pin(async move {
            let name = name.as_str();
            // Where a proxy is sent to an address, that is asked for as a name.
            let found = match name.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => Arc::from([address]),
                Err(_) => {
                    let asked = Box::<str>::from(name);
                    names.addresses(name, move || resolver::ask_system(asked)).await?
                }
            };
            // A public name that comes to mean a machine of this network is not followed there.
            let was_public = || names.was_public(name, found.iter().all(|found| is_public(*found)));
            let reach = if reach == Reach::Trusted && was_public() { Reach::Public } else { reach };
            let is_proxy = names.is_proxy(name);
            let mut refusal: Option<AddressRefusal> = None;
            let mut may_reach = |address: &IpAddr| match reach.check(name, *address) {
                Err(refused) if !is_proxy => {
                    refusal.get_or_insert(refused);
                    false
                }
                _ => true,
            };
            // Port 0 stands for the port of the URL.
            let addresses = found.iter().copied().filter(&mut may_reach).map(|address| SocketAddr::new(address, 0));
            let addresses: Vec<SocketAddr> = addresses.collect();
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

    fn resolver(reach: Reach, names: &Arc<NameCache>) -> CheckedResolver {
        CheckedResolver { reach, names: Arc::clone(names) }
    }

    /// Has the resolver find `addresses` for `name`, which it finds no others for while the test runs.
    async fn found(names: &Arc<NameCache>, name: &str, addresses: &[[u8; 4]]) {
        names.forget(name);
        let addresses = addresses.iter().map(|bytes| IpAddr::from(*bytes)).collect();
        names.addresses(name, || async { Ok(addresses) }).await.unwrap();
    }

    async fn resolved(resolver: &CheckedResolver, name: &str) -> Result<Vec<SocketAddr>, String> {
        resolver.resolve(name.parse().unwrap()).await.map(Iterator::collect).map_err(|refused| refused.to_string())
    }

    #[tokio::test]
    async fn a_name_that_was_looked_up_lately_is_not_again() {
        // No resolver knows such a name (RFC 6761, section 6.4).
        let (names, known) = (Arc::new(NameCache::new(Vec::new(), Vec::new())), "source.invalid");
        found(&names, known, &[[9, 9, 9, 9]]).await;
        assert_eq!(
            resolved(&resolver(Reach::Public, &names), known).await.unwrap(),
            [SocketAddr::from(([9, 9, 9, 9], 0))]
        );
    }

    /// Promise: a Source's own public name that later means a machine of this network is not followed there.
    #[tokio::test]
    async fn a_public_name_does_not_become_a_private_address() {
        let names = Arc::new(NameCache::new(vec!["allowed.invalid".into()], Vec::new()));
        let own = resolver(Reach::Trusted, &names);
        for name in ["own.invalid", "allowed.invalid"] {
            found(&names, name, &[[9, 9, 9, 9]]).await;
            resolved(&own, name).await.unwrap();
            found(&names, name, &[[10, 0, 0, 1]]).await;
        }
        found(&names, "inside.invalid", &[[10, 0, 0, 1], [9, 9, 9, 9]]).await;
        resolved(&own, "inside.invalid").await.unwrap();
        found(&names, "inside.invalid", &[[127, 0, 0, 1]]).await;

        assert!(resolved(&own, "own.invalid").await.unwrap_err().contains("-o allow-host=own.invalid"));
        assert_eq!(resolved(&own, "allowed.invalid").await.unwrap(), [SocketAddr::from(([10, 0, 0, 1], 0))]);
        assert_eq!(resolved(&own, "inside.invalid").await.unwrap(), [SocketAddr::from(([127, 0, 0, 1], 0))]);
        found(&names, "own.invalid", &[[127, 0, 0, 1], [9, 9, 9, 8]]).await;
        assert_eq!(resolved(&own, "own.invalid").await.unwrap(), [SocketAddr::from(([9, 9, 9, 8], 0))]);
    }

    /// Promise: each address of a name is checked when it is connected to, over every kind of connection.
    #[tokio::test]
    async fn a_harmless_name_of_a_private_address_is_refused() {
        let transport = Transport::new(&HttpConfig::default(), &ProxySettings::default(), Vec::new()).unwrap();
        found(&transport.maker.names, "harmless.invalid", &[[127, 0, 0, 1]]).await;
        for way in [Way::Shared, Way::Ranges] {
            let generation = transport.generation();
            let client = generation.pools(Reach::Public, false).of(way);
            let error = client.get("http://harmless.invalid:1/").send().await.unwrap_err();
            assert!(format!("{error:?}").contains("AddressRefusal"), "{error:?}");
        }
    }

    /// Promise: a Source on the public net sends no request to machines that only this one can reach, a proxy's included.
    #[tokio::test]
    async fn the_host_of_a_proxy_is_checked_as_any_other() {
        let proxy = Proxy { variable: "http_proxy".to_owned(), address: "http://proxy.invalid:1".to_owned() };
        let settings = ProxySettings { http: Some(proxy), ..ProxySettings::default() };
        let transport = Transport::new(&HttpConfig::default(), &settings, Vec::new()).unwrap();
        found(&transport.maker.names, "proxy.invalid", &[[127, 0, 0, 1]]).await;
        let url = Url::parse("https://proxy.invalid:1/").unwrap();

        assert!(transport.check_not_proxy(&url).is_err());
    }
}
