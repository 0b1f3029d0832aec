//! The composition root: runtime, client, catalog, content, session; in which order they start and stop.
//!
//! Start: catalog and content are opened, a first revision is made where there is none, then the session is mounted
//! (so the mount appears with a whole tree or not at all), then threads run, then whoever waits is told.
//! Stop: the mount point is detached at once, users that still hold files are served for [`LINGER`], then what is
//! pending is written out.

mod audit;
pub mod daemon;
mod descriptors;
pub mod evict;
mod forgetting;
pub mod identity;
pub mod kept;
pub mod names;
mod notifications;
pub mod point;
pub mod prefetch;
mod privacy;
pub mod register;
pub mod server;
pub mod service;
pub mod status;
mod tree;

use crate::catalog::{Catalog, CatalogError, Renewal, SetId};
use crate::content::store::free_space;
use crate::content::{Content, ContentConfig, ContentError, Event, Fixity};
use crate::control::{self, Socket};
use crate::fs::fuse::Adapter;
use crate::fs::invalidator::{self, Effects, Invalidator, Notices};
use crate::fs::programs::Programs;
use crate::fs::session::{SessionOptions, mount_options, raise_readahead};
use crate::fs::{Filesystem, FsOptions};
use crate::platform::free_space::Room;
use crate::platform::scheduling;
use crate::source::documents::DocumentCache;
use crate::source::http::{Client, HttpConfig, HttpError};
use crate::source::websub::{self, Listener, WebsubConfig, WebsubError};
use crate::source::zip::{PackageConfig, Packages};
use crate::source::{SourceError, off_the_workers};
use crate::sync::command::Command;
use crate::sync::poller::Listeners;
use crate::sync::{Outcome, Stage, SyncConfig, SyncError, Synchronizer, poller};
use audit::Auditor;
use identity::Folders;
use register::{Record, Registration};
use service::Watched;
use status::Told;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tree::Tree;

/// How long users that still hold files are served after the mount point is detached.
pub const LINGER: Duration = Duration::from_secs(10);

/// What a process needs to write out what is pending, after it has served its last user.
const TIDYING: Duration = Duration::from_secs(2);

/// The longest that a process goes on after its mount is gone.
pub const ENDING: Duration = LINGER.saturating_add(websub::LEAVING).saturating_add(TIDYING);

/// How often an earlier mount that is ending is looked at.
const HANDOVER: Duration = Duration::from_millis(20);

/// How often it is looked why a first tree does not come.
const FAILURES_LOOKED_FOR: Duration = Duration::from_millis(200);

/// How far the kernel reads ahead in a file, where root may say so: a READ is 1 MiB then in place of 128 KiB.
const READ_AHEAD_KILOBYTES: u32 = 4096;

/// Worker threads of the runtime: fetches and sync wait, they do not compute.
const RUNTIME_THREADS: usize = 2;

/// Everything a mount needs to know, checked.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// Where.
    pub directory: PathBuf,
    /// The folder of catalog and objects.
    pub cache: PathBuf,
    /// What is synchronized.
    pub sync: SyncConfig,
    /// How the Source is asked.
    pub http: HttpConfig,
    /// Octets that may be fetched ahead of readers and not read yet; 0: none are. By the quota where none is given.
    pub readahead: Option<u64>,
    /// What is kept; its folders are filled in from `cache`.
    pub content: ContentConfig,
    /// Where hubs deliver notifications, if they may.
    pub websub: Option<WebsubConfig>,
    /// How the tree is shown.
    pub fs: FsOptions,
    /// What the kernel is told of the mount.
    pub session: SessionOptions,
    /// Programs for which nothing is fetched (`deny=`).
    pub denied: Vec<Box<str>>,
    /// Where metrics are told beside the control socket; a loopback address (`metrics-listen=`).
    pub metrics: Option<std::net::SocketAddr>,
}

/// Why a mount did not come about, or ended badly.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not there, no folder, or taken.
    #[error("{directory}: {what}", directory = .directory.display())]
    Directory {
        /// The mount point.
        directory: PathBuf,
        /// What is wrong with it and what to do.
        what: String,
    },
    /// A folder of the cache cannot be used.
    #[error("the cache folder {folder} cannot be used; name another with -o cache=DIR", folder = .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The catalog cannot be opened.
    #[error("the catalog cannot be opened")]
    Catalog(#[from] CatalogError),
    /// The content cache cannot be opened.
    #[error("the content cache cannot be opened")]
    Content(#[from] ContentError),
    /// The HTTP client cannot be made of these options.
    #[error("the HTTP client cannot be set up")]
    Http(#[from] HttpError),
    /// The spool cannot be opened.
    #[error("the spool of documents cannot be opened")]
    DocumentCache(#[from] SourceError),
    /// Notifications cannot be received as asked for.
    #[error("no notifications can be received")]
    Websub(#[from] WebsubError),
    /// The first baseline failed and there is no earlier revision.
    #[error("nothing can be shown yet")]
    FirstBaseline(#[from] SyncError),
    /// Metrics cannot be told as asked for.
    #[error("nothing can listen on {address} for metrics; name another with -o metrics-listen=HOST:PORT")]
    Metrics {
        /// As configured.
        address: std::net::SocketAddr,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The kernel refused the mount.
    #[error("mounting at {directory} failed{hint}", directory = .directory.display())]
    Kernel {
        /// The mount point.
        directory: PathBuf,
        /// What to do about it.
        hint: &'static str,
        /// The operating system's answer.
        #[source]
        cause: std::io::Error,
    },
    /// The operating system refused threads, signals or the like.
    #[error("{what}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        #[source]
        cause: std::io::Error,
    },
    /// The person changed their mind.
    #[error("interrupted before the tree was there")]
    Interrupted,
}

/// What a process that mounts is told; a signal that comes while nobody waits for it is kept.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on none of them ends the process by itself. Within a runtime only.
    fn receive() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// See [`ahead_octets`].
const AHEAD_OCTETS: u64 = 256 << 20;

/// Mounts and serves until the mount ends. `ready` is called once the tree can be used; progress of a first baseline
/// goes to `progress`.
pub fn run(
    mut config: MountConfig,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
    ready: impl FnOnce() -> std::io::Result<()>,
) -> Result<(), MountError> {
    privacy::keep_memory();
    descriptors::raise();
    crate::platform::allocator::bound_arenas();
    config.directory = point::prepare(&config.directory)?;
    let folders = Folders::prepare(&config)?;
    let mut registration = registered(&config, &folders.control);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build()
        .map_err(|cause| MountError::System { what: "no threads", cause })?;

    let catalog = open_catalog(&folders.catalog, &config.directory)?;
    let catalog = Arc::new(catalog.leaving(Room::new(config.sync.reserve, free_space)));
    let client = Client::new(config.http.clone())?;
    let (event_sender, events) = mpsc::unbounded_channel();
    let instance = content_name(&catalog.instance()?, config.content.fixity);
    let content = Content::open(
        ContentConfig {
            observed_folder: folders.observed_of(&instance)?,
            counted_folder: Some(folders.mounts),
            folder: folders.content,
            source: format!("{} {instance}", config.content.source),
            ..config.content.clone()
        },
        client.clone(),
        runtime.handle().clone(),
        event_sender,
    )?;
    // What is read anew can be fetched anew: the tree goes first.
    let cache = Arc::downgrade(&content);
    catalog.room().ask(Box::new(move |folder, octets| {
        let give_up = || cache.upgrade().map_or(0, |it| it.give_up(folder, octets));
        off_the_workers(give_up)
    }));
    let packages = open_packages(&config, &content, folders.packages, client.clone())?;
    content.read_packages(packages.clone());
    let spool = DocumentCache::open(&folders.spool)?;
    let listener = config.websub.as_ref().map(|websub| runtime.block_on(Listener::bind(websub))).transpose()?;
    let metrics = config.metrics.map(|address| runtime.block_on(listen_for_metrics(address))).transpose()?;
    let mut synchronizer = Synchronizer::new(config.sync.clone(), client.clone(), catalog.clone(), spool);
    synchronizer.read_packages(packages);

    // Before the mount can be seen, since who sees it may signal at once; by default each signal would end the process.
    let mut signals = {
        let _context = runtime.enter();
        Signals::receive().map_err(|cause| MountError::System { what: "signals cannot be received", cause })?
    };

    let from_earlier = catalog.revision()?.is_some();
    if !from_earlier {
        let progress = service::watched_progress(progress.clone());
        runtime.block_on(first_baseline(&mut synchronizer, &client, progress, &mut signals))?;
    }
    for remark in synchronizer.remarks()? {
        tracing::warn!("{remark}");
        progress(Stage::Remark(remark.into()));
    }

    let (notices, inbox) = invalidator::channel();
    let status = synchronizer.status();
    let set_names = move || status.read().sets.into_iter().map(|set| (SetId(set.id), set.name)).collect();
    let programs = Arc::new(Programs::new(config.denied.iter().map(|name| &**name)));
    let mut filesystem = Filesystem::new(catalog.clone(), content.clone(), config.fs.clone(), runtime.handle().clone())
        .with_set_names(set_names)
        .with_programs(programs.clone())
        .with_prefetch(ahead_octets(config.readahead, content.quota()));
    let control = control_socket(&runtime, &folders.control);
    if let Some((socket, _)) = &control {
        filesystem = filesystem.with_control_socket(socket.path().to_owned());
    }
    let adapter = Adapter::new(Arc::new(filesystem), notices.clone());
    let heartbeat = adapter.heartbeat();
    let session = mount(&config, adapter)?;
    let system = |what| move |cause| MountError::System { what, cause };
    let device = session.as_fd().try_clone_to_owned().map_err(system("the kernel's device cannot be shared"))?;
    let effects = Effects::new(device, catalog.clone(), content.clone(), runtime.handle());
    let invalidator = Invalidator::spawn(inbox, effects).map_err(system("the invalidator cannot start"))?;
    let point = point::MountPoint::find(&config.directory)?;
    if let Some(Err(cause)) = registration.as_mut().map(|registration| registration.mounted(point.device())) {
        tracing::warn!(%cause, "commands cannot tell that this mount is there");
    }
    if let Err(cause) = raise_readahead(point.device(), READ_AHEAD_KILOBYTES) {
        tracing::debug!(%cause, "the kernel reads ahead by its default");
    }
    let served = scheduling::in_short_slices(|| session.spawn()).map_err(system("no threads"))?;

    let (commands, command_receiver) = mpsc::channel(64);
    let channels = synchronizer.channels();
    let subscriber = listener.map(|listener| {
        let _context = runtime.enter();
        notifications::start(listener, folders.websub, client.clone(), channels, commands.clone())
    });
    let metrics_at = metrics.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.to_string()));
    let (status, asked) = (synchronizer.status(), client.clone());
    let told = Told::new(&config, status, catalog.clone(), content.clone(), asked, programs, notices.clone())
        .with_subscriber(subscriber.clone())
        .with_metrics_at(metrics_at);
    let told = Arc::new(told);
    if let Some(listener) = metrics {
        runtime.spawn(control::serve_metrics(listener, told.metrics()));
    }
    let socket = control.map(|(socket, listener)| {
        let auditor = Auditor::new(&config, client.clone(), catalog.clone(), content.clone(), folders.audits);
        let tree = Tree {
            catalog: catalog.clone(),
            content: content.clone(),
            view: config.fs.clone(),
            auditor: auditor.clone(),
        };
        runtime.spawn(control::serve(listener, told.answers(commands.clone(), auditor, &tree)));
        socket
    });
    let watched = Watched {
        heartbeat,
        status: synchronizer.status().changes(),
        catalog: catalog.clone(),
        commands: commands.clone(),
    };
    let looking = runtime
        .spawn(poller::run(synchronizer, command_receiver, listeners(&notices, &content), from_earlier))
        .abort_handle();
    runtime.spawn(forward(events, commands.clone(), notices.clone()));
    runtime.spawn(forgetting::run(catalog.clone(), content.clone()));
    tracing::info!(source = config.session.source, directory = %config.directory.display(), "mounted");
    ready().map_err(system("the caller cannot be told"))?;
    {
        let _context = runtime.enter();
        watched.ready();
    }

    // Whoever leaves hubs must not find channels meanwhile, and a look that waits for its Source ends with the mount.
    let leave = async move {
        looking.abort();
        if let Some(subscriber) = subscriber {
            subscriber.leave().await;
        }
    };
    let result = runtime.block_on(serve(served, point, commands, signals, leave, &notices));
    // In this order: what is found written down can be asked.
    drop((registration, socket));
    notices.stop();
    if invalidator.join().is_err() {
        tracing::error!("the invalidator panicked");
    }
    runtime.block_on(content.close());
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Octets fetched ahead that were not read yet, where the cache may take `quota`: what is read next must not push out what was
/// read just now, whatever is `told`.
fn ahead_octets(told: Option<u64>, quota: u64) -> u64 {
    told.map_or(AHEAD_OCTETS.min(quota / 8), |told| told.min(quota / 2))
}

/// The packages of this mount. Local copies take at most half of the quota of the cache folder.
fn open_packages(
    config: &MountConfig,
    content: &Content,
    folder: PathBuf,
    client: Client,
) -> Result<Packages, MountError> {
    let usual = PackageConfig::new(folder.clone());
    let whole = usual.whole.min(content.quota() / 2);
    let (reserve, budget) = (config.content.reserve, content.memory());
    Packages::open(client, PackageConfig { whole, reserve, free_space, budget, ..usual })
        .map_err(|error| MountError::Cache { folder, cause: std::io::Error::other(error) })
}

/// Writes down that there will be a mount. One that cannot be found by its commands is a mount all the same.
fn registered(config: &MountConfig, socket: &Path) -> Option<Registration> {
    let record = Record {
        source: config.session.source.clone(),
        directory: config.directory.clone(),
        process: std::process::id(),
        socket: socket.to_owned(),
        device: None,
    };
    Registration::new(record)
        .inspect_err(|cause| tracing::warn!(%cause, "resyncfs list will not tell the process of this mount"))
        .ok()
}

async fn listen_for_metrics(address: std::net::SocketAddr) -> Result<tokio::net::TcpListener, MountError> {
    tokio::net::TcpListener::bind(address).await.map_err(|cause| MountError::Metrics { address, cause })
}

/// The control socket. A file system that has no sockets is no reason not to mount.
fn control_socket(runtime: &tokio::runtime::Runtime, path: &Path) -> Option<(Socket, tokio::net::UnixListener)> {
    let _context = runtime.enter();
    // The catalog's lock says that no other process uses the same folder.
    Socket::bind(path)
        .inspect_err(|cause| tracing::warn!(%cause, socket = %path.display(), "there will be no status and no refresh by command"))
        .ok()
}

/// Under which name content keeps what it learns of the inodes of a catalog's `instance`. What was taken without looking at
/// published hashes must never pass for verified in a mount that counts them.
fn content_name(instance: &str, fixity: Fixity) -> String {
    match fixity {
        Fixity::Off => format!("{instance}-unverified"),
        Fixity::Strict | Fixity::Stream => instance.to_owned(),
    }
}

/// Opens the catalog for a mount at `directory`. A process whose mount is gone from the tree may still be putting its
/// state away, or still serve open files: that one is waited for.
fn open_catalog(folder: &Path, directory: &Path) -> Result<Catalog, MountError> {
    let mounted_at = |directory: &Path| format!("mounted at {}", directory.display());
    let deadline = Instant::now() + ENDING;
    loop {
        let holder = match Catalog::open(folder, &mounted_at(directory)) {
            Err(CatalogError::Busy { holder, .. }) if Instant::now() < deadline => holder,
            opened => return Ok(opened?),
        };
        let system = |cause| MountError::System { what: "the mounts of this machine cannot be read", cause };
        if point::ours().map_err(system)?.iter().any(|ours| holder.ends_with(&mounted_at(&ours.directory))) {
            return Ok(Catalog::open(folder, &mounted_at(directory))?);
        }
        tracing::debug!(holder, "waiting for an earlier mount to end");
        std::thread::sleep(HANDOVER);
    }
}

async fn first_baseline(
    synchronizer: &mut Synchronizer,
    client: &Client,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
    signals: &mut Signals,
) -> Result<(), MountError> {
    let outcome = tokio::select! {
        outcome = synchronizer.refresh(progress.clone()) => outcome?,
        never = tell_failures(client, &*progress) => match never {},
        _ = signals.interrupt.recv() => return Err(MountError::Interrupted),
        _ = signals.terminate.recv() => return Err(MountError::Interrupted),
    };
    if let Outcome::Committed(_) = outcome {
        synchronizer.tidy().await;
    }
    Ok(())
}

/// Tells why nothing comes, for as long as a first tree is waited for: once for each time that a host ceases to answer.
async fn tell_failures(client: &Client, progress: &(dyn Fn(Stage) + Send + Sync)) -> std::convert::Infallible {
    let mut is_told = false;
    loop {
        let unanswered = client.unanswered();
        match unanswered {
            Some(why) if !is_told => {
                is_told = true;
                progress(Stage::Unanswered(why));
            }
            Some(_) => {}
            None => is_told = false,
        }
        tokio::time::sleep(FAILURES_LOOKED_FOR).await;
    }
}

fn mount(config: &MountConfig, adapter: Adapter) -> Result<fuser::Session<Adapter>, MountError> {
    fuser::Session::new(adapter, &config.directory, &mount_options(&config.session)).map_err(|cause| {
        let hint = match cause.kind() {
            std::io::ErrorKind::PermissionDenied if config.session.acl == fuser::SessionACL::All => {
                ": allow_other needs the line user_allow_other in /etc/fuse.conf"
            }
            std::io::ErrorKind::PermissionDenied => ": is /dev/fuse writable for you?",
            std::io::ErrorKind::NotFound => ": is the package fuse3 installed and /dev/fuse there?",
            _ => "",
        };
        MountError::Kernel { directory: config.directory.clone(), hint, cause }
    })
}

fn listeners(notices: &Notices, content: &Arc<Content>) -> Listeners {
    let (notices, content) = (notices.clone(), content.clone());
    Listeners {
        invalidate: Box::new(move |invalidations| notices.changed(invalidations)),
        refreshed: Box::new(move || content.forget_failures()),
    }
}

/// Content's verdicts become notices to the kernel and orders to sync. A commit under way may keep sync from obeying
/// for a while: the kernel must not wait for that, for it goes on serving pages that are wrong.
async fn forward(mut events: mpsc::UnboundedReceiver<Event>, commands: mpsc::Sender<Command>, notices: Notices) {
    let (orders, mut waiting) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(order) = waiting.recv().await {
            if commands.send(order).await.is_err() {
                return;
            }
        }
    });
    while let Some(event) = events.recv().await {
        notices.content(&event);
        let command = match event {
            Event::Poisoned(ino) | Event::Changed(ino) => Command::Renew(ino, Renewal::AsPublished),
            Event::Unannounced(ino) => Command::Renew(ino, Renewal::Unpublished),
            Event::Recheck(..) | Event::Sized(..) => continue,
        };
        // Nobody obeys any more while the mount ends; what is open is served on, and its pages are still to go.
        let _ = orders.send(command);
    }
}

/// Serves until the mount is gone: unmounted by somebody, or detached here on a signal; does `leave` then.
async fn serve(
    served: fuser::BackgroundSession,
    point: point::MountPoint,
    commands: mpsc::Sender<Command>,
    mut signals: Signals,
    leave: impl Future<Output = ()> + Send + 'static,
    notices: &Notices,
) -> Result<(), MountError> {
    let mut ended = tokio::task::spawn_blocking(move || wait_for_end(served));
    loop {
        tokio::select! {
            joined = &mut ended => {
                service::stopping();
                leave.await;
                return finished(joined);
            }
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => {
                let notices = notices.clone();
                service::reload(&commands, async move { notices.flushed().await });
            }
        }
    }
    tracing::info!("detaching");
    service::stopping();
    let left = tokio::spawn(leave);
    let detached = tokio::task::spawn_blocking(move || point.detach()).await;
    if let Ok(Err(cause)) = detached {
        tracing::error!(%cause, "the mount point cannot be detached");
    }
    let served = match tokio::time::timeout(LINGER, ended).await {
        Ok(joined) => finished(joined),
        Err(_) => {
            tracing::warn!("files are still open after {LINGER:?}; their readers get errors from now on");
            Ok(())
        }
    };
    if let Err(cause) = left.await {
        tracing::error!(%cause, "hubs were not told");
    }
    served
}

/// Waits for the end of the session and leaves the mount point alone after it: fuser 0.18 takes a mount that is gone for one
/// that is there, and would unmount whatever lay beneath it, the automount for instance.
fn wait_for_end(mut served: fuser::BackgroundSession) -> std::io::Result<()> {
    // The threads' own handle cannot be taken without another in its place.
    let nothing = std::thread::Builder::new().spawn(|| Ok(()))?;
    let threads = std::mem::replace(&mut served.guard, nothing);
    let ended = threads.join();
    // What is left of it would unmount when dropped; this process ends soon.
    std::mem::forget(served);
    ended.unwrap_or_else(|_| Err(std::io::Error::other("a FUSE thread panicked")))
}

fn finished(joined: Result<std::io::Result<()>, tokio::task::JoinError>) -> Result<(), MountError> {
    let what = "the connection to the kernel broke";
    match joined {
        Ok(Ok(())) => Ok(()),
        Ok(Err(cause)) => Err(MountError::System { what, cause }),
        Err(cause) => Err(MountError::System { what, cause: std::io::Error::other(cause) }),
    }
}
