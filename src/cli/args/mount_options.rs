//! Options in the notation of mount(8) and fstab(5): `name=value,name`.

use super::words::{Words, find};
use crate::cli::{CliError, Exit};

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

/// Options of every filesystem that change nothing here, or that mount(8) and systemd read themselves.
///
/// `suid` and `dev` allow what the modes of this tree, 0444 and 0555, never ask for; `sync` and its like are about writing.
const IGNORED: &[&str] = &[
    "ro",
    "defaults",
    "_netdev",
    "_rnetdev",
    "helper",
    "uhelper",
    "comment",
    "async",
    "sync",
    "dirsync",
    "silent",
    "loud",
    "quiet",
    "user_xattr",
    "seclabel",
    "nonempty",
    "default_permissions",
];

/// The same, each also with `no` in front.
const IGNORED_WITH_NO: &[&str] = &[
    "suid",
    "dev",
    "fail",
    "auto",
    "user",
    "users",
    "owner",
    "group",
    "atime",
    "diratime",
    "relatime",
    "strictatime",
    "lazytime",
    "iversion",
    "mand",
    "symfollow",
    "acl",
];

/// Beginnings of further such options: those for other programs, and labels of Smack.
const IGNORED_PREFIXES: &[&str] = &["x-", "X-", "smackfs"];

/// The end of further such options: `context`, `fscontext` and the other labels of SELinux.
const IGNORED_SUFFIX: &str = "context";

/// What fstab(5) writes as an octal number: blank, tab, newline, `#`, comma, backslash.
const OCTAL: &[(&str, char)] = &[("040", ' '), ("011", '\t'), ("012", '\n'), ("043", '#'), ("054", ','), ("134", '\\')];

impl Words {
    /// Adds the options in the text of a `-o`.
    pub fn push_mount_options(&mut self, text: &str, caller: Caller) -> Result<(), CliError> {
        let usage = |given: &str, reason: &str| CliError::new(Exit::Usage, format!("-o {given}: {reason}"));
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

fn is_ignored(name: &str, caller: Caller) -> bool {
    let ignored_by_caller = match caller {
        Caller::Person => false,
        Caller::Mount8 { sloppy } => name == "rw" || sloppy && find(name).is_none() && refusal(name).is_none(),
    };
    IGNORED.contains(&name)
        || IGNORED_WITH_NO.contains(&name.strip_prefix("no").unwrap_or(name))
        || IGNORED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.ends_with(IGNORED_SUFFIX)
        || ignored_by_caller
}

/// Why an option that other filesystems have is refused here.
fn refusal(name: &str) -> Option<String> {
    match name {
        "rw" => Some("a Source can only be read: the mount is always read-only".to_owned()),
        "remount" => {
            Some("the options of a mount do not change while it runs; unmount it and mount it again".to_owned())
        }
        _ => secret_refusal(name),
    }
}

/// Why a secret is refused on a command line and in a configuration file, and the option that takes it.
pub fn secret_refusal(name: &str) -> Option<String> {
    let option = match name.replace('_', "-").as_str() {
        "bearer" | "token" | "bearer-token" | "secret" => "bearer-file",
        "header" | "headers" | "authorization" | "cookie" | "api-key" => "header-file",
        "password" | "passwd" | "pass" | "username" | "login" | "credentials" => "netrc",
        "key" | "private-key" | "passphrase" => "cert",
        _ => return None,
    };
    Some(format!(
        "others can read what stands here; put the secret into a file (chmod 600) and name the file: {option}=FILE"
    ))
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
