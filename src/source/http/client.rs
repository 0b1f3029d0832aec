//! The client: redirects inside tries, tries inside the deadline.

use super::allowance::{Allowance, DownloadLimit};
use super::announced::announced;
use super::attempt::{Answer, Attempt, Payload, failure, fields, refuses_range};
use super::body::LowSpeed;
use super::credentials::{Changed, Keys};
use super::host::Host;
use super::hosts::Hosts;
use super::metrics::{HostTraffic, Pace};
use super::policy::{AddressPolicy, Authority, Reach};
use super::rewrite::Rewrites;
use super::transport::{Generation, ProxySettings, Transport};
use super::{Body, HttpConfig, HttpError, Posted, Priority, Request, Response, Way, field, head, relay, retry};
use crate::document::{Uri, UriError};
use crate::platform::descriptors::{self, close_spare};
use crate::platform::error_chain::chain;
use bytes::Bytes;
use futures_util::future::{Either, select};
use hyper::http;
use reqwest::header;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};
use url::Url;

/// How many redirects are followed.
const REDIRECTS: usize = 10;

/// A request that waited for one part in so many of `connect-timeout=` met a silent host. Questions for sizes have little more.
const SILENT_PART: u32 = 3;

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
    /// Credentials go over https alone.
    is_https: bool,
}

/// What does not depend on which host is the Source's own.
struct Shared {
    transport: Transport,
    hosts: Hosts,
    /// Replaced where the files of the credentials have changed.
    keys: RwLock<Arc<Keys>>,
    changed: Option<Changed>,
    /// Held while the files are looked at.
    rereading: tokio::sync::Mutex<()>,
    rewrites: Rewrites,
    waits_for_hosts: bool,
    connect_timeout: Duration,
    low_speed: LowSpeed,
    allowance: Option<Arc<Allowance>>,
    patience: Duration,
}

impl Client {
    /// A client with the proxies of the environment; errors are bad certificates, prefixes, header fields and hosts.
    pub fn new(config: HttpConfig) -> Result<Client, HttpError> {
        Client::with_proxies(config, &ProxySettings::from_environment())
    }

    pub(super) fn with_proxies(mut config: HttpConfig, proxies: &ProxySettings) -> Result<Client, HttpError> {
        config.connections = descriptors::share(config.connections, 8);
        let rewrites = Rewrites::new(&config.rewrites)?;
        let mut allowed = Vec::with_capacity(config.allowed_hosts.len());
        for raw in &config.allowed_hosts {
            allowed.push(Authority::parse(raw).ok_or_else(|| HttpError::Config {
                what: format!("allow-host={raw}: not HOST or HOST:PORT"),
                cause: None,
            })?);
        }
        allowed.extend(rewrites.targets().filter_map(|to| Authority::parse(&format!("{}:{}", to.host(), to.port()))));
        let (is_https, own) = own_authority(config.own_authority.as_deref().unwrap_or_default());
        let allowed_names = allowed.iter().map(|allowed| allowed.host().into()).collect();
        let policy = AddressPolicy::new(own, allowed);
        Ok(Client {
            own: Arc::new(RwLock::new(Arc::new(Own { policy, is_https }))),
            shared: Arc::new(Shared {
                transport: Transport::new(&config, proxies, allowed_names)?,
                hosts: Hosts::new(config.rate, config.connections),
                keys: RwLock::new(Arc::new(Keys::new(&config.credentials)?)),
                changed: config.credentials.changed,
                rereading: tokio::sync::Mutex::default(),
                rewrites,
                waits_for_hosts: config.waits_for_hosts,
                connect_timeout: config.connect_timeout,
                low_speed: LowSpeed::new(config.low_speed_limit, config.low_speed_time),
                allowance: config.max_download.map(|limit| Arc::new(Allowance::new(limit))),
                patience: config.patience,
            }),
        })
    }

    /// The same settings with one more own authority (known only after the entry point's redirects), `HOST[:PORT]` or
    /// `SCHEME://HOST[:PORT]`, as [`HttpConfig::own_authority`]. Clones made before do not know of it. https counts for good: credentials never
    /// go from it down to http.
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

    /// The requests to each host since the client was made, clones included, busiest hosts first, and the state of each.
    pub fn traffic(&self) -> Vec<HostTraffic> {
        self.shared.hosts.traffic()
    }

    /// Hosts that asked for a pause (`Retry-After`) are asked again at once: a person wants to know now.
    pub fn end_pauses(&self) {
        self.shared.hosts.end_pauses();
    }

    /// The host of `uri` wants so much time between two requests (`Crawl-delay`).
    pub fn slow_down(&self, uri: &Uri, interval: Duration) {
        self.host(uri).slow_down(interval);
    }

    /// Reads the files of the credentials again, where they have changed.
    pub async fn renew_credentials(&self) {
        self.renew_keys(&self.keys()).await;
    }

    fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.shared.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files of the credentials again; whether there are others than `used` now.
    async fn renew_keys(&self, used: &Arc<Keys>) -> bool {
        let Some(changed) = &self.shared.changed else { return false };
        let _rereading = self.shared.rereading.lock().await;
        if !Arc::ptr_eq(used, &self.keys()) {
            return true;
        }
        let changed = Arc::clone(changed);
        let Ok(Some(credentials)) = tokio::task::spawn_blocking(move || changed()).await else { return false };
        let renewed = Keys::new(&credentials).and_then(|keys| {
            if keys.certificate() != used.certificate() {
                self.shared.transport.identify(keys.certificate())?;
            }
            *self.shared.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
            Ok(())
        });
        match &renewed {
            Ok(()) => tracing::info!("the credentials have changed"),
            Err(cause) => tracing::warn!("credentials stay as they were: {}", chain(cause)),
        }
        renewed.is_ok()
    }

    /// Why a host does not answer, or why a document is requested again now.
    pub fn unanswered(&self) -> Option<Box<str>> {
        self.shared.hosts.unanswered()
    }

    /// How long silence is borne: [`HttpConfig::low_speed_time`].
    pub fn longest_silence(&self) -> Duration {
        self.shared.low_speed.window()
    }

    /// The bytes that may be downloaded and those that were, where that is bounded.
    pub fn download_limit(&self) -> Option<DownloadLimit> {
        self.shared.allowance.as_ref().map(|allowance| allowance.state())
    }

    /// How the busiest host that has announced a limit paces so many requests; see [`HostTraffic::least_time`].
    pub fn pace(&self, requests: u64, is_ahead: bool) -> Option<Pace> {
        self.traffic().iter().find_map(|host| host.pace(requests, is_ahead))
    }

    /// Whether the limit of the host of `uri` holds what no reader waits for.
    pub fn is_paced(&self, uri: &Uri) -> bool {
        self.host(uri).holds_prefetches()
    }

    /// How many requests one host is sent at once, at most.
    pub fn connections(&self) -> usize {
        self.shared.hosts.connections()
    }

    fn host(&self, uri: &Uri) -> Arc<Host> {
        self.shared.hosts.host(self.shared.rewrites.apply(uri).authority())
    }

    /// Sends `request`; repeats it with full jitter, honouring `Retry-After`, until its deadline where that can help.
    pub async fn send(&self, request: Request) -> Result<Response, HttpError> {
        self.shared.allowance.as_ref().map_or(Ok(()), |allowance| allowance.check(&request))?;
        let sent = self.send_repeatedly(&request).await;
        if request.is_document {
            self.host(&request.uri).repeats(None);
        }
        sent
    }

    async fn send_repeatedly(&self, request: &Request) -> Result<Response, HttpError> {
        let mut attempt = Attempt::of(request, Payload::Nothing, self.keys(), self.shared.patience);
        let mut last: Option<HttpError> = None;
        loop {
            let error = match self.follow(&mut attempt).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if error.may_be_of_credentials() && !attempt.has_new_keys && self.renew_keys(&attempt.keys).await {
                (attempt.keys, attempt.has_new_keys) = (self.keys(), true);
                continue;
            }
            let backoff = retry::backoff(attempt.number, retry::jitter());
            let pause = match &error {
                HttpError::Status { retry_after, .. } => *retry_after,
                _ => None,
            };
            // Past the pause, so that not all requests that met it come at once.
            let wait = pause.unwrap_or_default().saturating_add(backoff);
            let (number, waits) = (attempt.number, self.shared.waits_for_hosts);
            if !request.repeats || !retry::is_worthwhile(&error, number, waits) {
                return Err(with_last(error, last));
            }
            if attempt.deadline.latest(pause.is_some()).saturating_duration_since(Instant::now()) <= wait {
                return Err(error);
            }
            tracing::debug!(%error, number = attempt.number, ?wait, "asked again");
            if let HttpError::NoDescriptor { .. } = error {
                // The runtime has ended where it is not run.
                let _ = tokio::task::spawn_blocking(close_spare).await;
            }
            if request.is_document {
                self.host(&request.uri).repeats(Some(chain(&error)));
            }
            (last, attempt.number) = (Some(error), attempt.number.saturating_add(1));
            match pause {
                Some(_) => attempt.deadline.pause_until(Instant::now() + wait).await,
                None => tokio::time::sleep(wait).await,
            }
        }
    }

    /// Posts `form` (`application/x-www-form-urlencoded`) to `uri` once. It is neither repeated nor redirected: both could do the same thing twice,
    /// or send the form to another host. The answer is due within `within`.
    pub async fn post_form(&self, uri: &Uri, form: &str, within: Duration) -> Result<Posted, HttpError> {
        let request = Request::get(uri.clone(), within);
        let target = self.shared.rewrites.apply(uri);
        let posted = async {
            let mut attempt = Attempt::of(&request, Payload::Form(form), self.keys(), Duration::ZERO);
            let Answer { head: mut answer, permit: _permit, .. } = self.ask(&mut attempt, &target).await?;
            let status = answer.status().as_u16();
            let location = head::redirect(status, answer.headers())
                .and_then(|location| Uri::resolve(Some(&target), &location).ok());
            let retry_after = field::retry_after(answer.headers(), SystemTime::now());
            let mut text = Vec::new();
            while text.len() < FORM_ANSWER {
                let Ok(Some(chunk)) = answer.chunk().await else { break };
                text.extend_from_slice(&chunk);
            }
            text.truncate(FORM_ANSWER);
            Ok(Posted { status, location, retry_after, text: String::from_utf8_lossy(&text).into_owned() })
        };
        let outcome = tokio::time::timeout_at(request.deadline.into(), posted).await;
        outcome.unwrap_or(Err(HttpError::Deadline { uri: request.uri, last: None }))
    }

    /// Sends a request that another library has made, once, to `url`. The head of the answer is due within `within`. Its host is one of those
    /// that the limiter and the breaker know, without the limits that are meant for the Source.
    pub async fn relay(
        &self,
        relayed: &http::Request<Bytes>,
        priority: Priority,
        within: Duration,
    ) -> Result<http::Response<Body>, HttpError> {
        let bad = |cause| HttpError::Config { what: "a request cannot be sent".to_owned(), cause };
        let address = relayed.uri().to_string();
        let uri = Uri::parse(address.split('?').next().unwrap_or_default()).map_err(|_| bad(None))?;
        let url = Url::parse(&address).map_err(|cause| bad(Some(cause.into())))?;
        let request = Request { priority, ..Request::get(uri.clone(), within) };
        // What is in the store is at the Source too: no pause of the store is waited for.
        let mut attempt = Attempt::of(&request, Payload::Whole(relayed, &url), self.keys(), Duration::ZERO);
        let mut answer = self.ask(&mut attempt, &uri).await?;
        if matches!(answer.status(), 401 | 403) && self.renew_keys(&attempt.keys).await {
            attempt.keys = self.keys();
            drop(answer);
            answer = self.ask(&mut attempt, &uri).await?;
        }
        let Answer { head, permit, round_trip } = answer;
        let (status, headers, low_speed) = (head.status(), head.headers().clone(), self.shared.low_speed);
        let pause = field::retry_after(&headers, SystemTime::now()).filter(|_| matches!(status.as_u16(), 429 | 503));
        if let Some(pause) = pause {
            permit.host.refused(&request, status.as_u16(), Some(pause));
        }
        let expected = head.content_length().filter(|_| relayed.method() != reqwest::Method::HEAD);
        let allowance = self.shared.allowance.clone().filter(|_| relayed.method() == reqwest::Method::GET);
        let body = Body::new(uri, head, expected, low_speed, permit.reading(round_trip)).counted(allowance);
        let mut answer = http::Response::new(body);
        (*answer.status_mut(), *answer.headers_mut()) = (status, headers);
        Ok(answer)
    }

    /// One attempt: asks, and follows redirects to the answer.
    async fn follow(&self, attempt: &mut Attempt<'_>) -> Result<Response, HttpError> {
        let request = attempt.request;
        let mut uri = self.shared.rewrites.apply(&request.uri);
        for _ in 0..=REDIRECTS {
            let answer = self.ask(attempt, &uri).await?;
            let Some(location) = head::redirect(answer.status(), answer.head.headers()) else {
                return self.response(request, uri, answer);
            };
            let target = Uri::resolve(Some(&uri), &location)
                .map_err(|cause| HttpError::BadRedirect { uri: request.uri.clone(), cause })?;
            uri = self.shared.rewrites.apply(&target);
        }
        Err(HttpError::TooManyRedirects { uri: request.uri.clone(), limit: REDIRECTS })
    }

    /// The head of one host's answer. A range that the host refuses over a connection of its own is asked for once more over the shared one.
    async fn ask(&self, attempt: &mut Attempt<'_>, uri: &Uri) -> Result<Answer, HttpError> {
        let (shared, request) = (&*self.shared, attempt.request);
        let url = Url::parse(uri.as_str()).map_err(|_| HttpError::BadRedirect {
            uri: request.uri.clone(),
            cause: UriError::Malformed(uri.to_string()),
        })?;
        let own = self.own();
        let (admitted, host) = match attempt.payload {
            Payload::Whole(..) => (own.policy.admit_named(&url), shared.hosts.store(uri.authority())),
            Payload::Nothing | Payload::Form(_) => (own.policy.admit(&url), shared.hosts.host(uri.authority())),
        };
        let reach = admitted.and_then(|reach| match reach {
            Reach::Public => shared.transport.check_not_proxy(&url).map(|()| reach),
            Reach::Trusted => Ok(reach),
        });
        let reach = reach.map_err(|cause| HttpError::AddressRefused {
            uri: request.uri.clone(),
            target: uri.clone(),
            cause,
        })?;
        let target = Target { uri, url, own: &own, host, reach };

        if request.way == Way::Shared || !target.host.separates_ranges() {
            return self.exchange(attempt, &target, Way::Shared).await;
        }
        let answer = self.exchange(attempt, &target, Way::Ranges).await;
        if !refuses_range(&answer) {
            if answer.as_ref().is_ok_and(|answer| answer.status() < 400) {
                target.host.answers_ranges();
            }
            return answer;
        }
        let was_closed = matches!(answer, Err(HttpError::Head { .. }));
        tracing::debug!(%uri, was_closed, "no range over a connection of its own");
        // Its permit is free for the next request.
        drop(answer);
        let answer = self.exchange(attempt, &target, Way::Shared).await;
        if answer.as_ref().is_ok_and(|answer| answer.status() < 400) {
            target.host.refuse_ranges(was_closed);
        }
        answer
    }

    /// One exchange with one host.
    async fn exchange(&self, attempt: &mut Attempt<'_>, target: &Target<'_>, way: Way) -> Result<Answer, HttpError> {
        let (Target { uri, host, .. }, request) = (target, attempt.request);
        let mut permit = host.permit(request, uri, &mut attempt.deadline, attempt.number > 1).await?;
        permit.sent(way);
        let (begun, before) = (Instant::now(), host.progress());
        let outcome = attempt.deadline.within(self.connected(attempt, target, way)).await;
        let outcome = outcome.unwrap_or_else(|| Err(HttpError::Deadline { uri: request.uri.clone(), last: None }));
        let round_trip = match &outcome {
            Ok((_, sent)) => sent.elapsed(),
            Err(_) => begun.elapsed(),
        };
        match &outcome {
            Ok((head, _)) => {
                if way == Way::Shared && uri.scheme() == "https" {
                    host.shares(head.version() >= reqwest::Version::HTTP_2);
                }
                let announced = announced(head.headers(), SystemTime::now());
                permit.answered(uri, (head.status().as_u16(), announced), round_trip);
            }
            Err(error) => {
                // Whether there was a connection, where it is a failure of the host. A deadline that had passed soon says nothing of the host, nor
                // does one in whose time others were answered.
                let is_long = round_trip >= self.shared.connect_timeout / SILENT_PART;
                let is_connected = match error {
                    HttpError::Name { .. } | HttpError::Connect { .. } | HttpError::Tls { .. } => Some(false),
                    HttpError::Head { .. } => Some(true),
                    HttpError::Deadline { .. } => (is_long && host.progress() == before).then_some(true),
                    _ => None,
                };
                // That a host takes no further connection says nothing of those that it has. Parallel ranges fail together as well: the
                // download that they are for could not wait until the host is back.
                let is_connected = is_connected.filter(|_| way == Way::Shared && request.way == Way::Shared);
                permit.failed(uri, is_connected.map(|is_connected| (is_connected, chain(error).to_string())));
            }
        }
        outcome.map(|(head, _)| Answer { head, permit, round_trip })
    }

    /// Sends the request, without a limit of time, and once more over a new connection where an idle one may be dead. The head of the first
    /// answer, and when its request was sent.
    async fn connected(
        &self,
        attempt: &Attempt<'_>,
        target: &Target<'_>,
        way: Way,
    ) -> Result<(reqwest::Response, Instant), HttpError> {
        let transport = &self.shared.transport;
        let (begun, generation) = (Instant::now(), transport.generation());
        let pools = generation.number;
        let mut first = pin!(self.sent(attempt, target, way, generation));
        let mut repetition = tokio::select! {
            biased;
            answer = &mut first => return answer,
            repetition = target.host.silence(attempt.request, pools, begun), if attempt.payload.is_repeatable() => repetition,
        };
        tracing::debug!(uri = %target.uri, "no answer over a connection that may be dead: asked again over a new one");
        let second = pin!(self.sent(attempt, target, way, transport.renewed(pools)?));
        let answer = match select(first, second).await {
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
            Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
        };
        repetition.is_answered = answer.is_ok();
        answer
    }

    /// Sends the request over pools of this generation.
    async fn sent(
        &self,
        attempt: &Attempt<'_>,
        Target { uri, url, own, host, reach }: &Target<'_>,
        way: Way,
        generation: Arc<Generation>,
    ) -> Result<(reqwest::Response, Instant), HttpError> {
        let begun = Instant::now();
        let client = generation.pools(*reach, own.policy.is_own(url)).of(way);
        let keyed = |fields| attempt.keys.apply(fields, url, own.policy.is_own(url), own.is_https);
        let fields = match &attempt.payload {
            Payload::Nothing => keyed(fields(attempt.request, client, url.clone())),
            Payload::Form(form) => keyed(
                client
                    .post(url.clone())
                    .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body((*form).to_owned()),
            ),
            Payload::Whole(whole, url) => relay::fields(client, (*whole, *url), keyed),
        };
        let sent = fields.send().await;
        let outcome = sent.map_err(|cause| failure(attempt.request, uri, host, cause.without_url()));
        if let Err(HttpError::Connect { .. }) = outcome {
            // The host may have another address by now.
            self.shared.transport.forget_addresses(url);
        }
        let head = outcome?;
        host.answered_over(attempt.request, generation.number, begun);
        Ok((head, begun))
    }

    /// Makes a [`Response`] of an answer that is no redirect. A pause that it asks for holds for the whole host.
    fn response(&self, request: &Request, final_uri: Uri, answer: Answer) -> Result<Response, HttpError> {
        let (low_speed, permit) = (self.shared.low_speed, answer.permit);
        let empty = Body::empty(request.uri.clone(), low_speed);
        let head = (answer.head.status().as_u16(), answer.head.headers());
        let mut response = head::read(request, final_uri, head, SystemTime::now(), empty).inspect_err(|error| {
            if let HttpError::Status { status: status @ (429 | 503), retry_after, .. } = error {
                permit.host.refused(request, *status, *retry_after);
            }
        })?;
        response.round_trip = answer.round_trip;
        let expected = head::body_length(request.method, &response);
        if expected == Some(0) {
            permit.finished();
        } else {
            let permit = permit.reading(answer.round_trip);
            let allowance = self.shared.allowance.clone().filter(|_| !request.is_document);
            response.body = Body::new(request.uri.clone(), answer.head, expected, low_speed, permit).counted(allowance);
        }
        Ok(response)
    }
}

/// Where a request goes, and by which rules.
struct Target<'a> {
    uri: &'a Uri,
    url: Url,
    own: &'a Own,
    host: Arc<Host>,
    reach: Reach,
}

impl Own {
    /// The same hosts allowed, and one more that is the Source's own.
    fn at(&self, authority: &str) -> Own {
        let (is_https, own) = own_authority(authority);
        Own { policy: self.policy.with_own(own), is_https: self.is_https || is_https }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("own", &self.own()).finish_non_exhaustive()
    }
}

/// Whether `[SCHEME://]HOST[:PORT]` is of https, and the host. Text that cannot be read is no host at all, so nothing is trusted.
fn own_authority(raw: &str) -> (bool, Option<Authority>) {
    let (scheme, authority) = raw.split_once("://").unwrap_or(("http", raw));
    (scheme.eq_ignore_ascii_case("https"), Authority::parse(authority.trim_end_matches('/')))
}

/// The failure before `error`, where `error` alone would not explain it.
fn with_last(mut error: HttpError, before: Option<HttpError>) -> HttpError {
    if let HttpError::CircuitOpen { last: last @ None, .. } | HttpError::Deadline { last: last @ None, .. } = &mut error
    {
        *last = before.map(Box::new);
    }
    error
}
