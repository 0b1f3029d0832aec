//! Bytes removed from this machine at a user's request.

use super::store::{Evicted, ObjectKey};
use super::{Content, FetchSpec};

impl Content {
    /// Removes what is kept here of `spec`, on the disk and in memory; it is downloaded again when it is read. Objects are shared: other names of the same
    /// bytes, in other mounts of the cache folder too, are downloaded again as well. Kept: a version that is still open, or that is
    /// being downloaded. Blocks on the disk.
    pub fn evict(&self, spec: &FetchSpec) -> Evicted {
        if self.table.contains(spec.ino) {
            return Evicted::Kept;
        }
        let mut evicted = match self.block_cache.remove_all(spec.ino) {
            0 => Evicted::Absent,
            bytes => Evicted::Bytes(bytes),
        };
        let ino = spec.ino.0;
        let partials = [self.config.source.clone(), format!("{} coded", self.config.source)];
        let mut keys: Vec<_> = partials.iter().map(|source| ObjectKey::inode(source, ino)).collect();
        keys.extend(self.object(spec.ino));
        keys.extend(self.vouching_digest(spec).map(|digest| ObjectKey::digest(&self.config.source, &digest)));
        for key in keys {
            evicted = evicted.and(self.store.evict(&key));
        }
        evicted
    }
}
