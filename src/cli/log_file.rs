//! The log of a mount in the background: a file of bounded size, and the previous one, `FILE.1`.
//!
//! A line that repeats one of the last minute is counted and not written. The count is written after that minute, when the
//! next line arrives.

use super::render::printable;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// For so long a repeated line is not written again.
const REPEATED_FOR: Duration = Duration::from_secs(60);

/// Lines that the next ones are compared with.
const REMEMBERED: usize = 64;

/// A file for log lines; each write is a line, its time before the first blank.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    limit: u64,
    /// The oldest first.
    written: VecDeque<LogFileState>,
}

/// A line that was written.
#[derive(Debug)]
struct LogFileState {
    since: Instant,
    /// Its newest repetition, without line end.
    line: String,
    repetitions: u64,
}

impl LogFileState {
    fn is_repeated_by(&self, line: &str) -> bool {
        without_time(&self.line) == without_time(line)
    }
}

fn without_time(line: &str) -> &str {
    line.split_once(' ').map_or(line, |(_, rest)| rest)
}

impl LogFile {
    /// Opens or creates `path`. Beyond `limit` bytes it becomes `PATH.1`, in place of the previous one.
    pub fn open(path: &Path, limit: u64) -> io::Result<LogFile> {
        let file = append(path)?;
        // The target of a symbolic link, so that the file is renamed and not the link.
        let path = path.canonicalize()?;
        Ok(LogFile { path, file, limit, written: VecDeque::new() })
    }

    fn take(&mut self, line: &str, now: Instant) -> io::Result<()> {
        let is_over = |written: &LogFileState| now.saturating_duration_since(written.since) >= REPEATED_FOR;
        while self.written.len() == REMEMBERED || self.written.front().is_some_and(is_over) {
            let Some(oldest) = self.written.pop_front() else { break };
            self.write_count(&oldest)?;
        }
        if let Some(written) = self.written.iter_mut().find(|written| written.is_repeated_by(line)) {
            written.repetitions += 1;
            line.clone_into(&mut written.line);
            return Ok(());
        }
        self.written.push_back(LogFileState { since: now, line: line.to_owned(), repetitions: 0 });
        self.append(&format!("{line}\n"))
    }

    /// Writes how often a line was repeated.
    fn write_count(&mut self, written: &LogFileState) -> io::Result<()> {
        match written.repetitions {
            0 => Ok(()),
            1 => self.append(&format!("{} (repeated once)\n", written.line)),
            times => self.append(&format!("{} (repeated {times} times)\n", written.line)),
        }
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        let known = self.file.metadata()?;
        if known.is_file() && known.len() + line.len() as u64 > self.limit && known.len() > 0 {
            self.rotate((known.dev(), known.ino()))?;
        }
        self.file.write_all(line.as_bytes())
    }

    /// Continues in a new file. Where none can be made, this one is emptied.
    fn rotate(&mut self, own: (u64, u64)) -> io::Result<()> {
        // Another mount with the same log may have done it already.
        let is_ours = std::fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == own);
        let mut previous = self.path.clone().into_os_string();
        previous.push(".1");
        let is_moved = !is_ours || std::fs::rename(&self.path, previous).is_ok();
        match is_moved.then(|| append(&self.path)) {
            Some(Ok(file)) => self.file = file,
            _ => self.file.set_len(0)?,
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    // A pipe without a reader is an error, not a wait.
    File::options().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)
}

impl Write for LogFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = printable(&String::from_utf8_lossy(line));
        self.take(text.trim_end_matches('\n'), Instant::now())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileTypeExt;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_full_log_becomes_the_previous_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::open(&path, 1000).unwrap();

        for number in 0..1000 {
            log.write_all(format!("T line {number}\n").as_bytes()).unwrap();
        }

        let (now, before) = (read(&path), read(&folder.path().join("log.1")));
        assert!(now.len() <= 1000 && before.len() <= 1000, "{} and {} bytes", now.len(), before.len());
        assert!(now.ends_with("T line 999\n") && before.ends_with('\n'));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn two_mounts_with_one_log_keep_both_their_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut logs = [(); 2].map(|()| LogFile::open(&path, 100).unwrap());

        for (number, log) in [0, 1, 0, 1].into_iter().enumerate() {
            log_of(&mut logs, log, &format!("T {number} {}\n", "x".repeat(45)));
        }

        let all = read(&folder.path().join("log.1")) + &read(&path);
        assert!((0..4).all(|number| all.contains(&format!("T {number} "))), "{all}");
    }

    fn log_of(logs: &mut [LogFile; 2], which: usize, line: &str) {
        logs[which].write_all(line.as_bytes()).unwrap();
    }

    #[test]
    fn repeated_lines_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::open(&path, 1 << 20).unwrap();
        let began = Instant::now();

        for second in 0..50 {
            log.take(&format!("{second} a failed"), began + Duration::from_secs(second)).unwrap();
            log.take(&format!("{second} b failed"), began + Duration::from_secs(second)).unwrap();
        }
        log.take("99 c", began + REPEATED_FOR).unwrap();
        log.take("100 a failed", began + REPEATED_FOR).unwrap();

        let expected = "0 a failed\n0 b failed\n49 a failed (repeated 49 times)\n49 b failed (repeated 49 times)\n99 c\n100 a failed\n";
        assert_eq!(read(&path), expected);
    }

    #[test]
    fn a_device_is_written_to_and_never_renamed() {
        let mut log = LogFile::open(Path::new("/dev/null"), 1).unwrap();

        log.write_all(b"T line\n").unwrap();
        log.write_all(b"T another\n").unwrap();

        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
