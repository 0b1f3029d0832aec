//! A running mount, found by its mount point and asked at its control socket.

use super::{CliError, Exit, config};
use crate::control::api::Request;
use crate::control::{ControlError, call, served_by};
use crate::mount::mountpoint::{self, Mounted};
use crate::mount::registry::{self, Mount, MountState};
use serde::de::IgnoredAny;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A mount that does not answer a request for its status within this hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A mount of this machine.
pub struct Running {
    directory: PathBuf,
    socket: PathBuf,
    /// The user who mounted it, as the kernel shows.
    user: Option<u32>,
}

impl Running {
    /// The mount at `directory`.
    pub fn at(directory: &Path) -> Result<Running, CliError> {
        let absolute = mounted_at(directory)?;
        match registry::mount_at(&absolute).map_err(|cause| CliError::of(Exit::Failure, &cause))? {
            Some(known) => Running::of(&known),
            None => Err(not_mounted(directory)),
        }
    }

    /// A mount that the registry knows.
    pub fn of(known: &Mount) -> Result<Running, CliError> {
        let shown = known.directory.display();
        let problem = match (known.state, &known.socket) {
            (MountState::Living | MountState::Detached, Some(socket)) => {
                return Ok(Running { directory: known.directory.clone(), socket: socket.clone(), user: known.user });
            }
            (MountState::Starting, _) => {
                "is not mounted yet: it reads the lists of the Source for the first time; try again later".to_owned()
            }
            (MountState::Dead, _) => format!(
                "the process that served this mount has died; mount it again, or detach it with: resyncfs unmount {shown}"
            ),
            _ if is_own(known) => format!(
                "nothing shows which process serves it: it was moved after it was mounted, or its record was lost; mount it \
                 again after: resyncfs unmount {shown}"
            ),
            _ => "only root and the user who mounted it may ask (/proc/mounts shows user_id=)".to_owned(),
        };
        Err(CliError::new(Exit::MountPoint, format!("{shown}: {problem}")))
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its control socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request whose answer may take long, and waits for it; an error if the mount gives no sign of life before or meanwhile.
    pub fn ask<'s, T, A>(&'s self, question: impl FnOnce(&'s Path) -> A) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| CliError::of(Exit::Failure, &cause))?;
        runtime.block_on(async {
            self.hear_within(PATIENCE, is_alive).await?;
            tokio::select! {
                answer = self.hear(question) => answer,
                cause = self.fallen_silent() => Err(cause),
            }
        })
    }

    /// Ends when the mount gives no sign of life: a process that is stopped keeps its connections.
    async fn fallen_silent(&self) -> CliError {
        loop {
            tokio::time::sleep(PATIENCE).await;
            if let Err(cause) = self.hear_within(PATIENCE, is_alive).await {
                return cause;
            }
        }
    }

    /// Sends a request whose answer is due within `patience`. Within a runtime only.
    pub async fn hear_within<'s, T, A>(
        &'s self,
        patience: Duration,
        question: impl FnOnce(&'s Path) -> A,
    ) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        let answer = tokio::time::timeout(patience, self.hear(question)).await;
        answer.unwrap_or_else(|_| {
            let shown = self.directory.display();
            Err(CliError::new(
                Exit::Failure,
                format!("{shown}: its process lives and does not answer; resyncfs list shows its process ID"),
            ))
        })
    }

    async fn hear<'s, T, A>(&'s self, question: impl FnOnce(&'s Path) -> A) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        // A record of another user may name any socket.
        let requester = rustix::process::geteuid().as_raw();
        if let Some(user) = self.user.filter(|user| *user != requester) {
            let server = served_by(&self.socket).await.map_err(|cause| self.refused(&cause))?;
            if server != user {
                let shown = self.directory.display();
                return Err(CliError::new(Exit::Failure, format!("{shown}: another user serves its control socket")));
            }
        }
        question(&self.socket).await.map_err(|cause| self.refused(&cause))
    }

    fn refused(&self, cause: &ControlError) -> CliError {
        let shown = self.directory.display();
        match cause {
            ControlError::Unreachable { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => {
                CliError::new(Exit::Denied, format!("{shown}: only root and the user who mounted it may ask"))
            }
            ControlError::Forbidden(error) => CliError::new(Exit::Denied, format!("{shown}: {error}")),
            _ => CliError::of(Exit::Failure, cause),
        }
    }
}

/// Whether this user may read the record of a mount, if there is one.
fn is_own(known: &Mount) -> bool {
    let requester = rustix::process::geteuid();
    requester.is_root() || known.user == Some(requester.as_raw())
}

async fn is_alive(socket: &Path) -> Result<IgnoredAny, ControlError> {
    call(socket, &Request::Status {}).await
}

/// The failure of a command on all mounts if there is none.
pub fn nothing_mounted() -> CliError {
    CliError::new(
        Exit::MountPoint,
        "nothing of resyncfs is mounted on this machine; mount a Source with: resyncfs mount SOURCE DIR",
    )
}

/// `directory`, or the folder of a NAME, resolved; an error that names the mounts there are if none of ours is there. The mount is
/// not accessed.
pub fn mounted_at(directory: &Path) -> Result<PathBuf, CliError> {
    let directory = &config::directory(directory)?;
    let failed = |cause| CliError::new(Exit::MountPoint, format!("{}: {cause}", directory.display()));
    let absolute = mountpoint::resolve(directory).map_err(failed)?;
    match mountpoint::topmost(&absolute).map_err(failed)?.is_some_and(|mounted| mounted.is_ours()) {
        true => Ok(absolute),
        false => Err(not_mounted(directory)),
    }
}

/// The failure if no mount of ours is at or above `path`; it names the mounts there are.
pub fn not_mounted(path: &Path) -> CliError {
    let ours = match mountpoint::ours() {
        Ok(ours) => ours,
        Err(cause) => return CliError::of(Exit::Failure, &cause),
    };
    let list: Vec<_> = ours.iter().map(|Mounted { directory, .. }| directory.display().to_string()).collect();
    let rest = match list.is_empty() {
        true => ", nor anywhere else; mount a Source with: resyncfs mount SOURCE DIR".to_owned(),
        false => format!("; mounted are: {}", list.join(", ")),
    };
    CliError::new(Exit::MountPoint, format!("{}: nothing of resyncfs is mounted there{rest}", path.display()))
}
