//! The command line: a file for each subcommand, and a name for each exit code.

pub mod args;
mod audit;
mod bugreport;
mod cache;
mod cached;
mod complete;
mod config;
mod credentials;
mod demo;
mod doctor;
mod explore;
pub mod help;
mod init;
mod list;
mod log;
mod log_file;
mod mount;
mod mount_helper;
mod mounts;
mod names;
mod option_files;
mod progress;
mod refresh;
mod render;
mod scratch;
mod status;
mod unmount;
mod visit;

use crate::catalog::CatalogError;
use crate::mount::MountError;
use crate::platform::error_chain::chain;
use crate::platform::text::printable_json;
use crate::source::websub::WebsubError;
use crate::source::{EntryPoint, SourceError};
use crate::sync::FailureKind;
use clap::{CommandFactory, Parser, Subcommand};
use render::{Clock, printable_value};
use serde::Serialize;
use serde_json::json;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

/// Mount a ResourceSync Source, or any site with a sitemap, as a read-only folder.
#[derive(Debug, Parser)]
#[command(name = "resyncfs", version, max_term_width = 100, after_help = Exit::TABLE, disable_help_subcommand = true)]
struct CliArgs {
    /// Log more; -vv logs every operation
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    /// Show times in UTC; without it in the time zone of this machine
    #[arg(long, global = true)]
    utc: bool,
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    Mount(mount::MountArgs),
    #[command(visible_alias = "umount")]
    Unmount(unmount::UnmountArgs),
    Explore(explore::ExploreArgs),
    Init(init::InitArgs),
    Audit(audit::AuditArgs),
    Demo(demo::DemoArgs),
    Refresh(refresh::RefreshArgs),
    Status(status::StatusArgs),
    List(list::ListArgs),
    Prefetch(cached::PrefetchArgs),
    Evict(cached::EvictArgs),
    Path(names::PathArgs),
    Uri(names::UriArgs),
    Cache(cache::CacheArgs),
    Doctor(doctor::DoctorArgs),
    Bugreport(bugreport::BugreportArgs),
    Completions(help::CompletionsArgs),
    Help(help::HelpArgs),
}

/// The exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The command did what was asked.
    Success = 0,
    /// A failure not named below.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The Source does not answer.
    Unreachable = 3,
    /// The Source answers, but publishes nothing that can be mounted.
    NoSource = 4,
    /// The mount point cannot be used, or nothing is mounted there.
    MountPoint = 5,
    /// Another mount has the same Source and the same cache folder.
    Busy = 6,
    /// The cache folder cannot be used.
    Cache = 7,
    /// Only root and the user of the mount may do this.
    Denied = 8,
    /// An audit found differences, or a check of the cache found damage.
    OutOfSync = 9,
    /// The cache is full.
    Full = 10,
    /// An audit has no result: a part of the Source is missing now.
    Unjudged = 11,
    /// The doctor found a problem that prevents a mount.
    Unfit = 12,
    /// Interrupted.
    Interrupted = 130,
}

impl Exit {
    const TABLE: &str = include_str!("exit_codes.txt").trim_ascii_end();
}

/// The failure of a command: its message with all causes, and the exit code.
#[derive(Debug)]
pub struct CliError {
    exit: Exit,
    message: String,
}

impl CliError {
    /// A failure with this message.
    pub fn new(exit: Exit, message: impl Into<String>) -> CliError {
        CliError { exit, message: message.into() }
    }

    /// A wrong command line, option or file of options.
    fn usage(message: impl Into<String>) -> CliError {
        CliError::new(Exit::Usage, message)
    }

    /// A failure whose message begins with a path.
    fn at(exit: Exit, path: &Path, what: impl Display) -> CliError {
        CliError::new(exit, format!("{}: {what}", path.display()))
    }

    /// The failure with its mount at the beginning of the message.
    fn of_mount(self, directory: &Path) -> CliError {
        let is_named = self.message.starts_with(&format!("{}: ", directory.display()));
        if is_named { self } else { CliError::at(self.exit, directory, self.message) }
    }

    /// A failure with the whole chain of causes as its message.
    pub fn of(exit: Exit, cause: &dyn Error) -> CliError {
        CliError { exit, message: chain(cause) }
    }

    /// Adds that https was assumed, where `source` has no scheme and did not answer.
    fn assuming(mut self, source: &str) -> CliError {
        if let Some(http) = EntryPoint::over_http(source).filter(|_| self.exit == Exit::Unreachable) {
            self.message += &format!("; SOURCE has no scheme, so https was assumed: for http write {http}");
        }
        self
    }
}

impl From<io::Error> for CliError {
    fn from(cause: io::Error) -> CliError {
        CliError::of(Exit::Failure, &cause)
    }
}

impl From<MountError> for CliError {
    fn from(cause: MountError) -> CliError {
        if let MountError::Catalog(busy @ CatalogError::Busy { .. }) = &cause {
            let why = chain(busy);
            let message =
                format!("this Source is mounted already; use that mount, or a separate cache: -o cache=DIR: {why}");
            return CliError::new(Exit::Busy, message);
        }
        let exit = match &cause {
            MountError::Directory { .. } | MountError::Kernel { .. } => Exit::MountPoint,
            MountError::Cache { .. } | MountError::Catalog(_) => Exit::Cache,
            MountError::Content(_) | MountError::DocumentCache(_) => Exit::Cache,
            MountError::FirstBaseline(inner) => inner.kind().into(),
            MountError::Http(_) | MountError::Websub(WebsubError::NoCallback { .. }) => Exit::Usage,
            MountError::Websub(_) | MountError::Metrics { .. } => Exit::Failure,
            MountError::OpenFiles { .. } | MountError::Aborted { .. } | MountError::System { .. } => Exit::Failure,
            MountError::Interrupted => Exit::Interrupted,
        };
        CliError::of(exit, &cause)
    }
}

impl From<SourceError> for CliError {
    fn from(cause: SourceError) -> CliError {
        CliError::of(FailureKind::from(&cause).into(), &cause)
    }
}

impl Exit {
    /// The code of a refresh in which a document fails: what is mounted stays, so the Source is still one.
    fn of_refresh(kind: FailureKind) -> Exit {
        if kind == FailureKind::Unusable { Exit::Failure } else { kind.into() }
    }
}

impl From<FailureKind> for Exit {
    fn from(kind: FailureKind) -> Exit {
        match kind {
            FailureKind::Unreachable => Exit::Unreachable,
            FailureKind::Unusable => Exit::NoSource,
            FailureKind::Cache => Exit::Cache,
            FailureKind::Options => Exit::Usage,
            FailureKind::Other => Exit::Failure,
        }
    }
}

/// The command line of `resyncfs`, for man pages and completions.
pub fn command() -> clap::Command {
    CliArgs::command()
}

/// The command line of `mount.resyncfs`, for its man page.
pub fn mount_helper_command() -> clap::Command {
    mount_helper::MountHelperArgs::command()
}

/// Runs the program with the arguments of this process, under the name by which it was called.
pub fn main() -> ExitCode {
    if mount_helper::is_called_as(std::env::args_os().next().as_deref()) {
        let (exit, message) = mount_helper::main();
        if let Some(message) = message {
            // A closed standard error leaves the exit code.
            let _ = log::say_failure("mount.resyncfs", &message);
        }
        return ExitCode::from(exit);
    }
    complete::answer_shell();
    let args = match CliArgs::try_parse() {
        Ok(args) => args,
        Err(refusal) => {
            // Help and version go to standard output and are no failure; clap distinguishes them.
            let _ = log::say_refusal("resyncfs", &refusal);
            return ExitCode::from(if refusal.use_stderr() { Exit::Usage as u8 } else { Exit::Success as u8 });
        }
    };
    let verbosity = args.verbose;
    if args.utc {
        render::show_utc();
    }
    let result = match args.command {
        Subcommands::Mount(args) => mount::run(args, verbosity),
        Subcommands::Unmount(args) => unmount::run(args),
        Subcommands::Explore(args) => explore::run(args, verbosity),
        Subcommands::Init(args) => init::run(args, verbosity),
        Subcommands::Refresh(args) => refresh::run(args),
        Subcommands::Status(args) => status::run(args),
        Subcommands::List(args) => list::run(args),
        Subcommands::Prefetch(args) => cached::prefetch(args),
        Subcommands::Evict(args) => cached::evict(args),
        Subcommands::Path(args) => names::path(args),
        Subcommands::Uri(args) => names::uri(args),
        Subcommands::Cache(args) => cache::run(args),
        Subcommands::Doctor(args) => doctor::run(args),
        Subcommands::Bugreport(args) => bugreport::run(args),
        Subcommands::Audit(args) => audit::run(args, verbosity),
        Subcommands::Demo(args) => demo::run(args, verbosity),
        Subcommands::Completions(args) => help::completions(args),
        Subcommands::Help(args) => help::run(args),
    };
    let exit = result.unwrap_or_else(|failure| {
        // A closed standard error leaves the exit code.
        let _ = log::say_failure("resyncfs", &failure.message);
        failure.exit
    });
    ExitCode::from(exit as u8)
}

/// Writes to standard output; a reader that stops early (`| head`) is not a failure.
fn print(text: &str) -> Result<(), CliError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// Writes a value of JSON as a line to standard output.
fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    print(&format!("{}\n", printable_json(&json!(value))))
}

/// Prints a value, for a program as JSON or for a person as text.
fn print_value(json: bool, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), CliError> {
    if json { print_json(value) } else { print(&text()) }
}

/// Prints on standard error why there is no result for one thing.
fn complain(what: &str, why: &str) {
    let why = Clock::now().localized(why);
    // A closed standard error is not a failure.
    let _ = writeln!(io::stderr(), "resyncfs: {}: {}", printable_value(what), printable_value(&why));
}

/// Runs a command that waits for answers.
fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn hint_needs_a_missing_scheme_and_a_missing_answer() {
        let message = |exit, source: &str| CliError::new(exit, "it failed").assuming(source).message;

        assert!(message(Exit::Unreachable, "h:81").ends_with("https was assumed: for http write http://h:81/"));
        assert_eq!(message(Exit::Unreachable, "https://h:81"), "it failed");
        assert_eq!(message(Exit::NoSource, "h:81"), "it failed");
    }
}
