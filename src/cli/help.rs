//! `resyncfs help` and `resyncfs completions`: what commands and topics are about. The manual pages are made from the same texts.

use super::complete::{self, matching};
use super::render::count;
use super::{CliError, Exit, command, print};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use rustix::termios::tcgetwinsize;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::process::{Command, Stdio};

/// Lines of a topic that a search shows.
const MOST_LINES: usize = 3;

/// The exit code of a shell that finds no program of this name.
const NOT_FOUND: i32 = 127;

/// A text of the manual.
#[derive(Debug)]
pub struct Topic {
    /// Its name, as typed behind `resyncfs help`.
    pub name: &'static str,
    /// Its subject, in a line.
    pub title: &'static str,
    /// Its text, in Markdown.
    pub text: &'static str,
}

/// A topic, its text in the file of its name.
macro_rules! topic {
    ($name:literal, $title:literal) => {
        Topic { name: $name, title: $title, text: include_str!(concat!("../../scripts/manual/", $name, ".md")) }
    };
}

/// Every topic, those for a beginner first.
pub const TOPICS: &[Topic] = &[
    topic!("overview", "What resyncfs is for"),
    topic!("exploring", "Look at a Source before you mount it"),
    topic!("items", "Landing pages and DOIs: a folder for each data set"),
    topic!("mounting", "Mount at boot: systemd and fstab"),
    topic!("configuration", "Options, configuration files, passwords, proxies"),
    topic!("programs", "File managers, thumbnailers, text search"),
    topic!("caching", "Download ahead, free space, compare with the Source"),
    topic!("promises", "What you can rely on"),
    topic!("keeping-in-step", "How changes and deletions arrive"),
    topic!("reading", "How files are downloaded"),
    topic!("names", "How an address becomes a path"),
    topic!("xattrs", "What is known of each file"),
    topic!("machines", "Kernels, AppArmor, SELinux"),
    topic!("errors", "Messages, what they mean, and what to do"),
    topic!("metrics", "What a mount is doing, in words and numbers"),
    topic!("limits", "What does not work, and how far the rest goes"),
    topic!("stable", "What later versions keep"),
    topic!("changelog", "What each version changed"),
];

/// Explain a topic (such as names, xattrs, errors, metrics, keeping-in-step) or a command, or find a word in all topics
#[derive(Debug, clap::Args)]
pub struct HelpArgs {
    /// A topic, a command, or a word to find in the topics; without one, topics and commands are listed
    #[arg(value_name = "TOPIC, COMMAND or WORD", add = ArgValueCompleter::new(complete_topic))]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(args: HelpArgs) -> Result<Exit, CliError> {
    let text = help(&args.words).or_else(|| search(&args.words.join(" "))).ok_or_else(|| {
        let words = args.words.join(" ");
        CliError::usage(format!(
            "no topic or command is named {words:?}, and no topic has these words; list all with: resyncfs help"
        ))
    })?;
    print_in_pager(&text)?;
    Ok(Exit::Success)
}

/// Completes a topic or a command.
fn complete_topic(current: &OsStr) -> Vec<CompletionCandidate> {
    let program = command();
    let topics = TOPICS.iter().map(|topic| (topic.name, topic.title.to_owned()));
    let about = |it: &clap::Command| it.get_about().map(ToString::to_string).unwrap_or_default();
    matching(current, topics.chain(program.get_subcommands().map(|it| (it.get_name(), about(it)))))
}

/// The topics that have `words`, each with its lines that do.
fn search(words: &str) -> Option<String> {
    let wanted = words.to_lowercase();
    let mut found = String::new();
    for Topic { name, title, text } in TOPICS {
        let lines: Vec<_> = text.lines().filter(|line| line.to_lowercase().contains(&wanted)).collect();
        if lines.is_empty() {
            continue;
        }
        let _ = writeln!(found, "\n{name:<16} {title}");
        for line in lines.iter().take(MOST_LINES) {
            let _ = writeln!(found, "    {}", line.trim());
        }
        if lines.len() > MOST_LINES {
            let _ = writeln!(found, "    and {} more", count((lines.len() - MOST_LINES) as u64, "line"));
        }
    }
    let head = format!("These topics mention {words:?}; resyncfs help TOPIC shows one:\n");
    (!found.is_empty()).then(|| head + &found)
}

/// Prints `text`, through the pager of a person whose terminal has fewer lines.
fn print_in_pager(text: &str) -> Result<(), CliError> {
    let rows = tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_row));
    if !io::stdout().is_terminal() || text.lines().count() < rows {
        return print(text);
    }
    let pager = std::env::var("PAGER").ok().filter(|pager| !pager.is_empty()).unwrap_or_else(|| "less -FRX".to_owned());
    match Command::new("sh").args(["-c", &pager]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn() {
        Ok(mut running) => {
            // A pager that is left early closes its end.
            let _ = running.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
            // The shell of a pager that is not installed reads nothing.
            if running.wait()?.code() == Some(NOT_FOUND) { print(text) } else { Ok(()) }
        }
        Err(_) => print(text),
    }
}

fn help(words: &[String]) -> Option<String> {
    if words.is_empty() {
        let mut text = command().render_long_help().to_string();
        text.push_str("\nTopics, each shown by resyncfs help TOPIC:\n");
        for topic in TOPICS {
            let _ = writeln!(text, "  {:<16} {}", topic.name, topic.title);
        }
        return Some(text);
    }
    let name = words.join("-").to_lowercase();
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == name) {
        return Some(for_terminal(topic.text));
    }
    let mut program = command();
    // Only a built command shows its whole name (`resyncfs cache list`).
    program.build();
    let found = words.iter().try_fold(&mut program, |command, word| command.find_subcommand_mut(word))?;
    Some(found.render_long_help().to_string())
}

/// Print the script that lets a shell complete commands, options, topics and mounts
#[derive(Debug, clap::Args)]
#[command(after_help = "For example: resyncfs completions bash > ~/.local/share/bash-completion/completions/resyncfs")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub fn completions(args: CompletionsArgs) -> Result<Exit, CliError> {
    let script = complete::script(&args.shell.to_string())?;
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}

/// Markdown without the marks that only a renderer needs: fences around code, which is indented instead, and `#` before headings.
fn for_terminal(markdown: &str) -> String {
    let mut lines = Vec::new();
    let mut is_code = false;
    for line in markdown.lines() {
        match line.strip_prefix("# ") {
            _ if line.starts_with("```") => is_code = !is_code,
            _ if is_code => lines.push(format!("    {line}").trim_end().to_owned()),
            Some(heading) => lines.push(heading.to_uppercase()),
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_topic_is_shown_without_marks() {
        assert_eq!(
            for_terminal("# A b\n\nText `c`.\n\n```sh\n# root\n\nls\n```\n"),
            "A B\n\nText `c`.\n\n    # root\n\n    ls\n"
        );
    }

    #[test]
    fn topics_and_commands_are_found_as_typed() {
        for (typed, begins) in [
            ("names", "HOW AN ADDRESS"),
            ("keeping in step", "CHANGES"),
            ("Keeping-in-step", "CHANGES"),
            ("caching", "WORKING WITH THE CACHE"),
        ] {
            let text = help(&words(typed)).unwrap();
            assert!(text.starts_with(begins), "{typed}: {text}");
        }
        assert!(help(&words("cache list")).unwrap().contains("Usage: resyncfs cache list"));
        assert!(help(&words("mount")).unwrap().contains("--cache-size"));
        assert_eq!(help(&words("nothing")), None);
    }

    #[test]
    fn a_word_finds_the_topics_that_have_it() {
        let found = search("Proxy").unwrap();

        assert!(found.contains("\nconfiguration ") && !found.contains("\nnames "), "{found}");
        assert!(found.lines().any(|line| line.starts_with("    ") && line.contains("proxy")), "{found}");
        assert_eq!(search("no such word"), None);
    }

    #[test]
    fn topics_and_commands_complete_what_is_typed() {
        let values =
            |typed: &str| complete_topic(typed.as_ref()).iter().map(|it| it.get_value().to_owned()).collect::<Vec<_>>();

        assert_eq!(values("au"), ["audit"]);
        assert_eq!(values("met"), ["metrics"]);
    }

    #[test]
    fn without_a_word_commands_and_topics_are_listed() {
        let text = help(&[]).unwrap();

        assert!(text.contains("explore") && TOPICS.iter().all(|topic| text.contains(topic.title)), "{text}");
    }
}
