//! Reaching a running mount from its folder.

use super::{CliError, Exit};
use crate::control::ControlError;
use crate::mount::point::{self, FILESYSTEM_TYPE};
use std::ffi::{CStr, CString, OsString};
use std::future::Future;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The attribute of a mount's root that tells its control socket.
const CONTROL: &CStr = c"user.resyncfs.control";
/// Longer than any path that Linux takes.
const LONGEST_PATH: usize = 4096;

/// A mount of this machine.
pub struct Running {
    directory: PathBuf,
    socket: PathBuf,
}

impl Running {
    /// The mount at `directory`.
    pub fn at(directory: &Path) -> Result<Running, CliError> {
        let shown = directory.display();
        let absolute = mounted_at(directory)?;
        let socket = attribute(&absolute, CONTROL).map_err(|cause| match cause.raw_os_error() {
            Some(libc::ENOTCONN) => CliError::new(
                Exit::MountPoint,
                format!("{shown}: the process that served this mount has died; mount it again, or detach it with: resyncfs unmount {shown}"),
            ),
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
        Ok(Running { directory: absolute, socket: PathBuf::from(OsString::from_vec(socket)) })
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Asks it something and waits for the answer.
    pub fn ask<'s, T, A>(&'s self, question: impl FnOnce(&'s Path) -> A) -> Result<T, CliError>
    where
        A: Future<Output = Result<T, ControlError>>,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|cause| CliError::of(Exit::Failure, &cause))?;
        runtime.block_on(question(&self.socket)).map_err(|cause| self.refused(&cause))
    }

    fn refused(&self, cause: &ControlError) -> CliError {
        let shown = self.directory.display();
        match cause {
            ControlError::Unreachable { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => {
                CliError::new(Exit::Denied, format!("{shown}: only root and the user who mounted it may ask"))
            }
            ControlError::Forbidden { said } => CliError::new(Exit::Denied, format!("{shown}: {said}")),
            _ => CliError::of(Exit::Failure, cause),
        }
    }
}

/// `directory` resolved; an error that names the mounts there are, where none of ours is mounted there.
pub fn mounted_at(directory: &Path) -> Result<PathBuf, CliError> {
    let shown = directory.display();
    let absolute =
        point::resolve(directory).map_err(|cause| CliError::new(Exit::MountPoint, format!("{shown}: {cause}")))?;
    match point::topmost(&absolute).map_err(|cause| CliError::of(Exit::Failure, &cause))? {
        Some(mounted) if mounted.filesystem == FILESYSTEM_TYPE => Ok(absolute),
        _ => {
            let ours = point::ours().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
            let mut message = format!("{shown}: nothing of resyncfs is mounted there");
            if !ours.is_empty() {
                let list: Vec<_> = ours.iter().map(|mounted| mounted.directory.display().to_string()).collect();
                message = format!("{message}; mounted are: {}", list.join(", "));
            }
            Err(CliError::new(Exit::MountPoint, message))
        }
    }
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
