//! The log of a mount in the background: a file of bounded size and the one before it, `FILE.1`.
//!
//! A line that says the same as one of a minute ago or less is count and not written; how often it came stands behind it
//! once that minute is over and the next line comes.

use super::render::printable;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a line is not written again.
const SAID_FOR: Duration = Duration::from_secs(60);

/// Lines that are held against the next ones.
const KEPT: usize = 64;

/// A file for log lines; each write is a line, its time before the first blank.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
    limit: u64,
    /// The oldest first.
    said: VecDeque<Said>,
}

/// A line that was written.
#[derive(Debug)]
struct Said {
    since: Instant,
    /// The newest of the same, without line end.
    line: String,
    /// How often it came again.
    again: u64,
}

impl Said {
    fn says(&self, line: &str) -> bool {
        without_time(&self.line) == without_time(line)
    }
}

fn without_time(line: &str) -> &str {
    line.split_once(' ').map_or(line, |(_, rest)| rest)
}

impl LogFile {
    /// Opens `path`, or makes it. Beyond `limit` bytes it becomes `PATH.1` in place of the one before.
    pub fn open(path: &Path, limit: u64) -> io::Result<LogFile> {
        let file = append(path)?;
        // Where a link leads, so that the file is renamed and not the link.
        let path = path.canonicalize()?;
        Ok(LogFile { path, file, limit, said: VecDeque::new() })
    }

    fn take(&mut self, line: &str, now: Instant) -> io::Result<()> {
        let is_over = |said: &Said| now.saturating_duration_since(said.since) >= SAID_FOR;
        while self.said.front().is_some_and(is_over)
            && let Some(over) = self.said.pop_front()
        {
            self.count(&over)?;
        }
        if let Some(said) = self.said.iter_mut().find(|said| said.says(line)) {
            said.again += 1;
            line.clone_into(&mut said.line);
            return Ok(());
        }
        if self.said.len() == KEPT
            && let Some(oldest) = self.said.pop_front()
        {
            self.count(&oldest)?;
        }
        self.said.push_back(Said { since: now, line: line.to_owned(), again: 0 });
        self.put(&format!("{line}\n"))
    }

    /// Writes how often a line came again.
    fn count(&mut self, said: &Said) -> io::Result<()> {
        match said.again {
            0 => Ok(()),
            times => self.put(&format!("{} (came {times} times more)\n", said.line)),
        }
    }

    fn put(&mut self, line: &str) -> io::Result<()> {
        let known = self.file.metadata()?;
        if known.is_file() && known.len() + line.len() as u64 > self.limit && known.len() > 0 {
            self.turn_over((known.dev(), known.ino()))?;
        }
        self.file.write_all(line.as_bytes())
    }

    /// Goes on in a new file; where that cannot be had this one is emptied.
    fn turn_over(&mut self, own: (u64, u64)) -> io::Result<()> {
        // Another mount with this log may have done it already.
        let is_ours = std::fs::metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == own);
        let mut before = self.path.clone().into_os_string();
        before.push(".1");
        let is_moved = !is_ours || std::fs::rename(&self.path, before).is_ok();
        match is_moved.then(|| append(&self.path)) {
            Some(Ok(file)) => self.file = file,
            _ => self.file.set_len(0)?,
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    // A pipe that nothing reads from is an error, not a wait.
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
    fn a_full_log_becomes_the_one_before() {
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
    fn lines_that_come_again_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::open(&path, 1 << 20).unwrap();
        let began = Instant::now();

        for second in 0..50 {
            log.take(&format!("{second} a failed"), began + Duration::from_secs(second)).unwrap();
            log.take(&format!("{second} b failed"), began + Duration::from_secs(second)).unwrap();
        }
        log.take("99 c", began + SAID_FOR).unwrap();
        log.take("100 a failed", began + SAID_FOR).unwrap();

        let expected = "0 a failed\n0 b failed\n49 a failed (came 49 times more)\n49 b failed (came 49 times more)\n99 c\n100 a failed\n";
        assert_eq!(read(&path), expected);
    }

    #[test]
    fn what_is_no_file_is_written_to_and_never_renamed() {
        let mut log = LogFile::open(Path::new("/dev/null"), 1).unwrap();

        log.write_all(b"T line\n").unwrap();
        log.write_all(b"T another\n").unwrap();

        assert!(std::fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }
}
