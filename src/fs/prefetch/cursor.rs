//! The order in which programs go through the tree.
//!
//! Two orders are known, each by the entry ids of a folder's children. Most programs (`grep -r`, `tar`, `cp -r`, `find`) go into a
//! folder as soon as they meet it ([`WalkOrder::Mixed`]). `rsync` reads a folder's files before it goes into its folders
//! ([`WalkOrder::FilesFirst`]). A [`TreeCursor`] is a place in either.

use crate::catalog::{CatalogError, EntryId, Kind, Node, Snapshot};
use crate::platform::ino::Ino;

/// Names searched at a time: a bound for folders whose files are nearly all here. The next search begins behind them.
const SEARCHED: usize = 256;

/// The order of files and folders within a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkOrder {
    /// Folders among the files, as they lie.
    Mixed,
    /// Folders after all files.
    FilesFirst,
}

/// A place in a walk, and the folders that the walk is known to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TreeCursor {
    folder: Ino,
    after: EntryId,
    order: WalkOrder,
    /// The files of `folder` are done ([`WalkOrder::FilesFirst`]).
    in_folders: bool,
    /// The walk has been in more than one folder.
    roams: bool,
    /// The uppermost folder of these.
    ceiling: Ino,
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchEnd {
    /// No more was asked for.
    Enough,
    /// Enough names were searched: the next files lie behind this.
    Further(TreeCursor),
    /// Nothing follows.
    End,
}

impl TreeCursor {
    /// Behind the child `after` of `folder`, where a walk begins.
    pub(super) fn behind(folder: Ino, after: EntryId) -> TreeCursor {
        TreeCursor { folder, after, order: WalkOrder::Mixed, in_folders: false, roams: false, ceiling: folder }
    }

    /// Before the first file of `folder`.
    pub(super) fn before_files_of(folder: Ino) -> TreeCursor {
        TreeCursor { order: WalkOrder::FilesFirst, ..TreeCursor::behind(folder, EntryId(0)) }
    }

    /// Place in a walk through all of `top`, which is above it.
    pub(super) fn all_of(self, top: Ino) -> TreeCursor {
        TreeCursor { roams: true, ceiling: top, ..self }
    }

    /// Place in a walk that may end with its folder.
    pub(super) fn in_its_folder(self) -> TreeCursor {
        TreeCursor { roams: false, ceiling: self.folder, ..self }
    }

    /// Place in the other order.
    pub(super) fn in_other_order(self) -> TreeCursor {
        let order = match self.order {
            WalkOrder::Mixed => WalkOrder::FilesFirst,
            WalkOrder::FilesFirst => WalkOrder::Mixed,
        };
        TreeCursor { order, in_folders: false, ..self }
    }

    /// Returns whether the way from here to `other` leaves the folders that the walk is known to go through.
    pub(super) fn leads_further(&self, other: &TreeCursor) -> bool {
        (self.roams, self.ceiling) != (other.roams, other.ceiling)
    }

    /// Calls `visit` for the files that follow, each with the cursor behind it, until it returns `false`.
    pub(super) fn follow(
        self,
        snapshot: &Snapshot<'_>,
        visit: &mut dyn FnMut(Node, TreeCursor) -> bool,
    ) -> Result<SearchEnd, CatalogError> {
        let mut at = self;
        let mut left = SEARCHED;
        while left > 0 {
            let mut below = None;
            let mut is_stopped = false;
            snapshot.children(at.folder, at.after, &mut |id, _, node| {
                at.after = id;
                left -= 1;
                match node.kind {
                    Kind::File if !at.in_folders => is_stopped = !visit(node, at),
                    Kind::Folder if at.in_folders || at.order == WalkOrder::Mixed => below = Some(node.ino),
                    Kind::File | Kind::Folder => {}
                }
                !is_stopped && below.is_none() && left > 0
            })?;
            if let Some(folder) = below {
                at = TreeCursor { folder, after: EntryId(0), in_folders: false, roams: true, ..at };
                continue;
            }
            if is_stopped {
                return Ok(SearchEnd::Enough);
            }
            if left == 0 {
                break;
            }
            left -= 1;
            if at.order == WalkOrder::FilesFirst && !at.in_folders {
                at = TreeCursor { after: EntryId(0), in_folders: true, ..at };
                continue;
            }
            let Some(above) = snapshot.inode(at.folder)?.and_then(|inode| inode.name) else {
                return Ok(SearchEnd::End);
            };
            at = TreeCursor {
                folder: above.folder,
                after: above.entry,
                in_folders: at.order == WalkOrder::FilesFirst,
                ceiling: if at.folder == at.ceiling { above.folder } else { at.ceiling },
                roams: true,
                ..at
            };
        }
        Ok(SearchEnd::Further(at))
    }
}
