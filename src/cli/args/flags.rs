//! The options on a command line: `-o`, and a long flag for each option.

use super::mount_options::Caller;
use super::options::Options;
use super::words::{Words, options};
use crate::cli::CliError;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The name of `-o` among clap's arguments.
const MOUNT_OPTIONS: &str = "OPTIONS";

/// All that was given by `-o` and by long flags, in the order of the command line.
#[derive(Clone, Debug, Default)]
pub struct CommandLine(Vec<Given>);

#[derive(Clone, Debug)]
enum Given {
    /// The text after a `-o`.
    MountOptions(String),
    /// A long flag that clap has accepted already.
    Flag { name: String, value: String },
}

impl CommandLine {
    /// The options that are named.
    pub fn words(&self) -> Result<Words, CliError> {
        let mut words = Words::default();
        for given in &self.0 {
            match given {
                Given::MountOptions(text) => words.push_mount_options(text, Caller::Person)?,
                Given::Flag { name, value } => words.push(name, Some(value.clone()), format!("--{name} {value}")),
            }
        }
        Ok(words)
    }
}

impl Args for CommandLine {
    fn augment_args(command: Command) -> Command {
        let mount_options = Arg::new(MOUNT_OPTIONS)
            .short('o')
            .value_name("OPTION[=VALUE],…")
            .action(ArgAction::Append)
            .help("The options below in the notation of mount(8), separated by commas");
        Options::augment_args(command.arg(mount_options))
    }

    fn augment_args_for_update(command: Command) -> Command {
        CommandLine::augment_args(command)
    }
}

impl FromArgMatches for CommandLine {
    fn from_arg_matches(matches: &ArgMatches) -> Result<CommandLine, clap::Error> {
        let mut given = CommandLine::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut found: Vec<(usize, Given)> = Vec::new();
        let mut collect = |id: &str, given: &dyn Fn(String) -> Given| {
            let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy().into_owned());
            found.extend(matches.indices_of(id).into_iter().flatten().zip(values.map(given)));
        };
        collect(MOUNT_OPTIONS, &Given::MountOptions);
        for arg in options() {
            let id = arg.get_id().as_str();
            if matches.value_source(id) == Some(ValueSource::CommandLine) {
                let name = arg.get_long().unwrap_or(id);
                collect(id, &|value| Given::Flag { name: name.to_owned(), value });
            }
        }
        found.sort_by_key(|(index, _)| *index);
        self.0.extend(found.into_iter().map(|(_, given)| given));
        Ok(())
    }
}
