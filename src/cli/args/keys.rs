//! Options as keys of a configuration file, with the types that TOML has for their values.

use super::mount_options::secret_refusal;
use super::options::Options;
use super::words::{Words, find, placeholder, suggestion};
use crate::content::Revalidate;
use crate::document::Timestamp;
use crate::sync::deletion_guard::MaxDelete;
use clap::{Arg, ArgAction, Args, Command};
use std::any::TypeId;
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;
use toml::de::{DeInteger, DeValue};

/// What TOML writes for the value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `true` or `false`
    Switch,
    /// A number, or a string with a unit.
    Number,
    /// A number in octal digits, or a string.
    Octal,
    /// A date and time, or a string.
    DateTime,
    /// The string of an absolute path.
    Path,
    /// A string.
    Text,
}

impl Kind {
    /// By the type of the option's value.
    pub(super) fn of(arg: &Arg) -> Kind {
        let value = arg.get_value_parser().type_id();
        let numbers = [
            TypeId::of::<u64>(),
            TypeId::of::<u32>(),
            TypeId::of::<usize>(),
            TypeId::of::<f64>(),
            TypeId::of::<Duration>(),
            TypeId::of::<Revalidate>(),
            TypeId::of::<MaxDelete>(),
        ];
        if value == TypeId::of::<bool>() {
            Kind::Switch
        } else if numbers.iter().any(|number| value == *number) {
            Kind::Number
        } else if value == TypeId::of::<u16>() {
            Kind::Octal
        } else if value == TypeId::of::<Timestamp>() {
            Kind::DateTime
        } else if value == TypeId::of::<PathBuf>() {
            Kind::Path
        } else {
            Kind::Text
        }
    }
}

/// Whether the option may be given several times; a list in a file.
pub(super) fn is_repeatable(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

impl Words {
    /// Adds the option of this key; `line` names it in messages. An error is the reason alone.
    pub fn push_key(&mut self, key: &str, value: &DeValue<'_>, origin: &str) -> Result<(), String> {
        let Some(arg) = find(key) else {
            return Err(secret_refusal(key).unwrap_or_else(|| unknown(key)));
        };
        let values = match value {
            DeValue::Array(list) if is_repeatable(&arg) => {
                list.iter().map(Spanned::get_ref).map(|value| text(&arg, value)).collect::<Result<Vec<_>, _>>()?
            }
            DeValue::Array(_) => return Err("takes one value, no list".to_owned()),
            value => vec![text(&arg, value)?],
        };
        values.into_iter().for_each(|value| self.push(key, Some(value), origin.to_owned()));
        Ok(())
    }
}

fn unknown(key: &str) -> String {
    let known = Options::augment_args(Command::new("")).arg(Arg::new("source").long("source"));
    let known = known.arg(Arg::new("directory").long("directory"));
    let near = suggestion(known, key).map(|near| format!("; did you mean {near}?"));
    format!("there is no such key{}", near.unwrap_or_default())
}

/// The value as a command line has it.
fn text(arg: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    match (Kind::of(arg), value) {
        (Kind::Switch, DeValue::Boolean(on)) => Ok(on.to_string()),
        (Kind::Switch, _) => Err("is true or false, without quotes".to_owned()),
        (Kind::Path, value) => Ok(absolute(string(value)?)?.to_owned()),
        (_, DeValue::String(text)) => Ok(text.clone().into_owned()),
        (Kind::Octal, DeValue::Integer(number)) if number.radix() == 8 || whole(number) == Some(0) => {
            Ok(number.as_str().to_owned())
        }
        (Kind::Octal, _) => Err("is written in octal digits, as in 0o027 or \"027\"".to_owned()),
        (Kind::Number, DeValue::Integer(number)) => {
            whole(number).map(|number| number.to_string()).ok_or_else(|| format!("{number} is too big"))
        }
        (Kind::Number, DeValue::Float(number)) => Ok(number.as_str().to_owned()),
        (Kind::DateTime, DeValue::Datetime(time)) => Ok(time.to_string()),
        (_, DeValue::Table(_)) => Err("takes no table".to_owned()),
        _ => Err(format!("must be in quotes: {} = \"{}\"", arg.get_long().unwrap_or_default(), placeholder(arg))),
    }
}

fn whole(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// The text of a TOML string.
pub fn string<'v>(value: &'v DeValue<'_>) -> Result<&'v str, &'static str> {
    value.as_str().ok_or("must be in quotes")
}

/// A path that means the same in every working folder.
pub fn absolute(path: &str) -> Result<&str, &'static str> {
    if path.starts_with('/') {
        Ok(path)
    } else if path.contains('\n') || path.starts_with("-----BEGIN") {
        Err("others can read what stands here; put the secret into a file (chmod 600) and name the file here")
    } else {
        Err("must be a path that begins with /")
    }
}
