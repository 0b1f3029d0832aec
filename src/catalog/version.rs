//! The rule for a new content version, and the times that it shows.

use super::store::record::{NodeRecord, ResourceRecord};
use crate::document::Timestamp;
use serde::{Deserialize, Serialize};

/// The fate of a file whose name stands for a file again.
pub(super) enum VersionChange<'n> {
    /// Nothing differs.
    Same,
    /// The content stays, and the inode: this is its node, with other metadata.
    Touched(NodeRecord<'n>),
    /// Other content: this is the node of the new inode, whose number is still to be given.
    Replaced(NodeRecord<'n>),
}

/// The mark that a change leaves on the resource that it states; none for an entry of a list.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct ChangeMark {
    /// Its `datetime`, which stands in for a `lastmod`.
    pub datetime: Option<Timestamp>,
    /// True if the journal did not hold it before this commit: the content is new unless the entry vouches for the old one.
    pub is_news: bool,
}

/// Compares the file of `node`, whose resource is `old`, with the resource `new` that is to stand at its name, of the `same_uri` or not;
/// `None` where a record makes no sense.
pub(super) fn compare<'n>(
    (node, old): (&NodeRecord<'n>, &ResourceRecord<'_>),
    (new, same_uri): (ResourceRecord<'n>, bool),
    mark: ChangeMark,
    now: Timestamp,
) -> Option<VersionChange<'n>> {
    let is_equal = old.bytes == new.bytes && same_uri;
    let is_same_version = match mark.is_news {
        true => same_after_update(old, &new, same_uri)?,
        false => is_equal || same_version(old, &new, same_uri)?,
    };
    let with = NodeRecord { resource: Some(new), ..*node };
    Some(if is_equal && is_same_version {
        VersionChange::Same
    } else if is_same_version {
        let lastmod = new.lastmod.filter(|_| new.lastmod != old.lastmod);
        VersionChange::Touched(NodeRecord { mtime: lastmod.unwrap_or(node.mtime), ..with })
    } else {
        let mtime = mtime(node, new.size(), new.lastmod.or(mark.datetime), now);
        VersionChange::Replaced(NodeRecord { ino: 0, mtime, ctime: now, ..with })
    })
}

/// `now` as records keep it: whole milliseconds.
pub(super) fn now() -> Timestamp {
    let Timestamp { seconds, nanos } = Timestamp::now();
    Timestamp { seconds, nanos: nanos / 1_000_000 * 1_000_000 }
}

/// Tells whether `new` describes the content that `old` described; `None` where a record makes no sense.
///
/// Every digest algorithm that both publish must agree, and one is enough, but two lengths that differ are of two contents.
/// With none shared it must be one URI with the same `lastmod` and length. Hash and length are those of the coded bytes: another
/// `encoding` is another content.
fn same_version(old: &ResourceRecord<'_>, new: &ResourceRecord<'_>, same_uri: bool) -> Option<bool> {
    if old.encoding != new.encoding {
        return Some(false);
    }
    let shared = shared_digests(old, new)?;
    let lengths_agree = old.length.zip(new.length).is_none_or(|(old, new)| old == new);
    Some(match shared[..] {
        [] => same_uri && old.lastmod == new.lastmod && old.length == new.length,
        _ => lengths_agree && shared.iter().all(|agrees| *agrees),
    })
}

/// For each algorithm whose digest both publish, whether the digests agree.
fn shared_digests(old: &ResourceRecord<'_>, new: &ResourceRecord<'_>) -> Option<Vec<bool>> {
    let (before, after) = (old.digests()?, new.digests()?);
    let pairs = after.iter().flat_map(|new| before.iter().map(move |old| (old, new)));
    Some(pairs.filter(|(old, new)| old.algorithm() == new.algorithm()).map(|(old, new)| old == new).collect())
}

/// [`same_version`] where a change is an update: a digest must agree, or the `lastmod` that both publish. Entries without either vouch
/// for nothing, nor does a length alone, nor a `lastmod` without a time of day: a file may change twice a day.
pub(super) fn same_after_update(old: &ResourceRecord<'_>, new: &ResourceRecord<'_>, same_uri: bool) -> Option<bool> {
    let is_dated = new.lastmod.is_some_and(|it| it.latest() == it.seconds);
    Some(same_version(old, new, same_uri)? && (is_dated || !shared_digests(old, new)?.is_empty()))
}

/// Tells whether both provably describe one content: an equal digest, and no other, else an equal `lastmod` and length.
pub(super) fn provably_same(old: &ResourceRecord<'_>, new: &ResourceRecord<'_>) -> Option<bool> {
    let is_dated = new.lastmod.is_some() && new.length.is_some();
    Some(same_version(old, new, true)? && (is_dated || !shared_digests(old, new)?.is_empty()))
}

/// The mtime of new content at a name: `lastmod`, else now; but size and mtime never both stay, in whole seconds, for
/// rsync and its like would then take the content for unchanged.
fn mtime(old: &NodeRecord<'_>, size: Option<u64>, lastmod: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let mtime = lastmod.unwrap_or(now);
    let sizes_differ = matches!((old.size(), size), (Some(old), Some(new)) if old != new);
    if sizes_differ || mtime.seconds != old.mtime.seconds { mtime } else { later_than(old.mtime, now) }
}

/// Now, unless that is the second of `old`: then the next one.
pub(super) fn later_than(old: Timestamp, now: Timestamp) -> Timestamp {
    if now.seconds == old.seconds { Timestamp { seconds: now.seconds + 1, nanos: 0 } } else { now }
}
