//! What makes a new content version, and the times it shows.

use super::CatalogError;
use super::store::codec::damaged;
use super::store::record::{NodeRecord, ResourceRecord};
use super::store::symbols::Symbols;
use crate::document::Timestamp;

/// What becomes of a file whose name stands for a file again.
#[derive(Debug)]
pub(super) enum Outcome<'n> {
    /// Nothing differs.
    Same,
    /// The content stays, and the inode: this is its node, with other metadata.
    Touched(NodeRecord<'n>),
    /// Other content: this is the node of the new inode, whose number is still to be given.
    Replaced(NodeRecord<'n>),
}

/// What is to stand at a name.
#[derive(Clone, Copy)]
pub(super) struct Coming<'r> {
    /// Its record, as the tree is to have it.
    pub resource: &'r [u8],
    /// Whether it has the URI of the file that the name stands for.
    pub same_uri: bool,
    /// The time of its change, which stands in for a `lastmod`.
    pub time: Option<Timestamp>,
    /// A change that is not in the journal says so: the content is new unless the entry vouches for the old one.
    pub is_news: bool,
}

/// Compares the file of `node` and the record `known` with what is to stand at its name.
pub(super) fn compare<'n>(
    node: &NodeRecord<'n>,
    known: &[u8],
    coming: Coming<'_>,
    symbols: &Symbols,
    now: Timestamp,
) -> Result<Outcome<'n>, CatalogError> {
    let Coming { resource, same_uri, time, is_news } = coming;
    let is_equal = known == resource && same_uri;
    if is_equal && !is_news {
        return Ok(Outcome::Same);
    }
    let sense = || damaged("resource", node.name);
    let old = ResourceRecord::decode(known).ok_or_else(sense)?;
    let new = ResourceRecord::decode(resource).ok_or_else(sense)?;
    let same = match is_news {
        true => same_after_update(&old, &new, same_uri, symbols),
        false => same_version(&old, &new, same_uri, symbols),
    };
    let (size, freshness) = (new.size(), new.freshness());
    Ok(match same.ok_or_else(sense)? {
        true if is_equal => Outcome::Same,
        true => {
            let lastmod = new.lastmod.filter(|_| new.lastmod != old.lastmod);
            Outcome::Touched(NodeRecord { size, freshness, mtime: lastmod.unwrap_or(node.mtime), ..*node })
        }
        false => {
            let mtime = mtime(node, size, new.lastmod.or(time), now);
            Outcome::Replaced(NodeRecord { ino: 0, size, mtime, ctime: now, freshness, ..*node })
        }
    })
}

/// `now` as records keep it: whole milliseconds.
pub(super) fn now() -> Timestamp {
    let Timestamp { seconds, nanos } = Timestamp::now();
    Timestamp { seconds, nanos: nanos / 1_000_000 * 1_000_000 }
}

/// Whether `new` describes the content that `old` described; `None` where a record makes no sense.
///
/// Every digest algorithm that both publish must agree, and one is enough, but two lengths that differ are of two contents.
/// With none shared it must be one URI with the same `lastmod` and length. Hash and length are those of the coded bytes: another
/// `encoding` is another content.
pub(super) fn same_version(
    old: &ResourceRecord<'_>,
    new: &ResourceRecord<'_>,
    same_uri: bool,
    symbols: &Symbols,
) -> Option<bool> {
    if !symbols.agree(old.encoding, new.encoding) {
        return Some(false);
    }
    let (before, after) = (old.digests()?, new.digests()?);
    let mut shared = after
        .iter()
        .flat_map(|new| before.iter().filter(|old| old.algorithm() == new.algorithm()).map(move |old| old == new))
        .peekable();
    Some(match shared.peek() {
        Some(_) => {
            let lengths_agree = old.length.zip(new.length).is_none_or(|(old, new)| old == new);
            lengths_agree && shared.all(|agrees| agrees)
        }
        None => same_uri && old.lastmod == new.lastmod && old.length == new.length,
    })
}

/// [`same_version`] where a change is an update: a digest must agree, or the `lastmod` that both publish. Entries without either vouch
/// for nothing, nor does a length alone.
pub(super) fn same_after_update(
    old: &ResourceRecord<'_>,
    new: &ResourceRecord<'_>,
    same_uri: bool,
    symbols: &Symbols,
) -> Option<bool> {
    let same = same_version(old, new, same_uri, symbols)?;
    let (before, after) = (old.digests()?, new.digests()?);
    let vouched =
        new.lastmod.is_some() || after.iter().any(|new| before.iter().any(|old| old.algorithm() == new.algorithm()));
    Some(same && vouched)
}

/// Whether both provably describe one content: an equal digest, and no other, else an equal `lastmod` and length.
pub(super) fn provably_same(old: &ResourceRecord<'_>, new: &ResourceRecord<'_>, symbols: &Symbols) -> Option<bool> {
    let same = same_version(old, new, true, symbols)?;
    let (before, after) = (old.digests()?, new.digests()?);
    let by_digest = after.iter().any(|new| before.iter().any(|old| old.algorithm() == new.algorithm()));
    Some(same && (by_digest || (new.lastmod.is_some() && new.length.is_some())))
}

/// The mtime of new content at a name: `lastmod`, else now; but size and mtime never both stay, in whole seconds, for
/// rsync and its like would then take the content for unchanged.
pub(super) fn mtime(old: &NodeRecord<'_>, size: Option<u64>, lastmod: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let mtime = lastmod.unwrap_or(now);
    let sizes_differ = matches!((old.size, size), (Some(old), Some(new)) if old != new);
    if sizes_differ || mtime.seconds != old.mtime.seconds { mtime } else { later_than(old.mtime, now) }
}

/// Now, unless that is the second of `old`: then the next one.
pub(super) fn later_than(old: Timestamp, now: Timestamp) -> Timestamp {
    if now.seconds == old.seconds { Timestamp { seconds: now.seconds + 1, nanos: 0 } } else { now }
}
