//! The mounts that run: one locked file for each. A mount is found without touching its mount point, where the caller would
//! hang if its process hangs.
//!
//! ```text
//! /run/resyncfs/           mounts of root; readable by all users
//! /run/user/UID/resyncfs/  mounts of a user; /tmp/resyncfs-UID/ if that cannot be used
//!   starting-PID.json      a mount whose first tree is being made
//!   MAJOR:MINOR.json       a mount, by the number of its device
//!   descriptor-PID.json    a mount that another process made, by the process that serves it
//! ```
//!
//! A file holds a [`Record`]. Its process keeps an flock(2) on it, so an unlocked file is of a process that was killed: the
//! next mount of this user removes it. A folder is believed about the mounts of its owner alone.

use super::mountpoint::{self, Mounted};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The beginning of a file name before the mount is there.
const STARTING: &str = "starting-";

/// The beginning of a file name where the device is not known.
const DESCRIPTOR: &str = "descriptor-";

/// Bytes of a file that are read.
const LONGEST: u64 = 64 << 10;

/// Entries of one folder that are read: another user may make any number.
const MOST: usize = 4096;

/// The record of a process about its mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The Source, without credentials.
    pub source: String,
    /// The mount point.
    pub directory: PathBuf,
    /// The process.
    pub process: u32,
    /// The control socket.
    pub socket: PathBuf,
}

/// The record of a mount of this process, removed when it is dropped.
#[derive(Debug)]
pub struct Registration {
    record: Record,
    file: File,
    folder: PathBuf,
    path: PathBuf,
}

impl Registration {
    /// Records a mount of this user that is being started.
    pub fn starting(record: &Record) -> io::Result<Registration> {
        Registration::within_one_of(&folders(user()), record)
    }

    fn within_one_of([usual, other]: &[PathBuf; 2], record: &Record) -> io::Result<Registration> {
        Registration::within(usual, record).or_else(|_| Registration::within(other, record))
    }

    fn within(folder: &Path, record: &Record) -> io::Result<Registration> {
        make(folder)?;
        let turn = turn(folder)?;
        remove_dead(folder)?;
        let path = folder.join(format!("{STARTING}{}.json", record.process));
        // No other process can open it, and lock it, before it is locked here.
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        let registration = Registration { record: record.clone(), file, folder: folder.to_owned(), path };
        let written = registration.write();
        // A record that cannot be written is removed, which takes another turn.
        drop(turn);
        written.map(|()| registration)
    }

    fn write(&self) -> io::Result<()> {
        flock(&self.file, FlockOperation::LockExclusive)?;
        serde_json::to_writer(&self.file, &self.record)?;
        self.file.set_permissions(Permissions::from_mode(0o644))
    }

    /// The mount is there, with this device (`MAJOR:MINOR`). Replaces the record of an earlier mount with the same device. Without a
    /// device, another process made the mount.
    pub fn mounted(&mut self, device: Option<&str>) -> io::Result<()> {
        self.rename(&match device {
            Some(device) => format!("{device}.json"),
            None => format!("{DESCRIPTOR}{}.json", std::process::id()),
        })
    }

    fn rename(&mut self, name: impl AsRef<Path>) -> io::Result<()> {
        let _turn = turn(&self.folder)?;
        let path = self.folder.join(name);
        fs::rename(&self.path, &path)?;
        self.path = path;
        Ok(())
    }

    /// Records the mount again where its record was removed: a user's folder goes with their last session.
    pub fn restore(&mut self) -> io::Result<()> {
        if self.path.try_exists()? { Ok(()) } else { self.restore_within(&folders(user())) }
    }

    fn restore_within(&mut self, folders: &[PathBuf; 2]) -> io::Result<()> {
        let mut restored = Registration::within_one_of(folders, &self.record)?;
        restored.rename(self.path.file_name().unwrap_or_default())?;
        *self = restored;
        Ok(())
    }

    fn remove(&self) -> io::Result<()> {
        let _turn = turn(&self.folder)?;
        // The kernel may have given the device to a later mount, which has replaced this record by its own.
        if fs::metadata(&self.path)?.ino() == self.file.metadata()?.ino() {
            fs::remove_file(&self.path)
        } else {
            Ok(())
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Err(cause) = self.remove() {
            tracing::debug!(%cause, file = %self.path.display(), "the record of this mount is not removed");
        }
    }
}

/// The state of a mount, as it can be seen without asking its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountState {
    /// Its process makes the first tree.
    Starting,
    /// Mounted, and its process lives.
    Living,
    /// Mounted, and its process has died: every access fails with ENOTCONN.
    Dead,
    /// No longer in the tree, or in another mount namespace; its process lives.
    Detached,
    /// Mounted; no record that this user may read shows its process.
    Unknown,
}

/// A mount of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The Source, without credentials.
    pub source: String,
    /// The mount point.
    pub directory: PathBuf,
    /// The user who mounted it.
    pub user: Option<u32>,
    /// The process that serves it, or did.
    pub process: Option<u32>,
    /// Its control socket.
    pub socket: Option<PathBuf>,
    /// Its state.
    pub state: MountState,
}

impl Mount {
    fn new(mounted: &Mounted, recorded: Option<&Recorded>) -> Mount {
        Mount {
            source: mounted.source.clone(),
            directory: mounted.directory.clone(),
            user: mounted.user,
            process: recorded.map(|it| it.record.process),
            socket: recorded.map(|it| it.record.socket.clone()),
            state: match recorded {
                Some(recorded) if recorded.lives => MountState::Living,
                Some(_) => MountState::Dead,
                None => MountState::Unknown,
            },
        }
    }
}

/// Every mount of ours that this process sees, or of which it finds a record, sorted by mount point.
pub fn mounts() -> io::Result<Vec<Mount>> {
    let mounted = mountpoint::ours()?;
    let recorded = recorded(&mounted);
    Ok(known(&mounted, recorded))
}

/// The mount that is seen at `directory`, as `/proc/self/mountinfo` writes it.
pub fn mount_at(directory: &Path) -> io::Result<Option<Mount>> {
    let Some(mounted) = mountpoint::topmost(directory)?.filter(Mounted::is_ours) else { return Ok(None) };
    let all = mountpoint::ours()?;
    let recorded = recorded(&all);
    Ok(Some(Mount::new(&mounted, record_of(&mounted, &all, &recorded))))
}

/// The mount that another process made and that is recorded under this name, which is not a mount point. Only the user of that process
/// is believed: a record may claim any name.
pub fn mount_named(name: &Path) -> io::Result<Option<Mount>> {
    let is_it = |known: &Mount| {
        known.state == MountState::Living
            && known.directory == name
            && known.process.is_some_and(|process| is_of(name, process, known.user))
    };
    Ok(mounts()?.into_iter().find(is_it))
}

/// True if `name` is a descriptor of `process`, and that a process of `user`.
fn is_of(name: &Path, process: u32, user: Option<u32>) -> bool {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = users.and_then(|users| users.split_ascii_whitespace().nth(1)?.parse().ok());
    name.starts_with(folder) && effective.is_some() && effective == user
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    record: Record,
    /// `None` before it is mounted.
    device: Option<String>,
    user: u32,
    lives: bool,
}

fn known(mounted: &[Mounted], recorded: Vec<Recorded>) -> Vec<Mount> {
    let mut known: Vec<Mount> = mounted.iter().map(|it| Mount::new(it, record_of(it, mounted, &recorded))).collect();
    for Recorded { record, device, user, .. } in recorded.into_iter().filter(|recorded| recorded.lives) {
        let is_same = |known: &Mount| known.process == Some(record.process) && known.user.is_none_or(|of| of == user);
        if !known.iter().any(is_same) {
            known.push(Mount {
                source: record.source,
                directory: record.directory,
                user: Some(user),
                process: Some(record.process),
                socket: Some(record.socket),
                state: match device {
                    None => MountState::Starting,
                    Some(device) if device.starts_with(DESCRIPTOR) => MountState::Living,
                    Some(_) => MountState::Detached,
                },
            });
        }
    }
    known.sort_by(|a, b| a.directory.cmp(&b.directory));
    known
}

/// The record of this mount, if that is certain: a command to one mount must not reach another. The kernel gives the device of a
/// mount to another one while the first process is still ending, so the mount point counts too. A mount that was moved
/// (`mount --move`) therefore has no record.
fn record_of<'r>(mounted: &Mounted, all: &[Mounted], recorded: &'r [Recorded]) -> Option<&'r Recorded> {
    let has_device = |it: &Recorded| it.device.as_ref() == Some(&mounted.device);
    let is_here = |it: &Recorded| it.record.directory == mounted.directory;
    // Also where another folder is bound to the mount point.
    let shows_device =
        |it: &Recorded| all.iter().any(|one| one.device == mounted.device && one.directory == it.record.directory);
    let find = |matches: &dyn Fn(&Recorded) -> bool| {
        recorded.iter().find(|it| mounted.user.is_none_or(|user| user == it.user) && matches(it))
    };
    find(&|it| it.lives && has_device(it) && shows_device(it))
        // It was mounted a moment ago.
        .or_else(|| find(&|it| it.lives && it.device.is_none() && is_here(it)))
        .or_else(|| find(&|it| !it.lives && has_device(it) && is_here(it)))
}

/// The records of root, of this user, of the users who mounted `mounted`, and of those who have a folder for them.
fn recorded(mounted: &[Mounted]) -> Vec<Recorded> {
    let named = |parent: &str, prefix: &'static str| {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        entries.filter_map(move |entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok())
    };
    let with_folder = named("/run/user", "").chain(named("/tmp", "resyncfs-").take(MOST));
    let users: BTreeSet<u32> = mounted.iter().filter_map(|it| it.user).chain(with_folder).chain([0, user()]).collect();
    users.into_iter().flat_map(|user| folders(user).map(|folder| read(&folder, user))).flatten().collect()
}

/// The folders where mounts of `user` are recorded; the first that can be used is.
fn folders(user: u32) -> [PathBuf; 2] {
    // The root of a user's own namespace is that user: root's folders, which all users read, are not theirs.
    let user = if user == self::user() { outside(user) } else { user };
    let runtime = if user == 0 { "/run/resyncfs".to_owned() } else { format!("/run/user/{user}/resyncfs") };
    [runtime.into(), format!("/tmp/resyncfs-{user}").into()]
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The number of `user` outside the user namespace of this process; the same where that is the first namespace.
fn outside(user: u32) -> u32 {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    outside_by(&map, user).unwrap_or(user)
}

/// The number by lines of three numbers: the first user inside, the first outside, and how many (user_namespaces(7)).
fn outside_by(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (inside, outside, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        user.checked_sub(inside).filter(|offset| *offset < count).map(|offset| outside + offset)
    })
}

/// The records in a folder of `user`; none if it cannot be read or believed.
fn read(folder: &Path, user: u32) -> Vec<Recorded> {
    if check(folder, user).is_err() {
        return Vec::new();
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(MOST);
    entries.filter_map(|entry| read_file(&entry.path(), user)).collect()
}

fn read_file(path: &Path, user: u32) -> Option<Recorded> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let file = open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.uid() != user {
        return None;
    }
    let mut text = Vec::new();
    (&file).take(LONGEST).read_to_end(&mut text).ok()?;
    let device = (!name.starts_with(STARTING)).then(|| name.to_owned());
    Some(Recorded { record: serde_json::from_slice(&text).ok()?, device, user, lives: is_locked(&file) })
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    File::options().read(true).custom_flags(flags.bits() as i32).open(path)
}

/// True if a process holds the lock of a record. Must be asked by a descriptor that does not hold it.
fn is_locked(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockShared).is_err()
}

/// Removes what killed processes have left behind, unless their mounts are still there.
fn remove_dead(folder: &Path) -> io::Result<()> {
    let mounted = mountpoint::ours()?;
    for entry in fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(device) = name.strip_suffix(".json") else { continue };
        let is_left = || open(&entry.path()).is_ok_and(|file| !is_locked(&file));
        if !mounted.iter().any(|mounted| mounted.device == device) && is_left() {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// One mount of this user at a time starts, ends, or takes its name. Only this user can open the lock.
fn turn(folder: &Path) -> io::Result<File> {
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(folder.join(".lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Makes a folder of this user, or checks that it is one.
fn make(folder: &Path) -> io::Result<()> {
    let mode = if folder.starts_with("/run/resyncfs") { 0o755 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(folder) {
        // The umask must not take the right of others to read.
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(mode))?,
        Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => return Err(cause),
        Err(_) => {}
    }
    check(folder, user())
}

/// An error unless this is a folder of `user` to which no other user can write.
fn check(folder: &Path, user: u32) -> io::Result<()> {
    let metadata = fs::symlink_metadata(folder)?;
    match metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 7;

    fn record(process: u32) -> Record {
        Record {
            source: "http://h/".into(),
            directory: format!("/mnt/{process}").into(),
            process,
            socket: "/cache/control".into(),
        }
    }

    fn found(process: u32, device: Option<&str>, lives: bool) -> Recorded {
        Recorded { record: record(process), device: device.map(str::to_owned), user: USER, lives }
    }

    fn mounted(device: &str, directory: &str) -> Mounted {
        Mounted {
            device: device.into(),
            directory: directory.into(),
            filesystem: mountpoint::FILESYSTEM_TYPE.into(),
            source: "http://h/".into(),
            user: Some(USER),
        }
    }

    fn shown(mounted: &[Mounted], recorded: Vec<Recorded>) -> Vec<(String, MountState)> {
        let all = known(mounted, recorded).into_iter();
        all.map(|known| (known.directory.display().to_string(), known.state)).collect()
    }

    fn expected<const N: usize>(all: [(&str, MountState); N]) -> Vec<(String, MountState)> {
        all.map(|(directory, state)| (directory.to_owned(), state)).into()
    }

    #[test]
    fn a_mount_has_the_state_of_its_process() {
        let all = shown(
            &[mounted("0:1", "/mnt/1"), mounted("0:2", "/mnt/2"), mounted("0:3", "/mnt/3")],
            vec![
                found(1, Some("0:1"), true),
                found(2, Some("0:2"), false),
                found(4, None, true),
                found(5, Some("0:5"), true),
                found(6, None, false),
                found(7, Some("descriptor-7"), true),
                found(8, Some("descriptor-8"), false),
            ],
        );

        assert_eq!(
            all,
            expected([
                ("/mnt/1", MountState::Living),
                ("/mnt/2", MountState::Dead),
                ("/mnt/3", MountState::Unknown),
                ("/mnt/4", MountState::Starting),
                ("/mnt/5", MountState::Detached),
                ("/mnt/7", MountState::Living),
            ])
        );
    }

    #[test]
    fn a_user_of_a_namespace_is_one_outside() {
        let map = "         0       1000          1\n         1     100000      65536\n";

        assert_eq!(
            [0, 1, 65_536, 65_537].map(|user| outside_by(map, user)),
            [Some(1000), Some(100_000), Some(165_535), None]
        );
        assert_eq!(outside_by("         0          0 4294967295\n", 7), Some(7));
        assert_eq!(outside_by("", 7), None);
    }

    #[test]
    fn a_descriptor_is_of_the_user_of_its_process() {
        let own = std::process::id();
        let name = PathBuf::from(format!("/proc/{own}/fd/3"));

        assert!(is_of(&name, own, Some(user())));
        assert!(!is_of(&name, own, Some(user() + 1)), "a record of another user");
        assert!(!is_of(&name, std::os::unix::process::parent_id(), Some(user())), "another process");
        assert!(!is_of(&name, own, None));
    }

    #[test]
    fn a_mount_is_found_before_its_record_has_its_device() {
        // Also over a mount whose process was killed.
        for others in [vec![], vec![found(1, Some("0:1"), false)]] {
            let all = shown(&[mounted("0:1", "/mnt/1")], [others, vec![found(1, None, true)]].concat());

            assert_eq!(all, expected([("/mnt/1", MountState::Living)]));
        }
    }

    #[test]
    fn a_reused_device_is_not_the_mount_of_the_process_before() {
        let ending = found(1, Some("0:1"), true);

        let all = shown(&[mounted("0:1", "/mnt/2")], vec![ending.clone()]);
        assert_eq!(all, expected([("/mnt/1", MountState::Detached), ("/mnt/2", MountState::Unknown)]));

        let all = shown(&[mounted("0:1", "/mnt/2")], vec![ending, found(2, Some("0:1"), true)]);
        assert_eq!(all, expected([("/mnt/1", MountState::Detached), ("/mnt/2", MountState::Living)]));
    }

    #[test]
    fn a_directory_bound_to_a_mount_is_served_by_its_process() {
        let all = shown(&[mounted("0:1", "/mnt/1"), mounted("0:1", "/srv/bound")], vec![found(1, Some("0:1"), true)]);

        assert_eq!(all, expected([("/mnt/1", MountState::Living), ("/srv/bound", MountState::Living)]));
    }

    #[test]
    fn a_record_of_another_user_is_not_believed() {
        let lie = Recorded { user: USER + 1, ..found(1, Some("0:1"), true) };

        let all = known(&[mounted("0:1", "/mnt/1")], vec![lie]);

        assert_eq!((all[0].state, &all[0].socket), (MountState::Unknown, &None));
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != ".lock").collect()
    }

    #[test]
    fn a_record_lives_as_long_as_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut registration = Registration::within(folder.path(), &record(1)).unwrap();
        let starting = read(folder.path(), user());
        assert_eq!((&starting[0].record, &starting[0].device, starting[0].lives), (&record(1), &None, true));

        registration.mounted(Some("0:999999")).unwrap();

        assert_eq!(names(folder.path()), ["0:999999.json"]);
        let mounted = read(folder.path(), user());
        assert_eq!((mounted[0].device.as_deref(), mounted[0].lives), (Some("0:999999"), true));
        drop(registration);
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn a_record_that_cannot_be_written_is_removed() {
        use std::os::unix::ffi::OsStringExt;
        let folder = tempfile::tempdir().unwrap();
        // JSON has no such path; a full disk fails here too.
        let directory = std::ffi::OsString::from_vec(b"/mnt/\xff".to_vec()).into();

        let refused = Registration::within(folder.path(), &Record { directory, ..record(1) });

        assert!(refused.is_err());
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn the_record_of_a_killed_process_is_removed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        for killed in ["0:999999.json", "starting-1.json"] {
            fs::write(folder.path().join(killed), serde_json::to_vec(&record(1)).unwrap()).unwrap();
        }
        assert!(read(folder.path(), user()).iter().all(|recorded| !recorded.lives));

        let _next = Registration::within(folder.path(), &record(2)).unwrap();

        assert_eq!(names(folder.path()), ["starting-2.json"]);
    }

    #[test]
    fn a_removed_record_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut registration = Registration::within(folder.path(), &record(1)).unwrap();
        registration.mounted(Some("0:999999")).unwrap();
        fs::remove_dir_all(folder.path()).unwrap();

        registration.restore_within(&[folder.path().into(), "/".into()]).unwrap();

        let restored = read(folder.path(), user());
        assert_eq!((&restored[0].record, restored[0].device.as_deref()), (&record(1), Some("0:999999")));
        assert!(restored[0].lives);
        drop(registration);
        assert_eq!(names(folder.path()), [""; 0]);
    }

    #[test]
    fn an_ending_mount_leaves_the_record_of_a_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut ending = Registration::within(folder.path(), &record(1)).unwrap();
        let mut later = Registration::within(folder.path(), &record(2)).unwrap();
        ending.mounted(Some("0:999999")).unwrap();
        later.mounted(Some("0:999999")).unwrap();

        drop(ending);

        assert_eq!(read(folder.path(), user())[0].record, record(2));
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let _registration = Registration::within(folder.path(), &record(1)).unwrap();

        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();

        assert_eq!(read(folder.path(), user()), []);
        assert!(Registration::within(folder.path(), &record(2)).is_err());
    }
}
