//! `mount.resyncfs` and `mount.fuse.resyncfs`: this program under the name by which mount(8) calls it for a filesystem type,
//! with the arguments and exit codes that mount(8) lays down.

use super::args::{Caller, OptionWords};
use super::config::MountRequest;
use super::mount;
use super::option_files::open;
use super::{CliError, Exit};
use clap::{ArgAction, Parser};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The names by which mount(8) calls this program.
const NAMES: &[&str] = &["mount.resyncfs", "mount.fuse.resyncfs"];

/// Mount a ResourceSync Source, or any site with a sitemap; called by mount(8)
#[derive(Debug, Parser)]
#[command(name = "mount.resyncfs", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct MountHelperArgs {
    /// A site, a page, a list, a sitemap, a list on disk, or the NAME of /etc/resyncfs/NAME.toml
    #[arg(value_name = "SOURCE|NAME")]
    source: String,
    /// The folder to mount on
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options, several separated by commas; resyncfs mount --help lists them
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…", action = ArgAction::Append)]
    options: Vec<String>,
    /// Check everything that can be checked here, and mount nothing
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted and without effect: /etc/mtab is never written
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Ignore options that do not exist
    #[arg(short = 's')]
    sloppy: bool,
    /// Log more
    #[arg(short = 'v', action = ArgAction::Count)]
    verbose: u8,
    /// Mount in this mount namespace: a process number, or a file such as /proc/PID/ns/mnt
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// The type as it was given to mount(8)
    #[arg(short = 't', value_name = "TYPE")]
    filesystem: Option<String>,
}

const EXIT_CODES: &str = include_str!("mount_helper_exit_codes.txt").trim_ascii_end();

/// True if mount(8) called this program: its name tells.
pub fn is_called_as(program: Option<&OsStr>) -> bool {
    let name = program.map(Path::new).and_then(Path::file_name);
    name.is_some_and(|name| NAMES.iter().any(|known| name == *known))
}

/// Runs the program on this process's arguments: the exit code, and the message of a failure.
pub fn main() -> (u8, Option<String>) {
    match MountHelperArgs::try_parse() {
        Ok(args) => match run(args) {
            Ok(exit) => (exit_code(exit), None),
            Err(CliError { exit, message }) => (exit_code(exit), Some(message)),
        },
        Err(refusal) => {
            let _ = super::log::say_refusal("mount.resyncfs", &refusal);
            (if refusal.use_stderr() { exit_code(Exit::Usage) } else { 0 }, None)
        }
    }
}

fn run(args: MountHelperArgs) -> Result<Exit, CliError> {
    let mut words = OptionWords::default();
    for options in &args.options {
        words.push_mount_options(options, Caller::Mount8 { sloppy: args.sloppy })?;
    }
    if let Some(namespace) = &args.namespace {
        enter(namespace)?;
    }
    let wanted = MountRequest::new(&args.source, Some(args.directory), words)?;
    if args.fake {
        mount::check(&wanted)?;
        return Ok(Exit::Success);
    }
    mount::start(&wanted, false, args.verbose)
}

/// Enters another mount namespace. The process has one thread still.
fn enter(namespace: &OsStr) -> Result<(), CliError> {
    let is_process = namespace.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    let file = if is_process { Path::new("/proc").join(namespace).join("ns/mnt") } else { PathBuf::from(namespace) };
    let entered =
        open(&file).and_then(|opened| Ok(move_into_link_name_space(opened.as_fd(), Some(LinkNameSpaceType::Mount))?));
    entered.map_err(|cause| CliError::new(Exit::Usage, format!("-N {}: {cause}", namespace.to_string_lossy())))
}

/// mount(8), EXIT STATUS.
fn exit_code(exit: Exit) -> u8 {
    match exit {
        Exit::Success => 0,
        Exit::Usage | Exit::Denied => 1,
        Exit::Failure | Exit::Cache | Exit::Full => 2,
        Exit::Interrupted => 8,
        _ => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_mount_8_are_consistent() {
        use clap::CommandFactory;

        MountHelperArgs::command().debug_assert();
    }

    #[test]
    fn it_is_known_by_its_name_wherever_it_lies() {
        for (program, is_helper) in [
            ("/sbin/mount.resyncfs", true),
            ("/usr/sbin/mount.fuse.resyncfs", true),
            ("mount.resyncfs", true),
            ("/usr/bin/resyncfs", false),
            ("/mnt/mount.resyncfs/resyncfs", false),
        ] {
            assert_eq!(is_called_as(Some(OsStr::new(program))), is_helper, "{program}");
        }
        assert!(!is_called_as(None));
    }
}
