//! Which deliveries are new: one that comes again changes nothing.

use super::{NotificationError, SetChannel, read};
use crate::document::Uri;
use crate::sync::command::Announcement;
use sha2::{Digest, Sha256};
use std::collections::{HashSet, VecDeque};

/// Deliveries that are known again.
const MOST_REMEMBERED: usize = 4096;

/// Reads deliveries.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Digests of the newest dated notifications.
    remembered: VecDeque<[u8; 32]>,
    known: HashSet<[u8; 32]>,
}

impl Inbox {
    /// What is announced by a delivery on `channel`; nothing where it has come before. The errors of [`read`].
    pub fn take(&mut self, body: &[u8], channel: &SetChannel) -> Result<Vec<Announcement>, NotificationError> {
        let notification = read(body, channel)?;
        let is_known = notification.is_dated && !self.is_first(body, channel);
        Ok(if is_known { Vec::new() } else { notification.announced })
    }

    /// Whether no remembered delivery on `channel` has these bytes.
    fn is_first(&mut self, body: &[u8], channel: &SetChannel) -> bool {
        let mut digest = Sha256::new();
        digest.update(channel.set.as_ref().map_or("", Uri::as_str));
        digest.update([0]);
        digest.update(channel.channel.topic.as_str());
        digest.update([0]);
        digest.update(body);
        let digest: [u8; 32] = digest.finalize().into();
        if !self.known.insert(digest) {
            return false;
        }
        self.remembered.push_back(digest);
        if self.remembered.len() > MOST_REMEMBERED {
            if let Some(oldest) = self.remembered.pop_front() {
                self.known.remove(&oldest);
            }
        }
        true
    }
}
