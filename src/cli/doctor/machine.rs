//! The machine: the kernel's FUSE, the limits of this process, the disk of the cache.

use super::Diagnosis;
use crate::cli::args::Options;
use crate::cli::render::{size, thousands};
use crate::content::store::free_space;
use crate::mount::identity::{check_owner, default_cache};
use crate::mount::{LEAST_OPEN_FILES, MountError, apparmor_profile, mountpoint};
use crate::platform::error_chain::chain;
use crate::platform::{address_space, lmdb};
use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities, no_new_privs};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The oldest kernel that works.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// The kernels that add something, and the cost of an older one.
const COSTS: [((u32, u32), &str); 2] = [
    ((6, 12), "before 6.12 a reader waits some milliseconds longer while all processors are busy"),
    ((6, 16), "before 6.16 a change of more than 20,000 files is shown folder by folder"),
];

/// The usual limit of open files.
const USUAL_OPEN_FILES: u64 = 1024;

/// Bytes of the catalog for each name, and the names that the largest repositories have.
const BYTES_A_NAME: u64 = 512;
const MANY_NAMES: u64 = 10_000_000;

/// Fewer free inodes are soon used up: each cached file takes one.
const FEW_INODES: u64 = 10_000;

/// The folders of units, and the file in one of them by which the daily updatedb leaves mounts out.
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];
const UPDATEDB_DROP_IN: &str = "plocate-updatedb.service.d/resyncfs.conf";

const CONTAINER: &str = "in a container use: docker run --device /dev/fuse --cap-add SYS_ADMIN";
const OTHER_CACHE: &str = "name another folder with -o cache=DIR";

/// The results of all checks of the machine.
pub fn findings(options: &Options) -> Vec<Diagnosis> {
    let (is_root, text) = (geteuid().is_root(), |file| fs::read_to_string(file).ok());
    let mut findings = vec![device(), if is_root { root() } else { helper() }];
    findings.extend(apparmor());
    findings.push(kernel(&rustix::system::uname().release().to_string_lossy()));
    findings.extend(text("/proc/sys/fs/fuse/max_request_timeout").as_deref().and_then(request_timeout));
    findings.push(open_files(getrlimit(Resource::Nofile).maximum));
    findings.push(names(address_space::limit(), lmdb::largest_map(u64::MAX)));
    findings.push(cache(options));
    findings.push(other_users(is_root, options.files.allow_other, text("/etc/fuse.conf").as_deref()));
    let has_drop_in = UNITS.iter().any(|folder| Path::new(folder).join(UPDATEDB_DROP_IN).exists());
    findings.extend(text("/etc/updatedb.conf").map(|configuration| updatedb(&configuration, has_drop_in)));
    findings
}

fn device() -> Diagnosis {
    const DEVICE: &str = "/dev/fuse";
    let Err(cause) = fs::File::options().read(true).write(true).open(DEVICE) else {
        return Diagnosis::ok(DEVICE, "can be opened");
    };
    let remedy = match cause.kind() {
        io::ErrorKind::PermissionDenied => "as root: chmod 666 /dev/fuse",
        _ => "load the module with: modprobe fuse",
    };
    Diagnosis::fail(DEVICE, chain(&cause), format!("{remedy}; {CONTAINER}"))
}

/// Root mounts without a program.
fn root() -> Diagnosis {
    match capabilities(None) {
        Ok(sets) if !sets.effective.contains(CapabilitySet::SYS_ADMIN) => {
            Diagnosis::fail("right to mount", "this root has no CAP_SYS_ADMIN", CONTAINER)
        }
        _ => Diagnosis::ok("right to mount", "root needs no fusermount3"),
    }
}

fn helper() -> Diagnosis {
    const HELPER: &str = "fusermount3";
    if no_new_privs().unwrap_or_default() {
        let advice = "leave out NoNewPrivileges= of systemd, or no-new-privileges of a container";
        return Diagnosis::fail(HELPER, "programs started from here get no further rights (no_new_privs)", advice);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/sbin", "/bin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(HELPER)).find_map(|file| Some((fs::metadata(&file).ok()?, file)));
    match found {
        None => Diagnosis::fail(HELPER, "is missing", "install the package fuse3"),
        Some((found, file)) if found.permissions().mode() & 0o4000 == 0 || found.uid() != 0 => {
            let file = file.display();
            Diagnosis::fail(HELPER, format!("{file} is not setuid root"), format!("as root: chmod u+s {file}"))
        }
        Some((_, file)) => Diagnosis::ok(HELPER, format!("{} is setuid root", file.display())),
    }
}

fn apparmor() -> Option<Diagnosis> {
    let profile = apparmor_profile()?;
    Some(match profile.as_str() {
        "fusermount3" => Diagnosis::ok(
            "AppArmor",
            "allows mounts below /home, /mnt, /media, /tmp and /run/user; for other folders see: resyncfs help machines",
        ),
        name => Diagnosis::warn(
            "AppArmor",
            format!("this process has the profile {name}, which may refuse mounts"),
            "in a container use: docker run --security-opt apparmor=unconfined; see: resyncfs help machines",
        ),
    })
}

/// `release` as uname(2) gives it: `6.12.48+deb13-amd64`.
fn kernel(release: &str) -> Diagnosis {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < OLDEST_KERNEL {
        return Diagnosis::fail("kernel", format!("Linux {release}"), "Linux 5.10 is the oldest that works");
    }
    let costs: String =
        COSTS.iter().filter(|(since, _)| version < *since).map(|(_, cost)| format!("; {cost}")).collect();
    Diagnosis::ok("kernel", format!("Linux {release}{costs}"))
}

/// The setting `fs.fuse.max_request_timeout`, in seconds.
fn request_timeout(setting: &str) -> Option<Diagnosis> {
    let seconds = setting.trim().parse().ok().filter(|seconds: &u32| (1..900).contains(seconds))?;
    let found = format!("the kernel aborts a mount whose request takes longer than {seconds} s");
    Some(Diagnosis::warn("request timeout", found, "as root: sysctl fs.fuse.max_request_timeout=900"))
}

/// `limit` is the hard one: a mount raises its own to that.
fn open_files(limit: Option<u64>) -> Diagnosis {
    const CHECK: &str = "open files";
    match limit {
        Some(limit) if limit < LEAST_OPEN_FILES => {
            Diagnosis::fail(CHECK, MountError::OpenFiles { limit, least: LEAST_OPEN_FILES }.to_string(), "")
        }
        Some(limit) if limit < USUAL_OPEN_FILES => Diagnosis::warn(
            CHECK,
            format!("only {limit} at once, so fewer files are read and fewer connections made at the same time"),
            "raise the limit (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of a container)",
        ),
        Some(limit) => Diagnosis::ok(CHECK, format!("{} at once", thousands(limit))),
        None => Diagnosis::ok(CHECK, "no limit"),
    }
}

/// `map`: the most bytes that the catalog may take within `limit`.
fn names(limit: Option<u64>, map: u64) -> Diagnosis {
    const CHECK: &str = "address space";
    let Some(limit) = limit else { return Diagnosis::ok(CHECK, "no limit") };
    let names = map / BYTES_A_NAME;
    let found = format!("{}, enough for the names of {} files", size(limit), thousands(names));
    match names < MANY_NAMES {
        true => Diagnosis::warn(CHECK, found, "for more use: ulimit -v unlimited"),
        false => Diagnosis::ok(CHECK, found),
    }
}

fn cache(options: &Options) -> Diagnosis {
    const CHECK: &str = "cache folder";
    let Some(folder) = options.cache.folder.clone().or_else(default_cache) else {
        return Diagnosis::fail(CHECK, "this user has none", OTHER_CACHE);
    };
    if let Err(cause) = check_owner(&folder) {
        return Diagnosis::fail(CHECK, chain(&cause), "");
    }
    let shown = folder.display();
    match Disk::of(&folder) {
        Err(cause) => Diagnosis::fail(CHECK, format!("{shown} cannot be written: {}", chain(&cause)), OTHER_CACHE),
        Ok(disk) => {
            let state = format!("{shown} on {}, {} free", disk.kind, size(disk.free));
            match disk.problem(options.cache.size, options.cache.reserve) {
                None => Diagnosis::ok(CHECK, state),
                Some((problem, advice)) => Diagnosis::warn(CHECK, format!("{state}: {problem}"), advice),
            }
        }
    }
}

/// The file system of a folder.
struct Disk {
    /// The type that mount(8) shows.
    kind: String,
    bytes: u64,
    free: u64,
    /// Free inodes; `None` where the file system has no fixed number of them.
    inodes: Option<u64>,
}

impl Disk {
    /// The disk of `folder`, or of the nearest folder above that is there. A file without a name is made on it.
    fn of(folder: &Path) -> io::Result<Disk> {
        let absolute = std::path::absolute(folder)?;
        let place = absolute.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).canonicalize()?;
        drop(tempfile::tempfile_in(&place)?);
        let found = rustix::fs::statvfs(&place)?;
        Ok(Disk {
            kind: mountpoint::holding(&place)?.map_or_else(|| "an unknown disk".to_owned(), |it| it.filesystem),
            bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free: free_space(&place)?,
            inodes: Some(found.f_favail).filter(|_| found.f_files > 0),
        })
    }

    /// The worst about it, and what to do.
    fn problem(&self, quota: Option<u64>, reserve: u64) -> Option<(String, &'static str)> {
        let is_remote = ["nfs", "cifs", "smb", "9p", "ceph", "lustre", "gpfs", "beegfs", "fuse."];
        if self.free <= reserve {
            let left = format!("cache-reserve= leaves {} free, so next to nothing is cached", size(reserve));
            Some((left, "free some space, or name another folder with -o cache=DIR"))
        } else if let Some(inodes) = self.inodes.filter(|inodes| *inodes < FEW_INODES) {
            Some((format!("only {} more files fit (inodes)", thousands(inodes)), OTHER_CACHE))
        } else if let Some(quota) = quota.filter(|quota| *quota > self.bytes) {
            Some((format!("cache-size= is {}, and the disk has {}", size(quota), size(self.bytes)), OTHER_CACHE))
        } else if is_remote.iter().any(|kind| self.kind.starts_with(kind)) {
            let advice = "name a folder on a disk of this machine with -o cache=DIR";
            Some(("the database of names may be slow or break on a disk of another machine".to_owned(), advice))
        } else if ["tmpfs", "ramfs"].contains(&&*self.kind) {
            Some(("it takes memory, and is lost when the machine restarts".to_owned(), OTHER_CACHE))
        } else {
            None
        }
    }
}

/// `wanted` is the option allow-other; `configuration` the text of fuse.conf, where it can be read.
fn other_users(is_root: bool, wanted: Option<bool>, configuration: Option<&str>) -> Diagnosis {
    const CHECK: &str = "other users";
    let is_allowed = |text: &str| text.lines().any(|line| line.trim() == "user_allow_other");
    match configuration.map(is_allowed) {
        _ if is_root => Diagnosis::ok(CHECK, "can read the mounts of root"),
        Some(true) => Diagnosis::ok(CHECK, "can read your mounts with -o allow-other"),
        _ if wanted == Some(true) => Diagnosis::fail(
            CHECK,
            "cannot read your mounts",
            "as root, add the line user_allow_other to /etc/fuse.conf",
        ),
        _ => Diagnosis::ok(CHECK, "cannot read your mounts: /etc/fuse.conf has no line user_allow_other"),
    }
}

/// `configuration` is the text of updatedb.conf(5); with the drop-in of the package its service always leaves mounts out.
fn updatedb(configuration: &str, has_drop_in: bool) -> Diagnosis {
    const CHECK: &str = "updatedb";
    let value = configuration.lines().find_map(|line| line.trim().strip_prefix("PRUNEFS")).unwrap_or_default();
    let mut kinds = value.split(|c: char| c.is_whitespace() || "=\"".contains(c));
    if has_drop_in || kinds.any(|kind| kind.eq_ignore_ascii_case(mountpoint::FILESYSTEM_TYPE)) {
        return Diagnosis::ok(CHECK, "leaves mounts out");
    }
    let advice = "add fuse.resyncfs to PRUNEFS in /etc/updatedb.conf; see: resyncfs help programs";
    Diagnosis::warn(CHECK, "reads the names of all mounts each day, for locate", advice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Severity;

    #[test]
    fn a_kernel_is_judged_by_its_version() {
        let line = |release| kernel(release).to_string();

        assert_eq!(line("6.18.44-x86_64"), "ok    kernel: Linux 6.18.44-x86_64");
        assert!(
            line("6.12.48+deb13-amd64")
                .ends_with("amd64; before 6.16 a change of more than 20,000 files is shown folder by folder")
        );
        assert!(line("5.10.0-33-amd64").contains("before 6.12") && line("5.10.0-33-amd64").starts_with("ok"));
        assert!(line("5.9.1").starts_with("FAIL") && line("4.19.0").starts_with("FAIL"));
    }

    #[test]
    fn limits_are_judged_by_what_they_cost() {
        let files = [None, Some(1 << 20), Some(1024), Some(256), Some(95)].map(|limit| open_files(limit).severity);
        assert_eq!(files, [Severity::Ok, Severity::Ok, Severity::Ok, Severity::Warn, Severity::Fail]);

        let limited = names(Some(2_000_000 << 10), 250_000 << 10);
        assert!(limited.severity == Severity::Warn && limited.found.contains(" 500,000 files"), "{limited}");
        assert_eq!(names(None, u64::MAX).severity, Severity::Ok);
        assert_eq!(names(Some(64 << 30), 8 << 30).severity, Severity::Ok);

        assert_eq!([" 0\n", "900\n", ""].map(request_timeout), [None, None, None]);
        assert!(request_timeout("20\n").is_some_and(|it| it.found.ends_with("20 s")));
    }

    #[test]
    fn a_disk_is_judged_by_kind_room_and_inodes() {
        let problem = |kind: &str, free, inodes, quota| {
            let disk = Disk { kind: kind.to_owned(), bytes: 100 << 30, free, inodes };
            disk.problem(quota, 1 << 30).map(|(problem, _)| problem).unwrap_or_default()
        };

        assert_eq!(problem("ext4", 20 << 30, Some(1 << 20), Some(50 << 30)), "");
        assert_eq!(problem("btrfs", 20 << 30, None, None), "");
        assert!(problem("ext4", 1 << 30, None, None).contains("cache-reserve="));
        assert!(problem("ext4", 20 << 30, Some(99), None).contains("only 99 more files"));
        assert!(problem("ext4", 20 << 30, None, Some(200 << 30)).starts_with("cache-size= is 214.7 GB"));
        assert!(problem("nfs4", 20 << 30, None, None).contains("another machine"));
        assert!(problem("tmpfs", 20 << 30, None, None).contains("memory"));
    }

    #[test]
    fn configuration_files_are_read_line_by_line() {
        let severity = |wanted, text| other_users(false, wanted, text).severity;
        assert_eq!(severity(Some(true), Some("#user_allow_other\n")), Severity::Fail);
        assert_eq!(severity(None, Some("#user_allow_other\n")), Severity::Ok);
        assert_eq!(severity(Some(true), Some("mount_max = 9\nuser_allow_other \n")), Severity::Ok);
        assert_eq!(other_users(true, Some(true), None).severity, Severity::Ok);

        assert_eq!(updatedb("PRUNEFS=\"NFS fuse.resyncfs tmpfs\"\n", false).severity, Severity::Ok);
        assert_eq!(updatedb("PRUNEFS=\"NFS\"\n", true).severity, Severity::Ok);
        let other = "# PRUNEFS=\"fuse.resyncfs\"\nPRUNEFS = \"NFS fuse.sshfs\"\n";
        assert_eq!(updatedb(other, false).severity, Severity::Warn);
    }
}
