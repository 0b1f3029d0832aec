//! Starts and stops a mount, in order.
//!
//! Start: catalog and content are opened, and a first tree is made if there is none. Only then is the session mounted, so the
//! mount appears with a whole tree or not at all. Then the threads start, and the caller learns that the mount is ready.
//! Stop: the mount point is detached at once, open files are served a while, then pending state is written out. What another
//! process mounted ([`Descriptor`]) is neither mounted nor detached here.

use super::attach::attach;
use super::descriptor::Descriptor;
use super::handlers::{Audits, Handlers, PagesFirst, Tree};
use super::identity::Folders;
use super::mountpoint::MountPoint;
use super::parts::Parts;
use super::registry::{Record, Registration};
use super::serving::{Signals, serve};
use super::status::{Reporter, Status};
use super::{MountConfig, MountError, limits, notifications, preparation, systemd, tasks};
use crate::catalog::SetId;
use crate::control::{self, Socket};
use crate::fs::Filesystem;
use crate::fs::fuse::Adapter;
use crate::fs::invalidator::{self, Invalidator, MountEffects};
use crate::fs::readers::Programs;
use crate::fs::session::raise_readahead;
use crate::platform::{address_space, allocator, scheduling};
use crate::source::websub::Listener;
use crate::sync::{Stage, poller};
use jiff::Timestamp;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;

/// How far the kernel reads ahead in a file, if root can set it: a READ is 1 MiB then instead of 128 KiB.
const READ_AHEAD_KILOBYTES: u32 = 4096;

/// Worker threads of the runtime: downloads and sync wait, they do not compute.
const RUNTIME_THREADS: usize = 2;

/// The most bytes that are downloaded ahead by default.
const AHEAD: u64 = 256 << 20;

/// Opened files and listed folders that wait to be looked at, where landing pages are followed.
const OPENED: usize = 64;

/// Mounts and serves until the mount ends. `ready` is called once the tree can be used; progress of a first tree goes to
/// `progress`.
pub fn run(
    mut config: MountConfig,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
    ready: impl FnOnce() -> io::Result<()>,
) -> Result<(), MountError> {
    limits::protect_memory();
    limits::raise_open_files()?;
    allocator::bound_arenas();
    config.directory = preparation::prepare(&config.directory)?;
    let descriptor = Descriptor::of(&config.directory)?;
    let mut remarks = Vec::new();
    match &descriptor {
        Some(descriptor) => config.directory = descriptor.name().to_owned(),
        None => remarks.extend(preparation::hidden_files(&config.directory)),
    }
    let folders = Folders::prepare(&config)?;
    let registration = register(&config, folders.own.join("control"));
    let system = |what| move |cause| MountError::System { what, cause };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .max_blocking_threads(address_space::blocking_threads())
        .enable_all()
        .build()
        .map_err(system("no threads"))?;
    let parts = Parts::open(&config, &folders, runtime.handle())?;
    let Parts { catalog, content, client, mut synchronizer, events } = parts;
    let listener = config.websub.as_ref().map(|websub| runtime.block_on(Listener::bind(websub))).transpose()?;
    let listening =
        |address| runtime.block_on(TcpListener::bind(address)).map_err(|cause| MountError::Metrics { address, cause });
    let metrics = config.metrics.map(listening).transpose()?;
    // Before the mount can be seen: a reader of it may send a signal at once, and by default each signal ends the process.
    let mut signals = runtime.block_on(async { Signals::receive() }).map_err(system("signals cannot be received"))?;

    let context = runtime.enter();
    let (notices, inbox) = invalidator::channel();
    let ((commands, command_receiver), (renewals, renewed)) = (mpsc::channel(64), mpsc::unbounded_channel());
    let programs = Arc::new(Programs::new(config.denied.iter().map(|name| &**name)));
    let reporter = Arc::new(Reporter {
        fixed: Status {
            source: config.session.source.clone(),
            directory: config.directory.display().to_string(),
            process: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cache_folder: config.cache.display().to_string(),
            log: config.log.as_ref().map(|file| file.display().to_string()),
            mounted: Timestamp::now(),
            denied: config.denied.iter().map(ToString::to_string).collect(),
            metrics: metrics.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.to_string())),
            ..Status::default()
        },
        stage: Mutex::new(Stage::Discovering),
        mounted: OnceLock::new(),
        sync: synchronizer.status(),
        catalog: catalog.clone(),
        content: content.clone(),
        client: client.clone(),
        programs: programs.clone(),
        subscriber: OnceLock::new(),
        minutes: Mutex::default(),
    });
    let (opened, pages_first) = mpsc::channel(OPENED);
    let socket = control_socket(&folders.own.join("control")).map(|(socket, listener)| {
        let tree = Tree { catalog: catalog.clone(), content: content.clone(), view: config.fs.clone() };
        let audits = Audits::new(config.sync.clone(), client.clone(), tree, folders.own.join("audits"));
        let (reporter, commands, notices) = (reporter.clone(), commands.clone(), notices.clone());
        let pages = PagesFirst { opened: opened.clone(), sync: synchronizer.status() };
        let handlers = Handlers { reporter, commands, notices, audits, pages };
        runtime.spawn(control::serve(listener, move |request| handlers.clone().answer(request)));
        socket
    });

    let from_earlier = catalog.revision()?.is_some();
    if !from_earlier {
        let progress = systemd::watched_progress(reporter.noting(progress.clone()));
        let made = runtime.block_on(tasks::make_first_tree(&mut synchronizer, &client, progress, &mut signals));
        made.inspect_err(|_| folders.remove_unmade())?;
    }
    remarks.extend(synchronizer.remarks()?);

    let status = synchronizer.status();
    let set_names =
        move || status.borrow().sets.iter().map(|set| (SetId(set.id), set.name.clone())).collect::<Vec<_>>();
    let readahead = ahead(config.readahead, content.quota());
    let (options, handle) = (config.fs.clone(), runtime.handle().clone());
    let mut filesystem = Filesystem::new(catalog.clone(), content.clone(), options, handle, readahead);
    filesystem.set_names = Some(Box::new(set_names));
    filesystem.programs = programs.clone();
    filesystem.opened = config.sync.follows_items.then_some(opened);
    filesystem.control_socket = socket.as_ref().map(|socket| socket.path().to_owned());
    let (filesystem, heartbeat) = (Arc::new(filesystem), Arc::default());
    let adapter = || Adapter::new(Arc::clone(&filesystem), notices.clone(), Arc::clone(&heartbeat));
    // The tree is complete: who sees the mount is answered.
    let _ = reporter.mounted.set(Timestamp::now());
    let (session, point) = match descriptor {
        Some(descriptor) => descriptor.session(&config, adapter())?,
        None => {
            let session = attach(&config, adapter)?;
            (session, MountPoint::find(&config.directory)?)
        }
    };
    drop(filesystem);
    let connection = session.as_fd().try_clone_to_owned().map_err(system("the kernel's device cannot be shared"))?;
    let effects = MountEffects::new(connection, catalog.clone(), content.clone(), runtime.handle());
    let invalidator = Invalidator::spawn(inbox, effects).map_err(system("the invalidator cannot start"))?;
    if let Some(Err(cause)) = registration.as_ref().map(|it| tasks::locked(it).mounted(point.device.as_deref())) {
        tracing::warn!(%cause, "commands cannot find this mount");
    }
    if let Some(Err(cause)) = point.device.as_deref().map(|device| raise_readahead(device, READ_AHEAD_KILOBYTES)) {
        tracing::debug!(%cause, "the kernel reads ahead by its default");
    }
    let session = scheduling::in_short_slices(|| session.spawn()).map_err(system("no threads"))?;

    let subscriber = listener.map(|listener| {
        let channels = synchronizer.channels();
        notifications::start(listener, folders.own.join("websub.json"), client.clone(), channels, commands.clone())
    });
    if let Some(subscriber) = &subscriber {
        let _ = reporter.subscriber.set(subscriber.clone());
    }
    if let Some(listener) = metrics {
        runtime.spawn(control::serve_metrics(listener, reporter.metrics()));
    }
    let watched = systemd::Watched {
        heartbeat,
        status: synchronizer.status(),
        catalog: catalog.clone(),
        commands: commands.clone(),
    };
    tasks::keep_orphans(&catalog, &content);
    let listeners = tasks::listeners(notices.clone(), content.clone());
    let polls = poller::run(synchronizer, command_receiver, renewed, pages_first, listeners, from_earlier);
    let polling = runtime.spawn(polls).abort_handle();
    runtime.spawn(tasks::forward_events(events, renewals, notices.clone()));
    runtime.spawn(tasks::forget_gone(catalog.clone(), content.clone()));
    runtime.spawn(reporter.clone().note_minutes());
    if let Some(registration) = &registration {
        runtime.spawn(tasks::keep_record(Arc::downgrade(registration)));
    }
    if from_earlier {
        remarks.extend(runtime.block_on(tasks::old_tree(&catalog, &client))?);
    }
    for remark in remarks {
        tracing::warn!("{remark}");
        progress(Stage::Remark(remark.into()));
    }
    tracing::info!(source = config.session.source, directory = %config.directory.display(), "mounted");
    ready().map_err(system("the caller cannot be notified"))?;
    watched.ready();

    // A refresh ends with the mount, even if it waits for its Source; it must not subscribe again while hubs are left.
    let leave = async move {
        polling.abort();
        if let Some(subscriber) = subscriber {
            subscriber.leave().await;
        }
    };
    let result = runtime.block_on(serve(session, point, commands, signals, leave, &notices));
    // The record goes first: a mount that is found answers at its socket. The mount point of an aborted one is left, and its record:
    // the lock ends with this process, and the mount is seen to be dead.
    match &result {
        Err(MountError::Aborted { .. }) => std::mem::forget(registration),
        _ => drop(registration),
    }
    drop(socket);
    notices.stop();
    if invalidator.join().is_err() {
        tracing::error!("the invalidator panicked");
    }
    runtime.block_on(content.close());
    drop(context);
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Bytes that may be downloaded ahead and not read yet, by option and by the cache's quota: what is read next must not displace
/// what was read just now.
fn ahead(option: Option<u64>, quota: u64) -> u64 {
    option.map_or(AHEAD.min(quota / 8), |option| option.min(quota / 2))
}

/// Records that this mount starts. A mount without a record is not found by commands, and a mount all the same.
fn register(config: &MountConfig, socket: PathBuf) -> Option<Arc<Mutex<Registration>>> {
    let record = Record {
        source: config.session.source.clone(),
        directory: config.directory.clone(),
        process: std::process::id(),
        socket,
    };
    let registration = Registration::starting(&record);
    let registration = registration.inspect_err(|cause| tracing::warn!(%cause, "commands cannot find this mount"));
    registration.ok().map(|registration| Arc::new(Mutex::new(registration)))
}

/// The control socket, if the file system of the cache folder has sockets. The catalog's lock ensures that no other process uses it.
/// Within a runtime only.
fn control_socket(path: &Path) -> Option<(Socket, UnixListener)> {
    Socket::bind(path)
        .inspect_err(
            |cause| tracing::warn!(%cause, socket = %path.display(), "status, refresh and other commands will fail"),
        )
        .ok()
}
