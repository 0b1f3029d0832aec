//! The machine over a flat row of files: inode n lies at cursor n.

use super::*;

const KIB: u64 = 1 << 10;

const NONE: [u64; 0] = [];

const HERE: Host = Host(0);

struct Row {
    readahead: Readahead<u64>,
    sizes: u64,
    files: u64,
    reader: Reader,
    now: Instant,
}

impl Row {
    fn of(files: u64, octets: u64) -> Row {
        Row { readahead: Readahead::new(64 << 20), sizes: octets, files, reader: Reader::Stranger, now: Instant::now() }
    }

    fn candidates(&self, from: u64, count: usize) -> Vec<Candidate<u64>> {
        let candidate = |n| Candidate { ino: INodeNo(n), host: HERE, octets: Some(self.sizes), after: n };
        (from + 1..=self.files).take(count).map(candidate).collect()
    }

    fn supply(&mut self, wish: &Wish<u64>) {
        let fitting = usize::try_from(wish.octets / self.sizes.max(1)).unwrap();
        let ordered = self.candidates(wish.from, wish.files.min(fitting.max(1)));
        let ordered = if wish.files == 0 { Vec::new() } else { ordered };
        let front = ordered.last().map_or(wish.from, |last| last.after);
        let expected = self.candidates(front, EXPECTED);
        let is_end = expected.is_empty();
        self.readahead.supply(wish, &ordered, expected, front, is_end);
    }

    /// Somebody reads file `n`; answers which files are to be fetched now.
    fn reads(&mut self, n: u64) -> Vec<u64> {
        match self.readahead.read(INodeNo(n), Some(self.sizes), 0, self.now) {
            Seen::Enough => {}
            Seen::Follows(wish) => self.supply(&wish),
            Seen::Elsewhere => {
                let wish = self.readahead.begin(n, Some(self.sizes), self.reader, 0, self.now);
                self.supply(&wish);
            }
        }
        let fetched: Vec<u64> =
            std::iter::from_fn(|| self.readahead.take_next(|_| true)).map(|(ino, _)| ino.0).collect();
        for n in &fetched {
            self.readahead.landed(INodeNo(*n), self.sizes);
        }
        fetched
    }
}

#[test]
fn the_third_file_in_order_has_the_next_fetched() {
    let mut row = Row::of(1000, KIB);

    assert_eq!(row.reads(1), NONE);
    assert_eq!(row.reads(2), NONE);
    assert_eq!(row.reads(3), (4..=19).collect::<Vec<_>>());
}

#[test]
fn who_has_listed_the_folder_is_believed_a_little_by_the_second_file() {
    let mut row = Row { reader: Reader::HasListed, ..Row::of(1000, KIB) };

    assert_eq!(row.reads(7), NONE);
    assert_eq!(row.reads(8), [9, 10, 11, 12]);
    assert_eq!(row.reads(9), (13..=25).collect::<Vec<_>>());
}

#[test]
fn who_leaves_out_some_of_what_it_has_listed_is_believed_by_the_third_file() {
    let mut row = Row { reader: Reader::HasListed, ..Row::of(1000, KIB) };

    assert_eq!(row.reads(7), NONE);
    assert_eq!(row.reads(9), NONE);
    assert_eq!(row.reads(10), (11..=26).collect::<Vec<_>>());
}

#[test]
fn who_begins_with_the_first_of_the_files_it_has_listed_is_believed_a_little_at_once() {
    let mut row = Row { reader: Reader::AtFirstListed, ..Row::of(1000, KIB) };

    assert_eq!(row.reads(1), [2, 3, 4, 5]);
    assert_eq!(row.reads(2), (6..=18).collect::<Vec<_>>());
}

#[test]
fn a_walk_that_is_taken_up_by_another_tells_so() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);

    for (n, thread, is_another) in [(2, 0, false), (3, 8, true), (4, 8, false)] {
        let Seen::Follows(wish) = row.readahead.read(INodeNo(n), Some(KIB), thread, row.now) else { panic!() };
        assert_eq!(wish.is_another_reader, is_another, "file {n}");
        let expecting = Wish { files: 0, ..wish };
        row.supply(&expecting);
    }
}

#[test]
fn the_window_doubles_each_time_it_is_read_through() {
    let mut row = Row::of(10_000, KIB);
    let mut outstanding = Vec::new();
    for n in 1..=300 {
        row.reads(n);
        outstanding.push(row.readahead.outstanding());
    }

    assert!(outstanding[10] >= 16, "{outstanding:?}");
    assert!(outstanding[40] >= 64, "{outstanding:?}");
    assert!(outstanding[299] >= 192 && outstanding[299] <= 256, "{outstanding:?}");
}

#[test]
fn every_file_is_fetched_once_and_none_beyond_the_end() {
    let mut row = Row::of(726, 14 * KIB);
    let mut fetched: Vec<u64> = Vec::new();
    for n in 1..=726 {
        fetched.extend(row.reads(n));
    }

    assert_eq!(fetched, (4..=726).collect::<Vec<_>>());
    let ledger = *row.readahead.ledger();
    assert_eq!((ledger.fetched, ledger.used, ledger.wasted), (723 * 14 * KIB, 723 * 14 * KIB, 0));
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
fn large_files_are_not_piled_up() {
    let mut row = Row::of(1000, 8 << 20);
    for n in 1..=20 {
        row.reads(n);

        assert!(row.readahead.outstanding() <= 8, "at file {n}: {}", row.readahead.outstanding());
    }
}

#[test]
fn what_all_walks_have_ordered_stays_below_the_limit() {
    let mut row = Row { readahead: Readahead::new(256 * KIB), ..Row::of(10_000, 16 * KIB) };
    for begin in [1, 2001, 4001] {
        for n in begin..begin + 4 {
            row.reads(n);
        }
    }

    assert!(row.readahead.outstanding() <= 16, "{}", row.readahead.outstanding());
}

#[test]
fn walks_take_turns() {
    let mut row = Row::of(10_000, KIB);
    for begin in [1, 5001] {
        row.reads(begin);
        row.reads(begin + 1);
    }
    // Neither is fetched for before both are ordered.
    for n in [3, 5003] {
        let Seen::Follows(wish) = row.readahead.read(INodeNo(n), Some(KIB), 0, row.now) else { panic!() };
        row.supply(&wish);
    }

    let turns: Vec<bool> =
        std::iter::from_fn(|| row.readahead.take_next(|_| true)).take(8).map(|(ino, _)| ino.0 > 5000).collect();

    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
}

#[test]
fn a_host_that_may_not_be_asked_holds_up_nobody_elses_files() {
    const SLOW: Host = Host(1);
    let mut row = Row::of(1000, KIB);
    row.reads(1);
    row.reads(2);
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), 0, row.now) else { panic!() };
    let ordered: Vec<_> = row.candidates(3, 8);
    let of_two = |it: Candidate<u64>| Candidate { host: if it.ino.0.is_multiple_of(2) { SLOW } else { HERE }, ..it };
    let ordered: Vec<_> = ordered.into_iter().map(of_two).collect();
    row.readahead.supply(&wish, &ordered, Vec::new(), 11, false);

    let fast: Vec<u64> = std::iter::from_fn(|| row.readahead.take_next(|host| host != SLOW)).map(|it| it.0.0).collect();

    assert_eq!(fast, [5, 7, 9, 11]);
    assert_eq!(row.readahead.take_next(|_| true), Some((INodeNo(4), SLOW)));
}

#[test]
fn a_file_that_is_read_before_its_turn_is_not_fetched_again() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);
    row.reads(2);
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), 0, row.now) else { panic!() };
    row.supply(&wish);

    assert_eq!(row.readahead.take_next(|_| true), Some((INodeNo(4), HERE)));
    assert!(matches!(row.readahead.read(INodeNo(5), Some(KIB), 0, row.now), Seen::Enough | Seen::Follows(_)));
    assert_eq!(row.readahead.take_next(|_| true), Some((INodeNo(6), HERE)));
}

#[test]
fn abandoned_walks_make_the_next_ones_cautious_and_use_makes_up_for_it() {
    let mut row = Row::of(1_000_000, 128 * KIB);
    for walk in 0..20 {
        for n in 1..=3 {
            row.reads(walk * 1000 + n);
        }
        row.now += Duration::from_secs(61);
    }
    row.reads(900_000);
    assert!(row.readahead.ledger().wasted > 1 << 20);
    let mut listed = Row { reader: Reader::AtFirstListed, ..row };
    assert_eq!(listed.reads(800_001), NONE, "the first of the listed files neither");
    let mut row = Row { reader: Reader::Stranger, ..listed };

    assert_eq!(row.reads(500_001), NONE);
    assert_eq!(row.reads(500_002), NONE);
    assert_eq!(row.reads(500_003), NONE, "three in order are not enough any more");
    let fetched: usize = (500_004..500_600).map(|n| row.reads(n).len()).sum();
    assert!(fetched > 400, "a walk that goes on is known all the same: {fetched}");
    // What was wasted is a small part of what was used by now.
    let ledger = *row.readahead.ledger();
    assert!(ledger.wasted * 2 < ledger.used, "{ledger:?}");
}

#[test]
fn failures_make_the_window_small_and_are_charged_to_nobody() {
    let mut row = Row::of(1000, KIB);
    for n in 1..=40 {
        row.reads(n);
    }
    let before = row.readahead.outstanding();
    let Seen::Follows(wish) =
        (41..).map(|n| row.readahead.read(INodeNo(n), None, 0, row.now)).find(|it| *it != Seen::Enough).unwrap()
    else {
        panic!()
    };
    row.supply(&wish);
    let ordered: Vec<INodeNo> = std::iter::from_fn(|| row.readahead.take_next(|_| true)).map(|(ino, _)| ino).collect();
    for ino in &ordered {
        row.readahead.dropped(*ino, true);
    }

    assert!(row.readahead.outstanding() < before);
    assert_eq!(row.readahead.ledger().wasted, 0);
}

#[test]
fn without_room_nothing_is_ordered_for_a_while() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);
    row.reads(2);
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), 0, row.now) else { panic!() };
    row.supply(&wish);
    let (first, _) = row.readahead.take_next(|_| true).unwrap();

    row.readahead.no_room(first, row.now);

    assert_eq!(row.readahead.outstanding(), 0);
    assert_eq!((4..40).flat_map(|n| row.reads(n)).collect::<Vec<_>>(), NONE);
    row.now += Duration::from_secs(61);
    assert!((40..44).any(|n| !row.reads(n).is_empty()));
}

#[test]
fn a_walk_that_ended_is_forgotten_with_what_it_ordered() {
    let mut row = Row::of(1000, KIB);
    for n in 1..=3 {
        row.reads(n);
    }
    assert_eq!(row.readahead.outstanding(), 16);

    row.now += Duration::from_secs(61);
    row.reads(500);

    assert_eq!(row.readahead.outstanding(), 0);
    assert_eq!(row.readahead.ledger().wasted, 16 * KIB);
    assert!(!row.readahead.expects(INodeNo(4)));
}
