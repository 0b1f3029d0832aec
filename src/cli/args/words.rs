//! Options as clap reads them, `--name=value`, each with the place where it was given: a flag, a `-o`, a key of a configuration file.

use super::options::Options;
use crate::cli::complete::matching;
use crate::cli::{CliError, Exit};
use clap::builder::{PossibleValue, Str, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser, ValueHint};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use serde_json::json;
use std::error::Error;
use std::ffi::OsStr;
use toml::Spanned;
use toml::de::DeValue;

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

/// The help of an option with its default.
pub fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    match arg.get_default_values() {
        [default] => format!("{help} (default: {})", default.to_string_lossy()),
        _ => help,
    }
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
            Err(refused) => Err(CliError::usage(format!("{}: {}", self.origin, self.reason(&refused)))),
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
                format!("{value:?} is not one of: {}", valid.join(", "))
            }
            _ => refused.source().map_or_else(|| refused.kind().to_string(), ToString::to_string),
        }
    }
}

/// Options in the order in which they were given. Of two values of an option that takes one, the later one counts.
#[derive(Clone, Debug, Default)]
pub struct OptionWords(Vec<Word>);

impl OptionWords {
    /// Adds one.
    pub fn push(&mut self, name: &str, value: Option<String>, origin: String) {
        let known = find(name).and_then(|arg| arg.get_long().map(str::to_owned));
        self.0.push(Word { name: known.unwrap_or_else(|| name.to_owned()), value, origin });
    }

    /// These options, and those of `beneath` that are not named here.
    pub fn over(self, mut beneath: OptionWords) -> OptionWords {
        beneath.0.retain(|below| !self.0.iter().any(|above| above.name == below.name));
        beneath.0.extend(self.0);
        beneath
    }

    /// True if an option of this name is given.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|word| word.name == name)
    }

    /// Lines of a configuration file, `key = "value"`. A string of JSON is one of TOML too.
    pub fn keys(&self) -> Result<String, CliError> {
        let mut keys: Vec<(Arg, Vec<String>)> = Vec::new();
        for Word { name, value, origin } in &self.0 {
            let arg = find(name).ok_or_else(|| CliError::usage(format!("{origin}: there is no such option")))?;
            let mut value = value.clone().unwrap_or_else(|| "true".to_owned());
            if arg.get_value_hint() == ValueHint::AnyPath {
                value = std::path::absolute(&value)?.to_string_lossy().into_owned();
            }
            match keys.iter_mut().find(|(known, _)| known.get_id() == arg.get_id()) {
                Some((_, values)) => values.push(value),
                None => keys.push((arg, vec![value])),
            }
        }
        let line = |(arg, values): &(Arg, Vec<String>)| {
            let value = if is_repeatable(arg) { json!(values) } else { json!(values.last()) };
            format!("{} = {value}\n", arg.get_long().unwrap_or_default())
        };
        Ok(keys.iter().map(line).collect())
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

/// The name of `-o` among clap's arguments.
const MOUNT_OPTIONS: &str = "OPTIONS";

/// All that is given by `-o` and by long flags, in the order of the command line.
impl Args for OptionWords {
    fn augment_args(command: Command) -> Command {
        let mount_options = Arg::new(MOUNT_OPTIONS)
            .short('o')
            .value_name("OPTION[=VALUE],…")
            .action(ArgAction::Append)
            .add(ArgValueCompleter::new(mount_options))
            .help("The options below in the notation of mount(8), separated by commas");
        Options::augment_args(command.arg(mount_options))
    }

    fn augment_args_for_update(command: Command) -> Command {
        OptionWords::augment_args(command)
    }
}

impl FromArgMatches for OptionWords {
    fn from_arg_matches(matches: &ArgMatches) -> Result<OptionWords, clap::Error> {
        let mut words = OptionWords::default();
        let flags = options();
        let named = flags.iter().map(|arg| (arg.get_id().as_str(), arg.get_long()));
        let mut given = Vec::new();
        for (id, name) in named.chain([(MOUNT_OPTIONS, None)]) {
            if matches.value_source(id) == Some(ValueSource::CommandLine) {
                let values = matches.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy());
                let values = matches.indices_of(id).into_iter().flatten().zip(values);
                given.extend(values.map(|(index, value)| (index, name, value)));
            }
        }
        given.sort_by_key(|(index, ..)| *index);
        for (_, name, value) in given {
            if let Some(name) = name {
                words.push(name, Some(value.to_string()), format!("--{name} {value}"));
            } else {
                let refused = |cause: CliError| clap::Error::raw(ErrorKind::ValueValidation, cause.message);
                words.push_mount_options(&value, Caller::Person).map_err(refused)?;
            }
        }
        Ok(words)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = OptionWords::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Completes the last key of a `-o`, or its value where that is one of a few.
pub fn mount_options(current: &OsStr) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let (before, last) = typed.split_at(typed.rfind(',').map_or(0, |comma| comma + 1));
    let of_option = |option: &Arg| -> Vec<(String, String)> {
        let name = option.get_long().unwrap_or_default();
        let help = |help: Option<&StyledStr>| help.map(ToString::to_string).unwrap_or_default();
        match last.contains('=') {
            false if placeholder(option) == "true|false" => vec![(format!("{before}{name}"), help(option.get_help()))],
            false => vec![(format!("{before}{name}="), help(option.get_help()))],
            true => {
                let value =
                    |value: PossibleValue| (format!("{before}{name}={}", value.get_name()), help(value.get_help()));
                option.get_possible_values().into_iter().map(value).collect()
            }
        }
    };
    matching(current, options().iter().flat_map(of_option))
}

/// True if the option may be given several times. In a file it is a list.
pub(super) fn is_repeatable(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

impl OptionWords {
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
        DeValue::Array(_) => Err("takes one value, not a list".to_owned()),
        DeValue::Table(_) => Err("cannot be a table".to_owned()),
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
        Err("other users can read this; put the secret into a file (chmod 600) and name the file here")
    } else {
        Err("must be a path that begins with /")
    }
}

/// The author of the text of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A person, for `resyncfs mount`.
    Person,
    /// mount(8), for its helper. It writes `rw` in front of the options unless `ro` is among them.
    Mount8 {
        /// `-s`: unknown options are ignored.
        sloppy: bool,
    },
}

/// Characters that fstab(5) writes as octal numbers: blank, tab, newline, `#`, comma, backslash.
const OCTAL: &[(&str, char)] = &[("040", ' '), ("011", '\t'), ("012", '\n'), ("043", '#'), ("054", ','), ("134", '\\')];

impl OptionWords {
    /// Adds the options in the text of a `-o`.
    pub fn push_mount_options(&mut self, text: &str, caller: Caller) -> Result<(), CliError> {
        let usage = |given: &str, reason: &str| CliError::usage(format!("-o {given}: {reason}"));
        for given in split(text).map_err(|reason| usage(text, reason))?.iter().filter(|given| !given.is_empty()) {
            let (name, value) = match given.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (given.as_str(), None),
            };
            if name == "noexec" {
                self.push("exec", Some("false".to_owned()), format!("-o {given}"));
            } else if is_ignored(name, caller) {
                tracing::trace!(given, "option of mount(8) ignored");
            } else if let Some(reason) = refusal(name) {
                // The value may be a secret and is not repeated.
                return Err(usage(name, &reason));
            } else {
                self.push(name, value, format!("-o {given}"));
            }
        }
        Ok(())
    }
}

/// True for an option of every filesystem that changes nothing here, or that mount(8), systemd and other programs read themselves.
/// `suid` and `dev` allow what the modes of this tree, 0444 and 0555, never ask for; `sync` and related options are about writing.
fn is_ignored(name: &str, caller: Caller) -> bool {
    match (name, name.strip_prefix("no").unwrap_or(name), caller) {
        ("ro" | "defaults" | "_netdev" | "_rnetdev" | "helper" | "uhelper" | "comment" | "async" | "sync", ..) => true,
        ("dirsync" | "silent" | "loud" | "quiet" | "user_xattr" | "seclabel" | "nonempty", ..) => true,
        ("default_permissions", ..) | ("rw", _, Caller::Mount8 { .. }) => true,
        (_, "suid" | "dev" | "fail" | "auto" | "user" | "users" | "owner" | "group" | "atime" | "diratime", _) => true,
        (_, "relatime" | "strictatime" | "lazytime" | "iversion" | "mand" | "symfollow" | "acl", _) => true,
        _ if ["x-", "X-", "smackfs"].iter().any(|prefix| name.starts_with(prefix)) => true,
        (_, _, Caller::Mount8 { sloppy: true }) => find(name).is_none() && refusal(name).is_none(),
        _ => false,
    }
}

/// The reason why an option of other filesystems is refused here.
fn refusal(name: &str) -> Option<String> {
    match name {
        "rw" => Some("a Source can only be read: the mount is always read-only".to_owned()),
        "remount" => {
            Some("the options of a mount do not change while it runs; unmount it and mount it again".to_owned())
        }
        _ => secret_refusal(name),
    }
}

/// The reason why a secret is refused on a command line and in a configuration file, and the option that takes it.
pub fn secret_refusal(name: &str) -> Option<String> {
    let option = match name.replace('_', "-").as_str() {
        "bearer" | "token" | "bearer-token" | "secret" => "bearer-file",
        "header" | "headers" | "authorization" | "cookie" | "api-key" => "header-file",
        "password" | "passwd" | "pass" | "username" | "login" | "credentials" => "netrc",
        "key" | "private-key" | "passphrase" => "cert",
        _ => return None,
    };
    Some(format!("other users can read this; put the secret into a file (chmod 600) and name the file: {option}=FILE"))
}

/// Splits at commas. `\,`, `\\` and fstab's octal numbers stand for themselves; so does everything within a value that is
/// wholly in double quotes.
pub(super) fn split(text: &str) -> Result<Vec<String>, &'static str> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            ',' => parts.push(std::mem::take(&mut part)),
            '"' if part.ends_with('=') && part.matches('=').count() == 1 => {
                let (quoted, after) = rest.split_once('"').ok_or("a quote is not closed")?;
                part.push_str(quoted);
                rest = after;
            }
            '\\' => match OCTAL.iter().find(|(digits, _)| rest.starts_with(digits)) {
                Some((digits, meant)) => {
                    part.push(*meant);
                    rest = &rest[digits.len()..];
                }
                None if rest.starts_with([',', '\\']) => {
                    part.push_str(&rest[..1]);
                    rest = &rest[1..];
                }
                None => part.push('\\'),
            },
            _ => part.push(character),
        }
    }
    parts.push(part);
    Ok(parts)
}
