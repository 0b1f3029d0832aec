//! The tracker over a flat row of files: inode n is at cursor n.

use super::tracker::*;
use super::walk::*;
use crate::platform::ino::Ino;
use std::collections::HashMap;
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;

const NONE: [u64; 0] = [];

const UNKNOWN: Reader = Reader { thread: 0, process: 0 };

struct Row {
    tracker: Tracker<u64>,
    consumer: Consumer,
    sizes: u64,
    /// Each file has a different size, from 2 to 128 KiB, in place of `sizes`.
    of_own_size: bool,
    files: u64,
    evidence: Evidence,
    reader: Reader,
    now: Instant,
    /// Files fetched and not read, with their bytes.
    unread: HashMap<u64, u64>,
    /// Bytes of files fetched and then read.
    used: u64,
}

impl Row {
    fn of(files: u64, bytes: u64) -> Row {
        Row {
            tracker: Tracker::new(64 << 20),
            consumer: Consumer::Bytes,
            sizes: bytes,
            of_own_size: false,
            files,
            evidence: Evidence::None,
            reader: UNKNOWN,
            now: Instant::now(),
            unread: HashMap::new(),
            used: 0,
        }
    }

    fn size(&self, n: u64) -> u64 {
        if self.of_own_size { Random(n).within(2 * KIB..128 * KIB) } else { self.sizes }
    }

    fn key(&self, n: u64) -> (Consumer, Ino) {
        (self.consumer, Ino(n))
    }

    fn candidates(&self, from: u64, count: usize) -> Vec<Candidate<u64>> {
        let candidate = |n| Candidate { ino: Ino(n), bytes: Some(self.size(n)), after: n };
        (from + 1..=self.files).take(count).map(candidate).collect()
    }

    fn supply(&mut self, wish: &Wish<u64>) -> Vec<u64> {
        let mut ordered = self.candidates(wish.from, wish.files);
        let mut bytes = 0;
        let mut fits = |it: &Candidate<u64>| {
            bytes += it.bytes.unwrap();
            bytes <= wish.bytes
        };
        let fitting = ordered.iter().take_while(|it| fits(it)).count();
        ordered.truncate(fitting.max(1));
        let front = ordered.last().map_or(wish.from, |last| last.after);
        let expected = self.candidates(front, EXPECTED);
        let is_end = expected.is_empty();
        let now = self.tracker.supply(wish, ordered, expected, front, is_end);
        now.into_iter().map(|ino| ino.0).collect()
    }

    fn begins(&mut self, n: u64) -> Vec<u64> {
        let Row { consumer, reader, evidence, .. } = *self;
        let start = WalkStart { consumer, after: n, bytes: Some(self.size(n)), reader, evidence };
        let wish = self.tracker.begin(start, self.now);
        self.supply(&wish)
    }

    /// The reader reads file `n`. Returns the files that are to be fetched now, under way.
    fn orders(&mut self, n: u64) -> Vec<u64> {
        let bytes = Some(self.size(n));
        self.used += self.unread.remove(&n).unwrap_or(0);
        match self.tracker.read(self.key(n), bytes, self.reader, self.now) {
            Reaction::Enough => Vec::new(),
            Reaction::Follows(wish) => self.supply(&wish),
            Reaction::Elsewhere => self.begins(n),
        }
    }

    /// The same, and they have come.
    fn reads(&mut self, n: u64) -> Vec<u64> {
        let fetched = self.orders(n);
        for n in &fetched {
            self.unread.insert(*n, self.size(*n));
            self.tracker.completed(self.key(*n), self.size(*n));
        }
        fetched
    }

    fn outstanding(&self) -> usize {
        (1..=self.files.min(20_000)).filter(|n| self.tracker.is_ordered(self.key(*n))).count()
    }

    fn unread(&self) -> u64 {
        self.unread.values().sum()
    }

    fn waits(&mut self, time: Duration) {
        self.now += time;
        self.tracker.sweep(self.now, |_| false);
    }
}

/// A fixed sequence (splitmix64).
struct Random(u64);

impl Random {
    fn within(&mut self, range: std::ops::Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (mixed ^ (mixed >> 31)) % (range.end - range.start)
    }
}

#[test]
fn the_third_file_in_order_has_the_next_fetched() {
    for consumer in [Consumer::Bytes, Consumer::Sizes] {
        let mut row = Row { consumer, ..Row::of(1000, KIB) };

        assert_eq!(row.reads(1), NONE);
        assert_eq!(row.reads(2), NONE);
        assert_eq!(row.reads(3), (4..=19).collect::<Vec<_>>());
    }
}

#[test]
fn the_first_listed_file_has_a_few_fetched_at_once() {
    let mut row = Row { evidence: Evidence::FirstListed, ..Row::of(1000, KIB) };

    assert_eq!(row.reads(1), [2, 3, 4, 5]);
    assert_eq!(row.reads(2), (6..=18).collect::<Vec<_>>());
}

#[test]
fn a_long_wait_has_the_next_fetched_at_once() {
    let mut row = Row { evidence: Evidence::LongWait, consumer: Consumer::Sizes, ..Row::of(1000, SIZE_BYTES) };

    assert_eq!(row.reads(500), (501..=628).collect::<Vec<_>>());
}

#[test]
fn sizes_and_bytes_of_one_file_are_two_things() {
    let mut row = Row::of(1000, KIB);
    (1..=3).for_each(|n| drop(row.reads(n)));

    assert!(row.tracker.expects((Consumer::Bytes, Ino(10))) && !row.tracker.expects((Consumer::Sizes, Ino(10))));
    assert_eq!(row.tracker.read((Consumer::Sizes, Ino(10)), None, UNKNOWN, row.now), Reaction::Elsewhere);
    row.consumer = Consumer::Sizes;
    (1..=2).for_each(|n| drop(row.reads(n)));
    assert_eq!(row.reads(3), (4..=19).collect::<Vec<_>>());
}

/// Reads by another process than the one whose walk is tested.
fn jump(row: &mut Row, jumps: &mut impl Iterator<Item = u64>, times: usize) {
    let reader = std::mem::replace(&mut row.reader, Reader { thread: 9, process: 9 });
    for n in jumps.take(times) {
        assert_eq!(row.reads(n), NONE);
    }
    row.reader = reader;
}

#[test]
fn a_process_that_jumps_makes_no_walk_of_another_forgotten() {
    let mut row = Row::of(10_000_000, KIB);
    let mut jumps = (1..).map(|number| 10_000 + 100 * number);

    row.reads(1);
    jump(&mut row, &mut jumps, 1000);
    row.reads(2);
    jump(&mut row, &mut jumps, 1000);
    assert_eq!(row.reads(3), (4..=19).collect::<Vec<_>>(), "it comes to be known");

    jump(&mut row, &mut jumps, 1000);
    assert_eq!(row.outstanding(), 16, "and stays so");
    (4..=8).for_each(|n| drop(row.reads(n)));
    assert_eq!(row.used, 5 * KIB);
}

#[test]
fn random_readers_have_next_to_nothing_fetched() {
    for seed in 1..=5 {
        let (mut row, mut random) = (Row::of(10_000, 64 * KIB), Random(seed));
        let fetched: usize = (0..1000).map(|_| row.reads(random.within(1..10_001)).len()).sum();
        assert!(fetched <= 16, "{fetched} files, seed {seed}");
    }
}

#[test]
fn another_reader_may_end_a_walk_with_its_folder() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);

    // A thread, and whether the walk is another's from there on. Programs that read one file each count as one.
    for (n, thread, expected) in [(2, 0, false), (3, 8, true), (4, 9, false), (5, 10, false), (6, 10, false)] {
        let reader = Reader { thread, process: thread };
        let Reaction::Follows(wish) = row.tracker.read(row.key(n), Some(KIB), reader, row.now) else { panic!() };
        assert_eq!(wish.is_another_readers, expected, "file {n}");
        row.supply(&Wish { files: 0, ..wish });
    }
}

#[test]
fn the_window_doubles_each_time_it_is_read_through() {
    let mut row = Row::of(10_000, KIB);
    let mut outstanding = Vec::new();
    for n in 1..=300 {
        row.reads(n);
        outstanding.push(row.outstanding());
    }

    assert!(outstanding[10] >= 16, "{outstanding:?}");
    assert!(outstanding[40] >= 64, "{outstanding:?}");
    assert!(outstanding[299] >= 96 && outstanding[299] <= 128, "{outstanding:?}");
}

#[test]
fn every_file_is_fetched_once_and_none_beyond_the_end() {
    let mut row = Row::of(726, 14 * KIB);
    let mut fetched: Vec<u64> = Vec::new();
    for n in 1..=726 {
        fetched.extend(row.reads(n));
    }

    assert_eq!(fetched, (4..=726).collect::<Vec<_>>());
    assert_eq!((row.used, row.unread()), (723 * 14 * KIB, 0));
}

#[test]
fn a_reader_that_jumps_has_nothing_fetched() {
    let mut row = Row::of(10_000, KIB);
    // A fixed sequence without neighbours: multiples of a prime.
    for step in 1..=100u64 {
        assert_eq!(row.reads(step * 7919 % 10_000 + 1), NONE, "step {step}");
    }
}

#[test]
fn a_reader_that_leaves_some_out_is_still_known() {
    let mut row = Row::of(1000, KIB);

    assert_eq!(row.reads(5), NONE);
    assert_eq!(row.reads(8), NONE);
    assert_eq!(row.reads(13).first(), Some(&14));
}

#[test]
fn files_left_out_do_not_fill_the_window() {
    let mut row = Row::of(3000, KIB);
    let read = (1..=3000).filter(|n| n % 20 != 7);
    let fetched = read.map(|n| row.reads(n).len()).sum::<usize>();

    assert!(fetched >= 2900, "{fetched}");
}

/// The kernel shows sizes that were learnt before it lists their names.
#[test]
fn sizes_shown_with_a_listing_do_not_fill_the_window() {
    let mut row = Row { consumer: Consumer::Sizes, ..Row::of(10_000, SIZE_BYTES) };
    (1..=4).for_each(|n| drop(row.reads(n)));
    let fetched = (5..=10_000).step_by(10).map(|n| row.reads(n).len()).sum::<usize>();

    assert!(fetched >= 9000, "{fetched}");
}

#[test]
fn large_files_are_not_piled_up() {
    let mut row = Row::of(1000, 8 << 20);
    for n in 1..=20 {
        row.reads(n);

        assert!(row.outstanding() <= 8, "at file {n}: {}", row.outstanding());
    }
}

#[test]
fn all_walks_together_stay_below_the_limit() {
    let mut row = Row { tracker: Tracker::new(256 * KIB), ..Row::of(10_000, 16 * KIB) };
    for begin in [1, 2001, 4001] {
        for n in begin..begin + 4 {
            row.reads(n);
        }
    }

    assert!(row.outstanding() <= 16, "{}", row.outstanding());
}

#[test]
fn all_walks_together_have_a_bounded_number_of_files() {
    let mut row = Row::of(100_000, 1);
    for n in 1..400 {
        for walk in 0..16 {
            row.reader = Reader { thread: 1 + walk as u32, process: 1 + walk as u32 };
            row.reads(1000 * walk + n);
        }
    }

    let all: Vec<u64> = (0..16)
        .map(|walk| (1..=1000).filter(|n| row.tracker.is_ordered(row.key(1000 * walk + n))).count() as u64)
        .collect();
    assert!(all.iter().sum::<u64>() <= 1024 && all.iter().all(|files| *files > 16), "{all:?}");
}

#[test]
fn a_walk_through_large_files_leaves_others_their_part() {
    const LARGE: u64 = 1 << 20;
    let mut row = Row { tracker: Tracker::new(8 << 20), ..Row::of(10_000, LARGE) };
    // The walk through large files is long known and has fetched as much as it may.
    (1..=40).for_each(|n| drop(row.reads(n)));
    assert!((2..=4).contains(&row.outstanding()), "{}", row.outstanding());
    row.sizes = 16 * KIB;
    let small: usize = (5001..=5003).map(|n| row.reads(n).len()).sum();
    assert!(small >= 16, "the limit has room for a later one: {small}");
}

#[test]
fn abandoned_walks_make_careful_and_use_makes_up_for_it() {
    let mut row = Row::of(1_000_000, 128 * KIB);
    for walk in 0..20 {
        for n in 1..=3 {
            row.reads(walk * 1000 + n);
        }
        row.waits(Duration::from_secs(61));
    }
    let wasted = row.unread();
    assert!(wasted > 1 << 20);
    row.evidence = Evidence::FirstListed;
    assert_eq!(row.reads(800_001), NONE, "the first of the listed files neither");
    row.evidence = Evidence::None;

    let fetched: Vec<usize> = (500_001..500_600).map(|n| row.reads(n).len()).collect();

    assert_eq!(fetched[..11].iter().sum::<usize>(), 0, "three in order are not enough any more");
    assert!(fetched[..64].iter().sum::<usize>() < 80, "nor is much fetched beyond them: {fetched:?}");
    assert!(fetched.iter().sum::<usize>() > 400, "a walk that continues is known all the same: {fetched:?}");
    assert!(wasted * 10 < row.used, "{wasted} of {}", row.used);
    let ahead = (500_600..510_000).filter(|n| row.tracker.is_ordered(row.key(*n))).count();
    assert!(ahead >= 64, "and has its distance again: {ahead}");
}

/// Readers take turns, three at a time, each to its end or to where it leaves; every file has a different size.
#[test]
fn in_mixed_work_less_than_a_tenth_is_wasted() {
    const APART: u64 = 10_000;
    for seed in 1..=20 {
        let mut random = Random(seed);
        let mut readers: Vec<(u64, bool)> =
            (0..50).flat_map(|_| [(random.within(50..400), true), (random.within(3..60), false)]).collect();
        readers.sort_by_key(|(files, _)| files.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut row = Row { of_own_size: true, ..Row::of(0, 0) };
        let (mut under_way, mut last, mut bytes_read) = (Vec::new(), 0, 0);
        while !readers.is_empty() || !under_way.is_empty() {
            while under_way.len() < 3 {
                let Some((files, is_finished)) = readers.pop() else { break };
                last += APART;
                let evidence = [Evidence::None, Evidence::None, Evidence::FirstListed][random.within(0..3) as usize];
                let end = last + if is_finished { files } else { APART / 2 };
                under_way.push((last + 1, last + files, end, evidence));
            }
            let place = random.within(0..under_way.len() as u64) as usize;
            let (next, until, end, evidence) = under_way[place];
            (row.evidence, row.files) = (evidence, end);
            row.reads(next);
            bytes_read += row.size(next);
            row.waits(Duration::from_millis(10));
            under_way[place].0 += 1;
            if next == until {
                row.waits(Duration::from_millis(random.within(0..1000)));
                under_way.remove(place);
            }
        }

        let (used, wasted) = (row.used, row.unread());
        assert!(wasted > 0 && wasted * 10 < used, "seed {seed}: {wasted} of {used}");
        assert!(used * 10 > bytes_read * 8, "seed {seed}: {used} of {bytes_read} bytes that were read");
    }
}

#[test]
fn failures_make_the_window_small_and_waste_nothing() {
    let mut row = Row::of(1000, KIB);
    for n in 1..=40 {
        row.reads(n);
    }
    let before = row.outstanding();
    let ordered = (41..60).map(|n| row.orders(n)).find(|ordered| !ordered.is_empty()).unwrap();
    for n in &ordered {
        row.tracker.dropped(row.key(*n), true);
    }

    assert!(row.outstanding() < before);
    assert!(ordered.iter().all(|n| !row.tracker.is_ordered(row.key(*n))));
}

#[test]
fn without_room_nothing_is_ordered_for_a_while() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);
    row.reads(2);
    let ordered = row.orders(3);
    ordered.iter().for_each(|n| row.tracker.no_room(row.key(*n), row.now));

    assert_eq!(row.outstanding(), 0);
    assert_eq!((20..40).flat_map(|n| row.reads(n)).collect::<Vec<_>>(), NONE);
    row.now += NO_ROOM;
    assert!((40..44).any(|n| !row.reads(n).is_empty()));
}

#[test]
fn a_walk_that_ended_is_forgotten_with_what_it_ordered() {
    let mut row = Row::of(1000, KIB);
    for n in 1..=3 {
        row.reads(n);
    }
    assert_eq!(row.outstanding(), 16);

    row.waits(ENDED + Duration::from_secs(1));

    assert_eq!(row.outstanding(), 0);
    assert!(!row.tracker.expects((Consumer::Bytes, Ino(4))));
    assert!(!row.tracker.sweep(row.now, |_| false), "no walk is left");
}

#[test]
fn a_walk_whose_process_is_gone_ends_after_a_pause() {
    let mut row = Row { reader: Reader { thread: 7, process: 7 }, ..Row::of(1000, KIB) };
    for n in 1..=3 {
        row.reads(n);
    }
    let sweep = |row: &mut Row, time| row.tracker.sweep(row.now + Duration::from_secs(time), |process| process == 7);

    assert!(sweep(&mut row, 1), "programs that read a file each follow each other");
    assert_eq!(row.outstanding(), 16);
    row.reader = Reader { thread: 8, process: 8 };
    row.reads(4);
    assert!(sweep(&mut row, 3), "the process of the last file is there");
    row.reader = Reader { thread: 7, process: 7 };
    row.reads(5);
    assert!(!sweep(&mut row, 3));
    assert_eq!(row.outstanding(), 0);
}
