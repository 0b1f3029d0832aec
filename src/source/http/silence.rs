//! When a request that gets no answer is sent once more over a new connection. Pure.
//!
//! A connection that was idle may be dead without a sign: a VPN, a NAT or a change of network has forgotten it. The first request that meets
//! such a silence is the probe for all of its host. What it finds is remembered, so that a host that is slow is not asked twice for ever.

use std::time::{Duration, Instant};

/// A connection that has brought answers may be silent for so long.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Patience where a document is requested, which some hosts make at each request. No reader waits for it.
const PATIENCE_WITH_DOCUMENTS: Duration = Duration::from_secs(15);

/// The most patience with a host that answers slowly.
const MOST_PATIENCE: Duration = Duration::from_secs(30);

/// A probe that got no answer either is not repeated for so long.
const REST: Duration = Duration::from_secs(60);

/// Requests that wait for the outcome of a probe look so often.
const LOOK: Duration = Duration::from_millis(200);

/// Silence that one host has shown.
#[derive(Debug)]
pub(super) struct Silence {
    /// The patience with a prompt host.
    least: Duration,
    patience: Duration,
    /// The newest pools over which it has answered.
    answered: Option<u64>,
    is_probing: bool,
    rests_until: Option<Instant>,
}

/// Next step for a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SilenceStep {
    /// Look again after this time.
    Wait(Duration),
    /// Send it again: newer connections of this host are alive.
    Repeat,
    /// Send it again to learn whether the host or the connection is silent. One of the two calls below follows.
    Probe,
}

impl Silence {
    /// Nothing is known of the answers to questions for resources, or for documents.
    pub(super) fn new(of_documents: bool) -> Silence {
        let least = if of_documents { PATIENCE_WITH_DOCUMENTS } else { PATIENCE };
        Silence { least, patience: least, answered: None, is_probing: false, rests_until: None }
    }

    /// The step for a request that was sent over the pools of that number and has `waited` since.
    pub(super) fn look(&mut self, pools: u64, waited: Duration, now: Instant) -> SilenceStep {
        if waited < self.patience {
            return SilenceStep::Wait(self.patience - waited);
        }
        match self.answered {
            Some(answered) if answered > pools => SilenceStep::Repeat,
            // A connection that was made for this request shows nothing of an idle one.
            Some(answered) if answered == pools && !self.is_probing && self.rests_until.is_none_or(|at| at <= now) => {
                self.is_probing = true;
                SilenceStep::Probe
            }
            _ => SilenceStep::Wait(LOOK),
        }
    }

    /// An answer came over the pools of that number, `after` its request. A slow one raises the patience; each prompt one halves what is above the least.
    pub(super) fn answered(&mut self, pools: u64, after: Duration) {
        self.answered = self.answered.max(Some(pools));
        self.rests_until = None;
        self.patience = match after < self.least {
            true => self.least + (self.patience - self.least) / 2,
            false => self.patience.max(2 * after).min(MOST_PATIENCE),
        };
    }

    /// The probe is over, with an answer or without.
    pub(super) fn probed(&mut self, is_answered: bool, now: Instant) {
        self.is_probing = false;
        if !is_answered {
            self.rests_until = Some(now + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_probes_and_the_others_follow_an_answer() {
        let (mut silence, now) = (Silence::new(false), Instant::now());
        silence.answered(1, Duration::ZERO);
        assert_eq!(silence.look(1, Duration::from_secs(1), now), SilenceStep::Wait(PATIENCE - Duration::from_secs(1)));
        assert_eq!(silence.look(1, PATIENCE, now), SilenceStep::Probe);
        assert_eq!(silence.look(1, PATIENCE, now), SilenceStep::Wait(LOOK));

        silence.answered(2, Duration::ZERO);
        silence.probed(true, now);

        assert_eq!(silence.look(1, PATIENCE, now), SilenceStep::Repeat);
        assert_eq!(silence.look(2, PATIENCE, now), SilenceStep::Probe, "the next change of network");
    }

    #[test]
    fn a_slow_host_is_asked_twice_once() {
        let (mut silence, now) = (Silence::new(false), Instant::now());
        silence.answered(1, Duration::ZERO);
        assert_eq!(silence.look(1, PATIENCE, now), SilenceStep::Probe);
        silence.answered(1, 2 * PATIENCE);
        silence.probed(true, now);

        assert_eq!(silence.look(1, 3 * PATIENCE, now), SilenceStep::Wait(PATIENCE));
    }

    #[test]
    fn patience_with_a_slow_host_is_bounded_and_ends_with_it() {
        let (mut silence, now) = (Silence::new(false), Instant::now());
        silence.answered(1, 10 * MOST_PATIENCE);
        assert_eq!(silence.look(1, MOST_PATIENCE, now), SilenceStep::Probe);
        silence.probed(true, now);
        silence.answered(1, 2 * PATIENCE);
        assert_eq!(
            silence.look(1, 2 * PATIENCE, now),
            SilenceStep::Wait(MOST_PATIENCE - 2 * PATIENCE),
            "it is as slow as before"
        );

        (0..10).for_each(|_| silence.answered(1, Duration::from_millis(50)));

        assert_eq!(silence.look(1, PATIENCE + Duration::from_millis(100), now), SilenceStep::Probe);
    }

    #[test]
    fn a_silent_host_is_not_probed_for_a_while() {
        let (mut silence, now) = (Silence::new(false), Instant::now());
        assert_eq!(silence.look(0, PATIENCE, now), SilenceStep::Wait(LOOK), "it has never answered");
        silence.answered(0, Duration::ZERO);
        assert_eq!(silence.look(0, PATIENCE, now), SilenceStep::Probe);
        silence.probed(false, now);

        assert_eq!(silence.look(0, PATIENCE, now), SilenceStep::Wait(LOOK));
        assert_eq!(silence.look(0, PATIENCE, now + REST), SilenceStep::Probe);
    }
}
