//! Mounts that have a name: `/etc/resyncfs/NAME.toml` says what is mounted where, and with which options.
//!
//! A NAME is a bare word, without slash and colon, for which there is such a file. Everything else is an address or a path, as
//! [`EntryPoint`](crate::source::EntryPoint) reads them; so `example.org` is a host unless there is an `example.org.toml`. What
//! the command line names counts before what the file says.

use super::options::{Kind, OptionSpec, Settings, TABLE, nearest, secret_place};
use super::secret::take_credentials_of_service;
use super::{CliError, Exit, given};
use crate::cli::options::Options;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// Where named mounts are described, unless a service says otherwise (ConfigurationDirectory=).
const FOLDER: &str = "/etc/resyncfs";
/// The keys that are no options.
const SOURCE: &str = "source";
const DIRECTORY: &str = "directory";

/// What is to be mounted, from all that was said.
#[derive(Clone, Debug)]
pub struct FetchSpec {
    /// As a person writes it.
    pub source: String,
    /// Where.
    pub directory: PathBuf,
    /// How.
    pub options: Options,
}

impl FetchSpec {
    /// From SOURCE or NAME, the folder, and the options of a command line.
    pub fn find(word: &str, directory: Option<PathBuf>, given: Settings) -> Result<FetchSpec, CliError> {
        let described = match is_bare_word(word) {
            true => Described::read(&folder().join(format!("{word}.toml")))?,
            false => None,
        };
        let (source, place, settings) = match described {
            Some(described) => (described.source, directory.or(described.directory), given.over(described.settings)),
            None => {
                if is_bare_word(word)
                    && let Err(cause) = crate::source::EntryPoint::parse(word)
                {
                    let file = folder().join(format!("{word}.toml"));
                    return Err(CliError::new(Exit::Usage, format!("{cause}; and there is no {}", file.display())));
                }
                (word.to_owned(), directory, given)
            }
        };
        let directory = place.ok_or_else(|| {
            CliError::new(Exit::Usage, format!("{word}: where shall it be mounted? Give the folder after it, as in: resyncfs mount {word} /mnt/repo"))
        })?;
        let mut options = settings.options()?;
        take_credentials_of_service(&mut options);
        Ok(FetchSpec { source, directory, options })
    }
}

/// The folder of the mount that `word` means: for a NAME what its file tells, else a path as it stands.
pub fn directory(word: &Path) -> Result<PathBuf, CliError> {
    let described = match word.to_str().filter(|name| is_bare_word(name)) {
        Some(name) => Described::read(&folder().join(format!("{name}.toml")))?,
        None => None,
    };
    Ok(described.and_then(|described| described.directory).unwrap_or_else(|| word.to_owned()))
}

/// Whether `word` can be a NAME.
fn is_bare_word(word: &str) -> bool {
    !word.is_empty()
        && !word.starts_with(['.', '-'])
        && word.chars().all(|character| character.is_alphanumeric() || "._-@+\\".contains(character))
}

fn folder() -> PathBuf {
    let named = std::env::var("CONFIGURATION_DIRECTORY").ok();
    let first = named.as_deref().and_then(|folders| folders.split(':').next()).map(PathBuf::from);
    first.filter(|folder| folder.is_absolute()).unwrap_or_else(|| PathBuf::from(FOLDER))
}

/// What a file says.
#[derive(Debug)]
struct Described {
    source: String,
    directory: Option<PathBuf>,
    settings: Settings,
}

impl Described {
    /// `None` where there is no such file.
    fn read(file: &Path) -> Result<Option<Described>, CliError> {
        let refuse = |what: String| CliError::new(Exit::Usage, format!("{}: {what}", file.display()));
        let opened = match given::open(file) {
            Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|cause| refuse(cause.to_string()))?,
        };
        let mode = opened.metadata().map_err(|cause| refuse(cause.to_string()))?.permissions().mode();
        if mode & 0o002 != 0 {
            return Err(refuse(format!("everybody can change it; mend with: chmod o-w {}", file.display())));
        }
        let read = given::read(opened).map_err(refuse)?;
        let text = String::from_utf8(read).map_err(|_| refuse("is not UTF-8 text".to_owned()))?;
        Described::parse(&text, file).map(Some)
    }

    fn parse(text: &str, file: &Path) -> Result<Described, CliError> {
        let at = |offset: usize| {
            let line = text.get(..offset).unwrap_or(text).matches('\n').count() + 1;
            format!("{}:{line}", file.display())
        };
        let refuse = |offset: usize, what: &str| CliError::new(Exit::Usage, format!("{}: {what}", at(offset)));
        let table = DeTable::parse(text)
            .map_err(|cause| refuse(cause.span().map_or(0, |span| span.start), cause.message()))?
            .into_inner();
        let (mut source, mut directory, mut settings) = (None, None, Settings::default());
        for (key, value) in &table {
            let name: &str = key.get_ref();
            let offset = key.span().start;
            let refuse = |what: &str| refuse(offset, &format!("{name}: {what}"));
            if name == SOURCE {
                source = Some(source_of(value.get_ref()).map_err(refuse)?);
            } else if name == DIRECTORY {
                directory = Some(absolute(text_of(value.get_ref()).map_err(refuse)?).map_err(refuse)?.into());
            } else if let Some(spec) = OptionSpec::find(name) {
                let origin = format!("{}: {name}", at(offset));
                for value in values(spec, value.get_ref()).map_err(|what| refuse(&what))? {
                    settings.push(spec, value, origin.clone());
                }
            } else if let Some(reason) = secret_place(name) {
                return Err(refuse(reason));
            } else {
                let known = TABLE.iter().map(|spec| spec.name).chain([SOURCE, DIRECTORY]);
                let near = nearest(name, known).map(|near| format!("; did you mean {near}?"));
                return Err(refuse(&format!("there is no such key{}", near.unwrap_or_default())));
            }
        }
        let source = source
            .ok_or_else(|| CliError::new(Exit::Usage, format!("{}: has no source = \"https://…\"", file.display())))?;
        Ok(Described { source, directory, settings })
    }
}

fn source_of<'v>(value: &'v DeValue<'_>) -> Result<String, &'static str> {
    let text: &'v str = text_of(value)?;
    let authority = text.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if authority.is_some_and(|authority| authority.contains('@')) {
        return Err(
            "user and password do not belong where others can read them; put them into a file (chmod 600) and name that: netrc",
        );
    }
    if text.starts_with("./") || text.starts_with("../") {
        return Err("must be an address, or a path that begins with /");
    }
    Ok(text.to_owned())
}

fn text_of<'v>(value: &'v DeValue<'_>) -> Result<&'v str, &'static str> {
    value.as_str().ok_or("must be in quotes")
}

fn absolute(path: &str) -> Result<&str, &'static str> {
    if path.starts_with('/') {
        Ok(path)
    } else if path.contains('\n') || path.starts_with("-----BEGIN") {
        Err("a secret does not belong where others can read it; put it into a file (chmod 600) and name that here")
    } else {
        Err("must be a path that begins with /")
    }
}

/// The values of one key, as `-o` would have them; `None` is a switch that is off.
fn values(spec: &OptionSpec, value: &DeValue<'_>) -> Result<Vec<Option<String>>, String> {
    match value {
        DeValue::Array(list) if spec.is_repeatable() => {
            list.iter().map(Spanned::get_ref).map(|value| single(spec, value)).collect()
        }
        DeValue::Array(_) => Err("takes one value, no list".to_owned()),
        value => Ok(vec![single(spec, value)?]),
    }
}

fn single(spec: &OptionSpec, value: &DeValue<'_>) -> Result<Option<String>, String> {
    match (spec.kind(), value) {
        (Kind::Switch, DeValue::Boolean(on)) => Ok(on.then(String::new)),
        (Kind::Switch, _) => Err("is true or false, without quotes".to_owned()),
        (Kind::Path, value) => Ok(Some(absolute(text_of(value)?)?.to_owned())),
        (_, DeValue::String(text)) => Ok(Some(text.clone().into_owned())),
        (Kind::Octal, DeValue::Integer(number)) if number.radix() == 8 || whole(number) == Some(0) => {
            Ok(whole(number).map(|number| format!("{number:o}")))
        }
        (Kind::Octal, _) => Err("is written in octal numerals, as in 0o027 or \"027\"".to_owned()),
        (Kind::Number | Kind::Size | Kind::Time, DeValue::Integer(number)) => {
            whole(number).map(|number| Some(number.to_string())).ok_or_else(|| format!("{number} is too big"))
        }
        (Kind::Number | Kind::Size | Kind::Time, DeValue::Float(number)) => Ok(Some(number.as_str().to_owned())),
        (Kind::DateTime, DeValue::Datetime(time)) => Ok(Some(time.to_string())),
        (_, DeValue::Table(_)) => Err("takes no table".to_owned()),
        _ => Err(format!("must be in quotes: {} = \"{}\"", spec.name, spec.value)),
    }
}

fn whole(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A configuration with every option that there is, commented out; `scripts/package.d/example.toml`.
pub fn example() -> String {
    let mut text = String::from(
        "# A mount by name: as /etc/resyncfs/NAME.toml this file is used by `resyncfs mount NAME` and `systemctl start resyncfs@NAME`.\n\
         # Everything but the source may be left out. What the command line says counts before what stands here.\n\
         # SIZE is \"500M\", \"10G\" or a number of octets; TIME is \"30s\", \"5m\", \"1h\" or a number of seconds.\n\
         # No secret stands here: name a file that its owner alone can read (chmod 600), or give the service a credential.\n\
         \n\
         # A site, a page, a Source Description, a Capability List, a list, a sitemap, or the path of a list on this machine.\n\
         source = \"https://repo.example.org/\"\n\n\
         # Where it is mounted, unless the command line says so.\n\
         #directory = \"/mnt/repo\"\n",
    );
    let mut heading = "";
    for spec in TABLE {
        if spec.heading() != heading {
            heading = spec.heading();
            text.push_str(&format!("\n\n# {heading}\n"));
        }
        let form = if spec.value.is_empty() { "true or false" } else { spec.value };
        text.push_str(&format!("\n# {form}: {}\n#{}\n", spec.help, example_line(spec)));
    }
    text
}

/// `key = value`, as TOML writes a value of this kind.
pub fn example_line(spec: &OptionSpec) -> String {
    let value = spec.example();
    let written = match spec.kind() {
        Kind::Switch => "true".to_owned(),
        Kind::Number => value.to_owned(),
        Kind::Octal => format!("0o{value}"),
        Kind::DateTime => value.to_owned(),
        _ if spec.is_repeatable() => format!("[\"{value}\"]"),
        _ => format!("\"{value}\""),
    };
    format!("{} = {written}", spec.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::options::{Dialect, Given};
    use clap::FromArgMatches;

    const FILE: &str = "/etc/resyncfs/x.toml";

    fn described(keys: &str) -> Result<Described, String> {
        let text = format!("source = \"https://h/\"\n{keys}");
        Described::parse(&text, Path::new(FILE)).map_err(|refused| refused.message)
    }

    fn by_file(keys: &str) -> Result<Options, String> {
        described(keys)?.settings.options().map_err(|refused| refused.message)
    }

    fn by_mount_option(text: &str) -> Settings {
        let mut settings = Settings::default();
        settings.push_mount_options(text, Dialect::Person).unwrap();
        settings
    }

    fn by_flags(flags: &[&str]) -> Settings {
        let line = ["resyncfs", "mount", "https://h/", "/mnt"].iter().chain(flags);
        let matches = crate::cli::command().try_get_matches_from(line).unwrap();
        let matches = matches.subcommand_matches("mount").unwrap();
        Given::from_arg_matches(matches).unwrap().settings().unwrap()
    }

    #[test]
    fn each_option_means_the_same_by_o_by_flag_and_in_a_file() {
        let none = format!("{:?}", Options::default());
        for spec in TABLE {
            let (flag, value) = (format!("--{}", spec.flag()), spec.example());
            let (option, flags) = match spec.kind() {
                Kind::Switch => (spec.name.to_owned(), vec![flag.as_str()]),
                _ => (format!("{}={value}", spec.name), vec![flag.as_str(), value]),
            };

            let given = format!("{:?}", by_mount_option(&option).options().unwrap());

            assert_ne!(given, none, "{option} does something");
            assert_eq!(format!("{:?}", by_flags(&flags).options().unwrap()), given, "{flags:?}");
            let line = example_line(spec);
            assert_eq!(format!("{:?}", by_file(&line).unwrap()), given, "{line}");
        }
    }

    #[test]
    fn the_example_holds_every_option_as_the_table_has_it() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/package.d/example.toml");
        if std::env::var_os("WRITE_EXAMPLE").is_some() {
            std::fs::write(&file, example()).unwrap();
        }
        let kept = std::fs::read_to_string(&file).unwrap();
        assert_eq!(kept, example(), "write it anew: WRITE_EXAMPLE=1 cargo test --lib cli::config");

        let uncommented: String = kept.lines().fold(String::new(), |text, line| {
            let line = line.strip_prefix('#').filter(|line| !line.starts_with(' ')).unwrap_or(line);
            text + line + "\n"
        });
        let described = Described::parse(&uncommented, &file).unwrap();
        assert_eq!(described.directory.as_deref(), Some(Path::new("/mnt/repo")));
        described.settings.options().unwrap();
    }

    #[test]
    fn values_have_the_types_of_toml_where_it_has_them() {
        let options = by_file(
            "cache_size = 2_000\ntimeout = 1.5\nconnections = 4\numask = 0o027\nallow-other = true\nexec = false\n\
             at = 2024-05-01\ninclude = [\"a/**\", \"b, c\"]\nallow-host = \"h\"\npoll = \"2h\"\n",
        )
        .unwrap();

        assert_eq!((options.cache_size, options.connections, options.umask), (Some(2000), Some(4), Some(0o027)));
        assert_eq!(options.timeout, Some(std::time::Duration::from_millis(1500)));
        assert_eq!(options.poll, Some(std::time::Duration::from_secs(7200)));
        assert_eq!((options.allow_other, options.exec), (true, false));
        assert_eq!(options.allowed_hosts, ["h".into()]);
        let by_option = by_mount_option(r"include=a/**,include=b\, c,at=2024-05-01").options().unwrap();
        assert_eq!(format!("{:?}", options.selection), format!("{:?}", by_option.selection));
        assert_eq!(options.at, by_option.at);
    }

    #[test]
    fn the_command_line_counts_before_the_file() {
        let file =
            || described("poll = \"1h\"\nnoxattr = true\nexec = true\ninclude = [\"a\", \"b\"]\n").unwrap().settings;

        let options = by_mount_option("poll=5m,noexec,include=c").over(file()).options().unwrap();
        let flags = by_flags(&["--poll", "5m", "-o", "noexec", "--include", "c"]).over(file()).options().unwrap();

        assert_eq!(options.poll, Some(std::time::Duration::from_secs(300)));
        assert_eq!((options.noxattr, options.exec), (true, false));
        let alone = by_mount_option("include=c").options().unwrap();
        assert_eq!(format!("{:?}", options.selection), format!("{:?}", alone.selection));
        assert_eq!(format!("{options:?}"), format!("{flags:?}"));
    }

    #[test]
    fn what_is_wrong_is_named_with_file_and_line() {
        for (keys, line, says) in [
            ("cachesize = 1", 2, "did you mean cache-size?"),
            ("\n# a remark\ndirectry = \"/mnt\"", 4, "did you mean directory?"),
            ("poll = \"soon\"", 2, "5m"),
            ("noxattr = \"yes\"", 2, "true or false"),
            ("umask = 27", 2, "0o027"),
            ("host = 5", 2, "in quotes"),
            ("poll = [\"5m\"]", 2, "no list"),
            ("directory = \"mnt\"", 2, "begins with /"),
            ("netrc = \"machine h login l password s3cr3t\"", 2, "begins with /"),
            ("cert = \"\"\"-----BEGIN PRIVATE KEY-----\ns3cr3t\"\"\"", 2, "chmod 600"),
            ("bearer = \"s3cr3t\"", 2, "bearer-file"),
            ("password = \"s3cr3t\"", 2, "netrc"),
            ("headers = [\"X-Key: s3cr3t\"]", 2, "header-file"),
            ("poll = \"5m", 2, ""),
            ("poll = \"5m\"\npoll = \"6m\"", 3, "duplicate"),
        ] {
            let refused = by_file(keys).unwrap_err();

            assert!(refused.starts_with(&format!("{FILE}:{line}: ")), "{keys}: {refused}");
            assert!(refused.contains(says) && !refused.contains("s3cr3t"), "{keys}: {refused}");
            assert_eq!(refused.lines().count(), 1, "{refused}");
        }
        let parse = |text: &str| Described::parse(text, Path::new(FILE)).unwrap_err().message;
        assert!(parse("").contains("source"));
        let refused = parse("source = \"https://me:s3cr3t@h/\"");
        assert!(refused.contains("netrc") && !refused.contains("s3cr3t"), "{refused}");
    }

    #[test]
    fn a_name_is_a_bare_word() {
        for (word, is_name) in [
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
            assert_eq!(is_bare_word(word), is_name, "{word}");
        }
    }
}
