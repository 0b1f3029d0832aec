//! Folders: READDIRPLUS, with cookies that stay right while the tree changes.
//!
//! A cookie names the entry after which a listing continues. A child's cookie is made of its entry id. The child keeps this
//! id through all its versions, and no other ever gets it. So a listing that continues after a change neither repeats nor skips a
//! name that was there all the time. Nothing is kept between two calls.

use super::Filesystem;
use super::error::FsError;
use crate::catalog::{EntryId, Inode, Kind, Node};
use crate::platform::ino::Ino;

/// Position in a listing, which the kernel calls the offset. The start is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cookie(pub u64);

impl Cookie {
    /// Before the first entry.
    pub const START: Cookie = Cookie(0);
    const DOT: Cookie = Cookie(1);
    const DOT_DOT: Cookie = Cookie(2);

    /// After the child with this entry id.
    fn after(id: EntryId) -> Cookie {
        Cookie(Cookie::DOT_DOT.0.saturating_add(id.0))
    }

    /// The child after which the listing continues; none where the dots are still to come.
    fn child(self) -> EntryId {
        EntryId(self.0.saturating_sub(Cookie::DOT_DOT.0))
    }
}

/// One entry of a listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Position behind this entry.
    pub cookie: Cookie,
    /// Its name.
    pub name: &'a [u8],
    /// File or folder of this name.
    pub node: Node,
}

impl Filesystem {
    /// `thread` begins to list `folder`: a walk that begins there next is known sooner.
    pub fn begins_to_list(&self, folder: Ino, thread: u32) {
        self.opened(folder);
        self.prefetch.listed(folder, thread);
    }

    /// READDIRPLUS: the entries of `folder` after `from`, `.` and `..` first, until `visit` answers `false` (the buffer is
    /// full, and this entry is not in it). Never waits.
    pub fn read_folder(
        &self,
        folder: Ino,
        from: Cookie,
        visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        self.catalog.kernel_looks_into(folder);
        let snapshot = self.catalog.snapshot()?;
        let Inode { node, name, .. } = snapshot.inode(folder)?.ok_or(FsError::Gone(folder))?;
        if node.kind != Kind::Folder {
            return Err(FsError::NotAFolder(folder));
        }
        if from < Cookie::DOT && !visit(DirEntry { cookie: Cookie::DOT, name: b".", node }) {
            return Ok(());
        }
        if from < Cookie::DOT_DOT {
            let parent = match name {
                Some(name) => snapshot.attributes(name.folder)?.unwrap_or(node),
                None => node,
            };
            if !visit(DirEntry { cookie: Cookie::DOT_DOT, name: b"..", node: parent }) {
                return Ok(());
            }
        }
        let mut failure = None;
        snapshot.children(folder, from.child(), &mut |id, name, node| match self.viewed(&snapshot, node) {
            Ok(node) => visit(DirEntry { cookie: Cookie::after(id), name, node }),
            Err(error) => {
                failure = Some(error);
                false
            }
        })?;
        failure.map_or(Ok(()), |error| Err(error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_names_its_entry_and_the_dots_come_first() {
        for id in [1, 2, 3, 1 << 40] {
            let cookie = Cookie::after(EntryId(id));
            assert_eq!(cookie.child(), EntryId(id));
            assert!(cookie > Cookie::DOT_DOT);
        }
        for cookie in [Cookie::START, Cookie::DOT, Cookie::DOT_DOT] {
            assert_eq!(cookie.child(), EntryId(0));
        }
    }

    #[test]
    fn cookies_keep_the_order_of_the_entry_ids() {
        assert!(Cookie::after(EntryId(1)) < Cookie::after(EntryId(2)));
    }
}
