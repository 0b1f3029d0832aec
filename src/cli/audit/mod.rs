//! `resyncfs audit`: is what is shown what the Source has?

mod manifest;
mod report;

use super::args::Options;
use super::log::{LogTarget, start_logging};
use super::mount::configure;
use super::progress::Progress;
use super::running::{Running, mounted_at};
use super::scratch::Scratch;
use super::{CliError, Exit, ask};
use crate::control::api::Request;
use crate::fs;

use crate::source::http::Client;
use crate::sync::audit::{Audit, AuditError, Depth, Event, Listed, listed};
use clap::ValueEnum;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events on their way from the audit to the person.
const EVENTS: usize = 256;

/// Compare a mount with its Source, or hold what a Source serves to what it publishes
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    /// Of a Source that is not mounted: the options of mount that say what is looked at and how the Source is asked
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…")]
    options: Vec<String>,
    /// Read every cached object too and hold it to its digest
    #[arg(long)]
    content: bool,
    /// Ask for every resource at the Source too and hold what comes to what is published
    #[arg(long)]
    fetch: bool,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
    /// No audit: print the tree with its published digests, for others to check
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["content", "fetch", "json"])]
    manifest: Option<Format>,
    /// Where a Source is mounted, or what could be mounted
    #[arg(value_name = "DIR|SOURCE")]
    tree: String,
}

/// A form of manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// As sha256sum writes it and checks it with -c; BagIt's too
    Sha256sum,
    /// As md5sum does
    Md5sum,
    /// A JSON object a line, files without a published digest included
    Jsonl,
}

/// Runs the command.
pub fn run(args: AuditArgs, verbosity: u8) -> Result<u8, CliError> {
    if verbosity > 0 {
        start_logging(verbosity, LogTarget::StandardError);
    }
    let directory = Path::new(&args.tree);
    // In this order: a look at a mount whose process hangs hangs as well.
    let exit = if mounted_at(directory).is_ok() || directory.is_dir() { of_mount(&args) } else { of_source(&args) };
    exit.map(|exit| exit as u8)
}

/// Of a mount, by the process that serves it: there are catalog, credentials and cache.
fn of_mount(args: &AuditArgs) -> Result<Exit, CliError> {
    if !args.options.is_empty() {
        return Err(CliError::new(Exit::Usage, "-o is for a Source that is not mounted; a mount has its own options"));
    }
    let running = Running::at(Path::new(&args.tree))?;
    let request = match args.manifest {
        Some(_) => Request::Files {},
        None => Request::Audit { content: args.content, fetch: args.fetch },
    };
    ask::lines(&running, &request, async |events| show(args, progress, events).await)
}

/// Of a Source that is not mounted, by a tree made for this.
fn of_source(args: &AuditArgs) -> Result<Exit, CliError> {
    let failed = |cause: io::Error| CliError::of(Exit::Failure, &cause);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
    let scratch = Scratch::of("audit").map_err(failed)?;
    let shown = runtime.block_on(async {
        let audit = source_tree(args, scratch.path()).await?;
        let depth = Depth { content: false, fetch: args.fetch };
        let listing = args.manifest.is_some();
        let (sender, events) = mpsc::channel(EVENTS);
        tokio::spawn(async move { if listing { audit.list(sender).await } else { audit.run(depth, sender).await } });
        show(args, events).await
    });
    // What is still under way when standard output is closed is not waited for.
    runtime.shutdown_background();
    shown
}

/// The tree that a mount of the Source would show, made in `scratch`.
async fn source_tree(args: &AuditArgs, scratch: &Path) -> Result<Audit, CliError> {
    if args.content {
        return Err(CliError::new(
            Exit::Usage,
            "--content reads what a mount keeps; name the folder where it is mounted",
        ));
    }
    let options = Options::parse(&args.options)?;
    // Neither a mount point nor the cache is used.
    let config = configure(&options, &args.tree, scratch)?;
    let client = Client::new(config.http).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let progress = Progress::new();
    let listed = listed(&config.sync, &client, scratch, Arc::new(progress.shower())).await;
    progress.finish();
    let view = config.fs;
    let Listed { catalog, packages, .. } = listed?;
    Ok(Audit {
        config: None,
        client,
        catalog,
        content: None,
        packages,
        versions: Arc::new(move |snapshot, ino| fs::wanted(snapshot, ino, &view)),
        scratch: scratch.to_owned(),
    })
}

/// Shows what the audit tells, until its end.
async fn show(args: &AuditArgs, mut events: mpsc::Receiver<Event>) -> Result<Exit, CliError> {
    let mut shower = match args.manifest {
        Some(format) => Shower::Manifest(manifest::Manifest::new(format)),
        None => Shower::Report(report::Report::new(args.json)),
    };
    while let Some(event) = events.recv().await {
        let told = match &mut shower {
            Shower::Manifest(manifest) => manifest.tell(event),
            Shower::Report(report) => report.tell(event),
        };
        match told {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            // Who has read enough of it is no failure.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Success),
            Err(cause) => return Err(CliError::of(Exit::Failure, &cause)),
        }
    }
    Err(CliError::new(Exit::Failure, "the audit broke off: the mount has ended"))
}

/// How the last event ends the program.
type End = Result<Exit, CliError>;

enum Shower {
    Manifest(manifest::Manifest),
    Report(report::Report),
}

impl From<AuditError> for CliError {
    fn from(cause: AuditError) -> CliError {
        match cause {
            AuditError::Source(cause) => crate::mount::MountError::FirstBaseline(cause).into(),
            cause => CliError::of(Exit::Failure, &cause),
        }
    }
}
