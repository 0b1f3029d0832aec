//! `resyncfs prefetch` and `resyncfs evict`: files of a mount are brought into its cache, and removed from it.

use super::mounts::{self, Within, by_mount};
use super::progress::{Activity, Progress};
use super::render::{count, size, some, thousands};
use super::{CliError, Exit, complain, print, print_json};
use crate::control::api::{
    EvictEvent, PrefetchEvent, PrefetchProgress, PrefetchSummary, PrefetchTotal, Request, Stopped,
};
use crate::source::http::silent_host;
use clap_complete::engine::ArgValueCompleter;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use tokio::sync::mpsc::Receiver;

/// Download files and folders of a mount into its cache, so that later reads do not wait
#[derive(Debug, clap::Args)]
#[command(after_help = "Files that are in the cache already are not downloaded again: after an interruption run the \
same command again to continue. A full cache drops older files. The prefetch ends when the cache is full of its own files (exit code \
10). Downloads for readers go first. Ctrl-C ends it.")]
pub struct PrefetchArgs {
    /// Only show how many files and bytes would be downloaded
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object per line: what failed, then the result
    #[arg(long)]
    json: bool,
    /// Files and folders in mounts, or NAMEs of /etc/resyncfs/NAME.toml; a folder stands for all below it
    #[arg(required = true, value_name = "PATH|NAME", add = ArgValueCompleter::new(mounts::complete_path))]
    paths: Vec<PathBuf>,
}

/// Runs `resyncfs prefetch`.
pub fn prefetch(args: PrefetchArgs) -> Result<Exit, CliError> {
    for_each_mount(&args.paths, |within| {
        let request = Request::Prefetch { paths: within.below.clone(), dry_run: args.dry_run };
        let progress = Progress::start(false);
        within.running.ask_lines(&request, async |events| {
            tokio::select! {
                shown = show_prefetch(within, args.json, &progress, events) => shown,
                // The connection ends with this process, and the mount's work with the connection.
                _ = tokio::signal::ctrl_c() => {
                    progress.message("interrupted; run the same command again to continue");
                    Ok(Exit::Interrupted)
                }
            }
        })
    })
}

/// Does `work` for each mount that has some of `paths`, until it is interrupted. The first exit code other than success counts.
fn for_each_mount(paths: &[PathBuf], work: impl Fn(&Within) -> Result<Exit, CliError>) -> Result<Exit, CliError> {
    let mut exit = Exit::Success;
    for within in by_mount(paths)? {
        match work(&within)? {
            Exit::Interrupted => return Ok(Exit::Interrupted),
            ended if exit == Exit::Success => exit = ended,
            _ => {}
        }
    }
    Ok(exit)
}

/// Shows the events, until the last one.
async fn show_prefetch(
    within: &Within,
    json: bool,
    progress: &Progress,
    mut events: Receiver<PrefetchEvent>,
) -> Result<Exit, CliError> {
    let (mut exit, mut is_warned) = (Exit::Success, false);
    let mut silent: BTreeMap<String, u64> = BTreeMap::new();
    let say = |text: String| if json { Ok(()) } else { print(&text) };
    while let Some(event) = events.recv().await {
        if json
            && !matches!(event, PrefetchEvent::Progress(_) | PrefetchEvent::Pages { .. } | PrefetchEvent::Failure(_))
        {
            progress.print(|| within.print_line(json!(event)))?;
        }
        match event {
            PrefetchEvent::Progress(so_far) => {
                let warning = so_far.of.as_ref().and_then(too_few_left).filter(|_| !is_warned);
                if let Some(warning) = warning {
                    is_warned = true;
                    progress.message(&warning);
                }
                progress.report(work(&so_far));
            }
            PrefetchEvent::Failed(failed) => {
                exit = Exit::Failure;
                // One line for each host that does not answer: all its files fail.
                let before = silent_host(&failed.why).map(|host| silent.entry(host.to_owned()).or_default());
                let is_repeated = before.is_some_and(|files| {
                    *files += 1;
                    *files > 1
                });
                if !json && !is_repeated {
                    progress.print(|| within.complain(&failed.path, &failed.why));
                }
            }
            PrefetchEvent::Pages { read, all } => {
                progress.report(Activity::pages(read, all));
            }
            PrefetchEvent::Counted(total) => {
                progress.finish();
                say(counted(&total))?;
                if let Some(warning) = too_few_left(&total) {
                    progress.message(&warning);
                }
                return Ok(exit);
            }
            PrefetchEvent::Done(summary) => {
                progress.finish();
                for (host, files) in silent.iter().filter(|(_, files)| !json && **files > 1) {
                    complain(host, &format!("{} failed for the same reason", count(*files - 1, "more file")));
                }
                say(done(&summary))?;
                return summary.stopped.map_or(Ok(exit), |stopped| Err(ended_early(stopped)));
            }
            PrefetchEvent::Failure(why) => return Err(CliError::new(Exit::Failure, why)),
        }
    }
    Err(within.ended("downloaded"))
}

/// A sentence about the files that would be downloaded.
fn counted(total: &PrefetchTotal) -> String {
    let (files, bytes) = (total.files - total.cached_files, total.bytes - total.cached_bytes);
    let unknown = some(total.unsized_files, "file").map(|files| format!(", and {files} of unknown size"));
    let unknown = unknown.unwrap_or_default();
    format!(
        "{} to download ({}{unknown}), {} in the cache already ({})\n",
        count(files, "file"),
        size(bytes),
        thousands(total.cached_files),
        size(total.cached_bytes)
    )
}

/// A warning where not all may be downloaded.
fn too_few_left(total: &PrefetchTotal) -> Option<String> {
    let bytes = total.bytes.saturating_sub(total.cached_bytes);
    let (left, bytes) = (size(total.left.filter(|left| bytes > *left)?), size(bytes));
    Some(format!("these files will not fit: {bytes} are to be downloaded, and max-download= leaves {left} of this run"))
}

/// A sentence about the files that were downloaded.
fn done(summary: &PrefetchSummary) -> String {
    format!(
        "{} downloaded ({}), {} in the cache before, {} failed\n",
        count(summary.fetched, "file"),
        size(summary.bytes),
        thousands(summary.here),
        thousands(summary.failed)
    )
}

fn ended_early(stopped: Stopped) -> CliError {
    let (exit, why) = match stopped {
        Stopped::Full => (
            Exit::Full,
            "the cache is full, so the rest was not downloaded: that would remove files of this prefetch; enlarge the cache \
             with -o cache-size=SIZE, free disk space (-o cache-reserve=SIZE of it stays free), or remove files from the cache \
             with: resyncfs evict PATH",
        ),
        Stopped::Spent => (
            Exit::Failure,
            "the mount has downloaded as much as max-download= allows, so the rest was not downloaded; mount again, or with more",
        ),
        Stopped::Unwritable => (
            Exit::Failure,
            "the cache folder cannot be written, so the rest was not downloaded; resyncfs status shows the reason",
        ),
        Stopped::Silent => {
            (Exit::Unreachable, "the Source does not answer, so the rest was not requested; try again later")
        }
    };
    CliError::new(exit, why)
}

/// The progress without the bytes of files that were in the cache before: these cost no time.
fn work(so_far: &PrefetchProgress) -> Activity {
    let of_bytes =
        so_far.of.filter(|total| total.unsized_files == 0).map(|total| total.bytes.saturating_sub(so_far.cached_bytes));
    Activity {
        activity: "downloading",
        unit: "file",
        done: so_far.files,
        // A path that is not in the mount is done, but was not counted.
        of: so_far.of.map(|total| total.files.max(so_far.files)),
        bytes: so_far.bytes,
        of_bytes: of_bytes.map(|of| of.max(so_far.bytes)),
        pace: so_far.pace.clone(),
    }
}

/// Remove files of a mount from its cache, to make room on the disk; they stay in the mount
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The files are downloaded again when they are read. A file that is being downloaded stays in the cache, and \
so does an earlier version that a program has open. For a Source that is not mounted, use: resyncfs cache clear"
)]
pub struct EvictArgs {
    /// Print one JSON object per line: what stays, then the result
    #[arg(long)]
    json: bool,
    /// Files and folders in mounts, or NAMEs of /etc/resyncfs/NAME.toml; a folder stands for all below it
    #[arg(required = true, value_name = "PATH|NAME", add = ArgValueCompleter::new(mounts::complete_path))]
    paths: Vec<PathBuf>,
}

/// Runs `resyncfs evict`.
pub fn evict(args: EvictArgs) -> Result<Exit, CliError> {
    for_each_mount(&args.paths, |within| {
        let request = Request::Evict { paths: within.below.clone() };
        within.running.ask_lines(&request, async |events| show_eviction(within, args.json, events).await)
    })
}

async fn show_eviction(within: &Within, json: bool, mut events: Receiver<EvictEvent>) -> Result<Exit, CliError> {
    while let Some(event) = events.recv().await {
        if json && !matches!(event, EvictEvent::Failure(_)) {
            within.print_line(json!(event))?;
        }
        match event {
            EvictEvent::Kept(_) | EvictEvent::Missing(_) if json => {}
            EvictEvent::Kept(path) => {
                let why = "stays in the cache: it is being downloaded, or a program has an earlier version open";
                within.complain(&path, why);
            }
            EvictEvent::Missing(path) => within.complain(&path, "is not in the mount"),
            EvictEvent::Done(done) => {
                let kept = some(done.kept, "file").map(|kept| format!(", {kept} kept")).unwrap_or_default();
                let removed = count(done.files, "file");
                if !json {
                    print(&format!("{removed} removed from the cache ({}){kept}\n", size(done.bytes)))?;
                }
                return Ok(if done.missing > 0 { Exit::Failure } else { Exit::Success });
            }
            EvictEvent::Failure(why) => return Err(CliError::new(Exit::Failure, why)),
        }
    }
    Err(within.ended("removed"))
}

impl Within {
    /// Prints on standard error why there is no result for one path.
    fn complain(&self, path: &str, why: &str) {
        complain(&self.running.directory.join(path).display().to_string(), why);
    }

    /// Prints an event as a line of JSON, with the mount that it is of.
    fn print_line(&self, mut event: Value) -> Result<(), CliError> {
        event["mount"] = json!(self.running.directory.display().to_string());
        print_json(&event)
    }

    fn ended(&self, done: &str) -> CliError {
        CliError::at(Exit::Failure, &self.running.directory, format!("the mount ended before all was {done}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: PrefetchTotal = PrefetchTotal {
        files: 14,
        bytes: 9_000_000,
        unsized_files: 0,
        cached_files: 4,
        cached_bytes: 1_000_000,
        left: None,
    };

    #[test]
    fn a_dry_run_shows_files_bytes_and_unknown_sizes() {
        let some_unknown = PrefetchTotal { unsized_files: 2, ..TOTAL };

        assert_eq!(counted(&TOTAL), "10 files to download (8.0 MB), 4 in the cache already (1.0 MB)\n");
        assert_eq!(
            counted(&some_unknown),
            "10 files to download (8.0 MB, and 2 files of unknown size), 4 in the cache already (1.0 MB)\n"
        );
    }

    #[test]
    fn what_may_not_all_be_downloaded_is_said_to_be_too_much() {
        let warning = |left| too_few_left(&PrefetchTotal { left, ..TOTAL });

        assert_eq!((warning(None), warning(Some(8_000_000))), (None, None));
        let shown = warning(Some(7_999_999)).unwrap();
        assert!(shown.contains("8.0 MB are to be downloaded") && shown.contains("leaves 8.0 MB"), "{shown}");
    }

    #[test]
    fn progress_counts_downloaded_bytes_and_known_totals() {
        let so_far =
            PrefetchProgress { files: 7, bytes: 2_000_000, cached_bytes: 1_000_000, of: Some(TOTAL), pace: None };
        let some_unknown = PrefetchProgress { of: Some(PrefetchTotal { unsized_files: 1, ..TOTAL }), ..so_far.clone() };
        let not_counted = PrefetchProgress { of: None, ..so_far.clone() };
        let missing = PrefetchProgress { files: 20, ..so_far.clone() };
        // Sizes were learnt, or files added, after the count.
        let grown = PrefetchProgress { cached_bytes: 9_000_001, ..so_far.clone() };

        let shown = |so_far: &PrefetchProgress| {
            let work = work(so_far);
            (work.done, work.of, work.bytes, work.of_bytes)
        };
        assert_eq!(shown(&so_far), (7, Some(14), 2_000_000, Some(8_000_000)));
        assert_eq!(shown(&some_unknown), (7, Some(14), 2_000_000, None));
        assert_eq!(shown(&not_counted), (7, None, 2_000_000, None));
        assert_eq!(shown(&missing), (20, Some(20), 2_000_000, Some(8_000_000)));
        assert_eq!(shown(&grown), (7, Some(14), 2_000_000, Some(2_000_000)));
    }
}
