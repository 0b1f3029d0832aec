//! `resyncfs mount`

use super::config::FetchSpec;
use super::log::{LogTarget, start_logging};
use super::log_file::LogFile;
use super::options::{Given, Options};
use super::progress::Progress;
use super::secret::{read_key, read_secret};
use super::{CliError, Exit, given};
use crate::content::ContentConfig;
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
use fuser::SessionACL;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A name that the Source listed may be kept by the kernel so long; changes are pushed.
const ENTRY_TTL: Duration = Duration::from_secs(3600);
/// A name that the Source did not list may be kept by the kernel so long; new names are pushed.
const NEGATIVE_TTL: Duration = Duration::from_secs(60);
/// Default of `timeout=`.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Default of `connect-timeout=`.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Default of `connections=`.
const CONNECTIONS: usize = 64;
/// Default of `cache-reserve=`.
pub const CACHE_RESERVE: u64 = 1 << 30;
/// A body slower than this many octets a second for `timeout=` has failed.
const LOW_SPEED_LIMIT: u64 = 64;
/// Bytes of a log file; one more of them, the one before, is kept.
const LOG_LIMIT: u64 = 16 << 20;

/// Mount a Source as a read-only folder
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each option can be given as a flag, by -o, and as a key of /etc/resyncfs/NAME.toml; flags and -o count before the file."
)]
pub struct MountArgs {
    /// Stay in the foreground and log to standard error
    #[arg(short, long)]
    foreground: bool,
    /// A site, a page, a Source Description, a Capability List, a list, a sitemap, a list on disk, or the NAME of
    /// /etc/resyncfs/NAME.toml
    #[arg(value_name = "SOURCE|NAME")]
    source: String,
    /// The folder to mount on; for a NAME its file may tell it
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    given: Given,
}

/// Whether the command returns when the tree is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// A process of its own goes on.
    Yes,
    /// This process serves the mount until it ends.
    No,
}

/// Runs the command.
pub fn run(args: MountArgs, verbosity: u8) -> Result<u8, CliError> {
    let wanted = FetchSpec::find(&args.source, args.directory, args.given.settings()?)?;
    start(&wanted, if args.foreground { Background::No } else { Background::Yes }, verbosity)
}

/// Checks everything that can be known without asking the Source or changing anything.
pub fn check(wanted: &FetchSpec) -> Result<(), CliError> {
    let config = configure(&wanted.options, &wanted.source, &wanted.directory)?;
    mount::mountpoint::check(&config.directory)?;
    Ok(())
}

/// Mounts.
pub fn start(wanted: &FetchSpec, background: Background, verbosity: u8) -> Result<u8, CliError> {
    let options = &wanted.options;
    let config = configure(options, &wanted.source, &wanted.directory)?;
    // Whatever the umask of who mounts is, nothing that is written from here on is for others to change.
    // SAFETY: umask cannot fail and touches no memory; no other thread runs yet that could make a file in between.
    unsafe { libc::umask(libc::umask(0o077) | 0o022) };
    // A mount point that cannot be used is known before the Source is asked anything.
    mount::mountpoint::prepare(&config.directory)?;

    if background == Background::No {
        start_logging(verbosity, LogTarget::StandardError);
        let progress = Progress::start(true);
        let done = progress.clone();
        let ready = move || {
            done.finish();
            Ok(())
        };
        mount::run(config, Arc::new(progress.stages()), ready)
            .map_err(|cause| CliError::from(cause).assuming(&wanted.source))?;
        return Ok(Exit::Success as u8);
    }
    match daemonize::fork().map_err(|cause| CliError::of(Exit::Failure, &cause))? {
        Side::Parent(exit) => Ok(exit),
        Side::Child(waiting) => {
            start_logging(verbosity, log_target(options, &config)?);
            let progress = Progress::start(false);
            let done = progress.clone();
            mount::run(config, Arc::new(progress.stages()), move || {
                done.finish();
                done.print_remarks();
                waiting.ready()
            })
            .map_err(|cause| CliError::from(cause).assuming(&wanted.source))?;
            Ok(Exit::Success as u8)
        }
    }
}

fn log_target(options: &Options, config: &MountConfig) -> Result<LogTarget, CliError> {
    if stderr_is_journal() {
        return Ok(LogTarget::StandardError);
    }
    let file = options.log.clone().unwrap_or_else(|| Folders::of(config).log);
    let unusable = |cause: std::io::Error| match &options.log {
        Some(log) => {
            let shown = log.display();
            CliError::new(
                Exit::Failure,
                format!("the log {shown} cannot be written; name another with -o log=FILE: {cause}"),
            )
        }
        None => CliError::of(Exit::Cache, &mount::MountError::Cache { folder: file.clone(), cause }),
    };
    Folders::prepare(config)?;
    LogFile::open(&file, LOG_LIMIT).map(LogTarget::File).map_err(unusable)
}

/// From what was typed to what is needed.
pub fn configure(options: &Options, source: &str, directory: &Path) -> Result<MountConfig, CliError> {
    let entry = EntryPoint::parse(source).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let cache = options.cache.clone().or_else(default_cache).ok_or_else(|| {
        CliError::new(Exit::Cache, "there is no cache folder for this user; name one with -o cache=DIR")
    })?;
    // SAFETY: geteuid and getegid have no preconditions and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let timeout = options.timeout.unwrap_or(TIMEOUT);
    let source_name = entry.to_string();
    if options.websub_callback.is_some() && options.websub_listen.is_none() {
        return Err(CliError::new(
            Exit::Usage,
            "-o websub-callback=URL: needs websub-listen=HOST:PORT, which it leads to",
        ));
    }
    if options.at.is_some() && options.websub_listen.is_some() {
        return Err(CliError::new(Exit::Usage, "-o at=DATETIME: what was does not change; leave websub-listen out"));
    }
    Ok(MountConfig {
        directory: directory.to_owned(),
        cache,
        http: http(options, &entry, timeout)?,
        readahead: options.readahead,
        sync: SyncConfig {
            entry,
            set: options.set.clone(),
            host: options.host.clone(),
            maps: options.maps.clone(),
            extension_by_type: options.extension_by_type,
            selection: options.selection.clone(),
            limits: options.limits,
            poll: options.poll,
            max_delete: options.max_delete,
            as_of: options.at,
            reserve: options.cache_reserve.unwrap_or(CACHE_RESERVE),
        },
        content: ContentConfig {
            folder: PathBuf::new(),
            observed_folder: PathBuf::new(),
            counted_folder: None,
            source: source_name.clone(),
            quota: options.cache_size,
            reserve: options.cache_reserve.unwrap_or(CACHE_RESERVE),
            fixity: options.fixity,
            mirrors: options.mirrors,
            revalidate: options.revalidate,
            unannounced: options.unannounced,
            stall: timeout,
            size_deadline: timeout,
        },
        fs: FsOptions {
            uid: options.uid.unwrap_or(uid),
            gid: options.gid.unwrap_or(gid),
            umask: options.umask.unwrap_or(0),
            xattr: !options.noxattr,
            entry_ttl: ENTRY_TTL,
            negative_ttl: NEGATIVE_TTL,
            source: source_name.clone(),
            as_of: options.at,
            alternate: options.alternate.clone(),
        },
        websub: options
            .websub_listen
            .clone()
            .map(|listen| WebsubConfig { listen, callback: options.websub_callback.clone() }),
        session: SessionOptions {
            source: source_name,
            acl: if options.allow_other || uid == 0 { SessionACL::All } else { SessionACL::Owner },
            exec: options.exec,
        },
        denied: options.denied.clone(),
        metrics: options.metrics_listen,
    })
}

/// The HTTP client's settings; credentials are read from their files here, once.
pub fn http(options: &Options, entry: &EntryPoint, timeout: Duration) -> Result<HttpConfig, CliError> {
    let mut headers = Vec::new();
    if let Some(file) = &options.header_file {
        for line in read_secret(file)?.lines().filter(|line| !line.trim().is_empty()) {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| CliError::new(Exit::Usage, format!("{}: a line is not NAME: VALUE", file.display())))?;
            headers.push((name.trim().into(), value.trim().into()));
        }
    }
    if let Some(file) = &options.bearer_file {
        headers.push(("authorization".into(), format!("Bearer {}", read_secret(file)?.trim()).into()));
    }
    let own_authority = match entry {
        EntryPoint::Uri(uri) => Some(format!("{}://{}", uri.scheme(), uri.authority()).into()),
        EntryPoint::File(_) => None,
    };
    Ok(HttpConfig {
        own_authority,
        allowed_hosts: options.allowed_hosts.clone(),
        rewrites: options.rewrites.clone(),
        credentials: Credentials {
            headers,
            netrc: options.netrc.as_deref().map(read_secret).transpose()?.map(Into::into),
            client_certificate: options.client_certificate.as_deref().map(read_key).transpose()?,
            contact: options.contact.clone(),
        },
        ca_bundle: options.ca_bundle.as_deref().map(read).transpose()?,
        rate: options.rate,
        connections: options.connections.unwrap_or(CONNECTIONS),
        waits_for_hosts: true,
        connect_timeout: options.connect_timeout.unwrap_or(CONNECT_TIMEOUT).min(timeout),
        low_speed_limit: LOW_SPEED_LIMIT,
        low_speed_time: timeout,
    })
}

fn read(file: &Path) -> Result<Vec<u8>, CliError> {
    let opened = given::open(file).map_err(|cause| cause.to_string());
    opened.and_then(given::read).map_err(|what| CliError::new(Exit::Usage, format!("{}: {what}", file.display())))
}
