//! Which mount a path lies in, found without access to the mount.

use super::running::{Running, not_mounted};
use super::{CliError, Exit};
use crate::mount::mountpoint;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Paths of one mount.
pub struct Within {
    /// The mount.
    pub running: Running,
    /// As given, and below the root of the mount without a leading slash.
    pub paths: Vec<(PathBuf, String)>,
}

/// Groups paths by their mounts.
pub fn by_mount(paths: &[PathBuf]) -> Result<Vec<Within>, CliError> {
    let ours = mountpoint::ours().map_err(|cause| CliError::of(Exit::Failure, &cause))?;
    let mounts: Vec<_> = ours.into_iter().map(|mounted| mounted.directory).collect();
    let mut sorted: Vec<Within> = Vec::new();
    for path in paths {
        let failed = |what: &str| CliError::new(Exit::MountPoint, format!("{}: {what}", path.display()));
        let found = find(path, &mounts).map_err(|cause| failed(&cause.to_string()))?;
        let Some((directory, below)) = found else { return Err(not_mounted(path)) };
        let below = below.into_string().map_err(|_| failed("is not in the mount: names there are UTF-8"))?;
        match sorted.iter_mut().find(|within| within.running.directory() == directory) {
            Some(within) => within.paths.push((path.clone(), below)),
            None => sorted.push(Within { running: Running::at(&directory)?, paths: vec![(path.clone(), below)] }),
        }
    }
    Ok(sorted)
}

/// The mount among `mounts` that `path` leads into, and the path from its root. Links before the mount are followed as the kernel
/// does; a mount has none.
fn find(path: &Path, mounts: &[PathBuf]) -> io::Result<Option<(PathBuf, OsString)>> {
    let mut ahead: VecDeque<OsString> = names(&std::path::absolute(path)?);
    let mut resolved = PathBuf::from("/");
    let mut links = 0;
    let is_mount = |folder: &Path| mounts.iter().any(|mounted| mounted == folder);
    loop {
        if is_mount(&resolved) && ahead.front().is_none_or(|name| name != "..") {
            return Ok(Some(below(resolved, ahead, is_mount)));
        }
        let Some(name) = ahead.pop_front() else { return Ok(None) };
        if name == ".." {
            resolved.pop();
            continue;
        }
        resolved.push(name);
        // A mount point is not accessed, and is no link.
        if is_mount(&resolved) {
            continue;
        }
        match std::fs::read_link(&resolved) {
            Ok(target) => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                resolved.pop();
                if target.is_absolute() {
                    resolved = PathBuf::from("/");
                }
                for name in names(&target).into_iter().rev() {
                    ahead.push_front(name);
                }
            }
            // No link.
            Err(cause) if cause.kind() == io::ErrorKind::InvalidInput => {}
            Err(cause) => return Err(cause),
        }
    }
}

/// The innermost mount on the way: one may be in another. Resolves the `..` in the rest of a path; the root of the mount is its own
/// parent.
fn below(root: PathBuf, ahead: VecDeque<OsString>, is_mount: impl Fn(&Path) -> bool) -> (PathBuf, OsString) {
    let mut way: Vec<OsString> = Vec::new();
    for name in ahead {
        if name == ".." {
            way.pop();
        } else {
            way.push(name);
        }
    }
    let mut path = root.clone();
    path.extend(way);
    let mount = path.ancestors().find(|above| is_mount(above)).unwrap_or(&root);
    let below = path.strip_prefix(mount).map(|below| below.as_os_str().to_owned()).unwrap_or_default();
    (mount.to_owned(), below)
}

fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect()
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
        let find = |path: &str| find(&root.join(path), &mounts).unwrap();
        let found = |below: &str| Some((mounts[0].clone(), OsString::from(below)));

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
        let find = |path: &str| find(Path::new(path), &mounts).unwrap();

        assert_eq!(find("/mnt/outer/in/a"), Some((mounts[1].clone(), "a".into())));
        assert_eq!(find("/mnt/outer/in"), Some((mounts[1].clone(), OsString::new())));
        assert_eq!(find("/mnt/outer/inside"), Some((mounts[0].clone(), "inside".into())));
    }
}
