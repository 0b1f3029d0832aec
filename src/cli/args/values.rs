//! How the value of an option is read; an error says what a right value looks like.

use crate::content::Revalidate;
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::sync::deletion_guard::MaxDelete;
use crate::sync::selection::Globs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes without which no list can be read.
pub const SMALLEST_DOCUMENT: u64 = 1024;
/// Bytes without which no URI of a list can be read.
pub const SMALLEST_TEXT: u64 = 256;
/// Elements of the smallest list: urlset, url, loc.
const SMALLEST_DEPTH: u32 = 3;

/// One of some words, which clap lists in help and completions.
pub fn choice<T: Copy + Send + Sync + 'static>(
    choices: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    let words = PossibleValuesParser::new(choices.iter().map(|(word, _)| *word));
    words.try_map(|given| {
        choices.iter().find(|(word, _)| *word == given).map(|(_, value)| *value).ok_or("is not a choice")
    })
}

pub fn set(value: &str) -> Result<Uri, String> {
    Uri::parse(value).map_err(|_| format!("{value:?} is not an address such as https://HOST/capabilitylist.xml"))
}

/// A URI that ends in `/`.
pub fn callback(value: &str) -> Result<Uri, String> {
    let folder = if value.ends_with('/') { value.to_owned() } else { format!("{value}/") };
    let uri = Uri::parse(&folder).ok().filter(|uri| uri.query().is_none());
    uri.ok_or_else(|| format!("{value:?} is not an address such as https://HOST/websub/"))
}

/// `HOST` or `HOST:PORT`, in lower case; neither an address nor a path.
pub fn host(value: &str) -> Result<Box<str>, String> {
    if value.is_empty() || value.contains(|c: char| c == '/' || c == '@' || c.is_whitespace()) {
        return Err(format!("{value:?} is not a HOST or HOST:PORT such as repo.example.org:8080"));
    }
    Ok(value.to_ascii_lowercase().into())
}

pub fn listen(value: &str) -> Result<Box<str>, String> {
    match value.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(value.into()),
        _ => Err(format!("{value:?} is not a HOST:PORT such as 0.0.0.0:8090")),
    }
}

/// Both sides of a `=`, in this form.
pub fn pair(form: &'static str) -> impl Fn(&str) -> Result<(Box<str>, Box<str>), String> + Clone {
    move |value| match value.split_once('=') {
        Some((from, to)) if !from.is_empty() => Ok((from.into(), to.into())),
        _ => Err(format!("{value:?} is not {form}")),
    }
}

pub fn timestamp(value: &str) -> Result<Timestamp, String> {
    Timestamp::parse(value).ok_or_else(|| format!("{value:?} is not a time such as 2024-05-01T10:00:00Z or 2024-05-01"))
}

/// A valid pattern; all patterns of an option are compiled together later.
pub fn glob(value: &str) -> Result<Box<str>, String> {
    Globs::default().add(value).map_err(|cause| chain(&cause))?;
    Ok(value.into())
}

pub fn media_type(value: &str) -> Result<Box<str>, String> {
    match value.split_once('/') {
        Some((kind, subtype)) if !kind.is_empty() && !subtype.is_empty() => Ok(value.into()),
        _ => Err(format!("{value:?} is not a media type such as application/pdf")),
    }
}

/// A label of SELinux; the policy alone knows which exist.
pub fn label(value: &str) -> Result<Box<str>, String> {
    let is_odd = |c: char| c == '"' || c == '\\' || c.is_whitespace() || c.is_control();
    if value.split(':').filter(|part| !part.is_empty()).count() < 3 || value.contains(is_odd) {
        return Err(format!("{value:?} is not a label such as system_u:object_r:nfs_t:s0"));
    }
    Ok(value.into())
}

/// An absolute path: a mount in the background has another working folder.
pub fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() {
        return Err("a path is missing".to_owned());
    }
    std::path::absolute(value).map_err(|cause| cause.to_string())
}

/// `512`, `10G`, `1.5T`: bytes, by powers of 1024.
pub fn size(value: &str) -> Result<u64, String> {
    let (digits, shift) = match value.trim_end_matches(['B', 'b', 'i']).char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&value[..at], 10),
        Some((at, 'm' | 'M')) => (&value[..at], 20),
        Some((at, 'g' | 'G')) => (&value[..at], 30),
        Some((at, 't' | 'T')) => (&value[..at], 40),
        _ => (value, 0),
    };
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok((number * (1u64 << shift) as f64) as u64),
        _ => Err(format!("{value:?} is not a size such as 500M or 10G")),
    }
}

/// A size that is not below what any Source needs.
pub fn size_from(smallest: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |value| match size(value)? {
        found if found >= smallest => Ok(found),
        _ => Err(format!("{value:?} is less than the {smallest} bytes that any Source needs")),
    }
}

pub fn number(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is not a number"))
}

pub fn depth(value: &str) -> Result<u32, String> {
    match number(value)? {
        found if found >= SMALLEST_DEPTH => Ok(found),
        _ => Err(format!("{value:?} leaves no room for a list, which is three elements deep")),
    }
}

/// `90`, `90s`, `5m`, `2h`, `1d`.
pub fn time(value: &str) -> Result<Duration, String> {
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
        _ => Err(format!("{value:?} is not a duration; write for example 30s, 5m or 1h")),
    }
}

pub fn revalidate(value: &str) -> Result<Revalidate, String> {
    match value {
        "never" => Ok(Revalidate::Never),
        _ => time(value).map(Revalidate::Every),
    }
}

pub fn max_delete(value: &str) -> Result<MaxDelete, String> {
    let percent = value.trim_end_matches('%').parse().ok().and_then(MaxDelete::percent);
    percent.ok_or_else(|| format!("{value:?} is not a percentage from 0 to 100"))
}

/// One line of a request's head.
pub fn contact(value: &str) -> Result<Box<str>, String> {
    let is_text = !value.trim().is_empty() && value.chars().all(|c| (' '..='~').contains(&c));
    if is_text {
        Ok(value.trim().into())
    } else {
        Err(format!("{value:?} is not a line of ASCII text such as mailto:ann@example.org"))
    }
}

pub fn rate(value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err(format!("{value:?} is not a number above 0")),
    }
}

pub fn connections(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(0) | Err(_) => Err(format!("{value:?} is not a whole number above 0")),
        Ok(connections) => Ok(connections),
    }
}

/// Bits of a file's mode: `027` or `0o027`.
pub fn octal(value: &str) -> Result<u16, String> {
    let bits = u16::from_str_radix(value.trim_start_matches("0o"), 8).ok().filter(|bits| *bits <= 0o777);
    bits.ok_or_else(|| format!("{value:?} is not an octal number up to 777"))
}

pub fn program(value: &str) -> Result<Box<str>, String> {
    if value.is_empty() {
        return Err("the name of a program is missing, such as tumblerd".to_owned());
    }
    Ok(value.into())
}
