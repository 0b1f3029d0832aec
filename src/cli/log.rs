//! The log: to the journal with its fields, to a terminal, or to a file.

use super::journal::Journal;
use super::log_file::LogFile;
use super::render::{Clock, printable};
use crate::document::without_userinfo;
use crate::mount::systemd::stderr_is_journal;
use jiff::tz::TimeZone;
use std::io::{self, IsTerminal, Write as _};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// `<3>` before a line to the journal: an error (sd-daemon(3)).
const ERROR: &str = "<3>";

/// The time of a log line: local, to the second, with its offset and without a blank, as in `2026-01-02T04:59:00+01:00`.
struct LocalTime(TimeZone);

impl FormatTime for LocalTime {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        let now = jiff::Timestamp::now().to_zoned_datetime(self.0.clone());
        write!(line, "{}", now.strftime("%Y-%m-%dT%H:%M:%S%:z"))
    }
}

/// Where log lines go.
pub enum LogTarget {
    /// Standard error; where that is the journal, the journal itself, with fields.
    StandardError,
    /// A file of this mount.
    File(LogFile),
}

/// Starts the log; after a fork only, since it may start threads.
pub fn start_logging(verbosity: u8, target: LogTarget) {
    let default = match verbosity {
        // fuser warns of an unmount by another process, which is how most mounts end, and of requests that a read-only tree refuses.
        0 => "warn,fuser=error,resyncfs=info",
        1 => "info,fuser=error,resyncfs=debug",
        _ => "debug,resyncfs=trace",
    };
    let filter = EnvFilter::try_from_env("RESYNCFS_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let lines = || tracing_subscriber::fmt::layer().with_timer(LocalTime(TimeZone::system()));
    let log = tracing_subscriber::registry().with(filter);
    let ansi = io::stderr().is_terminal();
    // A second start in one process (the demo mounts as well) keeps the first.
    let _ = match target {
        LogTarget::StandardError => match journal() {
            Some(journal) => log.with(journal).try_init(),
            None => log.with(lines().with_ansi(ansi).with_writer(io::stderr)).try_init(),
        },
        LogTarget::File(file) => log.with(lines().with_ansi(false).with_writer(std::sync::Mutex::new(file))).try_init(),
    };
}

/// The journal, where standard error leads to it.
fn journal() -> Option<Journal> {
    stderr_is_journal().then(|| Journal::connect().ok()).flatten()
}

/// Says why the command line, of the program called `name`, is refused; help and version go to standard output.
pub fn say_refusal(name: &str, refusal: &clap::Error) -> io::Result<()> {
    if !refusal.use_stderr() {
        return refusal.print();
    }
    let message = refusal.render().to_string();
    if refusal.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // The help is no message of a failure.
        return write!(io::stderr(), "{message}");
    }
    // clap quotes the arguments, and begins with this word instead of the program's name.
    say_failure(name, message.strip_prefix("error: ").unwrap_or(&message).trim_end())
}

/// Says why the program, called `name`, failed. A message may quote arguments, or text from a server.
pub fn say_failure(name: &str, message: &str) -> io::Result<()> {
    let message = printable(&without_userinfo(&Clock::now().localized(message)));
    let mut output = io::stderr().lock();
    if !stderr_is_journal() {
        return writeln!(output, "{name}: {message}");
    }
    // Each line of it is an entry of its own.
    message.lines().try_for_each(|line| writeln!(output, "{ERROR}{name}: {line}"))
}
