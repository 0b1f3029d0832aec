//! `resyncfs mount`

use super::args::{OptionWords, Options};
use super::config::MountRequest;
use super::credentials::CredentialFiles;
use super::log::{LogTarget, start_logging};
use super::log_file::LogFile;
use super::mounts;
use super::option_files::{Access, read, read_text};
use super::progress::Progress;
use super::{CliError, Exit};
use crate::content::{ContentConfig, Fixity, SharedCacheConfig};
use crate::fs::FsOptions;
use crate::fs::session::SessionOptions;
use crate::mount::daemonize::{self, Side};
use crate::mount::identity::{Folders, default_cache};
use crate::mount::systemd::stderr_is_journal;
use crate::mount::{self, MountConfig};
use crate::source::EntryPoint;
use crate::source::http::{Credentials, HttpConfig};
use crate::source::websub::WebsubConfig;
use crate::sync::SyncConfig;
use clap_complete::engine::ArgValueCompleter;
use fuser::SessionACL;
use rustix::fs::Mode;
use rustix::process::{getegid, geteuid, umask};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A body with fewer bytes a second than this, for `timeout=`, has failed.
const LOW_SPEED_LIMIT: u64 = 64;
/// Bytes of a log file; the file before it is kept too.
const LOG_LIMIT: u64 = 16 << 20;

/// Mount a Source as a read-only folder
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each option works as a flag, in -o, and as a key of /etc/resyncfs/NAME.toml; flags and -o override the file."
)]
pub struct MountArgs {
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    foreground: bool,
    /// A site, a page, a DOI, a Source Description, a Capability List, a list, a sitemap, a list on disk, or the NAME of
    /// /etc/resyncfs/NAME.toml
    #[arg(value_name = "SOURCE|NAME", add = ArgValueCompleter::new(mounts::complete_source))]
    source: String,
    /// The folder to mount on; the file of a NAME may hold it
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    options: OptionWords,
}

/// Runs the command.
pub fn run(args: MountArgs, verbosity: u8) -> Result<Exit, CliError> {
    let wanted = MountRequest::new(&args.source, args.directory, args.options)?;
    start(&wanted, args.foreground, verbosity)
}

/// Checks everything that needs no request to the Source and changes nothing.
pub fn check(wanted: &MountRequest) -> Result<(), CliError> {
    let config = configure(&wanted.options, &wanted.source, &wanted.directory)?;
    mount::preparation::check(&config.directory)?;
    Ok(())
}

/// Mounts. In the foreground this process serves the mount until it ends, otherwise another one.
pub fn start(wanted: &MountRequest, foreground: bool, verbosity: u8) -> Result<Exit, CliError> {
    let options = &wanted.options;
    let mut config = configure(options, &wanted.source, &wanted.directory)?;
    // Other users change none of the files that are written from here on. No other thread runs yet that makes a file.
    umask(umask(Mode::RWXG | Mode::RWXO) | Mode::WGRP | Mode::WOTH);
    // A mount point that cannot be used is reported before the first request.
    mount::preparation::prepare(&config.directory)?;

    let waiting = match foreground {
        true => None,
        false => match daemonize::fork()? {
            // The child is the mount; nothing is left to do here.
            Side::Parent(exit) => std::process::exit(exit.into()),
            Side::Child(waiting) => Some(waiting),
        },
    };
    if !foreground && (options.program.log.is_some() || !stderr_is_journal()) {
        config.log = Some(options.program.log.clone().unwrap_or_else(|| Folders::of(&config).own.join("log")));
    }
    start_logging(verbosity, log_target(options, &config)?);
    let progress = Progress::start(foreground);
    let done = progress.clone();
    let ready = move || {
        done.finish();
        let Some(waiting) = waiting else { return Ok(()) };
        done.print_remarks();
        waiting.ready()
    };
    let ended = mount::run(config, Arc::new(progress.stages()), ready);
    ended.map_err(|cause| CliError::from(cause).assuming(&wanted.source))?;
    Ok(Exit::Success)
}

fn log_target(options: &Options, config: &MountConfig) -> Result<LogTarget, CliError> {
    let Some(file) = &config.log else { return Ok(LogTarget::StandardError) };
    let unusable = |cause: std::io::Error| match &options.program.log {
        Some(log) => {
            let why = format!("cannot be written; name another with -o log=FILE: {cause}");
            CliError::new(Exit::Failure, format!("the log {} {why}", log.display()))
        }
        None => CliError::of(Exit::Cache, &mount::MountError::Cache { folder: file.clone(), cause }),
    };
    Folders::prepare(config)?;
    LogFile::open(file, LOG_LIMIT).map(LogTarget::File).map_err(unusable)
}

/// The configuration of a mount, from its options.
pub fn configure(options: &Options, source: &str, directory: &Path) -> Result<MountConfig, CliError> {
    let Options { tree, cache, refresh, network, files, .. } = options;
    let entry = EntryPoint::parse(source).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    if refresh.websub_callback.is_some() && refresh.websub_listen.is_none() {
        return Err(CliError::usage("-o websub-callback=URL: needs websub-listen=HOST:PORT too"));
    }
    if tree.at.is_some() && tree.items.is_some() {
        return Err(CliError::usage(
            "-o at=DATETIME: landing pages show what they link to now; leave out items=follow",
        ));
    }
    if tree.at.is_some() && refresh.websub_listen.is_some() {
        return Err(CliError::usage("-o at=DATETIME: the past does not change; leave out websub-listen"));
    }
    let folder = cache.folder.clone().or_else(default_cache).ok_or_else(|| {
        CliError::new(Exit::Cache, "there is no cache folder for this user; name one with -o cache=DIR")
    })?;
    let labels = files.labels();
    if let Some(given) = labels.first() {
        let refused = |cause| CliError::new(Exit::Usage, format!("-o {}=…: {cause}", given.option));
        mount::labels::check(&labels).map_err(refused)?;
    }
    let source_name = entry.to_string();
    Ok(MountConfig {
        directory: directory.to_owned(),
        cache: folder,
        http: http(options, &entry)?,
        readahead: cache.readahead,
        sync: SyncConfig {
            entry,
            set: tree.set.clone(),
            host: tree.host.clone(),
            maps: tree.map.clone(),
            extension_by_type: tree.extension.is_some(),
            follows_items: tree.items.is_some(),
            selection: tree.selection().map_err(|cause| CliError::of(Exit::Usage, &cause))?,
            limits: options.limits.limits(),
            poll: refresh.poll,
            max_delete: refresh.max_delete,
            as_of: tree.at,
            reserve: cache.reserve,
        },
        content: ContentConfig {
            source: source_name.clone(),
            quota: cache.size,
            reserve: cache.reserve,
            fixity: refresh.fixity,
            mirrors: refresh.mirrors,
            revalidate: refresh.revalidate.unwrap_or_default(),
            unannounced: refresh.unannounced,
            shared_cache: shared_cache(options)?,
            stall: network.timeout,
            size_deadline: network.timeout,
            ..ContentConfig::default()
        },
        fs: FsOptions {
            uid: files.uid.unwrap_or_else(|| geteuid().as_raw()),
            gid: files.gid.unwrap_or_else(|| getegid().as_raw()),
            umask: files.umask,
            xattr: !files.noxattr.unwrap_or_default(),
            labelled: mount::labels::has_selinux(),
            source: source_name.clone(),
            as_of: tree.at,
            alternate: tree.alternate.clone(),
            ..FsOptions::default()
        },
        websub: refresh
            .websub_listen
            .clone()
            .map(|listen| WebsubConfig { listen, callback: refresh.websub_callback.clone() }),
        session: SessionOptions {
            source: source_name,
            acl: if files.allow_other.unwrap_or(geteuid().is_root()) { SessionACL::All } else { SessionACL::Owner },
            exec: files.exec,
            labels,
        },
        denied: files.deny.clone(),
        log: None,
        metrics: options.program.metrics_listen,
    })
}

/// The settings of the HTTP client. Files with credentials are read here, and again where they change.
pub fn http(options: &Options, entry: &EntryPoint) -> Result<HttpConfig, CliError> {
    let Options { network, credentials, .. } = options;
    let own_authority = match entry {
        EntryPoint::Uri(uri) => Some(format!("{}://{}", uri.scheme(), uri.authority()).into()),
        EntryPoint::File(_) => None,
    };
    let files = CredentialFiles::open(credentials)?;
    let kept = files.credentials()?;
    Ok(HttpConfig {
        own_authority,
        allowed_hosts: network.allow_host.clone(),
        rewrites: network.rewrite.clone(),
        credentials: Credentials {
            contact: network.contact.clone(),
            changed: Some(Arc::new(move || files.changed())),
            ..kept
        },
        ca_bundle: credentials.ca.as_deref().map(|file| read(file, Access::Public)).transpose()?,
        rate: network.rate,
        patience: network.patience,
        max_download: Some(network.max_download).filter(|limit| *limit > 0),
        connections: network.connections,
        waits_for_hosts: true,
        connect_timeout: network.connect_timeout.min(network.timeout),
        low_speed_limit: LOW_SPEED_LIMIT,
        low_speed_time: network.timeout,
    })
}

/// The shared cache. Its credentials are read here, once.
fn shared_cache(options: &Options) -> Result<Option<SharedCacheConfig>, CliError> {
    let Options { cache, credentials, .. } = options;
    let Some(url) = cache.shared_cache.clone() else { return Ok(None) };
    if options.refresh.fixity == Fixity::Off {
        return Err(CliError::usage(
            "-o shared-cache=URL: it finds files by the checksums that fixity=off ignores; leave out one of the two",
        ));
    }
    let mut settings = Vec::new();
    if let Some(file) = &credentials.shared_cache_credentials {
        let text = read_text(file, Access::OwnerReads)?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let refused = || CliError::at(Exit::Usage, file, "a line is not KEY=VALUE");
            let (key, value) = line.split_once('=').ok_or_else(refused)?;
            settings.push((key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    Ok(Some(SharedCacheConfig { url, write: cache.shared_cache_write, settings }))
}
