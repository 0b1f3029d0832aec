//! Announcements whose change is not seen yet, each once, and when each is checked. Pure: time is passed in.

use crate::sync::command::Announcement;
use std::time::Duration;
use tokio::time::Instant;

/// A notification may be faster than the document, or than a cache on the way: so long after the first check it is checked again.
const RETRIES: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(10), Duration::from_secs(60)];

/// Announcements kept at once, and the resources that they name. Where there are more, every document is checked, which misses none.
const MOST: usize = 64;
const MOST_RESOURCES: usize = 10_000;

/// The least time between two checks: what is announced meanwhile is checked together.
const PAUSE: Duration = Duration::from_millis(100);

/// Announcements that wait for a check.
#[derive(Debug)]
pub struct Announcements {
    waiting: Vec<PendingAnnouncement>,
    /// The end of the pause behind the last check.
    rests_until: Instant,
}

/// An announcement and its checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingAnnouncement {
    /// Its subject.
    pub announcement: Announcement,
    /// The time of the announcement; once checked, the beginning of the first check.
    since: Instant,
    /// Checks that have begun or were missed.
    checks: usize,
    /// Announcements that nothing new was seen for: one change does not answer for another.
    announced: usize,
}

impl PendingAnnouncement {
    /// True for a second check: caches on the way are passed by.
    pub fn is_retry(&self) -> bool {
        self.checks > 1
    }

    /// The time of its next check; `None` where it is given up.
    fn due(&self) -> Option<Instant> {
        match self.checks.checked_sub(1) {
            None => Some(self.since),
            Some(retry) => RETRIES.get(retry).map(|pause| self.since + *pause),
        }
    }

    fn resources(&self) -> usize {
        match &self.announcement {
            Announcement::Resources(resources) => resources.len(),
            _ => 0,
        }
    }
}

impl Announcements {
    /// A queue without announcements.
    pub fn new(now: Instant) -> Announcements {
        Announcements { waiting: Vec::new(), rests_until: now }
    }

    /// Adds what was announced. One that waits for a retry begins again: the new document may take as long.
    pub fn add(&mut self, announcement: Announcement, now: Instant) {
        self.put(PendingAnnouncement { announcement, since: now, checks: 0, announced: 1 });
    }

    fn put(&mut self, mut pending: PendingAnnouncement) {
        if let Some(known) = self.waiting.iter_mut().find(|known| known.announcement == pending.announcement) {
            let announced = known.announced + pending.announced;
            if pending.checks < known.checks {
                *known = pending;
            }
            known.announced = announced;
            return;
        }
        let resources = self.waiting.iter().map(PendingAnnouncement::resources).sum::<usize>() + pending.resources();
        let is_beyond = self.waiting.len() >= MOST || resources > MOST_RESOURCES;
        // A check of everything does not discover the Source again.
        let is_kept = matches!(pending.announcement, Announcement::Everything | Announcement::Source);
        if is_beyond && !is_kept {
            self.put(PendingAnnouncement { announcement: Announcement::Everything, ..pending });
            return;
        }
        if let Announcement::Resources(new) = &mut pending.announcement {
            let fresh = self.waiting.iter_mut().filter(|known| (known.checks, pending.checks) == (0, 0));
            for known in fresh.map(|known| &mut known.announcement) {
                if let Announcement::Resources(known) = known {
                    known.append(new);
                    return;
                }
            }
        }
        self.waiting.push(pending);
    }

    /// The time at which [`Announcements::next`] has something, if nothing further is added.
    pub fn due(&self) -> Option<Instant> {
        let due = self.waiting.iter().filter_map(PendingAnnouncement::due).min()?;
        Some(due.max(self.rests_until))
    }

    /// The announcement to check now: the Source first, then the one that is due longest.
    pub fn next(&mut self, now: Instant) -> Option<PendingAnnouncement> {
        if now < self.rests_until {
            return None;
        }
        let due = |(index, pending): (usize, &PendingAnnouncement)| {
            Some((pending.announcement != Announcement::Source, pending.due()?, index))
        };
        let is_due = |(_, due, _): &(bool, Instant, usize)| *due <= now;
        let (_, _, index) = self.waiting.iter().enumerate().filter_map(due).filter(is_due).min()?;
        self.rests_until = now + PAUSE;
        let mut next = self.waiting.remove(index);
        if next.announcement == Announcement::Source {
            // Every document is checked with it.
            self.waiting.retain(|it| it.checks > 0 || matches!(it.announcement, Announcement::Resources(_)));
        }
        if next.checks == 0 {
            next.since = now;
        }
        next.checks += 1;
        // Checks that were missed, as the machine slept, are not made up for.
        while next.due().is_some_and(|due| due <= now) {
            next.checks += 1;
        }
        Some(next)
    }

    /// A check of `pending` has not shown `unseen` of it.
    pub fn checked(&mut self, pending: PendingAnnouncement, unseen: Option<Announcement>, now: Instant) {
        match (&pending.announcement, unseen) {
            // There may have been no time for these: they have all their checks left.
            (Announcement::Resources(all), Some(Announcement::Resources(left))) if left.len() < all.len() => {
                self.add(Announcement::Resources(left), now);
            }
            (_, Some(announcement)) if pending.due().is_some() => {
                self.put(PendingAnnouncement { announcement, ..pending })
            }
            (_, None) if pending.announced > 1 && pending.due().is_some() => {
                self.put(PendingAnnouncement { announced: pending.announced - 1, ..pending });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Change, Uri};

    fn uri(path: &str) -> Uri {
        Uri::parse(&format!("http://example.org/{path}")).unwrap()
    }

    fn document(path: &str) -> Announcement {
        Announcement::Document { document: uri(path), index: None }
    }

    fn resources<P: std::fmt::Display>(paths: impl IntoIterator<Item = P>) -> Announcement {
        Announcement::Resources(
            paths.into_iter().map(|path| (uri(&path.to_string()), Change::Updated.into())).collect(),
        )
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn queue(all: impl IntoIterator<Item = Announcement>) -> (Announcements, Instant) {
        let now = Instant::now();
        let mut queue = Announcements::new(now);
        all.into_iter().for_each(|announcement| queue.add(announcement, now));
        (queue, now)
    }

    /// Everything that is checked if nothing is added.
    fn taken(queue: &mut Announcements) -> Vec<Announcement> {
        let next = || queue.due().and_then(|due| queue.next(due));
        std::iter::from_fn(next).map(|pending| pending.announcement).collect()
    }

    #[test]
    fn what_is_not_seen_is_checked_again_after_2_10_and_60_s() {
        let (mut queue, now) = queue([document("a")]);
        let mut times = Vec::new();
        while let Some(due) = queue.due() {
            assert_eq!(queue.next(due - Duration::from_millis(1)), None);
            let pending = queue.next(due).unwrap();
            assert_eq!(pending.is_retry(), due > now);
            assert_eq!(queue.next(due), None);
            times.push(due - now);
            let unseen = pending.announcement.clone();
            queue.checked(pending, Some(unseen), due);
        }

        assert_eq!(times, [seconds(0), seconds(2), seconds(10), seconds(60)]);
    }

    #[test]
    fn retries_count_from_the_first_check() {
        let (mut queue, now) = queue([document("a")]);
        let first = queue.next(now + seconds(100)).unwrap();
        queue.checked(first, Some(document("a")), now + seconds(101));

        assert_eq!(queue.due(), Some(now + seconds(102)));
    }

    #[test]
    fn what_is_seen_is_not_checked_again() {
        let (mut queue, now) = queue([document("a")]);
        let pending = queue.next(now).unwrap();

        queue.checked(pending, None, now);

        assert_eq!(queue.due(), None);
    }

    /// The change of the other announcement may not be published yet.
    #[test]
    fn what_is_seen_ends_the_wait_of_one_announcement_alone() {
        let (mut queue, now) = queue([document("a"), document("a")]);
        let first = queue.next(now).unwrap();

        queue.checked(first, None, now);

        assert_eq!(queue.due(), Some(now + seconds(2)));
        let second = queue.next(now + seconds(2)).unwrap();
        assert!(second.is_retry());
        queue.checked(second, None, now + seconds(2));
        assert_eq!(queue.due(), None);
    }

    #[test]
    fn a_new_announcement_begins_again_and_sleep_is_not_made_up_for() {
        let (mut queue, now) = queue([document("a")]);
        let pending = queue.next(now).unwrap();
        queue.checked(pending, Some(document("a")), now);
        let pending = queue.next(now + seconds(30)).unwrap();
        queue.checked(pending, Some(document("a")), now + seconds(30));
        assert_eq!(queue.due(), Some(now + seconds(60)));

        queue.add(document("a"), now + seconds(40));
        let pending = queue.next(now + seconds(40)).unwrap();
        assert!(!pending.is_retry());
        queue.add(document("a"), now + seconds(41));
        queue.checked(pending, Some(document("a")), now + seconds(41));

        assert_eq!(queue.due(), Some(now + seconds(41)), "it was announced while it was checked");
    }

    #[test]
    fn what_a_check_did_not_come_to_has_all_its_checks_left() {
        let (mut queue, now) = queue([resources(["seen", "rest"])]);
        let pending = queue.next(now).unwrap();
        let later = now + seconds(5);

        queue.checked(pending, Some(resources(["rest"])), later);

        let next = queue.next(later).unwrap();
        assert_eq!((&next.announcement, next.is_retry()), (&resources(["rest"]), false));
        queue.checked(next, Some(resources(["rest"])), later);
        assert_eq!(queue.due(), Some(later + seconds(2)), "none was shown");
    }

    #[test]
    fn what_is_announced_twice_before_it_is_checked_is_checked_once() {
        let all = [document("a"), Announcement::Everything, resources(["x", "y"]), resources(["y", "z"])];
        let (mut queue, _) = queue(all.iter().chain(&all).cloned());

        assert_eq!(taken(&mut queue), [document("a"), Announcement::Everything, resources(["x", "y", "z"])]);
    }

    #[test]
    fn a_discovery_checks_all_documents_and_no_resource() {
        let (mut queue, _) = queue([document("a"), Announcement::Everything, Announcement::Source, resources(["r"])]);

        assert_eq!(taken(&mut queue), [Announcement::Source, resources(["r"])]);
    }

    #[test]
    fn a_flood_of_announcements_ends_with_a_check_of_everything() {
        let (mut documents, _) = queue((0..10 * MOST).map(|number| document(&number.to_string())));
        let checked = taken(&mut documents);
        assert_eq!((checked.len(), checked.last()), (MOST + 1, Some(&Announcement::Everything)));

        let half = |from: usize| resources(from..from + MOST_RESOURCES / 2);
        let (mut queue, _) = queue([half(0), half(MOST_RESOURCES), half(MOST_RESOURCES / 2), half(7)]);
        let checked = taken(&mut queue);
        assert_eq!(checked.len(), 2);
        assert!(matches!(&checked[0], Announcement::Resources(all) if all.len() == MOST_RESOURCES));
        assert_eq!(checked[1], Announcement::Everything);
    }

    #[test]
    fn a_flood_does_not_lose_a_discovery() {
        let (mut queue, now) = queue((0..10 * MOST).map(|number| document(&number.to_string())));
        queue.add(Announcement::Source, now);

        assert_eq!(taken(&mut queue), [Announcement::Source]);
    }

    /// A person who knows a path can make the mount ask the Source, but not as often as they like; and nothing is lost.
    #[test]
    fn what_comes_too_fast_is_checked_later_and_together() {
        let (mut queue, now) = queue([]);
        let mut checks = 0;
        for _ in 0..1000 {
            queue.add(Announcement::Everything, now);
            checks += usize::from(queue.next(now).is_some());
        }
        assert_eq!(checks, 1);

        assert_eq!(queue.due(), Some(now + PAUSE));
        assert_eq!(taken(&mut queue), [Announcement::Everything]);
        assert_eq!(queue.due(), None);
        let later = now + seconds(3600);
        queue.add(Announcement::Everything, later);
        assert_eq!(queue.due(), Some(later));
    }
}
