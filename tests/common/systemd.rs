//! A real systemd as the first process of new namespaces, with the program and its units installed.
//!
//! Nothing of this machine changes, and all of it is gone when the value is, or the test's thread, whichever is first.

use super::mounted::PROGRAM;
use super::{eventually_within, tree};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What is booted: the basic system alone.
const TARGET: &str = "resyncfs-test.target";
/// A command within the machine that takes longer is ended.
const PATIENCE: &str = "90";

/// The most that a step of a start takes, on an emulated processor.
const BOOT: Duration = Duration::from_secs(120);

static MACHINES: AtomicU32 = AtomicU32::new(0);

/// The machine.
pub struct Machine {
    process: Child,
    systemd: u32,
    cgroup: PathBuf,
}

impl Machine {
    /// Boots one and waits until it is up.
    pub fn boot() -> Machine {
        let groups = unified_cgroups();
        remove_cgroups_of_the_dead(&groups);
        let number = MACHINES.fetch_add(1, Ordering::Relaxed);
        let cgroup = groups.join(format!("resyncfs-test-{}-{number}", std::process::id()));
        fs::create_dir(&cgroup).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/boot_systemd.sh");
        let joining = fs::File::options().write(true).open(cgroup.join("cgroup.procs")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--pid", "--mount", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child", "bash"]);
        command.arg(script).args([PROGRAM, TARGET]).stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: between fork and exec only write(2), prctl(2) and setsid(2) are called, which need no memory.
        unsafe {
            command.pre_exec(move || {
                // 0 is the process that writes it.
                if libc::write(joining.as_raw_fd(), b"0".as_ptr().cast(), 1) != 1
                    || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0
                    || libc::setsid() == -1
                {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut machine = Machine { process: command.spawn().unwrap(), systemd: 0, cgroup };
        eventually_within(BOOT, "systemd is the first process", || machine.find_systemd());
        eventually_within(BOOT, "the machine is up", || {
            let state = machine.run(&["systemctl", "is-system-running"]);
            matches!(String::from_utf8_lossy(&state.stdout).trim(), "running" | "degraded")
        });
        machine.install();
        machine
    }

    fn find_systemd(&mut self) -> bool {
        let unshare = self.process.id();
        assert!(self.process.try_wait().unwrap().is_none(), "the machine did not start (see standard error)");
        let children = fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap_or_default();
        let Some(child) = children.split_ascii_whitespace().next().and_then(|child| child.parse().ok()) else {
            return false;
        };
        self.systemd = child;
        fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|name| name.trim() == "systemd")
    }

    fn install(&self) {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/systemd");
        for (folder, of) in [(units.join("user"), "user"), (units, "system")] {
            for entry in fs::read_dir(folder).unwrap() {
                let unit = entry.unwrap();
                let name = unit.file_name().into_string().unwrap();
                if name.ends_with(".service") {
                    self.write(&format!("/usr/lib/systemd/{of}/{name}"), &fs::read_to_string(unit.path()).unwrap());
                }
            }
        }
        self.ok(&["systemctl", "daemon-reload"]);
    }

    /// Makes an ordinary user and starts this user's own service manager, as a login does.
    pub fn login(&self, name: &'static str) -> Login<'_> {
        // Both do what logind does with a login; it needs a message bus.
        self.write(
            "/run/systemd/system/user-runtime-dir@.service",
            "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/usr/bin/install -d -m 700 -o %i -g %i /run/user/%i\n",
        );
        let runtime = "[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n";
        self.write("/run/systemd/system/user@.service.d/runtime.conf", runtime);
        self.ok(&["systemctl", "daemon-reload"]);
        self.ok(&["useradd", "--create-home", "--uid", &USER.to_string(), name]);
        let login = Login { machine: self, name };
        self.ok(&["systemctl", "start", &format!("user@{USER}.service")]);
        login
    }

    /// A path of the machine as this process reaches it.
    pub fn path(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.systemd)).join(path.trim_start_matches('/'))
    }

    /// Writes a file of the machine that all can read, and the folders above it.
    pub fn write(&self, path: &str, text: &str) {
        self.write_with_mode(path, text, 0o644);
    }

    /// The same that its owner alone can read.
    pub fn write_secret(&self, path: &str, text: &str) {
        self.write_with_mode(path, text, 0o600);
    }

    fn write_with_mode(&self, path: &str, text: &str, mode: u32) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A command within the machine.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE, "nsenter", "--all", "--target"]).arg(self.systemd.to_string());
        command.arg("--").args(words).stdin(Stdio::null());
        command
    }

    /// Runs a command within the machine.
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs one that must succeed; what it printed.
    pub fn ok(&self, words: &[&str]) -> String {
        printed(words, self.run(words))
    }

    /// Whether a command fails.
    pub fn fails(&self, words: &[&str]) -> bool {
        !self.run(words).status.success()
    }

    /// A property of a unit, as `systemctl show` tells it.
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.ok(&["systemctl", "show", "--property", name, "--value", unit]).trim().to_owned()
    }

    /// What the journal has of a unit, oldest first.
    pub fn journal(&self, unit: &str) -> Vec<Value> {
        let lines = self.ok(&["journalctl", "--no-pager", "--output=json", "--unit", unit]);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Whether something of ours is mounted at `path`.
    pub fn is_mounted(&self, path: &str) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mounts", self.systemd)).unwrap();
        mounts.lines().any(|line| {
            let mut fields = line.split(' ').skip(1);
            fields.next() == Some(path) && fields.next() == Some("fuse.resyncfs")
        })
    }

    /// Every file below `path` with its bytes. Not for an automount: those are triggered from within the machine only.
    pub fn tree(&self, path: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        tree(&self.path(path))
    }

    /// The processes of the machine that run the program, by their names here.
    pub fn programs(&self) -> Vec<u32> {
        let mut found = Vec::new();
        walk(&self.cgroup, &mut |folder| {
            let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            found.extend(listed.lines().filter_map(|process| process.parse::<u32>().ok()).filter(|process| {
                fs::read_link(format!("/proc/{process}/exe")).is_ok_and(|exe| exe.ends_with("usr/bin/resyncfs"))
            }));
        });
        found
    }
}

/// The number of the ordinary user.
const USER: u32 = 4711;

/// An ordinary user who is logged in to a machine, with a service manager of their own.
pub struct Login<'m> {
    machine: &'m Machine,
    name: &'static str,
}

impl Login<'_> {
    /// A command of this user, as in a session: with its home folder as the current one.
    pub fn command(&self, words: &[&str]) -> Command {
        let runtime = format!("XDG_RUNTIME_DIR=/run/user/{USER}");
        let home = format!("--chdir=/home/{}", self.name);
        let mut all = vec!["setpriv", "--reuid", self.name, "--regid", self.name, "--init-groups", "--reset-env"];
        all.extend(["env", &home, &runtime]);
        all.extend(words);
        self.machine.command(&all)
    }

    /// Runs a command of this user.
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs one that must succeed; what it printed.
    pub fn ok(&self, words: &[&str]) -> String {
        printed(words, self.run(words))
    }

    /// Writes a file below the user's home folder.
    pub fn write(&self, path: &str, text: &str) {
        let path = format!("/home/{}/{path}", self.name);
        self.machine.write(&path, text);
        self.machine.ok(&["chown", "--recursive", &format!("{0}:{0}", self.name), &format!("/home/{}", self.name)]);
    }

    /// A property of a unit of the user's manager.
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.ok(&["systemctl", "--user", "show", "--property", name, "--value", unit]).trim().to_owned()
    }
}

/// What a command printed that must have succeeded.
fn printed(words: &[&str], output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {}{errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() && self.systemd != 0 {
            let journal = self.run(&["journalctl", "--no-pager", "--lines=40", "--output=short-monotonic"]);
            eprintln!("the journal says:\n{}", String::from_utf8_lossy(&journal.stdout));
        }
        // Its end is that of the first process, hence of all, and of the namespaces with all mounts.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let mut tries = 0;
        while self.cgroup.exists() && tries < 2000 {
            remove_cgroup(&self.cgroup);
            tries += 1;
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        if self.cgroup.exists() && !std::thread::panicking() {
            panic!("{} is not empty: a process of the machine lives on", self.cgroup.display());
        }
    }
}

/// Where the unified hierarchy is mounted.
fn unified_cgroups() -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let folder = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|fields| fields[2] == "cgroup2");
    folder.map(|fields| PathBuf::from(fields[1])).expect("cgroup2 is mounted somewhere: systemd needs it")
}

/// Folders of tests that were killed.
fn remove_cgroups_of_the_dead(groups: &Path) {
    for entry in fs::read_dir(groups).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let owner = name.strip_prefix("resyncfs-test-").and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            remove_cgroup(&entry.path());
        }
    }
}

fn remove_cgroup(group: &Path) {
    // The deepest first; one with processes stays.
    walk(group, &mut |folder| drop(fs::remove_dir(folder)));
}

/// Calls `visit` for each folder below `folder` and then for itself.
fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
    visit(folder);
}
