//! The servers: true, or with one of the faults that real servers have.

use super::bodies::Body;
use super::random::Random;
use super::scenes::{Serve, Turn};
use crate::source::tests::server::{Gate, Received, Reply};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    None,
    /// Another for each version.
    Strong,
    /// One for all versions, which may be equivalent.
    Weak,
    /// The same bytes have another at each node.
    OfNode,
    /// All versions have one: a lie.
    Same,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ranges {
    Right,
    /// The whole is sent.
    Ignored,
    /// Other bytes than those that were asked for.
    Shifted,
    /// It does not say of how many bytes they are.
    Lengthless,
    Refused,
}

/// One address, and what it serves.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) bodies: Vec<Arc<Body>>,
    pub(super) current: usize,
    /// Between the number of a version and that in its ETag: no two places name versions alike.
    pub(super) rotation: usize,
    pub(super) tag: Tag,
    pub(super) ranges: Ranges,
    /// If-Range is not understood.
    pub(super) ignores_if_range: bool,
    /// No length is announced.
    pub(super) is_lengthless: bool,
    /// The announced length is too great by this.
    pub(super) lie: u64,
    /// In so many of a hundred answers the body breaks off.
    pub(super) cuts: u64,
    /// So many of a hundred requests are refused.
    pub(super) refusals: u64,
    /// In so many of a hundred answers the file becomes another while it is sent.
    pub(super) changes: u64,
    /// Bytes a second, where it is slow.
    pub(super) pace: Option<usize>,
    /// The time before each answer.
    pub(super) delay: Duration,
    /// The time for which a long body pauses.
    pub(super) hold: Option<Duration>,
    /// Faults of the next answers.
    pub(super) turns: VecDeque<Turn<usize>>,
    /// The versions of which it has sent bytes, a bit for each.
    pub(super) met: u32,
}

impl Place {
    /// A server without fault.
    pub(super) fn honest(bodies: &[Arc<Body>], rotation: usize, random: &mut Random) -> Place {
        Place {
            tag: random.one_of(&[Tag::Strong, Tag::Strong, Tag::Strong, Tag::None, Tag::Weak]),
            ranges: if random.chance(80) { Ranges::Right } else { Ranges::Ignored },
            pace: random.one_of(&[None, None, None, Some(400 << 20), Some(80 << 20)]),
            delay: if random.chance(15) { 5 * MOMENT } else { Duration::ZERO },
            hold: random.chance(25).then_some(80 * MOMENT),
            ..Place::faultless(bodies, rotation)
        }
    }

    /// One that does what a scene says. A tag of several is chosen where the scene leaves it open.
    pub(super) fn directed(
        &self,
        serve: &Serve,
        (current, turns): (usize, VecDeque<Turn<usize>>),
        random: &mut Random,
    ) -> Place {
        let tags = [Tag::Strong, Tag::Strong, Tag::None, Tag::Weak];
        Place {
            current,
            tag: serve.tag.unwrap_or_else(|| random.one_of(&tags)),
            ranges: serve.ranges,
            ignores_if_range: serve.ignores_if_range,
            is_lengthless: serve.is_lengthless,
            delay: if serve.is_slow { 60 * MOMENT } else { Duration::ZERO },
            turns,
            ..Place::faultless(&self.bodies, self.rotation)
        }
    }

    fn faultless(bodies: &[Arc<Body>], rotation: usize) -> Place {
        Place {
            bodies: bodies.to_vec(),
            current: 0,
            rotation,
            tag: Tag::Strong,
            ranges: Ranges::Right,
            ignores_if_range: false,
            is_lengthless: false,
            lie: 0,
            cuts: 0,
            refusals: 0,
            changes: 0,
            pace: None,
            delay: Duration::ZERO,
            hold: None,
            turns: VecDeque::new(),
            met: 0,
        }
    }

    /// One with faults. Those that nothing shows are left out: `is_vouched` where a digest is published, `is_measured` where a length is.
    pub(super) fn hostile(
        bodies: &[Arc<Body>],
        rotation: usize,
        (is_vouched, is_measured): (bool, bool),
        random: &mut Random,
    ) -> Place {
        let tags = [Tag::Strong, Tag::Strong, Tag::Strong, Tag::OfNode, Tag::None, Tag::Weak, Tag::Same, Tag::Same];
        let ranges = [
            Ranges::Right,
            Ranges::Right,
            Ranges::Right,
            Ranges::Ignored,
            Ranges::Shifted,
            Ranges::Lengthless,
            Ranges::Refused,
        ];
        let honest = Place::honest(bodies, rotation, random);
        Place {
            current: if random.chance(60) { 0 } else { random.below(bodies.len() as u64) as usize },
            tag: random.one_of(if is_vouched { &tags } else { &tags[..6] }),
            ranges: random.one_of(&ranges),
            ignores_if_range: random.chance(30),
            is_lengthless: (is_vouched || is_measured) && random.chance(15),
            lie: if random.chance(10) { 1 + random.below(9_000) } else { 0 },
            cuts: random.one_of(&[0, 0, 30, 60]),
            refusals: random.one_of(&[0, 0, 0, 10, 40]),
            changes: random.one_of(&[0, 0, 30, 50]),
            hold: random.chance(50).then_some(120 * MOMENT),
            ..honest
        }
    }

    /// Returns whether two versions have one strong ETag.
    pub(super) fn is_liar(&self) -> bool {
        self.tag == Tag::Same
    }

    /// Returns whether the announced length says nothing of the version.
    pub(super) fn hides_length(&self) -> bool {
        let is_unsized = self.is_lengthless || self.turns.contains(&Turn::Unsized);
        self.lie > 0 || is_unsized || self.ranges == Ranges::Lengthless
    }

    /// The percentage after which the next answer breaks off. An error: it is a refusal.
    fn next_turn(&mut self, is_of_bytes: bool) -> Result<Option<u64>, ()> {
        while let Some(turn) = self.turns.front().copied().filter(|_| is_of_bytes) {
            if turn == Turn::Refuse {
                return Err(());
            }
            self.turns.pop_front();
            match turn {
                Turn::Cut(percent) => return Ok(Some(percent)),
                Turn::Become(version) => self.current = version,
                Turn::Unsized => self.is_lengthless = true,
                Turn::Refuse => {}
            }
        }
        Ok(None)
    }

    fn etag(&self, request: &Received) -> Option<String> {
        let version = self.current + self.rotation;
        match self.tag {
            Tag::None => None,
            Tag::Strong => Some(format!("\"v{}\"", version % self.bodies.len())),
            Tag::Weak => Some("W/\"v\"".into()),
            Tag::OfNode => Some(format!("\"v{version}-{}\"", request.number % 2)),
            Tag::Same => Some("\"same\"".into()),
        }
    }

    /// The answer to a request, and the time after which it is sent; what is served may be another afterwards.
    pub(super) fn answer(&mut self, request: &Received, random: &mut Random) -> (Reply, Duration) {
        let is_of_bytes = !request.is_head() && request.field("range") != Some("bytes=0-0");
        let turn = self.next_turn(is_of_bytes);
        if turn.is_err() || random.chance(self.refusals) {
            return (Reply::status(random.one_of(&[404, 403, 410, 404])), self.delay);
        }
        let cut = turn.ok().flatten();
        self.met |= u32::from(is_of_bytes) << self.current;
        let body = Arc::clone(&self.bodies[self.current]);
        let etag = self.etag(request);
        let length = body.length();
        let is_asked = |asked: &str| Some(asked) == etag.as_deref();
        let is_current = self.ignores_if_range || request.field("if-range").is_none_or(is_asked);
        let range = request.range(length as usize).filter(|_| is_current && self.ranges != Ranges::Ignored);
        let reply = match range {
            Some(range) if range.is_empty() || self.ranges == Ranges::Refused => {
                Reply::status(416).with("Content-Range", &format!("bytes */{length}"))
            }
            Some(range) => {
                let shift = u64::from(self.ranges == Ranges::Shifted && range.len() > 1);
                let range = range.start as u64 + shift..range.end as u64;
                let total = if self.ranges == Ranges::Lengthless { "*".into() } else { length.to_string() };
                let described = format!("bytes {}-{}/{total}", range.start, range.end - 1);
                let reply = Reply::of(body.read(range.clone())).with_status(206);
                self.sent(reply, range, cut, random).with("Content-Range", &described)
            }
            None => {
                let announced = (!self.is_lengthless).then_some((length + self.lie) as usize);
                self.sent(Reply::of(body.read(0..length)).announcing(announced), 0..length, cut, random)
            }
        };
        if random.chance(self.changes) {
            self.current = random.below(self.bodies.len() as u64) as usize;
        }
        let reply = if self.ranges == Ranges::Ignored { reply } else { reply.with("Accept-Ranges", "bytes") };
        let reply = match etag {
            Some(etag) => reply.with("ETag", &etag),
            None => reply,
        };
        (reply, self.delay)
    }

    fn sent(&self, reply: Reply, range: Range<u64>, cut: Option<u64>, random: &mut Random) -> Reply {
        let bytes = range.end - range.start;
        let reply = match self.pace {
            Some(pace) => reply.paced(pace),
            None => reply,
        };
        let reply = match self.hold.filter(|_| bytes > 2 << 20) {
            Some(time) => held(reply, random.below(bytes), time),
            None => reply,
        };
        match random.chance(self.cuts) {
            _ if cut.is_some() => reply.cut_at((bytes * cut.unwrap_or(0) / 100) as usize),
            true => reply.cut_within(random.fraction()),
            false => reply,
        }
    }
}

/// A body that pauses after `bytes`, once for a `time`.
fn held(reply: Reply, bytes: u64, time: Duration) -> Reply {
    let gate = Gate::default();
    let reply = reply.gated_at(bytes as usize, &gate);
    std::thread::spawn(move || {
        std::thread::sleep(time);
        gate.open();
    });
    reply
}

/// A pause in which other readers come.
pub(super) const MOMENT: Duration = Duration::from_millis(1);
