//! Files that options name: who may access them, and how they are read.
//!
//! Reading has a limit in bytes and in time, so that a pipe without a writer or an endless device stops no command.

use super::args::CredentialOptions;
use super::{CliError, Exit};
use crate::platform::error_chain::chain;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a file that an option names: bundles of certificates have some hundred thousand.
const LONGEST: u64 = 16 << 20;

/// Longest time for reading all of a pipe.
const PATIENCE: Duration = Duration::from_secs(10);

/// The users that may access a file besides its owner and root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All users may read and write.
    Public,
    /// All users may read. A configuration decides what root runs.
    OwnerWrites,
    /// All users may read, and the owner is this user or root: the file decides which secrets are sent where.
    OwnWrites,
    /// No user: the file holds credentials.
    OwnerReads,
}

impl Access {
    fn check(self, file: &Path, mode: u32, owner: u32) -> Result<(), String> {
        let shown = file.display();
        match self {
            Access::OwnWrites if owner != 0 && owner != geteuid().as_raw() => {
                Err("belongs to another user; is XDG_CONFIG_HOME or HOME that of another user?".to_owned())
            }
            Access::OwnerWrites | Access::OwnWrites if mode & 0o002 != 0 => {
                Err(format!("every user can change it; correct it with: chmod o-w {shown}"))
            }
            // Who may read a service's credentials is written in access control lists, which the mode does not show.
            Access::OwnerReads
                if mode & 0o077 != 0 && service_folder().is_none_or(|folder| file.parent() != Some(&folder)) =>
            {
                Err(format!("others can read these credentials; correct it with: chmod 600 {shown}"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a file, unless others may access it.
pub fn read(file: &Path, access: Access) -> Result<Vec<u8>, CliError> {
    let read = || {
        let opened = open(file).map_err(|cause| format!("cannot be read: {}", chain(&cause)))?;
        let found = opened.metadata().map_err(|cause| cause.to_string())?;
        access.check(file, found.permissions().mode(), found.uid())?;
        read_within(opened, LONGEST, PATIENCE)
    };
    read().map_err(|reason| CliError::at(Exit::Usage, file, reason))
}

/// Reads a file of text, unless others may access it.
pub fn read_text(file: &Path, access: Access) -> Result<String, CliError> {
    String::from_utf8(read(file, access)?).map_err(|_| CliError::at(Exit::Usage, file, "is not UTF-8 text"))
}

/// Opens a file for reading; a pipe is opened without a wait for its writer.
pub fn open(file: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(file)
}

fn read_within(mut opened: File, longest: u64, patience: Duration) -> Result<Vec<u8>, String> {
    let is_pipe = opened.metadata().map_err(|cause| cause.to_string())?.file_type().is_fifo();
    let deadline = Instant::now() + patience;
    let mut read = Vec::new();
    loop {
        match (&mut opened).take(longest + 1 - read.len() as u64).read_to_end(&mut read) {
            Ok(_) if read.len() as u64 > longest => return Err(format!("is larger than {} MiB", longest >> 20)),
            Ok(_) if read.is_empty() && is_pipe => return Err("is a pipe without a writer".to_owned()),
            Ok(_) => return Ok(read),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => return Err(cause.to_string()),
        }
        if !is_ready(&opened, deadline.saturating_duration_since(Instant::now())) {
            let seconds = patience.as_secs();
            return Err(format!("is a pipe or a device that did not end within {seconds} s; name a complete file"));
        }
    }
}

/// Waits until there are bytes to read, or the end.
fn is_ready(opened: &File, patience: Duration) -> bool {
    let patience = Timespec::try_from(patience).ok();
    poll(&mut [PollFd::new(opened, PollFlags::IN)], patience.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Uses the files that systemd gives to a service by LoadCredential= (systemd.exec(5)), named `netrc`, `bearer`, `header`,
/// `cert` and `shared-cache`, where no option names a file.
pub fn take_credentials_of_service(options: &mut CredentialOptions) {
    let Some(folder) = service_folder() else { return };
    for (name, option) in [
        ("netrc", &mut options.netrc),
        ("bearer", &mut options.bearer_file),
        ("header", &mut options.header_file),
        ("cert", &mut options.cert),
        ("shared-cache", &mut options.shared_cache_credentials),
    ] {
        let file = folder.join(name);
        if option.is_none() && file.exists() {
            *option = Some(file);
        }
    }
}

/// The folder of this service's credentials.
fn service_folder() -> Option<PathBuf> {
    std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from).filter(|folder| folder.is_absolute())
}
#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{AsRawFd, OwnedFd};

    fn pipe() -> (File, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        let fd: OwnedFd = reader.into();
        // As a shell hands one over: `<(command)` is /dev/fd/NUMBER.
        (open(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd()))).unwrap(), writer)
    }

    #[test]
    fn a_pipe_is_read_to_its_end() {
        let (reader, mut writer) = pipe();
        let writing = std::thread::spawn(move || {
            for part in ["to", "ken"] {
                writer.write_all(part.as_bytes()).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });

        assert_eq!(read_within(reader, LONGEST, PATIENCE).unwrap(), b"token");
        writing.join().unwrap();
    }

    #[test]
    fn an_endless_file_and_a_silent_pipe_are_refused() {
        let (silent, _writer) = pipe();
        let refused = read_within(silent, 1 << 20, Duration::from_millis(20)).unwrap_err();
        assert!(refused.contains("did not end"), "{refused}");

        let zeros = open(Path::new("/dev/zero")).unwrap();
        assert_eq!(read_within(zeros, 1 << 20, PATIENCE).unwrap_err(), "is larger than 1 MiB");

        let (left, writer) = pipe();
        drop(writer);
        assert_eq!(read_within(left, LONGEST, PATIENCE).unwrap_err(), "is a pipe without a writer");
        assert!(read_within(open(Path::new("/dev/null")).unwrap(), LONGEST, PATIENCE).unwrap().is_empty());
    }
}
