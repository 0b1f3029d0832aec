//! What was observed, and what a crash leaves of it.

use super::*;

fn full() -> Observation {
    let digest = |algorithm: Algorithm| Digest::new(algorithm, &vec![0x5a; algorithm.digest_length()]).unwrap();
    Observation {
        size: Some(u64::MAX),
        etag: Some("W/\"é\"".into()),
        last_modified: Some("".into()),
        media_type: Some("text/plain".into()),
        digests: vec![digest(Algorithm::Sha512), digest(Algorithm::Md5)],
        object: Some(ObjectKey::inode("s", 7)),
        verified: Verified::Digest(Algorithm::Sha512),
        validated_at: Some(Timestamp { seconds: -1, nanos: 999_999_999 }),
    }
}

#[test]
fn a_value_comes_back_as_written_and_never_damaged() {
    for observation in [Observation::default(), full()] {
        let value = encode(&observation);
        assert_eq!(decode(&value), Some(observation));
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None, "byte {at}");
            assert_eq!(decode(&value[..at]), None, "cut at {at}");
        }
    }
}

#[test]
fn what_is_observed_is_seen_at_once_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(observed.get(INodeNo(2)), None);
    // More than one batch.
    for ino in 0..2500 {
        observed.update(INodeNo(ino), |o| o.size = Some(ino));
        assert_eq!(observed.get(INodeNo(ino)).unwrap().size, Some(ino));
        assert_eq!(observed.size(INodeNo(ino)), Some(ino));
    }
    observed.update(INodeNo(7), |o| *o = Observation { size: o.size, ..full() });
    observed.forget(INodeNo(8));
    assert_eq!(observed.get(INodeNo(8)), None);
    drop(observed);

    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(observed.get(INodeNo(2499)).unwrap().size, Some(2499));
    assert_eq!(observed.get(INodeNo(7)), Some(Observation { size: Some(7), ..full() }));
    assert_eq!(observed.get(INodeNo(8)), None);
    assert_eq!((observed.size(INodeNo(2499)), observed.size(INodeNo(8))), (Some(2499), None));
}

#[test]
fn what_is_gone_is_forgotten_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    let resource = INodeNo(OF_RESOURCES | 2);
    for ino in (1..=2500).map(INodeNo).chain([resource]) {
        observed.update(ino, |o| o.size = Some(ino.0));
    }
    observed.shared.commit();
    let (mut seen, mut asked) = (0, 0);

    let forgotten = observed.forget_gone(|known| {
        (seen, asked) = (seen + known.len(), asked + 1);
        Ok::<_, ()>(known.iter().copied().filter(|ino| ino.0 % 2 == 0).collect())
    });

    assert_eq!((forgotten, seen, asked), (Ok(1250), 2500, 3));
    assert_eq!((observed.size(INodeNo(1)), observed.size(INodeNo(2))), (Some(1), None));
    assert_eq!(observed.size(resource), Some(resource.0));
    assert_eq!(observed.forget_gone(|_| Err("no telling")), Err("no telling"));
}

#[test]
fn an_empty_file_without_digest_is_known_until_the_end_of_the_mount() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    let (sent, proved) = (INodeNo(2), INodeNo(3));
    observed.update(sent, |o| o.etag = Some("\"e\"".into()));
    observed.shared.commit();
    for verified in [Verified::NotYet, Verified::Transfer, Verified::Length] {
        observed.update(sent, |o| (o.size, o.verified) = (Some(0), verified));
        observed.update(proved, |o| (o.size, o.verified) = (Some(0), Verified::Digest(Algorithm::Md5)));
        observed.shared.commit();
        assert_eq!((observed.size(sent), observed.size(proved)), (Some(0), Some(0)));
        assert_eq!(observed.get(sent).unwrap().etag.as_deref(), Some("\"e\""));
    }
    drop(observed);

    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!((observed.size(sent), observed.size(proved)), (None, Some(0)));
    observed.update(sent, |o| o.size = Some(0));
    observed.update(sent, |o| o.size = Some(5));
    assert_eq!(observed.get(sent).unwrap().size, Some(5));
    observed.update(sent, |o| o.size = Some(0));
    observed.forget(sent);
    assert_eq!(observed.get(sent), None);
}

#[test]
fn versions_whose_object_is_gone_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    let version = |number: u64| INodeNo(OF_RESOURCES | number);
    for number in 0..2500 {
        observed.update(version(number), |o| {
            (o.size, o.object) = (Some(1), Some(ObjectKey::inode("s", number)));
        });
    }
    observed.update(INodeNo(1), |o| o.size = Some(1));
    observed.shared.commit();
    let kept = ObjectKey::inode("s", 7);

    assert_eq!(observed.forget_versions(|object| *object == kept), 2499);
    assert_eq!(observed.forget_versions(|object| *object == kept), 0);
    assert_eq!((observed.size(version(7)), observed.size(version(8))), (Some(1), None));
    assert_eq!(observed.size(INodeNo(1)), Some(1));
}

#[test]
fn poison_stays_until_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    observed.update(INodeNo(1), |o| o.verified = Verified::Failed);
    observed.close();
    observed.update(INodeNo(1), |o| o.verified = Verified::Length);
    drop(observed);

    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(observed.get(INodeNo(1)).unwrap().verified, Verified::Failed);
    observed.forget(INodeNo(1));
    observed.update(INodeNo(1), |o| o.verified = Verified::Length);
    assert_eq!(observed.get(INodeNo(1)).unwrap().verified, Verified::Length);
}

#[test]
fn no_update_is_lost_between_threads_and_commits() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    observed.update(INodeNo(1), |o| o.size = Some(o.size.unwrap_or(0) + 1));
                    observed.shared.commit();
                }
            });
        }
    });
    assert_eq!(observed.get(INodeNo(1)).unwrap().size, Some(1000));
}

#[test]
fn a_damaged_environment_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    observed.update(INodeNo(1), |o| o.size = Some(1));
    drop(observed);
    std::fs::write(folder.path().join("data.mdb"), vec![0xa5; 65536]).unwrap();

    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(observed.get(INodeNo(1)), None);
    observed.update(INodeNo(1), |o| o.size = Some(2));
    drop(observed);
    assert_eq!(LearntMetadata::open(folder.path(), false).unwrap().get(INodeNo(1)).unwrap().size, Some(2));
}

#[test]
fn who_asks_for_what_was_committed_does_not_wait_for_who_learns_something() {
    let folder = tempfile::tempdir().unwrap();
    let observed = Arc::new(LearntMetadata::open(folder.path(), false).unwrap());
    (1..100).for_each(|ino| observed.update(INodeNo(ino), |o| o.size = Some(ino)));
    let committed: Vec<INodeNo> = (1..100).map(INodeNo).collect();
    drop(observed.locked(&committed));
    (100..200).for_each(|ino| observed.update(INodeNo(ino), |o| o.size = Some(ino)));
    observed.update(INodeNo(7), |o| o.size = Some(77));

    let held = observed.locked(&[INodeNo(8)]);
    let (found, is_found) = std::sync::mpsc::channel();
    let asked = Arc::clone(&observed);
    let of_8 = move || found.send((asked.size(INodeNo(8)), asked.get(INodeNo(8)).and_then(|o| o.size)));
    std::thread::spawn(of_8);
    assert_eq!(is_found.recv_timeout(Duration::from_secs(20)), Ok((Some(8), Some(8))));
    drop(held);

    assert_eq!(observed.size(INodeNo(7)), Some(77), "what is not committed yet is seen");
}

/// Otherwise readers would take the lock for ever, or look past what is not committed.
#[test]
fn the_filter_has_what_is_pending_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    let held_by_filter = || (0..3000).filter(|ino| observed.shared.overlaid.may_hold(INodeNo(*ino))).count();
    for round in 0..3 {
        (0..2500).for_each(|ino| observed.update(INodeNo(ino), |o| o.size = Some(ino + round)));
        (0..10).for_each(|ino| observed.forget(INodeNo(ino)));
        for ino in observed.shared.pending().fresh.keys() {
            assert!(observed.shared.overlaid.may_hold(INodeNo(*ino)));
        }
    }
    observed.close();
    assert_eq!(held_by_filter(), 0);

    observed.update(INodeNo(7), |o| o.size = Some(1));
    assert!(held_by_filter() >= 1 && observed.size(INodeNo(7)) == Some(1));
}

#[test]
fn the_filter_follows_what_cannot_be_committed_and_what_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let observed = LearntMetadata::open(folder.path(), false).unwrap();
    observed.close();
    let shared = &observed.shared;
    let known = |size, verified| Some(Observation { size: Some(size), verified, ..Observation::default() });
    let overlay = |inodes: std::ops::Range<u64>| -> Overlay {
        let verified = |ino| if ino % 2 == 0 { Verified::Failed } else { Verified::Length };
        inodes
            .map(|ino| (ino, known(ino, verified(ino))))
            .inspect(|(ino, _)| shared.overlaid.add(INodeNo(*ino)))
            .collect()
    };
    observed.update(INodeNo(5), |o| o.size = Some(55));

    shared.take_back(&mut shared.pending(), overlay(0..10));
    assert_eq!(
        (observed.size(INodeNo(5)), observed.size(INodeNo(7))),
        (Some(55), Some(7)),
        "what was learnt anew stays"
    );

    let many = 64 * COMMIT_AT as u64 + 1;
    shared.take_back(&mut shared.pending(), overlay(0..many));
    assert_eq!(
        (observed.size(INodeNo(8)), observed.size(INodeNo(9))),
        (Some(8), None),
        "what can be learnt again is let go"
    );
    shared.commit();
    assert!(!(0..many).any(|ino| shared.overlaid.may_hold(INodeNo(ino))), "each was taken out as often as put in");
}
