//! The options of a mount, one table for every way to give them.
//!
//! `-o name=value,name` as mount(8) passes them; a comma or backslash within a value is written `\,` and `\\`.

use super::{CliError, Exit};
use crate::content::{Fixity, Mirrors, Revalidate, Unannounced};
use crate::document::{Limits, Uri};
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
    /// `type=`, `collection=`, `conforms=`
    pub selection: Selection,
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
    /// `log=`
    pub log: Option<PathBuf>,
}

/// One option: its name, what its value looks like (empty: none is taken), a line of help, and what it does.
pub struct OptionSpec {
    /// As typed.
    pub name: &'static str,
    /// `SIZE`, `FILE`, …
    pub value: &'static str,
    /// One line.
    pub help: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

/// Every option.
pub const TABLE: &[OptionSpec] = &[
    OptionSpec {
        name: "set",
        value: "URI",
        help: "mount this set alone (its Capability List, or what describes it)",
        set: |o, v| match Uri::parse(v) {
            Ok(uri) => {
                o.set = Some(uri);
                Ok(())
            }
            Err(_) => Err(format!("{v:?} is no address such as https://HOST/capabilitylist.xml")),
        },
    },
    OptionSpec {
        name: "host",
        value: "HOST[:PORT]",
        help: "the host whose resources lie below the root (default: the Source's own)",
        set: |o, v| {
            o.host = Some(v.to_ascii_lowercase().into());
            Ok(())
        },
    },
    OptionSpec {
        name: "map",
        value: "URI_PREFIX=PATH",
        help: "show what begins with URI_PREFIX below PATH",
        set: |o, v| pair(v, "URI_PREFIX=PATH").map(|found| o.maps.push(found)),
    },
    OptionSpec {
        name: "extension",
        value: "type",
        help: "give names without extension the one of their published type",
        set: |o, v| choice(v, &[("type", true)]).map(|on| o.extension_by_type = on),
    },
    OptionSpec {
        name: "type",
        value: "TYPE",
        help: "only resources of this media type, such as application/pdf or image/*; may be repeated",
        set: |o, v| {
            o.selection.types.push(v.into());
            Ok(())
        },
    },
    OptionSpec {
        name: "collection",
        value: "URI",
        help: "only members of this collection; may be repeated",
        set: |o, v| Uri::parse(v).map(|uri| o.selection.collections.push(uri)).map_err(|cause| cause.to_string()),
    },
    OptionSpec {
        name: "conforms",
        value: "URI",
        help: "only records of this format (their profile, or what they are describedby); may be repeated",
        set: |o, v| Uri::parse(v).map(|uri| o.selection.formats.push(uri)).map_err(|cause| cause.to_string()),
    },
    OptionSpec {
        name: "cache",
        value: "DIR",
        help: "folder of catalog and objects (default: the system's or the user's cache folder)",
        set: |o, v| path(v).map(|found| o.cache = Some(found)),
    },
    OptionSpec {
        name: "cache-size",
        value: "SIZE",
        help: "octets the cache may take, with K, M, G or T (default: 10G or a tenth of the free space)",
        set: |o, v| size(v).map(|found| o.cache_size = Some(found)),
    },
    OptionSpec {
        name: "cache-reserve",
        value: "SIZE",
        help: "free space the cache leaves on its file system (default: 1G)",
        set: |o, v| size(v).map(|found| o.cache_reserve = Some(found)),
    },
    OptionSpec {
        name: "fixity",
        value: "strict|stream|off",
        help: "verify everything whole first, or stream big files (default), or ignore published hashes",
        set: |o, v| {
            choice(v, &[("strict", Fixity::Strict), ("stream", Fixity::Stream), ("off", Fixity::Off)])
                .map(|found| o.fixity = found)
        },
    },
    OptionSpec {
        name: "mirrors",
        value: "auto|first|last|off",
        help: "where mirrors are asked (default auto: first where a hash is published)",
        set: |o, v| {
            choice(
                v,
                &[("auto", Mirrors::Auto), ("first", Mirrors::First), ("last", Mirrors::Last), ("off", Mirrors::Off)],
            )
            .map(|found| o.mirrors = found)
        },
    },
    OptionSpec {
        name: "revalidate",
        value: "TIME|never",
        help: "ask so often for files whose entry has no date and no hash (default: by changefreq, else 1h)",
        set: |o, v| {
            o.revalidate = if v == "never" { Revalidate::Never } else { Revalidate::Every(time(v)?) };
            Ok(())
        },
    },
    OptionSpec {
        name: "unannounced",
        value: "error|show",
        help: "bytes newer than the list and others than it says: reading fails (default), or shows them unverified",
        set: |o, v| {
            choice(v, &[("error", Unannounced::Error), ("show", Unannounced::Show)]).map(|found| o.unannounced = found)
        },
    },
    OptionSpec {
        name: "poll",
        value: "TIME",
        help: "look for changes this often, with s, m, h or d (default: by the documents' size, 5m at least)",
        set: |o, v| time(v).map(|found| o.poll = Some(found)),
    },
    OptionSpec {
        name: "timeout",
        value: "TIME",
        help: "a read without progress for so long fails (default: 30s)",
        set: |o, v| time(v).map(|found| o.timeout = Some(found)),
    },
    OptionSpec {
        name: "connect-timeout",
        value: "TIME",
        help: "time for name, connection and TLS (default: 10s)",
        set: |o, v| time(v).map(|found| o.connect_timeout = Some(found)),
    },
    OptionSpec {
        name: "rewrite",
        value: "FROM=TO",
        help: "fetch URIs that begin with FROM from TO (a Source that published http://localhost:8080/)",
        set: |o, v| pair(v, "FROM=TO").map(|found| o.rewrites.push(found)),
    },
    OptionSpec {
        name: "allow-host",
        value: "HOST[:PORT]",
        help: "reach this host although its address is private",
        set: |o, v| {
            o.allowed_hosts.push(v.to_ascii_lowercase().into());
            Ok(())
        },
    },
    OptionSpec {
        name: "rate",
        value: "NUMBER",
        help: "requests a second to one host (default: unbounded)",
        set: |o, v| match v.parse::<f64>() {
            Ok(rate) if rate.is_finite() && rate > 0.0 => {
                o.rate = Some(rate);
                Ok(())
            }
            _ => Err(format!("{v:?} is no number above 0")),
        },
    },
    OptionSpec {
        name: "connections",
        value: "NUMBER",
        help: "requests under way to one host (default: 16)",
        set: |o, v| match v.parse() {
            Ok(0) | Err(_) => Err(format!("{v:?} is no whole number above 0")),
            Ok(connections) => {
                o.connections = Some(connections);
                Ok(())
            }
        },
    },
    OptionSpec {
        name: "netrc",
        value: "FILE",
        help: "user names and passwords by host, as curl reads them",
        set: |o, v| path(v).map(|found| o.netrc = Some(found)),
    },
    OptionSpec {
        name: "header-file",
        value: "FILE",
        help: "header fields for the Source's host, one a line",
        set: |o, v| path(v).map(|found| o.header_file = Some(found)),
    },
    OptionSpec {
        name: "bearer-file",
        value: "FILE",
        help: "a bearer token for the Source's host",
        set: |o, v| path(v).map(|found| o.bearer_file = Some(found)),
    },
    OptionSpec {
        name: "ca",
        value: "FILE",
        help: "more trusted certificates, PEM",
        set: |o, v| path(v).map(|found| o.ca_bundle = Some(found)),
    },
    OptionSpec {
        name: "cert",
        value: "FILE",
        help: "client certificate and key, PEM",
        set: |o, v| path(v).map(|found| o.client_certificate = Some(found)),
    },
    OptionSpec {
        name: "max-document",
        value: "SIZE",
        help: "octets of one list after decompression (default: 16G)",
        set: |o, v| size(v).map(|found| o.limits.document = found),
    },
    OptionSpec {
        name: "max-text",
        value: "SIZE",
        help: "octets of one text or attribute of a list (default: 64K)",
        set: |o, v| size(v).map(|found| o.limits.text = usize::try_from(found).unwrap_or(usize::MAX)),
    },
    OptionSpec {
        name: "max-depth",
        value: "NUMBER",
        help: "depth of nested elements of a list (default: 64)",
        set: |o, v| number(v).map(|found| o.limits.depth = found as usize),
    },
    OptionSpec {
        name: "max-links",
        value: "NUMBER",
        help: "links of one entry (default: 1000)",
        set: |o, v| number(v).map(|found| o.limits.links = found as usize),
    },
    OptionSpec {
        name: "uid",
        value: "NUMBER",
        help: "owner of everything (default: you)",
        set: |o, v| number(v).map(|found| o.uid = Some(found)),
    },
    OptionSpec {
        name: "gid",
        value: "NUMBER",
        help: "group of everything (default: yours)",
        set: |o, v| number(v).map(|found| o.gid = Some(found)),
    },
    OptionSpec {
        name: "umask",
        value: "OCTAL",
        help: "bits taken from 0444 and 0555 (default: 0)",
        set: |o, v| match u16::from_str_radix(v, 8) {
            Ok(umask) if umask <= 0o777 => {
                o.umask = Some(umask);
                Ok(())
            }
            _ => Err(format!("{v:?} is no octal number up to 777")),
        },
    },
    OptionSpec {
        name: "allow_other",
        value: "",
        help: "let other users read too (default for root)",
        set: |o, _| {
            o.allow_other = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "exec",
        value: "",
        help: "let programs in the mount be run",
        set: |o, _| {
            o.exec = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "noxattr",
        value: "",
        help: "no extended attributes: ls -l is five times faster on huge folders",
        set: |o, _| {
            o.noxattr = true;
            Ok(())
        },
    },
    OptionSpec {
        name: "log",
        value: "FILE",
        help: "where a mount in the background logs (default: in its cache folder)",
        set: |o, v| path(v).map(|found| o.log = Some(found)),
    },
];

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

fn pair(value: &str, form: &str) -> Result<(Box<str>, Box<str>), String> {
    match value.split_once('=') {
        Some((from, to)) if !from.is_empty() => Ok((from.into(), to.into())),
        _ => Err(format!("{value:?} is not {form}")),
    }
}

fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("{value:?} is none of: {}", names.join(", "))
    })
}

fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() {
        Err("is empty".to_owned())
    } else {
        std::path::absolute(value).map_err(|cause| cause.to_string())
    }
}

fn number(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is no number"))
}

/// `512`, `10G`, `1.5T`: octets, by powers of 1024.
fn size(value: &str) -> Result<u64, String> {
    let (digits, shift) = match value.trim_end_matches(['B', 'b', 'i']).char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&value[..at], 10),
        Some((at, 'm' | 'M')) => (&value[..at], 20),
        Some((at, 'g' | 'G')) => (&value[..at], 30),
        Some((at, 't' | 'T')) => (&value[..at], 40),
        _ => (value, 0),
    };
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok((number * (1u64 << shift) as f64) as u64),
        _ => Err(format!("{value:?} is no size such as 500M or 10G")),
    }
}

/// `90`, `90s`, `5m`, `2h`, `1d`.
fn time(value: &str) -> Result<Duration, String> {
    let (digits, unit) = match value.char_indices().next_back() {
        Some((at, 's')) => (&value[..at], 1.0),
        Some((at, 'm')) => (&value[..at], 60.0),
        Some((at, 'h')) => (&value[..at], 3600.0),
        Some((at, 'd')) => (&value[..at], 86_400.0),
        _ => (value, 1.0),
    };
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 && number * unit < 1e9 => {
            Ok(Duration::from_secs_f64(number * unit))
        }
        _ => Err(format!("{value:?} is no time such as 30s, 5m or 1h")),
    }
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

/// Text from a Source without what a terminal would obey: control, bidirectional and zero-width characters.
pub fn printable(text: &str) -> String {
    let obeyed = |c: char| match c {
        '\n' | '\t' => false,
        '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => true,
        _ => c.is_control(),
    };
    text.chars().map(|c| if obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// The same for a value within a line, which must not pretend to be lines of ours.
pub fn printable_value(value: &str) -> String {
    printable(&value.replace(['\n', '\t'], "\u{fffd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<Options, String> {
        Options::parse(&[value.to_owned()]).map_err(|refused| refused.message)
    }

    #[test]
    fn sizes_and_times_take_units() {
        let options = parse("cache-size=1.5G,cache-reserve=500MiB,poll=2h,timeout=90").unwrap();

        assert_eq!(options.cache_size, Some(3 << 29));
        assert_eq!(options.cache_reserve, Some(500 << 20));
        assert_eq!(options.poll, Some(Duration::from_secs(7200)));
        assert_eq!(options.timeout, Some(Duration::from_secs(90)));
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
            ("fixity=maybe", "strict, stream, off"),
            ("umask=9", "octal"),
            ("rate=0", "above 0"),
            ("connections=0", "above 0"),
            ("poll", "poll=TIME"),
            ("noxattr=1", "no value"),
            ("map=x", "URI_PREFIX=PATH"),
            ("set=ftp://h/", "http"),
        ] {
            let refused = parse(given).unwrap_err();

            assert!(refused.contains(says), "{given}: {refused}");
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        assert_eq!(printable("a\x1b[31mb\u{9b}c\u{202e}\n"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}\n");
        assert_eq!(printable_value("a\nDeviations   none\t"), "a\u{fffd}Deviations   none\u{fffd}");
    }
}
