//! What a fetch gives: the object, and the version that it is of.

use super::window::Window;
use crate::content::store::Object;
use crate::document::Uri;
use bytes::Bytes;
use std::sync::Arc;

/// A whole, verified object.
#[derive(Clone)]
pub(in crate::content) enum Held {
    /// In the cache folder.
    Store(Arc<Object>),
    /// In memory: the cache folder had no room.
    Memory(Bytes),
    /// Gone past the cache: only its end is here still.
    Passed(Window),
}

impl Held {
    /// Bytes of the object.
    pub(in crate::content) fn length(&self) -> u64 {
        match self {
            Held::Store(object) => object.length(),
            Held::Memory(bytes) => bytes.len() as u64,
            Held::Passed(end) => end.range().end,
        }
    }

    /// The same for who found it for that alone.
    pub(in crate::content) fn length_alone(&self) -> u64 {
        if let Held::Store(object) = self {
            object.forget_bytes();
        }
        self.length()
    }

    /// `length` bytes at `offset`, fewer at the end; `None` where they are not here: damaged, or gone past. Blocks on the
    /// disk.
    pub(in crate::content) fn read(&self, offset: u64, length: u32) -> Option<Bytes> {
        match self {
            Held::Store(object) => object
                .read(offset, length as usize)
                .inspect_err(
                    |damage| tracing::warn!(error = %damage, "a cached object is damaged: it is fetched again"),
                )
                .ok(),
            Held::Memory(bytes) => {
                let start = offset.min(bytes.len() as u64);
                let end = start.saturating_add(u64::from(length)).min(bytes.len() as u64);
                // Both lie within `bytes`, whose length is a usize.
                Some(bytes.slice(start as usize..end as usize))
            }
            Held::Passed(window) => {
                let end = window.range().end;
                window.read(&(offset.min(end)..offset.saturating_add(u64::from(length)).min(end)))
            }
        }
    }
}

/// Where ranges of the very version under way may be asked: there is a strong ETag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The place.
    pub(super) place: Uri,
    /// Its strong ETag.
    pub(super) etag: Box<str>,
    /// Where in what lies there the version begins: 0, but for a member of a package.
    pub(super) first: u64,
    /// Bytes of what lies there.
    pub(super) total: u64,
    /// Bytes of the version.
    pub(super) length: u64,
}

/// A version by the place and the strong ETag under which it is served.
pub(super) type Version = (Uri, Box<str>);

impl Origin {
    pub(super) fn version(&self) -> Version {
        (self.place.clone(), self.etag.clone())
    }
}
