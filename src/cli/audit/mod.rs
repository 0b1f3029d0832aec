//! `resyncfs audit`: does the tree show what the Source publishes?

mod output;

use super::args;
use super::log::{LogTarget, start_logging};
use super::mounts::{Running, mounted_at};
use super::progress::{Activity, Progress};
use super::render::Clock;
use super::visit::visit;
use super::{CliError, Exit, config};
use crate::control::api::Request;
use crate::fs;
use crate::mount::MountError;
use crate::sync::audit::{self, Audit, AuditEvent, Depth, ListedSource, listed};
use clap::ValueEnum;
use clap_complete::engine::ArgValueCompleter;
use output::Output;
use std::io;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Events that wait to be printed.
const EVENTS: usize = 256;

/// Check a mount against its Source, or what a Source serves against what it publishes
#[derive(Debug, clap::Args)]
pub struct AuditArgs {
    /// For a Source that is not mounted: options of mount, to choose files and to reach the Source
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…", add = ArgValueCompleter::new(args::mount_options))]
    options: Vec<String>,
    /// Also read every cached file and check its digest
    #[arg(long)]
    content: bool,
    /// Also request every file from the Source and check what it serves
    #[arg(long)]
    fetch: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Print the files with their published digests instead, for other tools to check
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["content", "fetch", "json"])]
    manifest: Option<ManifestFormat>,
    /// The folder of a mount, or a Source as for mount
    #[arg(value_name = "DIR|SOURCE")]
    tree: String,
}

/// A form of manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ManifestFormat {
    /// For sha256sum -c, and for BagIt
    Sha256sum,
    /// For md5sum -c
    Md5sum,
    /// One JSON object per line, also for files without a published digest
    Jsonl,
}

/// Runs the command.
pub fn run(args: AuditArgs, verbosity: u8) -> Result<Exit, CliError> {
    if verbosity > 0 {
        start_logging(verbosity, LogTarget::StandardError);
    }
    let directory = Path::new(&args.tree);
    let progress = Progress::start(verbosity > 0);
    let clock = Clock::now();
    // In this order: `is_dir` hangs where the process of a mount hangs.
    match mounted_at(directory).is_ok() || directory.is_dir() {
        true => of_mount(&args, &progress, &clock),
        false => of_source(&args, &progress, &clock),
    }
}

/// Audits a mount in the process that serves it: that has the catalog, the credentials and the cache.
fn of_mount(args: &AuditArgs, progress: &Progress, clock: &Clock) -> Result<Exit, CliError> {
    if !args.options.is_empty() {
        return Err(CliError::usage("-o is for a Source that is not mounted; a mount has its own options"));
    }
    let running = Running::at(Path::new(&args.tree))?;
    let request = match args.manifest {
        Some(_) => Request::Files {},
        None => Request::Audit { content: args.content, fetch: args.fetch },
    };
    running.ask_lines(&request, async |events| show(args, progress, (true, clock), events).await)
}

/// Audits a Source that is not mounted, by the tree that a mount would show.
fn of_source(args: &AuditArgs, progress: &Progress, clock: &Clock) -> Result<Exit, CliError> {
    if args.content {
        return Err(CliError::usage(
            "--content checks the cache of a mount: name the folder where the Source is mounted",
        ));
    }
    let (source, options) = config::source(&args.tree, &args.options)?;
    visit("audit", (&source, options), progress, async |config, client, scratch| {
        let listed = listed(&config.sync, &client, &scratch, Arc::new(progress.stages())).await;
        let ListedSource { catalog, packages, .. } = listed.map_err(MountError::FirstBaseline)?;
        let audit = Audit {
            config: None,
            client,
            catalog,
            content: None,
            packages: Some(packages),
            versions: Arc::new(move |snapshot, ino| fs::fetch_spec(snapshot, ino, &config.fs)),
            scratch,
        };
        let depth = Depth { content: false, fetch: args.fetch };
        let listing = args.manifest.is_some();
        let (sender, events) = mpsc::channel(EVENTS);
        tokio::spawn(async move { if listing { audit.list(sender).await } else { audit.run(depth, sender).await } });
        show(args, progress, (false, clock), events).await
    })
}

/// Shows the events, until the last one.
async fn show(
    args: &AuditArgs,
    progress: &Progress,
    (is_mount, clock): (bool, &Clock),
    mut events: mpsc::Receiver<AuditEvent>,
) -> Result<Exit, CliError> {
    let mut output = Output::new(args, is_mount, clock);
    while let Some(event) = events.recv().await {
        let printed = match event {
            AuditEvent::Progress(audit::Progress::Lists(stage)) => {
                progress.stage(stage);
                Ok(None)
            }
            AuditEvent::Progress(audit::Progress::Files { compared: done, of, bytes, of_bytes, pace }) => {
                let (of, of_bytes) = (Some(of.max(done)), of_bytes.map(|of| of.max(bytes)));
                let activity = if args.fetch { "downloading" } else { "comparing" };
                progress.report(Activity { activity, unit: "file", done, of, bytes, of_bytes, pace });
                Ok(None)
            }
            event => progress.print(|| output.print(event)),
        };
        match printed {
            Ok(None) => {}
            Ok(Some(end)) => return end,
            // A reader that closes the pipe has read enough (`| head`).
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Success),
            Err(cause) => return Err(cause.into()),
        }
    }
    Err(CliError::new(Exit::Failure, "the mount ended before the audit was complete"))
}
