//! A terminal for the program under test.

use super::mounted::PROGRAM;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A terminal, seen from the outside.
pub struct Pty {
    /// What is written here is typed.
    pub outside: File,
    inside: OwnedFd,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// Of so many rows.
    pub fn new(rows: u16) -> Pty {
        let (mut outside, mut inside) = (0, 0);
        let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: both are ints for openpty(3) to fill in; the other three may be null.
        assert_eq!(unsafe { libc::openpty(&mut outside, &mut inside, name, settings, size) }, 0);
        // SAFETY: openpty has just made both descriptors, and nothing else owns them.
        let (outside, inside) = unsafe { (File::from_raw_fd(outside), OwnedFd::from_raw_fd(inside)) };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut reading, collecting) = (outside.try_clone().unwrap(), seen.clone());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = reading.read(&mut piece) {
                collecting.lock().unwrap().extend_from_slice(&piece[..length]);
            }
        });
        let pty = Pty { outside, inside, seen };
        pty.resize(rows);
        pty
    }

    /// Changes the number of rows.
    pub fn resize(&self, rows: u16) {
        let size = libc::winsize { ws_row: rows, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: `size` is a winsize and lives through the call.
        assert_eq!(unsafe { libc::ioctl(self.outside.as_raw_fd(), libc::TIOCSWINSZ, &size) }, 0);
    }

    /// Runs the program as a shell does: the terminal is its own.
    pub fn run(&self, arguments: &[&str]) -> Child {
        self.spawn(Command::new(PROGRAM).args(arguments))
    }

    /// Runs a command so.
    pub fn spawn(&self, command: &mut Command) -> Child {
        let end = || Stdio::from(self.inside.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // SAFETY: setsid and ioctl are async-signal-safe and touch no memory of ours.
        unsafe {
            command.pre_exec(|| match libc::setsid() != -1 && libc::ioctl(0, libc::TIOCSCTTY, 0) != -1 {
                true => Ok(()),
                false => Err(std::io::Error::last_os_error()),
            });
        }
        command.spawn().unwrap()
    }

    /// Everything that was written to it.
    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    /// Its settings.
    pub fn settings(&self) -> (u32, u32, u32, u32) {
        // SAFETY: all zeros is a valid termios, a plain C struct of numbers.
        let mut settings: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: `settings` is a termios for tcgetattr(3) to fill in.
        assert_eq!(unsafe { libc::tcgetattr(self.inside.as_raw_fd(), &mut settings) }, 0);
        (settings.c_iflag, settings.c_oflag, settings.c_cflag, settings.c_lflag)
    }
}
