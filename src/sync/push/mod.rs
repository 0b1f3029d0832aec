//! Notifications. One is never believed: it only says what to ask for (Framework Notification, section 3; Change Notification,
//! section 3). Values alone, no I/O; time is passed in.

pub mod announce;
pub mod queue;
#[cfg(test)]
mod tests;

use crate::document::{Capability, Change, DocumentError, Entry, Limits, Reader, Uri};
use crate::source::{Channel, DocumentLocation, Set, Source};
use crate::sync::command::Announcement;
use std::collections::VecDeque;
use std::hash::Hash;
use xxhash_rust::xxh3::Xxh3;

/// Bounds for a notification, inflated: it has one entry, seldom many.
const LIMITS: Limits = Limits { document: 8 << 20, text: 16 << 10, depth: 16, links: 100 };
/// Entries read of a notification: where it has more, everything is checked.
const MOST_ENTRIES: usize = 10_000;
/// Deliveries that are recognized: a repeat of an older one costs a check.
const MOST_REMEMBERED: usize = 64;
/// Channels of all sets together: each is a subscription that is asked for and renewed. Sets with more are polled.
const MOST_CHANNELS: usize = 1000;

/// A channel of a mounted set, and what decides how its notifications are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetChannel {
    /// The Capability List of the set, where there is one.
    pub set: Option<Uri>,
    /// The channel.
    pub channel: Channel,
    /// The set's Change Lists.
    pub change_lists: Vec<DocumentLocation>,
    /// `HOST[:PORT]` whose resources the set is about.
    pub own_authority: Box<str>,
}

/// The channels of a Source.
#[derive(Clone, Debug, Default)]
pub struct SetChannels {
    /// The channels, set by set.
    pub all: Vec<SetChannel>,
    /// True if each set has one: no set is kept in step by polling alone.
    pub are_complete: bool,
}

/// The channels of every set of `source`; `host` is the own `HOST[:PORT]` where `host=` gives it.
pub fn channels(source: &Source, host: Option<&str>) -> SetChannels {
    let of_set = |set: &Set| {
        let lists = set.documents.iter().filter(|(capability, _)| *capability == Capability::ChangeList);
        let change_lists: Vec<_> = lists.map(|(_, location)| location.clone()).collect();
        let list = set.capability_list.clone();
        let of_channel = move |channel: &Channel| SetChannel {
            set: list.clone(),
            channel: channel.clone(),
            change_lists: change_lists.clone(),
            own_authority: host.or(source.own_authority.as_deref()).unwrap_or(channel.topic.authority()).into(),
        };
        set.channels.iter().map(of_channel).collect::<Vec<_>>()
    };
    let all: Vec<SetChannel> = source.sets.iter().flat_map(of_set).take(MOST_CHANNELS).collect();
    let has_one = |set: &Set| all.iter().any(|channel| channel.set == set.capability_list);
    let are_complete = source.sets.iter().filter(|set| !set.documents.is_empty()).all(has_one);
    SetChannels { all, are_complete }
}

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The announcements.
    pub announced: Vec<Announcement>,
    /// True if every change has its time: the same bytes are the same notification then, and not another of the kind.
    pub is_dated: bool,
}

/// Reads what was delivered on `channel`. A hub that fetches the topic may find nothing there: an empty body announces
/// everything, as do entries that are not read.
pub fn read(body: &[u8], channel: &SetChannel) -> Result<Notification, DocumentError> {
    if body.trim_ascii().is_empty() {
        return Ok(Notification { announced: vec![Announcement::Everything], is_dated: false });
    }
    let mut reader = Reader::new(body, Some(channel.channel.topic.clone()), LIMITS)?;
    if reader.header().root.is_feed_or_text() {
        return Err(DocumentError::FEED_OR_TEXT);
    }
    let (mut entries, mut unread) = (Vec::new(), 0_u64);
    while let Some(entry) = reader.next_entry()? {
        if entries.len() < MOST_ENTRIES { entries.push(entry) } else { unread += 1 }
    }
    unread += reader.skipped();
    if entries.is_empty() && unread > 0 {
        return Err(DocumentError::NothingUnderstood { entries: unread });
    }
    let is_whole = !entries.is_empty() && unread == 0;
    let mut notification = Notification {
        announced: if is_whole { Vec::new() } else { vec![Announcement::Everything] },
        is_dated: is_whole && entries.iter().all(|entry| entry.datetime.is_some()),
    };
    // The document itself decides, else its entries, else its channel.
    let names_documents = entries.iter().any(|entry| entry.capability.is_some());
    match (reader.header().capability.as_ref(), &channel.channel.capability) {
        (Some(Capability::ChangeNotification), _) => notification.add_changes(&entries, channel),
        // Another document, perhaps the one at the topic: something has changed.
        (Some(own), _) if *own != Capability::FrameworkNotification => {
            notification.announced.push(Announcement::Everything);
        }
        (None, Capability::ChangeNotification) if !names_documents => notification.add_changes(&entries, channel),
        (None, _) if !names_documents => notification.announced.push(Announcement::Everything),
        _ => entries.iter().for_each(|entry| notification.add_document(entry)),
    }
    Ok(notification)
}

/// Reads deliveries. One that comes again changes nothing.
#[derive(Debug, Default)]
pub struct NotificationInbox {
    /// Digests of the newest dated notifications.
    remembered: VecDeque<u64>,
}

impl NotificationInbox {
    /// The announcements of a delivery on `channel`; none where it has come before. The errors of [`read`].
    pub fn take(&mut self, body: &[u8], channel: &SetChannel) -> Result<Vec<Announcement>, DocumentError> {
        let notification = read(body, channel)?;
        if notification.is_dated {
            let mut hasher = Xxh3::new();
            (&channel.set, &channel.channel.topic, body).hash(&mut hasher);
            let digest = hasher.digest();
            if self.remembered.contains(&digest) {
                return Ok(Vec::new());
            }
            self.remembered.truncate(MOST_REMEMBERED - 1);
            self.remembered.push_front(digest);
        }
        Ok(notification.announced)
    }
}

impl Notification {
    /// Adds an entry of a Framework Notification (table 2, and the archives).
    fn add_document(&mut self, entry: &Entry) {
        use Capability::*;
        let index = || entry.links.iter().find(|link| &*link.rel == "index").and_then(|link| link.uri().cloned());
        match (&entry.capability, entry.change) {
            (
                Some(
                    ResourceList | ResourceDump | ChangeList | ChangeDump | ResourceListArchive | ResourceDumpArchive
                    | ChangeListArchive | ChangeDumpArchive,
                ),
                Some(Change::Created | Change::Updated),
            ) => self.announced.push(Announcement::Document { document: entry.loc.clone(), index: index() }),
            (Some(CapabilityList | Description), Some(_)) => self.announced.push(Announcement::Source),
            _ => self.announced.push(Announcement::Everything),
        }
    }

    /// Adds the entries of a Change Notification: the set's Change Lists hold them too, and without one the resources are asked.
    fn add_changes(&mut self, entries: &[Entry], channel: &SetChannel) {
        if entries.is_empty() {
            return;
        }
        for list in &channel.change_lists {
            self.announced.push(match list {
                DocumentLocation::Uri(list) => Announcement::Document { document: list.clone(), index: None },
                DocumentLocation::File(_) => Announcement::Everything,
            });
        }
        if !channel.change_lists.is_empty() {
            return;
        }
        let (own, foreign): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| *entry.loc.authority() == *channel.own_authority);
        if !own.is_empty() {
            let changes = own.into_iter().map(|entry| (entry.loc.clone(), entry.into())).collect();
            self.announced.push(Announcement::Resources(changes));
        }
        if !foreign.is_empty() {
            // A notification sends no request to other hosts; the lists say what is new there.
            self.announced.push(Announcement::Everything);
        }
    }
}
