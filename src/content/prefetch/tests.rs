//! The machine over a flat row of files: inode n lies at cursor n.

use super::*;

const KIB: u64 = 1 << 10;

const NONE: [u64; 0] = [];

const HERE: Host = Host(0);

const NOBODY: By = By { thread: 0, process: 0 };

struct Row {
    readahead: Readahead<u64>,
    sizes: u64,
    /// Each file has a size of its own, from 2 to 128 KiB, whatever `sizes` is.
    of_own_size: bool,
    files: u64,
    reader: Reader,
    now: Instant,
}

impl Row {
    fn of(files: u64, bytes: u64) -> Row {
        let (readahead, reader, now) = (Readahead::new(64 << 20), Reader::Stranger, Instant::now());
        Row { readahead, sizes: bytes, of_own_size: false, files, reader, now }
    }

    fn size(&self, n: u64) -> u64 {
        if self.of_own_size { Random(n).within(2 * KIB..128 * KIB) } else { self.sizes }
    }

    fn candidates(&self, from: u64, count: usize) -> Vec<Candidate<u64>> {
        let candidate = |n| Candidate { ino: INodeNo(n), host: HERE, bytes: Some(self.size(n)), after: n };
        (from + 1..=self.files).take(count).map(candidate).collect()
    }

    fn supply(&mut self, wish: &Wish<u64>) {
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
        self.readahead.supply(wish, &ordered, expected, front, is_end);
    }

    /// Somebody reads file `n`; answers which files are to be fetched now.
    fn reads(&mut self, n: u64) -> Vec<u64> {
        let bytes = Some(self.size(n));
        match self.readahead.read(INodeNo(n), bytes, NOBODY, self.now) {
            Seen::Enough => {}
            Seen::Follows(wish) => self.supply(&wish),
            Seen::Elsewhere => {
                let wish = self.readahead.begin(n, bytes, self.reader, NOBODY, self.now);
                self.supply(&wish);
            }
        }
        let fetched: Vec<u64> =
            std::iter::from_fn(|| self.readahead.take_next(|_| true)).map(|(ino, _)| ino.0).collect();
        for n in &fetched {
            self.readahead.landed(INodeNo(*n), self.size(*n), self.now);
        }
        fetched
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

/// Reads by another process than the one whose walk it is about.
fn jump(row: &mut Row, jumps: &mut impl Iterator<Item = u64>, times: usize) {
    let other = By { thread: 9, process: 9 };
    for n in jumps.take(times) {
        assert_eq!(row.readahead.read(INodeNo(n), Some(KIB), other, row.now), Seen::Elsewhere);
        let wish = row.readahead.begin(n, Some(KIB), Reader::Stranger, other, row.now);
        row.supply(&wish);
    }
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
    assert_eq!((row.readahead.outstanding(), row.readahead.ledger().wasted), (16, 0), "and stays so");
    (4..=8).for_each(|n| drop(row.reads(n)));
    assert_eq!(row.readahead.ledger().used, 5 * KIB);
    assert!(row.readahead.walks.len() <= 1 + UNKNOWN_OF_ONE);
}

#[test]
fn who_reads_in_an_order_of_chance_has_next_to_nothing_fetched() {
    for seed in 1..=5 {
        let (mut row, mut random) = (Row::of(10_000, 64 * KIB), Random(seed));
        let fetched: usize = (0..1000).map(|_| row.reads(random.within(1..10_001)).len()).sum();
        assert!(fetched <= 16, "{fetched} files, seed {seed}");
    }
}

/// `find -exec cat {} \;` beside a walk of one process: each file is read by another process.
#[test]
fn a_walk_that_goes_from_hand_to_hand_takes_no_more_than_its_turns() {
    let mut row = Row::of(1_000_000, KIB);
    let by = |process: u32| By { thread: process, process };
    for (begin, process) in [(0, 7), (500_000, 8)] {
        let wish = row.readahead.begin(begin + 1, Some(KIB), Reader::AtFirstListed, by(process), row.now);
        row.supply(&wish);
    }
    let (mut next_read, mut of_the_one, mut of_the_other) = (2, 0, 0);
    for number in 0..200 {
        let Some((ino, _)) = row.readahead.take_next(|_| true) else { break };
        row.readahead.landed(ino, KIB, row.now);
        match ino.0 > 500_000 {
            true => of_the_one += 1,
            false => of_the_other += 1,
        }
        let reads = [(next_read, 100 + number), (500_000 + next_read, 8)];
        next_read += 1;
        for (n, process) in reads {
            if let Seen::Follows(wish) = row.readahead.read(INodeNo(n), Some(KIB), by(process), row.now) {
                row.supply(&wish);
            }
        }
    }
    assert!(of_the_one >= 60 && of_the_other >= 60, "{of_the_one} and {of_the_other}");
}

#[test]
fn what_is_kept_of_processes_is_bound() {
    let mut turns = Turns::default();
    for process in 0..10_000 {
        let due = turns.hand_on(process, process + 1, 5);
        turns.serve(process + 1, due, 1);
        turns.forget_but(|known| known == process + 1);
    }
    assert_eq!(turns.due(10_000, 0).0, 10_000, "it was handed on with what it had cost");
    assert!(format!("{turns:?}").matches("Share").count() <= 257);
}

/// Promise: processes share what is fetched ahead, however many walks one of them has.
#[test]
fn a_process_with_one_walk_has_as_much_fetched_as_one_with_many() {
    let mut row = Row::of(1_000_000, KIB);
    let begins: Vec<(u64, u32)> = (0..8).map(|walk| (10_000 * walk, 7)).chain([(500_000, 8)]).collect();
    for (begin, process) in &begins {
        let by = By { thread: *process, process: *process };
        let wish = row.readahead.begin(begin + 1, Some(KIB), Reader::AtFirstListed, by, row.now);
        row.supply(&wish);
    }

    let next = std::iter::from_fn(|| row.readahead.take_next(|_| true));
    let of_the_one: Vec<bool> = next.take(8).map(|(ino, _)| ino.0 > 500_000).collect();

    assert_eq!(of_the_one.iter().filter(|is_its| **is_its).count(), 4, "{of_the_one:?}");
    let rest: Vec<u64> = std::iter::from_fn(|| row.readahead.take_next(|_| true)).map(|(ino, _)| ino.0).collect();
    assert_eq!(rest.len(), 9 * 4 - 8);
    let first_of_each = rest[..4].iter().map(|ino| ino / 10_000).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(first_of_each.len(), 4, "the walks of the other take turns: {rest:?}");
}

#[test]
fn a_walk_that_is_taken_up_by_another_tells_so() {
    let mut row = Row::of(1000, KIB);
    row.reads(1);

    let hands = [(2, 0, Hand::Same), (3, 8, Hand::Other), (4, 9, Hand::Next), (5, 10, Hand::Next), (6, 10, Hand::Same)];
    for (n, thread, hand) in hands {
        let Seen::Follows(wish) = row.readahead.read(INodeNo(n), Some(KIB), By { thread, process: 0 }, row.now) else {
            panic!()
        };
        assert_eq!(wish.hand, hand, "file {n}");
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
        let Seen::Follows(wish) = row.readahead.read(INodeNo(n), Some(KIB), NOBODY, row.now) else { panic!() };
        row.supply(&wish);
    }

    let turns: Vec<bool> =
        std::iter::from_fn(|| row.readahead.take_next(|_| true)).take(8).map(|(ino, _)| ino.0 > 5000).collect();

    assert!(turns.windows(2).all(|pair| pair[0] != pair[1]), "{turns:?}");
}

#[test]
fn a_walk_through_large_files_leaves_one_through_small_files_its_part() {
    const LARGE: u64 = 1 << 20;
    let mut row = Row { readahead: Readahead::new(8 << 20), ..Row::of(10_000, LARGE) };
    // The walk through large files is long known and has fetched as much as it may.
    (1..=40).for_each(|n| drop(row.reads(n)));
    assert!((2..=4).contains(&row.readahead.outstanding()), "{}", row.readahead.outstanding());
    row.sizes = 16 * KIB;
    let small: usize = (5001..=5003).map(|n| row.reads(n).len()).sum();
    assert!(small >= 16, "the limit has room for who comes later: {small}");

    // Both have much to fetch, and one request is sent at a time.
    let mut row = Row::of(10_000, LARGE);
    let mut fetching = Vec::new();
    let walks = [(1, LARGE), (5001, 16 * KIB)];
    for (begin, bytes) in walks {
        row.sizes = bytes;
        row.reads(begin);
        row.reads(begin + 1);
    }
    for (begin, bytes) in walks {
        row.sizes = bytes;
        let Seen::Follows(wish) = row.readahead.read(INodeNo(begin + 2), Some(bytes), NOBODY, row.now) else {
            panic!()
        };
        row.supply(&wish);
    }
    while let Some((ino, _)) = row.readahead.take_next(|_| true) {
        fetching.push(ino.0);
    }

    let large: Vec<usize> = (0..fetching.len()).filter(|place| fetching[*place] < 5000).collect();
    assert!(large.len() >= 2 && large[1] - large[0] >= 10, "byte for byte rather than file for file: {fetching:?}");
}

#[test]
fn a_host_that_may_not_be_asked_holds_up_nobody_elses_files() {
    const SLOW: Host = Host(1);
    let mut row = Row::of(1000, KIB);
    row.reads(1);
    row.reads(2);
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), NOBODY, row.now) else { panic!() };
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
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), NOBODY, row.now) else { panic!() };
    row.supply(&wish);

    assert_eq!(row.readahead.take_next(|_| true), Some((INodeNo(4), HERE)));
    assert!(matches!(row.readahead.read(INodeNo(5), Some(KIB), NOBODY, row.now), Seen::Enough | Seen::Follows(_)));
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

    let fetched: Vec<usize> = (500_001..500_600).map(|n| row.reads(n).len()).collect();

    assert_eq!(fetched[..15].iter().sum::<usize>(), 0, "three in order are not enough any more");
    assert!(fetched[..64].iter().sum::<usize>() < 80, "nor is much fetched beyond them: {fetched:?}");
    assert!(fetched.iter().sum::<usize>() > 400, "a walk that goes on is known all the same: {fetched:?}");
    let ledger = *row.readahead.ledger();
    assert!(ledger.wasted * 10 < ledger.used, "{ledger:?}");
    assert!(row.readahead.outstanding() >= 64, "and has its distance again: {}", row.readahead.outstanding());
}

/// Readers go on by turns, three at a time, each to its end or to where it leaves; every file has a size of its own.
#[test]
fn in_mixed_work_less_than_a_tenth_of_what_is_used_is_wasted_and_those_who_finish_are_fetched_for() {
    const APART: u64 = 10_000;
    for seed in 1..=4 {
        let mut random = Random(seed);
        let mut readers: Vec<(u64, bool)> =
            (0..50).flat_map(|_| [(random.within(50..400), true), (random.within(3..60), false)]).collect();
        readers.sort_by_key(|(files, _)| files.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut row = Row { of_own_size: true, ..Row::of(0, 0) };
        let (mut under_way, mut last, mut bytes_read) = (Vec::new(), 0, 0);
        while !readers.is_empty() || !under_way.is_empty() {
            while under_way.len() < 3
                && let Some((files, is_finished)) = readers.pop()
            {
                last += APART;
                let reader = [Reader::Stranger, Reader::HasListed, Reader::AtFirstListed][random.within(0..3) as usize];
                let end = last + if is_finished { files } else { APART / 2 };
                under_way.push((last + 1, last + files, end, reader));
            }
            let place = random.within(0..under_way.len() as u64) as usize;
            let (next, until, end, reader) = under_way[place];
            (row.reader, row.files) = (reader, end);
            row.reads(next);
            bytes_read += row.size(next);
            row.now += Duration::from_millis(10);
            under_way[place].0 += 1;
            if next == until {
                row.now += Duration::from_millis(random.within(0..1000));
                under_way.remove(place);
            }
        }
        // All walks have ended.
        row.now += 2 * ENDED;
        row.reads(last + APART);

        let ledger = *row.readahead.ledger();
        assert!(ledger.wasted > 0 && ledger.wasted * 10 < ledger.used, "seed {seed}: {ledger:?}");
        assert!(ledger.used * 10 > bytes_read * 8, "seed {seed}: {bytes_read} bytes were read, {ledger:?}");
    }
}

#[test]
fn failures_make_the_window_small_and_are_charged_to_nobody() {
    let mut row = Row::of(1000, KIB);
    for n in 1..=40 {
        row.reads(n);
    }
    let before = row.readahead.outstanding();
    let Seen::Follows(wish) =
        (41..).map(|n| row.readahead.read(INodeNo(n), None, NOBODY, row.now)).find(|it| *it != Seen::Enough).unwrap()
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
    let Seen::Follows(wish) = row.readahead.read(INodeNo(3), Some(KIB), NOBODY, row.now) else { panic!() };
    row.supply(&wish);
    let (first, _) = row.readahead.take_next(|_| true).unwrap();

    row.readahead.no_room(first, row.now);

    assert_eq!(row.readahead.outstanding(), 0);
    assert_eq!((4..40).flat_map(|n| row.reads(n)).collect::<Vec<_>>(), NONE);
    row.now += FIRST_REST;
    assert!((40..44).any(|n| !row.reads(n).is_empty()));
}

#[test]
fn where_there_is_no_room_again_and_again_nothing_is_ordered_for_ever_longer() {
    let mut row = Row::of(1000, KIB);
    let mut rests = Vec::new();
    for n in 0..8 {
        row.readahead.no_room(INodeNo(n), row.now);
        row.readahead.no_room(INodeNo(n + 1), row.now);
        let until = row.readahead.resting.unwrap();
        rests.push((until - row.now).as_secs());
        row.now = until;
    }
    assert_eq!(rests, [2, 4, 8, 16, 32, 60, 60, 60]);

    row.readahead.no_room(INodeNo(1), row.now);
    row.readahead.landed(INodeNo(2), KIB, row.now);
    row.now = row.readahead.resting.unwrap();
    row.readahead.no_room(INodeNo(3), row.now);
    assert_eq!(row.readahead.resting.unwrap() - row.now, LONGEST_REST, "that one was under way before");
    row.now = row.readahead.resting.unwrap();
    row.readahead.landed(INodeNo(4), KIB, row.now);
    row.readahead.no_room(INodeNo(5), row.now);
    assert_eq!(row.readahead.resting.unwrap() - row.now, FIRST_REST);
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

/// Otherwise warm readers would take its lock, or go past what waits for them.
#[test]
fn the_filter_has_what_is_fetched_ahead_or_expected_and_nothing_else() {
    let mut row = Row::of(4000, 4 * KIB);
    let mut random = Random(11);
    let mut at = 1;
    for step in 0..3000u64 {
        // Walks that are left and taken up, files that fail or have no room, and jumps.
        at = if random.within(0..40) == 0 { random.within(1..4000) } else { at % 4000 + 1 };
        row.now += Duration::from_millis(random.within(0..400));
        row.reads(at);
        if step % 100 == 50 {
            row.readahead.dropped(INodeNo(at + 3), true);
        }
        if step % 1000 == 500 {
            row.readahead.no_room(INodeNo(at + 5), row.now);
        }
        if step % 50 == 0 {
            let expected = (1..4000).map(INodeNo).filter(|ino| row.readahead.expects(*ino));
            assert!(expected.clone().count() > 0 || step == 0);
            assert!(expected.into_iter().all(|ino| row.readahead.looked_out_for().may_hold(ino)), "step {step}");
        }
    }

    row.now += 2 * ENDED;
    let wish = row.readahead.begin(4000, None, Reader::Stranger, NOBODY, row.now);
    row.readahead.supply(&wish, &[], Vec::new(), 4000, true);

    assert!(!(0..4100).any(|ino| row.readahead.looked_out_for().may_hold(INodeNo(ino))));
}
