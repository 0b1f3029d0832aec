//! What each mount of this machine writes down about itself, so that it is found without being touched: whoever looks at
//! the mount point of a process that hangs, hangs with it.
//!
//! ```text
//! /run/resyncfs/              of mounts that root made; everybody may read it
//! $XDG_RUNTIME_DIR/resyncfs/  of a user's, else /run/user/UID/resyncfs/, else /tmp/resyncfs-UID/
//!   mount-…                   one mount: a JSON object a line, the last one counts; flock'ed by its process while it lives
//! ```
//!
//! A folder is believed about the mounts of its owner alone. What a process that was killed leaves behind is swept away by
//! the next one.

use super::point::{self, Mounted};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where root's mounts are written down.
const OF_ROOT: &str = "/run/resyncfs";

/// How the files' names begin, once they are locked and whole.
const PREFIX: &str = "mount-";

/// Octets of a file that are read.
const LONGEST: u64 = 64 << 10;

/// Files of one folder that are looked at: another user may make as many as they like.
const MOST: usize = 4096;

/// What a process writes down of its mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The Source, without credentials.
    pub source: String,
    /// Where it is, or will be, mounted.
    pub directory: PathBuf,
    /// The process.
    pub process: u32,
    /// The control socket.
    pub socket: PathBuf,
    /// `MAJOR:MINOR` of the mount's device; `None` before it is mounted.
    pub device: Option<String>,
}

/// The file of a mount; taken away when this is dropped.
#[derive(Debug)]
pub struct Registration {
    file: File,
    path: PathBuf,
    record: Record,
}

impl Registration {
    /// Writes `record` down for this user.
    pub fn new(record: Record) -> io::Result<Registration> {
        let mut refused = None;
        for folder in own_folders() {
            match Registration::within(&folder, record.clone()) {
                Ok(registration) => return Ok(registration),
                Err(cause) => refused = Some(cause),
            }
        }
        Err(refused.unwrap_or_else(|| io::Error::from(io::ErrorKind::NotFound)))
    }

    fn within(folder: &Path, record: Record) -> io::Result<Registration> {
        make(folder)?;
        sweep(folder);
        let mut beside = tempfile::Builder::new().prefix(".").tempfile_in(folder)?;
        beside.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        if !lock(beside.as_file(), libc::LOCK_EX) {
            return Err(io::Error::last_os_error());
        }
        write_line(beside.as_file_mut(), &record)?;
        let name = beside.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let path = folder.join(format!("{PREFIX}{}", name.trim_start_matches('.')));
        let file = beside.persist_noclobber(&path).map_err(|refused| refused.error)?;
        Ok(Registration { file, path, record })
    }

    /// It is mounted now.
    pub fn mounted(&mut self, device: &str) -> io::Result<()> {
        self.record.device = Some(device.to_owned());
        write_line(&mut self.file, &self.record)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(cause) = fs::remove_file(&self.path) {
            tracing::debug!(%cause, file = %self.path.display(), "this mount is not written down any more");
        }
    }
}

fn write_line(file: &mut File, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// How a mount stands, as far as can be told without asking it anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its process makes the first tree.
    Starting,
    /// Mounted, and its process lives.
    Living,
    /// Mounted, and its process has died: whoever looks gets ENOTCONN.
    Dead,
    /// Out of the tree, or in another mount namespace; its process lives.
    Detached,
    /// Mounted; nothing that may be read here tells of its process.
    Unknown,
}

/// A mount of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The Source, without credentials.
    pub source: String,
    /// Where.
    pub directory: PathBuf,
    /// Whose.
    pub user: Option<u32>,
    /// The process that serves it, or did.
    pub process: Option<u32>,
    /// Its control socket.
    pub socket: Option<PathBuf>,
    /// How it stands.
    pub standing: Standing,
}

/// Every mount of ours that this process can see or finds written down, in the order of their directories.
pub fn mounts() -> io::Result<Vec<Known>> {
    let written = folders().iter().flat_map(|folder| read(folder)).collect();
    let mounted = point::ours()?;
    Ok(known(mounted.clone(), &mounted, written))
}

/// The mount that is seen at `directory`, as `/proc/self/mountinfo` writes it.
pub fn mount_at(directory: &Path) -> io::Result<Option<Known>> {
    let written = folders().iter().flat_map(|folder| read(folder)).collect();
    let mounted = point::topmost(directory)?.filter(|mounted| mounted.filesystem == point::FILESYSTEM_TYPE);
    let Some(mounted) = mounted else { return Ok(None) };
    let found = known(vec![mounted], &point::ours()?, written);
    Ok(found.into_iter().find(|known| matches!(known.standing, Standing::Living | Standing::Dead | Standing::Unknown)))
}

/// A file of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    record: Record,
    user: u32,
    lives: bool,
}

/// What is `mounted`, with what is written down of it; `all` that is mounted of ours.
fn known(mounted: Vec<Mounted>, all: &[Mounted], written: Vec<Written>) -> Vec<Known> {
    let mut known: Vec<Known> = mounted
        .into_iter()
        .map(|mounted| {
            let told = told_of(&mounted, all, &written);
            Known {
                user: mounted.user,
                process: told.map(|told| told.record.process),
                socket: told.map(|told| told.record.socket.clone()),
                standing: match told {
                    Some(told) if told.lives => Standing::Living,
                    Some(_) => Standing::Dead,
                    None => Standing::Unknown,
                },
                source: mounted.source,
                directory: mounted.directory,
            }
        })
        .collect();
    for Written { record, user, .. } in written.into_iter().filter(|written| written.lives) {
        let standing = if record.device.is_some() { Standing::Detached } else { Standing::Starting };
        let is_told = |known: &Known| known.process == Some(record.process) && known.user.is_none_or(|of| of == user);
        if !known.iter().any(is_told) {
            known.push(Known {
                source: record.source,
                directory: record.directory,
                user: Some(user),
                process: Some(record.process),
                socket: Some(record.socket),
                standing,
            });
        }
    }
    known.sort_by(|a, b| a.directory.cmp(&b.directory));
    known
}

/// What is written down of this mount, where that is certain. Numbers of devices are given again: to another directory while the
/// process that had it before is still ending, and to the same one before its new process has written it down.
///
/// Of a mount that was moved (`mount --move`, or a folder above it renamed) nothing is certain: it looks as one of the same Source
/// does that was given the device of a process that is still ending, and that nothing is written down of. A command to the one
/// must not reach the other, so neither is told.
fn told_of<'w>(mounted: &Mounted, all: &[Mounted], written: &'w [Written]) -> Option<&'w Written> {
    let of_user = |it: &&Written| mounted.user.is_none_or(|user| user == it.user);
    let has_device = |it: &&Written| it.record.device.as_ref() == Some(&mounted.device);
    let is_here = |it: &&Written| it.record.directory == mounted.directory;
    let is_where_it_says =
        |it: &&Written| all.iter().any(|one| one.device == mounted.device && one.directory == it.record.directory);
    let living = || written.iter().filter(of_user).filter(|it| it.lives);
    let here = living().find(|it| has_device(it) && is_here(it));
    // A directory shows it that is bound to it.
    let bound = || living().find(|it| has_device(it) && is_where_it_says(it));
    let begins = living().any(|it| it.record.device.is_none() && is_here(&it));
    let dead = || written.iter().filter(of_user).find(|it| !it.lives && has_device(it) && is_here(it) && !begins);
    here.or_else(bound).or_else(dead)
}

/// What is written down in a folder; nothing where it cannot be read.
fn read(folder: &Path) -> Vec<Written> {
    let Ok(user) = owner(folder) else { return Vec::new() };
    files(folder).into_iter().filter_map(|path| read_file(&path, user)).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(PREFIX);
    entries.flatten().filter(ours).take(MOST).map(|entry| entry.path()).collect()
}

fn read_file(path: &Path, user: u32) -> Option<Written> {
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.uid() != user {
        return None;
    }
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(&file, LONGEST), &mut text).ok()?;
    let mut lines = text.split(|octet| *octet == b'\n').rev();
    let record = lines.find_map(|line| serde_json::from_slice(line).ok())?;
    Some(Written { record, user, lives: !lock(&file, libc::LOCK_SH) })
}

/// Takes away what processes that were killed have left behind, once their mounts are gone too.
fn sweep(folder: &Path) {
    let Ok(mounted) = point::ours() else { return };
    let Ok(user) = owner(folder) else { return };
    for path in files(folder) {
        let is_mounted =
            |written: &Written| mounted.iter().any(|mounted| Some(&mounted.device) == written.record.device.as_ref());
        if read_file(&path, user).is_some_and(|written| !written.lives && !is_mounted(&written)) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Where this user's mounts may be written down, the best place first.
fn own_folders() -> Vec<PathBuf> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_login = PathBuf::from(format!("/run/user/{user}"));
    let mut folders = Vec::new();
    if user == 0 {
        folders.push(PathBuf::from(OF_ROOT));
    } else {
        folders.extend(named.map(|folder| folder.join("resyncfs")));
        folders.push(of_login.join("resyncfs"));
    }
    folders.push(PathBuf::from(format!("/tmp/resyncfs-{user}")));
    folders.dedup();
    folders
}

/// Where mounts are written down that this user may know of.
fn folders() -> Vec<PathBuf> {
    let mut folders = own_folders();
    folders.push(PathBuf::from(OF_ROOT));
    let below = |folder: &str| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    // Those of others can be read by root alone.
    folders.extend(below("/run/user").map(|user| user.join("resyncfs")));
    let is_register =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("resyncfs-"));
    folders.extend(below("/tmp").filter(is_register));
    folders.sort();
    folders.dedup();
    folders
}

/// Makes a folder that nobody else can write to, or finds that it is one.
fn make(folder: &Path) -> io::Result<()> {
    let mode = if folder == Path::new(OF_ROOT) { 0o755 } else { 0o700 };
    match fs::DirBuilder::new().mode(mode).create(folder) {
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        _ => {}
    }
    // SAFETY: geteuid has no preconditions and cannot fail.
    let user = unsafe { libc::geteuid() };
    if owner(folder)? == user { Ok(()) } else { Err(io::Error::from(io::ErrorKind::PermissionDenied)) }
}

/// Whose folder it is; an error where it is none, or others may write to it.
fn owner(folder: &Path) -> io::Result<u32> {
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied));
    }
    Ok(metadata.uid())
}

/// Whether the lock could be had. It ends with the descriptor.
fn lock(file: &File, kind: libc::c_int) -> bool {
    // SAFETY: the descriptor is open; the call touches no memory of ours.
    unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 7;

    fn record(process: u32, device: Option<&str>) -> Record {
        Record {
            source: "http://h/".into(),
            directory: format!("/mnt/{process}").into(),
            process,
            socket: "/cache/control".into(),
            device: device.map(str::to_owned),
        }
    }

    fn written(process: u32, device: Option<&str>, lives: bool) -> Written {
        Written { record: record(process, device), user: USER, lives }
    }

    fn mounted(device: &str, directory: &str) -> Mounted {
        Mounted {
            device: device.into(),
            directory: directory.into(),
            filesystem: point::FILESYSTEM_TYPE.into(),
            source: "http://h/".into(),
            user: Some(USER),
        }
    }

    fn standings(mounted: Vec<Mounted>, written: Vec<Written>) -> Vec<(String, Standing)> {
        let shown = |known: Known| (known.directory.display().to_string(), known.standing);
        let all = mounted.clone();
        known(mounted, &all, written).into_iter().map(shown).collect()
    }

    #[test]
    fn a_mount_stands_as_its_process_does() {
        let all = standings(
            vec![mounted("0:1", "/mnt/1"), mounted("0:2", "/mnt/2"), mounted("0:3", "/mnt/3")],
            vec![
                written(1, Some("0:1"), true),
                written(2, Some("0:2"), false),
                written(4, None, true),
                written(5, Some("0:5"), true),
                written(6, None, false),
            ],
        );

        let expected = [
            ("/mnt/1", Standing::Living),
            ("/mnt/2", Standing::Dead),
            ("/mnt/3", Standing::Unknown),
            ("/mnt/4", Standing::Starting),
            ("/mnt/5", Standing::Detached),
        ];
        assert_eq!(all, expected.map(|(directory, standing)| (directory.to_owned(), standing)));
    }

    #[test]
    fn a_device_that_was_given_again_is_its_new_mounts() {
        let all = standings(
            vec![mounted("0:1", "/mnt/2")],
            vec![written(1, Some("0:1"), false), written(2, Some("0:1"), true)],
        );

        assert_eq!(all, [("/mnt/2".to_owned(), Standing::Living)]);
    }

    #[test]
    fn a_device_that_was_given_again_is_not_the_mount_of_a_process_that_is_still_ending() {
        let ending = written(1, Some("0:1"), true);
        let mount = mounted("0:1", "/mnt/2");

        for others in [vec![written(2, Some("0:1"), true)], vec![]] {
            let has_written = !others.is_empty();
            let written = [vec![ending.clone()], others].concat();
            let found = known(vec![mount.clone()], std::slice::from_ref(&mount), written).remove(1);

            assert_eq!(found.directory, PathBuf::from("/mnt/2"));
            assert_eq!(found.process, has_written.then_some(2));
            assert_eq!(found.standing, if has_written { Standing::Living } else { Standing::Unknown });
        }
    }

    #[test]
    fn a_mount_over_one_whose_process_was_killed_is_not_dead_before_it_is_written_down() {
        let (killed, next) = (written(1, Some("0:1"), false), written(1, None, true));

        let all = standings(vec![mounted("0:1", "/mnt/1")], vec![killed, next]);

        let expected = [Standing::Unknown, Standing::Starting];
        assert_eq!(all, expected.map(|standing| ("/mnt/1".to_owned(), standing)));
    }

    #[test]
    fn a_directory_that_is_bound_to_a_mount_is_served_by_its_process() {
        let all = standings(
            vec![mounted("0:1", "/mnt/1"), mounted("0:1", "/srv/bound")],
            vec![written(1, Some("0:1"), true)],
        );

        assert_eq!(all, ["/mnt/1", "/srv/bound"].map(|directory| (directory.to_owned(), Standing::Living)));
    }

    #[test]
    fn nobody_is_believed_about_the_mounts_of_others() {
        let lie = Written { user: USER + 1, ..written(1, Some("0:1"), true) };

        let mount = mounted("0:1", "/mnt/1");
        let all = known(vec![mount.clone()], &[mount], vec![lie]);

        assert_eq!((all[0].standing, &all[0].socket), (Standing::Unknown, &None));
    }

    #[test]
    fn what_is_written_down_lives_as_long_as_its_process_and_is_swept_away() {
        let folder = tempfile::tempdir().unwrap();
        let mut registration = Registration::within(folder.path(), record(1, None)).unwrap();
        assert_eq!(read(folder.path())[0].record.device, None);

        registration.mounted("0:999999").unwrap();

        let read_now = read(folder.path());
        assert_eq!(read_now.len(), 1);
        assert_eq!((read_now[0].record.device.as_deref(), read_now[0].lives), (Some("0:999999"), true));

        // As a process that is killed: the lock goes, the file stays.
        let (file, path) = (registration.file.try_clone().unwrap(), registration.path.clone());
        let kept = fs::read(&path).unwrap();
        drop((registration, file));
        fs::write(&path, kept).unwrap();
        assert!(!read(folder.path())[0].lives);

        let next = Registration::within(folder.path(), record(2, None)).unwrap();
        assert_eq!(read(folder.path()).len(), 1, "what was left behind is gone");
        drop(next);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let _registration = Registration::within(folder.path(), record(1, None)).unwrap();

        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();

        assert_eq!(read(folder.path()), []);
        assert!(Registration::within(folder.path(), record(2, None)).is_err());
    }
}
