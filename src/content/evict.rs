//! Bytes dropped from this machine at a user's request.

use super::block_cache::Key;
use super::store::{Evicted, ObjectKey};
use super::{Content, FetchSpec};
use std::sync::PoisonError;

impl Content {
    /// Drops what is kept here of `wanted`; it is downloaded again when it is read. Objects are shared: other names of the same
    /// bytes, in other mounts of the cache folder too, are downloaded again as well. Kept: a version that is still open, or that is
    /// being downloaded. Blocks on the disk.
    pub fn evict(&self, wanted: &FetchSpec) -> Evicted {
        if self.in_flight.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&wanted.ino) {
            return Evicted::Kept;
        }
        let in_memory = self.block_cache.remove(&Key::whole(wanted.ino));
        let mut evicted = in_memory.map_or(Evicted::Absent, |bytes| Evicted::Bytes(bytes.len() as u64));
        let ino = wanted.ino.0;
        let partials = [self.config.source.clone(), format!("{} coded", self.config.source)];
        let mut keys: Vec<_> = partials.iter().map(|source| ObjectKey::inode(source, ino)).collect();
        keys.extend(self.object(wanted.ino));
        keys.extend(self.vouching_digest(wanted).map(|digest| ObjectKey::digest(&self.config.source, &digest)));
        keys.sort();
        keys.dedup();
        for key in keys {
            evicted = match (evicted, self.disk.evict(&key)) {
                (Evicted::Kept, _) | (_, Evicted::Kept) => Evicted::Kept,
                (Evicted::Bytes(before), Evicted::Bytes(bytes)) => Evicted::Bytes(before + bytes),
                (Evicted::Absent, evicted) | (evicted, Evicted::Absent) => evicted,
            };
        }
        evicted
    }
}
