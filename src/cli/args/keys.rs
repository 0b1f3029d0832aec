//! Options as keys of a configuration file, with values of the types of TOML.

use super::mount_options::secret_refusal;
use super::options::Options;
use super::words::{Words, find, placeholder, suggestion};
use clap::{Arg, ArgAction, Args, Command, ValueHint};
use toml::Spanned;
use toml::de::DeValue;

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

/// The value in the notation of a command line. What TOML has no type for must be in quotes.
fn text(arg: &Arg, value: &DeValue<'_>) -> Result<String, String> {
    let form = placeholder(arg);
    let is_number = matches!(form, "NUMBER" | "PERCENT" | "SIZE" | "TIME" | "TIME|never");
    match value {
        DeValue::String(path) if arg.get_value_hint() == ValueHint::AnyPath => Ok(absolute(path)?.to_owned()),
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Boolean(on) if form == "true|false" => Ok(on.to_string()),
        DeValue::Datetime(time) if form == "DATETIME" => Ok(time.to_string()),
        DeValue::Float(number) if is_number => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) if form == "OCTAL" && number.radix() == 8 => Ok(format!("0o{}", number.as_str())),
        DeValue::Integer(number) if form == "OCTAL" && number.as_str() == "0" => Ok("0".to_owned()),
        DeValue::Integer(_) if form == "OCTAL" => Err("is written in octal digits, as in 0o027 or \"027\"".to_owned()),
        DeValue::Integer(number) if is_number => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| format!("{number} is too big")),
        DeValue::Array(_) => Err("takes one value, no list".to_owned()),
        DeValue::Table(_) => Err("takes no table".to_owned()),
        _ if form == "true|false" => Err("is true or false, without quotes".to_owned()),
        _ => Err(format!("must be in quotes: {} = \"{form}\"", arg.get_long().unwrap_or_default())),
    }
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
