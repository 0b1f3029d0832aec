//! `resyncfs audit`: does the tree show what the Source publishes?

mod output;

use super::args;
use super::log::{LogTarget, start_logging};
use super::mount::configure;
use super::mounts::{Running, mounted_at};
use super::progress::{Activity, Progress};
use super::render::Clock;
use super::scratch::Scratch;
use super::{CliError, Exit, config};
use crate::control::api::Request;
use crate::fs;
use crate::mount::{MountError, report_failures};
use crate::source::http::{Client, HttpConfig};
use crate::sync::Stage;
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

/// Audits a Source that is not mounted, by a tree made for this.
fn of_source(args: &AuditArgs, progress: &Progress, clock: &Clock) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let scratch = Scratch::of("audit")?;
    let shown = runtime.block_on(async {
        let audit = source_tree(args, progress, scratch.path()).await?;
        let depth = Depth { content: false, fetch: args.fetch };
        let listing = args.manifest.is_some();
        let (sender, events) = mpsc::channel(EVENTS);
        tokio::spawn(async move { if listing { audit.list(sender).await } else { audit.run(depth, sender).await } });
        show(args, progress, (false, clock), events).await
    });
    // What is still under way when standard output is closed is not waited for.
    runtime.shutdown_background();
    shown
}

/// The tree that a mount of the Source would show, made in `scratch`.
async fn source_tree(args: &AuditArgs, progress: &Progress, scratch: &Path) -> Result<Audit, CliError> {
    if args.content {
        return Err(CliError::usage(
            "--content checks the cache of a mount: name the folder where the Source is mounted",
        ));
    }
    let (source, options) = config::source(&args.tree, &args.options)?;
    // Neither a mount point nor the cache is used.
    let config = configure(&options, &source, scratch)?;
    let http = HttpConfig { waits_for_hosts: false, ..config.http };
    let client = Client::new(http).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let stages: Arc<dyn Fn(Stage) + Send + Sync> = Arc::new(progress.stages());
    let ListedSource { catalog, packages, .. } = tokio::select! {
        listed = listed(&config.sync, &client, scratch, stages.clone()) => listed.map_err(MountError::FirstBaseline)?,
        never = report_failures(&client, &*stages) => match never {},
    };
    let view = config.fs;
    Ok(Audit {
        config: None,
        client,
        catalog,
        content: None,
        packages: Some(packages),
        versions: Arc::new(move |snapshot, ino| fs::fetch_spec(snapshot, ino, &view)),
        scratch: scratch.to_owned(),
    })
}

/// Shows the events, until the last one.
async fn show(
    args: &AuditArgs,
    progress: &Progress,
    (is_mount, clock): (bool, &Clock),
    mut events: mpsc::Receiver<AuditEvent>,
) -> Result<Exit, CliError> {
    let mut output = Output::new(args, is_mount, clock.clone());
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
