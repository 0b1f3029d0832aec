//! What a download hands out, and how far it comes.

use super::*;
use crate::content::download::kept::{NARROW_WINDOW, RecentBlocks};
use crate::content::store::{EvictionPolicy, ObjectKey, Store};
use crate::document::Uri;

const LENGTH: u64 = 2 * LARGE;

const BOUNDS: Bounds = Bounds { unread: 3 << 20, unsized_body: 7 << 20 };

fn state() -> DownloadState {
    let mut state = DownloadState::new(Fixity::Stream, BOUNDS, Path::new("/nowhere").into());
    state.bind(Served::default(), Bonds::default(), false);
    state
}

fn origin() -> Origin {
    let place = Uri::parse("http://example.org/a").unwrap();
    Origin { place, etag: "\"v1\"".into(), first: 0, total: LENGTH, length: LENGTH, shared: None }
}

/// What is here of an earlier download, four blocks, is readable before a byte of it is hashed.
fn resumed() -> (DownloadState, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), None, 0).unwrap();
    let partial = store.begin(&ObjectKey::inode("a", 1), Some(LENGTH), EvictionPolicy::Any).unwrap();
    partial.append(&vec![7; 4 * BLOCK as usize], EvictionPolicy::Any).unwrap();
    let mut state = state();
    state.resume(Some(LENGTH), &origin().version(), Kept::Store(Arc::new(partial)), 4 * BLOCK);
    (state, folder)
}

#[test]
fn kept_bytes_are_handed_out_before_they_are_hashed() {
    let (mut state, _folder) = resumed();
    let Look::Here(here) = state.look(5, BLOCK as u32, true, None) else { panic!("they are here") };
    assert_eq!((here.blocks.clone(), state.attempt.digests.end()), (0..2 * BLOCK, 0));
    assert!(state.hand_out(here.attempt, &here.blocks, &[1, 2]));

    state.digest(&[1, 2, 3, 4]);
    assert!(state.agrees());
}

#[test]
fn hashing_finds_what_was_handed_out_and_differs() {
    let (mut state, _folder) = resumed();
    assert!(state.hand_out(state.attempt(), &(0..BLOCK), &[1]));
    state.digest(&[2]);
    assert!(!state.hand_out(state.attempt(), &(BLOCK..2 * BLOCK), &[5]), "no verdict can be good for both");
    assert!(!state.agrees());
}

#[test]
fn a_random_read_never_differs_from_the_stream() {
    let (mut state, _folder) = resumed();
    state.announce(Some(LENGTH), false, Some(origin()));
    let attempt = state.attempt();
    let block = |number: u64| number * BLOCK..(number + 1) * BLOCK;
    assert!(!state.hand_out_random(attempt, &block(1), &[9]), "it is here and not hashed yet");
    assert!(state.hand_out_random(attempt, &block(4), &[9]));
    state.digest(&[1, 2, 3, 4]);
    assert!(!state.hand_out_random(attempt, &block(1), &[9]) && state.hand_out_random(attempt, &block(1), &[2]));
    assert!(!state.hand_out_random(attempt + 1, &block(5), &[9]), "of another attempt");

    state.digest(&[8]);
    assert!(!state.agrees());
}

#[test]
fn what_comes_again_for_a_reader_is_progress() {
    let mut state = state();
    let mut is_progress = |change: fn(&mut DownloadState)| {
        let before = state.moved();
        std::thread::sleep(std::time::Duration::from_millis(2));
        change(&mut state);
        state.moved() > before
    };
    assert!(is_progress(|state| state.note_received(1000)));
    assert!(!is_progress(|state| {
        state.restart(false);
        state.note_received(500);
    }));
    assert!(is_progress(|state| {
        state.restart(false);
        state.count_again();
    }));
    assert!(is_progress(|state| state.note_received(500)));
    assert!(!is_progress(|state| state.note_received(500 + STEP - 1)));
}

#[test]
fn a_request_without_an_answer_is_borne_longer() {
    let stall = Duration::from_secs(10);
    let mut state = state();
    assert_eq!(state.patience(stall), Duration::from_secs(15));
    state.announce(None, false, None);
    assert_eq!(state.patience(stall), stall);
}

/// The disk became full under a body that came in a coding: its bytes were withheld, and stay so until they are dropped.
#[test]
fn bytes_on_the_disk_stay_withheld_when_memory_is_used() {
    let (mut state, _folder) = resumed();
    state.announce(Some(LENGTH), true, None);
    assert!(matches!(state.look(0, 10, true, None), Look::Wait(_)));
    assert!(state.use_memory().is_some());
    assert!(matches!(state.look(0, 10, true, None), Look::Wait(_)));
}

#[test]
fn the_stream_comes_as_far_as_it_is_read() {
    let mut state = state();
    state.await_range((0, 1 << 20));
    assert_eq!(state.limit(), u64::MAX, "of an unknown length");
    state.announce(Some(LENGTH), false, Some(origin()));
    assert_eq!(state.limit(), 0);
    assert!(matches!(state.look(0, 1 << 20, true, None), Look::Wait(_)));
    assert_eq!(state.limit(), (1 << 20) + 4 * (1 << 20));
    assert!(matches!(state.look(LENGTH - 5, 5, true, None), Look::Jump(_)));
    assert_eq!(state.limit(), (1 << 20) + AHEAD.start, "a jump lowers it");
    state.await_whole();
    assert_eq!(state.limit(), u64::MAX);
}

/// A reader for which a request of its own failed has the stream come to it, as long as it waits.
#[test]
fn a_reader_that_leaves_lowers_the_limit() {
    let (mut state, _folder) = resumed();
    state.announce(Some(LENGTH), false, Some(origin()));
    let far = (LENGTH - 5, LENGTH);
    state.await_range(far);
    assert!(matches!(state.look(far.0, 5, false, None), Look::Wait(_)));
    assert!(state.limit() >= LENGTH);

    state.leave_range(far);

    assert_eq!(state.limit(), 0);
    assert!(matches!(state.look(0, BLOCK as u32, true, None), Look::Here(_)));
    assert_eq!(state.limit(), BLOCK + AHEAD.start);
}

#[test]
fn what_no_reader_waits_for_goes_on_for_a_while() {
    let mut state = state();
    assert_eq!(state.limit(), BOUNDS.unsized_body, "of an unknown length");
    state.await_size();
    assert_eq!(state.limit(), u64::MAX);
    state.leave_size();
    assert_eq!(state.limit(), BOUNDS.unsized_body);
    assert!(state.is_left(Duration::ZERO) && !state.is_left(Duration::from_secs(9)));
    state.announce(Some(LENGTH), true, None);
    assert_eq!(state.limit(), BOUNDS.unread, "withheld");
    state.await_range((5, 6));
    assert_eq!(state.limit(), u64::MAX);
    state.leave_range((5, 6));
    assert_eq!(state.limit(), BOUNDS.unread);
    state.add_prefetch();
    assert_eq!(state.limit(), u64::MAX);
    assert!(!state.is_left(Duration::ZERO));
}

#[test]
fn a_window_waits_for_the_reader_of_its_first_bytes() {
    for window in [WINDOW, NARROW_WINDOW] {
        let mut state = state();
        state.set_window(window);
        state.use_memory();
        state.announce(Some(LENGTH), false, None);
        assert_eq!(state.limit(), window / 2);
        state.await_range((0, 1 << 20));
        state.await_range((20 << 20, 21 << 20));
        assert!(matches!(state.look(20 << 20, 1 << 20, true, None), Look::Wait(_)));
        assert_eq!(state.limit(), window);
        state.leave_range((0, 1 << 20));
        assert_eq!(state.limit(), (21 << 20) + window / 2);
    }
}

/// A state to which `served` and what else binds applies, of an attempt of which four blocks are here.
fn bound(served: Served, bonds: Bonds, is_doubted: bool) -> (DownloadState, tempfile::TempDir) {
    let (mut arrived, folder) = resumed();
    let mut state = state();
    state.bind(served, bonds, is_doubted);
    state.announce(Some(LENGTH), false, Some(origin()));
    let kept = arrived.attempt.kept.take().unwrap();
    state.advance(kept, 4 * BLOCK, &[1, 2, 3, 4]);
    (state, folder)
}

/// Block 20 went out, of this version.
fn served(version: Option<Version>) -> Served {
    let mut blocks = BlockDigests::default();
    assert!(blocks.record(20, &[7], Path::new("/nowhere")));
    Served { blocks: Arc::new(Mutex::new(blocks)), version, ..Served::default() }
}

fn is_withheld(state: &mut DownloadState) -> bool {
    matches!(state.look(0, BLOCK as u32, false, None), Look::Wait(_))
}

#[test]
fn the_version_that_went_out_is_handed_out_unless_doubted() {
    let version = || Some(origin().version());
    for (is_doubted, version, is_withheld_then) in
        [(false, version(), false), (true, version(), true), (false, None, true), (true, None, true)]
    {
        let (mut state, _folder) = bound(served(version.clone()), Bonds::default(), is_doubted);
        assert_eq!(is_withheld(&mut state), is_withheld_then, "{is_doubted} {version:?}");
    }
}

#[test]
fn a_doubted_resource_that_is_resumed_or_in_memory_waits() {
    let (_, folder) = resumed();
    let store = Store::open(folder.path(), None, 0).unwrap();
    for is_doubted in [false, true] {
        let partial = store.begin(&ObjectKey::inode("a", 2), Some(LENGTH), EvictionPolicy::Any).unwrap();
        partial.append(&vec![7; 4 * BLOCK as usize], EvictionPolicy::Any).unwrap();
        let mut resumed = state();
        resumed.bind(served(Some(origin().version())), Bonds::default(), is_doubted);
        resumed.resume(Some(LENGTH), &origin().version(), Kept::Store(Arc::new(partial)), 4 * BLOCK);
        assert_eq!(is_withheld(&mut resumed), is_doubted);

        let mut in_memory = state();
        in_memory.bind(Served::default(), Bonds { is_vouched: true, ..Bonds::default() }, is_doubted);
        in_memory.use_memory();
        in_memory.announce(Some(LENGTH), false, Some(origin()));
        let mut recent = RecentBlocks::new(Some(LENGTH), NARROW_WINDOW);
        recent.push(&vec![7; 4 * BLOCK as usize].into());
        in_memory.advance(Kept::Memory(recent), 4 * BLOCK, &[1, 2, 3, 4]);
        assert_eq!(is_withheld(&mut in_memory), is_doubted);
    }
}

/// Nothing of a withheld attempt went out: its version is not that of what did.
#[test]
fn a_withheld_attempt_binds_no_later_one() {
    let (mut state, _folder) = bound(served(None), Bonds::default(), false);
    assert!(is_withheld(&mut state));
    let kept = state.attempt.kept.clone().unwrap();
    state.restart(false);
    state.announce(Some(LENGTH), false, Some(origin()));
    state.advance(kept, 4 * BLOCK, &[1, 2, 3, 4]);
    assert!(is_withheld(&mut state));
}

#[test]
fn a_body_of_another_size_than_shown_is_withheld() {
    let (mut state, _folder) = resumed();
    assert!(!is_withheld(&mut state));
    state.show(LENGTH);
    assert!(!is_withheld(&mut state));
    state.show(LENGTH + 1);
    assert!(is_withheld(&mut state), "shown since");

    let (mut arrived, _folder) = resumed();
    let kept = arrived.attempt.kept.take().unwrap();
    let mut next = self::state();
    next.show(LENGTH + 1);
    next.resume(Some(LENGTH), &origin().version(), kept, 4 * BLOCK);
    assert!(is_withheld(&mut next), "shown before");
    next.show(LENGTH);
    next.announce(Some(LENGTH), false, Some(origin()));
    assert!(is_withheld(&mut next), "until the verdict");
}

#[test]
fn a_contradicted_attempt_hands_out_no_new_block() {
    let (mut state, _folder) = bound(Served::default(), Bonds::default(), false);
    let block = |number: u64| number * BLOCK..(number + 1) * BLOCK;
    let attempt = state.attempt();
    assert!(state.hand_out_random(attempt, &block(4), &[9]) && state.hand_out_random(attempt, &block(9), &[6]));

    state.digest(&[8]);

    assert!(!state.hand_out_random(attempt, &block(7), &[5]), "no verdict can be good for it");
    assert!(state.hand_out_random(attempt, &block(9), &[6]), "it is out");
}

#[test]
fn a_block_of_a_finished_attempt_is_not_handed_out() {
    let (mut state, _folder) = resumed();
    let attempt = state.attempt();
    assert!(state.hand_out(attempt, &(0..BLOCK), &[1]));
    assert!(!state.hand_out(attempt + 1, &(BLOCK..2 * BLOCK), &[2]), "of another");
    let uri = Uri::parse("http://example.org/a").unwrap();

    state.end(Outcome::Failed(crate::content::ContentError::Stalled { uri }));

    assert!(!state.hand_out(attempt, &(BLOCK..2 * BLOCK), &[2]) && !state.hand_out(attempt, &(0..BLOCK), &[1]));
}

#[test]
fn the_end_is_closed_to_jumps_from_the_middle_on() {
    let (mut state, _folder) = bound(Served::default(), Bonds::default(), false);
    let (attempt, end) = (state.attempt(), LENGTH - BLOCK..LENGTH);
    let jumps = |state: &mut DownloadState, at: u64| matches!(state.look(at, 5, true, None), Look::Jump(_));
    state.note_received(LENGTH / 2 - 1);
    assert!(jumps(&mut state, LENGTH - 5) && state.hand_out_random(attempt, &end, &[1]));

    state.note_received(LENGTH / 2);

    assert!(!jumps(&mut state, LENGTH - 5) && !state.hand_out_random(attempt, &end, &[1]));
    assert!(jumps(&mut state, LENGTH - 3 * BLOCK), "before it");
}
