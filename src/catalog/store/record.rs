//! Records: nodes, resources, revisions and their sets as the store and the sorter hold them.

use super::super::{Freshness, Kind, Node, Resource, SetId, Totals};
use super::codec::{Decoder, push_string, push_time, push_varint, when};
use super::keys::set_of_key;
use super::parts::{digests, link, member, push_digests, push_link, push_member};
use super::words::{push_word, word};
use super::{ROOT, ROOT_ENTRY};
use crate::document::{ChangeFrequency, Digest, Entry, PackageMember, Timestamp, Uri, believed_length};
use crate::platform::ino::Ino;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A name of the tree, and what it stands for.
#[derive(Clone, Copy)]
pub struct NamedNode<'a> {
    /// Its folder.
    pub parent: u64,
    /// Its cookie there.
    pub entry: u64,
    pub node: NodeRecord<'a>,
}

/// One inode: what `stat` and `readdir` need, and the resource.
#[derive(Clone, Copy)]
pub struct NodeRecord<'a> {
    pub ino: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub name: &'a [u8],
    /// `None` for a folder.
    pub resource: Option<ResourceRecord<'a>>,
}

impl<'a> NodeRecord<'a> {
    const FILE: u8 = 1;
    /// The mtime is not the `lastmod` of the resource.
    const MTIME: u8 = 2;

    pub fn encode(&self, out: &mut Vec<u8>) {
        let has_mtime = self.resource.and_then(|resource| resource.lastmod) != Some(self.mtime);
        out.push(when(self.resource.is_some(), Self::FILE) | when(has_mtime, Self::MTIME));
        push_varint(out, self.ino);
        push_time(out, self.ctime);
        if has_mtime {
            push_time(out, self.mtime);
        }
        push_varint(out, self.name.len() as u64);
        out.extend_from_slice(self.name);
        out.extend_from_slice(self.resource.map_or(&[], |resource| resource.bytes));
    }

    pub fn decode(bytes: &'a [u8]) -> Option<NodeRecord<'a>> {
        let mut bytes = Decoder(bytes);
        let (flags, ino) = bytes.value::<(u8, u64)>()?;
        let ctime = bytes.time()?;
        let mtime = if flags & Self::MTIME != 0 { Some(bytes.time()?) } else { None };
        let name = bytes.value()?;
        let resource = if flags & Self::FILE != 0 { Some(ResourceRecord::decode(bytes.0)?) } else { None };
        let mtime = mtime.or(resource.and_then(|resource| resource.lastmod))?;
        Some(NodeRecord { ino, mtime, ctime, name, resource })
    }

    pub fn kind(&self) -> Kind {
        if self.resource.is_some() { Kind::File } else { Kind::Folder }
    }

    pub fn size(&self) -> Option<u64> {
        self.resource.and_then(|resource| resource.size())
    }

    pub fn node(&self) -> Node {
        let freshness = self.resource.map_or(Freshness::Listed, |resource| resource.freshness());
        let NodeRecord { ino, mtime, ctime, .. } = *self;
        Node { ino: Ino(ino), kind: self.kind(), size: self.size(), mtime, ctime, freshness }
    }
}

/// The record of one resource, its variable parts still encoded.
///
/// Layout: flags, more flags and `changefreq`, then as flagged: the URI (only where the path does not give it), the sets
/// (only where they are not the first one alone), the package member, `lastmod`, `length`, `type`, `encoding`, `hash`, `ln`.
#[derive(Clone, Copy)]
pub struct ResourceRecord<'a> {
    /// The whole record.
    pub bytes: &'a [u8],
    flags: u8,
    /// The scheme, where the URI follows from the path.
    pub https: bool,
    /// The URI, where it does not follow from the path.
    pub uri: Option<&'a str>,
    changefreq: Option<ChangeFrequency>,
    pub sets: Sets<'a>,
    /// The bytes of the package member; empty where there is none.
    pub member: &'a [u8],
    pub lastmod: Option<Timestamp>,
    pub length: Option<u64>,
    pub media_type: Option<&'a str>,
    pub encoding: Option<&'a str>,
    /// Digests and links.
    tail: Decoder<'a>,
    /// Everything behind the package member.
    body: &'a [u8],
}

/// The sets of a resource, ascending, as its record holds them: one is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sets<'a> {
    /// For each set its number and, in the lowest bit, whether another follows. Empty for the first set alone.
    bytes: &'a [u8],
}

impl<'a> Sets<'a> {
    fn read(bytes: &mut Decoder<'a>) -> Option<Sets<'a>> {
        let before = bytes.0;
        while {
            let numbered = bytes.value::<u64>()?;
            u32::try_from(numbered >> 1).ok()?;
            numbered & 1 == 1
        } {}
        Some(Sets { bytes: &before[..before.len() - bytes.0.len()] })
    }

    pub fn iter(self) -> impl Iterator<Item = SetId> + use<'a> {
        let mut bytes = Decoder(self.bytes);
        let first = if self.bytes.is_empty() { Some(SetId::default()) } else { None };
        first.into_iter().chain(std::iter::from_fn(move || Some(SetId((bytes.value::<u64>()? >> 1) as u32))))
    }

    pub fn contains(self, set: SetId) -> bool {
        self.iter().any(|other| other == set)
    }

    /// Encodes `sets`, which are ascending and not none.
    pub fn encode(sets: impl IntoIterator<Item = SetId>) -> Vec<u8> {
        let (mut out, mut sets) = (Vec::new(), sets.into_iter().peekable());
        while let Some(set) = sets.next() {
            let is_last = sets.peek().is_none();
            if set != SetId::default() || !is_last || !out.is_empty() {
                push_varint(&mut out, u64::from(set.0) << 1 | u64::from(!is_last));
            }
        }
        out
    }
}

/// Writes what stands before `lastmod` in a record.
fn push_front(
    out: &mut Vec<u8>,
    (flags, changefreq): (u8, Option<ChangeFrequency>),
    uri: Option<&str>,
    sets: Sets<'_>,
    member: &[u8],
) {
    out.push(flags & !flag::URI | when(uri.is_some(), flag::URI));
    let (has_sets, has_member) = (!sets.bytes.is_empty(), !member.is_empty());
    let code = changefreq.map_or(0, |changefreq| changefreq as u8 + 1);
    out.push(code | when(has_sets, more::SETS) | when(has_member, more::MEMBER));
    if let Some(uri) = uri {
        push_string(out, uri);
    }
    out.extend_from_slice(sets.bytes);
    out.extend_from_slice(member);
}

/// Bits of the second byte of a record.
mod more {
    /// The number of `changefreq` from 1; 0 is "not published".
    pub const CHANGEFREQ: u8 = 7;
    pub const SETS: u8 = 8;
    pub const MEMBER: u8 = 16;
}

mod flag {
    pub const HTTPS: u8 = 1;
    pub const URI: u8 = 2;
    pub const LASTMOD: u8 = 4;
    pub const LENGTH: u8 = 8;
    pub const TYPE: u8 = 16;
    pub const ENCODING: u8 = 32;
    pub const DIGESTS: u8 = 64;
    pub const LINKS: u8 = 128;
}

/// Encodes what `entry` says; `with_uri` where its path does not give the URI back, `sets` ascending.
pub fn push_resource(
    out: &mut Vec<u8>,
    entry: &Entry,
    with_uri: bool,
    sets: impl IntoIterator<Item = SetId>,
    member: Option<&PackageMember>,
) {
    let uri = entry.loc.as_str();
    let flags = when(uri.starts_with("https:"), flag::HTTPS)
        | when(entry.lastmod.is_some(), flag::LASTMOD)
        | when(entry.length.is_some(), flag::LENGTH)
        | when(entry.media_type.is_some(), flag::TYPE)
        | when(entry.encoding.is_some(), flag::ENCODING)
        | when(!entry.hashes.is_empty(), flag::DIGESTS)
        | when(!entry.links.is_empty(), flag::LINKS);
    let (sets, mut encoded_member) = (Sets::encode(sets), Vec::new());
    if let Some(member) = member {
        push_member(&mut encoded_member, member, uri);
    }
    push_front(out, (flags, entry.changefreq), with_uri.then_some(uri), Sets { bytes: &sets }, &encoded_member);
    entry.lastmod.iter().for_each(|lastmod| push_time(out, *lastmod));
    entry.length.iter().for_each(|length| push_varint(out, *length));
    entry.media_type.iter().chain(&entry.encoding).for_each(|text| push_word(out, text));
    if !entry.hashes.is_empty() {
        push_digests(out, &entry.hashes);
    }
    if !entry.links.is_empty() {
        push_varint(out, entry.links.len() as u64);
        entry.links.iter().for_each(|link| push_link(out, link, uri));
    }
}

impl<'a> ResourceRecord<'a> {
    pub fn decode(bytes: &'a [u8]) -> Option<ResourceRecord<'a>> {
        let (whole, mut bytes) = (bytes, Decoder(bytes));
        let (flags, further) = bytes.value::<(u8, u8)>()?;
        let has = |bit: u8| flags & bit != 0;
        let numbered = usize::from(further & more::CHANGEFREQ).checked_sub(1);
        let changefreq = numbered.and_then(|number| ChangeFrequency::ALL.get(number).copied());
        let uri = if has(flag::URI) { Some(bytes.value()?) } else { None };
        let sets = if further & more::SETS != 0 { Sets::read(&mut bytes)? } else { Sets { bytes: &[] } };
        let before = bytes.0;
        if further & more::MEMBER != 0 {
            bytes.value::<[(u64, &str); 2]>()?;
        }
        let member = &before[..before.len() - bytes.0.len()];
        let body = bytes.0;
        Some(ResourceRecord {
            bytes: whole,
            flags,
            https: has(flag::HTTPS),
            uri,
            changefreq,
            sets,
            member,
            lastmod: if has(flag::LASTMOD) { Some(bytes.time()?) } else { None },
            length: if has(flag::LENGTH) { Some(bytes.value()?) } else { None },
            media_type: if has(flag::TYPE) { Some(word(&mut bytes)?) } else { None },
            encoding: if has(flag::ENCODING) { Some(word(&mut bytes)?) } else { None },
            tail: bytes,
            body,
        })
    }

    fn has(&self, bit: u8) -> bool {
        self.flags & bit != 0
    }

    /// How a change of the bytes becomes known.
    pub fn freshness(&self) -> Freshness {
        match self.lastmod.is_some() || self.has(flag::DIGESTS) {
            true => Freshness::Listed,
            false => Freshness::Asked(self.changefreq),
        }
    }

    /// The size that `stat` shows: the published length, unless it counts coded bytes or is not believed ([`believed_length`]).
    pub fn size(&self) -> Option<u64> {
        match (self.encoding, self.length) {
            (Some(_), _) | (None, None) => None,
            (None, Some(0)) => believed_length(self.length, &self.digests()?),
            (None, length) => length,
        }
    }

    pub fn digests(&self) -> Option<Vec<Digest>> {
        self.parts().map(|(digests, _)| digests)
    }

    /// The digests, and the links still encoded.
    fn parts(&self) -> Option<(Vec<Digest>, Decoder<'a>)> {
        let mut tail = self.tail;
        let digests = if self.has(flag::DIGESTS) { digests(&mut tail)? } else { Vec::new() };
        Some((digests, tail))
    }

    /// The whole resource, given its URI.
    pub fn resource(&self, uri: Uri) -> Option<Resource> {
        let (hashes, mut links) = self.parts()?;
        let count = if self.has(flag::LINKS) { links.value::<usize>()? } else { 0 };
        Some(Resource {
            lastmod: self.lastmod,
            changefreq: self.changefreq,
            length: self.length,
            hashes,
            media_type: self.media_type.map(Box::from),
            encoding: self.encoding.map(Box::from),
            links: (0..count).map(|_| link(&mut links, uri.as_str())).collect::<Option<_>>()?,
            sets: self.sets.iter().collect(),
            member: if self.member.is_empty() { None } else { Some(member(self.member, uri.as_str())?) },
            uri,
        })
    }

    /// The record without length and digests, and so without the member of exactly these; `None` where it is corrupt.
    pub fn unpublished(&self) -> Option<Vec<u8>> {
        let (_, links) = self.parts()?;
        let mut out = Vec::new();
        let flags = self.flags & !(flag::LENGTH | flag::DIGESTS);
        push_front(&mut out, (flags, self.changefreq), self.uri, self.sets, &[]);
        self.lastmod.iter().for_each(|lastmod| push_time(&mut out, *lastmod));
        self.media_type.iter().chain(&self.encoding).for_each(|text| push_word(&mut out, text));
        out.extend_from_slice(links.0);
        Some(out)
    }

    /// The record with `uri` in it, or without one where the path leads to it.
    pub fn with_uri(&self, uri: Option<&str>) -> Vec<u8> {
        self.with(uri, self.sets, self.member)
    }

    /// The record of the resource as a member of these sets, ascending and not none, with the encoded package member of another record
    /// of the same URI, if it has one.
    pub fn belonging(&self, uri: Option<&str>, sets: impl IntoIterator<Item = SetId>, member: &[u8]) -> Vec<u8> {
        self.with(uri, Sets { bytes: &Sets::encode(sets) }, member)
    }

    fn with(&self, uri: Option<&str>, sets: Sets<'_>, member: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + uri.map_or(0, str::len) + 2);
        push_front(&mut out, (self.flags, self.changefreq), uri, sets, member);
        out.extend_from_slice(self.body);
        out
    }

    /// True if both say the same of the resource; the sets and packages that hold it do not count.
    pub fn says_the_same(&self, other: &ResourceRecord<'_>) -> bool {
        let said = !(flag::HTTPS | flag::URI);
        (self.flags & said, self.changefreq, self.body) == (other.flags & said, other.changefreq, other.body)
    }
}

/// The row of an inode without a name: the folder of its former name, and its node, the URI in its resource.
pub fn push_orphan(out: &mut Vec<u8>, parent: u64, node: &NodeRecord<'_>) {
    push_varint(out, parent);
    node.encode(out);
}

/// The inode that [`push_orphan`] wrote; it has no entry.
pub fn orphan(bytes: &[u8]) -> Option<NamedNode<'_>> {
    let mut bytes = Decoder(bytes);
    Some(NamedNode { parent: bytes.value()?, entry: 0, node: NodeRecord::decode(bytes.0)? })
}

/// The deletion of a row of `held`, which has the URI alone; `None` where it is corrupt.
pub fn held(key: &[u8], row: &[u8]) -> Option<(SetId, Uri)> {
    Some((set_of_key(key)?, Uri::parse_item(std::str::from_utf8(row).ok()?).ok()?))
}

/// A revision without its position, and the next numbers: no later revision gives any of them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionRecord {
    pub number: u64,
    pub committed: Timestamp,
    pub at: Option<Timestamp>,
    pub totals: Totals,
    pub next_ino: u64,
    pub next_entry: u64,
}

impl RevisionRecord {
    /// Before the first revision; the root's inode and entry id are given.
    pub const NONE: RevisionRecord = RevisionRecord {
        number: 0,
        committed: Timestamp { seconds: 0, nanos: 0 },
        at: None,
        totals: Totals { files: 0, folders: 1, bytes: 0, unsized_files: 0 },
        next_ino: ROOT + 1,
        next_entry: ROOT_ENTRY + 1,
    };
}

/// One set of a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetRecord {
    /// The time that its list speaks for; `None` without a list, and for a list without a time.
    pub at: Option<Timestamp>,
    pub files: u64,
}

/// All sets of a revision, ascending.
pub type SetTable = BTreeMap<SetId, SetRecord>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Algorithm, Link};

    /// A resource with every part that a record can hold.
    fn full() -> Entry {
        let mut entry = Entry::new(Uri::parse("https://h/a/b?c").unwrap());
        entry.lastmod = Some(Timestamp { seconds: -62_135_596_800, nanos: 1 });
        entry.changefreq = Some(ChangeFrequency::Never);
        entry.length = Some(u64::MAX);
        entry.media_type = Some("text/plain".into());
        entry.encoding = Some("gzip".into());
        entry.hashes = vec![Digest::new(Algorithm::Sha1, &[7; 20]).unwrap()];
        entry.links = vec![Link {
            pri: 1,
            length: Some(0),
            modified: entry.lastmod,
            ..Link::new("duplicate", Uri::parse("https://h/a/c").unwrap())
        }];
        entry
    }

    fn packed() -> PackageMember {
        PackageMember { package: Uri::parse("https://h/part1.zip").unwrap(), path: "/resources/b?c".into() }
    }

    #[test]
    fn a_record_cut_anywhere_is_never_another_resource() {
        let entry = full();
        let mut bytes = Vec::new();
        push_resource(&mut bytes, &entry, true, [SetId(3), SetId(300)], Some(&packed()));

        let whole = ResourceRecord::decode(&bytes).unwrap();
        assert_eq!(whole.uri, Some(entry.loc.as_str()));
        assert_eq!(whole.resource(entry.loc.clone()).unwrap().links, entry.links);
        for end in 0..bytes.len() {
            let cut = ResourceRecord::decode(&bytes[..end]);
            assert!(cut.is_none_or(|record| record.resource(entry.loc.clone()).is_none()), "cut at {end}");
        }
    }

    #[test]
    fn a_record_that_ceases_to_follow_from_its_path_keeps_all_else() {
        let entry = full();
        let (mut without, mut expected) = (Vec::new(), Vec::new());
        push_resource(&mut without, &entry, false, [SetId(7)], Some(&packed()));
        push_resource(&mut expected, &entry, true, [SetId(7)], Some(&packed()));

        let with = ResourceRecord::decode(&without).unwrap().with_uri(Some(entry.loc.as_str()));

        assert_eq!(with, expected);
        assert_eq!(ResourceRecord::decode(&with).unwrap().with_uri(None), without);
    }

    #[test]
    fn the_only_set_of_a_source_costs_nothing_and_others_come_back() {
        let entry = full();
        let encoded = |sets: &[SetId]| {
            let mut bytes = Vec::new();
            push_resource(&mut bytes, &entry, true, sets.iter().copied(), None);
            bytes
        };
        let first = encoded(&[SetId(0)]);
        assert_eq!(encoded(&[SetId(1)]).len(), first.len() + 1);
        for sets in [&[SetId(0)][..], &[SetId(0), SetId(1)], &[SetId(5), SetId(u32::MAX)]] {
            let bytes = encoded(sets);
            let record = ResourceRecord::decode(&bytes).unwrap();
            assert_eq!(record.sets.iter().collect::<Vec<_>>(), sets);
            assert!(record.says_the_same(&ResourceRecord::decode(&first).unwrap()));
            assert_eq!(record.resource(entry.loc.clone()).unwrap().member, None);
        }
    }

    #[test]
    fn a_package_member_comes_back() {
        let entry = full();
        for path in ["/resources/é", "a/b?c", "", "https://h/a/b?c", "x/https://h/a/b?c"] {
            let packed = PackageMember { path: path.into(), ..packed() };
            let mut bytes = Vec::new();
            push_resource(&mut bytes, &entry, false, [SetId(0)], Some(&packed));
            let record = ResourceRecord::decode(&bytes).unwrap();
            assert_eq!(record.resource(entry.loc.clone()).unwrap().member, Some(packed));
        }
    }

    #[test]
    fn changed_bytes_are_decoded_without_a_panic() {
        let entry = full();
        let mut bytes = Vec::new();
        push_resource(&mut bytes, &entry, true, [SetId(3), SetId(300)], Some(&packed()));
        for index in 0..bytes.len() {
            for byte in 0..=255 {
                let mut changed = bytes.clone();
                changed[index] = byte;
                if let Some(record) = ResourceRecord::decode(&changed) {
                    let _ = record.resource(entry.loc.clone());
                }
                let _ = (NodeRecord::decode(&changed), orphan(&changed), held(&changed, &changed));
            }
        }
    }
}
