//! README says what is so: each promise names tests that exist, each option stands in its table.

mod common;

use common::mounted::Mounted;
use common::source::{Resource, Source};
use resyncfs::cli;
use resyncfs::cli::args;
use std::fs;
use std::path::Path;
use std::process::Command;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// Every `NAME` between backquotes of `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The text between a heading and the next of its kind.
fn section<'a>(readme: &'a str, heading: &str) -> &'a str {
    let begin = readme.find(heading).unwrap_or_else(|| panic!("no section {heading:?}"));
    let rest = &readme[begin + heading.len()..];
    rest.find("\n## ").map_or(rest, |end| &rest[..end])
}

/// The tests that a text names, as `tests/FILE: TEST, TEST`, each with its file.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let lists = quoted(text).filter(|name| name.starts_with("tests/") || name.starts_with("src/"));
    let lists = lists.filter_map(|name| name.split_once(": ").or_else(|| name.split_once(":\n")));
    lists.flat_map(|(file, tests)| tests.split(',').map(move |test| (file, test.trim()))).collect()
}

#[test]
fn each_promise_names_its_tests() {
    let readme = readme();
    let promises: Vec<_> =
        section(&readme, "## What you can rely on").split("\n\n").filter(|text| text.starts_with("**")).collect();

    assert_eq!(promises.len(), 5);
    for promise in promises {
        assert!(!named_tests(promise).is_empty(), "no test carries: {promise}");
    }
}

#[test]
fn each_test_that_is_named_exists() {
    let readme = readme();
    let tests = named_tests(&readme);

    assert!(tests.len() > 50, "{tests:?}");
    for (file, test) in tests {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|cause| panic!("{}: {cause}", path.display()));
        assert!(source.contains(&format!("fn {test}()")), "{file} has no test {test:?}");
    }
}

#[test]
fn each_option_stands_in_the_table() {
    let readme = readme();
    let options = section(&readme, "## Options").replace("\\|", "|");
    let named: Vec<_> =
        quoted(&options).filter_map(|code| code.split('=').next()).map(|it| it.replace('_', "-")).collect();
    let all = args::options();
    let all = all.iter().filter_map(|option| option.get_long());
    let missing: Vec<_> = all.filter(|name| !named.iter().any(|named| named == name)).collect();

    assert!(missing.is_empty(), "README does not tell of: {missing:?}");
}

/// All code of the program, with a string that goes on in the next line in one.
fn sources() -> String {
    let (mut all, mut folders) = (String::new(), vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                all.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut joined = String::new();
    for part in all.split("\\\n") {
        joined.push_str(if joined.is_empty() { part } else { part.trim_start() });
    }
    joined
}

#[test]
fn each_message_that_is_quoted_is_one_of_the_program() {
    let readme = readme();
    let sources = sources();
    let help = section(&readme, "### When it does not work");
    let help = help.find("\n### ").map_or(help, |end| &help[..end]);
    // The columns of messages; what the system says, and what to type, is not the program's.
    let columns = help.split("\n\n").filter(|table| table.starts_with('|')).flat_map(|table| {
        let mut rows = table.lines();
        let heading: Vec<_> =
            rows.next().unwrap_or_default().split(" | ").map(|cell| cell.trim_matches([' ', '|'])).collect();
        let column = heading.iter().position(|cell| *cell == "message").expect("a table of messages");
        rows.skip(1).map(move |row| row.trim_start_matches("| ").split('|').nth(column).unwrap_or_default())
    });

    let messages: Vec<_> = columns.flat_map(quoted).collect();

    assert!(messages.len() > 30, "{messages:?}");
    for message in messages {
        for part in message.split('…').map(|part| part.trim_matches([' ', ':'])).filter(|part| part.len() > 1) {
            // A number that the program fills in.
            let part = part.strip_prefix("answered").map_or(part, |_| "answered");
            assert!(sources.contains(part), "the program never says {part:?} (of `{message}`)");
        }
    }
}

#[test]
fn each_option_that_a_message_names_is_one_of_the_program() {
    let (sources, known) = (sources(), options());
    let names = sources.split("-o ").skip(1).filter_map(|rest| rest.split_once('=')).filter(|(name, value)| {
        name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c == '_')
            && value.starts_with(|c: char| c.is_ascii_uppercase() || c == '{')
    });

    assert!(names.clone().count() > 3);
    for (name, _) in names {
        assert!(known.contains(name), "a message names -o {name}=, which is no option");
    }
}

/// What a program prints on standard output.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn each_metric_is_explained() {
    let source = Source::start();
    source.put("a", Resource::new("Sir, the beacon stands.\n"));
    let mounted = Mounted::new(&source.list_url(), "poll=1h");
    fs::read(mounted.join("a")).unwrap();
    let folder = mounted.path();
    let attribute = ["--absolute-names", "--only-values", "-n", "user.resyncfs.control", folder.to_str().unwrap()];
    let socket = printed("getfattr", &attribute);

    let metrics = printed("curl", &["-sS", "--unix-socket", &socket, "http://localhost/metrics"]);

    let named = quoted(&file("scripts/manual/metrics.md"));
    let bare = |name: &str| name.trim_end_matches("_total").to_owned();
    let explained: BTreeSet<String> = named.iter().map(|name| bare(name)).collect();
    let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    assert!(families.clone().count() > 20, "{metrics}");
    for family in families {
        assert!(explained.contains(&bare(family)), "scripts/manual/metrics.md does not explain {family}");
    }
}

#[test]
fn each_command_that_is_named_is_one_of_the_program() {
    let readme = readme();
    let program = cli::command();

    for line in quoted(&readme).filter(|code| code.starts_with("resyncfs ")) {
        let mut words = line.split_whitespace().skip(1);
        let name = words.next().unwrap_or_default();
        let command = program.find_subcommand(name).unwrap_or_else(|| panic!("`{line}`: no command {name}"));
        for word in words {
            let Some(flag) = word.trim_matches(['[', ']', ',']).strip_prefix("--") else { continue };
            let flag = flag.split('=').next().unwrap_or_default();
            let known = |command: &clap::Command| command.get_arguments().any(|known| known.get_long() == Some(flag));
            let below = command.get_subcommands().any(known);
            assert!(flag == "help" || known(command) || below, "`{line}`: no flag --{flag}");
        }
    }
}
