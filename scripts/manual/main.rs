//! Writes the manual pages: `cargo run -p resyncfs-manual -- FOLDER`.
//!
//! Commands and options come from the command line itself, the prose from the topics of `resyncfs help`.

mod markdown;

use clap::Command;
use clap_mangen::roff::{Roff, bold, roman};
use markdown::roff;
use resyncfs::cli::help::TOPICS;
use resyncfs::cli::{self, args};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Topics that each page explains, by their names.
const COMMAND: &[&str] = &["overview", "exploring", "programs", "caching"];
const CONFIGURATION: &[&str] = &["configuration"];
const MOUNTING: &[&str] = &["mounting", "machines"];
const SEMANTICS: &[&str] = &["promises", "keeping-in-step", "reading", "items", "names", "xattrs", "limits", "stable"];
const MESSAGES: &[&str] = &["errors"];
const METRICS: &[&str] = &["metrics"];

/// The pages that this program writes, those of single commands left out.
const PAGES: [&str; 6] = [
    "resyncfs(1)",
    "resyncfs.conf(5)",
    "resyncfs-semantics(7)",
    "resyncfs-messages(7)",
    "resyncfs-metrics(7)",
    "mount.resyncfs(8)",
];

/// The configuration file that is installed as an example.
const EXAMPLE: &str = include_str!("../package.d/example.toml");

/// How clap_mangen begins the notes that follow a command's help.
const EXTRA: &str = ".SH EXTRA";

fn main() -> Result<(), Box<dyn Error>> {
    let folder: PathBuf = std::env::args_os().nth(1).ok_or("usage: resyncfs-manual FOLDER")?.into();
    fs::create_dir_all(&folder)?;
    let write = |name: &str, page: String| fs::write(folder.join(name), page);

    clap_mangen::generate_to(with_short_synopsis(cli::command()), &folder)?;
    for page in fs::read_dir(&folder)? {
        name_notes(&page?.path())?;
    }
    let mut page = fs::File::options().append(true).open(folder.join("resyncfs.1"))?;
    page.write_all((prose(COMMAND)? + &see_also("resyncfs(1)")).as_bytes())?;

    let name = "resyncfs.conf";
    let page = title(name, "5", "configuration files and mount options of resyncfs") + &prose(CONFIGURATION)?;
    write("resyncfs.conf.5", page + &options("OPTIONS") + &example() + &see_also("resyncfs.conf(5)"))?;

    for (name, about, topics) in [
        ("resyncfs-semantics", "what a mount of resyncfs promises, and how it keeps in step", SEMANTICS),
        ("resyncfs-messages", "messages of resyncfs, what they mean, and what to do", MESSAGES),
        ("resyncfs-metrics", "status and metrics of a mount of resyncfs", METRICS),
    ] {
        let page = title(name, "7", about) + &prose(topics)? + &see_also(&format!("{name}(7)"));
        write(&format!("{name}.7"), page)?;
    }

    let helper = clap_mangen::Man::new(with_short_synopsis(cli::mount_helper_command()));
    let (mut synopsis, mut arguments) = (Vec::new(), Vec::new());
    helper.render_synopsis_section(&mut synopsis)?;
    helper.render_options_section(&mut arguments)?;
    helper.render_extra_section(&mut arguments)?;
    let mut page = title("mount.resyncfs", "8", "mount a ResourceSync Source by mount(8) or at boot");
    page += &String::from_utf8(synopsis)?;
    page += &prose(MOUNTING)?;
    page += &String::from_utf8(arguments)?.replace(EXTRA, ".SH \"EXIT STATUS\"");
    write("mount.resyncfs.8", page + &options("MOUNT OPTIONS") + &see_also("mount.resyncfs(8)"))?;
    Ok(())
}

/// A command, and those below it, whose synopsis is the first line of its `--help`: with `[OPTIONS]` for all of them.
fn with_short_synopsis(mut command: Command) -> Command {
    command.build();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    command.override_usage(usage).mut_subcommands(with_short_synopsis)
}

/// The notes of resyncfs(1) are its exit codes.
fn name_notes(page: &Path) -> std::io::Result<()> {
    let title = if page.ends_with("resyncfs.1") { "EXIT STATUS" } else { "NOTES" };
    let text = fs::read_to_string(page)?;
    fs::write(page, text.replace(EXTRA, &format!(".SH \"{title}\"")))
}

fn title(name: &str, number: &str, about: &str) -> String {
    let mut page = Roff::new();
    let program = format!("resyncfs {}", cli::command().get_version().unwrap_or_default());
    page.control("TH", [name, number, "", &program, "resyncfs"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {about}"))]);
    page.render()
}

/// A section for each topic.
fn prose(names: &[&str]) -> Result<String, String> {
    let mut page = String::new();
    for name in names {
        let topic = TOPICS.iter().find(|topic| topic.name == *name).ok_or_else(|| format!("no topic {name:?}"))?;
        page += &format!(".SH \"{}\"\n{}", topic.title.to_uppercase(), roff(topic.text));
    }
    Ok(page)
}

/// Every option of a mount, as `resyncfs mount --help` describes it.
fn options(heading: &str) -> String {
    let mut page = Roff::new();
    page.control("SH", [heading]);
    let mut group = None;
    for option in args::options() {
        let its_group = option.get_help_heading().map(str::to_owned);
        if group != its_group {
            page.control("SS", its_group.as_deref());
            group = its_group;
        }
        page.control("TP", []);
        let name = option.get_long().unwrap_or_default();
        page.text([bold(name), roman(format!("={}", args::placeholder(&option)))]);
        page.text([roman(args::help(&option))]);
    }
    page.to_roff()
}

fn example() -> String {
    let mut page = Roff::new();
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    for line in EXAMPLE.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.to_roff()
}

/// All pages but the one they stand in, and those of others that a reader may want.
fn see_also(this: &str) -> String {
    let others = PAGES.into_iter().filter(|page| *page != this).chain(["mount(8)", "fstab(5)", "fusermount3(1)"]);
    let mut page = Roff::new();
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(others.collect::<Vec<_>>().join(", "))]);
    page.to_roff()
}
