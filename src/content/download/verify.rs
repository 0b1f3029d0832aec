//! The verdict on a complete body, and the object made of a right one. Runs on a blocking thread.

use super::in_flight::Download;
use super::object::CachedObject;
use super::promise::Promise;
use super::writer::{WriteError, Writer};
use crate::content::blocks::{BlockMap, Sink};
use crate::content::coding::Coding;
use crate::content::fixity::{BLOCK, Expected, Seen, Verdict, Verifier, WHOLE_LIMIT, judge};
use crate::content::form::Form;
use crate::content::store::ObjectKey;
use crate::content::{Content, Verified};
use crate::document::Digest;
use bytes::BytesMut;
use std::io::{self, Read};
use std::sync::Arc;

/// Grounds of the verdict.
pub(super) struct Judging {
    pub(super) content: Arc<Content>,
    pub(super) download: Arc<Download>,
    pub(super) ino: u64,
    pub(super) promise: Promise,
    /// The digest of an earlier complete download of this inode, of what a read returns.
    pub(super) earlier: Option<Digest>,
    /// The size that was shown before.
    pub(super) shown: Option<u64>,
    /// The size that a head announced and that the body of another request contradicted.
    pub(super) contradicted: Option<u64>,
}

/// A verdict, and the object committed where it is good.
pub(super) enum Judged {
    /// Right, and committed.
    Right {
        /// The object.
        object: CachedObject,
        /// Its name.
        key: ObjectKey,
        /// How far its bytes are known to be right.
        verified: Verified,
        /// The digest of what a read returns.
        digest: Digest,
    },
    /// Wrong bytes: how.
    Wrong(String),
    /// Another version than the one whose size or bytes were shown before.
    Other,
    /// Another version, and its digest is the published one: every other body would be wrong.
    Final,
    /// The object is right, committed, and not what was handed out.
    Poison,
}

impl Judging {
    /// Judges everything that `writer` has taken; what is not right is dropped.
    pub(super) fn judge(self, writer: Writer) -> Result<Judged, WriteError> {
        let (seen, map) = writer.finish()?;
        let verdict = judge(&self.promise.expected, &seen);
        let is_unverified = self.promise.expected.published.is_none() && self.promise.expected.length.is_none();
        let (verdict, seen, map, is_decoded) = match (self.promise.form, verdict) {
            (Form::Published(coding), Verdict::Right(verified)) => {
                let expected = Expected { length: None, published: None, earlier: self.earlier };
                let into = ObjectKey::inode(&self.content.config.source, self.ino);
                let (verdict, seen, map) = self.decode(&map, coding, &expected, &into)?;
                // What was verified is the coded bytes.
                let verdict = if let Verdict::Right(_) = verdict { Verdict::Right(verified) } else { verdict };
                (verdict, seen, map, true)
            }
            (Form::Unasked(Some(coding)), verdict) if is_unverified || matches!(verdict, Verdict::Wrong(_)) => {
                // The coded bytes have the plain name until the verdict.
                let into = ObjectKey::inode(&format!("{} decoded", self.content.config.source), self.ino);
                let earlier = self.earlier.filter(|_| is_unverified);
                let expected = Expected { earlier, ..self.promise.expected.clone() };
                let (verdict, seen, map) = self.decode(&map, coding, &expected, &into)?;
                (verdict, seen, map, true)
            }
            (_, verdict) => (verdict, seen, map, false),
        };
        let verified = match verdict {
            Verdict::Right(verified) => verified,
            Verdict::Wrong(what) => {
                map.discard();
                return Ok(Judged::Wrong(match self.promise.form {
                    Form::Unasked(_) => {
                        format!("it was sent with a content coding that was not requested, and {what}")
                    }
                    _ => what,
                }));
            }
            Verdict::Other => {
                map.discard();
                return Ok(Judged::Other);
            }
        };
        // No digest says that there is nothing, and a head said that there is something.
        if let Some(announced) = self.contradicted.filter(|_| seen.length == 0) {
            if !matches!(verified, Verified::Digest(_)) {
                map.discard();
                return Ok(Judged::Wrong(format!("the server announced {announced} bytes and sent none")));
            }
        }
        let key = match (verified, self.promise.form) {
            (Verified::Digest(_), Form::Plain | Form::Unasked(_)) => {
                ObjectKey::digest(&self.content.config.source, &seen.digest)
            }
            // A digest of coded bytes does not name the decoded ones.
            _ => ObjectKey::inode(&self.content.config.source, self.ino),
        };
        let has_other_size = self.shown.is_some_and(|shown| shown != seen.length);
        if has_other_size || !self.download.state().agrees() {
            if !matches!(verified, Verified::Digest(_)) {
                map.discard();
                return Ok(Judged::Other);
            }
            // What was shown cannot be taken back, but the name's next inode may have the object.
            self.commit(map, seen.length, &key)?;
            // The blocks of a coded body are not those of the object: whether they agree is unknown.
            return Ok(match (has_other_size, is_decoded) {
                (true, _) => Judged::Final,
                (false, true) => Judged::Other,
                (false, false) => Judged::Poison,
            });
        }
        if self.download.outcome().is_some() {
            // It was cancelled, and another download may have the name.
            map.discard();
            return Ok(Judged::Other);
        }
        let object = self.commit(map, seen.length, &key)?;
        Ok(Judged::Right { object, key, verified, digest: seen.digest })
    }

    /// Makes all bytes, `length` of them, the object `key`.
    fn commit(&self, map: Arc<BlockMap>, length: u64, key: &ObjectKey) -> Result<CachedObject, WriteError> {
        let object = map.commit(key, length, self.download.eviction_policy())?;
        Ok(object.map_or_else(|| CachedObject::Memory(map), CachedObject::Store))
    }

    /// Undoes `coding` into the name `into`, in the same kind of sink; the coded bytes are dropped. The decoded ones must be what is
    /// `expected`.
    fn decode(
        &self,
        coded: &BlockMap,
        coding: Coding,
        expected: &Expected,
        into: &ObjectKey,
    ) -> Result<(Verdict, Seen, Arc<BlockMap>), WriteError> {
        let (policy, mut verifier) = (self.download.eviction_policy(), Verifier::new(expected.algorithm()));
        let map = match coded.sink() {
            Sink::Store => coded.decoded(Some(self.content.local.store.begin(into, None, policy)?)),
            Sink::Memory if coded.start() > 0 => return Err(WriteError::TooLarge),
            Sink::Memory => coded.decoded(None),
        };
        let mut pending = BytesMut::new();
        let mut at = 0;
        let mut write = |pending: &mut BytesMut, least: usize| {
            if pending.len() < least.max(1) {
                return Ok(());
            }
            let blocks = pending.split_to(pending.len() - pending.len() % least.max(1)).freeze();
            map.write(at, &blocks, policy)?;
            at += blocks.len() as u64;
            Ok::<(), WriteError>(())
        };
        let decoded = coding.decode(MapReader { map: coded, offset: 0 }, coded.frontier(), |bytes| {
            verifier.update(bytes);
            if map.sink() == Sink::Memory && verifier.length() > WHOLE_LIMIT {
                return Err(WriteError::TooLarge);
            }
            pending.extend_from_slice(bytes);
            write(&mut pending, BLOCK as usize)
        });
        let decoded = decoded.and_then(|_| write(&mut pending, 1));
        coded.discard();
        decoded.inspect_err(|_| map.discard())?;
        let seen = verifier.finish();
        Ok((judge(expected, &seen), seen, Arc::new(map)))
    }
}

/// Reads a block map from its first byte.
struct MapReader<'a> {
    map: &'a BlockMap,
    offset: u64,
}

impl Read for MapReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let end = self.map.frontier().min(self.offset + buffer.len() as u64);
        let bytes = self.map.read(&(self.offset..end))?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
}
