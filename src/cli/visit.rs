//! A visit to a Source that is not mounted, by `explore` and by `audit`.

use super::args::Options;
use super::mount::configure;
use super::progress::Progress;
use super::scratch::Scratch;
use super::{CliError, Exit};
use crate::mount::{MountConfig, report_failures};
use crate::source::http::{Client, HttpConfig};
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// Time for running tasks to end.
const ENDING: Duration = Duration::from_secs(2);

/// Does `work` with a client for `source` and a folder that is removed at the end, also where a signal interrupts it.
pub fn visit<T>(
    command: &str,
    (source, mut options): (&str, Options),
    progress: &Progress,
    work: impl AsyncFnOnce(MountConfig, Client, PathBuf) -> Result<T, CliError>,
) -> Result<T, CliError> {
    // Neither a mount point nor the cache is used.
    let unused = std::env::temp_dir();
    options.cache.folder = Some(unused.clone());
    let config = configure(&options, source, &unused)?;
    let http = HttpConfig { waits_for_hosts: false, ..config.http.clone() };
    let client = Client::new(http).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // Before the first file is written, so that the signal leaves none behind.
    let mut terminate = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let scratch = Scratch::of(command)?;
    let done = runtime.block_on(async {
        let stages = progress.stages();
        tokio::select! {
            done = work(config, client.clone(), scratch.path().to_owned()) => done,
            never = report_failures(&client, &stages) => match never {},
            _ = tokio::signal::ctrl_c() => Err(CliError::new(Exit::Interrupted, "interrupted")),
            _ = terminate.recv() => Err(CliError::new(Exit::Interrupted, "interrupted")),
        }
    });
    // Tasks that a signal interrupts must end before their folder is removed.
    runtime.shutdown_timeout(ENDING);
    drop(scratch);
    progress.finish();
    done.map_err(|cause| cause.assuming(source))
}
