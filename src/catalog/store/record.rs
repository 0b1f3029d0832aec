//! The octets of one record: how nodes, resources and revisions are written into the store and the sorter.

use super::super::{Freshness, Kind, Node, Resource, SetId, Totals};
use super::codec::{Octets, push_number, push_string, push_time, push_varint};
use super::parts::{digests, link, member, push_digests, push_link, push_member, skip_member};
use super::symbols::{Symbol, Symbols};
use crate::document::{ChangeFrequency, Digest, Entry, PackageMember, Timestamp, Uri, believed_length};
use fuser::INodeNo;

fn changefreq_code(changefreq: Option<ChangeFrequency>) -> u8 {
    match changefreq {
        None => 0,
        Some(ChangeFrequency::Always) => 1,
        Some(ChangeFrequency::Hourly) => 2,
        Some(ChangeFrequency::Daily) => 3,
        Some(ChangeFrequency::Weekly) => 4,
        Some(ChangeFrequency::Monthly) => 5,
        Some(ChangeFrequency::Yearly) => 6,
        Some(ChangeFrequency::Never) => 7,
    }
}

fn changefreq(code: u8) -> Option<Option<ChangeFrequency>> {
    Some(match code {
        0 => None,
        1 => Some(ChangeFrequency::Always),
        2 => Some(ChangeFrequency::Hourly),
        3 => Some(ChangeFrequency::Daily),
        4 => Some(ChangeFrequency::Weekly),
        5 => Some(ChangeFrequency::Monthly),
        6 => Some(ChangeFrequency::Yearly),
        7 => Some(ChangeFrequency::Never),
        _ => return None,
    })
}

/// The hot record of one name: what `stat` and `readdir` need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct NodeRecord<'a> {
    pub ino: u64,
    pub kind: Kind,
    pub size: Option<u64>,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub freshness: Freshness,
    pub name: &'a [u8],
}

impl<'a> NodeRecord<'a> {
    const FOLDER: u8 = 1;
    const SIZED: u8 = 2;
    const ASKED: u8 = 4;
    /// The code of `changefreq` lies above the flags.
    const CHANGEFREQ_SHIFT: u8 = 3;

    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        let folder = if self.kind == Kind::Folder { Self::FOLDER } else { 0 };
        let sized = if self.size.is_some() { Self::SIZED } else { 0 };
        let asked = match self.freshness {
            Freshness::Listed => 0,
            Freshness::Asked(changefreq) => Self::ASKED | changefreq_code(changefreq) << Self::CHANGEFREQ_SHIFT,
        };
        out.push(folder | sized | asked);
        push_varint(out, self.ino);
        if let Some(size) = self.size {
            push_varint(out, size);
        }
        push_time(out, self.mtime);
        push_time(out, self.ctime);
        out.extend_from_slice(self.name);
    }

    pub(in crate::catalog) fn decode(octets: &'a [u8]) -> Option<NodeRecord<'a>> {
        let mut octets = Octets(octets);
        let flags = octets.octet()?;
        Some(NodeRecord {
            ino: octets.varint()?,
            kind: if flags & Self::FOLDER != 0 { Kind::Folder } else { Kind::File },
            size: if flags & Self::SIZED != 0 { Some(octets.varint()?) } else { None },
            mtime: octets.time()?,
            ctime: octets.time()?,
            freshness: if flags & Self::ASKED != 0 {
                Freshness::Asked(changefreq(flags >> Self::CHANGEFREQ_SHIFT)?)
            } else {
                Freshness::Listed
            },
            name: octets.0,
        })
    }

    pub(in crate::catalog) fn node(&self) -> Node {
        let NodeRecord { ino, kind, size, mtime, ctime, freshness, .. } = *self;
        Node { ino: INodeNo(ino), kind, size, mtime, ctime, freshness }
    }
}

/// The cold record of one resource, its variable parts still encoded.
///
/// Layout: flags, more flags and `changefreq`, then as flagged: the URI (only where the path does not give it), the sets
/// (only where they are not the first one alone), the package member, `lastmod`, `length`, `type`, `encoding`, `hash`, `ln`.
#[derive(Clone, Copy)]
pub(in crate::catalog) struct ResourceRecord<'a> {
    flags: u8,
    /// The scheme, where the URI follows from the path.
    pub https: bool,
    /// The URI, where it does not follow from the path.
    pub uri: Option<&'a str>,
    pub changefreq: Option<ChangeFrequency>,
    pub sets: Sets<'a>,
    /// The octets of the package member; empty where there is none.
    pub member: &'a [u8],
    pub lastmod: Option<Timestamp>,
    pub length: Option<u64>,
    pub media_type: Option<Symbol<'a>>,
    pub encoding: Option<Symbol<'a>>,
    has_digests: bool,
    has_links: bool,
    /// Digests and links.
    tail: Octets<'a>,
    /// Everything behind the package member.
    body: &'a [u8],
}

/// The sets of a resource, ascending, as its record holds them: one is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct Sets<'a> {
    /// For each set its number and, in the lowest bit, whether another follows. Empty for the first set alone.
    octets: &'a [u8],
}

impl<'a> Sets<'a> {
    fn read(octets: &mut Octets<'a>) -> Option<Sets<'a>> {
        let before = octets.0;
        while {
            let numbered = octets.varint()?;
            u32::try_from(numbered >> 1).ok()?;
            numbered & 1 == 1
        } {}
        Some(Sets { octets: &before[..before.len() - octets.0.len()] })
    }

    pub(in crate::catalog) fn iter(self) -> impl Iterator<Item = SetId> + use<'a> {
        let mut octets = Octets(self.octets);
        let first = if self.octets.is_empty() { Some(SetId::default()) } else { None };
        first.into_iter().chain(std::iter::from_fn(move || Some(SetId((octets.varint()? >> 1) as u32))))
    }

    pub(in crate::catalog) fn contains(self, set: SetId) -> bool {
        self.iter().any(|other| other == set)
    }

    /// What a record holds for `sets`, which are ascending and not none.
    pub(in crate::catalog) fn encode(sets: &[SetId], out: &mut Vec<u8>) {
        if *sets != [SetId::default()] {
            for (index, set) in sets.iter().enumerate() {
                push_varint(out, u64::from(set.0) << 1 | u64::from(index + 1 < sets.len()));
            }
        }
    }
}

/// What stands before `lastmod` in a record.
struct Front<'a> {
    flags: u8,
    changefreq: Option<ChangeFrequency>,
    uri: Option<&'a str>,
    sets: &'a [u8],
    member: &'a [u8],
}

impl Front<'_> {
    fn push(&self, out: &mut Vec<u8>) {
        let when = |condition: bool, bit: u8| if condition { bit } else { 0 };
        out.push(self.flags & !flag::URI | when(self.uri.is_some(), flag::URI));
        out.push(
            changefreq_code(self.changefreq)
                | when(!self.sets.is_empty(), more::SETS)
                | when(!self.member.is_empty(), more::MEMBER),
        );
        if let Some(uri) = self.uri {
            push_string(out, uri);
        }
        out.extend_from_slice(self.sets);
        out.extend_from_slice(self.member);
    }
}

/// Of the second octet of a record.
mod more {
    /// The code of `changefreq`.
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
pub(in crate::catalog) fn push_resource(
    out: &mut Vec<u8>,
    entry: &Entry,
    with_uri: bool,
    sets: &[SetId],
    member: Option<&PackageMember>,
    symbols: &Symbols,
) {
    let uri = entry.loc.as_str();
    let when = |condition: bool, bit: u8| if condition { bit } else { 0 };
    let flags = when(uri.starts_with("https:"), flag::HTTPS)
        | when(entry.lastmod.is_some(), flag::LASTMOD)
        | when(entry.length.is_some(), flag::LENGTH)
        | when(entry.media_type.is_some(), flag::TYPE)
        | when(entry.encoding.is_some(), flag::ENCODING)
        | when(!entry.hashes.is_empty(), flag::DIGESTS)
        | when(!entry.links.is_empty(), flag::LINKS);
    let (mut encoded_sets, mut encoded_member) = (Vec::new(), Vec::new());
    Sets::encode(sets, &mut encoded_sets);
    if let Some(member) = member {
        push_member(&mut encoded_member, member, uri, symbols);
    }
    let (sets, member) = (&encoded_sets[..], &encoded_member[..]);
    let uri_within = with_uri.then_some(uri);
    Front { flags, changefreq: entry.changefreq, uri: uri_within, sets, member }.push(out);
    if let Some(lastmod) = entry.lastmod {
        push_time(out, lastmod);
    }
    if let Some(length) = entry.length {
        push_varint(out, length);
    }
    if let Some(media_type) = &entry.media_type {
        symbols.push(out, media_type);
    }
    if let Some(encoding) = &entry.encoding {
        symbols.push(out, encoding);
    }
    if !entry.hashes.is_empty() {
        push_digests(out, &entry.hashes);
    }
    if !entry.links.is_empty() {
        push_varint(out, entry.links.len() as u64);
        entry.links.iter().for_each(|link| push_link(out, link, uri, symbols));
    }
}

impl<'a> ResourceRecord<'a> {
    pub(in crate::catalog) fn decode(octets: &'a [u8]) -> Option<ResourceRecord<'a>> {
        let mut octets = Octets(octets);
        let flags = octets.octet()?;
        let has = |bit: u8| flags & bit != 0;
        let beside = octets.octet()?;
        let changefreq = changefreq(beside & more::CHANGEFREQ)?;
        let uri = if has(flag::URI) { Some(octets.string()?) } else { None };
        let sets = if beside & more::SETS != 0 { Sets::read(&mut octets)? } else { Sets { octets: &[] } };
        let before = octets.0;
        if beside & more::MEMBER != 0 {
            skip_member(&mut octets)?;
        }
        let member = &before[..before.len() - octets.0.len()];
        let body = octets.0;
        Some(ResourceRecord {
            flags,
            https: has(flag::HTTPS),
            uri,
            changefreq,
            sets,
            member,
            lastmod: if has(flag::LASTMOD) { Some(octets.time()?) } else { None },
            length: if has(flag::LENGTH) { Some(octets.varint()?) } else { None },
            media_type: if has(flag::TYPE) { Some(Symbol::read(&mut octets)?) } else { None },
            encoding: if has(flag::ENCODING) { Some(Symbol::read(&mut octets)?) } else { None },
            has_digests: has(flag::DIGESTS),
            has_links: has(flag::LINKS),
            tail: octets,
            body,
        })
    }

    /// How a change of the bytes becomes known.
    pub(in crate::catalog) fn freshness(&self) -> Freshness {
        match self.lastmod.is_some() || self.has_digests {
            true => Freshness::Listed,
            false => Freshness::Asked(self.changefreq),
        }
    }

    /// What `stat` shows: the published length, unless it counts coded octets or is no size ([`believed_length`]).
    pub(in crate::catalog) fn size(&self) -> Option<u64> {
        match (self.encoding, self.length) {
            (Some(_), _) | (None, None) => None,
            (None, Some(0)) => believed_length(self.length, &self.digests()?),
            (None, length) => length,
        }
    }

    pub(in crate::catalog) fn digests(&self) -> Option<Vec<Digest>> {
        let mut tail = self.tail;
        if self.has_digests { digests(&mut tail) } else { Some(Vec::new()) }
    }

    /// The whole resource, given its URI.
    pub(in crate::catalog) fn resource(&self, uri: Uri, symbols: &Symbols) -> Option<Resource> {
        let mut tail = self.tail;
        let hashes = if self.has_digests { digests(&mut tail)? } else { Vec::new() };
        let links = if self.has_links {
            (0..tail.count()?).map(|_| link(&mut tail, uri.as_str(), symbols)).collect::<Option<_>>()?
        } else {
            Vec::new()
        };
        let resolve = |symbol: Option<Symbol<'_>>| match symbol {
            Some(symbol) => symbols.resolve(symbol).map(Some),
            None => Some(None),
        };
        Some(Resource {
            lastmod: self.lastmod,
            changefreq: self.changefreq,
            length: self.length,
            hashes,
            media_type: resolve(self.media_type)?,
            encoding: resolve(self.encoding)?,
            links,
            sets: self.sets.iter().collect(),
            member: if self.member.is_empty() { None } else { Some(member(self.member, uri.as_str(), symbols)?) },
            uri,
        })
    }

    /// The same record without length and digests, and so without the member of exactly these; `None` where it makes no sense.
    pub(in crate::catalog) fn push_unpublished(&self, out: &mut Vec<u8>) -> Option<()> {
        Front { flags: self.flags & !(flag::LENGTH | flag::DIGESTS), member: &[], ..self.front() }.push(out);
        let mut body = Octets(self.body);
        let mut copy = |octets: &Octets<'a>, behind: &Octets<'a>| {
            out.extend_from_slice(&octets.0[..octets.0.len() - behind.0.len()]);
        };
        let before = body;
        if self.lastmod.is_some() {
            body.time()?;
        }
        copy(&before, &body);
        if self.length.is_some() {
            body.varint()?;
        }
        let before = body;
        for _ in self.media_type.iter().chain(&self.encoding) {
            Symbol::read(&mut body)?;
        }
        copy(&before, &body);
        if self.has_digests {
            digests(&mut body)?;
        }
        out.extend_from_slice(body.0);
        Some(())
    }

    fn front(&self) -> Front<'a> {
        let ResourceRecord { flags, changefreq, uri, member, .. } = *self;
        Front { flags, changefreq, uri, sets: self.sets.octets, member }
    }

    /// The same record with or without the URI in it: as its path gives it or not.
    pub(in crate::catalog) fn push_with_uri(&self, uri: Option<&str>, out: &mut Vec<u8>) {
        Front { uri, ..self.front() }.push(out);
        out.extend_from_slice(self.body);
    }

    /// The same resource as a member of these sets, ascending and not none, and where a package holds it (octets of another
    /// record of the same URI, or none).
    pub(in crate::catalog) fn push_belonging(
        &self,
        uri: Option<&str>,
        sets: &[SetId],
        member: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut encoded = Vec::new();
        Sets::encode(sets, &mut encoded);
        Front { uri, sets: &encoded, member, ..self.front() }.push(out);
        out.extend_from_slice(self.body);
    }

    /// Whether both say the same of the resource; the sets and packages that hold it do not count.
    pub(in crate::catalog) fn says_the_same(&self, other: &ResourceRecord<'_>) -> bool {
        let said = flag::LASTMOD | flag::LENGTH | flag::TYPE | flag::ENCODING | flag::DIGESTS | flag::LINKS;
        (self.flags & said, self.changefreq, self.body) == (other.flags & said, other.changefreq, other.body)
    }
}

/// Where an inode lies, and the resource behind it (empty for a folder).
#[derive(Clone, Copy)]
pub(in crate::catalog) struct InodeRecord<'a> {
    pub parent: u64,
    pub entry: u64,
    pub resource: &'a [u8],
}

impl<'a> InodeRecord<'a> {
    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        push_number(out, self.parent);
        push_number(out, self.entry);
        out.extend_from_slice(self.resource);
    }

    pub(in crate::catalog) fn decode(octets: &'a [u8]) -> Option<InodeRecord<'a>> {
        let mut octets = Octets(octets);
        Some(InodeRecord { parent: octets.number()?, entry: octets.number()?, resource: octets.0 })
    }
}

/// An inode without a name: the folder that it had its name in, its node, and its resource with the URI within (empty for a folder).
#[derive(Clone, Copy)]
pub(in crate::catalog) struct OrphanRecord<'a> {
    pub parent: u64,
    pub node: NodeRecord<'a>,
    pub resource: &'a [u8],
}

impl<'a> OrphanRecord<'a> {
    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        push_varint(out, self.parent);
        push_varint(out, self.resource.len() as u64);
        out.extend_from_slice(self.resource);
        self.node.encode(out);
    }

    pub(in crate::catalog) fn decode(octets: &'a [u8]) -> Option<OrphanRecord<'a>> {
        let mut octets = Octets(octets);
        let parent = octets.varint()?;
        let count = octets.count()?;
        let resource = octets.take(count)?;
        Some(OrphanRecord { parent, resource, node: NodeRecord::decode(octets.0)? })
    }
}

/// What is kept of a revision beside its position, and the numbers that come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::catalog) struct RevisionRecord {
    pub number: u64,
    pub committed: Timestamp,
    pub at: Option<Timestamp>,
    pub totals: Totals,
    pub next_ino: u64,
    pub next_entry: u64,
}

impl RevisionRecord {
    pub(in crate::catalog) fn encode(&self, out: &mut Vec<u8>) {
        let Totals { files, folders, octets, unsized_files } = self.totals;
        for number in [self.number, self.next_ino, self.next_entry, files, folders, octets, unsized_files] {
            push_varint(out, number);
        }
        push_time(out, self.committed);
        if let Some(at) = self.at {
            push_time(out, at);
        }
    }

    pub(in crate::catalog) fn decode(octets: &[u8]) -> Option<RevisionRecord> {
        let mut octets = Octets(octets);
        let (number, next_ino, next_entry) = (octets.varint()?, octets.varint()?, octets.varint()?);
        let totals = Totals {
            files: octets.varint()?,
            folders: octets.varint()?,
            octets: octets.varint()?,
            unsized_files: octets.varint()?,
        };
        let committed = octets.time()?;
        let at = if octets.0.is_empty() { None } else { Some(octets.time()?) };
        Some(RevisionRecord { number, committed, at, totals, next_ino, next_entry })
    }
}

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
        let (entry, symbols) = (full(), Symbols::default());
        let mut octets = Vec::new();
        push_resource(&mut octets, &entry, true, &[SetId(3), SetId(300)], Some(&packed()), &symbols);

        let whole = ResourceRecord::decode(&octets).unwrap();
        assert_eq!(whole.uri, Some(entry.loc.as_str()));
        assert_eq!(whole.resource(entry.loc.clone(), &symbols).unwrap().links, entry.links);
        for end in 0..octets.len() {
            let cut = ResourceRecord::decode(&octets[..end]);
            assert!(cut.is_none_or(|record| record.resource(entry.loc.clone(), &symbols).is_none()), "cut at {end}");
        }
    }

    #[test]
    fn a_record_that_ceases_to_follow_from_its_path_keeps_all_else() {
        let (entry, symbols) = (full(), Symbols::default());
        let (mut without, mut with, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        push_resource(&mut without, &entry, false, &[SetId(7)], Some(&packed()), &symbols);
        push_resource(&mut expected, &entry, true, &[SetId(7)], Some(&packed()), &symbols);

        ResourceRecord::decode(&without).unwrap().push_with_uri(Some(entry.loc.as_str()), &mut with);

        assert_eq!(with, expected);
        let mut again = Vec::new();
        ResourceRecord::decode(&with).unwrap().push_with_uri(None, &mut again);
        assert_eq!(again, without);
    }

    #[test]
    fn the_only_set_of_a_source_costs_nothing_and_others_come_back() {
        let (entry, symbols) = (full(), Symbols::default());
        let encoded = |sets: &[SetId]| {
            let mut octets = Vec::new();
            push_resource(&mut octets, &entry, true, sets, None, &symbols);
            octets
        };
        let first = encoded(&[SetId(0)]);
        assert_eq!(encoded(&[SetId(1)]).len(), first.len() + 1);
        for sets in [&[SetId(0)][..], &[SetId(0), SetId(1)], &[SetId(5), SetId(u32::MAX)]] {
            let octets = encoded(sets);
            let record = ResourceRecord::decode(&octets).unwrap();
            assert_eq!(record.sets.iter().collect::<Vec<_>>(), sets);
            assert!(record.says_the_same(&ResourceRecord::decode(&first).unwrap()));
            assert_eq!(record.resource(entry.loc.clone(), &symbols).unwrap().member, None);
        }
    }

    #[test]
    fn a_package_member_comes_back() {
        let (entry, symbols) = (full(), Symbols::default());
        for path in ["/resources/é", "a/b?c", "", "https://h/a/b?c", "x/https://h/a/b?c"] {
            let packed = PackageMember { path: path.into(), ..packed() };
            let mut octets = Vec::new();
            push_resource(&mut octets, &entry, false, &[SetId(0)], Some(&packed), &symbols);
            let record = ResourceRecord::decode(&octets).unwrap();
            assert_eq!(record.resource(entry.loc.clone(), &symbols).unwrap().member, Some(packed));
        }
    }

    #[test]
    fn every_single_octet_changed_is_decoded_without_a_panic() {
        let (entry, symbols) = (full(), Symbols::default());
        let mut octets = Vec::new();
        push_resource(&mut octets, &entry, true, &[SetId(3), SetId(300)], Some(&packed()), &symbols);
        for index in 0..octets.len() {
            for octet in 0..=255 {
                let mut changed = octets.clone();
                changed[index] = octet;
                if let Some(record) = ResourceRecord::decode(&changed) {
                    let _ = record.resource(entry.loc.clone(), &symbols);
                }
                let _ =
                    (NodeRecord::decode(&changed), OrphanRecord::decode(&changed), RevisionRecord::decode(&changed));
            }
        }
    }
}
