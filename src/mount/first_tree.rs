//! The first tree of a mount that has none from an earlier one.

use super::MountError;
use super::serving::Signals;
use crate::source::http::Client;
use crate::sync::{Outcome, Stage, Synchronizer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// How often the client is asked whether a host does not answer.
const INTERVAL: Duration = Duration::from_millis(200);

/// Makes the first revision; a signal ends that.
pub(super) async fn make(
    synchronizer: &mut Synchronizer,
    client: &Client,
    progress: Arc<dyn Fn(Stage) + Send + Sync>,
    signals: &mut Signals,
) -> Result<(), MountError> {
    let outcome = tokio::select! {
        outcome = synchronizer.refresh(progress.clone()) => outcome?,
        never = report_failures(client, &*progress) => match never {},
        () = signals.end() => return Err(MountError::Interrupted),
    };
    if let Outcome::Committed(_) = outcome {
        synchronizer.tidy().await;
    }
    Ok(())
}

/// Reports why a first tree takes long: once for each time that a host ceases to answer.
async fn report_failures(client: &Client, progress: &(dyn Fn(Stage) + Send + Sync)) -> Infallible {
    let mut is_reported = false;
    loop {
        let unanswered = client.unanswered();
        let is_unanswered = unanswered.is_some();
        if let Some(why) = unanswered.filter(|_| !is_reported) {
            progress(Stage::Unanswered(why));
        }
        is_reported = is_unanswered;
        tokio::time::sleep(INTERVAL).await;
    }
}
