//! The client: redirects inside attempts, attempts inside the deadline.

use super::allowance::{Allowance, DownloadLimit};
use super::attempt::{HostAnswer, Payload, RequestAttempt};
use super::body::LowSpeed;
use super::credentials::{ChangedCredentials, Keys};
use super::host::Host;
use super::hosts::Hosts;
use super::metrics::{HostTraffic, Pace};
use super::policy::{AddressPolicy, Authority};
use super::rewrite::Rewrites;
use super::transport::{ProxySettings, Transport};
use super::{Body, HttpConfig, HttpError, Posted, Request, Response, field, head, retry};
use crate::document::Uri;
use crate::platform::descriptors::{self, close_spare};
use crate::platform::error_chain::chain;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How many redirects are followed.
const REDIRECTS: usize = 10;

/// Bytes of the answer to a form that are kept.
const FORM_ANSWER: usize = 300;

/// The client; cheap to clone. Clones share connections, rates, pauses, breakers, and which host is the Source's own.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<SharedClient>,
    own: Arc<ArcSwap<Own>>,
}

/// Rules for the Source's own host. An attempt keeps those that it began with.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) policy: AddressPolicy,
    /// Credentials go over https alone.
    pub(super) is_https: bool,
}

/// State that all clones of a client share, whichever host is the Source's own.
pub(super) struct SharedClient {
    pub(super) transport: Transport,
    pub(super) hosts: Hosts,
    /// Replaced where the files of the credentials have changed.
    keys: ArcSwap<Keys>,
    changed: Option<ChangedCredentials>,
    /// Held while the files are looked at.
    rereading: tokio::sync::Mutex<()>,
    rewrites: Rewrites,
    waits_for_hosts: bool,
    pub(super) connect_timeout: Duration,
    pub(super) low_speed: LowSpeed,
    pub(super) allowance: Option<Arc<Allowance>>,
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
            own: Arc::new(ArcSwap::from_pointee(Own { policy, is_https })),
            shared: Arc::new(SharedClient {
                transport: Transport::new(&config, proxies, allowed_names)?,
                hosts: Hosts::new(config.rate, config.connections),
                keys: ArcSwap::from_pointee(Keys::new(&config.credentials)?),
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

    /// Client with one more own authority (known only after the entry point's redirects), `HOST[:PORT]` or
    /// `SCHEME://HOST[:PORT]`, as [`HttpConfig::own_authority`]. Clones made before do not know of it. https counts for good: credentials never
    /// go from it down to http.
    pub fn with_own_authority(&self, authority: &str) -> Client {
        let own = Arc::new(ArcSwap::from_pointee(self.own().at(authority)));
        Client { shared: Arc::clone(&self.shared), own }
    }

    /// Makes `authority` an own one too, for this client and all its clones.
    pub fn move_to(&self, authority: &str) {
        self.own.store(Arc::new(self.own().at(authority)));
    }

    pub(super) fn own(&self) -> Arc<Own> {
        self.own.load_full()
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

    pub(super) fn keys(&self) -> Arc<Keys> {
        self.shared.keys.load_full()
    }

    /// Reads the files of the credentials again; whether there are others than `used` now.
    pub(super) async fn renew_keys(&self, used: &Arc<Keys>) -> bool {
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
            self.shared.keys.store(Arc::new(keys));
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

    /// Returns whether the limit of the host of `uri` holds what no reader waits for.
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
        let mut attempt = RequestAttempt::of(request, Payload::Nothing, self.keys(), self.shared.patience);
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
            let mut attempt = RequestAttempt::of(&request, Payload::Form(form), self.keys(), Duration::ZERO);
            let HostAnswer { head: mut answer, permit: _permit, .. } = self.ask(&mut attempt, &target).await?;
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

    /// One attempt: asks, and follows redirects to the answer.
    async fn follow(&self, attempt: &mut RequestAttempt<'_>) -> Result<Response, HttpError> {
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

    /// Makes a [`Response`] of an answer that is not a redirect. A pause that it asks for holds for the whole host.
    fn response(&self, request: &Request, final_uri: Uri, answer: HostAnswer) -> Result<Response, HttpError> {
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
            response.body = Body::new(request.uri.clone(), answer.head, expected, low_speed, permit, allowance);
        }
        Ok(response)
    }
}

impl Own {
    /// Rules with one more host that is the Source's own.
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

/// Returns whether `[SCHEME://]HOST[:PORT]` is of https, and the host. Text that cannot be read names no host, so nothing is trusted.
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
