//! Extended attributes: what the Source published of a resource, and what is known of its bytes.
//!
//! | name | listed | value |
//! |---|---|---|
//! | `user.xdg.origin.url` | yes | the URI |
//! | `user.mime_type` | yes | `type` |
//! | `user.resyncfs.hash.ALGORITHM` | yes | lower-case hex |
//! | `user.resyncfs.{lastmod,changefreq,length,encoding}` | yes | as published; `length` only with `encoding` |
//! | `user.resyncfs.REL`, `user.resyncfs.link.REL` | yes | targets of the links, of any scheme, a line each by `pri` |
//! | `user.resyncfs.sets` | no | numbers of the sets that the resource is a member of, a line each |
//! | `user.resyncfs.member` | no | the package that holds the bytes, a blank, and their name within |
//! | `user.resyncfs.state` | no | `remote`, `partial BYTES`, `cached`, `poisoned` |
//! | `user.resyncfs.verified` | no | `not yet`, a digest algorithm, `length`, `transfer`, `failed` |
//! | `user.resyncfs.object` | no | the name of the object in the cache folder that holds the bytes |
//! | `user.resyncfs.entry` | no | the whole entry as JSON |
//!
//! A file that shows an alternate of its resource (`alternate=`) describes that; `entry` and the links are as published.
//!
//! On the root: `user.resyncfs.{source,at,revision,committed,files,folders,octets,unsized}` and, not listed, `unannounced`: how
//! often since the mount bytes were met that are newer than the list and others than it says; `sets`: number and Capability
//! List of each set that is followed, a line each; `control`: where the mount's
//! control socket lies. What is not listed is
//! what changes without the resource changing: `rsync -X` and `cp -a` copy all that is listed. A value beyond 64 KiB, which Linux
//! cannot carry, ends with its last line that fits; of `entry` alone the answer is an error.

mod entry;
mod names;
mod published;

use super::Filesystem;
use super::error::FsError;
use super::links::last_change;
use crate::catalog::{Revision, SetId};
use crate::content::{State, Verified};
use crate::platform::error_chain::printable_json;
use entry::entry;
use fuser::INodeNo;
use names::{Key, Names, OWN, VALUE_MAX};
use published::{list, value};
use std::borrow::Cow;
use std::os::unix::ffi::OsStrExt;

/// An answer of GETXATTR or LISTXATTR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrReply {
    /// The caller only asked how much room it needs.
    Size(u32),
    /// The value, or the names each followed by NUL.
    Value(Vec<u8>),
}

impl Filesystem {
    /// GETXATTR: the value of `name`, or its size where the caller's buffer `room` is 0.
    pub fn xattr(&self, ino: INodeNo, name: &[u8], room: u32) -> Result<XattrReply, FsError> {
        let key = self.key(name)?;
        if let (INodeNo::ROOT, Key::Own("control"), Some(socket)) = (ino, key, &self.control_socket) {
            return fit(socket.as_os_str().as_bytes().to_vec(), room);
        }
        let value = if ino == INodeNo::ROOT {
            let revision = self.catalog.revision()?;
            match key {
                Key::Own("unannounced") => Some(self.content.unannounced().to_string()),
                Key::Own("sets") => self.set_names.as_ref().and_then(|names| set_lines(&names())),
                key => root_value(&self.options.source, revision.as_ref(), key).map(Cow::into_owned),
            }
        } else {
            let snapshot = self.catalog.snapshot()?;
            if key == Key::Own("entry") {
                let Some(resource) = snapshot.resource(ino)? else { return Err(FsError::NoAttribute) };
                let changed = last_change(&snapshot, ino, &resource)?;
                return fit(printable_json(&entry(&resource, changed.as_ref())).into_bytes(), room);
            }
            let resource = self.viewed_resource(&snapshot, ino)?;
            drop(snapshot);
            resource
                .and_then(|resource| self.state_value(ino, key).or_else(|| value(&resource, key).map(Cow::into_owned)))
        };
        let mut value = value.ok_or(FsError::NoAttribute)?;
        // All but an entry, of which half would be no JSON, has to be copied by programs that copy attributes.
        cut(&mut value);
        fit(value.into_bytes(), room)
    }

    /// LISTXATTR: the names to be listed, each followed by NUL, or their size where the caller's buffer `room` is 0.
    pub fn xattr_names(&self, ino: INodeNo, room: u32) -> Result<XattrReply, FsError> {
        if !self.options.xattr {
            return Err(FsError::NotOffered);
        }
        let mut names = Names::default();
        if ino == INodeNo::ROOT {
            let revision = self.catalog.revision()?;
            for key in ROOT_KEYS {
                if root_value(&self.options.source, revision.as_ref(), Key::Own(key)).is_some() {
                    names.push(&[OWN, key]);
                }
            }
        } else if let Some(resource) = self.viewed_resource(&self.catalog.snapshot()?, ino)? {
            list(&resource, &mut names);
        }
        fit(names.bytes, room)
    }

    /// Which attribute is asked for. Everything that is not ours is answered here, before the catalog is asked.
    fn key<'n>(&self, name: &'n [u8]) -> Result<Key<'n>, FsError> {
        if !self.options.xattr {
            return Err(FsError::NotOffered);
        }
        parsed(name)
    }

    fn state_value(&self, ino: INodeNo, key: Key<'_>) -> Option<String> {
        match key {
            Key::Own("state") => Some(state_text(self.content.state(ino).0)),
            Key::Own("object") => self.content.object(ino).map(|key| key.as_str().to_owned()),
            Key::Own("verified") => Some(verified_text(self.content.state(ino).1).to_owned()),
            _ => None,
        }
    }
}

const ROOT_KEYS: [&str; 8] = ["source", "at", "revision", "committed", "files", "folders", "octets", "unsized"];

fn root_value<'s>(source: &'s str, revision: Option<&Revision>, key: Key<'_>) -> Option<Cow<'s, str>> {
    let Key::Own(key) = key else { return None };
    if key == "source" {
        return Some(source.into());
    }
    let revision = revision?;
    let value = match key {
        "at" => revision.at?.to_string(),
        "revision" => revision.number.to_string(),
        "committed" => revision.committed.to_string(),
        "files" => revision.totals.files.to_string(),
        "folders" => revision.totals.folders.to_string(),
        "octets" => revision.totals.bytes.to_string(),
        "unsized" => revision.totals.unsized_files.to_string(),
        _ => return None,
    };
    Some(value.into())
}

/// The number of each set, a blank, and its name: a line each.
fn set_lines(sets: &[(SetId, String)]) -> Option<String> {
    let lines: Vec<_> = sets.iter().map(|(id, name)| format!("{} {name}", id.0)).collect();
    if lines.is_empty() { None } else { Some(lines.join("\n")) }
}

fn state_text(state: State) -> String {
    match state {
        State::Remote => "remote".into(),
        State::Partial(bytes) => format!("partial {bytes}"),
        State::Cached => "cached".into(),
        State::Poisoned => "poisoned".into(),
    }
}

fn verified_text(verified: Verified) -> &'static str {
    match verified {
        Verified::NotYet => "not yet",
        Verified::Digest(algorithm) => algorithm.name(),
        Verified::Length => "length",
        Verified::Transfer => "transfer",
        Verified::Failed => "failed",
    }
}

/// Cuts a value that Linux cannot carry behind its last whole line, or character.
fn cut(value: &mut String) {
    if value.len() > VALUE_MAX {
        let end = value.as_bytes()[..=VALUE_MAX].iter().rposition(|byte| *byte == b'\n');
        let end = end.or_else(|| (0..=VALUE_MAX).rev().find(|end| value.is_char_boundary(*end)));
        value.truncate(end.unwrap_or_default());
    }
}

/// The answer to a caller with a buffer of `room` bytes; 0 asks for the size alone.
fn fit(value: Vec<u8>, room: u32) -> Result<XattrReply, FsError> {
    let length = value.len();
    match u32::try_from(length) {
        Ok(size) if length <= VALUE_MAX => {
            if room == 0 {
                Ok(XattrReply::Size(size))
            } else if size > room {
                Err(FsError::Range(length))
            } else {
                Ok(XattrReply::Value(value))
            }
        }
        _ => Err(FsError::AttributeTooLong(length)),
    }
}

/// The attribute of a name. Labels and ACLs (`security.selinux`, `system.posix_acl_access`) are not merely absent: where it knows that
/// there are none of their kind (getxattr(2), ENOTSUP) `ls -l` asks once, and otherwise twice for each name.
fn parsed(name: &[u8]) -> Result<Key<'_>, FsError> {
    if !name.starts_with(b"user.") {
        return Err(FsError::NoSuchNamespace);
    }
    std::str::from_utf8(name).ok().and_then(Key::parse).ok_or(FsError::NoAttribute)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Totals;
    use crate::document::{Algorithm, Timestamp};

    #[test]
    fn labels_and_acls_are_answered_as_not_offered() {
        for name in ["security.selinux", "security.capability", "system.posix_acl_access", "trusted.x", "user"] {
            assert!(matches!(parsed(name.as_bytes()), Err(FsError::NoSuchNamespace)), "{name}");
        }
        for name in [&b"user.other"[..], b"user.resyncfs.\xff"] {
            assert!(matches!(parsed(name), Err(FsError::NoAttribute)));
        }
        assert!(parsed(b"user.mime_type").is_ok());
    }

    #[test]
    fn the_root_shows_the_source_even_before_a_revision() {
        assert_eq!(root_value("https://e.example/", None, Key::Own("source")).unwrap(), "https://e.example/");
        assert_eq!(root_value("https://e.example/", None, Key::Own("revision")), None);
        let revision = Revision {
            number: 7,
            committed: Timestamp { seconds: 0, nanos: 0 },
            at: None,
            totals: Totals { files: 3, folders: 1, bytes: 10, unsized_files: 2 },
        };
        let text = |key| root_value("s", Some(&revision), Key::Own(key));
        assert_eq!(text("revision").unwrap(), "7");
        assert_eq!(text("files").unwrap(), "3");
        assert_eq!(text("unsized").unwrap(), "2");
        assert_eq!(text("at"), None);
        assert_eq!(text("entry"), None);
    }

    #[test]
    fn a_value_that_linux_cannot_carry_ends_with_a_whole_line() {
        let cut = |mut value: String| {
            super::cut(&mut value);
            value
        };
        let line = "x".repeat(999);
        let lines = vec![line.as_str(); 100].join("\n");

        assert_eq!(cut(lines.clone()), lines[..65 * 1000 - 1]);
        assert_eq!(cut("ä".repeat(40_000)), "ä".repeat(VALUE_MAX / 2));
        assert_eq!(cut(lines[..65_000].to_owned()), lines[..65_000]);
        let exact = "x".repeat(VALUE_MAX);
        assert_eq!(cut(exact.clone() + "\ny"), exact);
    }

    #[test]
    fn a_caller_may_ask_for_the_size_and_a_small_buffer_is_refused() {
        assert_eq!(fit(vec![1; 10], 0).unwrap(), XattrReply::Size(10));
        assert_eq!(fit(vec![1; 10], 10).unwrap(), XattrReply::Value(vec![1; 10]));
        assert_eq!(fit(Vec::new(), 0).unwrap(), XattrReply::Size(0));
        assert!(matches!(fit(vec![1; 10], 9), Err(FsError::Range(10))));
        assert!(matches!(fit(vec![1; VALUE_MAX + 1], 0), Err(FsError::AttributeTooLong(_))));
    }

    #[test]
    fn the_root_names_the_sets_by_their_numbers() {
        let sets = [(SetId(0), "https://e.example/one.xml".into()), (SetId(3), "https://e.example/two.xml".into())];
        assert_eq!(set_lines(&sets).unwrap(), "0 https://e.example/one.xml\n3 https://e.example/two.xml");
        assert_eq!(set_lines(&[]), None);
    }

    #[test]
    fn states_are_words() {
        assert_eq!(state_text(State::Partial(5)), "partial 5");
        assert_eq!(verified_text(Verified::Digest(Algorithm::Sha256)), "sha-256");
    }
}
