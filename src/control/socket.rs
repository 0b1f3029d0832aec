//! Where the socket lies, whatever the length of its path.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixStream};

/// Octets of a socket's path that Linux can carry, without the NUL behind it (unix(7)).
const LONGEST_PATH: usize = 107;

/// A socket in the file system; taken away when this is dropped.
#[derive(Debug)]
pub struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Listens at `path`, for this user alone; the socket of a process that has died is replaced. Within a runtime only.
    ///
    /// Nobody else may use `path` meanwhile.
    pub fn bind(path: &Path) -> io::Result<(Socket, UnixListener)> {
        // Under its own name it is seen only when nobody else can connect any more.
        let beside = path.with_extension("new");
        match fs::remove_file(&beside) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let reachable = Reachable::of(&beside)?;
        let listener = UnixListener::bind(&reachable.path)?;
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        fs::rename(&beside, path)?;
        Ok((Socket { path: path.to_owned() }, listener))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_file(&self.path) {
            tracing::debug!(%cause, socket = %self.path.display(), "the control socket is not there any more");
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
    /// What a path through `/proc` leads by.
    _folder: Option<File>,
}

impl Reachable {
    fn of(path: &Path) -> io::Result<Reachable> {
        if path.as_os_str().len() <= LONGEST_PATH {
            return Ok(Reachable { path: path.to_owned(), _folder: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(io::ErrorKind::InvalidFilename));
        };
        let folder = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(parent)?;
        let by_descriptor = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Reachable { path: by_descriptor, _folder: Some(folder) })
    }
}
