//! Extended attributes: what the Source published of a resource, and what is known of its bytes.
//!
//! | name | listed | value |
//! |---|---|---|
//! | `user.xdg.origin.url` | yes | the URI |
//! | `user.mime_type` | yes | `type` |
//! | `user.resyncfs.hash.ALGORITHM` | yes | lower-case hex |
//! | `user.resyncfs.{lastmod,changefreq,length,encoding}` | yes | as published; `length` only beside `encoding` |
//! | `user.resyncfs.REL`, `user.resyncfs.link.REL` | yes | targets of the links, whatever their scheme, a line each by `pri` |
//! | `user.resyncfs.sets` | no | numbers of the sets that the resource is a member of, a line each |
//! | `user.resyncfs.member` | no | the package that holds the bytes, a blank, and their name within |
//! | `user.resyncfs.state` | no | `remote`, `partial OCTETS`, `cached`, `poisoned` |
//! | `user.resyncfs.verified` | no | `not yet`, a digest algorithm, `length`, `transfer`, `failed` |
//! | `user.resyncfs.object` | no | the name of the object in the cache folder that holds the bytes |
//! | `user.resyncfs.entry` | no | the whole entry as JSON |
//!
//! A file that shows an alternate of its resource (`alternate=`) tells of that; `entry` and the links are as published.
//!
//! On the root: `user.resyncfs.{source,at,revision,committed,files,folders,octets,unsized}` and, not listed, `unannounced`: how
//! often since the mount bytes were met that are newer than the list and others than it says; `sets`: number and Capability
//! List of each set that is followed, a line each; `control`: where the mount's
//! control socket lies. What is not listed is
//! what changes without the resource changing: `rsync -X` and `cp -a` copy all that is listed. A value beyond 64 KiB, which Linux
//! cannot carry, ends with its last line that fits; of `entry` alone the answer is an error.

use super::Filesystem;
use super::error::FsError;
use super::links::{PATCH, PATCH_IN_SHORT, last_change};
use crate::catalog::{Journaled, Resource, Revision, SetId};
use crate::causes::printable_json;
use crate::content::{State, Verified};
use crate::document::{ChangeFrequency, Digest, Link};
use fuser::INodeNo;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

/// Octets of a value and of a list of names that Linux can carry (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const VALUE_MAX: usize = 65_536;

/// Octets of an attribute's name that Linux can carry (`XATTR_NAME_MAX`).
const ATTRIBUTE_NAME_MAX: usize = 255;

const ORIGIN: &str = "user.xdg.origin.url";
const MEDIA_TYPE: &str = "user.mime_type";
const OWN: &str = "user.resyncfs.";
const HASH: &str = "hash.";
const LINK: &str = "link.";

/// Relations of section 14 of the standard and of its metadata profiles, which have no `link.` before their name.
const RELATIONS: [&str; 12] = [
    "alternate",
    "canonical",
    "collection",
    "describedby",
    "describes",
    "duplicate",
    "memento",
    "patch",
    "profile",
    "timegate",
    "timemap",
    "via",
];

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
        fit(names.octets, room)
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

/// The name of one of our attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key<'n> {
    Origin,
    MediaType,
    /// What follows `user.resyncfs.`.
    Own(&'n str),
}

impl<'n> Key<'n> {
    fn parse(name: &'n str) -> Option<Key<'n>> {
        match name {
            ORIGIN => Some(Key::Origin),
            MEDIA_TYPE => Some(Key::MediaType),
            _ => name.strip_prefix(OWN).map(Key::Own),
        }
    }
}

/// Names for LISTXATTR.
#[derive(Default)]
struct Names {
    /// Each name followed by NUL.
    octets: Vec<u8>,
}

impl Names {
    /// Adds the name made of `parts`, but what Linux could not carry: a relation is as long as its publisher likes.
    fn push(&mut self, parts: &[&str]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let nul = parts.iter().any(|part| part.contains('\0'));
        if nul || length > ATTRIBUTE_NAME_MAX || self.octets.len() + length + 1 > VALUE_MAX {
            return;
        }
        parts.iter().for_each(|part| self.octets.extend_from_slice(part.as_bytes()));
        self.octets.push(0);
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
        "octets" => revision.totals.octets.to_string(),
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

/// The names of all that is published of `resource`.
fn list(resource: &Resource, names: &mut Names) {
    names.push(&[ORIGIN]);
    if resource.media_type.is_some() {
        names.push(&[MEDIA_TYPE]);
    }
    for digest in &resource.hashes {
        names.push(&[OWN, HASH, digest.algorithm().name()]);
    }
    for key in ["lastmod", "changefreq", "length", "encoding"] {
        if value(resource, Key::Own(key)).is_some() {
            names.push(&[OWN, key]);
        }
    }
    for (index, link) in resource.links.iter().enumerate() {
        let relation = short(&link.rel);
        if resource.links[..index].iter().any(|earlier| short(&earlier.rel) == relation) {
            continue;
        }
        if RELATIONS.contains(&relation) {
            names.push(&[OWN, relation]);
        } else {
            names.push(&[OWN, LINK, relation]);
        }
    }
}

/// The value of `key` as published; `None` where nothing is.
fn value<'r>(resource: &'r Resource, key: Key<'_>) -> Option<Cow<'r, str>> {
    let key = match key {
        Key::Origin => return Some(resource.uri.as_str().into()),
        Key::MediaType => return resource.media_type.as_deref().map(Cow::from),
        Key::Own(key) => key,
    };
    match key {
        "lastmod" => resource.lastmod.map(|time| time.to_string().into()),
        "changefreq" => resource.changefreq.map(|frequency| frequency_text(frequency).into()),
        "length" => resource.encoding.as_ref().and(resource.length).map(|length| length.to_string().into()),
        "encoding" => resource.encoding.as_deref().map(Cow::from),
        "sets" => {
            let numbers: Vec<_> = resource.sets.iter().map(|set| set.0.to_string()).collect();
            (!numbers.is_empty()).then(|| numbers.join("\n").into())
        }
        "member" => {
            let member = resource.member.as_ref()?;
            Some(format!("{} {}", member.package, member.path).into())
        }
        _ => {
            if let Some(algorithm) = key.strip_prefix(HASH) {
                let digest = resource.hashes.iter().find(|digest| digest.algorithm().name() == algorithm)?;
                Some(hex(digest).into())
            } else if let Some(relation) = key.strip_prefix(LINK) {
                let has_own_name = RELATIONS.contains(&short(relation));
                if has_own_name { None } else { targets(&resource.links, relation).map(Cow::from) }
            } else if RELATIONS.contains(&key) {
                targets(&resource.links, key).map(Cow::from)
            } else {
                None
            }
        }
    }
}

/// A relation as attributes are named after it: the standard's own URI is its last segment.
fn short(relation: &str) -> &str {
    if relation == PATCH { PATCH_IN_SHORT } else { relation }
}

/// The targets of all links of one relation, a line each, by priority.
fn targets(links: &[Link], relation: &str) -> Option<String> {
    let mut links: Vec<_> = links.iter().filter(|link| short(&link.rel) == relation).collect();
    links.sort_by_key(|link| link.pri);
    let lines: Vec<_> = links.iter().map(|link| link.href.as_str()).collect();
    if lines.is_empty() { None } else { Some(lines.join("\n")) }
}

fn hex(digest: &Digest) -> String {
    let mut text = String::with_capacity(digest.octets().len() * 2);
    for octet in digest.octets() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{octet:02x}");
    }
    text
}

/// The entry as it was published, in the names of the standard (section 7); `changed` by a Change List.
fn entry(resource: &Resource, changed: Option<&Journaled>) -> Value {
    let mut entry = Map::new();
    entry.insert("loc".into(), json!(resource.uri.as_str()));
    put(&mut entry, "lastmod", resource.lastmod.map(|time| time.to_string()));
    put(&mut entry, "changefreq", resource.changefreq.map(frequency_text));
    put(&mut entry, "change", changed.map(|changed| changed.change.as_str()));
    put(&mut entry, "datetime", changed.and_then(|changed| changed.datetime).map(|time| time.to_string()));
    put(&mut entry, "hash", hashes(&resource.hashes));
    put(&mut entry, "length", resource.length);
    put(&mut entry, "type", resource.media_type.as_deref());
    put(&mut entry, "encoding", resource.encoding.as_deref());
    let links: Vec<_> = resource.links.iter().map(link_entry).collect();
    put(&mut entry, "ln", (!links.is_empty()).then_some(links));
    Value::Object(entry)
}

fn link_entry(link: &Link) -> Value {
    let mut entry = Map::new();
    entry.insert("rel".into(), json!(link.rel));
    entry.insert("href".into(), json!(link.href.as_str()));
    put(&mut entry, "pri", (link.pri != crate::document::LOWEST_PRIORITY).then_some(link.pri));
    put(&mut entry, "modified", link.modified.map(|time| time.to_string()));
    put(&mut entry, "hash", hashes(&link.hashes));
    put(&mut entry, "length", link.length);
    put(&mut entry, "type", link.media_type.as_deref());
    put(&mut entry, "encoding", link.encoding.as_deref());
    put(&mut entry, "path", link.path.as_deref());
    Value::Object(entry)
}

fn put(entry: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        entry.insert(key.into(), value.into());
    }
}

/// Digests as the `hash` attribute writes them: separated by blanks.
fn hashes(digests: &[Digest]) -> Option<String> {
    let all: Vec<_> = digests.iter().map(Digest::to_string).collect();
    if all.is_empty() { None } else { Some(all.join(" ")) }
}

fn frequency_text(frequency: ChangeFrequency) -> &'static str {
    match frequency {
        ChangeFrequency::Always => "always",
        ChangeFrequency::Hourly => "hourly",
        ChangeFrequency::Daily => "daily",
        ChangeFrequency::Weekly => "weekly",
        ChangeFrequency::Monthly => "monthly",
        ChangeFrequency::Yearly => "yearly",
        ChangeFrequency::Never => "never",
    }
}

fn state_text(state: State) -> String {
    match state {
        State::Remote => "remote".into(),
        State::Partial(octets) => format!("partial {octets}"),
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
        let end = value.as_bytes()[..=VALUE_MAX].iter().rposition(|octet| *octet == b'\n');
        let end = end.or_else(|| (0..=VALUE_MAX).rev().find(|end| value.is_char_boundary(*end)));
        value.truncate(end.unwrap_or_default());
    }
}

/// What a caller with a buffer of `room` octets is answered; 0 asks for the size alone.
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

/// The attribute of a name. Labels and ACLs (`security.selinux`, `system.posix_acl_access`) are not merely absent: told that
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
    use crate::document::{Algorithm, Change, Href, LOWEST_PRIORITY, PackageMember, Timestamp, Uri};

    fn link(rel: &str, href: &str, pri: u32) -> Link {
        Link { pri, ..Link::new(rel, Href::parse(href).unwrap()) }
    }

    fn resource() -> Resource {
        Resource {
            uri: Uri::parse("https://example.org/a.pdf?v=1").unwrap(),
            lastmod: Timestamp::parse("2013-01-03T09:00:00Z"),
            changefreq: None,
            length: Some(42),
            hashes: vec![Digest::new(Algorithm::Md5, &[0xab; 16]).unwrap()],
            media_type: Some("application/pdf".into()),
            encoding: None,
            links: vec![
                link("duplicate", "https://m2.example/a.pdf", LOWEST_PRIORITY),
                link("duplicate", "https://m1.example/a.pdf", 1),
                link("describedby", "https://example.org/a.xml", LOWEST_PRIORITY),
                link("http://purl.org/dc/terms/license", "https://cc.example/by", LOWEST_PRIORITY),
            ],
            sets: Vec::new(),
            member: None,
        }
    }

    fn text(resource: &Resource, name: &str) -> Option<String> {
        value(resource, Key::parse(name)?).map(Cow::into_owned)
    }

    fn names(resource: &Resource) -> Vec<String> {
        let mut names = Names::default();
        list(resource, &mut names);
        names.octets.split(|octet| *octet == 0).filter(|name| !name.is_empty()).map(lossy).collect()
    }

    fn lossy(name: &[u8]) -> String {
        String::from_utf8_lossy(name).into_owned()
    }

    #[test]
    fn every_listed_name_has_a_value_and_names_what_is_published() {
        let resource = resource();
        let names = names(&resource);
        assert_eq!(
            names,
            [
                "user.xdg.origin.url",
                "user.mime_type",
                "user.resyncfs.hash.md5",
                "user.resyncfs.lastmod",
                "user.resyncfs.duplicate",
                "user.resyncfs.describedby",
                "user.resyncfs.link.http://purl.org/dc/terms/license",
            ]
        );
        for name in names {
            assert!(text(&resource, &name).is_some(), "{name}");
        }
    }

    #[test]
    fn values_are_as_published_and_several_links_are_lines_by_priority() {
        let resource = resource();
        assert_eq!(text(&resource, ORIGIN).unwrap(), "https://example.org/a.pdf?v=1");
        assert_eq!(text(&resource, "user.resyncfs.hash.md5").unwrap(), "ab".repeat(16));
        assert_eq!(
            text(&resource, "user.resyncfs.duplicate").unwrap(),
            "https://m1.example/a.pdf\nhttps://m2.example/a.pdf"
        );
        assert_eq!(text(&resource, "user.resyncfs.lastmod").unwrap(), "2013-01-03T09:00:00Z");
    }

    /// Section 14: what a Source links to is told, also what cannot be asked.
    #[test]
    fn each_relation_of_the_standard_has_an_attribute_and_names_are_told_as_uris_are() {
        let mut resource = resource();
        resource.links = RELATIONS.iter().map(|relation| link(relation, &format!("urn:x:{relation}"), 1)).collect();
        resource.links.push(link(PATCH, "https://e.example/patch", 2));
        let expected: Vec<_> = RELATIONS.iter().map(|relation| format!("user.resyncfs.{relation}")).collect();

        assert!(names(&resource).ends_with(&expected));
        assert_eq!(text(&resource, "user.resyncfs.profile").unwrap(), "urn:x:profile");
        assert_eq!(text(&resource, "user.resyncfs.patch").unwrap(), "urn:x:patch\nhttps://e.example/patch");
        assert_eq!(text(&resource, &format!("user.resyncfs.link.{PATCH}")), None);
    }

    #[test]
    fn sets_and_package_are_told_and_not_listed() {
        let mut resource = resource();
        assert_eq!((text(&resource, "user.resyncfs.sets"), text(&resource, "user.resyncfs.member")), (None, None));
        resource.sets = vec![SetId(1), SetId(30)];
        let package = Uri::parse("https://e.example/part1.zip").unwrap();
        resource.member = Some(PackageMember { package, path: "/resources/a b".into() });

        assert_eq!(text(&resource, "user.resyncfs.sets").unwrap(), "1\n30");
        let member = text(&resource, "user.resyncfs.member").unwrap();
        assert_eq!(member, "https://e.example/part1.zip /resources/a b");
        assert!(names(&resource).iter().all(|name| !name.ends_with("sets") && !name.ends_with("member")));
    }

    #[test]
    fn the_length_is_told_only_where_it_is_not_the_size() {
        let mut resource = resource();
        assert_eq!(text(&resource, "user.resyncfs.length"), None);
        resource.encoding = Some("gzip".into());
        assert_eq!(text(&resource, "user.resyncfs.length").unwrap(), "42");
        assert_eq!(text(&resource, "user.resyncfs.encoding").unwrap(), "gzip");
    }

    #[test]
    fn what_is_not_published_or_not_ours_has_no_value() {
        let resource = resource();
        for name in [
            "user.resyncfs.hash.sha-256",
            "user.resyncfs.canonical",
            "user.resyncfs.link.describedby",
            "user.resyncfs.link.",
            "user.resyncfs.",
            "user.other",
            "security.capability",
            "system.posix_acl_access",
        ] {
            assert_eq!(text(&resource, name), None, "{name}");
        }
    }

    #[test]
    fn of_labels_and_acls_it_is_told_that_there_are_none_at_all() {
        for name in ["security.selinux", "security.capability", "system.posix_acl_access", "trusted.x", "user"] {
            assert!(matches!(parsed(name.as_bytes()), Err(FsError::NoSuchNamespace)), "{name}");
        }
        for name in [&b"user.other"[..], b"user.resyncfs.\xff"] {
            assert!(matches!(parsed(name), Err(FsError::NoAttribute)));
        }
        assert!(parsed(b"user.mime_type").is_ok());
    }

    #[test]
    fn the_entry_is_json_in_the_standard_s_names() {
        let time = |text| Timestamp::parse(text).unwrap();
        let datetime = Some(time("2013-01-03T10:00:00Z"));
        let changed = Journaled { change: Change::Updated, time: time("2013-01-03T09:00:00Z"), datetime };
        let entry = entry(&resource(), Some(&changed));
        assert_eq!((&entry["change"], &entry["datetime"]), (&json!("updated"), &json!("2013-01-03T10:00:00Z")));
        assert_eq!(entry["loc"], "https://example.org/a.pdf?v=1");
        assert_eq!(entry["length"], 42);
        assert_eq!(entry["hash"], format!("md5:{}", "ab".repeat(16)));
        assert_eq!(entry["ln"][1], json!({"rel": "duplicate", "href": "https://m1.example/a.pdf", "pri": 1}));
        assert_eq!(entry.get("encoding"), None);
    }

    #[test]
    fn a_relation_that_linux_cannot_carry_is_not_listed() {
        let mut resource = resource();
        resource.links = vec![link(&format!("http://example.org/{}", "x".repeat(300)), "https://e.example/", 1)];
        assert!(names(&resource).iter().all(|name| name.len() <= ATTRIBUTE_NAME_MAX));
        resource.links = (0..1000)
            .map(|n| link(&format!("http://example.org/{n}{}", "x".repeat(200)), "https://e.example/", 1))
            .collect();
        let mut list_of_names = Names::default();
        list(&resource, &mut list_of_names);
        assert!(list_of_names.octets.len() <= VALUE_MAX);
    }

    #[test]
    fn the_root_tells_the_source_before_there_is_a_revision_and_the_revision_then() {
        assert_eq!(root_value("https://e.example/", None, Key::Own("source")).unwrap(), "https://e.example/");
        assert_eq!(root_value("https://e.example/", None, Key::Own("revision")), None);
        let revision = Revision {
            number: 7,
            committed: Timestamp { seconds: 0, nanos: 0 },
            at: None,
            totals: Totals { files: 3, folders: 1, octets: 10, unsized_files: 2 },
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
