//! Times as a person reads them: local to the second, or UTC (`--utc`), and how far they are from now.

use super::duration;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, SystemTime};

/// Shown for a time outside the years that a calendar has.
const UNKNOWN: &str = "unknown";

/// The time now, and the zone in which times are shown.
#[derive(Clone, Debug)]
pub struct Clock {
    now: SystemTime,
    zone: TimeZone,
}

impl Clock {
    /// Now, in the zone of this machine (`TZ`, `/etc/localtime`), or in UTC.
    pub fn new(utc: bool) -> Clock {
        let zone = if utc { TimeZone::UTC } else { TimeZone::system() };
        Clock { now: SystemTime::now(), zone }
    }

    /// A clock that stands at `now`, in UTC.
    #[cfg(test)]
    pub fn at(now: SystemTime) -> Clock {
        Clock { now, zone: TimeZone::UTC }
    }

    /// `2026-01-02 04:59:00`, with ` UTC` behind it where that is the zone.
    pub fn time(&self, time: impl TryInto<Timestamp>) -> String {
        let Ok(time) = time.try_into() else { return UNKNOWN.to_owned() };
        let zoned = time.to_zoned_datetime(self.zone.clone());
        let suffix = if self.zone == TimeZone::UTC { " UTC" } else { "" };
        format!("{}{suffix}", zoned.strftime("%Y-%m-%d %H:%M:%S"))
    }

    /// The time and how far it is from now: `2026-01-02 04:59:00 (60 s ago)`, `… (in 5 min)`.
    pub fn when(&self, time: impl TryInto<Timestamp>) -> String {
        let (Ok(time), Ok(now)) = (time.try_into(), Timestamp::try_from(self.now)) else { return UNKNOWN.to_owned() };
        let distance = now.duration_since(time);
        let shown = self.time(time);
        match distance.unsigned_abs() {
            near if near < Duration::from_secs(1) && !distance.is_negative() => format!("{shown} (now)"),
            ahead if distance.is_negative() => format!("{shown} (in {})", duration(ahead)),
            past => format!("{shown} ({} ago)", duration(past)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_time_is_shown_to_the_second_with_its_distance() {
        let clock = Clock::at(at(1_767_322_800));

        let shown = [1_767_322_740, 1_767_322_800, 1_767_323_100].map(|it| clock.when(at(it)));

        let expected = [
            "2026-01-02 02:59:00 UTC (60 s ago)",
            "2026-01-02 03:00:00 UTC (now)",
            "2026-01-02 03:05:00 UTC (in 5 min)",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn local_time_carries_no_mark_of_utc() {
        let clock = Clock { now: at(0), zone: TimeZone::fixed(jiff::tz::offset(2)) };

        assert_eq!(clock.time(at(1_767_322_800)), "2026-01-02 05:00:00");
    }
}
