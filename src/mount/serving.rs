//! Serves a mount until it is unmounted or a signal ends it.

use super::MountError;
use super::mountpoint::MountPoint;
use super::systemd;
use crate::fs::invalidator::Notices;
use crate::source::websub;
use crate::sync::command::Command;
use std::io;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

/// How long open files are served after the mount point is detached.
const LINGER: Duration = Duration::from_secs(10);

/// The time to write out pending state after the last reader was served.
const WRITING: Duration = Duration::from_secs(2);

/// The longest that a process runs after its mount is gone.
pub const LONGEST_END: Duration = LINGER.saturating_add(websub::LEAVING).saturating_add(WRITING);

/// The signals of a process that mounts. A signal that arrives while nothing waits for it is kept.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Receives them: none of them ends the process by itself any more. Within a runtime only.
    pub(super) fn receive() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that ends the mount.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Serves until the mount is unmounted, or detaches it on a signal; runs `leave` then. SIGHUP starts a refresh. A mount that
/// another process made is ended for its readers by a signal, and stays in the tree.
pub(super) async fn serve(
    session: fuser::BackgroundSession,
    point: MountPoint,
    commands: mpsc::Sender<Command>,
    mut signals: Signals,
    leave: impl Future<Output = ()> + Send + 'static,
    notices: &Notices,
) -> Result<(), MountError> {
    let mut ended = tokio::task::spawn_blocking(move || wait_for_end(session));
    loop {
        tokio::select! {
            joined = &mut ended => {
                let gone = point.check_gone();
                systemd::stopping();
                leave.await;
                return gone.and_then(|()| result(joined));
            }
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = signals.hangup.recv() => systemd::reload(&commands, notices.clone()),
        }
    }
    systemd::stopping();
    let leaving = tokio::spawn(leave);
    let served = if point.is_own { detach(point, ended).await } else { Ok(()) };
    if let Err(cause) = leaving.await {
        tracing::error!(%cause, "hubs still have subscriptions");
    }
    served
}

/// Takes the mount out of the tree and serves open files a while.
async fn detach(point: MountPoint, ended: JoinHandle<io::Result<()>>) -> Result<(), MountError> {
    tracing::info!("detaching");
    let detached = tokio::task::spawn_blocking(move || point.detach()).await;
    if let Ok(Err(cause)) = detached {
        tracing::error!(%cause, "the mount point cannot be detached");
    }
    match tokio::time::timeout(LINGER, ended).await {
        Ok(joined) => result(joined),
        Err(_) => {
            tracing::warn!("files are still open after {LINGER:?}; their readers get errors from now on");
            Ok(())
        }
    }
}

/// Waits for the end of the session and does not touch the mount point after it: fuser 0.18 takes a mount that is gone for one
/// that is there, and would unmount the mount beneath it, for instance the automount.
fn wait_for_end(mut session: fuser::BackgroundSession) -> io::Result<()> {
    // The threads' own handle cannot be taken without another in its place.
    let nothing = std::thread::Builder::new().spawn(|| Ok(()))?;
    let threads = std::mem::replace(&mut session.guard, nothing);
    let ended = threads.join();
    // The rest of it would unmount when dropped; this process ends soon.
    std::mem::forget(session);
    ended.unwrap_or_else(|_| Err(io::Error::other("a FUSE thread panicked")))
}

fn result(joined: Result<io::Result<()>, JoinError>) -> Result<(), MountError> {
    let what = "the connection to the kernel broke";
    let cause = match joined {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(cause)) => cause,
        Err(cause) => io::Error::other(cause),
    };
    Err(MountError::System { what, cause })
}
