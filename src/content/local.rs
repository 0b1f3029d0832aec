//! What this machine has of each inode: its object, what was learnt of it, and what of it was handed out.
//!
//! Only the disk is waited for here, never a download or the Source.

use super::blocks::cache::{BlockCache, CachedBlock, Holder};
use super::config::{ContentConfig, Fixity};
use super::fixity::BLOCK;
use super::form::{Form, essence, is_decoded, published_coding};
use super::metadata::LearntMetadata;
use super::pins::Pins;
use super::served::{Served, ServedRecords};
use super::store::{Evicted, Object, ObjectKey, Store};
use super::trust::{PriorServes, strong};
use super::{Event, FetchSpec, LocalRead, Verified, patch};
use crate::document::{Digest, Uri};
use crate::platform::ino::Ino;
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// See the module.
pub(super) struct LocalContent {
    /// See [`ContentConfig::source`].
    source: String,
    fixity: Fixity,
    events: UnboundedSender<Event>,
    pub(super) store: Arc<Store>,
    pub(super) metadata: Arc<LearntMetadata>,
    pub(super) block_cache: Arc<BlockCache>,
    pub(super) served: ServedRecords,
    pub(super) pins: Pins,
}

impl LocalContent {
    pub(super) fn new(
        config: &ContentConfig,
        store: &Arc<Store>,
        metadata: LearntMetadata,
        block_cache: Arc<BlockCache>,
        events: UnboundedSender<Event>,
    ) -> LocalContent {
        LocalContent {
            source: config.source.clone(),
            fixity: config.fixity,
            events,
            store: Arc::clone(store),
            metadata: Arc::new(metadata),
            block_cache,
            served: ServedRecords::default(),
            pins: Pins::new(store),
        }
    }

    /// At the end of a mount there is no receiver.
    pub(super) fn send_event(&self, event: Event) {
        let _ = self.events.send(event);
    }

    /// See [`Content::read_local`](super::Content::read_local).
    pub(super) fn read(&self, ino: Ino, offset: u64, length: u32) -> Option<Bytes> {
        self.verified_blocks(ino, offset, length).or_else(|| {
            let object = self.find_known(ino)?;
            self.served.note_verified(ino, object.length());
            object.read(offset, length as usize).ok()
        })
    }

    /// Reads as [`LocalContent::read`] does, without waiting for a disk.
    pub(super) fn read_in_memory(&self, ino: Ino, offset: u64, length: u32) -> LocalRead {
        if let Some(bytes) = self.verified_blocks(ino, offset, length) {
            return LocalRead::Bytes(bytes);
        }
        match self.find_in_memory(ino) {
            Err(_) => LocalRead::OnDisk,
            Ok(None) => LocalRead::Absent,
            Ok(Some(object)) => match object.read_in_memory(offset, length as usize) {
                None => LocalRead::OnDisk,
                Some(Err(_)) => LocalRead::Absent,
                Some(Ok(bytes)) => {
                    self.served.note_verified(ino, object.length());
                    LocalRead::Bytes(bytes)
                }
            },
        }
    }

    /// See [`Content::size_present`](super::Content::size_present).
    pub(super) fn size(&self, spec: &FetchSpec) -> Option<u64> {
        let published = spec.length.filter(|_| !is_decoded(spec));
        self.metadata.size(spec.ino).or(published).or_else(|| Some(self.find(spec)?.length()))
    }

    /// The object if it is in the cache folder: under this inode, or under its digest, from whichever mount.
    pub(super) fn find(&self, spec: &FetchSpec) -> Option<Arc<Object>> {
        if let Some(object) = self.find_known(spec.ino) {
            return Some(object);
        }
        if published_coding(spec).is_some() {
            return None;
        }
        let digest = self.vouching_digest(spec)?;
        let observation = self.metadata.get(spec.ino);
        let shown = observation.as_ref().and_then(|observation| observation.size);
        // Where bytes were handed out before a verdict, or others are known, the download must compare them.
        let is_other = observation.is_some_and(|known| {
            known.verified == Verified::Failed || known.digests.first().is_some_and(|known| *known != digest)
        });
        if is_other || self.served.is_unjudged(spec.ino) {
            return None;
        }
        let key = ObjectKey::digest(&self.source, &digest);
        let object = self.store.get(&key)?;
        let agrees = |length: Option<u64>| length.is_none_or(|length| length == object.length());
        if !agrees(spec.length) || !agrees(shown) {
            return None;
        }
        self.metadata.update(spec.ino, |observation| {
            observation.size = Some(object.length());
            observation.object = Some(key.clone());
            observation.digests = vec![digest];
            observation.verified = Verified::Digest(digest.algorithm());
        });
        self.pins.completed(spec.ino, &key);
        self.keep_for_patches(spec, None, &key, object.length());
        if shown.is_none() {
            self.send_event(Event::Sized(spec.ino, object.length()));
        }
        Some(object)
    }

    /// The object that is known to be this inode's, if it is in the cache folder.
    pub(super) fn find_known(&self, ino: Ino) -> Option<Arc<Object>> {
        let (key, size) = self.known_object(ino)?;
        self.store.get(&key).filter(|object| object.length() == size)
    }

    /// Finds an object as [`LocalContent::find_known`] does, without waiting for the disk: an error where it has to be waited for.
    fn find_in_memory(&self, ino: Ino) -> io::Result<Option<Arc<Object>>> {
        let Some((key, size)) = self.known_object(ino) else { return Ok(None) };
        Ok(self.store.get_in_memory(&key)?.filter(|object| object.length() == size))
    }

    /// Finds an object without counting this as a use.
    pub(super) fn peek(&self, ino: Ino) -> Option<Arc<Object>> {
        let (key, size) = self.known_object(ino)?;
        self.store.peek(&key).filter(|object| object.length() == size)
    }

    /// The object that is known to be this inode's, and its bytes.
    fn known_object(&self, ino: Ino) -> Option<(ObjectKey, u64)> {
        let observation = self.metadata.get(ino).filter(|observation| observation.verified != Verified::Failed)?;
        observation.object.zip(observation.size)
    }

    /// Bytes of a verified object that the cache folder had no room for, where they are in the block cache.
    pub(super) fn verified_blocks(&self, ino: Ino, offset: u64, length: u32) -> Option<Bytes> {
        self.block_cache.peek(&CachedBlock { ino, holder: Holder::Verified, first: offset - offset % BLOCK })?;
        let known = self.metadata.get(ino).filter(|known| known.verified != Verified::Failed)?;
        let end = offset.saturating_add(u64::from(length)).min(known.size?);
        (offset < end).then(|| self.block_cache.read(ino, Holder::Verified, &(offset..end))).flatten()
    }

    /// Returns whether all bytes of it are in the block cache, for the cache folder had no room.
    pub(super) fn is_in_memory(&self, ino: Ino) -> bool {
        let known = self.metadata.get(ino).filter(|known| known.verified != Verified::Failed);
        let size = known.and_then(|known| known.size).filter(|size| *size > 0);
        size.is_some_and(|size| self.block_cache.holds(ino, size))
    }

    /// See [`Content::is_whole`](super::Content::is_whole).
    pub(super) fn is_whole(&self, ino: Ino) -> bool {
        self.is_in_memory(ino) || self.known_object(ino).is_some_and(|(key, _)| self.store.has(&key))
    }

    /// Returns whether bytes handed out of this inode turned out wrong.
    pub(super) fn is_poisoned(&self, ino: Ino) -> bool {
        self.metadata.get(ino).is_some_and(|observation| observation.verified == Verified::Failed)
    }

    /// The digest that distinguishes right bytes from wrong ones: the strongest published, unless fixity is off.
    pub(super) fn vouching_digest(&self, spec: &FetchSpec) -> Option<Digest> {
        spec.strongest_hash().filter(|_| self.fixity != Fixity::Off)
    }

    /// The name of what is downloaded of `spec` until it is whole.
    pub(super) fn partial_key(&self, spec: &FetchSpec) -> ObjectKey {
        self.partial_key_of(spec.ino, matches!(Form::published(spec), Form::Published(_)))
    }

    fn partial_key_of(&self, ino: Ino, is_coded: bool) -> ObjectKey {
        match is_coded {
            true => ObjectKey::inode(&format!("{} coded", self.source), ino.0),
            false => ObjectKey::inode(&self.source, ino.0),
        }
    }

    /// Evicts the objects and partials of `spec`, and its blocks in memory.
    pub(super) fn evict(&self, spec: &FetchSpec) -> Evicted {
        let evicted = match self.block_cache.remove_all(spec.ino) {
            0 => Evicted::Absent,
            bytes => Evicted::Bytes(bytes),
        };
        let partials = [false, true].map(|is_coded| self.partial_key_of(spec.ino, is_coded));
        let object = self.metadata.get(spec.ino).and_then(|known| known.object);
        let of_digest = self.vouching_digest(spec).map(|digest| ObjectKey::digest(&self.source, &digest));
        let keys = partials.into_iter().chain(object).chain(of_digest);
        keys.fold(evicted, |evicted, key| evicted.and(self.store.evict(&key)))
    }

    /// Constraints on a download of `spec` from bytes served earlier, of which `served` is remembered.
    pub(super) fn prior_serves(&self, spec: &FetchSpec) -> (Served, PriorServes) {
        let (served, observation) = (self.served.get(spec.ino), self.metadata.get(spec.ino).unwrap_or_default());
        let is_vouched = self.vouching_digest(spec).is_some();
        let was_served = self.served.has_verified(spec.ino);
        let prior = PriorServes {
            is_proved: served.as_ref().is_some_and(|served| served.is_whole),
            is_known: !observation.digests.is_empty() && (was_served || !is_vouched),
            is_vouched,
        };
        let served = served.unwrap_or_else(|| {
            // The kernel may have all but a few pages of what was verified: no validator proves those few. And the validators of mirrors
            // are not those of `loc`, and nothing says whose this is.
            let can_prove = !is_vouched && spec.mirrors.is_empty();
            let etag = strong(observation.etag.as_deref()).filter(|_| can_prove);
            Served { version: etag.map(|etag| (spec.uri.clone(), etag.into())), ..Served::default() }
        });
        (served, prior)
    }

    /// Remembers what was handed out. Of inodes that are forgotten for it the kernel's pages go.
    pub(super) fn remember_served(&self, ino: Ino, served: Served) {
        for ino in self.served.keep(ino, served) {
            tracing::debug!(ino = ino.0, "what was read of it without a verdict is forgotten");
            self.send_event(Event::Recheck(ino, 0..u64::MAX));
        }
    }

    /// From now on every reader of `ino` fails. The caller sends the event.
    pub(super) fn condemn(&self, ino: Ino) {
        // Before a reader can find it poisoned, and send the event again.
        self.served.remind(ino);
        self.metadata.update(ino, |observation| {
            observation.verified = Verified::Failed;
            observation.object = None;
        });
        self.served.clear(ino);
    }

    /// The object `key` of `size` bytes is the version of `spec`: the next one may be made of it by JSON Patches.
    pub(super) fn keep_for_patches(&self, spec: &FetchSpec, served: Option<&str>, key: &ObjectKey, size: u64) {
        let is_json = match spec.media_type.as_deref().or(served).map(essence) {
            Some(media_type) => media_type.ends_with("/json") || media_type.ends_with("+json"),
            None => spec.uri.path().ends_with(".json"),
        };
        if is_json && size <= patch::LIMIT && !spec.is_past() && published_coding(spec).is_none() {
            self.metadata.keep_version(version_of(&spec.uri), key.clone(), size);
        }
    }

    /// The last version of a resource that is here, for JSON Patches.
    pub(super) fn last_version(&self, uri: &Uri) -> Option<Arc<Object>> {
        let (key, length) = self.metadata.version(version_of(uri))?;
        self.store.get(&key).filter(|object| object.length() == length)
    }
}

/// The name of a resource among the remembered versions.
fn version_of(uri: &Uri) -> u64 {
    xxhash_rust::xxh3::xxh3_64(uri.as_str().as_bytes())
}
