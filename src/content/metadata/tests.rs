//! Learnt metadata, and what a crash leaves of it.

use super::*;
use crate::document::Algorithm;

impl LearntMetadata {
    /// While this is held, updates and commits wait. What is known of `known` was committed.
    pub(in crate::content) fn locked(&self, known: &[Ino]) -> impl Sized {
        while known.iter().any(|ino| self.shared.pending().fresh.contains_key(&ino.0)) {
            std::thread::sleep(COMMIT_AFTER / 50);
        }
        (lock(&self.shared.updates), lock(&self.shared.commits))
    }
}

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
fn a_value_is_decoded_as_encoded_and_never_damaged() {
    for observation in [Observation::default(), full()] {
        let value = encode(&observation, 7).unwrap();
        assert_eq!(decode(&value, 7), Some(observation.clone()));
        assert_eq!(decode(&value, 8), Some(observation));
        for at in 0..value.len() {
            let mut damaged = value.clone();
            damaged[at] ^= 1;
            assert_eq!(decode::<Observation>(&damaged, 7), None, "byte {at}");
            assert_eq!(decode::<Observation>(&value[..at], 7), None, "cut at {at}");
        }
    }
}

#[test]
fn a_value_with_the_name_of_no_object_is_unknown() {
    let object_of = |name: &str| {
        let texts = [None::<&str>; 3];
        let brief = (VERSION, 7_u64, Some(5_u64), Verified::NotYet, None::<Timestamp>);
        let mut value = postcard::to_extend(&(brief, texts, Vec::<Digest>::new(), Some(name)), vec![0; 4]).unwrap();
        let crc = crc32c::crc32c(&value[4..]);
        value[..4].copy_from_slice(&crc.to_le_bytes());
        decode(&value, 7).map(|known: Observation| known.object)
    };
    let key = ObjectKey::inode("s", 7);
    assert_eq!(object_of(key.as_str()), Some(Some(key)));
    for name in ["", "a", "../../x-00", "objects/aa"] {
        assert_eq!(object_of(name), None, "{name}");
    }
}

#[test]
fn an_empty_file_without_digest_leaves_no_digest() {
    let digest = Digest::new(Algorithm::Md5, &[7; 16]).unwrap();
    let empty = Observation { size: Some(0), verified: Verified::Transfer, digests: vec![digest], ..full() };
    let value = encode(&empty, 7).unwrap();
    assert_eq!((decode(&value, 7), decode::<Observation>(&value, 8)), (Some(empty), None));
}

#[test]
fn an_update_is_seen_at_once_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(learnt.get(Ino(2)), None);
    // More than one batch.
    for ino in 0..2500 {
        learnt.update(Ino(ino), |o| o.size = Some(ino));
        assert_eq!(learnt.get(Ino(ino)).unwrap().size, Some(ino));
        assert_eq!(learnt.size(Ino(ino)), Some(ino));
    }
    learnt.update(Ino(7), |o| *o = Observation { size: o.size, ..full() });
    learnt.forget(Ino(8));
    assert_eq!(learnt.get(Ino(8)), None);
    drop(learnt);

    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(learnt.get(Ino(2499)).unwrap().size, Some(2499));
    assert_eq!(learnt.get(Ino(7)), Some(Observation { size: Some(7), ..full() }));
    assert_eq!(learnt.get(Ino(8)), None);
    assert_eq!((learnt.size(Ino(2499)), learnt.size(Ino(8))), (Some(2499), None));
}

#[test]
fn gone_inodes_are_forgotten_and_the_rest_stays() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    for ino in (1..=2500).map(Ino) {
        learnt.update(ino, |o| o.size = Some(ino.0));
    }
    learnt.shared.commit();
    let (mut seen, mut asked) = (0, 0);

    let forgotten = learnt.forget_gone(|known| {
        (seen, asked) = (seen + known.len(), asked + 1);
        Ok::<_, ()>(known.iter().copied().filter(|ino| ino.0 % 2 == 0).collect())
    });

    assert_eq!((forgotten, seen, asked), (Ok(1250), 2500, 3));
    assert_eq!((learnt.size(Ino(1)), learnt.size(Ino(2))), (Some(1), None));
    assert_eq!(learnt.forget_gone(|_| Err("unknown")), Err("unknown"));
}

#[test]
fn an_empty_file_without_digest_is_known_until_the_unmount() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    let (sent, proved) = (Ino(2), Ino(3));
    learnt.update(sent, |o| o.etag = Some("\"e\"".into()));
    learnt.shared.commit();
    for verified in [Verified::NotYet, Verified::Transfer, Verified::Length] {
        learnt.update(sent, |o| (o.size, o.verified) = (Some(0), verified));
        learnt.update(proved, |o| (o.size, o.verified) = (Some(0), Verified::Digest(Algorithm::Md5)));
        learnt.shared.commit();
        assert!(!learnt.shared.pending().fresh.contains_key(&sent.0));
        assert_eq!((learnt.size(sent), learnt.size(proved)), (Some(0), Some(0)));
        assert_eq!(learnt.get(sent).unwrap().etag.as_deref(), Some("\"e\""));
    }
    drop(learnt);

    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!((learnt.size(sent), learnt.size(proved)), (None, Some(0)));
    learnt.update(sent, |o| o.size = Some(0));
    learnt.update(sent, |o| o.size = Some(5));
    assert_eq!(learnt.get(sent).unwrap().size, Some(5));
    learnt.update(sent, |o| o.size = Some(0));
    learnt.forget(sent);
    assert_eq!(learnt.get(sent), None);
}

#[test]
fn versions_for_patches_leave_no_record() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    for resource in 0..2 * MOST_REMEMBERED.get() as u64 {
        learnt.keep_version(resource, ObjectKey::inode("s", resource), resource);
    }
    let newest = 2 * MOST_REMEMBERED.get() as u64 - 1;
    assert_eq!(learnt.version(newest), Some((ObjectKey::inode("s", newest), newest)));
    assert_eq!(learnt.version(0), None);
    drop(learnt);

    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(learnt.forget_gone(|known| Ok::<_, ()>(known.to_vec())), Ok(0));
}

#[test]
fn poison_stays_until_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    learnt.update(Ino(1), |o| o.verified = Verified::Failed);
    learnt.close();
    learnt.update(Ino(1), |o| o.verified = Verified::Length);
    drop(learnt);

    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(learnt.get(Ino(1)).unwrap().verified, Verified::Failed);
    learnt.forget(Ino(1));
    learnt.update(Ino(1), |o| o.verified = Verified::Length);
    assert_eq!(learnt.get(Ino(1)).unwrap().verified, Verified::Length);
}

#[test]
fn no_update_is_lost_between_threads_and_commits() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..250 {
                    learnt.update(Ino(1), |o| o.size = Some(o.size.unwrap_or(0) + 1));
                    learnt.shared.commit();
                }
            });
        }
    });
    assert_eq!(learnt.get(Ino(1)).unwrap().size, Some(1000));
}

#[test]
fn a_damaged_environment_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    learnt.update(Ino(1), |o| o.size = Some(1));
    drop(learnt);
    std::fs::write(folder.path().join("data.mdb"), vec![0xa5; 65536]).unwrap();

    let learnt = LearntMetadata::open(folder.path(), false).unwrap();
    assert_eq!(learnt.get(Ino(1)), None);
    learnt.update(Ino(1), |o| o.size = Some(2));
    drop(learnt);
    assert_eq!(LearntMetadata::open(folder.path(), false).unwrap().get(Ino(1)).unwrap().size, Some(2));
}

#[test]
fn a_reader_does_not_wait_for_updates_and_commits() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = Arc::new(LearntMetadata::open(folder.path(), false).unwrap());
    (1..100).for_each(|ino| learnt.update(Ino(ino), |o| o.size = Some(ino)));
    let committed: Vec<Ino> = (1..100).map(Ino).collect();
    drop(learnt.locked(&committed));
    (100..200).for_each(|ino| learnt.update(Ino(ino), |o| o.size = Some(ino)));
    learnt.update(Ino(7), |o| o.size = Some(77));

    let held = learnt.locked(&[Ino(8)]);
    let (found, is_found) = std::sync::mpsc::channel();
    let asked = Arc::clone(&learnt);
    let of_8 = move || found.send((asked.size(Ino(8)), asked.get(Ino(8)).and_then(|o| o.size)));
    std::thread::spawn(of_8);
    assert_eq!(is_found.recv_timeout(Duration::from_secs(20)), Ok((Some(8), Some(8))));
    drop(held);

    assert_eq!(learnt.size(Ino(7)), Some(77), "what is not committed yet is seen");
}
