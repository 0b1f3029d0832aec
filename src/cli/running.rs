//! Reaching a running mount from its folder.

use super::{CliError, Exit, config};
use crate::control::api::Request;
use crate::control::{ControlError, call, served_by};
use crate::mount::point::{self, FILESYSTEM_TYPE};
use crate::mount::register::{self, Known, Standing};
use serde::de::IgnoredAny;
use std::ffi::{CStr, CString, OsString};
use std::future::Future;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The attribute of a mount's root that tells its control socket.
const CONTROL: &CStr = c"user.resyncfs.control";
/// Longer than any path that Linux takes.
const LONGEST_PATH: usize = 4096;

/// A mount that does not tell how it is within this hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A mount of this machine.
pub struct Running {
    directory: PathBuf,
    socket: PathBuf,
    /// Whose it is, as the kernel says.
    user: Option<u32>,
}

impl Running {
    /// The mount at `directory`, found by what its process has written down; where that is not to be had, by asking its root.
    pub fn at(directory: &Path) -> Result<Running, CliError> {
        let absolute = mounted_at(directory)?;
        let known = register::mount_at(&absolute).map_err(|cause| CliError::of(Exit::Failure, &cause))?;
        match known {
            Some(known) if known.standing != Standing::Unknown => Running::of(&Known { directory: absolute, ..known }),
            _ => Running::asked_at_its_root(absolute),
        }
    }

    /// A mount that is written down.
    pub fn of(known: &Known) -> Result<Running, CliError> {
        let shown = known.directory.display();
        match (known.standing, &known.socket) {
            (Standing::Starting, _) => Err(CliError::new(
                Exit::MountPoint,
                format!("{shown}: is not mounted yet: its first tree is being made; try again later"),
            )),
            (Standing::Dead, _) => Err(died(&known.directory)),
            (Standing::Living | Standing::Detached, Some(socket)) => {
                Ok(Running { directory: known.directory.clone(), socket: socket.clone(), user: known.user })
            }
            (Standing::Unknown | Standing::Living | Standing::Detached, _) => {
                Running::asked_at_its_root(known.directory.clone())
            }
        }
    }

    fn asked_at_its_root(absolute: PathBuf) -> Result<Running, CliError> {
        let shown = absolute.display();
        let socket = attribute(&absolute, CONTROL).map_err(|cause| match cause.raw_os_error() {
            Some(libc::ENOTCONN) => died(&absolute),
            Some(libc::EACCES | libc::EPERM) => CliError::new(
                Exit::Denied,
                format!("{shown}: only the user who mounted it may ask; try as that user (/proc/mounts shows user_id=)"),
            ),
            Some(libc::EOPNOTSUPP) => CliError::new(
                Exit::MountPoint,
                format!("{shown}: mounted with noxattr, so it does not tell where its control socket lies: mounts/*/control in its cache folder, for curl --unix-socket"),
            ),
            Some(libc::ENODATA) => {
                CliError::new(Exit::MountPoint, format!("{shown}: served by a resyncfs that has no control socket; mount it again"))
            }
            _ => CliError::new(Exit::MountPoint, format!("{shown}: {cause}")),
        })?;
        let socket = PathBuf::from(OsString::from_vec(socket));
        Ok(Running { directory: absolute, socket, user: None })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where it is asked.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks it something that may take long, and waits for the answer; an error where it gives no sign of life, at the beginning or
    /// while it is waited for.
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
                heard = self.hear(question) => heard,
                cause = self.fallen_silent() => Err(cause),
            }
        })
    }

    /// Ends when it gives no sign of life any more: a process that is stopped keeps its connections.
    async fn fallen_silent(&self) -> CliError {
        loop {
            tokio::time::sleep(PATIENCE).await;
            if let Err(cause) = self.hear_within(PATIENCE, is_alive).await {
                return cause;
            }
        }
    }

    /// The same where the answer is due within `patience`. Within a runtime only.
    pub async fn hear_within<'s, T, A>(
        &'s self,
        patience: Duration,
        question: impl FnOnce(&'s Path) -> A,
    ) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        let heard = tokio::time::timeout(patience, self.hear(question)).await;
        heard.unwrap_or_else(|_| {
            let shown = self.directory.display();
            Err(CliError::new(
                Exit::Failure,
                format!("{shown}: its process lives and does not answer; resyncfs list shows which it is"),
            ))
        })
    }

    async fn hear<'s, T, A>(&'s self, question: impl FnOnce(&'s Path) -> A) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        // SAFETY: geteuid has no preconditions and cannot fail.
        let requester = unsafe { libc::geteuid() };
        // What somebody else has written down may lead anywhere.
        if let Some(user) = self.user.filter(|user| *user != requester) {
            let server = served_by(&self.socket).await.map_err(|cause| self.refused(&cause))?;
            if server != user {
                let shown = self.directory.display();
                return Err(CliError::new(Exit::Failure, format!("{shown}: its socket is served by somebody else")));
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

async fn is_alive(socket: &Path) -> Result<IgnoredAny, ControlError> {
    call(socket, &Request::Status {}).await
}

fn died(directory: &Path) -> CliError {
    let shown = directory.display();
    CliError::new(
        Exit::MountPoint,
        format!(
            "{shown}: the process that served this mount has died; mount it again, or detach it with: resyncfs unmount {shown}"
        ),
    )
}

/// What one is told who asks for mounts where there are none.
pub fn nothing_mounted() -> CliError {
    CliError::new(
        Exit::MountPoint,
        "nothing of resyncfs is mounted on this machine; mount a Source with: resyncfs mount SOURCE DIR",
    )
}

/// `directory`, or the folder of a NAME, resolved; an error that names the mounts there are, where none of ours is mounted there.
pub fn mounted_at(directory: &Path) -> Result<PathBuf, CliError> {
    let directory = &config::directory(directory)?;
    let shown = directory.display();
    let is_ours = |found: &PathBuf| {
        point::topmost(found).is_ok_and(|mounted| mounted.is_some_and(|it| it.filesystem == FILESYSTEM_TYPE))
    };
    // A mount whose process hangs is found without a look at it.
    if let Some(found) = point::resolve_untouched(directory).ok().filter(is_ours) {
        return Ok(found);
    }
    let absolute =
        point::resolve(directory).map_err(|cause| CliError::new(Exit::MountPoint, format!("{shown}: {cause}")))?;
    match point::topmost(&absolute).map_err(|cause| CliError::of(Exit::Failure, &cause))? {
        Some(mounted) if mounted.filesystem == FILESYSTEM_TYPE => Ok(absolute),
        _ => Err(not_mounted(directory)),
    }
}

/// The failure where nothing of ours is mounted at `path`, nor above it; it names the mounts there are.
pub fn not_mounted(path: &Path) -> CliError {
    let ours = match point::ours() {
        Ok(ours) => ours,
        Err(cause) => return CliError::of(Exit::Failure, &cause),
    };
    let mut message = format!("{}: nothing of resyncfs is mounted there", path.display());
    if !ours.is_empty() {
        let list: Vec<_> = ours.iter().map(|mounted| mounted.directory.display().to_string()).collect();
        message = format!("{message}; mounted are: {}", list.join(", "));
    } else {
        message = format!("{message}, nor anywhere else; mount a Source with: resyncfs mount SOURCE DIR");
    }
    CliError::new(Exit::MountPoint, message)
}

/// An extended attribute (getxattr(2)).
fn attribute(path: &Path, name: &CStr) -> io::Result<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut value = vec![0; LONGEST_PATH];
    // SAFETY: both strings are NUL-terminated, `value` has the length that is told, and all outlive the call.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    value.truncate(length);
    Ok(value)
}
