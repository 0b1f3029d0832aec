//! Deletions that are held back: of each (set, URI) the time for which its set said that it is gone.

use super::HeldDeletion;
use super::store::codec::{Decoder, push_string, push_time};
use super::store::keys::statement_set;
use crate::document::{Timestamp, Uri};

/// What the table has of a deletion.
pub(super) fn encode(time: Timestamp, uri: &Uri, out: &mut Vec<u8>) {
    push_time(out, time);
    push_string(out, uri.as_str());
}

/// The deletion of a row; `None` where it makes no sense.
pub(super) fn decode(key: &[u8], bytes: &[u8]) -> Option<HeldDeletion> {
    let mut bytes = Decoder(bytes);
    let time = bytes.time()?;
    Some(HeldDeletion { set: statement_set(key)?, uri: Uri::parse(bytes.string()?).ok()?, time })
}
