//! The file of the socket; its path may be longer than a socket address can be.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a socket address in bytes, without the NUL at its end (unix(7)).
const MAX_PATH: usize = 107;

/// A socket in the file system; removed when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens at `path`, for this user alone; the socket of a process that has died is replaced. Within a runtime only.
    ///
    /// The caller sees to it that no other process uses `path` meanwhile.
    pub fn bind(path: &Path) -> io::Result<(Socket, UnixListener)> {
        // It has its own name only after its mode keeps other users out.
        let unfinished = path.with_extension("new");
        match fs::remove_file(&unfinished) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let reachable = Reachable::of(&unfinished)?;
        let listener = UnixListener::bind(&reachable.path)?;
        fs::set_permissions(&unfinished, Permissions::from_mode(0o600))?;
        fs::rename(&unfinished, path)?;
        Ok((Socket { path: path.to_owned() }, listener))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_file(&self.path) {
            tracing::debug!(%cause, socket = %self.path.display(), "the control socket was removed already");
        }
    }
}

/// Connects to the socket at `path`.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let reachable = Reachable::of(path)?;
    UnixStream::connect(&reachable.path).await
}

/// A path to a socket that is short enough, as long as this value lives.
struct Reachable {
    path: PathBuf,
    /// The folder that a path through `/proc` goes through.
    _folder: Option<File>,
}

impl Reachable {
    fn of(path: &Path) -> io::Result<Reachable> {
        if path.as_os_str().len() <= MAX_PATH {
            return Ok(Reachable { path: path.to_owned(), _folder: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(rustix::io::Errno::NAMETOOLONG));
        };
        // Not by `File::options`: with musl it drops PATH.
        let folder =
            File::from(rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?);
        let by_descriptor = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Reachable { path: by_descriptor, _folder: Some(folder) })
    }
}
