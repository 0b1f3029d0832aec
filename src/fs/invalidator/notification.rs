//! Messages to the kernel, byte by byte (`linux/fuse.h`).
//!
//! `fuser::Notifier` is not used: it takes the kernel's "unknown inode" for success, and has no epoch.

use crate::platform::ino::Ino;
use std::ops::Range;

/// One message to the kernel (`fuse_notify_code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// Forget what this name stands for, and below it everything not in use.
    Entry {
        /// The folder.
        parent: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// Forget the attributes, and all pages or the cached listing.
    Inode(Ino),
    /// Forget the attributes, and the pages of these bytes. The kernel waits for pages that are being read: the fewer the better.
    Pages(Ino, &'a Range<u64>),
    /// Forget the attributes alone. Where the inode is not known it fails with ENOENT.
    Attributes(Ino),
    /// Ask again for every name. Linux 6.16 and later.
    Epoch,
}

impl std::fmt::Display for Notification<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Notification::Entry { parent, name } => write!(f, "name \"{}\" in {parent}", name.escape_ascii()),
            Notification::Inode(ino) => write!(f, "inode {ino}"),
            Notification::Pages(ino, range) => write!(f, "pages {range:?} of {ino}"),
            Notification::Attributes(ino) => write!(f, "attributes of {ino}"),
            Notification::Epoch => f.write_str("epoch"),
        }
    }
}

impl Notification<'_> {
    /// The message as the kernel reads it: `fuse_out_header` with the code in `error` and 0 in `unique`, then the
    /// structure of that code, in the machine's own byte order.
    pub(super) fn encode(&self) -> Vec<u8> {
        const INVAL_INODE: i32 = 2;
        const INVAL_ENTRY: i32 = 3;
        const INC_EPOCH: i32 = 8;
        const HEADER: usize = 16;

        // A length of 0 reaches to the end.
        let inode = |ino: &Ino, offset: i64, length: i64| {
            [ino.0.to_ne_bytes(), offset.to_ne_bytes(), length.to_ne_bytes()].concat()
        };
        let (code, body) = match self {
            Notification::Entry { parent, name } => {
                let mut body = parent.0.to_ne_bytes().to_vec();
                // The kernel refuses names of more than 255 bytes.
                body.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
                body.extend_from_slice(&0_u32.to_ne_bytes());
                body.extend_from_slice(name);
                body.push(0);
                (INVAL_ENTRY, body)
            }
            Notification::Inode(ino) => (INVAL_INODE, inode(ino, 0, 0)),
            Notification::Pages(ino, range) => {
                let length = i64::try_from(range.end).map_or(0, |end| end.saturating_sub_unsigned(range.start));
                (INVAL_INODE, inode(ino, i64::try_from(range.start).unwrap_or(0), length))
            }
            Notification::Attributes(ino) => (INVAL_INODE, inode(ino, -1, 0)),
            Notification::Epoch => (INC_EPOCH, Vec::new()),
        };
        let length = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        let mut message = Vec::with_capacity(HEADER + body.len());
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&0_u64.to_ne_bytes());
        message.extend_from_slice(&body);
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of `struct fuse_out_header` and of the structures behind it, on a little-endian machine.
    #[test]
    #[cfg(target_endian = "little")]
    fn messages_are_laid_out_as_the_kernel_reads_them() {
        let header = |length: u8, code: u8| [[length, 0, 0, 0, code, 0, 0, 0], [0; 8]].concat();
        assert_eq!(Notification::Epoch.encode(), header(16, 8));
        let body = [[0x42, 0, 0, 0, 0, 0, 0, 0], [0xff; 8], [0; 8]].concat();
        assert_eq!(Notification::Attributes(Ino(0x42)).encode(), [header(40, 2), body].concat());
        let body = [[0x42, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0; 8]].concat();
        assert_eq!(Notification::Inode(Ino(0x42)).encode(), [header(40, 2), body].concat());
        for (range, length) in [(0x1000..0x1300, [0, 3, 0, 0, 0, 0, 0, 0]), (0x1000..u64::MAX, [0; 8])] {
            let body = [[0x42, 0, 0, 0, 0, 0, 0, 0], [0, 0x10, 0, 0, 0, 0, 0, 0], length].concat();
            assert_eq!(Notification::Pages(Ino(0x42), &range).encode(), [header(40, 2), body].concat());
        }
        let entry = Notification::Entry { parent: Ino(0x42), name: b"abc" };
        let body = [&[0x42, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], b"abc\0"].concat();
        assert_eq!(entry.encode(), [header(36, 3), body].concat());
    }
}
