//! Names and inodes: LOOKUP and GETATTR.
//!
//! A size that is shown is true. A file whose size is neither published nor learnt is given to the kernel as empty
//! only together with an attribute time to live of nothing, so that the kernel asks GETATTR before a program sees the
//! size (`default_permissions` makes open(2) ask as well); GETATTR alone waits for the Source.
//!
//! A file whose changes no list announces has its attributes for as long as its bytes are current. So the first
//! stat or open(2) after that is a GETATTR, which is answered at once and has the Source asked behind it; a READ alone
//! need not ask, for an open file keeps its version.

use super::error::FsError;
use super::links::wanted;
use super::prefetch::Consumer;
use super::programs::asks_for_xattr;
use super::{Filesystem, FsOptions, NAME_MAX};
use crate::catalog::{Freshness, Kind, Node};
use crate::content::FetchSpec;
use crate::document::Timestamp;
use crate::source::http::Requester;
use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// While the Source is asked whether a file's bytes are current, the kernel may use its attributes for so long.
const WHILE_ASKED: Duration = Duration::from_secs(5);

/// Unit of `st_blocks`; `st_blksize` does not count.
const BLOCK: u64 = 512;

/// An inode as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its attributes; the size is 0 where `attributes_ttl` is nothing.
    pub attributes: FileAttr,
    /// How long the kernel may use the attributes without asking.
    pub attributes_ttl: Duration,
    /// How long the kernel may take the name for this inode without asking.
    pub entry_ttl: Duration,
}

impl Shown {
    /// The one time to live of a READDIRPLUS entry, which fuser uses for the name and for the attributes. A file
    /// never sized therefore costs one more LOOKUP (answered here, at once) before its first GETATTR.
    pub fn common_ttl(&self) -> Duration {
        self.entry_ttl.min(self.attributes_ttl)
    }
}

/// What GETATTR found without waiting.
#[derive(Debug)]
pub enum Attributes {
    /// Everything is known here.
    Known(Shown),
    /// The Source must be asked for the size: [`Filesystem::sized`].
    Unsized(Box<Unsized>),
}

/// A file whose size must be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsized {
    /// The file.
    pub node: Node,
    /// What to ask.
    pub wanted: FetchSpec,
    /// The reader that asks is going to read it.
    pub is_to_be_read: bool,
    /// The thread that asks.
    pub thread: u32,
}

impl Filesystem {
    /// LOOKUP: what `name` in `parent` stands for; `None` where there is no such name. Never waits.
    pub fn lookup(&self, parent: INodeNo, name: &[u8]) -> Result<Option<Shown>, FsError> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong(name.len()));
        }
        let snapshot = self.catalog.snapshot()?;
        let Some(node) = snapshot.lookup(parent, name)? else { return Ok(None) };
        Ok(Some(self.shown(&self.viewed(&snapshot, node)?)))
    }

    /// The part of GETATTR that needs no waiting.
    pub fn attributes(&self, ino: INodeNo) -> Result<Attributes, FsError> {
        self.attributes_for(ino, 0)
    }

    /// The same for one thread (0: unknown): one for which nothing may be fetched has the Source asked for nothing.
    pub fn attributes_for(&self, ino: INodeNo, thread: u32) -> Result<Attributes, FsError> {
        let (node, size, wanted) = {
            let snapshot = self.catalog.snapshot()?;
            let node = snapshot.attributes(ino)?.ok_or(FsError::Gone(ino))?;
            let node = self.viewed(&snapshot, node)?;
            let size = self.known_size(&node);
            if node.kind == Kind::File
                && self.options.alternate.is_some()
                && let Some(wanted) = wanted(&snapshot, ino, &self.options)?
            {
                self.content.hold_to_published(&wanted);
            }
            match size.is_some() && self.current_for(&node, size) != Some(Duration::ZERO) {
                true => (node, size, None),
                false => (node, size, Some(wanted(&snapshot, ino, &self.options)?.ok_or(FsError::Gone(ino))?)),
            }
        };
        match (size, wanted) {
            // The kernel asks for the mode of a file whose extended attribute is asked for, and sees the size as well: that is no time
            // to wait for it. No reader sees it, for it is good for no longer than this one answer.
            (None, Some(_)) if asks_for_xattr(thread) => Ok(Attributes::Known(self.shown_with_size(&node, None))),
            (None, Some(mut wanted)) => {
                if let Some(denial) = self.denial(thread) {
                    let size = self.content.size_present(&wanted).ok_or(denial)?;
                    return Ok(Attributes::Known(self.shown_with_size(&node, Some(size))));
                }
                // A reader of the file before will read this one too: its size comes with its bytes.
                let is_to_be_read = self.prefetch.expects(ino);
                let reader = self.reader(thread);
                if !is_to_be_read {
                    self.prefetch.read((Consumer::Sizes, ino), reader, None, false);
                }
                wanted.requester = Requester(reader.process);
                Ok(Attributes::Unsized(Box::new(Unsized { node, wanted, is_to_be_read, thread })))
            }
            (_, overdue) => {
                let asks_nothing = overdue.is_some() && self.denial(thread).is_some();
                self.was_here(Consumer::Sizes, ino, thread);
                let mut shown = self.shown_with_size(&node, size);
                if let (Freshness::Asked(changefreq), Some(wanted)) = (self.freshness(&node, size), overdue) {
                    if !asks_nothing {
                        self.content.revalidate(wanted, changefreq);
                    }
                    shown.attributes_ttl = WHILE_ASKED.min(self.options.entry_ttl);
                }
                Ok(Attributes::Known(shown))
            }
        }
    }

    /// GETATTR of a file never sized: waits for the Source, within content's deadline.
    pub async fn sized(&self, file: &Unsized) -> Result<Shown, FsError> {
        let size = self.content.size(&file.wanted, file.is_to_be_read);
        tokio::pin!(size);
        let size = match tokio::time::timeout(self.content.long_question(), &mut size).await {
            Ok(size) => size?,
            Err(_) => {
                // Its neighbours are likely to take as long: a program that asks for theirs next finds them asked for.
                if !file.is_to_be_read {
                    self.prefetch.size_takes_long(file.node.ino, self.reader(file.thread));
                }
                size.await?
            }
        };
        Ok(self.shown_with_size(&file.node, Some(size)))
    }

    /// The attributes of inode 0, which stands for a name that does not exist.
    pub fn no_attributes(&self) -> FileAttr {
        let never = Timestamp { seconds: 0, nanos: 0 };
        let (kind, freshness) = (Kind::File, Freshness::Listed);
        file_attributes(
            &Node { ino: INodeNo(0), kind, size: None, mtime: never, ctime: never, freshness },
            0,
            &self.options,
        )
    }

    /// How `node` is shown with what is known here.
    pub fn shown(&self, node: &Node) -> Shown {
        self.shown_with_size(node, self.known_size(node))
    }

    /// The size as published, else as learnt by reading or asking.
    fn known_size(&self, node: &Node) -> Option<u64> {
        match node.kind {
            Kind::Folder => Some(0),
            Kind::File => node.size.or_else(|| self.content.known_size(node.ino)),
        }
    }

    /// How its changes become known. An empty file that no digest vouches for may have been a fault of its server: it is asked again.
    fn freshness(&self, node: &Node, size: Option<u64>) -> Freshness {
        match node.freshness {
            Freshness::Listed if size == Some(0) && node.size.is_none() && self.content.is_doubtful(node.ino) => {
                Freshness::Asked(None)
            }
            published => published,
        }
    }

    /// How long what is known of the file is current; `None`: until something else is known.
    fn current_for(&self, node: &Node, size: Option<u64>) -> Option<Duration> {
        match self.freshness(node, size) {
            Freshness::Listed => None,
            // What the Source serves now says nothing of what it served then.
            Freshness::Asked(_) if self.options.as_of.is_some() => None,
            Freshness::Asked(changefreq) => self.content.current_for(node.ino, changefreq),
        }
    }

    fn shown_with_size(&self, node: &Node, size: Option<u64>) -> Shown {
        let entry_ttl = self.options.entry_ttl;
        Shown {
            attributes: file_attributes(node, size.unwrap_or(0), &self.options),
            attributes_ttl: match size {
                Some(_) => self.current_for(node, size).map_or(entry_ttl, |current| current.min(entry_ttl)),
                None => Duration::ZERO,
            },
            entry_ttl: self.options.entry_ttl,
        }
    }
}

fn file_attributes(node: &Node, size: u64, options: &FsOptions) -> FileAttr {
    let mtime = system_time(node.mtime);
    let ctime = system_time(node.ctime);
    let (kind, mode) = match node.kind {
        Kind::Folder => (FileType::Directory, 0o555),
        Kind::File => (FileType::RegularFile, 0o444),
    };
    FileAttr {
        ino: node.ino,
        size,
        blocks: size.div_ceil(BLOCK),
        // Reads are not recorded, and a time that moved would be a change for backups.
        atime: mtime,
        mtime,
        ctime,
        crtime: ctime,
        kind,
        perm: mode & !options.umask,
        // 1 for folders too: subfolders are not counted, and `find` takes 1 to mean that.
        nlink: 1,
        uid: options.uid,
        gid: options.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The same point in time; the epoch where this machine cannot express it.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) }
        .unwrap_or(UNIX_EPOCH);
    second.checked_add(Duration::from_nanos(u64::from(time.nanos))).unwrap_or(second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> FsOptions {
        FsOptions {
            uid: 1000,
            gid: 100,
            umask: 0o027,
            xattr: true,
            entry_ttl: Duration::from_secs(3600),
            negative_ttl: Duration::from_secs(60),
            source: "https://example.org/".into(),
            as_of: None,
            alternate: None,
        }
    }

    fn node(kind: Kind, size: Option<u64>) -> Node {
        Node {
            ino: INodeNo(9),
            kind,
            size,
            mtime: Timestamp { seconds: -1, nanos: 250_000_000 },
            ctime: Timestamp { seconds: 1_700_000_000, nanos: 5 },
            freshness: Freshness::Listed,
        }
    }

    #[test]
    fn a_file_has_blocks_of_512_bytes_and_modes_less_the_umask() {
        let shown = file_attributes(&node(Kind::File, Some(513)), 513, &options());
        assert_eq!((shown.size, shown.blocks, shown.nlink), (513, 2, 1));
        assert_eq!((shown.kind, shown.perm), (FileType::RegularFile, 0o440));
        assert_eq!((shown.uid, shown.gid), (1000, 100));
        let folder = file_attributes(&node(Kind::Folder, None), 0, &options());
        assert_eq!((folder.kind, folder.perm, folder.nlink, folder.blocks), (FileType::Directory, 0o550, 1, 0));
    }

    #[test]
    fn times_before_the_epoch_and_beyond_this_machine_are_survived() {
        let before = system_time(Timestamp { seconds: -1, nanos: 250_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(before).unwrap(), Duration::from_millis(750));
        assert_eq!(system_time(Timestamp { seconds: i64::MIN, nanos: 0 }).max(UNIX_EPOCH), UNIX_EPOCH);
        // What matters is that the last second there is does not panic.
        system_time(Timestamp { seconds: i64::MAX, nanos: 999_999_999 });
    }

    #[test]
    fn a_common_ttl_is_the_shorter_one() {
        let attributes = file_attributes(&node(Kind::File, None), 0, &options());
        let unsized_file = Shown { attributes, attributes_ttl: Duration::ZERO, entry_ttl: Duration::from_secs(3600) };
        assert_eq!(unsized_file.common_ttl(), Duration::ZERO);
        let sized = Shown { attributes_ttl: Duration::from_secs(3600), ..unsized_file };
        assert_eq!(sized.common_ttl(), Duration::from_secs(3600));
    }
}
