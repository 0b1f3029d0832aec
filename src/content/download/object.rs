//! What a download yields: the object, and the version that it is of.

use crate::content::blocks::BlockMap;
use crate::content::shared_cache::SharedCopy;
use crate::content::store::Object;
use crate::content::trust::VersionId;
use crate::document::Uri;
use bytes::Bytes;
use std::sync::Arc;

/// A whole, verified object.
#[derive(Clone)]
pub(in crate::content) enum CachedObject {
    /// In the cache folder.
    Store(Arc<Object>),
    /// In memory, for the cache folder had no room: whole, or the end of a large one.
    Memory(Arc<BlockMap>),
}

impl CachedObject {
    /// Bytes of the object.
    pub(in crate::content) fn length(&self) -> u64 {
        match self {
            CachedObject::Store(object) => object.length(),
            CachedObject::Memory(map) => map.frontier(),
        }
    }

    /// `length` bytes at `offset`, fewer at the end; `None` where they are damaged, or not in memory. Blocks on the disk.
    pub(in crate::content) fn read(&self, offset: u64, length: u32) -> Option<Bytes> {
        let end = self.length();
        let range = offset.min(end)..offset.saturating_add(u64::from(length)).min(end);
        match self {
            CachedObject::Store(object) => object
                .read(offset, length as usize)
                .inspect_err(
                    |damage| tracing::warn!(error = %damage, "a cached file is damaged and is downloaded again"),
                )
                .ok(),
            CachedObject::Memory(map) => map.read(&range).ok(),
        }
    }
}

/// Address for ranges of the version under way: it has a strong ETag, or the shared cache has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) place: Uri,
    /// Its strong ETag.
    pub(super) etag: Box<str>,
    /// First byte of the version in the representation at `place`: 0, but for a member of a package.
    pub(super) first: u64,
    /// Bytes of that representation.
    pub(super) total: u64,
    /// Bytes of the version.
    pub(super) length: u64,
    /// The shared cache has it.
    pub(super) shared: Option<Arc<SharedCopy>>,
}

impl Origin {
    /// Makes the origin of a copy of the resource `uri` in the shared cache. Its name stands for one version.
    pub(super) fn shared(uri: &Uri, copy: &Arc<SharedCopy>) -> Origin {
        let (length, etag) = (copy.length, copy.name.to_string().into());
        Origin { place: uri.clone(), etag, first: 0, total: length, length, shared: Some(Arc::clone(copy)) }
    }

    pub(super) fn version(&self) -> VersionId {
        (self.place.clone(), self.etag.clone())
    }
}
