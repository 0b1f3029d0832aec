//! Files that options name, read within bounds: a pipe that nothing writes to, or a device without end, stops no command.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of a file that an option names: bundles of certificates have some hundred thousand.
const LONGEST: u64 = 16 << 20;

/// How long a pipe may take to tell all that it holds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens a file for reading; that of a pipe does not wait for a writer.
pub fn open(file: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)
}

/// Reads an opened file to its end; `Err` says what is wrong with it.
pub fn read(opened: File) -> Result<Vec<u8>, String> {
    read_within(opened, LONGEST, PATIENCE)
}

fn read_within(mut opened: File, longest: u64, patience: Duration) -> Result<Vec<u8>, String> {
    let is_pipe = opened.metadata().map_err(|cause| cause.to_string())?.file_type().is_fifo();
    let deadline = Instant::now() + patience;
    let mut read = Vec::new();
    loop {
        match (&mut opened).take(longest + 1 - read.len() as u64).read_to_end(&mut read) {
            Ok(_) if read.len() as u64 > longest => return Err(format!("is larger than {} MiB", longest >> 20)),
            Ok(_) if read.is_empty() && is_pipe => return Err("is a pipe that nothing is written to".to_owned()),
            Ok(_) => return Ok(read),
            Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => {}
            Err(cause) => return Err(cause.to_string()),
        }
        if !is_ready(&opened, deadline.saturating_duration_since(Instant::now())) {
            let seconds = patience.as_secs();
            return Err(format!(
                "is a pipe or a device whose end has not come within {seconds} s; name a file that is whole"
            ));
        }
    }
}

/// Waits until there is something to read, or the end.
fn is_ready(opened: &File, patience: Duration) -> bool {
    let mut polled = libc::pollfd { fd: opened.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `polled` is one pollfd of an open descriptor, and it outlives the call.
    unsafe { libc::poll(&mut polled, 1, milliseconds) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;

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

        assert_eq!(read(reader).unwrap(), b"token");
        writing.join().unwrap();
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let (silent, _writer) = pipe();
        let said = read_within(silent, 1 << 20, Duration::from_millis(20)).unwrap_err();
        assert!(said.contains("end has not come"), "{said}");

        let zeros = open(Path::new("/dev/zero")).unwrap();
        assert_eq!(read_within(zeros, 1 << 20, PATIENCE).unwrap_err(), "is larger than 1 MiB");

        let (left, writer) = pipe();
        drop(writer);
        assert_eq!(read(left).unwrap_err(), "is a pipe that nothing is written to");
        assert!(read(open(Path::new("/dev/null")).unwrap()).unwrap().is_empty());
    }
}
