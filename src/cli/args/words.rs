//! Options as clap reads them, `--name=value`, each with the place where it was given.

use super::options::Options;
use crate::cli::{CliError, Exit};
use clap::builder::Str;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Command, CommandFactory, Parser};
use std::error::Error;

/// A command line that has options and nothing else.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct OptionsAlone {
    #[command(flatten)]
    options: Options,
}

/// The definitions of all options, in the order of help.
pub fn options() -> Vec<Arg> {
    OptionsAlone::command().get_arguments().cloned().collect()
}

/// The definition of the option of this name; `_` and `-` are the same.
pub fn find(name: &str) -> Option<Arg> {
    let name = name.replace('_', "-");
    options().into_iter().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(&name) || aliases.contains(&name.as_str())
    })
}

/// The flag of `command` that clap suggests in place of an unknown name.
pub fn suggestion(command: Command, name: &str) -> Option<String> {
    let refused = command.no_binary_name(true).try_get_matches_from([format!("--{name}")]).err()?;
    match refused.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

/// The placeholder of an option's value.
pub fn placeholder(arg: &Arg) -> &str {
    arg.get_value_names().and_then(|names| names.first()).map(Str::as_str).unwrap_or_default()
}

/// One option as it was given.
#[derive(Clone, Debug)]
struct Word {
    /// Its long flag, or an unknown name as it was given.
    name: String,
    /// `None` where no value was given.
    value: Option<String>,
    /// Its name in messages: `-o poll=soon`, `/etc/resyncfs/x.toml:3: poll`.
    origin: String,
}

impl Word {
    fn flag(&self) -> String {
        match &self.value {
            Some(value) => format!("--{}={value}", self.name),
            None => format!("--{}", self.name),
        }
    }

    fn check(&self) -> Result<(), CliError> {
        match OptionsAlone::try_parse_from([self.flag()]) {
            Ok(_) => Ok(()),
            Err(refused) => Err(CliError::new(Exit::Usage, format!("{}: {}", self.origin, self.reason(&refused)))),
        }
    }

    fn reason(&self, refused: &clap::Error) -> String {
        let Some(arg) = find(&self.name) else {
            return match suggestion(OptionsAlone::command(), &self.name) {
                Some(near) => format!("there is no such option; did you mean {near}?"),
                None => "there is no such option; see: resyncfs mount --help".to_owned(),
            };
        };
        match (&self.value, refused.get(ContextKind::ValidValue)) {
            (None, _) => format!("needs a value: {}={}", self.name, placeholder(&arg)),
            (Some(value), Some(ContextValue::Strings(valid))) => {
                format!("{value:?} is none of: {}", valid.join(", "))
            }
            _ => refused.source().map_or_else(|| refused.kind().to_string(), ToString::to_string),
        }
    }
}

/// Options in the order in which they were given. Of two values of an option that takes one, the later one counts.
#[derive(Clone, Debug, Default)]
pub struct Words(Vec<Word>);

impl Words {
    /// Adds one.
    pub fn push(&mut self, name: &str, value: Option<String>, origin: String) {
        let known = find(name).and_then(|arg| arg.get_long().map(str::to_owned));
        self.0.push(Word { name: known.unwrap_or_else(|| name.to_owned()), value, origin });
    }

    /// These options, and those of `beneath` that are not named here.
    pub fn over(self, mut beneath: Words) -> Words {
        beneath.0.retain(|below| !self.0.iter().any(|above| above.name == below.name));
        beneath.0.extend(self.0);
        beneath
    }

    /// Their values.
    pub fn parse(&self) -> Result<Options, CliError> {
        self.0.iter().try_for_each(Word::check)?;
        match OptionsAlone::try_parse_from(self.0.iter().map(Word::flag)) {
            Ok(parsed) => Ok(parsed.options),
            Err(refused) => Err(CliError::of(Exit::Usage, &refused)),
        }
    }
}
