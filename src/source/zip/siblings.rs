//! Members of one package that are wanted one after another: their bytes come together, and all at once where that costs
//! no more than what has been spent on some of them.

use super::directory::{Directory, Found};
use super::package_bytes::Place;
use super::windows::{MEMORY, Window, Windows};
use super::{PackageError, Packages, remote};
use crate::document::{PackageMember, Uri};
use crate::source::http::{Line, Price, Priority};
use lru::LruCache;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Who is asked for within this time of each other are siblings.
const TOGETHER: Duration = Duration::from_secs(2);

/// So many before it make of a member a sibling.
const ENOUGH: usize = 3;

/// However fast a line, the whole of a package is not fetched for fewer requests than this.
const FEW: u32 = 5;

/// PackageBytes between the first of those and it.
const NEAR: u64 = 4 << 20;

/// PackageBytes ahead of what is read: at first, and of a walk that is not believed yet.
const FIRST: u64 = 512 << 10;

/// Of one that is believed there are as many as come in so many round trips, up to here; never fewer than come in one.
const ROUND_TRIPS: u64 = 32;
const LARGEST: u64 = 8 << 20;

/// Siblings in a row that make a walk: whoever reads ahead for somebody asks for as many only where one is known.
const BELIEVED: u32 = 6;

/// PackageBytes are asked for when fewer than this part of those that may be ahead are under way or here.
const REFILL: u64 = 2;

/// They come by so many requests at once, each for so many bytes at least: a connection begins slowly.
const STRIPES: u64 = 6;
const STRIPE: u64 = 768 << 10;

/// Of packages walked at once so many, the last ones, share the memory for windows.
const SHARING: usize = 16;

/// Packages whose members are followed.
const PACKAGES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// What is wanted of the packages lately.
#[derive(Debug)]
pub(super) struct Siblings {
    /// Lock order: `demands`, a demand's `ordering`, `windows`, a demand's others; `record` is held for nothing else. None is held while
    /// anything is waited for.
    demands: Mutex<LruCache<Uri, Arc<Demand>>>,
    record: Mutex<Record>,
    windows: Mutex<Windows>,
}

/// What is wanted of one package.
#[derive(Debug, Default)]
struct Demand {
    lately: Mutex<Lately>,
    /// Held by who says what is asked for next.
    ordering: Mutex<()>,
    /// Who asks the server just now.
    asking: AtomicU32,
    /// The members that are waited for, by their numbers, which are in the order of their bytes, and by how many.
    waiting: Mutex<BTreeMap<u32, u32>>,
}

/// One who waits for a member.
struct Waiting<'d> {
    demand: &'d Demand,
    number: u32,
}

impl<'d> Waiting<'d> {
    fn enter(demand: &'d Demand, number: u32) -> Waiting<'d> {
        *demand.waiting.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_default() += 1;
        Waiting { demand, number }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.demand.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if let std::collections::btree_map::Entry::Occupied(mut who) = waiting.entry(self.number) {
            *who.get_mut() -= 1;
            if *who.get() == 0 {
                who.remove();
            }
        }
    }
}

/// Counts one who asks.
struct AtOnce<'d>(&'d Demand);

impl<'d> AtOnce<'d> {
    fn enter(demand: &'d Demand) -> AtOnce<'d> {
        demand.asking.fetch_add(1, Ordering::Relaxed);
        AtOnce(demand)
    }
}

impl Drop for AtOnce<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What windows have brought, and what of that was wanted.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    used: u64,
    wasted: u64,
}

impl Record {
    /// So much may be wasted before anything was used.
    const LEEWAY: u64 = LARGEST;

    /// Beyond this the past counts half.
    const REMEMBERED: u64 = 256 << 20;

    fn add(&mut self, brought: u64, used: u64) {
        self.used += used.min(brought);
        self.wasted += brought.saturating_sub(used);
        if self.used + self.wasted > Record::REMEMBERED {
            self.used /= 2;
            self.wasted /= 2;
        }
    }

    /// Whether walks are gone through to where they were believed to go: more than nine tenths of what was brought was wanted.
    fn is_good(&self) -> bool {
        self.wasted.saturating_sub(Record::LEEWAY) <= self.used / 10
    }
}

#[derive(Debug, Default)]
struct Lately {
    /// When and where members were asked for; of an unknown directory all lie at 0.
    asked: VecDeque<(Instant, u64)>,
    /// Siblings asked for in a row.
    siblings: u32,
    /// PackageBytes that windows have brought and that the record does not tell of yet.
    came: u64,
    /// PackageBytes of members that came out of these.
    used: u64,
    /// Round trips spent on ranges: their bytes are wanted anyway.
    spent: Duration,
    /// How many requests those were.
    requests: u32,
    /// PackageBytes of windows.
    brought: u64,
    /// The whole package is on its way, or cannot be had.
    is_settled: bool,
}

impl Lately {
    /// One more is asked for, at this offset; whether it is a sibling of those before.
    fn ask(&mut self, now: Instant, offset: u64) -> bool {
        while self.asked.front().is_some_and(|(then, _)| now.saturating_duration_since(*then) > TOGETHER)
            || self.asked.len() > 64
        {
            self.asked.pop_front();
        }
        let is_sibling = self.has_siblings(offset);
        self.siblings = if is_sibling { self.siblings.saturating_add(1) } else { 0 };
        self.asked.push_back((now, offset));
        is_sibling
    }

    /// Whether one that is asked for now, at this offset, would be a sibling.
    fn would_have_siblings(&self, now: Instant, offset: u64) -> bool {
        let is_near = |(then, other): &&(Instant, u64)| {
            other.abs_diff(offset) <= NEAR && now.saturating_duration_since(*then) <= TOGETHER
        };
        self.asked.iter().filter(is_near).count() >= ENOUGH
    }

    fn has_siblings(&self, offset: u64) -> bool {
        self.asked.iter().filter(|(_, other)| other.abs_diff(offset) <= NEAR).count() >= ENOUGH
    }

    /// Nobody has asked for anything for a while.
    fn is_left(&self, now: Instant) -> bool {
        self.asked.back().is_none_or(|(then, _)| now.saturating_duration_since(*then) > TOGETHER)
    }

    /// PackageBytes that may be under way or here ahead of what is read.
    fn ahead(&self, line: &Line, record: &Record) -> u64 {
        let at_once = line.bytes_in_round_trip();
        if self.siblings < BELIEVED {
            return FIRST.max(at_once).min(LARGEST);
        }
        let most = at_once.saturating_mul(ROUND_TRIPS).clamp(FIRST, LARGEST);
        match record.is_good() {
            true => most,
            // In proportion to what was wanted of it so far.
            false => self.used.clamp(FIRST, most),
        }
    }

    /// What windows have brought and what of it was wanted, which is told once.
    fn settle(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.came), std::mem::take(&mut self.used))
    }

    /// One more window is asked for; whether the whole package would have cost no more by now. Its round trip is lost where fewer
    /// bytes come than in that time; where as many do a walk through windows is as good as the whole, unless it goes to and fro.
    fn spend_on_window(&mut self, bytes: u64, whole: u64, line: &Line, at_once: u32) -> bool {
        self.brought = self.brought.saturating_add(bytes);
        if bytes < line.bytes_in_round_trip() {
            return self.spend(whole, line, at_once);
        }
        let is_due = !self.is_settled && self.brought > whole.saturating_add(whole / 2);
        self.is_settled |= is_due;
        is_due
    }

    /// One more range is asked for at the server; whether the whole package would have cost no more by now.
    fn spend(&mut self, whole: u64, line: &Line, at_once: u32) -> bool {
        self.spent = self.spent.saturating_add(line.time(Price { requests: 1, bytes: 0 }, at_once));
        self.requests = self.requests.saturating_add(1);
        let whole = line.time(Price { requests: 1, bytes: whole }, 1);
        let is_due = !self.is_settled && self.requests >= FEW && self.spent >= whole;
        self.is_settled |= is_due;
        is_due
    }
}

impl Siblings {
    pub fn new() -> Siblings {
        Siblings { demands: Mutex::new(LruCache::new(PACKAGES)), record: Mutex::default(), windows: Mutex::default() }
    }

    fn demand(&self, package: &Uri) -> Arc<Demand> {
        let mut demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(demands.get_or_insert(package.clone(), Arc::default))
    }

    /// What is wanted of a package, where something was lately.
    fn known_demand(&self, package: &Uri) -> Option<Arc<Demand>> {
        self.demands.lock().unwrap_or_else(PoisonError::into_inner).peek(package).cloned()
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// PackageBytes ahead of what is read that one package may have, so that what is on its way for one needs not make room for another's:
    /// as many again are what was read just now.
    fn share(&self) -> u64 {
        let demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        let sharing = demands.iter().take(SHARING).filter(|(_, demand)| !demand.is_left()).count();
        MEMORY / 2 / sharing.max(1) as u64
    }

    /// The whole of a package could not be had for now: it is due again once its price has been spent again.
    fn unsettle(&self, package: &Uri) {
        let demand = self.demand(package);
        let mut lately = demand.lately();
        (lately.spent, lately.requests, lately.brought, lately.is_settled) = (Duration::ZERO, 0, 0, false);
    }

    /// Walks that were left are held against what was brought for them.
    fn settle(&self, now: Instant) {
        let demands = self.demands.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, demand) in demands.iter() {
            let mut lately = demand.lately();
            if lately.came > 0 && lately.is_left(now) {
                let (brought, used) = lately.settle();
                drop(lately);
                self.record.lock().unwrap_or_else(PoisonError::into_inner).add(brought, used);
            }
        }
    }
}

impl Demand {
    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits for a member, nor has asked for one for a while.
    fn is_left(&self) -> bool {
        let is_waited_for = !self.waiting.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        !is_waited_for && self.lately().is_left(Instant::now())
    }
}

impl Packages {
    /// What a member would take to be read now: siblings of it that were wanted make it cheaper. `None`: it cannot be had as far
    /// as is known. Nothing is waited for, and nothing is remembered or fetched.
    pub fn price(&self, member: &PackageMember) -> Option<Price> {
        let demand = self.shared.siblings.known_demand(&member.package);
        let is_sibling =
            |offset| demand.as_ref().is_some_and(|demand| demand.lately().would_have_siblings(Instant::now(), offset));
        self.priced(member, is_sibling).map(|(price, _)| price)
    }

    /// The price of a member that is read now; it counts as a sibling of the next ones. Where it is the whole package
    /// that would come, enough of them bring it here.
    pub fn want(&self, member: &PackageMember) -> Option<Price> {
        let demand = self.shared.siblings.demand(&member.package);
        let (price, is_whole) = self.priced(member, |offset| demand.lately().ask(Instant::now(), offset))?;
        if is_whole {
            self.spend(&demand, &member.package, price.bytes);
        }
        Some(price)
    }

    /// The price of a member, and whether it is that of the whole package. `is_sibling` is asked about its offset at most once.
    fn priced(&self, member: &PackageMember, is_sibling: impl FnOnce(u64) -> bool) -> Option<(Price, bool)> {
        let Some(directory) = self.known(&member.package) else {
            if self.has_failed(&member.package) {
                return None;
            }
            if let Some(bytes) = self.bytes_of_preview(&member.package).filter(|_| !self.has_ranges(&member.package)) {
                is_sibling(0);
                return Some((Price { requests: 1, bytes }, true));
            }
            // Its directory serves all of them; who is alone pays for it.
            let requests = if is_sibling(0) { 1 } else { 3 };
            return Some((Price { requests, bytes: remote::END }, false));
        };
        let extent = match directory.find(&member.path) {
            Found::Member(number) if directory.record(number)?.unreadable().is_none() => directory.extent(number),
            // What the paths have in excess may not be known yet.
            Found::Nothing if directory.excess.get().is_none() => {
                return Some((Price { requests: 2, bytes: 0 }, false));
            }
            Found::Member(_) | Found::Nothing | Found::Several => return None,
        };
        let is_sibling = is_sibling(extent.start);
        let is_here = !matches!(directory.place, Place::Server)
            || self.shared.siblings.windows().find(&member.package, &directory.version, &extent).is_some();
        let price = match (is_here, is_sibling) {
            (true, _) => Price::default(),
            (false, true) => Price { requests: 0, bytes: extent.end - extent.start },
            (false, false) => Price { requests: 1, bytes: extent.end - extent.start },
        };
        Some((price, false))
    }

    /// Where to read a member from: of siblings the bytes come together.
    pub(super) async fn place(
        &self,
        directory: &Arc<Directory>,
        number: u32,
        awaited: Priority,
    ) -> Result<Place, PackageError> {
        if !matches!(directory.place, Place::Server) {
            return Ok(directory.place.clone());
        }
        let (package, version, extent) = (directory.package(), &directory.version, directory.extent(number));
        let siblings = &self.shared.siblings;
        let demand = siblings.demand(package);
        let _asking = AtOnce::enter(&demand);
        let mut window = siblings.windows().find(package, version, &extent);
        let is_alone = !demand.lately().has_siblings(extent.start);
        if window.is_none() && is_alone {
            self.spend(&demand, package, directory.length());
            return Ok(Place::Server);
        }
        let _waiting = Waiting::enter(&demand, number);
        if window.is_none() {
            // Those who ask together come in no order: all of them are to be known before it is said where to begin.
            tokio::task::yield_now().await;
        }
        if !is_alone {
            self.order(directory, &demand, number);
            window = window.or_else(|| siblings.windows().find(package, version, &extent));
        }
        let bytes = match window {
            Some(window) => window.bytes_for(&extent, awaited).await?,
            None => None,
        };
        let Some(bytes) = bytes else {
            self.spend(&demand, package, directory.length());
            return Ok(Place::Server);
        };
        demand.lately().used += bytes.len() as u64;
        Ok(Place::Memory { first: extent.start, bytes })
    }

    /// Has the bytes of a sibling fetched that are not on their way, and those that follow, as far as its walk is believed.
    fn order(&self, directory: &Directory, demand: &Arc<Demand>, number: u32) {
        let (package, version, extent) = (directory.package(), &directory.version, directory.extent(number));
        let siblings = &self.shared.siblings;
        let line = self.shared.client.line(package);
        if demand.lately().siblings <= BELIEVED {
            siblings.settle(Instant::now());
        }
        let share = siblings.share();
        let _ordering = demand.ordering.lock().unwrap_or_else(PoisonError::into_inner);
        let record = *siblings.record.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = demand.lately().ahead(&line, &record).min(share);
        let (begin, until) = {
            let mut windows = siblings.windows();
            // What is here is not asked for again.
            let next = |windows: &Windows, from| windows.next(package, version, from).unwrap_or(u64::MAX);
            if windows.find(package, version, &extent).is_some() {
                let reach = windows.reach(package, version, extent.start);
                let most = (extent.start + ahead).min(next(&windows, reach));
                if reach.saturating_sub(extent.start) > ahead / REFILL {
                    return;
                }
                (reach, directory.run_end(number, most))
            } else {
                let first = self.first_waited_for(directory, demand, number, ahead, &mut windows);
                let begin = directory.extent(first).start;
                let most = next(&windows, extent.start).min(begin.saturating_add(ahead));
                (begin, directory.run_end(first, most).max(extent.end))
            }
        };
        // One member alone is not worth a window.
        if until <= begin || (begin..until) == extent {
            return;
        }
        let at_once = demand.asking.load(Ordering::Relaxed);
        let is_due = demand.lately().spend_on_window(until - begin, directory.length(), &line, at_once);
        if is_due {
            self.fetch_whole(package, directory.length());
        }
        let stripe = ((until - begin) / STRIPES).max(STRIPE);
        let mut from = begin;
        while from < until {
            // A member lies in one window; where none reaches over its end it ends where it should.
            let end = match until - from < 2 * stripe {
                true => until,
                false => directory.end_near(from + stripe).max(from + stripe).min(until),
            };
            let window = Arc::new(Window::new(version, from..end));
            siblings.windows().put(package, Arc::clone(&window));
            let (client, demand) = (self.shared.client.clone(), Arc::clone(demand));
            let goes_on = move |bytes| {
                demand.lately().came += bytes;
                !demand.is_left()
            };
            tokio::spawn(window.bring(client, package.clone(), goes_on));
            from = end;
        }
    }

    /// The first member that is waited for and not on its way, of those from which `size` bytes without a gap reach over `number`.
    fn first_waited_for(
        &self,
        directory: &Directory,
        demand: &Demand,
        number: u32,
        size: u64,
        windows: &mut Windows,
    ) -> u32 {
        let (package, version, extent) = (directory.package(), &directory.version, directory.extent(number));
        let waiting: Vec<u32> =
            demand.waiting.lock().unwrap_or_else(PoisonError::into_inner).range(..number).map(|(it, _)| *it).collect();
        let mut is_wanted = |other: &u32| {
            let begin = directory.extent(*other);
            let is_free = windows.next(package, version, begin.start).is_none_or(|next| next > extent.start);
            is_free && extent.end - begin.start <= size && windows.find(package, version, &begin).is_none()
        };
        waiting.into_iter().find(|other| is_wanted(other)).unwrap_or(number)
    }

    /// Counts what is asked for at the server, and has the whole package fetched when that would have been no dearer.
    fn spend(&self, demand: &Demand, package: &Uri, whole: u64) {
        let (line, at_once) = (self.shared.client.line(package), demand.asking.load(Ordering::Relaxed));
        let is_due = demand.lately().spend(whole, &line, at_once);
        if is_due {
            self.fetch_whole(package, whole);
        }
    }

    /// Has the whole of a package fetched, of so many bytes, where it may be kept.
    fn fetch_whole(&self, package: &Uri, whole: u64) -> Option<JoinHandle<()>> {
        if whole > self.shared.config.whole {
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let (packages, package) = (self.clone(), package.clone());
        Some(runtime.spawn(async move {
            if let Err(error) = packages.whole(&package, u64::MAX).await {
                tracing::debug!(%package, error = %crate::causes::chain(&error), "the whole of a package cannot be had");
                if error.is_retryable() {
                    packages.shared.siblings.unsettle(&package);
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::loopback::Loopback;
    use crate::source::zip::PackageConfig;

    #[test]
    fn members_asked_for_together_are_siblings_and_many_in_a_row_are_a_walk() {
        let (mut lately, now, record) = (Lately::default(), Instant::now(), Record::default());
        for offset in 0..3 {
            assert!(!lately.ask(now, offset));
        }
        assert!(lately.ask(now, 3));
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), FIRST);
        for offset in 4..3 + u64::from(BELIEVED) {
            assert!(lately.ask(now, offset));
        }
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), LARGEST);
        let slow = Line::new(Duration::from_millis(40), 1_000_000);
        assert_eq!(lately.ahead(&slow, &record), 1_280_000, "what comes in 32 round trips");
        assert!(!lately.ask(now, 100 << 20), "far away");
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), FIRST);
        assert!(!lately.ask(now + 2 * TOGETHER, 4), "long ago");
    }

    #[test]
    fn walks_that_were_left_make_the_next_go_no_further_than_it_has_used() {
        let (mut record, mut lately) = (Record::default(), Lately::default());
        lately.siblings = BELIEVED;
        record.add(LARGEST, 0);
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), LARGEST, "once");
        record.add(LARGEST, LARGEST / 2);
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), FIRST);
        lately.used = 3 << 20;
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), 3 << 20);
        record.add(40 << 20, 40 << 20);
        assert_eq!(lately.ahead(&Line::TYPICAL, &record), LARGEST, "made up for");
    }

    #[test]
    fn packages_walked_at_once_share_the_memory_for_windows() {
        let siblings = Siblings::new();
        let package = |number: usize| Uri::parse(&format!("http://example.org/{number}.zip")).unwrap();
        let walk = |number| {
            siblings.demand(&package(number)).lately().ask(Instant::now(), 0);
        };
        siblings.demand(&package(0));
        walk(1);
        assert!(siblings.share() >= LARGEST, "one is left");
        (1..=5).for_each(walk);
        assert!(siblings.share() * 5 * 2 <= MEMORY);
        (1..=100).for_each(walk);
        assert!(siblings.share() >= STRIPE, "enough for one request");
    }

    #[test]
    fn windows_that_hold_what_comes_in_a_round_trip_cost_no_more_than_the_whole() {
        let (mut lately, line, whole) = (Lately::default(), Line::TYPICAL, 80_000_000);
        let fast = Line::new(Duration::from_millis(40), 100_000_000);
        assert_eq!(Lately::default().ahead(&fast, &Record::default()), 4_000_000);
        assert!((0..20).all(|_| !lately.spend_on_window(4_000_000, whole, &line, 1)), "once through it");
        let again = (0..).take_while(|_| !lately.spend_on_window(4_000_000, whole, &line, 1)).count();
        assert_eq!(again, 10, "to and fro");
        assert!(!lately.spend_on_window(4_000_000, whole, &line, 1), "on its way");

        let mut lately = Lately::default();
        let short = (0..).take_while(|_| !lately.spend_on_window(100_000, whole, &line, 1)).count();
        assert_eq!(short, 250, "as single members");
    }

    #[test]
    fn the_whole_is_due_once_when_its_price_has_been_spent() {
        let mut lately = Lately::default();
        let whole = 80_000_000;
        let spent = (0..).take_while(|_| !lately.spend(whole, &Line::TYPICAL, 1)).count();
        assert_eq!(spent, 250, "10.04 s of 40 ms each");
        assert!(!lately.spend(whole, &Line::TYPICAL, 1));

        let mut lately = Lately::default();
        let spent = (0..).take_while(|_| !lately.spend(whole, &Line::TYPICAL, 4)).count();
        assert_eq!(spent, 1003, "four at once");

        let mut lately = Lately::default();
        let slow = Line::new(Duration::from_millis(400), 8_000_000);
        let spent = (0..).take_while(|_| !lately.spend(whole, &slow, 1)).count();
        assert_eq!(spent, 25, "10.4 s of 400 ms each");
    }

    #[tokio::test]
    async fn the_whole_is_due_again_where_it_could_not_be_had_for_now() {
        let folder = tempfile::tempdir().unwrap();
        let server = Loopback::with(&[]).await;
        let config = PackageConfig::new(folder.path().to_owned());
        let packages = Packages::open(server.client(), config).unwrap();
        let remember = |uri: &Uri, error| drop(packages.remember(uri, Err(error)));
        let (changed, broken) = (server.uri("/changed.zip"), server.uri("/broken.zip"));
        remember(&changed, PackageError::Changed { package: changed.clone() });
        remember(&broken, PackageError::NoManifest { package: broken.clone() });
        let demand = |package: &Uri| packages.shared.siblings.demand(package);
        for package in [&broken, &changed] {
            demand(package).lately().is_settled = true;
            let fetched = packages.fetch_whole(package, 1 << 20).unwrap();
            tokio::time::timeout(Duration::from_secs(20), fetched).await.unwrap().unwrap();
        }

        assert!(!demand(&changed).lately().is_settled, "it is tried again");
        assert!(demand(&broken).lately().is_settled, "it stays as it is");
    }
}
