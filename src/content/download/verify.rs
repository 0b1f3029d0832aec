//! The verdict on a complete body, and the object made of a right one. Runs on a blocking thread.

use super::in_flight::Download;
use super::object::CachedObject;
use super::promise::Promise;
use super::writer::{WriteError, Writer, Written};
use crate::content::coding::Coding;
use crate::content::fixity::{Expected, Seen, Verdict, judge};
use crate::content::form::Form;
use crate::content::store::ObjectKey;
use crate::content::{Content, Verified};
use crate::document::Digest;
use std::io;
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
        let (seen, written) = writer.finish()?;
        let Some(seen) = seen else { return Ok(Judged::Wrong("no digest".into())) };
        let verdict = judge(&self.promise.expected, &seen);
        let is_unverified = self.promise.expected.published.is_none() && self.promise.expected.length.is_none();
        let (verdict, seen, written, is_decoded) = match (self.promise.form, verdict) {
            (Form::Published(coding), Verdict::Right(verified)) => {
                let expected = Expected { length: None, published: None, earlier: self.earlier };
                let into = ObjectKey::inode(&self.content.config.source, self.ino);
                let (verdict, seen, written) = self.decode(written, coding, &expected, &into)?;
                // What was verified is the coded bytes.
                let verdict = if let Verdict::Right(_) = verdict { Verdict::Right(verified) } else { verdict };
                (verdict, seen, written, true)
            }
            (Form::Unasked(Some(coding)), verdict) if is_unverified || matches!(verdict, Verdict::Wrong(_)) => {
                // The coded bytes have the plain name until the verdict.
                let into = ObjectKey::inode(&format!("{} decoded", self.content.config.source), self.ino);
                let earlier = self.earlier.filter(|_| is_unverified);
                let expected = Expected { earlier, ..self.promise.expected.clone() };
                let (verdict, seen, written) = self.decode(written, coding, &expected, &into)?;
                (verdict, seen, written, true)
            }
            (_, verdict) => (verdict, seen, written, false),
        };
        let verified = match verdict {
            Verdict::Right(verified) => verified,
            Verdict::Wrong(what) => {
                written.discard();
                return Ok(Judged::Wrong(match self.promise.form {
                    Form::Unasked(_) => {
                        format!("it was sent with a content coding that was not requested, and {what}")
                    }
                    _ => what,
                }));
            }
            Verdict::Other => {
                written.discard();
                return Ok(Judged::Other);
            }
        };
        // No digest says that there is nothing, and a head said that there is something.
        if let Some(announced) = self.contradicted.filter(|_| written.length() == 0) {
            if !matches!(verified, Verified::Digest(_)) {
                written.discard();
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
        let has_other_size = self.shown.is_some_and(|shown| shown != written.length());
        if has_other_size || !self.download.state().agrees() {
            if !matches!(verified, Verified::Digest(_)) {
                written.discard();
                return Ok(Judged::Other);
            }
            // What was shown cannot be taken back, but the name's next inode may have the object.
            written.commit(&key)?;
            // The blocks of a coded body are not those of the object: whether they agree is unknown.
            return Ok(match (has_other_size, is_decoded) {
                (true, _) => Judged::Final,
                (false, true) => Judged::Other,
                (false, false) => Judged::Poison,
            });
        }
        if self.download.outcome().is_some() {
            // It was cancelled, and another download may have the name.
            written.discard();
            return Ok(Judged::Other);
        }
        let object = written.commit(&key)?;
        Ok(Judged::Right { object, key, verified, digest: seen.digest })
    }

    /// Undoes `coding` into the name `into`; the decoded bytes must be what is `expected`.
    fn decode(
        &self,
        written: Written,
        coding: Coding,
        expected: &Expected,
        into: &ObjectKey,
    ) -> Result<(Verdict, Seen, Written), WriteError> {
        let (seen, written) = written.decode(coding, &self.content, into, expected.algorithm())?;
        let Some(seen) = seen else { return Err(WriteError::Coding(io::Error::other("no digest"))) };
        Ok((judge(expected, &seen), seen, written))
    }
}
