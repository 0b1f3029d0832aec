//! The mounts of this machine: found by a mount point or a path within, without access to it, and asked at their control sockets.

use super::complete::matching;
use super::{CliError, Exit, block_on, config};
use crate::control::api::Request;
use crate::control::{ControlError, call, call_lines, served_by};
use crate::mount::mountpoint;
use crate::mount::registry::{self, Mount, MountState};
use crate::platform::error_chain::chain;
use crate::sync::FailureKind;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver};

/// A mount that does not answer a request for its status within this hangs.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Lines of an answer that wait to be shown.
const LINES: usize = 256;

/// The most links that the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// A mount that can be asked.
pub struct Running {
    /// The mount point.
    pub directory: PathBuf,
    socket: PathBuf,
    /// The user who mounted it, as the kernel shows.
    user: Option<u32>,
}

impl Running {
    /// The mount at `directory`.
    pub fn at(directory: &Path) -> Result<Running, CliError> {
        Running::of(&known_at(directory)?)
    }

    /// A mount that the registry knows. One that makes its first tree can be asked for its status alone.
    pub fn with_status(known: &Mount) -> Result<Running, CliError> {
        match known.state {
            MountState::Starting => Running::of(&Mount { state: MountState::Living, ..known.clone() }),
            _ => Running::of(known),
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
                format!(
                    "is not mounted yet: it is reading the lists of the Source for the first time; resyncfs status {shown} \
                     shows how far it is"
                )
            }
            (MountState::Dead, _) => format!(
                "the process that served this mount has died; mount it again, or detach it with: resyncfs unmount {shown}"
            ),
            _ if is_own(known) => format!(
                "nothing shows which process serves it: it was moved after it was mounted, or its record was lost a \
                 moment ago; try again in ten seconds, or mount it again after: resyncfs unmount {shown}"
            ),
            _ => foreign(known.user),
        };
        Err(CliError::at(Exit::MountPoint, &known.directory, problem))
    }

    /// Its status, if it answers within `patience`.
    pub async fn status<T: DeserializeOwned>(&self, patience: Duration) -> Result<T, CliError> {
        let answer = self.answer(async |socket| call(socket, &Request::Status {}).await);
        tokio::time::timeout(patience, answer).await.unwrap_or_else(|_| {
            let what = "its process runs but does not answer; resyncfs list shows its process ID";
            Err(CliError::at(Exit::Failure, &self.directory, what))
        })
    }

    /// The answer to a request that may take long; an error if the mount gives no sign of life before or meanwhile.
    pub fn ask<T>(&self, question: impl AsyncFnOnce(&Path) -> Result<T, ControlError>) -> Result<T, CliError> {
        block_on(async {
            self.status::<IgnoredAny>(PATIENCE).await?;
            tokio::select! {
                answer = self.answer(question) => answer,
                cause = self.silence() => Err(cause),
            }
        })
    }

    /// Hands the lines of the answer to `receive`. Ends when `receive` does; the mount's work ends with it.
    pub fn ask_lines<T: DeserializeOwned, R>(
        &self,
        request: &Request,
        receive: impl AsyncFnOnce(Receiver<T>) -> Result<R, CliError>,
    ) -> Result<R, CliError> {
        self.ask(async |socket| {
            let (sender, lines) = mpsc::channel(LINES);
            let mut receiving = pin!(receive(lines));
            tokio::select! {
                received = &mut receiving => Ok(received),
                answered = call_lines(socket, request, sender) => {
                    let received = receiving.await;
                    answered.map(|()| received)
                }
            }
        })?
    }

    /// All lines of the answer.
    pub fn ask_all<T: DeserializeOwned>(&self, request: &Request) -> Result<Vec<T>, CliError> {
        self.ask_lines(request, async |mut lines| {
            let mut all = Vec::new();
            while lines.recv_many(&mut all, LINES).await > 0 {}
            Ok(all)
        })
    }

    /// Ends when the mount gives no sign of life: a process that is stopped keeps its connections.
    async fn silence(&self) -> CliError {
        loop {
            tokio::time::sleep(PATIENCE).await;
            if let Err(cause) = self.status::<IgnoredAny>(PATIENCE).await {
                return cause;
            }
        }
    }

    async fn answer<T>(&self, question: impl AsyncFnOnce(&Path) -> Result<T, ControlError>) -> Result<T, CliError> {
        let failed = |exit, what: &str| CliError::at(exit, &self.directory, what);
        let refused = |cause: ControlError| match &cause {
            ControlError::Unreachable { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => {
                failed(Exit::Denied, &foreign(self.user))
            }
            ControlError::Forbidden(error) => failed(Exit::Denied, error),
            ControlError::Refused { kind: Some(kind), .. } => {
                let kind = serde_json::from_value(kind.as_str().into()).unwrap_or(FailureKind::Other);
                CliError::of(Exit::of_refresh(kind), &cause)
            }
            _ => CliError::of(Exit::Failure, &cause),
        };
        // A record of another user may name any socket.
        if let Some(user) = self.user.filter(|user| *user != rustix::process::geteuid().as_raw()) {
            if served_by(&self.socket).await.map_err(refused)? != user {
                return Err(failed(Exit::Failure, "another user serves its control socket"));
            }
        }
        question(&self.socket).await.map_err(refused)
    }
}

/// The refusal of a mount of another user.
fn foreign(user: Option<u32>) -> String {
    let owner = user.map_or_else(|| "another user".to_owned(), |user| format!("user {}", user_name(user)));
    format!("belongs to {owner}; only that user and root can query it")
}

/// The name of a user as /etc/passwd has it, else the number.
pub fn user_name(uid: u32) -> String {
    let users = std::fs::read("/etc/passwd").unwrap_or_default();
    let named = |line: &str| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    };
    String::from_utf8_lossy(&users).lines().find_map(named).unwrap_or_else(|| uid.to_string())
}

/// True if this user may query it.
pub fn is_own(known: &Mount) -> bool {
    let requester = rustix::process::geteuid();
    requester.is_root() || known.user == Some(requester.as_raw())
}

/// The mount at `directory`, or the one that is being made there.
pub fn known_at(directory: &Path) -> Result<Mount, CliError> {
    // What another process mounted may be seen nowhere.
    if directory.starts_with("/proc") {
        return registry::mount_named(directory)?.ok_or_else(|| not_mounted(directory));
    }
    let refused = match mounted_at(directory) {
        Ok(absolute) => return registry::mount_at(&absolute)?.ok_or_else(|| not_mounted(directory)),
        Err(refused) => refused,
    };
    let absolute = mountpoint::resolve(&config::directory(directory)?).ok();
    let is_it = |known: &Mount| known.state == MountState::Starting && Some(&known.directory) == absolute.as_ref();
    registry::mounts()?.into_iter().find(is_it).ok_or(refused)
}

/// Every mount that is in the tree or being made; an error if there is none.
pub fn all() -> Result<Vec<Mount>, CliError> {
    let mut known = registry::mounts()?;
    known.retain(|known| known.state != MountState::Detached);
    if known.is_empty() { Err(nothing_mounted()) } else { Ok(known) }
}

/// The failure of a command on all mounts if there is none.
pub fn nothing_mounted() -> CliError {
    CliError::new(
        Exit::MountPoint,
        "there is no resyncfs mount on this machine; mount a Source with: resyncfs mount SOURCE DIR",
    )
}

/// `directory`, or the folder of a NAME, resolved; an error that names the mounts there are if none of ours is there. The mount is
/// not accessed.
pub fn mounted_at(directory: &Path) -> Result<PathBuf, CliError> {
    let directory = &config::directory(directory)?;
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => not_mounted(directory),
        _ => CliError::at(Exit::MountPoint, directory, chain(&cause)),
    };
    let absolute = mountpoint::resolve(directory).map_err(failed)?;
    match mountpoint::topmost(&absolute).map_err(failed)?.is_some_and(|mounted| mounted.is_ours()) {
        true => Ok(absolute),
        false => Err(not_mounted(directory)),
    }
}

/// The failure if no mount of ours is at or above `path`; it names the mounts there are.
fn not_mounted(path: &Path) -> CliError {
    let ours = match mountpoint::ours() {
        Ok(ours) => ours,
        Err(cause) => return cause.into(),
    };
    let list: Vec<_> = ours.iter().map(|mounted| mounted.directory.display().to_string()).collect();
    let rest = match list.is_empty() {
        true => " or anywhere else; mount a Source with: resyncfs mount SOURCE DIR".to_owned(),
        false => format!("; current mounts: {}", list.join(", ")),
    };
    CliError::at(Exit::MountPoint, path, format!("no resyncfs mount there{rest}"))
}

/// Paths of one mount.
pub struct Within {
    /// The mount.
    pub running: Running,
    /// The paths as they were given.
    pub given: Vec<PathBuf>,
    /// The paths below the root of the mount, without a leading slash.
    pub below: Vec<String>,
}

/// Groups paths by their mounts.
pub fn by_mount(paths: &[PathBuf]) -> Result<Vec<Within>, CliError> {
    let mounts: Vec<_> = mountpoint::ours()?.into_iter().map(|mounted| mounted.directory).collect();
    let mut sorted: Vec<Within> = Vec::new();
    for path in paths {
        let shown = path.display();
        if shown.to_string().contains("://") {
            let what = format!("is an address, not a path; for its path, use: resyncfs path {shown}");
            return Err(CliError::at(Exit::Usage, path, what));
        }
        let within = |path: &Path| match find(path, &mounts, MOST_LINKS) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(CliError::at(Exit::MountPoint, path, chain(&cause)))
            }
            found => Ok(found.ok().flatten()),
        };
        // A path in a mount comes before a NAME that is spelled the same.
        let found = match within(path)? {
            None => within(&config::directory(path)?)?,
            found => found,
        };
        let Some((directory, below)) = found else { return Err(not_mounted(path)) };
        let Ok(below) = below.into_os_string().into_string() else {
            return Err(CliError::at(Exit::MountPoint, path, "is not in the mount: names there are UTF-8"));
        };
        let within = match sorted.iter().position(|within| within.running.directory == directory) {
            Some(index) => &mut sorted[index],
            None => {
                sorted.push(Within { running: Running::at(&directory)?, given: Vec::new(), below: Vec::new() });
                sorted.last_mut().ok_or_else(nothing_mounted)?
            }
        };
        within.given.push(path.clone());
        within.below.push(below);
    }
    Ok(sorted)
}

/// The innermost of `mounts` that `path` leads into, and the path from its root. Links before a mount are followed as the kernel
/// does; a mount has none, and is not accessed.
fn find(path: &Path, mounts: &[PathBuf], links: usize) -> io::Result<Option<(PathBuf, PathBuf)>> {
    let path = std::path::absolute(path)?;
    let mut ahead = path.components();
    let mut resolved = PathBuf::from("/");
    while let Some(component) = ahead.next() {
        match component {
            Component::ParentDir => _ = resolved.pop(),
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
        if mounts.iter().any(|mount| resolved.starts_with(mount)) {
            continue;
        }
        match std::fs::read_link(&resolved) {
            Ok(_) if links == 0 => return Err(rustix::io::Errno::LOOP.into()),
            Ok(target) => {
                resolved.pop();
                return find(&resolved.join(target).join(ahead.as_path()), mounts, links - 1);
            }
            // No link.
            Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => {}
            Err(cause) => return Err(cause),
        }
    }
    let below = |mount: &Path| Some((mount.to_owned(), resolved.strip_prefix(mount).ok()?.to_owned()));
    Ok(resolved.ancestors().filter(|above| mounts.iter().any(|mount| mount == above)).find_map(below))
}

fn complete_name(current: &OsStr) -> Vec<CompletionCandidate> {
    matching(current, config::names().into_iter().map(|name| (name, "a NAME".to_owned())))
}

/// Completes a NAME, or a folder that is mounted.
pub fn complete(current: &OsStr) -> Vec<CompletionCandidate> {
    let mounted = mountpoint::ours().unwrap_or_default();
    let folders = mounted.iter().map(|mounted| (mounted.directory.to_string_lossy(), "mounted".to_owned()));
    complete_name(current).into_iter().chain(matching(current, folders)).collect()
}

/// Completes a NAME, a folder that is mounted, or a path.
pub fn complete_path(current: &OsStr) -> Vec<CompletionCandidate> {
    complete(current).into_iter().chain(PathCompleter::any().complete(current)).collect()
}

/// Completes a NAME or a file.
pub fn complete_source(current: &OsStr) -> Vec<CompletionCandidate> {
    complete_name(current).into_iter().chain(PathCompleter::any().complete(current)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_to_its_mount() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("mnt/repo")).unwrap();
        std::os::unix::fs::symlink("mnt", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("mnt/repo/a/b"), root.join("deep")).unwrap();
        let mounts = [root.join("mnt/repo")];
        let find = |path: &str| find(&root.join(path), &mounts, MOST_LINKS).unwrap();
        let found = |below: &str| Some((mounts[0].clone(), PathBuf::from(below)));

        for (path, below) in [
            ("mnt/repo", ""),
            ("mnt/repo/", ""),
            ("mnt/repo/absent/x y", "absent/x y"),
            ("link/repo/a", "a"),
            ("deep/c", "a/b/c"),
            ("mnt/repo/a/../b/./c", "b/c"),
            ("mnt/../link/repo/a", "a"),
        ] {
            assert_eq!(find(path), found(below), "{path}");
        }
        assert_eq!(find("mnt"), None);
        assert_eq!(find("mnt/repo/.."), None);
    }

    #[test]
    fn of_a_mount_in_another_the_inner_one_is_found() {
        let mounts = ["/mnt/outer".into(), "/mnt/outer/in".into()];
        let find = |path: &str| find(Path::new(path), &mounts, MOST_LINKS).unwrap();

        assert_eq!(find("/mnt/outer/in/a"), Some((mounts[1].clone(), "a".into())));
        assert_eq!(find("/mnt/outer/in"), Some((mounts[1].clone(), PathBuf::new())));
        assert_eq!(find("/mnt/outer/inside"), Some((mounts[0].clone(), "inside".into())));
    }
}
