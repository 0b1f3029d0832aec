//! Where log lines go: to the journal with their fields, to a terminal, to a file.

use super::journal::Journal;
use super::log_file::LogFile;
use super::render::printable;
use crate::document::without_userinfo;
use crate::mount::service::stderr_is_journal;
use std::error::Error;
use std::io::{self, IsTerminal, Write as _};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// `<3>` before a line to the journal: an error (sd-daemon(3)).
const ERROR: &str = "<3>";

/// Where log lines go.
pub enum LogTarget {
    /// Standard error; where that is the journal, the journal itself, with fields.
    StandardError,
    /// A file of this mount.
    File(LogFile),
}

/// Starts logging; after a fork only, since it may start threads.
pub fn start_logging(verbosity: u8, target: LogTarget) {
    let default = match verbosity {
        // fuser warns of an unmount by another process, which is how most mounts end, and of what the tree does not offer.
        0 => "warn,fuser=error,resyncfs=info",
        1 => "info,fuser=error,resyncfs=debug",
        _ => "debug,resyncfs=trace",
    };
    let filter = EnvFilter::try_from_env("RESYNCFS_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    // A second start in one process (the demo mounts as well) keeps the first.
    let _: Result<(), Box<dyn Error + Send + Sync>> = match target {
        LogTarget::StandardError => match journal() {
            Some(journal) => tracing_subscriber::registry().with(filter).with(journal).try_init().map_err(Into::into),
            None => {
                let log = tracing_subscriber::fmt().with_env_filter(filter);
                log.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).try_init()
            }
        },
        LogTarget::File(file) => {
            let log = tracing_subscriber::fmt().with_env_filter(filter);
            log.with_ansi(false).with_writer(std::sync::Mutex::new(file)).try_init()
        }
    };
}

/// The journal, where standard error leads there and it listens.
fn journal() -> Option<Journal> {
    stderr_is_journal().then(|| Journal::connect().ok()).flatten()
}

/// Says why the command line, of the program called `name`, is refused; help and version go to standard output.
pub fn say_refusal(name: &str, refusal: &clap::Error) -> io::Result<()> {
    if !refusal.use_stderr() {
        return refusal.print();
    }
    let message = refusal.render().to_string();
    // clap quotes the arguments, and begins with this word instead of the program's name.
    say_failure(name, message.strip_prefix("error: ").unwrap_or(&message).trim_end())
}

/// Says why the program, called `name`, ends. A message may quote what was typed or what a server sent.
pub fn say_failure(name: &str, message: &str) -> io::Result<()> {
    let message = printable(&without_userinfo(message));
    let mut output = io::stderr().lock();
    if !stderr_is_journal() {
        return writeln!(output, "{name}: {message}");
    }
    // Each line of it is an entry of its own.
    message.lines().try_for_each(|line| writeln!(output, "{ERROR}{name}: {line}"))
}
