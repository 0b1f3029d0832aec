//! Extended attributes: what the Source published of a resource, and what is known of its bytes.
//!
//! | name | listed | value |
//! |---|---|---|
//! | `user.xdg.origin.url` | yes | the URI |
//! | `user.mime_type` | yes | `type` |
//! | `user.resyncfs.hash.ALGORITHM` | yes | lower-case hex |
//! | `user.resyncfs.{lastmod,changefreq,length,encoding}` | yes | as published; `length` only with `encoding` |
//! | `user.resyncfs.REL`, `user.resyncfs.link.REL` | yes | targets of the links, of any scheme, a line each by `pri` |
//! | `user.resyncfs.page` | yes | of an item the address of its landing page |
//! | `user.resyncfs.link.{cite-as,license,author,type}` | yes | of a landing page and its items |
//! | `user.resyncfs.sets` | no | numbers of the sets that the resource is a member of, a line each |
//! | `user.resyncfs.member` | no | the package that holds the bytes, a blank, and their name within |
//! | `user.resyncfs.state` | no | `remote`, `partial BYTES`, `cached`, `poisoned` |
//! | `user.resyncfs.verified` | no | `not yet`, a digest algorithm, `length`, `transfer`, `failed` |
//! | `user.resyncfs.object` | no | the name of the object in the cache folder that holds the bytes |
//! | `user.resyncfs.entry` | no | the whole entry as JSON |
//!
//! On the root:
//!
//! | name | listed | value |
//! |---|---|---|
//! | `user.resyncfs.{source,at,revision,committed,files,folders,bytes,unsized}` | yes | of the tree as it is shown |
//! | `user.resyncfs.sets` | no | number and Capability List of each set, a line each |
//! | `user.resyncfs.unannounced` | no | how often bytes were found that are newer than the list and differ from it |
//! | `user.resyncfs.control` | no | the path of the mount's control socket |
//!
//! Listed is only what changes together with the resource, because `rsync -X` and `cp -a` copy all that is listed. A value
//! beyond 64 KiB, which Linux cannot carry, ends with its last line that fits. An `entry` of that length is an error.

mod entry;
mod published;

use super::Filesystem;
use super::error::FsError;
use super::fetch_spec::{last_change, represented};
use crate::catalog::{Resource, Revision, SetId, Snapshot};
use crate::content::{State, Verified};
use crate::document::Uri;
use crate::platform::ino::Ino;
use crate::platform::text::printable_json;
use entry::entry;
use published::{OWN, add_page, published, set_numbers};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;

/// Bytes of a value and of a list of names that Linux can carry (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const VALUE_MAX: usize = 65_536;

/// Bytes of an attribute's name that Linux can carry (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;

/// An answer of GETXATTR or LISTXATTR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrReply {
    /// The caller only asked for the size of its buffer.
    Size(u32),
    /// The value, or the names each followed by NUL.
    Value(Vec<u8>),
}

/// Listed attributes: names and values.
type ListedNames = BTreeMap<String, String>;

/// Attributes whose values are looked up on the disk.
const ON_DISK: [&[u8]; 2] = [b"user.resyncfs.state", b"user.resyncfs.verified"];

impl Filesystem {
    /// Returns whether GETXATTR of `name` may wait for the disk.
    pub fn is_xattr_on_disk(&self, name: &[u8]) -> bool {
        self.options.xattr && ON_DISK.contains(&name)
    }

    /// GETXATTR: the value of `name`, or its size where the caller's buffer `room` is 0.
    pub fn xattr(&self, ino: Ino, name: &[u8], room: u32) -> Result<XattrReply, FsError> {
        if !self.options.xattr {
            return Err(FsError::NotOffered);
        }
        let name = known_namespace(name)?;
        let value = if ino == Ino::ROOT { self.root_value(name)? } else { self.file_value(ino, name)? };
        fit(value.ok_or(FsError::NoAttribute)?, room)
    }

    /// LISTXATTR: the names to be listed, each followed by NUL, or their size where the caller's buffer `room` is 0.
    pub fn xattr_names(&self, ino: Ino, room: u32) -> Result<XattrReply, FsError> {
        if !self.options.xattr {
            return Err(FsError::NotOffered);
        }
        let mut listed = if ino == Ino::ROOT {
            of_root(&self.options.source, self.catalog.revision()?.as_ref())
        } else {
            let snapshot = self.catalog.snapshot()?;
            let resource = snapshot.resource(ino)?;
            resource.map(|resource| self.listed(&snapshot, resource)).transpose()?.unwrap_or_default()
        };
        if self.options.labelled {
            listed.insert("security.selinux".into(), String::new());
        }
        fit(names(&listed), room)
    }

    fn file_value(&self, ino: Ino, name: &str) -> Result<Option<Vec<u8>>, FsError> {
        let snapshot = self.catalog.snapshot()?;
        let Some(resource) = snapshot.resource(ino)? else { return Ok(None) };
        let value = match name.strip_prefix(OWN).unwrap_or_default() {
            "state" => Some(state_text(self.content.state(ino).0)),
            "verified" => Some(verified_text(self.content.state(ino).1).to_owned()),
            "object" => self.content.object(ino).map(|key| key.as_str().to_owned()),
            "sets" => set_numbers(&resource),
            "member" => resource.member.as_ref().map(|member| format!("{} {}", member.package, member.path)),
            // Half of an entry is not JSON, so it is never cut. Programs that copy attributes do not see it.
            "entry" => {
                let entry = entry(&resource, last_change(&snapshot, ino, &resource)?.as_ref());
                return Ok(Some(printable_json(&entry).into_bytes()));
            }
            _ => self.listed(&snapshot, resource)?.remove(name),
        };
        Ok(value.map(cut))
    }

    /// All that is listed of a resource, with the links of its landing page.
    fn listed(&self, snapshot: &Snapshot<'_>, resource: Resource) -> Result<ListedNames, FsError> {
        let page = match resource.uri.page() {
            Some((page, _)) => Uri::parse(page).ok(),
            None => Some(resource.uri.clone()),
        };
        let mut listed = published(&represented(resource, &self.options));
        if let Some(page) = page.map(|page| snapshot.page(&page)).transpose()?.flatten() {
            add_page(&mut listed, &page);
        }
        Ok(listed)
    }

    fn root_value(&self, name: &str) -> Result<Option<Vec<u8>>, FsError> {
        let value = match name.strip_prefix(OWN).unwrap_or_default() {
            "control" => return Ok(self.control_socket.as_ref().map(|path| path.as_os_str().as_bytes().to_vec())),
            "unannounced" => Some(self.content.unannounced().to_string()),
            "sets" => self.set_names.as_ref().and_then(|names| set_lines(&names())),
            _ => of_root(&self.options.source, self.catalog.revision()?.as_ref()).remove(name),
        };
        Ok(value.map(cut))
    }
}

/// `name`, where attributes of its kind exist. For others the catalog is not asked. Labels and ACLs (`security.selinux`,
/// `system.posix_acl_access`) are not merely absent: `ls -l` then asks once (getxattr(2), ENOTSUP), and otherwise twice for each name.
fn known_namespace(name: &[u8]) -> Result<&str, FsError> {
    if !name.starts_with(b"user.") {
        return Err(FsError::NoSuchNamespace);
    }
    std::str::from_utf8(name).map_err(|_| FsError::NoAttribute)
}

fn of_root(source: &str, revision: Option<&Revision>) -> ListedNames {
    let mut listed = vec![("source", source.to_owned())];
    if let Some(revision) = revision {
        listed.extend(revision.at.map(|at| ("at", at.to_string())));
        listed.extend([
            ("revision", revision.number.to_string()),
            ("committed", revision.committed.to_string()),
            ("files", revision.totals.files.to_string()),
            ("folders", revision.totals.folders.to_string()),
            ("bytes", revision.totals.bytes.to_string()),
            ("unsized", revision.totals.unsized_files.to_string()),
        ]);
    }
    listed.into_iter().map(|(key, value)| (format!("{OWN}{key}"), value)).collect()
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

/// The names, each followed by NUL, without those that Linux cannot carry: a relation is as long as its publisher likes.
fn names(listed: &ListedNames) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in listed.keys() {
        let fits = name.len() <= NAME_MAX && bytes.len() + name.len() < VALUE_MAX;
        if fits && !name.contains('\0') {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(0);
        }
    }
    bytes
}

/// A value that Linux cannot carry ends behind its last whole line, or character.
fn cut(mut value: String) -> Vec<u8> {
    if value.len() > VALUE_MAX {
        let end = value.as_bytes()[..=VALUE_MAX].iter().rposition(|byte| *byte == b'\n');
        let whole = |end: &usize| value.is_char_boundary(*end);
        let end = end.or_else(|| (0..=VALUE_MAX).rev().find(whole)).unwrap_or_default();
        value.truncate(end);
    }
    value.into_bytes()
}

/// The answer to a caller with a buffer of `room` bytes; 0 asks for the size alone.
fn fit(value: Vec<u8>, room: u32) -> Result<XattrReply, FsError> {
    let length = value.len();
    match u32::try_from(length) {
        Ok(size) if length <= VALUE_MAX => match room {
            0 => Ok(XattrReply::Size(size)),
            room if room < size => Err(FsError::Range(length)),
            _ => Ok(XattrReply::Value(value)),
        },
        _ => Err(FsError::AttributeTooLong(length)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Totals;
    use crate::document::{Algorithm, Timestamp};

    #[test]
    fn labels_and_acls_are_answered_as_not_offered() {
        for name in ["security.selinux", "security.capability", "system.posix_acl_access", "trusted.x", "user"] {
            assert!(matches!(known_namespace(name.as_bytes()), Err(FsError::NoSuchNamespace)), "{name}");
        }
        assert!(matches!(known_namespace(b"user.resyncfs.\xff"), Err(FsError::NoAttribute)));
        assert!(known_namespace(b"user.mime_type").is_ok());
    }

    #[test]
    fn the_root_shows_the_source_even_before_a_revision() {
        let before = of_root("https://e.example/", None);
        assert_eq!(before, ListedNames::from([("user.resyncfs.source".into(), "https://e.example/".into())]));
        let revision = Revision {
            number: 7,
            committed: Timestamp { seconds: 0, nanos: 0 },
            at: None,
            totals: Totals { files: 3, folders: 1, bytes: 10, unsized_files: 2 },
        };
        let listed = of_root("s", Some(&revision));
        let text = |key| listed.get(&format!("{OWN}{key}")).map(String::as_str);
        assert_eq!((text("revision"), text("files"), text("bytes")), (Some("7"), Some("3"), Some("10")));
        assert_eq!((text("unsized"), text("at"), text("entry")), (Some("2"), None, None));
    }

    #[test]
    fn a_value_that_linux_cannot_carry_ends_with_a_whole_line() {
        let cut = |value| String::from_utf8(cut(value)).unwrap();
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
    fn names_that_linux_cannot_carry_are_not_listed() {
        let listed = |names: &mut dyn Iterator<Item = String>| names.map(|name| (name, String::new())).collect();
        let three: ListedNames = listed(&mut ["a".repeat(300), "b\0c".into(), "d".into()].into_iter());
        assert_eq!(names(&three), b"d\0");
        let many: ListedNames = listed(&mut (0..1000).map(|number| format!("{number}{}", "x".repeat(200))));
        assert!((65_000..=VALUE_MAX).contains(&names(&many).len()));
    }

    #[test]
    fn states_are_words() {
        assert_eq!(state_text(State::Partial(5)), "partial 5");
        assert_eq!(verified_text(Verified::Digest(Algorithm::Sha256)), "sha-256");
    }
}
