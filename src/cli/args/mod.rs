//! The options of a mount: one definition ([`Options`]) for every way to give them.
//!
//! `-o name=value,name` as mount(8) passes it, `--name value`, and `name = value` in a configuration file become [`OptionWords`]
//! such as `--name=value`. clap reads these words.

mod options;
mod values;
mod words;

#[cfg(test)]
mod tests;

pub use options::{CredentialOptions, Options};
pub use words::{Caller, OptionWords, absolute, help, mount_options, options, placeholder, string};

use super::CliError;

impl OptionWords {
    /// The texts of all `-o` of a person.
    pub fn of_person(texts: &[String]) -> Result<OptionWords, CliError> {
        let mut words = OptionWords::default();
        texts.iter().try_for_each(|text| words.push_mount_options(text, Caller::Person))?;
        Ok(words)
    }
}

impl Options {
    /// Reads the texts of all `-o` of a person.
    pub fn parse(texts: &[String]) -> Result<Options, CliError> {
        OptionWords::of_person(texts)?.parse()
    }
}
