//! The program itself, mounted by the real kernel; unmounted and ended whatever a test does.

use super::small_machine::SmallMachine;
use super::{eventually, eventually_within};
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_resyncfs");

/// Runs a command of it.
pub fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A mount in a folder of its own, with a cache folder that outlives a remount.
pub struct Mounted {
    scratch: tempfile::TempDir,
    cache: PathBuf,
    source: String,
    options: String,
    environment: Vec<(String, String)>,
    limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    machine: Option<Arc<SmallMachine>>,
    process: Mutex<Option<Child>>,
}

impl Mounted {
    /// Mounts `source`; fails the test, with what the program said, where that does not come about.
    pub fn new(source: &str, options: &str) -> Mounted {
        let mounted = Mounted::prepared(source, options);
        mounted.start();
        mounted
    }

    /// Everything but the mount itself.
    pub fn prepared(source: &str, options: &str) -> Mounted {
        assert!(Path::new("/dev/fuse").exists(), "there is no /dev/fuse: this machine cannot mount");
        let scratch = tempfile::Builder::new().prefix("resyncfs-test-").tempdir().unwrap();
        fs::create_dir(scratch.path().join("mnt")).unwrap();
        let cache = scratch.path().join("cache");
        Mounted {
            scratch,
            cache,
            source: source.to_owned(),
            options: options.to_owned(),
            environment: Vec::new(),
            limits: Vec::new(),
            machine: None,
            process: Mutex::new(None),
        }
    }

    /// The same with a cache folder shared with others.
    pub fn with_cache(source: &str, options: &str, cache: &Path) -> Mounted {
        let mounted = Mounted::prepared_with_cache(source, options, cache);
        mounted.start();
        mounted
    }

    /// Everything but the mount itself, with a cache folder shared with others.
    pub fn prepared_with_cache(source: &str, options: &str, cache: &Path) -> Mounted {
        let mut mounted = Mounted::prepared(source, options);
        mounted.cache = cache.to_owned();
        mounted
    }

    /// The same with a variable of the environment.
    pub fn with_environment(mut self, name: &str, value: &str) -> Mounted {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with these limits of open files, soft and hard.
    pub fn with_open_files(mut self, soft: u64, hard: u64) -> Mounted {
        self.limits.push((libc::RLIMIT_NOFILE, libc::rlimit { rlim_cur: soft, rlim_max: hard }));
        self
    }

    /// The same with so many bytes of address space, as `ulimit -v` limits it.
    pub fn with_address_space(mut self, bytes: u64) -> Mounted {
        self.limits.push((libc::RLIMIT_AS, libc::rlimit { rlim_cur: bytes, rlim_max: bytes }));
        self
    }

    /// The same on a small machine, with its cache on that machine's disk.
    pub fn on(mut self, machine: &Arc<SmallMachine>) -> Mounted {
        self.cache = machine.disk().join("cache");
        self.machine = Some(Arc::clone(machine));
        self
    }

    /// Starts the process and waits until the mount is there.
    pub fn start(&self) {
        if let Err(said) = self.try_start() {
            panic!("not mounted; the program said: {said}");
        }
    }

    /// Starts the process; `Err` is what it said on standard error before it ended without a mount.
    pub fn try_start(&self) -> Result<(), String> {
        // A Source that does not answer is asked again for half a minute before the program gives up.
        self.try_start_within(Duration::from_secs(60))
    }

    /// [`Mounted::try_start`] of a tree that takes its time to be made.
    pub fn try_start_within(&self, patience: Duration) -> Result<(), String> {
        let said = fs::File::options().create(true).append(true).open(self.log()).unwrap();
        let before = said.metadata().unwrap().len();
        let mut child = self.command("--foreground").stderr(said).spawn().unwrap();
        let mut ended = false;
        eventually_within(patience, "the mount is there or the program has ended", || {
            ended = child.try_wait().unwrap().is_some();
            ended || self.is_mounted()
        });
        if ended {
            return Err(self.said().get(before as usize..).unwrap_or_default().to_owned());
        }
        *self.process.lock().unwrap() = Some(child);
        Ok(())
    }

    /// `resyncfs mount` with this mount's arguments, standard input and output closed.
    pub fn command(&self, flag: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        let mut options = format!("cache={}", self.cache.display());
        if !self.options.is_empty() {
            options = format!("{options},{}", self.options);
        }
        command.args(["mount", flag, "-o", &options, &self.source]).arg(self.path());
        command.env("RESYNCFS_LOG", "info").env("TZ", "UTC").envs(self.environment.iter().cloned());
        for (resource, limit) in self.limits.clone() {
            // SAFETY: the limit outlives the call.
            let set = move || match unsafe { libc::setrlimit(resource, &limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            };
            // SAFETY: between fork and exec nothing is done but a system call, whose argument it owns.
            unsafe { command.pre_exec(set) };
        }
        if let Some(machine) = &self.machine {
            machine.runs(&mut command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("mnt")
    }

    /// A path below the mount.
    pub fn join(&self, below: &str) -> PathBuf {
        self.path().join(below)
    }

    /// The cache folder.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Everything the program has said.
    pub fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// What `status --json` shows.
    pub fn status(&self) -> serde_json::Value {
        let output = run(&["status", "--json", self.path().to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The process that serves the mount.
    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap().as_ref().map(Child::id).expect("the program runs")
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: i32) {
        // SAFETY: kill(2) has no memory preconditions; the process is this test's own child, not yet waited for.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// Asks for a refresh, as an administrator does.
    pub fn refresh(&self) {
        self.signal(libc::SIGHUP);
    }

    /// Has the mount look at its Source now and waits until that is done; what the command said where it failed.
    pub fn try_refresh(&self) -> Result<(), String> {
        let output = Command::new(PROGRAM).arg("refresh").arg(self.path()).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    }

    /// kill -9, and the dead mount detached.
    pub fn kill(&self) {
        if let Some(mut child) = self.process.lock().unwrap().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        detach(&self.path());
    }

    /// Unmounts as a person does and waits for the process to end by itself.
    pub fn unmount(&self) {
        let output = Command::new(PROGRAM).arg("unmount").arg(self.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut child = self.process.lock().unwrap().take().expect("the program runs");
        eventually("the program ends after the unmount", || child.try_wait().unwrap().is_some());
    }

    /// Ends the program in good order, even with files open, and waits for its end.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
        let mut child = self.process.lock().unwrap().take().expect("the program runs");
        eventually("the program ends at its signal", || child.try_wait().unwrap().is_some());
    }

    /// Unmounts and mounts again, same cache.
    pub fn remount(&self) {
        self.unmount();
        self.start();
    }

    /// Whether the kernel shows a mount here.
    pub fn is_mounted(&self) -> bool {
        let mut mounts = String::new();
        fs::File::open("/proc/self/mountinfo").unwrap().read_to_string(&mut mounts).unwrap();
        let path = self.path();
        mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
    }

    fn log(&self) -> PathBuf {
        self.scratch.path().join("said")
    }
}

fn detach(path: &Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: `path` is NUL-terminated and outlives the call. A folder that is not a mount point answers EINVAL.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let ended = self.process.lock().ok().and_then(|mut held| held.as_mut()?.try_wait().ok()?);
            let now = ended.map_or("is served by nobody or still runs".to_owned(), |status| format!("ended: {status}"));
            eprintln!("the program {now}; it said:\n{}", self.said());
        }
        self.kill();
    }
}
