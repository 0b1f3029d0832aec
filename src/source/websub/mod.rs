//! Notifications: a subscriber of WebSub hubs and the listener that they deliver to (Framework Notification, sections 3
//! and 4). A delivery is only a reason to ask the Source.
//!
//! `registry` is the one state: a `subscription` (a state machine) for each channel of each mounted set, under a random path.
//! `requests` sends what the subscriptions ask for, through the mount's own HTTP client. `listener` answers hubs, and passes on
//! each delivery whose `signature` is right.

mod listener;
mod registry;
mod requests;
mod signature;
mod subscription;
#[cfg(test)]
mod tests;

pub use registry::{Member, Subject};
pub use subscription::{LEASE_ASKED, Mode, Standing, Subscription};

use super::http::Client;
use crate::document::Uri;
use listener::DeliveryBounds;
use registry::Registry;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// How long [`Subscriber::leave`] waits for hubs.
pub const LEAVING: Duration = Duration::from_secs(5);
/// Deliveries that wait to be read. A hub that brings more gets a 503 and comes again.
const WAITING: usize = 256;

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
    #[error("cannot listen on {listen}")]
    Listen {
        /// Address as configured.
        listen: Box<str>,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// Listener on every address of this machine, none of which was named for hubs.
    #[error("hubs cannot deliver to {address}: name a URL that reaches it with -o websub-callback=URL")]
    NoCallback {
        /// Address that it listens on.
        address: SocketAddr,
    },
    /// The operating system has no random bytes.
    #[error("this machine has no random numbers")]
    Random {
        /// Its answer.
        cause: getrandom::Error,
    },
}

/// Delivery of a hub to a subscription: its signature was checked, its content was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Subject of the subscription.
    pub subject: Subject,
    /// The body, perhaps empty.
    pub body: bytes::Bytes,
}

/// A port that hubs can deliver to.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    callback: Uri,
    bounds: DeliveryBounds,
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
        Ok(Listener { listener, callback, bounds: DeliveryBounds::default() })
    }

    /// The URL below which hubs deliver.
    pub fn callback(&self) -> &Uri {
        &self.callback
    }
}

/// The subscriber; clones share one state.
#[derive(Clone)]
pub struct Subscriber {
    shared: Arc<Shared>,
}

/// State that requests and the listener share. The lock is never held across an await.
struct Shared {
    registry: Mutex<Registry>,
    /// Wakes the tasks that depend on the registry.
    changes: watch::Sender<()>,
    client: Client,
    callback: Uri,
    deliveries: mpsc::Sender<Delivery>,
}

impl Subscriber {
    /// Answers hubs on `listener` from now on. Paths and secrets of earlier mounts are those of `state`, a file of this mount
    /// alone; nothing is asked for before [`Subscriber::follow`]. Within a runtime only.
    pub fn start(listener: Listener, state: PathBuf, client: Client) -> (Subscriber, mpsc::Receiver<Delivery>) {
        let (deliveries, receiver) = mpsc::channel(WAITING);
        let registry = Registry::load(&state);
        let saved = registry.text();
        let changes = watch::Sender::new(());
        let shared = Arc::new(Shared {
            registry: Mutex::new(registry),
            changes,
            client,
            callback: listener.callback,
            deliveries,
        });
        tokio::spawn(listener::serve(listener.listener, shared.clone(), listener.bounds));
        tokio::spawn(requests::send_due(shared.clone(), state, saved));
        (Subscriber { shared }, receiver)
    }

    /// Makes the subscriptions those of `wanted`: subscribes to what is new and unsubscribes from the rest.
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
        let left = changes.wait_for(|()| self.shared.registry().is_over());
        if tokio::time::timeout(LEAVING, left).await.is_err() {
            tracing::warn!("hubs did not confirm the end of all subscriptions in time");
        }
    }

    /// The URL below which hubs deliver.
    pub fn callback(&self) -> &Uri {
        &self.shared.callback
    }

    /// Counts one more of what the listener received, under its name in `status`; how many there are now.
    pub fn count(&self, name: &'static str) -> u64 {
        self.shared.registry().count(name)
    }

    /// Deliveries since the mount began, by their names in `status`.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.shared.registry().counts.clone()
    }

    /// Every subscription, ordered by subject.
    pub fn channels(&self) -> Vec<Member> {
        let mut channels: Vec<Member> = self.shared.registry().members.values().cloned().collect();
        channels.sort_by(|a, b| a.subject.cmp(&b.subject));
        channels
    }

    /// Changes whenever a subscription does.
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
