//! Writes the manual pages and the completions of shells: `cargo run --example manual -- FOLDER`.
//!
//! Commands and options come from the command line itself and its table of options; the prose is README.md's, by its headings.

mod markdown;

use clap_complete::Shell;
use clap_mangen::roff::{Roff, bold, roman};
use markdown::{roff, section};
use resyncfs::cli;
use resyncfs::cli::args::{example, help, options, placeholder};
use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const README: &str = include_str!("../../README.md");

/// Sections of resyncfs(1): title, and the heading of README.md below which its text stands.
const ABOUT: &[(&str, &str)] = &[
    ("WHAT IT IS ABOUT", "What this is about"),
    ("SEMANTICS", "What you can rely on"),
    ("CHANGES", "How it keeps in step"),
    ("NAMES", "Names"),
    ("EXTENDED ATTRIBUTES", "Extended attributes"),
    ("DIAGNOSTICS", "When it does not work"),
    ("LIMITS", "Limits, said plainly"),
];

/// The same for resyncfs.conf(5), before the options.
const CONFIGURATION: &[(&str, &str)] = &[("DESCRIPTION", "Configuration files")];

/// The same for mount.resyncfs(8).
const MOUNTING: &[(&str, &str)] = &[("DESCRIPTION", "mount(8) and /etc/fstab"), ("SYSTEMD", "Make it permanent")];

/// How clap_mangen begins what stands behind a command's help.
const EXTRA: &str = ".SH EXTRA";

fn main() -> Result<(), Box<dyn Error>> {
    let folder: PathBuf = std::env::args_os().nth(1).ok_or("where to: manual FOLDER")?.into();
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;

    clap_mangen::generate_to(cli::command(), &man)?;
    for page in fs::read_dir(&man)? {
        name_notes(&page?.path())?;
    }
    append(&man.join("resyncfs.1"), &prose(ABOUT)?)?;
    append(&man.join("resyncfs.1"), &see_also(&["resyncfs.conf(5)", "mount.resyncfs(8)", "fusermount3(1)"]))?;
    let mut page = title("resyncfs.conf", "5", "a mount of resyncfs by name");
    page += &prose(CONFIGURATION)?;
    page += &option_section("OPTIONS");
    page += &example_section();
    page += &see_also(&["resyncfs(1)", "mount.resyncfs(8)"]);
    fs::write(man.join("resyncfs.conf.5"), page)?;
    let mut page = title("mount.resyncfs", "8", "mount a ResourceSync Source by mount(8)");
    let helper = clap_mangen::Man::new(cli::mount_helper_command());
    let (mut synopsis, mut arguments) = (Vec::new(), Vec::new());
    helper.render_synopsis_section(&mut synopsis)?;
    helper.render_options_section(&mut arguments)?;
    helper.render_extra_section(&mut arguments)?;
    page += &String::from_utf8(synopsis)?;
    page += &prose(MOUNTING)?;
    page += &String::from_utf8(arguments)?.replace(EXTRA, ".SH \"EXIT STATUS\"");
    page += &option_section("MOUNT OPTIONS");
    page += &see_also(&["resyncfs(1)", "resyncfs.conf(5)", "mount(8)", "fstab(5)", "systemd.mount(5)"]);
    fs::write(man.join("mount.resyncfs.8"), page)?;

    for (shell, name) in [(Shell::Bash, "resyncfs"), (Shell::Zsh, "_resyncfs"), (Shell::Fish, "resyncfs.fish")] {
        let mut file = fs::File::create(completions.join(name))?;
        clap_complete::generate(shell, &mut cli::command(), "resyncfs", &mut file);
    }
    Ok(())
}

/// What stands behind a command's help are notes, of resyncfs(1) the exit codes.
fn name_notes(page: &Path) -> std::io::Result<()> {
    let title = if page.ends_with("resyncfs.1") { "EXIT STATUS" } else { "NOTES" };
    let text = fs::read_to_string(page)?;
    fs::write(page, text.replace(EXTRA, &format!(".SH \"{title}\"")))
}

fn append(page: &Path, text: &str) -> std::io::Result<()> {
    fs::File::options().append(true).open(page)?.write_all(text.as_bytes())
}

fn title(name: &str, number: &str, about: &str) -> String {
    let mut page = Roff::new();
    page.control("TH", [name, number, "", concat!("resyncfs ", env!("CARGO_PKG_VERSION")), "resyncfs"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {about}"))]);
    page.render()
}

/// Sections of README.md under other titles.
fn prose(sections: &[(&str, &str)]) -> Result<String, String> {
    let mut page = String::new();
    for (title, heading) in sections {
        let text = section(README, heading).ok_or_else(|| format!("README.md has no section {heading:?}"))?;
        page += &format!(".SH \"{title}\"\n{}", roff(&text));
    }
    Ok(page)
}

fn option_section(heading: &str) -> String {
    let mut page = Roff::new();
    page.control("SH", [heading]);
    for option in options() {
        page.control("TP", []);
        page.text([bold(option.get_long().unwrap_or_default()), roman(format!("={}", placeholder(&option)))]);
        page.text([roman(help(&option))]);
    }
    page.to_roff()
}

/// The configuration file that is installed as an example.
fn example_section() -> String {
    let mut page = Roff::new();
    page.control("SH", ["EXAMPLE"]);
    page.control("nf", []);
    for line in example().lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.to_roff()
}

fn see_also(pages: &[&str]) -> String {
    let mut page = Roff::new();
    page.control("SH", ["SEE ALSO"]);
    page.text([roman(pages.join(", "))]);
    page.to_roff()
}
