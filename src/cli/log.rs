//! The log: to the journal with its fields, to a terminal, or to a file.

use super::log_file::LogFile;
use super::render::{Clock, printable};
use crate::mount::systemd::stderr_is_journal;
use crate::platform::userinfo::without_userinfo;
use jiff::tz::TimeZone;
use std::fmt::{Debug, Write as _};
use std::io::{self, IsTerminal, Write as _};
use std::os::unix::net::UnixDatagram;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};

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

/// The destination of log lines.
pub enum LogTarget {
    /// Standard error; where that is the journal, the journal itself, with fields.
    StandardError,
    /// A file of this mount.
    File(LogFile),
}

/// Starts the log; after a fork only, since it may start threads.
pub fn start_logging(verbosity: u8, target: LogTarget) {
    start_logging_of(verbosity, target, "warn,fuser=error,resyncfs=info");
}

/// Starts the log with `quiet` as its filter where no more is wanted.
pub fn start_logging_of(verbosity: u8, target: LogTarget, quiet: &str) {
    let default = match verbosity {
        // fuser warns of an unmount by another process, which is how most mounts end, and of requests that a read-only tree refuses.
        0 => quiet,
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

/// Says why the command line, of the program called `name`, is refused; help and version go to standard output.
pub fn say_refusal(name: &str, refusal: &clap::Error) -> io::Result<()> {
    if !refusal.use_stderr() {
        return refusal.print();
    }
    let message = refusal.render().to_string();
    if refusal.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // The help is not a message about a failure.
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
    // Each line becomes a separate entry.
    message.lines().try_for_each(|line| writeln!(output, "{ERROR}{name}: {line}"))
}

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// `SYSLOG_IDENTIFIER`, also of `mount.resyncfs`.
const IDENTIFIER: &str = "resyncfs";

/// A field `uri` of a line is `RESYNCFS_URI`.
const FIELD_PREFIX: &str = "RESYNCFS_";

/// Bytes sent of one value; a datagram holds some hundred kilobytes in all.
const LONGEST: usize = 16 << 10;

/// The journal as a target of log lines, by its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>). Each value becomes a field,
/// and is part of the message too, which is all that `journalctl` and `systemctl status` show.
struct Journal(UnixDatagram);

/// The journal, where standard error leads to it.
fn journal() -> Option<Journal> {
    let socket = UnixDatagram::unbound().ok().filter(|_| stderr_is_journal())?;
    socket.connect(SOCKET).ok()?;
    Some(Journal(socket))
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        // A line that the journal refuses is lost: there is no other place to report it.
        let _ = self.0.send(&line.entry(*event.metadata().level(), event.metadata().target()));
    }
}

/// One log line.
#[derive(Default)]
struct Line {
    message: String,
    /// ` name=value` of each field.
    values: String,
    fields: Vec<u8>,
}

impl Line {
    fn entry(mut self, level: Level, target: &str) -> Vec<u8> {
        // syslog(3): err, warning, info, debug.
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        self.message.push_str(&self.values);
        let mut entry = self.fields;
        put(&mut entry, "PRIORITY", priority);
        put(&mut entry, "SYSLOG_IDENTIFIER", IDENTIFIER);
        put(&mut entry, "TARGET", target);
        put(&mut entry, "MESSAGE", &self.message);
        entry
    }

    fn take(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
            return;
        }
        // Names of fields are capitals, digits and `_`.
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = FIELD_PREFIX.chars().chain(field.name().chars().map(plain)).collect();
        put(&mut self.fields, &name, value);
        // Writing to a string cannot fail.
        let _ = write!(self.values, " {}={value}", field.name());
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field, &format!("{value:?}"));
    }
}

/// One field in the form that allows line breaks: name, line break, length as 64 bits, little-endian, value, line break.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let mut end = value.len().min(LONGEST);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(end as u64).to_le_bytes());
    entry.extend_from_slice(&value.as_bytes()[..end]);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A journal that keeps the entry instead of sending it.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let mut line = Line::default();
            event.record(&mut line);
            *self.0.lock().unwrap() = line.entry(*event.metadata().level(), "a target");
        }
    }

    fn field(name: &str, value: &str) -> Vec<u8> {
        let mut field = Vec::new();
        put(&mut field, name, value);
        field
    }

    #[test]
    fn each_value_is_a_field_and_stands_in_the_message() {
        let kept = Kept::default();
        let log = tracing_subscriber::registry().with(kept.clone());

        tracing::subscriber::with_default(log, || {
            tracing::warn!(uri = %"http://h/a", tries = 3, "cannot\nbe fetched");
        });

        let entry = kept.0.lock().unwrap().clone();
        let holds = |field: Vec<u8>| entry.windows(field.len()).any(|part| part == field);
        assert!(holds(field("MESSAGE", "cannot\nbe fetched uri=http://h/a tries=3")), "{}", entry.escape_ascii());
        assert!(holds(field("RESYNCFS_URI", "http://h/a")) && holds(field("RESYNCFS_TRIES", "3")));
        assert!(holds(field("PRIORITY", "4")) && holds(field("SYSLOG_IDENTIFIER", "resyncfs")));
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let cut = field("X", &"ä".repeat(LONGEST));
        let length = u64::from_le_bytes(cut[2..10].try_into().unwrap());

        assert_eq!(length as usize, LONGEST);
        assert!(std::str::from_utf8(&cut[10..]).is_ok());
    }
}
