//! What has been announced and not been looked at yet.

use super::{Announcement, NotificationError, SetChannel, read};
use crate::document::Uri;
use crate::sync::command::{Look, Looks};
use sha2::{Digest, Sha256};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// Deliveries remembered to know them again.
const MOST_REMEMBERED: usize = 4096;
/// A change of the Source Description is announced on all channels within this.
const SAME_ANNOUNCEMENT: Duration = Duration::from_secs(600);
/// Looks that may follow one another at once, and how long it takes until one more may. What comes faster is looked at
/// together, later.
const BURST: u32 = 120;
const PACE: Duration = Duration::from_millis(500);

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There is, or will be, something to look at.
    New,
    /// It, or what it announces, is known already.
    Known,
}

/// Where an announcement has come from so far.
#[derive(Debug)]
struct Announced {
    first: Instant,
    /// Set and topic of each channel.
    channels: BTreeSet<(Option<Uri>, Uri)>,
}

/// Everything announced and not looked at yet. What comes twice is looked at once, and what comes too fast together.
#[derive(Debug)]
pub struct Inbox {
    /// The newest deliveries whose octets identify them, by channel.
    remembered: VecDeque<[u8; 32]>,
    known: HashSet<[u8; 32]>,
    /// Announcements of the Source Description, with the channels they came on.
    announced: HashMap<Announcement, Announced>,
    looks: Looks,
    /// Looks that may be taken at once, as of then.
    allowance: (u32, Instant),
}

impl Inbox {
    /// An empty one.
    pub fn new(now: Instant) -> Inbox {
        Inbox {
            remembered: VecDeque::new(),
            known: HashSet::new(),
            announced: HashMap::new(),
            looks: Looks::default(),
            allowance: (BURST, now),
        }
    }

    /// Takes what was delivered on `channel`; the errors of [`read`].
    pub fn take(&mut self, body: &[u8], channel: &SetChannel, now: Instant) -> Result<Taken, NotificationError> {
        let notification = read(body, channel)?;
        if notification.is_dated && !self.is_first(body, channel) {
            return Ok(Taken::Known);
        }
        let mut is_new = !notification.looks.is_empty();
        notification.looks.into_iter().for_each(|look| self.looks.add(look));
        for announcement in notification.descriptions {
            if self.is_first_announcement(announcement, channel, now) {
                self.looks.add(Look::Rediscover);
                is_new = true;
            }
        }
        Ok(if is_new { Taken::New } else { Taken::Known })
    }

    /// When [`Inbox::next`] has something, if nothing further comes.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        let (allowed, since) = self.allowance;
        (!self.looks.is_empty()).then(|| if allowed > 0 { now } else { since + PACE })
    }

    /// The next look, unless too many have just been taken.
    pub fn next(&mut self, now: Instant) -> Option<Look> {
        let (allowed, since) = self.allowance;
        let earned = now.saturating_duration_since(since).as_millis() / PACE.as_millis();
        let allowed = allowed.saturating_add(u32::try_from(earned).unwrap_or(BURST)).min(BURST);
        let since = if allowed == BURST { now } else { since + PACE * u32::try_from(earned).unwrap_or(0) };
        self.allowance = (allowed, since);
        let left = allowed.checked_sub(1)?;
        let look = self.looks.next()?;
        self.allowance = (left, since);
        Some(look)
    }

    /// Whether the octets of a dated notification come on `channel` for the first time, as far as is remembered.
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
        if self.remembered.len() > MOST_REMEMBERED
            && let Some(oldest) = self.remembered.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// Whether this is news, and not what another channel has just said. One channel does not say the same twice: that is the
    /// next change of the kind.
    fn is_first_announcement(&mut self, announcement: Announcement, channel: &SetChannel, now: Instant) -> bool {
        self.announced.retain(|_, known| now.saturating_duration_since(known.first) < SAME_ANNOUNCEMENT);
        let here = (channel.set.clone(), channel.channel.topic.clone());
        if let Some(known) = self.announced.get_mut(&announcement)
            && known.channels.insert(here.clone())
        {
            return false;
        }
        if self.announced.len() < MOST_REMEMBERED {
            self.announced.insert(announcement, Announced { first: now, channels: BTreeSet::from([here]) });
        }
        true
    }
}
