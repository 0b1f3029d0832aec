use super::*;
use tokio::sync::watch;

const SECOND: Duration = Duration::from_secs(1);

fn uri(number: u32) -> Uri {
    Uri::parse(&format!("http://example.org/{number}")).unwrap()
}

fn reader(process: u32) -> Priority {
    Priority::Reader(Requester(process))
}

fn prefetch(process: u32) -> Priority {
    Priority::Prefetch(Requester(process), watch::channel(None).1)
}

/// All that is granted now.
fn granted(limiter: &mut Limiter<u32>, now: Instant) -> Vec<(Grant, u32)> {
    std::iter::from_fn(|| match limiter.next(now) {
        NextGrant::Grant(grant, item) => Some((grant, item)),
        NextGrant::At(_) | NextGrant::Idle => None,
    })
    .collect()
}

fn items(limiter: &mut Limiter<u32>, now: Instant) -> Vec<u32> {
    granted(limiter, now).into_iter().map(|(_, item)| item).collect()
}

/// Promise: a reader never waits behind a prefetch.
#[test]
fn a_reader_comes_before_prefetches_and_background_work() {
    let (mut limiter, now) = (Limiter::new(None, 1), Instant::now());
    limiter.submit(&reader(1), false, 0);
    assert_eq!(granted(&mut limiter, now), [(Grant::Reader, 0)]);
    limiter.submit(&Priority::background(), false, 30);
    limiter.submit(&prefetch(1), false, 20);
    limiter.submit(&prefetch(2), false, 21);
    limiter.submit(&reader(2), false, 10);

    let mut last = Grant::Reader;
    for expected in [10, 20, 21, 30] {
        assert!(items(&mut limiter, now).is_empty());
        limiter.release(last);
        let next = granted(&mut limiter, now);
        assert_eq!(next.iter().map(|(_, item)| *item).collect::<Vec<_>>(), [expected]);
        last = next[0].0;
    }
}

#[test]
fn the_last_permits_are_left_to_readers() {
    let (mut limiter, now) = (Limiter::new(None, 16), Instant::now());
    for item in 0..40 {
        limiter.submit(&prefetch(item % 3), false, item);
    }
    assert_eq!(items(&mut limiter, now).len(), 15);
    limiter.submit(&reader(9), false, 99);
    assert_eq!(items(&mut limiter, now), [99]);
    limiter.release(Grant::Reader);
    assert!(items(&mut limiter, now).is_empty(), "it stays theirs");
    limiter.release(Grant::Unread);
    assert_eq!(items(&mut limiter, now).len(), 1);
}

/// A host becomes slow or refuses while prefetches hold its permits, perhaps for long: a reader waits for none of them.
#[test]
fn a_reader_has_a_permit_although_their_number_shrinks() {
    let (mut limiter, now) = (Limiter::new(None, 16), Instant::now());
    for item in 0..40 {
        limiter.submit(&prefetch(1), false, item);
    }
    assert_eq!(items(&mut limiter, now).len(), 15);
    limiter.answered(&uri(0), (503, None), SECOND, now);
    limiter.submit(&reader(9), false, 98);
    limiter.submit(&reader(9), false, 99);
    assert_eq!(items(&mut limiter, now), [98]);
    limiter.release(Grant::Reader);
    assert_eq!(items(&mut limiter, now), [99]);

    let mut limiter = Limiter::new(None, 1);
    limiter.submit(&prefetch(1), false, 0);
    assert_eq!(items(&mut limiter, now), [0]);
    limiter.submit(&reader(9), false, 99);
    assert!(items(&mut limiter, now).is_empty(), "never more than connections=");
}

#[test]
fn background_work_takes_half_of_the_permits_at_most() {
    for (permits, taken, left) in [(16, 8, 7), (2, 1, 0), (1, 1, 0)] {
        let (mut limiter, now) = (Limiter::new(None, permits), Instant::now());
        for item in 0..40 {
            limiter.submit(&Priority::background(), false, item);
        }
        assert_eq!(items(&mut limiter, now).len(), taken, "of {permits}");
        for item in 0..40 {
            limiter.submit(&prefetch(1), false, 100 + item);
        }
        assert_eq!(items(&mut limiter, now).len(), left, "of {permits}");
    }
}

/// Promise: the bucket stands behind the queue.
#[test]
fn the_next_token_is_for_the_head_of_the_queue() {
    let (mut limiter, now) = (Limiter::new(Some(1.0), 64), Instant::now());
    for item in 0..20 {
        limiter.submit(&prefetch(1), false, item);
    }
    assert_eq!(items(&mut limiter, now), [0]);
    assert!(matches!(limiter.next(now), NextGrant::At(at) if at == now + SECOND));
    limiter.submit(&reader(2), false, 100);
    limiter.submit(&reader(2), false, 101);
    limiter.submit(&reader(3), false, 200);
    let later = (1..=4).map(|second| items(&mut limiter, now + second * SECOND)).collect::<Vec<_>>();
    assert_eq!(later, [[100], [200], [101], [1]]);
}

#[test]
fn a_prefetch_that_a_reader_waits_for_moves_up() {
    let (mut limiter, now) = (Limiter::new(None, 1), Instant::now());
    limiter.submit(&reader(1), false, 0);
    items(&mut limiter, now);
    limiter.submit(&prefetch(1), false, 1);
    let mut ticket = limiter.submit(&prefetch(1), false, 2);
    limiter.raise(&mut ticket, Requester(5));
    limiter.release(Grant::Reader);
    assert_eq!(granted(&mut limiter, now), [(Grant::Reader, 2)]);
    limiter.raise(&mut ticket, Requester(5));
    assert_eq!(limiter.leave(&ticket), None, "it was served");
}

#[test]
fn a_raised_prefetch_is_submitted_as_a_reader() {
    let (raise, raised) = watch::channel(None);
    raise.send_replace(Some(Requester(4)));
    let mut limiter = Limiter::new(None, 1);
    let ticket = limiter.submit(&Priority::Prefetch(Requester(1), raised), false, 0);
    assert_eq!((ticket.class, ticket.requester), (Class::Reader, Requester(4)));
}

#[test]
fn one_document_never_waits_for_the_permits_of_readers() {
    let (mut limiter, now) = (Limiter::new(None, 2), Instant::now());
    for item in 0..2 {
        limiter.submit(&reader(1), false, item);
    }
    assert_eq!(items(&mut limiter, now).len(), 2);
    limiter.submit(&reader(1), false, 2);
    for item in 10..12 {
        limiter.submit(&Priority::default(), true, item);
    }
    assert_eq!(granted(&mut limiter, now), [(Grant::Document, 10)]);
    limiter.release(Grant::Document);
    assert_eq!(granted(&mut limiter, now), [(Grant::Document, 11)]);
    limiter.release(Grant::Reader);
    assert_eq!(items(&mut limiter, now), [2]);
}

#[test]
fn a_pause_holds_for_what_it_was_asked_for_and_the_longer_one() {
    let (mut limiter, now) = (Limiter::<u32>::new(None, 2), Instant::now());
    let resource = Request::get(uri(0), SECOND);
    let held = |limiter: &Limiter<u32>, now| limiter.held(&resource, now).map(|(until, _)| until);
    let list = |number| Request { is_document: true, ..Request::get(uri(number), SECOND) };
    limiter.refused(&resource, 429, Some(5 * SECOND), now);
    limiter.refused(&resource, 429, Some(2 * SECOND), now);
    limiter.refused(&list(1), 503, Some(Duration::MAX), now);
    let gate = |limiter: &mut Limiter<u32>, request: &Request, now| limiter.gate(request, &request.uri, now);
    assert_eq!((gate(&mut limiter, &resource, now), held(&limiter, now)), (Gate::Open, Some(now + 5 * SECOND)));
    assert_eq!(gate(&mut limiter, &list(1), now), Gate::Paused(now + PAUSE_LIMIT));
    assert_eq!(gate(&mut limiter, &list(2), now), Gate::Open);
    assert_eq!(held(&limiter, now + 5 * SECOND), None);
    limiter.refuse_ranges(now);
    assert_eq!((limiter.longest_pause(now), limiter.takes_ranges(now)), (Some(PAUSE_LIMIT), false));
    limiter.end_pauses(now);
    assert_eq!((limiter.longest_pause(now), gate(&mut limiter, &list(1), now)), (None, Gate::Open));
}

/// Too many requests are the host's, whatever the one that it refuses is for.
#[test]
fn a_list_refused_by_429_paces_its_host() {
    let (resource, list) =
        (Request::get(uri(0), SECOND), Request { is_document: true, ..Request::get(uri(1), SECOND) });
    for (pause, known) in [(Some(5 * SECOND), Some((5 * SECOND, true))), (None, Some((SECOND, false)))] {
        let (mut limiter, now) = (Limiter::<u32>::new(None, 2), Instant::now());
        limiter.refused(&list, 429, pause, now);
        let held = [&resource, &list].map(|request| limiter.held(request, now));
        assert_eq!(held, [known.map(|(pause, is_known)| (now + pause, is_known)); 2], "{pause:?}");
    }
    let (mut limiter, now) = (Limiter::<u32>::new(None, 2), Instant::now());
    limiter.refused(&list, 503, None, now);
    assert_eq!((limiter.held(&list, now), limiter.gate(&list, &list.uri, now)), (None, Gate::Open));
}

#[test]
fn a_host_that_refuses_ranges_is_asked_for_them_ever_later() {
    let (mut limiter, now) = (Limiter::<u32>::new(None, 2), Instant::now());
    (0..12).for_each(|_| limiter.refuse_ranges(now));
    let after = now + *RANGES_REFUSED.start();
    assert!(!limiter.takes_ranges(after - SECOND) && limiter.takes_ranges(after), "twelve at once are one");
    limiter.refuse_ranges(after);
    assert!(!limiter.takes_ranges(after + *RANGES_REFUSED.start()));
}

#[test]
fn a_refusal_leaves_half_of_the_permits() {
    for status in [429, 503] {
        let (mut limiter, now) = (Limiter::new(None, 64), Instant::now());
        for item in 0..100 {
            limiter.submit(&reader(1), false, item);
        }
        let before = items(&mut limiter, now).len();
        limiter.answered(&uri(0), (status, None), SECOND / 25, now);
        (0..before / 2).for_each(|_| limiter.release(Grant::Reader));
        assert!(items(&mut limiter, now).is_empty(), "{status}");
        limiter.release(Grant::Reader);
        assert_eq!(items(&mut limiter, now).len(), 1, "{status}");
    }
}

/// A caller that loses patience says nothing of the host.
#[test]
fn cancelled_requests_never_open_the_breaker() {
    let (mut limiter, now) = (Limiter::<u32>::new(None, 64), Instant::now());
    for number in 0..50 {
        limiter.admit(&uri(number), now);
        limiter.cancelled(&uri(number));
    }
    assert_eq!(
        (limiter.gate(&Request::get(uri(0), SECOND), &uri(0), now), limiter.failures(now)),
        (Gate::Open, (0, None))
    );
}

#[test]
fn the_breaker_of_https_leaves_http_alone() {
    let (mut limiter, now) = (Limiter::<u32>::new(None, 2), Instant::now());
    let secure = Uri::parse("https://example.org/").unwrap();
    for _ in 0..5 {
        limiter.failed(&secure, false, false, "refused".to_owned(), now);
    }
    let request = Request::get(uri(0), SECOND);
    assert_eq!(limiter.gate(&request, &uri(0), now), Gate::Open);
    assert!(matches!(limiter.gate(&request, &secure, now), Gate::Broken(_)));
    assert_eq!((limiter.failures(now).0, limiter.cause()), (5, Some("refused")));
}
