//! The client: redirects inside tries, tries inside the deadline.

use super::body::LowSpeed;
use super::bulk::{Refusal, Way};
use super::credentials::{Keys, OwnScheme};
use super::due::Due;
use super::exchange::Exchange;
use super::head::{self, Head};
use super::limits::{Admission, Host, Hosts, Paused};
use super::opening::Connection;
use super::places::Place;
use super::policy::{AddressPolicy, AddressRefusal, Authority, Reach};
use super::rewrite::Rewrites;
use super::traffic::HostTraffic;
use super::transport::{Pools, ProxySettings, Transport};
use super::{Body, HttpConfig, HttpError, Line, Method, Posted, Request, Response, retry};
use crate::document::{Uri, UriError};
use reqwest::header::{self, HeaderName};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use url::Url;

/// How many redirects are followed.
const REDIRECTS: usize = 10;

/// Bytes of the answer to a form that are kept.
const FORM_ANSWER: usize = 300;

/// The client; cheap to clone. Clones share connections, rates, pauses, breakers, and which host is the Source's own.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    own: Arc<RwLock<Arc<Own>>>,
}

/// What follows from which host is the Source's own. A try that has begun goes on with what it began with.
#[derive(Debug)]
struct Own {
    policy: AddressPolicy,
    scheme: OwnScheme,
}

/// What does not depend on which host is the Source's own.
struct Shared {
    transport: Transport,
    hosts: Hosts,
    keys: Keys,
    rewrites: Rewrites,
    connect_timeout: Duration,
    low_speed: LowSpeed,
}

impl Client {
    /// A client with the proxies of the environment; errors are bad certificates, prefixes, header fields and hosts.
    pub fn new(config: HttpConfig) -> Result<Client, HttpError> {
        Client::with_proxies(config, &ProxySettings::from_environment())
    }

    pub(super) fn with_proxies(config: HttpConfig, proxies: &ProxySettings) -> Result<Client, HttpError> {
        let rewrites = Rewrites::new(&config.rewrites)?;
        let mut allowed = Vec::with_capacity(config.allowed_hosts.len());
        for raw in &config.allowed_hosts {
            allowed.push(Authority::parse(raw).ok_or_else(|| HttpError::Config {
                what: format!("allow-host={raw}: not HOST or HOST:PORT"),
                cause: None,
            })?);
        }
        allowed.extend(rewrites.targets().filter_map(|to| Authority::parse(&format!("{}:{}", to.host(), to.port()))));
        let (own, scheme) = own_authority(config.own_authority.as_deref().unwrap_or_default());
        let allowed_names = allowed.iter().map(|allowed| allowed.host().into()).collect();
        let policy = AddressPolicy::new(own, allowed);
        Ok(Client {
            own: Arc::new(RwLock::new(Arc::new(Own { policy, scheme }))),
            shared: Arc::new(Shared {
                transport: Transport::new(&config, proxies, allowed_names)?,
                hosts: Hosts::new(config.rate, config.connections),
                keys: Keys::new(&config.credentials)?,
                rewrites,
                connect_timeout: config.connect_timeout,
                low_speed: LowSpeed::new(config.low_speed_limit, config.low_speed_time),
            }),
        })
    }

    /// The same settings with one more own authority (known only after the entry point's redirects), `HOST[:PORT]` or
    /// `SCHEME://HOST[:PORT]`, as [`HttpConfig::own_authority`]. Clones made before do not know of it. Without a scheme the
    /// one that counts goes on to count, and https counts for good: credentials never go from it down to http.
    pub fn with_own_authority(&self, authority: &str) -> Client {
        let own = Arc::new(RwLock::new(Arc::new(self.own().at(authority))));
        Client { shared: Arc::clone(&self.shared), own }
    }

    /// Makes `authority` an own one too, for this client and all its clones.
    pub fn move_to(&self, authority: &str) {
        let moved = Arc::new(self.own().at(authority));
        *self.own.write().unwrap_or_else(PoisonError::into_inner) = moved;
    }

    fn own(&self) -> Arc<Own> {
        Arc::clone(&self.own.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Requests to the host of `uri` that may be under way for nobody yet, as things stand: the rest is for readers.
    pub fn beside_readers(&self, uri: &Uri) -> usize {
        self.shared.hosts.host(self.shared.rewrites.apply(uri).authority(), Instant::now()).beside_readers()
    }

    /// What each host was asked since the client was made, clones included, those asked most first, and how it stands.
    pub fn traffic(&self) -> Vec<HostTraffic> {
        self.shared.hosts.traffic(Instant::now())
    }

    /// Hosts that wanted a pause (`Retry-After`) are asked again at once: a person wants to know now.
    pub fn end_pauses(&self) {
        self.shared.hosts.end_pauses();
    }

    /// The host of `uri` wants so much time between two requests (`Crawl-delay`).
    pub fn slow_down(&self, uri: &Uri, interval: Duration) {
        let uri = self.shared.rewrites.apply(uri);
        self.shared.hosts.host(uri.authority(), Instant::now()).pace().slow_down(interval);
    }

    /// Why a host does not answer, where one has failed and has not answered since.
    pub fn unanswered(&self) -> Option<Box<str>> {
        self.shared.hosts.unanswered()
    }

    /// How long silence is borne: [`HttpConfig::low_speed_time`].
    pub fn patience(&self) -> Duration {
        self.shared.low_speed.window()
    }

    /// What is known of the way to the host of `uri`.
    pub fn line(&self, uri: &Uri) -> Line {
        let uri = self.shared.rewrites.apply(uri);
        *self.shared.hosts.host(uri.authority(), Instant::now()).line()
    }

    /// The connections for requests to the host of `uri` that may share one.
    #[cfg(test)]
    pub(super) fn opening(&self, uri: &Uri) -> Arc<super::opening::Opening> {
        let uri = self.shared.rewrites.apply(uri);
        Arc::clone(self.shared.hosts.host(uri.authority(), Instant::now()).opening(Way::Shared))
    }

    /// Rises with every answer of `uri`'s host and with every byte that it sends, whoever asked for them.
    pub fn progress(&self, uri: &Uri) -> u64 {
        self.shared.hosts.host(self.shared.rewrites.apply(uri).authority(), Instant::now()).counters.progress()
    }

    /// How many requests one host is asked at once.
    pub fn connections(&self) -> usize {
        self.shared.hosts.connections()
    }

    /// Sends `request`; repeats it with full jitter, honouring `Retry-After`, until its deadline where that can help.
    pub async fn send(&self, request: Request) -> Result<Response, HttpError> {
        let due = Due::of(&request);
        let mut last: Option<HttpError> = None;
        for attempt in 1.. {
            let try_once = self.follow(&request, &due, attempt > 1);
            let error = match due.within(try_once).await {
                Some(Ok(response)) => return Ok(response),
                Some(Err(error)) => error,
                None => break,
            };
            let backoff = retry::backoff(attempt, retry::jitter());
            let wait = match &error {
                // Past the pause, so that those who were told the same do not all come at once.
                HttpError::Status { retry_after: Some(pause), .. } => pause.saturating_add(backoff),
                _ => backoff,
            };
            if !request.repeats || !retry::is_worthwhile(&error, attempt) {
                return Err(with_last(error, last));
            }
            if due.latest().saturating_duration_since(Instant::now()) <= wait {
                return Err(error);
            }
            tracing::debug!(%error, attempt, ?wait, "asked again");
            last = Some(error);
            tokio::time::sleep(wait).await;
        }
        Err(HttpError::Deadline { uri: request.uri, last: last.map(Box::new) })
    }

    /// Posts `form` (`application/x-www-form-urlencoded`) to `uri` once: neither repeated nor redirected, since both could
    /// do what was asked twice, or tell it to somebody else. The answer is due within `within`.
    pub async fn post_form(&self, uri: &Uri, form: &str, within: Duration) -> Result<Posted, HttpError> {
        let request = Request::get(uri.clone(), within);
        let target = self.shared.rewrites.apply(uri);
        let posted = async {
            let (mut answer, _connection) = self.ask(&request, &Due::of(&request), &target, Some(form), false).await?;
            let status = answer.status().as_u16();
            let location = head::redirect(status, answer.headers())
                .and_then(|location| Uri::resolve(Some(&target), &location).ok());
            let retry_after = head::retry_after(answer.headers(), SystemTime::now());
            let mut text = Vec::new();
            while text.len() < FORM_ANSWER
                && let Ok(Some(chunk)) = answer.chunk().await
            {
                text.extend_from_slice(&chunk);
            }
            text.truncate(FORM_ANSWER);
            Ok(Posted { status, location, retry_after, text: String::from_utf8_lossy(&text).into_owned() })
        };
        let outcome = tokio::time::timeout_at(request.deadline.into(), posted).await;
        outcome.unwrap_or(Err(HttpError::Deadline { uri: request.uri, last: None }))
    }

    /// One try: asks, and follows redirects to the answer.
    async fn follow(&self, request: &Request, due: &Due, is_retry: bool) -> Result<Response, HttpError> {
        let mut uri = self.shared.rewrites.apply(&request.uri);
        let mut visited = Vec::new();
        loop {
            let (answer, connection) = self.ask(request, due, &uri, None, is_retry).await?;
            let status = answer.status().as_u16();
            let Some(location) = head::redirect(status, answer.headers()) else {
                return self.response(request, uri, answer, connection);
            };
            let target = Uri::resolve(Some(&uri), &location)
                .map_err(|cause| HttpError::BadRedirect { uri: request.uri.clone(), cause })?;
            visited.push(uri);
            uri = self.shared.rewrites.apply(&target);
            if visited.contains(&uri) {
                return Err(HttpError::RedirectLoop { uri: request.uri.clone(), to: uri });
            }
            if visited.len() > REDIRECTS {
                return Err(HttpError::TooManyRedirects { uri: request.uri.clone(), limit: REDIRECTS });
            }
        }
    }

    /// The head of one host's answer and its connection. `form` is posted, without one it is a GET or HEAD. What
    /// the host does not take over a connection of its own is asked for once more over the one for all.
    async fn ask(
        &self,
        request: &Request,
        due: &Due,
        uri: &Uri,
        form: Option<&str>,
        is_retry: bool,
    ) -> Result<(reqwest::Response, Connection), HttpError> {
        let shared = &*self.shared;
        let url = Url::parse(uri.as_str()).map_err(|_| HttpError::BadRedirect {
            uri: request.uri.clone(),
            cause: UriError::Malformed(uri.to_string()),
        })?;
        let is_proxied = shared.transport.is_proxied(&url);
        let own = self.own();
        let reach = own.policy.admit(&url, is_proxied).and_then(|reach| match reach {
            Reach::Public if is_proxied => shared.transport.check_proxied(&url).map(|()| reach),
            reach => Ok(reach),
        });
        let reach = reach.map_err(|cause| HttpError::AddressRefused {
            uri: request.uri.clone(),
            target: uri.clone(),
            cause,
        })?;
        let host = shared.hosts.host(uri.authority(), Instant::now());
        let pools = shared.transport.pools(reach, own.policy.is_own(&url), is_proxied);
        let target = Target { uri, url, own: &own, host: &host, pools };
        let exchange = |way| self.exchange(request, due, &target, form, is_retry, way);

        if !request.is_bulk || host.bulk().way(Instant::now()) == Way::Shared {
            return exchange(Way::Shared).await;
        }
        let answered = exchange(Way::Apart).await;
        let status = answered.as_ref().map(|(answer, _)| answer.status().as_u16());
        let Some(refusal) = Refusal::of(status) else { return answered };
        tracing::debug!(%uri, ?status, "not over a connection of its own");
        // Its place is free for what follows.
        drop(answered);
        let answered = exchange(Way::Shared).await;
        if answered.as_ref().is_ok_and(|(answer, _)| answer.status().as_u16() < 400) {
            host.bulk().refused(refusal, Instant::now());
        }
        answered
    }

    /// One exchange with one host.
    async fn exchange(
        &self,
        request: &Request,
        due: &Due,
        target: &Target<'_>,
        form: Option<&str>,
        is_retry: bool,
        way: Way,
    ) -> Result<(reqwest::Response, Connection), HttpError> {
        let Target { uri, url, own, host, pools } = target;
        let (place, admission) = admitted(request, due, (host, uri), is_retry).await?;

        let client = pools.of(way);
        host.sent(Instant::now());
        let exchange = Exchange {
            host,
            uri,
            way,
            admission,
            begun: Instant::now(),
            patience: self.shared.connect_timeout,
            is_over: false,
        };
        let mut has_moved = false;
        let outcome = loop {
            let begun = Instant::now();
            let fields = match form {
                None => fields(request, client, url.clone()),
                Some(form) => client
                    .post(url.clone())
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(form.to_owned()),
            };
            let sent = self.shared.keys.apply(fields, url, &own.policy, &own.scheme).send();
            let outcome = host.opening(way).during(sent).await;
            let outcome = outcome.map_err(|cause| failure(request, uri, host, cause.without_url()));
            // The host may have another address by now. Nothing was sent, so nothing is asked for twice.
            let is_out_of_reach = matches!(outcome, Err(HttpError::Connect { .. })) && way == Way::Shared;
            if !is_out_of_reach || has_moved {
                break outcome;
            }
            let look_up = self.shared.transport.has_moved(url, begun);
            has_moved = tokio::time::timeout(self.shared.connect_timeout, look_up).await.unwrap_or(false);
            if !has_moved {
                break outcome;
            }
        };
        if let Ok(answer) = &outcome
            && url.scheme() == "https"
        {
            host.bulk().answered(way, answer.version(), answer.status().as_u16());
        }
        if outcome.is_ok() && form.is_none() && !is_made_first(request) {
            host.line().answered(exchange.begun.elapsed());
        }
        exchange.ended(&outcome);
        let answer = outcome?;
        let (version, status) = (answer.version(), answer.status().as_u16());
        let is_used_again = head::is_used_again(request.method, status, version, answer.headers());
        let opening = is_used_again.then(|| Arc::clone(host.opening(way)));
        Ok((answer, Connection::new(opening, place)))
    }

    /// Makes a [`Response`] of an answer that is no redirect; a pause it asks for is the whole host's.
    fn response(
        &self,
        request: &Request,
        final_uri: Uri,
        answer: reqwest::Response,
        mut connection: Connection,
    ) -> Result<Response, HttpError> {
        let shared = &*self.shared;
        let status = answer.status().as_u16();
        let head =
            Head::read(request, &final_uri, status, answer.headers(), SystemTime::now()).inspect_err(|error| {
                if let HttpError::Status { status: 429 | 503, retry_after: Some(pause), .. } = error {
                    let now = Instant::now();
                    shared.hosts.host(final_uri.authority(), now).pace().pause(now, Paused::of(request), *pause);
                }
            })?;
        let low_speed = shared.low_speed.clone();
        let body = match head.body_length {
            Some(0) => {
                connection.give_back();
                Body::empty(request.uri.clone(), low_speed)
            }
            expected => {
                let host = shared.hosts.host(final_uri.authority(), Instant::now());
                let counters = Arc::clone(&host.counters);
                Body::new(request.uri.clone(), answer, expected, low_speed, counters, connection).measured_for(host)
            }
        };
        Ok(Response {
            status: head.status,
            final_uri,
            content_length: head.content_length,
            etag: head.etag,
            last_modified: head.last_modified,
            modified_validator: head.modified_validator,
            modified: head.modified,
            memento_datetime: head.memento_datetime,
            media_type: head.media_type,
            encoding: head.encoding,
            max_age: head.max_age,
            accepts_ranges: head.accepts_ranges,
            links: head.links,
            body,
        })
    }
}

impl Own {
    /// The same hosts allowed, and one more that is the Source's own.
    fn at(&self, authority: &str) -> Own {
        let (own, told) = own_authority(authority);
        let scheme = if self.scheme.gives_way_to(&told) { told } else { self.scheme.clone() };
        Own { policy: self.policy.with_own(own), scheme }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("own", &self.own()).finish_non_exhaustive()
    }
}

/// `[SCHEME://]HOST[:PORT]`; what cannot be read is no host at all, so nothing is trusted.
fn own_authority(raw: &str) -> (Option<Authority>, OwnScheme) {
    let (scheme, authority) = match raw.split_once("://") {
        Some((scheme, authority)) => (Some(scheme.to_ascii_lowercase()), authority.trim_end_matches('/')),
        None => (None, raw),
    };
    (Authority::parse(authority), OwnScheme::new(scheme.as_deref()))
}

/// The failure before `error`, where `error` alone would not tell why.
fn with_last(error: HttpError, last: Option<HttpError>) -> HttpError {
    match error {
        HttpError::CircuitOpen { uri, host, retry_in, last: None } => {
            HttpError::CircuitOpen { uri, host, retry_in, last: last.map(Box::new) }
        }
        HttpError::Deadline { uri, last: None } => HttpError::Deadline { uri, last: last.map(Box::new) },
        other => other,
    }
}

/// Waits until `request` may be sent to `host`: its place among the connections, its turn by rate and pause, and the
/// breaker's word. At once refused is what cannot be sent before the deadline, and a first try while the breaker is
/// open; a repeated one waits for the breaker, since its failures are what opened it.
async fn admitted(
    request: &Request,
    due: &Due,
    (host, uri): (&Host, &Uri),
    is_retry: bool,
) -> Result<(Place, Admission), HttpError> {
    loop {
        let (now, latest) = (Instant::now(), due.latest());
        // Bound first: a guard in the scrutinee would be held while waiting.
        let admission = host.breaker(uri).look(uri, now);
        if let Admission::Refused(until) = admission {
            wait_for_breaker(request, due, host, is_retry, (now, until)).await?;
            continue;
        }
        let pause = host.pace().pause_left(now, Paused::of(request));
        if let Some(retry_in) = pause {
            if now + retry_in > latest {
                return Err(HttpError::Paused { uri: request.uri.clone(), host: host.authority.clone(), retry_in });
            }
            tokio::time::sleep(retry_in).await;
            continue;
        }
        let place = due.place(host, request.is_document, request.awaited.clone()).await;
        host.in_pace(request.awaited.clone()).await;
        let now = Instant::now();
        if host.pace().pause_left(now, Paused::of(request)).is_some() {
            continue;
        }
        let admission = host.breaker(uri).admit(uri, now);
        match admission {
            Admission::Refused(until) => {
                drop(place);
                wait_for_breaker(request, due, host, is_retry, (now, until)).await?;
            }
            Admission::Pass | Admission::Probe => return Ok((place, admission)),
        }
    }
}

async fn wait_for_breaker(
    request: &Request,
    due: &Due,
    host: &Host,
    is_retry: bool,
    (now, until): (Instant, Instant),
) -> Result<(), HttpError> {
    if !is_retry || until >= due.latest() {
        let retry_in = until.saturating_duration_since(now);
        return Err(HttpError::CircuitOpen {
            uri: request.uri.clone(),
            host: host.authority.clone(),
            retry_in,
            last: None,
        });
    }
    tokio::time::sleep_until(until.into()).await;
    Ok(())
}

/// Whether the server may have to make what is asked for before it can answer: many make their lists when they are asked.
fn is_made_first(request: &Request) -> bool {
    request.is_document && request.method == Method::Get && request.range.is_none() && request.suffix.is_none()
}

/// The request with every field but credentials.
fn fields(request: &Request, client: &reqwest::Client, url: Url) -> reqwest::RequestBuilder {
    let method = match request.method {
        Method::Get => reqwest::Method::GET,
        Method::Head => reqwest::Method::HEAD,
    };
    let range = head::range_text(request);
    let accept_datetime = request.accept_datetime.and_then(head::date_text);
    // Taken from what a Source published, which may be anything.
    let is_value = |published: &&str| header::HeaderValue::from_str(published).is_ok();
    let optional = [
        (header::ACCEPT, request.accept.as_deref().filter(is_value)),
        (header::ACCEPT_ENCODING, Some(&*request.accept_encoding).filter(is_value).or(Some("identity"))),
        (header::RANGE, range.as_deref()),
        (header::IF_RANGE, request.if_range.as_deref().filter(|_| range.is_some())),
        (header::IF_NONE_MATCH, request.if_none_match.as_deref()),
        (header::IF_MODIFIED_SINCE, request.if_modified_since.as_deref()),
        (HeaderName::from_static("accept-datetime"), accept_datetime.as_deref()),
        (header::CACHE_CONTROL, request.no_cache.then_some("no-cache")),
        (header::PRAGMA, request.no_cache.then_some("no-cache")),
    ];
    optional
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .fold(client.request(method, url), |builder, (name, value)| builder.header(name, value))
}

/// Where a request goes, and by which rules.
struct Target<'a> {
    uri: &'a Uri,
    url: Url,
    own: &'a Own,
    host: &'a Host,
    pools: &'a Pools,
}

/// Sorts what reqwest reports by its causes.
fn failure(request: &Request, asked: &Uri, host: &Host, cause: reqwest::Error) -> HttpError {
    let uri = request.uri.clone();
    let host = host.authority.clone();
    if let Some(refusal) = find::<AddressRefusal>(&cause) {
        return HttpError::AddressRefused { uri, target: asked.clone(), cause: refusal.clone() };
    }
    if let Some(error) = find::<rustls::Error>(&cause) {
        return HttpError::Tls { uri, host, cause: error.clone() };
    }
    if cause.is_builder() {
        return HttpError::Config { what: format!("{uri}: not a request"), cause: Some(cause.into()) };
    }
    if cause.is_dns() {
        return HttpError::Name { uri, host, cause };
    }
    if cause.is_connect() { HttpError::Connect { uri, host, cause } } else { HttpError::Head { uri, host, cause } }
}

/// The first `E` among an error and its causes, those wrapped by an I/O error included.
fn find<'a, E: std::error::Error + 'static>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // `source` of an I/O error is the source of what it wraps, not the wrapped error itself.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}
