//! Values that go into the catalog and out of it.

use crate::document::{Change, ChangeFrequency, Digest, Entry, Link, PackageMember, Timestamp, Uri};
use crate::platform::ino::Ino;
use crate::platform::inode_set::InodeSet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A folder and a name in it.
pub type FolderAndName = (Ino, Box<[u8]>);

/// A change of the tree for the kernel; travels through one channel to `fs::invalidator`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidation {
    /// The name in this folder stands for something else, or for nothing, or newly exists.
    Name {
        /// The folder.
        parent: Ino,
        /// The name.
        name: Box<[u8]>,
        /// The inode that the name stood for until now and that may live on as an orphan.
        orphan: Option<Ino>,
    },
    /// The folder's listing or attributes changed.
    Folder(Ino),
    /// Folders whose listings or attributes changed, many together.
    Folders(InodeSet),
    /// The attributes (size, times) of this inode changed, its bytes did not.
    Attributes(Ino),
    /// More changes than are listed one by one: the kernel has to look up everything again. These folders changed; names and inodes are
    /// not listed.
    Everything(InodeSet),
}

/// Folder or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Folder,
    File,
}

/// How a change of a file's bytes becomes known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Its entry has `lastmod` or a hash: by the list. Every folder is such.
    Listed,
    /// Its entry has neither: the Source must be asked, as often as `changefreq` suggests.
    Asked(Option<ChangeFrequency>),
}

/// The attributes of an inode, for `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// The inode: (path, content version).
    pub ino: Ino,
    /// Folder or file.
    pub kind: Kind,
    /// The published length of what is read; `None` where not published or `encoding` is given.
    pub size: Option<u64>,
    /// Modification time as DESIGN says.
    pub mtime: Timestamp,
    /// When this machine saw the change.
    pub ctime: Timestamp,
    /// How a change of its bytes becomes known.
    pub freshness: Freshness,
}

/// An inode and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub node: Node,
    /// Its name; `None` for the root, and for an orphan.
    pub name: Option<InodeName>,
    /// The folder and the name that an orphan had.
    pub former: Option<FolderAndName>,
}

/// A name of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeName {
    /// The folder that holds it.
    pub folder: Ino,
    /// Its cookie there.
    pub entry: EntryId,
    /// The name.
    pub name: Box<[u8]>,
}

/// A directory cookie: given once to a path and kept through its versions. 0 is before the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId(pub u64);

/// One of the sets of resources of the Source (section 6.1), by the number that `sync` has given it for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SetId(pub u32);

/// All that the Source published of the resource behind a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its URI.
    pub uri: Uri,
    /// `lastmod`
    pub lastmod: Option<Timestamp>,
    /// `changefreq`
    pub changefreq: Option<ChangeFrequency>,
    /// `length`: of the coded bytes where `encoding` is given.
    pub length: Option<u64>,
    /// `hash`, strongest first.
    pub hashes: Vec<Digest>,
    /// `type`
    pub media_type: Option<Box<str>>,
    /// `encoding`
    pub encoding: Option<Box<str>>,
    /// `rs:ln`
    pub links: Vec<Link>,
    /// The sets it is a member of, ascending.
    pub sets: Vec<SetId>,
    /// The package member that holds exactly this version.
    pub member: Option<PackageMember>,
}

/// Sums over the current revision, kept with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Files.
    pub files: u64,
    /// Folders, the root included.
    pub folders: u64,
    /// Sum of the published lengths.
    pub bytes: u64,
    /// Files without a published length.
    pub unsized_files: u64,
}

/// The current revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Counts commits from 1.
    pub number: u64,
    /// When it was committed here.
    pub committed: Timestamp,
    /// The time it speaks for: the earliest `at` of its lists.
    pub at: Option<Timestamp>,
    /// Sums.
    pub totals: Totals,
}

/// A change of one resource, as a set states it.
#[derive(Clone, Copy, Debug)]
pub struct StatedChange<'a> {
    /// The set whose document says it.
    pub set: SetId,
    /// The kind of change.
    pub change: Change,
    /// When, as `sync` has decided it: statements about one resource are ordered by it.
    pub time: Timestamp,
    /// True if the Source has the resource, and it is left out by choice: the tree takes that as a deletion.
    pub is_left_out: bool,
    /// The entry; only `loc` counts in a deletion. Of a resource that is left out all is kept, for another choice
    /// ([`super::Snapshot::journal`]).
    pub entry: &'a Entry,
    /// The member of a Change Dump's package that holds the new bytes.
    pub member: Option<&'a PackageMember>,
}

/// The change of a resource that the journal keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journaled {
    /// The kind of change.
    pub change: Change,
    /// When.
    pub time: Timestamp,
    /// Its published `datetime`.
    pub datetime: Option<Timestamp>,
}

/// The outcome of a commit.
#[derive(Debug)]
pub struct Committed {
    /// Number of the new revision; the old one's where the tree did not change.
    pub revision: u64,
    /// Files that did not exist before.
    pub created: u64,
    /// Names with new content (a new inode).
    pub updated: u64,
    /// Same content, other metadata.
    pub touched: u64,
    /// Files gone.
    pub deleted: u64,
    /// For the kernel, after the commit.
    pub invalidations: Vec<Invalidation>,
    /// How many entries are not shown, by path: too many URIs share it.
    pub left_out: BTreeMap<String, u64>,
    /// Changes that delete what is not there.
    pub unknown: u64,
}

impl Committed {
    /// The outcome of this commit and of those before it together, but for the invalidations before.
    pub fn behind(mut self, before: Option<Committed>) -> Committed {
        if let Some(before) = before {
            self.left_out.extend(before.left_out);
            self.created += before.created;
            self.updated += before.updated;
            self.touched += before.touched;
            self.deleted += before.deleted;
            self.unknown += before.unknown;
        }
        self
    }
}

/// The part of its resource that a renewed inode keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Renewal {
    /// All of it.
    AsPublished,
    /// All but length and digests, which the bytes that the Source serves now do not have. The next commit compares the entry with what
    /// is listed then, and gives another inode again where these are back.
    Unpublished,
}

/// Relation by which the resource of an item names the item's own address.
pub const ADDRESS: &str = "self";

impl Resource {
    /// The address of its bytes: its URI, or of an item the item's own address.
    pub fn address(&self) -> &Uri {
        let of_item = self.uri.page().and_then(|_| self.links.iter().find(|link| &*link.rel == ADDRESS)?.uri());
        of_item.unwrap_or(&self.uri)
    }
}

impl From<Resource> for Entry {
    fn from(resource: Resource) -> Entry {
        let Resource { uri, lastmod, changefreq, length, hashes, media_type, encoding, links, .. } = resource;
        Entry { lastmod, changefreq, length, hashes, media_type, encoding, links, ..Entry::new(uri) }
    }
}
