//! Bytes dropped from this machine because somebody wants their room.

use super::store::{Evicted, ObjectKey};
use super::{Content, FetchSpec};
use std::sync::PoisonError;

/// What came of [`Content::evict`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Nothing was here.
    Absent,
    /// So many bytes in allocated blocks.
    Bytes(u64),
    /// They stay: they belong to a version that somebody still has open, or are being fetched.
    Kept,
}

impl Content {
    /// Drops what is kept here of `wanted`; it is fetched again when it is read. Objects are shared: other names of the same
    /// bytes, in other mounts of the cache folder too, fetch them again as well. Blocks on the disk.
    pub fn evict(&self, wanted: &FetchSpec) -> Dropped {
        if self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&wanted.ino) {
            return Dropped::Kept;
        }
        let in_memory = self.uncached.remove(wanted.ino);
        let mut dropped = in_memory.map_or(Dropped::Absent, |bytes| Dropped::Bytes(bytes.len() as u64));
        let ino = wanted.ino.0;
        let partials = [self.config.source.clone(), format!("{} coded", self.config.source)];
        let mut keys: Vec<_> = partials.iter().map(|source| ObjectKey::inode(source, ino)).collect();
        keys.extend(self.object(wanted.ino));
        keys.extend(self.vouching_digest(wanted).map(|digest| ObjectKey::digest(&self.config.source, &digest)));
        keys.sort();
        keys.dedup();
        for key in keys {
            dropped = match (dropped, self.disk.evict(&key)) {
                (Dropped::Kept, _) | (_, Evicted::Kept) => Dropped::Kept,
                (dropped, Evicted::Absent) => dropped,
                (Dropped::Absent, Evicted::Dropped(bytes)) => Dropped::Bytes(bytes),
                (Dropped::Bytes(before), Evicted::Dropped(bytes)) => Dropped::Bytes(before + bytes),
            };
        }
        dropped
    }
}
