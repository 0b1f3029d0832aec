//! Names and inodes: LOOKUP and GETATTR.
//!
//! A size that is shown is true. The kernel gets size 0 for a file whose size is neither published nor learnt, but may not keep the
//! attributes. So it asks GETATTR before a program sees the size (`default_permissions` makes open(2) ask as well). Only GETATTR
//! waits for the Source.
//!
//! Where no list announces the changes of a file, its attributes live as long as its bytes are current. The first stat or
//! open(2) after that is a GETATTR: it is answered at once, and the Source is asked in the background. A READ need not ask, because an
//! open file keeps its version.

use super::error::FsError;
use super::fetch_spec::fetch_spec;
use super::prefetch::{Consumer, Reader};
use super::readers::needs_no_size;
use super::{Filesystem, FsOptions, NAME_MAX};
use crate::catalog::{Freshness, Kind, Node};
use crate::content::FetchSpec;
use crate::document::Timestamp;
use crate::platform::ino::Ino;
use crate::source::http::Requester;
use fuser::{FileAttr, FileType, INodeNo};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may use the attributes of a file while the Source is asked whether its bytes are current.
const WHILE_ASKED: Duration = Duration::from_secs(5);

/// Unit of `st_blocks`; `st_blksize` does not count.
const BLOCK: u64 = 512;

/// An inode as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownInode {
    /// Its attributes; the size is 0 where `attributes_ttl` is zero and the size is unknown.
    pub attributes: FileAttr,
    /// How long the kernel may use the attributes without asking.
    pub attributes_ttl: Duration,
    /// How long the kernel may take the name for this inode without asking.
    pub entry_ttl: Duration,
}

impl ShownInode {
    /// The inode.
    pub fn ino(&self) -> Ino {
        Ino(self.attributes.ino.0)
    }

    /// The one time to live of a READDIRPLUS entry, which fuser uses for the name and for the attributes. A file
    /// never sized therefore costs one more LOOKUP (answered here, at once) before its first GETATTR.
    pub fn common_ttl(&self) -> Duration {
        self.entry_ttl.min(self.attributes_ttl)
    }
}

/// Result of GETATTR without waiting.
#[derive(Debug)]
pub enum Attributes {
    /// Everything is known here.
    Known(ShownInode),
    /// The Source must be asked for the size: [`Filesystem::sized`].
    Unsized(Box<Unsized>),
}

/// A file whose size must be asked for.
#[derive(Debug)]
pub struct Unsized {
    /// The file.
    pub node: Node,
    /// Request that teaches the size.
    pub spec: FetchSpec,
    /// The reader that asks is going to read it.
    pub is_to_be_read: bool,
    /// The reader.
    pub reader: Reader,
    /// The program for which the Source may not be asked: only what is on the disk counts.
    pub denied: Option<Arc<str>>,
}

impl Filesystem {
    /// LOOKUP: what `name` in `parent` stands for; `None` where there is no such name. Never waits.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Option<ShownInode>, FsError> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong(name.len()));
        }
        self.catalog.kernel_looks_into(parent);
        let snapshot = self.catalog.snapshot()?;
        let Some(node) = snapshot.lookup(parent, name)? else { return Ok(None) };
        Ok(Some(self.shown(&self.viewed(&snapshot, node)?)))
    }

    /// The part of GETATTR by `thread` (0: unknown) that needs no waiting.
    pub fn attributes(&self, ino: Ino, thread: u32) -> Result<Attributes, FsError> {
        let snapshot = self.catalog.snapshot()?;
        let node = self.viewed(&snapshot, snapshot.attributes(ino)?.ok_or(FsError::Gone(ino))?)?;
        let spec = || fetch_spec(&snapshot, ino, &self.options)?.ok_or(FsError::Gone(ino));
        if node.kind == Kind::File && self.options.alternate.is_some() {
            self.content.hold_to_published(&spec()?);
        }
        let Some(size) = self.known_size(&node) else {
            let spec = spec()?;
            drop(snapshot);
            return self.attributes_of_unsized(node, spec, thread);
        };
        let mut shown = self.shown_with_size(&node, Some(size));
        if self.current_for(&node, Some(size)) == Some(Duration::ZERO) {
            if let Freshness::Asked(changefreq) = self.freshness(&node, Some(size)) {
                if self.denial(thread).is_none() {
                    self.content.revalidate(spec()?, changefreq);
                }
                shown.attributes_ttl = WHILE_ASKED.min(self.options.entry_ttl);
            }
        }
        drop(snapshot);
        self.note_local_hit(Consumer::Sizes, ino, thread);
        Ok(Attributes::Known(shown))
    }

    fn attributes_of_unsized(&self, node: Node, spec: FetchSpec, thread: u32) -> Result<Attributes, FsError> {
        // The kernel asks for all attributes where it needs the mode alone: the size is not worth a wait then. No reader sees this size,
        // for the kernel does not keep it.
        if needs_no_size(thread) {
            return Ok(Attributes::Known(self.shown_with_size(&node, None)));
        }
        let (denied, reader) = (self.programs.denied(thread), self.reader(thread));
        // A walk that reads its files gets sizes with their bytes.
        let is_to_be_read = denied.is_none() && self.prefetch.expects(node.ino);
        if denied.is_none() && !is_to_be_read {
            self.prefetch.read((Consumer::Sizes, node.ino), reader, None, false);
        }
        Ok(Attributes::Unsized(Box::new(Unsized { node, spec, is_to_be_read, reader, denied })))
    }

    /// GETATTR of a file never sized: waits for the Source, within content's deadline.
    pub async fn sized(&self, file: &Unsized) -> Result<ShownInode, FsError> {
        if let Some(program) = &file.denied {
            let (content, spec) = (Arc::clone(&self.content), file.spec.clone());
            let found = self.runtime.spawn_blocking(move || content.size_present(&spec)).await;
            let size = found.ok().flatten().ok_or_else(|| FsError::Denied(Arc::clone(program)))?;
            return Ok(self.shown_with_size(&file.node, Some(size)));
        }
        let size = self.content.size(&file.spec, Requester(file.reader.process), file.is_to_be_read);
        tokio::pin!(size);
        let size = match tokio::time::timeout(self.content.long_question(), &mut size).await {
            Ok(size) => size?,
            Err(_) => {
                // Its neighbours are likely to take as long, so they are asked for as well.
                if !file.is_to_be_read {
                    self.prefetch.size_takes_long(file.node.ino, file.reader);
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
            &Node { ino: Ino(0), kind, size: None, mtime: never, ctime: never, freshness },
            0,
            &self.options,
        )
    }

    /// How `node` is shown with what is known here.
    pub fn shown(&self, node: &Node) -> ShownInode {
        self.shown_with_size(node, self.known_size(node))
    }

    /// The size as published, else as learnt by reading or asking.
    fn known_size(&self, node: &Node) -> Option<u64> {
        match node.kind {
            Kind::Folder => Some(0),
            Kind::File => node.size.or_else(|| self.content.known_size(node.ino)),
        }
    }

    /// How its changes become known. An empty file without a digest may have been a fault of its server, so it is asked again.
    fn freshness(&self, node: &Node, size: Option<u64>) -> Freshness {
        match node.freshness {
            Freshness::Listed if size == Some(0) && node.size.is_none() && self.content.is_doubtful(node.ino) => {
                Freshness::Asked(None)
            }
            published => published,
        }
    }

    /// How long the size and the bytes of the file are current; `None`: until a list announces a change.
    fn current_for(&self, node: &Node, size: Option<u64>) -> Option<Duration> {
        match self.freshness(node, size) {
            Freshness::Listed => None,
            // What the Source serves now says nothing of an earlier time.
            Freshness::Asked(_) if self.options.as_of.is_some() => None,
            Freshness::Asked(changefreq) => self.content.current_for(node.ino, changefreq),
        }
    }

    fn shown_with_size(&self, node: &Node, size: Option<u64>) -> ShownInode {
        let entry_ttl = self.options.entry_ttl;
        ShownInode {
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
        ino: INodeNo(node.ino.0),
        size,
        blocks: size.div_ceil(BLOCK),
        // Reads are not recorded, and backups would take a new time for a change.
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

/// Time as the kernel is told it; the epoch where this machine cannot express it.
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
        FsOptions { uid: 1000, gid: 100, umask: 0o027, source: "https://example.org/".into(), ..FsOptions::default() }
    }

    fn node(kind: Kind, size: Option<u64>) -> Node {
        Node {
            ino: Ino(9),
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
    fn times_beyond_this_machine_do_not_panic() {
        let before = system_time(Timestamp { seconds: -1, nanos: 250_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(before).unwrap(), Duration::from_millis(750));
        assert_eq!(system_time(Timestamp { seconds: i64::MIN, nanos: 0 }).max(UNIX_EPOCH), UNIX_EPOCH);
        // What matters is that the last second there is does not panic.
        system_time(Timestamp { seconds: i64::MAX, nanos: 999_999_999 });
    }

    #[test]
    fn a_common_ttl_is_the_shorter_one() {
        let attributes = file_attributes(&node(Kind::File, None), 0, &options());
        let unsized_file =
            ShownInode { attributes, attributes_ttl: Duration::ZERO, entry_ttl: Duration::from_secs(3600) };
        assert_eq!(unsized_file.common_ttl(), Duration::ZERO);
        let sized = ShownInode { attributes_ttl: Duration::from_secs(3600), ..unsized_file };
        assert_eq!(sized.common_ttl(), Duration::from_secs(3600));
    }
}
