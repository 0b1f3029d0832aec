//! `resyncfs bugreport`: one archive of what a person who looks for a fault needs to know about a mount.

use super::args::Options;
use super::mounts::{self, PATIENCE, Running, is_own, known_at};
use super::render::{printable, size};
use super::{CliError, Exit, block_on, config, doctor, print};
use crate::mount::mountpoint::FILESYSTEM_TYPE;
use crate::mount::registry::Mount;
use crate::platform::userinfo::without_userinfo;
use clap_complete::engine::ArgValueCompleter;
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Bytes of the log's end that are reported.
const LOG: u64 = 1 << 20;

/// Parts of the name of a parameter whose value is a secret.
const SECRET: [&str; 8] = ["token", "key", "sig", "secret", "pass", "pwd", "credential", "auth"];

/// Write one archive about a mount for a report of a fault: options, status, log, this machine
///
/// It works also where the mount does not answer. Passwords and tokens are left out. It names files and hosts: look at it before you send it.
#[derive(Debug, clap::Args)]
pub struct BugreportArgs {
    /// The folder of the mount, or the NAME of /etc/resyncfs/NAME.toml
    #[arg(value_name = "DIR|NAME", add = ArgValueCompleter::new(mounts::complete))]
    directory: PathBuf,
    /// The archive to write (default: resyncfs-report-TIME.tar.gz in this folder)
    file: Option<PathBuf>,
}

/// A file of the archive.
struct ReportPart {
    name: &'static str,
    about: &'static str,
    text: String,
}

/// Runs the command.
pub fn run(args: BugreportArgs) -> Result<Exit, CliError> {
    let known = known_at(&args.directory)?;
    if !is_own(&known) {
        let why = "only root and the user who mounted it can query it";
        return Err(CliError::at(Exit::Denied, &known.directory, why));
    }
    let now = jiff::Timestamp::now();
    let file = args.file.unwrap_or_else(|| format!("resyncfs-report-{}.tar.gz", now.strftime("%Y%m%d-%H%M%S")).into());
    let shown = file.display();
    let failed = |cause: io::Error| {
        let what = format!("{shown} cannot be written: {cause}; name another file: resyncfs bugreport DIR FILE");
        CliError::new(Exit::Failure, what)
    };
    let parts = parts(&known);
    let archive = archive(&parts, now.as_second().unsigned_abs()).map_err(failed)?;
    // The reader of a log learns names that others may not know.
    let mut written = File::options().write(true).create_new(true).mode(0o600).open(&file).map_err(failed)?;
    written.write_all(&archive).map_err(|cause| {
        let _ = fs::remove_file(&file);
        failed(cause)
    })?;
    let list: String = parts.iter().map(|part| format!("  {:<13} {}\n", part.name, part.about)).collect();
    print(&printable(&format!(
        "{shown} ({}) has:\n{list}\
         It names files and hosts. Passwords and tokens are left out. Look at it before you send it: tar -xzf {shown}\n",
        size(archive.len() as u64)
    )))?;
    Ok(Exit::Success)
}

fn parts(known: &Mount) -> Vec<ReportPart> {
    let status = block_on(async { Running::with_status(known)?.status::<Value>(PATIENCE).await });
    let (status, answer) = match status {
        Ok(status) => (status.clone(), format!("{status:#}\n")),
        Err(failure) => (Value::Null, format!("{}\n", failure.message)),
    };
    let mut versions = format!("resyncfs {}\n", env!("CARGO_PKG_VERSION"));
    if let Some(served) = status["version"].as_str() {
        versions += &format!("the mount is served by resyncfs {served}\n");
    }
    let part = |name, about, text: String| ReportPart { name, about, text: without_secrets(&text) };
    vec![
        part("version.txt", "the versions of the program and of the mount", versions),
        part("options.txt", "the command line of the mount, and its file in /etc/resyncfs", options(known.process)),
        part("status.json", "what resyncfs status --json prints", answer),
        part("log.txt", "the end of the log, 1 MiB at most", log(known, &status)),
        part("mounts.txt", "the mounts of resyncfs on this machine", mounts()),
        part("system.txt", "kernel, distribution, limits of the process", system(known.process)),
        part("doctor.txt", "what resyncfs doctor prints", examined(&status)),
    ]
}

/// The command line of the process, and the file of each NAME in it. Secrets are in separate files, which are not read.
fn options(process: Option<u32>) -> String {
    let line = process.and_then(|process| fs::read(format!("/proc/{process}/cmdline")).ok()).unwrap_or_default();
    let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    let mut text = words.join(" ").trim_end().to_owned() + "\n";
    for word in words.iter().skip(1) {
        if let Ok(Some((file, content))) = config::text_of(word) {
            text += &format!("\n# {}\n{content}", file.display());
        }
    }
    text
}

/// The end of the log: of the file that the status names, or that is next to the control socket; else of the journal.
fn log(known: &Mount, status: &Value) -> String {
    let of_cache = || Some(known.socket.as_ref()?.with_file_name("log")).filter(|_| status.is_null());
    let file = status["log"].as_str().map(PathBuf::from).or_else(of_cache);
    match file {
        Some(file) => end_of(&file).unwrap_or_else(|cause| format!("{}: {cause}\n", file.display())),
        None => journal(known.process).unwrap_or_else(|cause| format!("the journal: {cause}\n")),
    }
}

/// The last lines of a file, [`LOG`] bytes at most.
fn end_of(file: &Path) -> io::Result<String> {
    // A log may be a pipe, which nothing can be read from.
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    let skipped = file.metadata()?.len().saturating_sub(LOG);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(LOG).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = text.split_once('\n').filter(|_| skipped > 0).map_or(&*text, |(_, whole)| whole);
    Ok(whole.to_owned())
}

fn journal(process: Option<u32>) -> io::Result<String> {
    let process = process.map_or_else(|| "SYSLOG_IDENTIFIER=resyncfs".to_owned(), |process| format!("_PID={process}"));
    let mut command = Command::new("journalctl");
    command.args(["--quiet", "--no-pager", "--output=short-iso", "--lines=5000", &process]).stdin(Stdio::null());
    let text = String::from_utf8_lossy(&command.output()?.stdout).into_owned();
    Ok(if text.is_empty() {
        "the log went to standard error, and the journal has none of its lines\n".to_owned()
    } else {
        text
    })
}

fn mounts() -> String {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    table.lines().filter(|line| line.contains(FILESYSTEM_TYPE)).map(|line| format!("{line}\n")).collect()
}

fn system(process: Option<u32>) -> String {
    let uname = rustix::system::uname();
    let kernel = [uname.sysname(), uname.release(), uname.version(), uname.machine()].map(|it| it.to_string_lossy());
    let process = process.map_or_else(|| "self".to_owned(), |process| process.to_string());
    let files = ["/etc/os-release".to_owned(), format!("/proc/{process}/limits")];
    let texts = files.map(|file| fs::read_to_string(&file).unwrap_or_else(|cause| format!("{file}: {cause}\n")));
    format!("{}\n\n{}", kernel.join(" "), texts.join("\n"))
}

/// The text of the doctor, with the mount's own cache folder.
fn examined(status: &Value) -> String {
    let examined = Options::parse(&[]).and_then(|mut options| {
        options.cache.folder = status["cache_folder"].as_str().map(PathBuf::from);
        doctor::examine(&options, None)
    });
    examined.map_or_else(|failure| format!("{}\n", failure.message), |findings| doctor::text(&findings))
}

/// `text` without user names and passwords before hosts, and without the values of parameters of addresses that are secrets.
fn without_secrets(text: &str) -> String {
    text.split_inclusive('\n').map(|line| without_parameters(&without_userinfo(line))).collect()
}

fn without_parameters(line: &str) -> String {
    let mut kept = String::new();
    for piece in line.split_inclusive(['?', '&', ';']) {
        let is_parameter = kept.ends_with(['?', '&', ';']);
        let end = piece.find(|c: char| c.is_whitespace() || "\"'<>&;,#".contains(c)).unwrap_or(piece.len());
        match piece[..end].split_once('=') {
            Some((name, _)) if is_parameter && SECRET.iter().any(|part| name.to_lowercase().contains(part)) => {
                kept += &format!("{name}=…{}", &piece[end..]);
            }
            _ => kept += piece,
        }
    }
    kept
}

/// The archive: a folder with a file for each part, of the time `now`.
fn archive(parts: &[ReportPart], now: u64) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, Path::new("resyncfs-report").join(part.name), part.text.as_bytes())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_in_addresses_are_left_out() {
        for (text, shown) in [
            ("got https://ann:pw@h/a?b=1\n", "got https://…@h/a?b=1\n"),
            ("\"uri\": \"https://h/a?id=5&access_token=abc\",", "\"uri\": \"https://h/a?id=5&access_token=…\","),
            ("https://h/a?X-Amz-Signature=0a1b&page=2: gone", "https://h/a?X-Amz-Signature=…&page=2: gone"),
            ("https://h/a?api_key=k#top, then", "https://h/a?api_key=…#top, then"),
            ("https://h/key=5?id=5 and password=none", "https://h/key=5?id=5 and password=none"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }

    #[test]
    fn the_end_of_a_long_log_begins_with_a_whole_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines: String = (0..200_000).map(|number| format!("line {number}\n")).collect();
        fs::write(file.path(), &lines).unwrap();

        let end = end_of(file.path()).unwrap();

        assert!(end.len() as u64 <= LOG && end.len() as u64 > LOG - 20, "{} bytes", end.len());
        assert!(end.starts_with("line ") && end.ends_with("line 199999\n"));
        fs::write(file.path(), "only\n").unwrap();
        assert_eq!(end_of(file.path()).unwrap(), "only\n");
    }

    #[test]
    fn an_archive_has_each_part() {
        let parts = ["a.txt", "b.txt"].map(|name| ReportPart { name, about: "", text: name.repeat(300) });

        let bytes = archive(&parts, 1_767_322_740).unwrap();

        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(&bytes[..]));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, mut text) = (entry.path().unwrap().into_owned(), String::new());
            entry.read_to_string(&mut text).unwrap();
            found.push((path.display().to_string(), text));
        }
        let expected = ["a.txt", "b.txt"].map(|name| (format!("resyncfs-report/{name}"), name.repeat(300)));
        assert_eq!(found, expected);
    }
}
