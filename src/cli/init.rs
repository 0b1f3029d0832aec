//! `resyncfs init`: explores a Source, and makes it a mount that comes back after a restart, by a file in the configuration folder and
//! a unit of systemd.

use super::args::{self, OptionWords};
use super::config::{self, MountRequest};
use super::progress::{Activity, Progress};
use super::render::{Clock, Screen, printable, printable_value};
use super::{CliError, Exit, explore, mount, print};
use crate::platform::userinfo::without_userinfo;
use crate::source::EntryPoint;
use clap_complete::engine::ArgValueCompleter;
use rustix::process::geteuid;
use std::fs::File;
use std::io::{self, IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The indexers of desktops, by the names of their processes: baloo of KDE, tracker and its successor of GNOME.
const INDEXERS: [&str; 3] = ["baloo_file_extr", "tracker-extract", "localsearch-ext"];

/// Explore a Source, and mount it now and after each restart
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It asks at most three questions, writes /etc/resyncfs/NAME.toml (without root: ~/.config/resyncfs/NAME.toml), \
makes DIR, and enables the systemd unit resyncfs@NAME. Where that unit is not installed, it writes one for this program. At the end \
it prints how to undo all this."
)]
pub struct InitArgs {
    /// Options of mount, which become keys of the file
    #[arg(short = 'o', value_name = "OPTION[=VALUE],…", add = ArgValueCompleter::new(args::mount_options))]
    options: Vec<String>,
    /// The name of the mount (default: the last part of DIR)
    #[arg(long)]
    name: Option<String>,
    /// Ask nothing; each question has its default as the answer
    #[arg(short, long)]
    yes: bool,
    /// A site, a page, a DOI, a Source Description, a Capability List, a list, a sitemap, or a list on disk
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The folder to mount on; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command.
pub fn run(args: InitArgs, verbosity: u8) -> Result<Exit, CliError> {
    let has_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !has_terminal {
        let why = "init asks questions, and there is no terminal; to take the default of each, add --yes";
        return Err(CliError::usage(why));
    }
    if config::text_of(&args.source)?.is_some() {
        let why = format!("{0}: is configured already; mount it with: resyncfs mount {0}", args.source);
        return Err(CliError::usage(why));
    }
    let mut words = OptionWords::of_person(&args.options)?;
    let wanted = MountRequest::new(&args.source, Some(args.directory), words.clone())?;
    let directory: PathBuf = std::path::absolute(&wanted.directory)?.components().collect();
    let source = entry(&args.source)?.to_string();
    let name = match args.name {
        Some(name) => name,
        None => directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    let file = config::new_file(&name)?;

    let wanted_cache = wanted.options.cache.folder.as_ref().map(|folder| folder.display().to_string());
    let report = explore::survey(&args.source, wanted.options, verbosity)?;
    report.usable()?;
    eprint(&format!("{}\n", report.summary()));
    let ask = |question: &str, default: &str| if args.yes { Ok(default.to_owned()) } else { answer(question, default) };
    if let Some(pages) = report.pages_with_items() {
        if ask(&format!("{pages}. Show these files too?"), "yes")?.starts_with(['y', 'Y']) {
            words.push("items", Some("follow".to_owned()), "items".to_owned());
        }
    }
    if !words.has("cache-size") {
        let size = ask("How much disk may the cache use, such as 50G?", "10G or a tenth of the free space")?;
        if !size.contains(' ') {
            words.push("cache-size", Some(size), "the size of the cache".to_owned());
        }
    }
    // A desktop that indexes the folder would download all of it.
    if !words.has("deny") {
        INDEXERS.iter().for_each(|indexer| words.push("deny", Some((*indexer).to_owned()), "deny".to_owned()));
    }
    words.parse()?;
    let when = if geteuid().is_root() { "at each boot" } else { "at each login" };
    let shown = printable_value(&directory.to_string_lossy());
    if !ask(&format!("Mount it at {shown}, now and {when}, by the name {name}?"), "yes")?.starts_with(['y', 'Y']) {
        eprint("Nothing was changed.\n");
        return Ok(Exit::Success);
    }

    let made = !directory.exists();
    std::fs::create_dir_all(&directory).map_err(|cause| CliError::at(Exit::Failure, &directory, cause))?;
    let written = MountRequest::new(&source, Some(directory.clone()), words.clone())
        .and_then(|wanted| mount::check(&wanted))
        .and_then(|()| config::write(&file, &source, &directory, &words));
    if let Err(refused) = written {
        // A folder that is not empty stays.
        let _ = made.then(|| std::fs::remove_dir(&directory));
        return Err(refused);
    }
    let cleared = std::iter::once(format!("resyncfs cache clear {}", quoted(&source)));
    let cleared = cleared.chain(wanted_cache.map(|folder| format!("-o {}", quoted(&format!("cache={folder}")))));
    let cleared = cleared.collect::<Vec<_>>().join(" ");
    let mut done = Done { name, file, directory: made.then_some(directory), unit_file: None, cleared };
    let unit = done.enable();
    let started = match &unit {
        Ok(()) => done.start_unit(),
        Err(_) => done.mount(),
    };
    print(&done.text(when, unit.err(), started.is_ok()))?;
    started.map(|()| Exit::Success)
}

/// The address or the absolute path of a Source.
fn entry(source: &str) -> Result<EntryPoint, CliError> {
    let entry = EntryPoint::parse(source).map_err(|cause| CliError::of(Exit::Usage, &cause))?;
    Ok(match entry {
        EntryPoint::File(path) => EntryPoint::File(std::path::absolute(path)?),
        uri => uri,
    })
}

/// Prints to the person who answers; a terminal that is gone ends the next question.
fn eprint(text: &str) {
    let _ = io::stderr().write_all(printable(text).as_bytes());
}

/// The line that a person types, or `default` for an empty one.
fn answer(question: &str, default: &str) -> Result<String, CliError> {
    eprint(&format!("{question} [{default}] "));
    let mut line = String::new();
    match io::stdin().read_line(&mut line)? {
        0 => Err(CliError::new(Exit::Interrupted, "no answer; nothing was changed")),
        _ if line.trim().is_empty() => Ok(default.to_owned()),
        _ => Ok(line.trim().to_owned()),
    }
}

/// The changes that were made.
struct Done {
    name: String,
    file: PathBuf,
    /// The folder, where it was made.
    directory: Option<PathBuf>,
    /// The unit of all mounts, where it was made.
    unit_file: Option<PathBuf>,
    /// The command that deletes the cached files.
    cleared: String,
}

impl Done {
    fn unit(&self) -> String {
        format!("resyncfs@{}.service", self.name)
    }

    /// Enables the unit, which is made where none is installed; an error is the reason why systemd cannot.
    fn enable(&mut self) -> Result<(), String> {
        if !Path::new("/run/systemd/system").exists() {
            return Err("systemd does not run here".to_owned());
        }
        systemctl(&["daemon-reload"])?;
        let unit = self.unit();
        if let Err(missing) = systemctl(&["cat", &unit]) {
            self.unit_file = Some(write_unit().map_err(|cause| format!("{missing}; and none can be made: {cause}"))?);
            systemctl(&["daemon-reload"])?;
        }
        systemctl(&["enable", &unit])
    }

    fn start_unit(&self) -> Result<(), CliError> {
        let progress = Progress::start(false);
        progress.report(Activity::of("mounting"));
        let started = systemctl(&["restart", &self.unit()]);
        progress.finish();
        let journal = if geteuid().is_root() { "journalctl" } else { "journalctl --user" };
        let failed = |why| format!("{why}; the reason: {journal} -n 20 -u {}", self.unit());
        started.map_err(|why| CliError::new(Exit::Failure, failed(why)))
    }

    /// Mounts in a process of its own: this one has had threads, and a mount forks.
    fn mount(&self) -> Result<(), CliError> {
        let status = Command::new(std::env::current_exe()?).args(["mount", &self.name]).status()?;
        match status.success() {
            true => Ok(()),
            false => Err(CliError::new(Exit::Failure, format!("{}: cannot be mounted yet", self.name))),
        }
    }

    /// Lines about the changes, how to use them, and how to undo them.
    fn text(&self, when: &str, no_unit: Option<String>, is_mounted: bool) -> String {
        let path = |path: &Path| quoted(&path.to_string_lossy());
        let (name, file) = (quoted(&self.name), path(&self.file));
        let (folder, unit_file) = (self.directory.as_deref().map(path), self.unit_file.as_deref().map(path));
        let systemctl = if geteuid().is_root() { "systemctl" } else { "systemctl --user" };
        let (unit, clock) = (format!("resyncfs@{name}"), Clock::now());
        let mut screen = Screen::new(&clock);
        screen.text.push('\n');
        screen
            .list("Made", [Some(&file), folder.as_ref(), unit_file.as_ref()].into_iter().flatten().collect::<Vec<_>>());
        let (change, unmount) = match &no_unit {
            None => {
                screen.line("Mounted", format!("{}{when}, by {unit}", if is_mounted { "now and " } else { "" }));
                if !geteuid().is_root() {
                    screen.more("(at each boot, without a login: loginctl enable-linger)");
                }
                (format!("{systemctl} restart {unit}"), format!("{systemctl} disable --now {unit}"))
            }
            Some(why) => {
                screen.line("Mounted", format!("{}no unit was enabled: {why}", if is_mounted { "now; " } else { "" }));
                screen.more(format!("after a restart: resyncfs mount {name}"));
                let unmount = format!("resyncfs unmount {name}");
                (format!("{unmount} && resyncfs mount {name}"), unmount)
            }
        };
        screen.line("Watch it", format!("resyncfs status {name}"));
        screen.line("Change it", format!("edit {file}, then: {change}"));
        let remove = folder.map(|folder| format!(" && rmdir {folder}")).unwrap_or_default();
        screen.line("Undo it", format!("{unmount} && rm {file}{remove}"));
        screen.more(format!("to delete the cached files too: {}", self.cleared));
        screen.list("", unit_file.map(|unit_file| format!("if no other mount uses the unit: rm {unit_file}")));
        screen.text
    }
}

/// Writes the unit of all mounts, of root or of this user, for this program where it is.
fn write_unit() -> Result<PathBuf, String> {
    let (folder, text) = match geteuid().is_root() {
        true => (Some("/etc".into()), include_str!("../../scripts/systemd/resyncfs@.service")),
        false => (config::of_user(), include_str!("../../scripts/systemd/user/resyncfs@.service")),
    };
    let folder = folder.ok_or("this user has no home folder")?.join("systemd");
    let file = folder.join(if geteuid().is_root() { "system" } else { "user" }).join("resyncfs@.service");
    let program = std::env::current_exe().map_err(|cause| cause.to_string())?.to_string_lossy().into_owned();
    if quoted(&program) != program {
        return Err(format!("a unit cannot name {program}"));
    }
    let text = text.replace("/usr/bin/resyncfs", &program);
    let write = || {
        file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        File::create_new(&file)?.write_all(text.as_bytes())
    };
    write().map_err(|cause| format!("{}: {cause}", file.display()))?;
    Ok(file)
}

/// Runs systemctl, for the system or for this user; an error is what it printed.
fn systemctl(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("systemctl");
    command.args((!geteuid().is_root()).then_some("--user")).args(words);
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(without_userinfo(String::from_utf8_lossy(&output.stderr).trim()).into_owned()),
        Err(cause) => Err(format!("systemctl cannot be run: {cause}")),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    match word.chars().all(|c| c.is_alphanumeric() || "/._-@+:=".contains(c)) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_can_be_undone_by_its_last_line() {
        let done = Done {
            name: "repo".into(),
            file: "/etc/resyncfs/repo.toml".into(),
            directory: Some("/mnt/it's repo".into()),
            unit_file: None,
            cleared: "resyncfs cache clear https://repo.example.org/".into(),
        };

        let text = done.text("at each boot", Some("systemd does not run here".into()), true);

        assert!(text.contains("now; no unit was enabled: systemd does not run here"), "{text}");
        let undo = r"resyncfs unmount repo && rm /etc/resyncfs/repo.toml && rmdir '/mnt/it'\''s repo'";
        assert!(text.contains(&format!("Undo it      {undo}\n")), "{text}");
        assert!(text.ends_with("too: resyncfs cache clear https://repo.example.org/\n"), "{text}");
    }
}
