//! The options of a mount, one table for every way to give them.
//!
//! `-o name=value,name` as mount(8) passes them; a comma or backslash within a value is written `\,` and `\\`.

mod table;
mod value;

pub use table::{OptionSpec, TABLE};

use super::{CliError, Exit};
use crate::content::{Fixity, Mirrors, Revalidate, Unannounced};
use crate::document::{Limits, Timestamp, Uri};
use crate::sync::guard::MaxDelete;
use crate::sync::selection::Selection;
use std::path::PathBuf;
use std::time::Duration;

/// What was asked for, option by option; what is `None` gets its default later.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// `set=`
    pub set: Option<Uri>,
    /// `host=`
    pub host: Option<Box<str>>,
    /// `map=`
    pub maps: Vec<(Box<str>, Box<str>)>,
    /// `extension=type`
    pub extension_by_type: bool,
    /// `include=`, `exclude=`, `type=`, `collection=`, `conforms=`, `with=`
    pub selection: Selection,
    /// `at=`
    pub at: Option<Timestamp>,
    /// `alternate=`
    pub alternate: Option<Box<str>>,
    /// `cache=`
    pub cache: Option<PathBuf>,
    /// `cache-size=`
    pub cache_size: Option<u64>,
    /// `cache-reserve=`
    pub cache_reserve: Option<u64>,
    /// `fixity=`
    pub fixity: Fixity,
    /// `mirrors=`
    pub mirrors: Mirrors,
    /// `revalidate=`
    pub revalidate: Revalidate,
    /// `unannounced=`
    pub unannounced: Unannounced,
    /// `poll=`
    pub poll: Option<Duration>,
    /// `max-delete=`
    pub max_delete: MaxDelete,
    /// `websub-listen=`
    pub websub_listen: Option<Box<str>>,
    /// `websub-callback=`, ended by a `/`.
    pub websub_callback: Option<Uri>,
    /// `timeout=`
    pub timeout: Option<Duration>,
    /// `connect-timeout=`
    pub connect_timeout: Option<Duration>,
    /// `rewrite=`
    pub rewrites: Vec<(Box<str>, Box<str>)>,
    /// `allow-host=`
    pub allowed_hosts: Vec<Box<str>>,
    /// `rate=`
    pub rate: Option<f64>,
    /// `connections=`
    pub connections: Option<usize>,
    /// `netrc=`
    pub netrc: Option<PathBuf>,
    /// `header-file=`
    pub header_file: Option<PathBuf>,
    /// `bearer-file=`
    pub bearer_file: Option<PathBuf>,
    /// `ca=`
    pub ca_bundle: Option<PathBuf>,
    /// `cert=`
    pub client_certificate: Option<PathBuf>,
    /// `max-document=`, `max-text=`, `max-depth=`, `max-links=`
    pub limits: Limits,
    /// `uid=`
    pub uid: Option<u32>,
    /// `gid=`
    pub gid: Option<u32>,
    /// `umask=`
    pub umask: Option<u16>,
    /// `allow_other`
    pub allow_other: bool,
    /// `exec`: off by default.
    pub exec: bool,
    /// `noxattr`
    pub noxattr: bool,
    /// `deny=`
    pub denied: Vec<Box<str>>,
    /// `metrics-listen=`
    pub metrics_listen: Option<std::net::SocketAddr>,
    /// `log=`
    pub log: Option<PathBuf>,
}

/// Options of mount(8) that mean nothing here, or that are so anyway.
const PASSED_OVER: &[&str] = &[
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "_netdev",
    "nofail",
    "noauto",
    "auto",
    "user",
    "users",
    "nouser",
    "defaults",
    "noatime",
    "relatime",
    "nodiratime",
    "async",
];

impl Options {
    /// Reads the values of all `-o`.
    pub fn parse(values: &[String]) -> Result<Options, CliError> {
        let mut options = Options::default();
        for given in values.iter().flat_map(|value| split(value)) {
            options.set(&given).map_err(|what| CliError::new(Exit::Usage, format!("-o {given}: {what}")))?;
        }
        Ok(options)
    }

    fn set(&mut self, given: &str) -> Result<(), String> {
        let (name, value) = given.split_once('=').unwrap_or((given, ""));
        if given.is_empty() || PASSED_OVER.contains(&given) || name.starts_with("x-") {
            return Ok(());
        }
        if name == "rw" {
            return Err("a Source can only be read: the mount is always read-only".to_owned());
        }
        let Some(spec) = TABLE.iter().find(|spec| spec.name == name) else {
            return Err(match nearest(name) {
                Some(near) => format!("there is no such option; did you mean {near}?"),
                None => "there is no such option; see: resyncfs mount --help".to_owned(),
            });
        };
        match (spec.value.is_empty(), given.contains('=')) {
            (true, true) => Err("takes no value".to_owned()),
            (false, false) => Err(format!("needs a value: {}={}", spec.name, spec.value)),
            _ => (spec.set)(self, value),
        }
    }
}

/// The help text of all options, a line each.
pub fn help() -> String {
    let mut text = String::from("Options (-o NAME[=VALUE][,…]):\n");
    for spec in TABLE {
        let form = if spec.value.is_empty() { spec.name.to_owned() } else { format!("{}={}", spec.name, spec.value) };
        text.push_str(&format!("  {form:<28} {}\n", spec.help));
    }
    text
}

/// Splits at commas; `\,` and `\\` stand for themselves.
fn split(value: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            ',' => parts.push(String::new()),
            '\\' => {
                if let (Some(part), Some(next)) = (parts.last_mut(), characters.next()) {
                    if !matches!(next, ',' | '\\') {
                        part.push('\\');
                    }
                    part.push(next);
                }
            }
            _ => {
                if let Some(part) = parts.last_mut() {
                    part.push(character);
                }
            }
        }
    }
    parts
}

/// The option a mistyped name is nearest to, where it is near at all.
fn nearest(name: &str) -> Option<&'static str> {
    TABLE
        .iter()
        .map(|spec| (distance(name, spec.name), spec.name))
        .min()
        .filter(|(distance, near)| *distance <= near.len().max(name.len()) / 3 + 1)
        .map(|(_, near)| near)
}

/// Levenshtein's distance.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Options, String> {
        Options::parse(&[value.to_owned()]).map_err(|refused| refused.message)
    }

    #[test]
    fn sizes_and_times_take_units() {
        let options = parse("cache-size=1.5G,cache-reserve=500MiB,poll=2h,timeout=90,max-delete=10%").unwrap();

        assert_eq!(options.cache_size, Some(3 << 29));
        assert_eq!(options.cache_reserve, Some(500 << 20));
        assert_eq!(options.poll, Some(Duration::from_secs(7200)));
        assert_eq!(options.timeout, Some(Duration::from_secs(90)));
        assert_eq!(Some(options.max_delete), MaxDelete::percent(10));
    }

    #[test]
    fn an_escaped_comma_belongs_to_the_value() {
        let options = parse(r"map=http://h/a\,b/=x\\y,noxattr").unwrap();

        assert_eq!(options.maps, [("http://h/a,b/".into(), r"x\y".into())]);
        assert!(options.noxattr);
    }

    #[test]
    fn what_mount_8_passes_on_is_passed_over() {
        assert!(parse("ro,_netdev,nofail,x-systemd.automount,x-gvfs-hide,user,noatime,").is_ok());
    }

    #[test]
    fn a_mistyped_option_is_named_with_the_nearest_right_one() {
        assert_eq!(
            parse("cachesize=1G").unwrap_err(),
            "-o cachesize=1G: there is no such option; did you mean cache-size?"
        );
        assert!(parse("zzzzzzzzzz").unwrap_err().contains("--help"));
    }

    #[test]
    fn a_writable_mount_is_refused_with_the_reason() {
        assert!(parse("rw").unwrap_err().contains("read-only"));
    }

    #[test]
    fn a_bad_value_says_what_would_be_good() {
        for (given, says) in [
            ("cache-size=much", "500M"),
            ("poll=soon", "5m"),
            ("max-delete=all", "0 to 100"),
            ("max-delete=101%", "0 to 100"),
            ("fixity=maybe", "strict, stream, off"),
            ("umask=9", "octal"),
            ("rate=0", "above 0"),
            ("connections=0", "above 0"),
            ("poll", "poll=TIME"),
            ("noxattr=1", "no value"),
            ("map=x", "URI_PREFIX=PATH"),
            ("set=ftp://h/", "http"),
            ("metrics-listen=0.0.0.0:9464", "no loopback address"),
            ("metrics-listen=9464", "127.0.0.1:9464"),
            ("deny=", "tumblerd"),
            ("include=[", "docs/**"),
            ("conforms=dc", "no URI of its own"),
            ("with=all", "describes"),
            ("alternate=pdf", "application/pdf"),
            ("at=yesterday", "2024-05-01T10:00:00Z"),
            ("at=2024-13-01", "2024-05-01T10:00:00Z"),
        ] {
            let refused = parse(given).unwrap_err();

            assert!(refused.contains(says), "{given}: {refused}");
        }
    }
}
