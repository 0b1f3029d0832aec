//! What stands behind an option's `=`: read, or refused with what would be good.

use std::path::PathBuf;
use std::time::Duration;

pub(super) fn pair(value: &str, form: &str) -> Result<(Box<str>, Box<str>), String> {
    match value.split_once('=') {
        Some((from, to)) if !from.is_empty() => Ok((from.into(), to.into())),
        _ => Err(format!("{value:?} is not {form}")),
    }
}

pub(super) fn choice<T: Copy>(value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        format!("{value:?} is none of: {}", names.join(", "))
    })
}

pub(super) fn path(value: &str) -> Result<PathBuf, String> {
    if value.is_empty() {
        Err("is empty".to_owned())
    } else {
        std::path::absolute(value).map_err(|cause| cause.to_string())
    }
}

pub(super) fn media_type(value: &str) -> Result<&str, String> {
    match value.split_once('/') {
        Some((kind, subtype)) if !kind.is_empty() && !subtype.is_empty() => Ok(value),
        _ => Err(format!("{value:?} is no media type such as application/pdf")),
    }
}

/// `HOST` or `HOST:PORT`, in lower case; neither an address nor a path.
pub(super) fn host(value: &str) -> Result<Box<str>, String> {
    if value.is_empty() || value.contains(|c: char| c == '/' || c == '@' || c.is_whitespace()) {
        return Err(format!("{value:?} is no HOST or HOST:PORT such as repo.example.org:8080"));
    }
    Ok(value.to_ascii_lowercase().into())
}

pub(super) fn number(value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{value:?} is no number"))
}

/// `512`, `10G`, `1.5T`: octets, by powers of 1024.
pub(super) fn size(value: &str) -> Result<u64, String> {
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

/// The same, `least` octets at least.
pub(super) fn size_of_least(value: &str, least: u64) -> Result<u64, String> {
    match size(value)? {
        found if found >= least => Ok(found),
        _ => Err(format!("{value:?} is less than the {least} octets that any Source needs")),
    }
}

/// `90`, `90s`, `5m`, `2h`, `1d`.
pub(super) fn time(value: &str) -> Result<Duration, String> {
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
