//! The readers of option values; an error shows what a right value looks like.

use crate::content::Revalidate;
use crate::document::{Timestamp, Uri};
use crate::platform::error_chain::chain;
use crate::sync::deletion_guard::MaxDelete;
use crate::sync::selection::Globs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::str::FromStr;
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

/// A value that was read; an error names the form of a right one.
fn of_form<T>(read: Option<T>, value: &str, form: &str) -> Result<T, String> {
    read.ok_or_else(|| format!("{value:?} is not {form}"))
}

/// A number that the option takes.
fn number_that<T: FromStr>(value: &str, form: &str, is_taken: impl Fn(&T) -> bool) -> Result<T, String> {
    of_form(value.parse().ok().filter(is_taken), value, form)
}

pub fn set(value: &str) -> Result<Uri, String> {
    of_form(Uri::parse(value).ok(), value, "an address such as https://HOST/capabilitylist.xml")
}

/// A URI that ends in `/`.
pub fn callback(value: &str) -> Result<Uri, String> {
    let folder = if value.ends_with('/') { value.to_owned() } else { format!("{value}/") };
    let uri = Uri::parse(&folder).ok().filter(|uri| uri.query().is_none());
    of_form(uri, value, "an address such as https://HOST/websub/")
}

/// `HOST` or `HOST:PORT`, in lower case; neither an address nor a path.
pub fn host(value: &str) -> Result<Box<str>, String> {
    let is_host = !value.is_empty() && !value.contains(|c: char| c == '/' || c == '@' || c.is_whitespace());
    let host = is_host.then(|| value.to_ascii_lowercase().into());
    of_form(host, value, "a HOST or HOST:PORT such as repo.example.org:8080")
}

pub fn listen(value: &str) -> Result<Box<str>, String> {
    let (host, port) = value.rsplit_once(':').unwrap_or_default();
    let is_place = !host.is_empty() && port.parse::<u16>().is_ok();
    of_form(is_place.then(|| value.into()), value, "a HOST:PORT such as 0.0.0.0:8090")
}

/// Both sides of a `=`, in this form.
pub fn pair(form: &'static str) -> impl Fn(&str) -> Result<(Box<str>, Box<str>), String> + Clone {
    move |value| {
        let sides = value.split_once('=').filter(|(from, _)| !from.is_empty());
        of_form(sides.map(|(from, to)| (from.into(), to.into())), value, form)
    }
}

pub fn timestamp(value: &str) -> Result<Timestamp, String> {
    of_form(Timestamp::parse(value), value, "a time such as 2024-05-01T10:00:00Z or 2024-05-01")
}

/// A valid pattern; all patterns of an option are compiled together later.
pub fn glob(value: &str) -> Result<Box<str>, String> {
    Globs::default().add(value).map_err(|cause| chain(&cause))?;
    Ok(value.into())
}

pub fn media_type(value: &str) -> Result<Box<str>, String> {
    let is_type = value.split_once('/').is_some_and(|(kind, subtype)| !kind.is_empty() && !subtype.is_empty());
    of_form(is_type.then(|| value.into()), value, "a media type such as application/pdf")
}

/// A label of SELinux; the policy alone knows which exist.
pub fn label(value: &str) -> Result<Box<str>, String> {
    let is_odd = |c: char| c == '"' || c == '\\' || c.is_whitespace() || c.is_control();
    let is_label = value.split(':').filter(|part| !part.is_empty()).count() >= 3 && !value.contains(is_odd);
    of_form(is_label.then(|| value.into()), value, "a label such as system_u:object_r:nfs_t:s0")
}

/// An absolute path: a mount in the background has another working folder.
pub fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() {
        return Err("a path is missing".to_owned());
    }
    std::path::absolute(value).map_err(|cause| cause.to_string())
}

/// The number in `value`, times the factor of the unit that it ends with.
fn in_units(value: &str, units: &[(char, u64)]) -> Option<f64> {
    let unit = units.iter().find_map(|(letter, factor)| Some((value.strip_suffix(*letter)?, *factor)));
    let (digits, factor) = unit.unwrap_or((value, 1));
    Some(digits.parse::<f64>().ok()? * factor as f64).filter(|number| number.is_finite() && *number >= 0.0)
}

/// `512`, `10G`, `1.5T`: bytes, by powers of 1024.
pub fn size(value: &str) -> Result<u64, String> {
    let units: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];
    let bytes = in_units(&value.trim_end_matches(['B', 'b', 'i']).to_ascii_uppercase(), &units);
    of_form(bytes.map(|bytes| bytes as u64), value, "a size such as 500M or 10G")
}

/// A size that is not below what any Source needs.
pub fn size_from(smallest: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |value| match size(value)? {
        found if found >= smallest => Ok(found),
        _ => Err(format!("{value:?} is less than the {smallest} bytes that any Source needs")),
    }
}

pub fn number(value: &str) -> Result<u32, String> {
    number_that(value, "a number", |_| true)
}

pub fn depth(value: &str) -> Result<u32, String> {
    match number(value)? {
        found if found >= SMALLEST_DEPTH => Ok(found),
        _ => Err(format!("{value:?} leaves no room for a list, which is three elements deep")),
    }
}

/// `90`, `90s`, `5m`, `2h`, `1d`.
pub fn time(value: &str) -> Result<Duration, String> {
    let seconds = in_units(value, &[('s', 1), ('m', 60), ('h', 3600), ('d', 86_400)]);
    let time = seconds.filter(|seconds| *seconds > 0.0 && *seconds < 1e9).map(Duration::from_secs_f64);
    time.ok_or_else(|| format!("{value:?} is not a duration; write for example 30s, 5m or 1h"))
}

pub fn revalidate(value: &str) -> Result<Revalidate, String> {
    match value {
        "never" => Ok(Revalidate::Never),
        _ => time(value).map(Revalidate::Every),
    }
}

pub fn max_delete(value: &str) -> Result<MaxDelete, String> {
    let percent = value.trim_end_matches('%').parse().ok().and_then(MaxDelete::percent);
    of_form(percent, value, "a percentage from 0 to 100")
}

/// One line of a request's head.
pub fn contact(value: &str) -> Result<Box<str>, String> {
    let is_text = !value.trim().is_empty() && value.chars().all(|c| (' '..='~').contains(&c));
    of_form(is_text.then(|| value.trim().into()), value, "a line of ASCII text such as mailto:ann@example.org")
}

pub fn rate(value: &str) -> Result<f64, String> {
    number_that(value, "a number above 0", |rate: &f64| rate.is_finite() && *rate > 0.0)
}

pub fn connections(value: &str) -> Result<usize, String> {
    number_that(value, "a whole number above 0", |connections| *connections > 0)
}

/// Bits of a file's mode: `027` or `0o027`.
pub fn octal(value: &str) -> Result<u16, String> {
    let bits = u16::from_str_radix(value.trim_start_matches("0o"), 8).ok().filter(|bits| *bits <= 0o777);
    of_form(bits, value, "an octal number up to 777")
}

pub fn program(value: &str) -> Result<Box<str>, String> {
    if value.is_empty() {
        return Err("the name of a program is missing, such as tumblerd".to_owned());
    }
    Ok(value.into())
}
