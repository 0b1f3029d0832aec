//! The names of attributes, and what Linux can carry.

/// Bytes of a value and of a list of names that Linux can carry (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
pub(super) const VALUE_MAX: usize = 65_536;

/// Bytes of an attribute's name that Linux can carry (`XATTR_NAME_MAX`).
pub(super) const ATTRIBUTE_NAME_MAX: usize = 255;

pub(super) const ORIGIN: &str = "user.xdg.origin.url";
pub(super) const MEDIA_TYPE: &str = "user.mime_type";
pub(super) const OWN: &str = "user.resyncfs.";
pub(super) const HASH: &str = "hash.";
pub(super) const LINK: &str = "link.";

/// The name of one of our attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key<'n> {
    Origin,
    MediaType,
    /// What follows `user.resyncfs.`.
    Own(&'n str),
}

impl<'n> Key<'n> {
    pub(super) fn parse(name: &'n str) -> Option<Key<'n>> {
        match name {
            ORIGIN => Some(Key::Origin),
            MEDIA_TYPE => Some(Key::MediaType),
            _ => name.strip_prefix(OWN).map(Key::Own),
        }
    }
}

/// Names for LISTXATTR.
#[derive(Default)]
pub(super) struct Names {
    /// Each name followed by NUL.
    pub(super) bytes: Vec<u8>,
}

impl Names {
    /// Adds the name made of `parts`, but what Linux could not carry: a relation is as long as its publisher likes.
    pub(super) fn push(&mut self, parts: &[&str]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let nul = parts.iter().any(|part| part.contains('\0'));
        if nul || length > ATTRIBUTE_NAME_MAX || self.bytes.len() + length + 1 > VALUE_MAX {
            return;
        }
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part.as_bytes()));
        self.bytes.push(0);
    }
}
