//! A screen without glass, and a file manager on it that is used by keyboard and mouse as a person does.

use super::{eventually, eventually_within, tree};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Xvfb on a free display, and pcmanfm on it with a home of its own.
pub struct FileManager {
    screen: Child,
    process: Child,
    display: String,
    home: tempfile::TempDir,
    copies: u32,
}

impl FileManager {
    /// Opens a window of `folder` and waits until it is shown.
    pub fn open(folder: &Path) -> FileManager {
        let home = tempfile::Builder::new().prefix("resyncfs-desktop-").tempdir().unwrap();
        let (screen, display) = screen();
        let said = fs::File::create(home.path().join("said")).unwrap();
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "pcmanfm", "--new-win"])
            .arg(folder)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .env("DISPLAY", &display)
            .env("HOME", home.path())
            .env("XDG_RUNTIME_DIR", home.path())
            .stdin(Stdio::null())
            .stdout(said.try_clone().unwrap())
            .stderr(said)
            .spawn()
            .unwrap();
        let mut manager = FileManager { screen, process, display, home, copies: 0 };
        eventually_within(Duration::from_secs(60), "the window is there", || {
            if let Some(ended) = manager.process.try_wait().unwrap() {
                panic!("pcmanfm: {ended}: {}", fs::read_to_string(manager.home.path().join("said")).unwrap());
            }
            manager.shows(folder)
        });
        manager
    }

    /// Whether the window is one of this folder: its title is the folder's name.
    pub fn shows(&self, folder: &Path) -> bool {
        let name = folder.file_name().unwrap().to_str().unwrap();
        self.xdotool(&["search", "--onlyvisible", "--name", &format!("^{name}$")])
    }

    /// Goes to another folder.
    pub fn go(&self, folder: &Path) {
        eventually("the window takes an address", || {
            // Where the window has no focus the keys go nowhere, and are typed once more.
            self.xdotool(&["search", "--onlyvisible", "--class", "pcmanfm", "windowfocus", "--sync", "key", "ctrl+l"])
                && self.xdotool(&["type", "--delay", "2", folder.to_str().unwrap()])
                && self.xdotool(&["key", "Return"])
                && soon(|| self.shows(folder))
        });
    }

    /// Marks all of `folder`, copies it and pastes it into an empty folder, until all of `expected` has arrived there, and no more.
    pub fn copies(&mut self, folder: &Path, expected: &BTreeMap<PathBuf, Vec<u8>>) {
        eventually_within(Duration::from_secs(60), "the file manager has copied everything", || {
            self.copies += 1;
            let copied = self.home.path().join(format!("copy-{}", self.copies));
            fs::create_dir(&copied).unwrap();
            self.go(folder);
            self.xdotool(&["mousemove", "500", "400", "click", "1", "key", "ctrl+a", "key", "ctrl+c"]);
            self.go(&copied);
            self.xdotool(&["mousemove", "500", "400", "click", "1", "key", "ctrl+v"]);
            // The window may not have shown all yet when all was marked.
            soon(|| tree(&copied) == *expected)
        });
    }

    fn xdotool(&self, words: &[&str]) -> bool {
        let mut command = Command::new("timeout");
        command.args(["10", "xdotool"]).args(words).env("DISPLAY", &self.display);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }
}

impl Drop for FileManager {
    fn drop(&mut self) {
        for process in [&mut self.process, &mut self.screen] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Whether `condition` comes true within two seconds.
fn soon(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() {
        if began.elapsed() > Duration::from_secs(2) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// The process, and the name of the display.
fn screen() -> (Child, String) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: both descriptors were just made and belong to nobody else.
    let (reading, writing) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let inherited = writing.as_raw_fd();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "Xvfb", "-displayfd", &inherited.to_string(), "-nolisten", "tcp"]);
    // Without -noreset it takes nobody for a moment each time its only user leaves, as each call of xdotool does.
    command
        .args(["-noreset", "-screen", "0", "800x600x24"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // SAFETY: between fork and exec only fcntl(2) is called, which needs no memory.
    unsafe {
        command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let process = command.spawn().unwrap();
    drop(writing);
    let mut number = String::new();
    BufReader::new(fs::File::from(reading)).read_line(&mut number).unwrap();
    assert!(!number.trim().is_empty(), "Xvfb has found no display");
    (process, format!(":{}", number.trim()))
}
