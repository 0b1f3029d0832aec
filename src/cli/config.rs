//! Mounts that have a name: `NAME.toml` holds the Source, the folder and the options of a mount. A user's own file in
//! `~/.config/resyncfs` counts before the one in `/etc/resyncfs`; root has the latter alone.
//!
//! A NAME is a bare word, without slash and colon, for which there is such a file. Everything else is an address or a path, as
//! [`EntryPoint`] reads them. So `example.org` is a host unless there is an `example.org.toml`. The command line overrides the
//! file.

use super::args::{OptionWords, Options, absolute, string};
use super::option_files::{Access, read_text, take_credentials_of_service};
use super::render::printable_value;
use super::{CliError, Exit};
use crate::source::{EntryPoint, EntryPointError};
use rustix::process::geteuid;
use serde_json::json;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The folder of these files for all users.
const FOLDER: &str = "/etc/resyncfs";

/// A Source, a mount point, and options.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// An address or a path, as it was given.
    pub source: String,
    /// The mount point.
    pub directory: PathBuf,
    /// The options of file and command line.
    pub options: Options,
}

impl MountRequest {
    /// The request of a command line: SOURCE or NAME, the folder, and options.
    pub fn new(word: &str, directory: Option<PathBuf>, given: OptionWords) -> Result<MountRequest, CliError> {
        if let Some(address) = directory.as_deref().and_then(Path::to_str).filter(|given| is_swapped(word, given)) {
            let what = format!("the Source comes first, then the folder: resyncfs mount {address} {word}");
            return Err(CliError::usage(what));
        }
        let (source, of_file, words) = source_of_word(word, given)?;
        let directory = directory.or(of_file);
        let directory = directory.ok_or_else(|| {
            CliError::usage(format!(
                "{word}: the folder to mount on is missing; give it as in: resyncfs mount {word} /mnt/repo"
            ))
        })?;
        let mut options = words.parse()?;
        take_credentials_of_service(&mut options.credentials);
        Ok(MountRequest { source, directory, options })
    }
}

/// The Source that `word` is the address, the path or the NAME of, with the options of its file and those of `given`.
pub fn source(word: &str, given: &[String]) -> Result<(String, Options), CliError> {
    let (source, _, words) = source_of_word(word, OptionWords::of_person(given)?)?;
    Ok((source, words.parse()?))
}

fn source_of_word(word: &str, given: OptionWords) -> Result<(String, Option<PathBuf>, OptionWords), CliError> {
    match ConfigFile::find(word)? {
        Some(file) => Ok((file.source, file.directory, given.over(file.words))),
        None => {
            EntryPoint::parse(word).map_err(|cause| no_source(word, &cause))?;
            Ok((word.to_owned(), None, given))
        }
    }
}

/// True if `directory` is the Source and `word` the folder.
fn is_swapped(word: &str, directory: &str) -> bool {
    let is_folder = || EntryPoint::parse(word).is_err() && matches!(text_of(word), Ok(None));
    let is_host = || EntryPoint::over_http(directory).is_some() && !Path::new(directory).exists();
    !word.contains("://") && (directory.contains("://") || (is_folder() && is_host()))
}

fn no_source(word: &str, cause: &EntryPointError) -> CliError {
    let missing: Vec<_> = files_of(word).iter().map(|file| file.display().to_string()).collect();
    match is_name(word) {
        true => CliError::usage(format!("{cause}; and there is no {}", missing.join(" and no "))),
        false => CliError::of(Exit::Usage, cause),
    }
}

/// The folder of a mount: for a NAME the one in its file, whatever is wrong with other keys, otherwise the path itself.
pub fn directory(word: &Path) -> Result<PathBuf, CliError> {
    let Some((file, text)) = word.to_str().map(text_of).transpose()?.flatten() else { return Ok(word.to_owned()) };
    let named = |text: &str| {
        let (table, _) = DeTable::parse_recoverable(text);
        let value = table.get_ref().get("directory")?.get_ref();
        Some(absolute(string(value).ok()?).ok()?.into())
    };
    // A line by itself counts where the lines before it are broken.
    match named(&text).or_else(|| text.lines().find_map(named)) {
        Some(directory) => Ok(directory),
        None => Ok(ConfigFile::parse(&text, &file)?.directory.unwrap_or_else(|| word.to_owned())),
    }
}

/// True if `word` can be a NAME.
fn is_name(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with(['.', '-'])
        && word.chars().all(|character| character.is_alphanumeric() || "._-@+\\".contains(character))
}

/// The places for the file of a NAME, the one that counts first.
fn files_of(name: &str) -> Vec<PathBuf> {
    folders().into_iter().map(|folder| folder.join(format!("{name}.toml"))).collect()
}

/// The folder that systemd names (ConfigurationDirectory=) alone, else the user's own and the system's. Root does not read a user's,
/// not even where `sudo` kept that user's environment: the file decides what root runs and which secrets it sends.
fn folders() -> Vec<PathBuf> {
    if let Some(folder) = named("CONFIGURATION_DIRECTORY") {
        return vec![folder];
    }
    let own = if geteuid().is_root() { None } else { of_user() };
    own.map(|own| own.join("resyncfs")).into_iter().chain([FOLDER.into()]).collect()
}

/// The folder that `variable` names.
fn named(variable: &str) -> Option<PathBuf> {
    let value = std::env::var_os(variable)?;
    std::env::split_paths(&value).next().filter(|folder| folder.is_absolute())
}

/// The folder of this user's configuration.
pub fn of_user() -> Option<PathBuf> {
    let home = || std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".config"));
    named("XDG_CONFIG_HOME").or_else(home)
}

/// The file of a NAME and its text; `None` where `word` is not a NAME, or has no file.
pub fn text_of(word: &str) -> Result<Option<(PathBuf, String)>, CliError> {
    let exists = |file: &PathBuf| is_name(word) && !matches!(file.try_exists(), Ok(false));
    let Some(file) = files_of(word).into_iter().find(exists) else { return Ok(None) };
    // `su` keeps XDG_CONFIG_HOME: the folder may be another user's.
    let is_own = !geteuid().is_root() && !file.starts_with(FOLDER);
    let access = if is_own { Access::OwnWrites } else { Access::OwnerWrites };
    let text = read_text(&file, access)?;
    Ok(Some((file, text)))
}

/// The NAMEs that have a file.
pub fn names() -> Vec<String> {
    let files = folders().into_iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let name = |file: std::fs::DirEntry| file.file_name().to_str()?.strip_suffix(".toml").map(str::to_owned);
    files.filter_map(name).filter(|name| is_name(name)).collect()
}

/// The file of a new mount, which is not there yet.
pub fn new_file(name: &str) -> Result<PathBuf, CliError> {
    let refused = |why: String| Err(CliError::usage(format!("{name:?} {why}; name the mount with --name NAME")));
    // systemctl writes other characters of a unit's name as \xNN, and the unit would look for a file of that name (systemd.unit(5)).
    if !is_name(name)
        || name.contains(|character: char| !character.is_ascii_alphanumeric() && !"._-@".contains(character))
    {
        return refused("is not a name of ASCII letters, digits, and . _ - @".to_owned());
    }
    let Some(file) = files_of(name).into_iter().next() else { return refused("has no folder".to_owned()) };
    match file.try_exists() {
        Ok(true) => refused(format!("is taken by {}", file.display())),
        _ => Ok(file),
    }
}

/// Writes the file of a new mount, and the folder it is in.
pub fn write(file: &Path, source: &str, directory: &Path, words: &OptionWords) -> Result<(), CliError> {
    let (shown, folder) = (json!(source), json!(directory.to_string_lossy()));
    let text = format!(
        "# Written by resyncfs init; all keys: resyncfs mount --help\nsource = {shown}\ndirectory = {folder}\n"
    );
    let text = text + &words.keys()?;
    ConfigFile::parse(&text, file)?.words.parse()?;
    let write = || {
        file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        File::create_new(file)?.write_all(text.as_bytes())
    };
    write().map_err(|cause: io::Error| CliError::at(Exit::Failure, file, cause))
}

/// The content of a file.
#[derive(Debug)]
struct ConfigFile {
    source: String,
    directory: Option<PathBuf>,
    words: OptionWords,
}

impl ConfigFile {
    /// `None` where `word` is not a NAME, or has no file.
    fn find(word: &str) -> Result<Option<ConfigFile>, CliError> {
        text_of(word)?.map(|(file, text)| ConfigFile::parse(&text, &file)).transpose()
    }

    fn parse(text: &str, file: &Path) -> Result<ConfigFile, CliError> {
        let file = file.display();
        let line = |offset: usize| text.get(..offset).unwrap_or(text).matches('\n').count() + 1;
        let refuse = |offset: usize, reason: &str| CliError::usage(format!("{file}:{}: {reason}", line(offset)));
        let broken = |cause: toml::de::Error| {
            let at = cause.span().map_or(0, |span| span.start);
            refuse(at, &no_toml(cause.message(), text.lines().nth(line(at) - 1).unwrap_or_default()))
        };
        let table = DeTable::parse(text).map_err(broken)?.into_inner();
        let (mut source, mut directory, mut words) = (None, None, OptionWords::default());
        for (key, value) in &table {
            let (name, offset, value) = (key.get_ref().as_ref(), key.span().start, value.get_ref());
            let added: Result<(), String> = match name {
                "source" => source_of(value).map(|found| source = Some(found)).map_err(str::to_owned),
                "directory" => {
                    string(value).and_then(absolute).map(|found| directory = Some(found.into())).map_err(str::to_owned)
                }
                key => words.push_key(key, value, &format!("{file}:{}: {key}", line(offset))),
            };
            added.map_err(|reason| refuse(offset, &format!("{name}: {reason}")))?;
        }
        let source = source.ok_or_else(|| CliError::usage(format!("{file}: has no source = \"https://…\"")))?;
        Ok(ConfigFile { source, directory, words })
    }
}

/// The reason why a line cannot be read. The line may hold a secret, so only its key is shown.
fn no_toml(cause: &str, line: &str) -> String {
    let key = line.split_once('=').map(|(key, _)| printable_value(key.trim()));
    match key {
        Some(key) if cause.starts_with("duplicate") => format!("{key}: the key is a duplicate of an earlier one"),
        Some(key) => format!("not valid TOML: {key} = …; write it as in: source = \"https://repo.example.org/\""),
        None => "not valid TOML; write a line as in: source = \"https://repo.example.org/\"".to_owned(),
    }
}

fn source_of(value: &DeValue<'_>) -> Result<String, &'static str> {
    let text = string(value)?;
    let authority = text.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(
            "other users can read a user name and a password here; put them into a file (chmod 600) and name the file: netrc = \"FILE\"",
        );
    }
    if text.starts_with("./") || text.starts_with("../") {
        return Err("must be an address, or a path that begins with /");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "/etc/resyncfs/x.toml";

    fn parse(text: &str) -> Result<ConfigFile, String> {
        ConfigFile::parse(text, Path::new(FILE)).map_err(|refused| refused.message)
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_line() {
        for (keys, line, says) in [
            ("cachesize = 1", 2, "did you mean cache-size?"),
            ("\n# a remark\ndirectry = \"/mnt\"", 4, "did you mean directory?"),
            ("poll = \"soon\"", 2, "5m"),
            ("noxattr = \"yes\"", 2, "true, false"),
            ("umask = 27", 2, "0o027"),
            ("host = { a = 1 }", 2, "cannot be a table"),
            ("cache-size = 99999999999999999999", 2, "too big"),
            ("host = 5", 2, "in quotes"),
            ("cache = true", 2, "in quotes"),
            ("log = 5", 2, "in quotes"),
            ("noxattr = 1", 2, "true or false"),
            ("poll = [\"5m\"]", 2, "not a list"),
            ("directory = \"mnt\"", 2, "begins with /"),
            ("netrc = \"machine h login l password s3cr3t\"", 2, "begins with /"),
            ("cert = \"\"\"-----BEGIN PRIVATE KEY-----\ns3cr3t\"\"\"", 2, "chmod 600"),
            ("bearer = \"s3cr3t\"", 2, "bearer-file"),
            ("password = \"s3cr3t\"", 2, "netrc"),
            ("headers = [\"X-Key: s3cr3t\"]", 2, "header-file"),
            ("poll = \"5m", 2, "not valid TOML: poll = …; write it as in: source = \"https://"),
            ("netrc = s3cr3t", 2, "not valid TOML: netrc = …"),
            ("s3cr3t", 2, "not valid TOML; write a line as in: source ="),
            ("poll = \"5m\"\npoll = \"6m\"", 3, "poll: the key is a duplicate"),
        ] {
            let text = format!("source = \"https://h/\"\n{keys}");
            let refused = parse(&text).and_then(|file| file.words.parse().map_err(|it| it.message)).unwrap_err();

            assert!(refused.starts_with(&format!("{FILE}:{line}: ")), "{keys}: {refused}");
            assert!(refused.contains(says) && !refused.contains("s3cr3t"), "{keys}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
        assert!(parse("").unwrap_err().contains("source"));
        let refused = parse("source = \"https://me:s3cr3t@h/\"").unwrap_err();
        assert!(refused.contains("netrc") && !refused.contains("s3cr3t"), "{refused}");
    }

    #[test]
    fn a_name_is_a_bare_word() {
        for (word, expected) in [
            ("repo", true),
            ("repo.example.org", true),
            (r"my\x2drepo", true),
            ("https://h/", false),
            ("h/list.xml", false),
            ("./repo", false),
            ("..", false),
            ("h:80", false),
            ("", false),
        ] {
            assert_eq!(is_name(word), expected, "{word}");
        }
    }
}
