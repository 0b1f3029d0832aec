//! `resyncfs help` and `resyncfs completions`: what commands and topics are about. The manual pages are made from the same texts.

use super::{CliError, Exit, command, print};
use clap_complete::Shell;
use std::fmt::Write as _;

/// A text of the manual.
#[derive(Debug)]
pub struct Topic {
    /// As typed behind `resyncfs help`.
    pub name: &'static str,
    /// What it is about, in a line.
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

/// Explain a topic (such as names, xattrs, errors, metrics, keeping-in-step) or a command
#[derive(Debug, clap::Args)]
pub struct HelpArgs {
    /// A topic or a command; without one, all are listed
    #[arg(value_name = "TOPIC or COMMAND")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(args: HelpArgs) -> Result<Exit, CliError> {
    let text = help(&args.words).ok_or_else(|| {
        let words = args.words.join(" ");
        CliError::new(Exit::Usage, format!("there is no topic or command {words:?}; list them with: resyncfs help"))
    })?;
    print(&text)?;
    Ok(Exit::Success)
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

/// Print what a shell needs to complete commands and options
#[derive(Debug, clap::Args)]
#[command(after_help = "For example: resyncfs completions bash > ~/.local/share/bash-completion/completions/resyncfs")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub fn completions(args: CompletionsArgs) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "resyncfs", &mut script);
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
    fn without_a_word_commands_and_topics_are_listed() {
        let text = help(&[]).unwrap();

        assert!(text.contains("explore") && TOPICS.iter().all(|topic| text.contains(topic.title)), "{text}");
    }
}
