//! The table as flags of a command: `-o`, and a long flag for each option.

use super::settings::{Dialect, Settings};
use super::spec::Kind;
use super::table::{OptionSpec, TABLE};
use crate::cli::CliError;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

/// The name of `-o` among the arguments; no option has a capital letter.
const MOUNT_OPTIONS: &str = "OPTIONS";

/// What was given by `-o` (no option) and by long flags, in the order in which it stood there.
#[derive(Clone, Debug, Default)]
pub struct Given(Vec<(Option<&'static OptionSpec>, String)>);

impl Given {
    /// The options that are named, their values not understood yet.
    pub fn settings(&self) -> Result<Settings, CliError> {
        let mut settings = Settings::default();
        for (spec, value) in &self.0 {
            match spec {
                None => settings.push_mount_options(value, Dialect::Person)?,
                Some(spec) => {
                    let origin = format!("--{} {value}", spec.flag()).trim_end().to_owned();
                    settings.push(spec, Some(value.clone()), origin);
                }
            }
        }
        Ok(settings)
    }
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        let mount_options = Arg::new(MOUNT_OPTIONS)
            .short('o')
            .value_name("OPTION[=VALUE],…")
            .action(ArgAction::Append)
            .help("The options below as mount(8) writes them, several separated by commas");
        TABLE.iter().map(flag).fold(command.arg(mount_options), Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Given::augment_args(command)
    }
}

fn flag(spec: &'static OptionSpec) -> Arg {
    let long = spec.flag();
    let arg = Arg::new(spec.name).help(spec.help).help_heading(spec.heading());
    let arg = if long == spec.name { arg } else { arg.alias(spec.name) };
    let arg = arg.long(long);
    match spec.kind() {
        Kind::Switch => arg.action(ArgAction::SetTrue),
        _ => arg.value_name(spec.value).action(ArgAction::Append),
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let mut given = Given::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let mut found: Vec<(usize, Option<&'static OptionSpec>, String)> = Vec::new();
        let mut collect = |name: &str, spec: Option<&'static OptionSpec>| {
            let places = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<String>(name).into_iter().flatten();
            found.extend(places.zip(values).map(|(at, value)| (at, spec, value.clone())));
        };
        collect(MOUNT_OPTIONS, None);
        for spec in TABLE.iter().filter(|spec| spec.kind() != Kind::Switch) {
            collect(spec.name, Some(spec));
        }
        for spec in TABLE.iter().filter(|spec| spec.kind() == Kind::Switch) {
            if matches.value_source(spec.name) == Some(ValueSource::CommandLine) {
                found.push((matches.index_of(spec.name).unwrap_or_default(), Some(spec), String::new()));
            }
        }
        found.sort_by_key(|(at, ..)| *at);
        self.0.extend(found.into_iter().map(|(_, spec, value)| (spec, value)));
        Ok(())
    }
}
