//! `resyncfs prefetch`

use super::render::printable_value;
use super::render::{count, size, thousands};
use super::within::{Within, by_mount};
use super::{CliError, Exit, ask, tell};
use crate::control::api::{PrefetchEvent, PrefetchProgress, PrefetchRequest, PrefetchSummary, Stopped};
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Cells of the bar.
const BAR: usize = 20;

/// Fetch files and folders of a mount into its cache, so that reading them waits for nobody
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What is in the cache already is passed over, so a prefetch that was ended goes on where it was. It ends when \
the cache folder has no more room beside what it brought itself (exit code 10); older files give way. Reads go before it. \
Ctrl-C ends it."
)]
pub struct PrefetchArgs {
    /// Files and folders of mounts; folders with all below them
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: PrefetchArgs) -> Result<u8, CliError> {
    let mut exit = Exit::Success;
    for within in by_mount(&args.paths)? {
        let ended = prefetch(&within)?;
        if ended == Exit::Interrupted {
            return Ok(ended as u8);
        }
        if exit == Exit::Success {
            exit = ended;
        }
    }
    Ok(exit as u8)
}

fn prefetch(within: &Within) -> Result<Exit, CliError> {
    let request = PrefetchRequest { paths: ask::below(within), dry_run: false };
    ask::lines(&within.running, &request, async |events| {
        tokio::select! {
            shown = show(within.running.directory(), events) => shown,
            // The connection ends with this process, and the mount's work with the connection.
            _ = tokio::signal::ctrl_c() => {
                let _ = writeln!(std::io::stderr(), "\nresyncfs: interrupted; the same command goes on with the rest");
                Ok(Exit::Interrupted)
            }
        }
    })
}

/// Shows what the mount tells, to the end.
async fn show(directory: &Path, mut events: mpsc::Receiver<PrefetchEvent>) -> Result<Exit, CliError> {
    let began = Instant::now();
    let live = std::io::stderr().is_terminal();
    while let Some(event) = events.recv().await {
        match event {
            PrefetchEvent::Progress(progress) => {
                if live {
                    say(&format!("\r\x1b[K{}", bar(&progress, began.elapsed())));
                }
            }
            PrefetchEvent::Failed(failed) => {
                let clear = if live { "\r\x1b[K" } else { "" };
                let path = printable_value(&directory.join(&failed.path).display().to_string());
                say(&format!("{clear}resyncfs: {path}: {}\n", printable_value(&failed.why)));
            }
            PrefetchEvent::Done(summary) => {
                if live {
                    say("\r\x1b[K");
                }
                return done(&summary);
            }
            PrefetchEvent::Counted(_) => {}
            PrefetchEvent::Failure(why) => return Err(CliError::new(Exit::Failure, why)),
        }
    }
    Err(CliError::new(Exit::Failure, format!("{}: the mount ended before all was fetched", directory.display())))
}

fn done(summary: &PrefetchSummary) -> Result<Exit, CliError> {
    let total = format!(
        "{} fetched ({}), {} in the cache before, {} failed\n",
        count(summary.fetched, "file"),
        size(summary.bytes),
        thousands(summary.here),
        thousands(summary.failed)
    );
    tell(&total).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    match summary.stopped {
        Some(Stopped::Full) => Err(CliError::new(
            Exit::Full,
            "the cache is full: the rest was not fetched, as that would drop what was; make it larger with -o cache-size=SIZE \
             (or free disk space, of which cache-reserve= is left), or drop something with: resyncfs evict PATH",
        )),
        Some(Stopped::Silent) => Err(CliError::new(
            Exit::Unreachable,
            "the Source does not answer: the rest was not asked for; try again later",
        )),
        None if summary.failed > 0 => Ok(Exit::Failure),
        None => Ok(Exit::Success),
    }
}

fn bar(progress: &PrefetchProgress, elapsed: Duration) -> String {
    let rate = progress.bytes as f64 / 1e6 / elapsed.as_secs_f64().max(0.1);
    let Some(total) = progress.of else {
        return format!("{}, {}, {rate:.1} MB/s", count(progress.files, "file"), size(progress.bytes));
    };
    let cells = (progress.files.min(total.files) * BAR as u64).checked_div(total.files).unwrap_or(BAR as u64) as usize;
    let all = if total.unsized_files == 0 { size(total.bytes) } else { format!("{} or more", size(total.bytes)) };
    format!(
        "[{}{}] {} of {}, {} of {all}, {rate:.1} MB/s",
        "#".repeat(cells),
        " ".repeat(BAR - cells),
        thousands(progress.files),
        count(total.files, "file"),
        size(progress.bytes),
    )
}

/// Who has closed standard error does not want to know.
fn say(text: &str) {
    let mut output = std::io::stderr().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::PrefetchTotal;

    #[test]
    fn the_bar_fills_with_the_files_and_tells_what_is_not_known() {
        let total = PrefetchTotal { files: 4, bytes: 8_000_000, unsized_files: 1, ..PrefetchTotal::default() };
        let half = PrefetchProgress { files: 2, bytes: 3_000_000, of: Some(total), ..PrefetchProgress::default() };
        let second = Duration::from_secs(1);

        assert_eq!(bar(&half, second), "[##########          ] 2 of 4 files, 3.0 MB of 8.0 MB or more, 3.0 MB/s");
        assert_eq!(bar(&PrefetchProgress { of: None, ..half }, second), "2 files, 3.0 MB, 3.0 MB/s");
        let nothing = PrefetchProgress { of: Some(PrefetchTotal::default()), ..PrefetchProgress::default() };
        assert!(bar(&nothing, second).starts_with("[####################] 0 of 0 files"));
    }
}
