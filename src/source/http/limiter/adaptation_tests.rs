//! How many requests at a time hosts of several kinds are sent, in a model of them: the time is simulated, the seeds fixed.

use super::concurrency::{Concurrency, SLOW_LEAST};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

const MOST: usize = 64;

/// A host and those who ask it as many things at a time as they may.
struct Model {
    concurrency: Concurrency,
    now: Instant,
    /// (when it is answered, when it was sent)
    in_flight: BinaryHeap<Reverse<(Instant, Instant)>>,
    /// When each of a host's workers is free again.
    workers: Vec<Instant>,
    seed: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let in_flight = BinaryHeap::new();
        Model { concurrency: Concurrency::new(MOST), now: Instant::now(), in_flight, workers: Vec::new(), seed }
    }

    /// At least 0, below 1.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / (1_u64 << 31) as f64
    }

    /// `count` answers, each after what `latency` says of so many requests in flight; answers a second, and the usual number of permits.
    fn run(&mut self, count: usize, mut latency: impl FnMut(&mut Model, usize) -> Duration) -> (f64, usize) {
        let (begun, mut permits) = (self.now, 0);
        for _ in 0..count {
            while self.in_flight.len() < self.concurrency.permits() {
                let at_once = self.in_flight.len() + 1;
                let answered = self.now + latency(self, at_once);
                self.in_flight.push(Reverse((answered, self.now)));
            }
            let Some(Reverse((answered, sent))) = self.in_flight.pop() else { break };
            self.now = answered;
            self.concurrency.answered(answered - sent, self.in_flight.len() + 1, answered);
            permits += self.concurrency.permits();
        }
        (count as f64 / (self.now - begun).as_secs_f64(), permits / count)
    }

    /// So many at a time, each for `each`; the others wait for their turn.
    fn in_turn(&mut self, at_once: usize, each: Duration) -> Duration {
        self.workers.resize(at_once, self.now);
        self.workers.sort();
        self.workers[0] = self.workers[0].max(self.now) + each;
        self.workers[0] - self.now
    }

    /// `mean` in the long run, each as it comes (exponential).
    fn about(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random()).ln())
    }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// As fast as ever up to `bears` at a time; beyond, what they get in each other's way costs more than is won.
fn thrashing(each: Duration, bears: usize, at_once: usize) -> Duration {
    each.mul_f64((at_once as f64 / bears as f64).powi(3).max(1.0))
}

#[test]
fn a_host_of_few_workers_is_sent_fewer_and_does_as_much() {
    for (seed, at_once, each) in [(1, 8, 20), (2, 2, 20), (3, 4, 100), (4, 1, 300), (5, 16, 300), (6, 32, 40)] {
        let mut model = Model::new(seed);
        let mut latency = |model: &mut Model, _| {
            let each = model.about(ms(each));
            model.in_turn(at_once, each)
        };
        model.run(3_000, &mut latency);

        let (done, permits) = model.run(200_000, latency);

        assert!((SLOW_LEAST.max(at_once)..=7 * at_once).contains(&permits), "{at_once} in {each} ms: {permits}");
        let all = at_once as f64 * 1000.0 / each as f64;
        assert!(done > 0.95 * all, "{at_once} in {each} ms: {done} of {all} a second");
    }
}

#[test]
fn a_host_that_does_less_under_load_is_never_pressed() {
    for (seed, bears) in [(1, 6), (2, 12), (3, 24)] {
        let mut model = Model::new(seed);
        model.run(3_000, |_, at_once| thrashing(ms(20), bears, at_once));
        for _ in 0..10 {
            let (done, permits) = model.run(20_000, |_, at_once| thrashing(ms(20), bears, at_once));
            assert!(permits < 3 * bears, "{bears}: {permits}");
            // All that it can do is `bears` in 20 ms; 64 at a time would be a hundredth of that for 6.
            assert!(done > 0.2 * bears as f64 * 50.0, "{bears}: {done} a second with {permits} at a time");
        }
    }
}

#[test]
fn permits_come_back_when_answers_are_fast_again() {
    let mut model = Model::new(1);
    model.run(3_000, |_, at_once| thrashing(ms(20), 8, at_once));
    let (_, pressed) = model.run(1_000, |_, at_once| thrashing(ms(20), 8, at_once));

    model.run(5_000, |_, _| ms(20));

    let (_, permits) = model.run(1_000, |_, _| ms(20));
    assert!(pressed < 24 && permits == MOST, "{pressed}, then {permits}");
}

#[test]
fn a_far_network_is_high_latency_and_no_reason_for_less() {
    for (seed, each) in [(1, 5), (2, 300), (3, 2_000)] {
        let mut model = Model::new(seed);
        let (_, permits) = model.run(20_000, |model, _| ms(each) + model.about(ms(each / 5)));
        assert!(permits >= MOST - 4, "{each} ms: {permits}");
    }
}

#[test]
fn a_way_that_becomes_longer_is_no_reason_for_less() {
    let mut model = Model::new(1);
    model.run(2_000, |_, _| ms(20));
    model.run(2_000, |_, _| ms(400));
    let (_, permits) = model.run(5_000, |_, _| ms(400));
    assert!(permits >= MOST - 4, "{permits}");
}

/// As behind a cache: what it holds comes at once, the rest is made first.
#[test]
fn answers_of_several_kinds_keep_the_permits() {
    for (seed, fast) in [(1, 0.1), (2, 0.5), (3, 0.9), (4, 0.99)] {
        let mut model = Model::new(seed);
        let mixed = |model: &mut Model, _| if model.random() < fast { ms(5) } else { model.about(ms(500)) };
        model.run(2_000, mixed);
        let (_, permits) = model.run(50_000, mixed);
        assert!(permits >= MOST * 3 / 4, "{fast} of them fast: {permits}");
    }
}

#[test]
fn answers_fast_and_slow_by_turns_keep_the_permits() {
    let mut model = Model::new(1);
    let mut permits = 0;
    for _ in 0..50 {
        model.run(100, |_, _| ms(5));
        permits += model.run(400, |model, _| ms(200) + model.about(ms(50))).1;
    }
    assert!(permits / 50 >= MOST * 3 / 4, "{}", permits / 50);
}
