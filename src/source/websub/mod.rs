//! Notifications: a subscriber of WebSub hubs and the listener that they deliver to (Framework Notification, sections 3
//! and 4). A delivery is only a reason to look.
//!
//! `registry` holds a `subscription` (a state machine) for each channel of each mounted set under a path that nobody can guess;
//! one task sends what they say through the mount's own HTTP client; `listener` answers hubs, and hands out each delivery that is
//! what it says it is (`signature`). Everything else is counted (`counters`).

mod counters;
mod listener;
mod registry;
mod signature;
mod subscription;
#[cfg(test)]
mod tests;

pub use counters::{Counters, Seen};
pub use registry::Subject;
pub use subscription::{LEASE_ASKED, Mode, Standing, Subscription};

use super::http::Client;
use crate::causes::chain;
use crate::document::Uri;
use listener::Bounds;
use registry::{Registry, keeps_secrets, save};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// How long [`Subscriber::leave`] waits for hubs.
pub const LEAVING: Duration = Duration::from_secs(5);
/// A hub answers a request within this or has failed.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Hubs that a request is passed on to.
const REDIRECTS: usize = 5;
/// Deliveries that wait to be looked at; a hub that brings more is told to come again.
const WAITING: usize = 1024;
/// So many of them at most where one is larger than [`LARGE`]: a queue of large ones would fill the memory.
const WAITING_LARGE: usize = 64;
/// Bytes of a delivery that is no usual notification.
const LARGE: usize = 16 << 10;
/// The wall clock may jump, so that it is looked at this often.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(60);

/// `websub-listen=` and `websub-callback=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebsubConfig {
    /// `HOST:PORT` to listen on; port 0 lets the system choose.
    pub listen: Box<str>,
    /// Under which URL hubs reach that, with a `/` behind it; without one `http://HOST:PORT/`.
    pub callback: Option<Uri>,
}

/// Why no notifications can be received.
#[derive(Debug, thiserror::Error)]
pub enum WebsubError {
    /// The address cannot be listened on.
    #[error("nothing can listen on {listen}")]
    Listen {
        /// As configured.
        listen: Box<str>,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// Listening on every address of this machine, none of which was named for hubs.
    #[error("hubs cannot be told to deliver to {address}: name a URL that reaches it with -o websub-callback=URL")]
    NoCallback {
        /// Where it listens.
        address: SocketAddr,
    },
    /// The operating system gives no randomness.
    #[error("no random path can be made")]
    Random {
        /// Its answer.
        cause: getrandom::Error,
    },
}

/// What a hub delivered to a subscription: genuine as far as that can be told, and not looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What was subscribed to.
    pub subject: Subject,
    /// As it came, perhaps empty.
    pub body: bytes::Bytes,
}

/// One subscription, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelStatus {
    /// What it is for.
    pub subject: Subject,
    /// Where it stands.
    pub standing: Standing,
    /// When the hub stops delivering.
    pub lease_ends: Option<SystemTime>,
    /// Deliveries taken since the mount began, and the last.
    pub deliveries: u64,
    /// When the last came.
    pub last_delivery: Option<SystemTime>,
}

/// A port that hubs can deliver to.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    callback: Uri,
}

impl Listener {
    /// Listens as `config` says; nothing is answered before [`Subscriber::start`].
    pub async fn bind(config: &WebsubConfig) -> Result<Listener, WebsubError> {
        let failed = |cause| WebsubError::Listen { listen: config.listen.clone(), cause };
        let listener = TcpListener::bind(&*config.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let callback = match &config.callback {
            Some(callback) => callback.clone(),
            None if address.ip().is_unspecified() => return Err(WebsubError::NoCallback { address }),
            None => Uri::parse(&format!("http://{address}/")).map_err(|_| WebsubError::NoCallback { address })?,
        };
        Ok(Listener { listener, callback })
    }

    /// The URL below which hubs deliver.
    pub fn callback(&self) -> &Uri {
        &self.callback
    }
}

/// The subscriber; clones are the same.
#[derive(Clone)]
pub struct Subscriber {
    shared: Arc<Shared>,
}

/// What requests and the listener share. The lock is held for no longer than a look at the registry.
struct Shared {
    registry: Mutex<Registry>,
    /// Wakes whoever depends on the registry.
    changes: watch::Sender<()>,
    counters: Counters,
    client: Client,
    callback: Uri,
    deliveries: mpsc::Sender<Delivery>,
}

impl Subscriber {
    /// Answers hubs on `listener` from now on. Paths and secrets of earlier mounts are those of `state`, a file of this mount
    /// alone; nothing is asked for before [`Subscriber::follow`]. Within a runtime only.
    pub fn start(listener: Listener, state: PathBuf, client: Client) -> (Subscriber, mpsc::Receiver<Delivery>) {
        Subscriber::start_within(listener, state, client, Bounds::default())
    }

    fn start_within(
        listener: Listener,
        state: PathBuf,
        client: Client,
        bounds: Bounds,
    ) -> (Subscriber, mpsc::Receiver<Delivery>) {
        let (deliveries, receiver) = mpsc::channel(WAITING);
        let registry = Registry::load(&state);
        let saved = registry.text();
        let shared = Arc::new(Shared {
            registry: Mutex::new(registry),
            changes: watch::Sender::new(()),
            counters: Counters::default(),
            client,
            callback: listener.callback,
            deliveries,
        });
        tokio::spawn(listener::serve(listener.listener, shared.clone(), bounds));
        tokio::spawn(send_requests(shared.clone(), state, saved));
        (Subscriber { shared }, receiver)
    }

    /// Makes the subscriptions those of `wanted`: asks hubs for what is new and leaves what is gone.
    pub fn follow(&self, wanted: &[Subject]) -> Result<(), WebsubError> {
        self.shared.registry().follow(wanted, SystemTime::now())?;
        self.shared.changed();
        Ok(())
    }

    /// Unsubscribes from everything and waits until the hubs have verified it, [`LEAVING`] at most. Deliveries are answered 410
    /// from now on.
    pub async fn leave(&self) {
        let mut changes = self.shared.changes.subscribe();
        self.shared.registry().leave(SystemTime::now());
        self.shared.changed();
        let left = async {
            while !self.shared.registry().is_over() {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(LEAVING, left).await.is_err() {
            tracing::warn!("hubs did not confirm in time that nothing more is to be delivered");
        }
    }

    /// The URL below which hubs deliver.
    pub fn callback(&self) -> &Uri {
        &self.shared.callback
    }

    /// What came to the listener.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Every subscription, in the order of what they are for.
    pub fn channels(&self) -> Vec<ChannelStatus> {
        let now = SystemTime::now();
        let mut channels: Vec<ChannelStatus> = self
            .shared
            .registry()
            .members
            .values()
            .map(|member| ChannelStatus {
                subject: member.subject.clone(),
                standing: member.subscription.standing(now),
                lease_ends: member.subscription.lease_ends(),
                deliveries: member.deliveries,
                last_delivery: member.last_delivery,
            })
            .collect();
        channels.sort_by(|a, b| a.subject.cmp(&b.subject));
        channels
    }

    /// Told whenever a subscription has changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.shared.changes.subscribe()
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_replace(());
    }
}

/// A request to a hub.
struct HubRequest {
    path: Box<str>,
    hub: Uri,
    topic: Uri,
    mode: Mode,
    form: String,
    has_secret: bool,
}

/// Sends what the subscriptions say, when they say it, for as long as the mount lives. What a hub is told is on disk before;
/// `saved` is what is there now.
async fn send_requests(shared: Arc<Shared>, state: PathBuf, mut saved: String) {
    let mut changes = shared.changes.subscribe();
    loop {
        changes.borrow_and_update();
        let requests = due_requests(&shared, SystemTime::now());
        let text = shared.registry().text();
        if text != saved {
            let (file, writing) = (state.clone(), text.clone());
            match tokio::task::spawn_blocking(move || save(&file, &writing)).await {
                Ok(Ok(())) => saved = text,
                Ok(Err(cause)) => {
                    tracing::warn!(file = %state.display(), %cause, "subscriptions will not outlive this mount");
                }
                Err(cause) => tracing::warn!(%cause, "subscriptions will not outlive this mount"),
            }
        }
        for request in requests {
            tokio::spawn(send(shared.clone(), request));
        }
        let due = shared.registry().due();
        let pause = due.map_or(LOOK_AT_CLOCK, |due| due.duration_since(SystemTime::now()).unwrap_or_default());
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(pause.min(LOOK_AT_CLOCK)) => {}
        }
    }
}

fn due_requests(shared: &Shared, now: SystemTime) -> Vec<HubRequest> {
    let mut registry = shared.registry();
    let mut requests = Vec::new();
    for (path, member) in &mut registry.members {
        let Some(mode) = member.subscription.wake(now) else { continue };
        let callback = format!("{}{path}", shared.callback);
        let secret = member.secret.as_deref().filter(|_| mode == Mode::Subscribe);
        requests.push(HubRequest {
            path: path.clone(),
            hub: member.subject.hub.clone(),
            topic: member.subject.topic.clone(),
            mode,
            form: form(mode, &member.subject.topic, &callback, secret),
            has_secret: secret.is_some(),
        });
    }
    requests
}

/// The form of a request (WebSub, 5.1).
fn form(mode: Mode, topic: &Uri, callback: &str, secret: Option<&str>) -> String {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("hub.mode", mode.as_str());
    form.append_pair("hub.topic", topic.as_str());
    form.append_pair("hub.callback", callback);
    if mode == Mode::Subscribe {
        form.append_pair("hub.lease_seconds", &LEASE_ASKED.as_secs().to_string());
    }
    if let Some(secret) = secret {
        form.append_pair("hub.secret", secret);
    }
    form.finish()
}

async fn send(shared: Arc<Shared>, request: HubRequest) {
    let HubRequest { hub, topic, mode, .. } = &request;
    let (accepted, retry_after) = match post(&shared.client, &request).await {
        Ok(posted) if (200..300).contains(&posted.status) => (true, None),
        Ok(posted) => {
            let (status, text) = (posted.status, &posted.text);
            tracing::warn!(%hub, %topic, mode = mode.as_str(), status, ?text, "the hub refuses");
            (false, posted.retry_after)
        }
        Err(what) => {
            tracing::warn!(%hub, %topic, mode = mode.as_str(), "the hub cannot be asked: {what}");
            (false, None)
        }
    };
    if let Some(member) = shared.registry().members.get_mut(&request.path) {
        member.subscription.answered(SystemTime::now(), *mode, accepted, retry_after);
    }
    shared.changed();
}

/// Posts to the hub, or to where it says that another takes its requests (307 and 308, WebSub 5.1.2); a secret goes nowhere
/// where others could read it.
async fn post(client: &Client, request: &HubRequest) -> Result<super::http::Posted, String> {
    let mut hub = request.hub.clone();
    for _ in 0..=REDIRECTS {
        let posted =
            client.post_form(&hub, &request.form, ANSWERED_WITHIN).await.map_err(|cause| chain(&cause).to_string())?;
        let Some(next) = posted.location.clone().filter(|_| matches!(posted.status, 307 | 308)) else {
            return Ok(posted);
        };
        if request.has_secret && !keeps_secrets(&next) {
            return Err(format!("redirected to {next}, where the secret could be read on the way"));
        }
        hub = next;
    }
    Err(format!("redirected more than {REDIRECTS} times"))
}
