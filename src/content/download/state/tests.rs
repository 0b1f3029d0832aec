//! What a download hands out, and how far it comes.

use super::*;
use crate::content::download::kept::NARROW_WINDOW;
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
