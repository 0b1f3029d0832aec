//! What a small machine gives a process: 512 MB of memory in a control group, `ulimit -v 2000000`, one processor, and a slow disk.
//!
//! The disk is an ext4 on a loop device that the control group limits to what a cheap memory card does.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What the control group may have of memory, the page cache of its files included.
const MEMORY: u64 = 512 << 20;
/// `ulimit -v` counts kilobytes.
const ADDRESS_SPACE: u64 = 2_000_000 << 10;
/// Bytes of the disk.
const DISK: u64 = 1 << 30;
/// Bytes and requests a second of the disk.
const READS: (u64, u64) = (20 << 20, 400);
const WRITES: (u64, u64) = (8 << 20, 150);

static MACHINES: AtomicU32 = AtomicU32::new(0);

/// The machine. Declare it before the mounts that use it.
pub struct SmallMachine {
    scratch: tempfile::TempDir,
    groups: Vec<PathBuf>,
}

impl SmallMachine {
    /// Makes disk and control group; needs root.
    pub fn new() -> SmallMachine {
        let scratch = tempfile::Builder::new().prefix("resyncfs-small-").tempdir().unwrap();
        let (image, disk) = (scratch.path().join("image"), scratch.path().join("disk"));
        File::create(&image).unwrap().set_len(DISK).unwrap();
        fs::create_dir(&disk).unwrap();
        run(Command::new("mkfs.ext4").arg("-q").arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk));
        let mut machine = SmallMachine { scratch, groups: Vec::new() };
        let device = fs::metadata(&disk).unwrap().dev();
        machine.limit(&format!("{}:{}", libc::major(device), libc::minor(device)));
        machine
    }

    fn limit(&mut self, disk: &str) {
        let ((read, reads), (write, writes)) = (READS, WRITES);
        match controllers("cgroup2", "") {
            Some(all) if has(&all, "memory") && has(&all, "io") => {
                fs::write(all.join("cgroup.subtree_control"), "+memory +io").unwrap();
                let io = format!("{disk} rbps={read} riops={reads} wbps={write} wiops={writes}");
                self.group(&all, &[("memory.max", MEMORY.to_string()), ("io.max", io)]);
            }
            _ => {
                let memory = controllers("cgroup", "memory").expect("a control group for memory");
                self.group(&memory, &[("memory.limit_in_bytes", MEMORY.to_string())]);
                let io = controllers("cgroup", "blkio").expect("a control group for disks");
                let limits = [("read_bps", read), ("read_iops", reads), ("write_bps", write), ("write_iops", writes)];
                let limits =
                    limits.map(|(name, limit)| (format!("blkio.throttle.{name}_device"), format!("{disk} {limit}")));
                self.group(&io, &limits.each_ref().map(|(name, limit)| (name.as_str(), limit.clone())));
            }
        }
    }

    fn group(&mut self, parent: &Path, limits: &[(&str, String)]) {
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let group = parent.join(format!("resyncfs-small-{}-{number}", std::process::id()));
        fs::create_dir(&group).unwrap();
        self.groups.push(group.clone());
        for (name, limit) in limits {
            fs::write(group.join(name), limit).unwrap_or_else(|cause| panic!("{name} = {limit}: {cause}"));
        }
    }

    /// A folder on the slow disk.
    pub fn disk(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }

    /// Has the command run there.
    pub fn runs(&self, command: &mut Command) {
        let joined: Vec<File> = self
            .groups
            .iter()
            .map(|group| File::options().write(true).open(group.join("cgroup.procs")).unwrap())
            .collect();
        let space = libc::rlimit { rlim_cur: ADDRESS_SPACE, rlim_max: ADDRESS_SPACE };
        // SAFETY: between fork and exec only system calls are made, whose arguments the closure owns.
        unsafe {
            command.pre_exec(move || {
                let mut processor: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(0, &mut processor);
                // 0 is the process that writes it.
                let is_in = joined.iter().all(|group| libc::write(group.as_raw_fd(), b"0".as_ptr().cast(), 1) == 1);
                if !is_in
                    || libc::sched_setaffinity(0, size_of_val(&processor), &processor) != 0
                    || libc::setrlimit(libc::RLIMIT_AS, &space) != 0
                {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
    }
}

impl Drop for SmallMachine {
    fn drop(&mut self) {
        let disk = CString::new(self.disk().as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends with NUL and outlives the call. The loop device goes with its last user.
        unsafe { libc::umount2(disk.as_ptr(), libc::MNT_DETACH) };
        for group in &self.groups {
            let mut tries = 0;
            while fs::remove_dir(group).is_err() && tries < 400 {
                tries += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn has(group: &Path, controller: &str) -> bool {
    let all = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    all.split_ascii_whitespace().any(|it| it == controller)
}

/// Where control groups of this kind are mounted, with this option.
fn controllers(kind: &str, option: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found =
        lines.find(|fields| fields[2] == kind && (option.is_empty() || fields[3].split(',').any(|it| it == option)));
    found.map(|fields| PathBuf::from(fields[1]))
}
