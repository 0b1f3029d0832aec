//! Points in time as documents write them (W3C datetime and its misspellings).

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime};
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;
const SECOND: i128 = 1_000_000_000;
const EPOCH: Date = Date::constant(1970, 1, 1);

/// A point in time: seconds since 1970-01-01T00:00:00Z (may be negative) and nanoseconds within the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Seconds since the epoch.
    pub seconds: i64,
    /// 0 to 999,999,999
    pub nanos: u32,
}

impl Timestamp {
    /// Reads a W3C datetime, tolerantly; `None` where it cannot be understood.
    ///
    /// Understood are also: a blank for the `T`, lower-case `t` and `z`, offsets without colon or minutes, no zone at all
    /// (UTC), blanks around it, `2013/1/3`, `3:05 PM`, and the dates of feeds and mail (`Thu, 3 Jan 2013 09:00 GMT`). Parts
    /// that are left out are the smallest: `2013-02` is `2013-02-01T00:00:00Z`. Digits of a fraction past the ninth are
    /// dropped; a leap second is the second after it.
    pub fn parse(raw: &str) -> Option<Timestamp> {
        Timestamp::parse_noting(raw).map(|(timestamp, _)| timestamp)
    }

    /// Reads as [`Timestamp::parse`] does, and tests whether the spelling is a W3C datetime to the letter.
    pub(super) fn parse_noting(raw: &str) -> Option<(Timestamp, bool)> {
        if let Some(seconds) = raw.as_bytes().try_into().ok().and_then(seconds_of_usual) {
            return Some((Timestamp { seconds, nanos: 0 }, true));
        }
        let trimmed = raw.trim();
        let mut cursor = DatetimeCursor { rest: trimmed.as_bytes(), strict: trimmed.len() == raw.len() };
        let date = cursor.date_of_mail().map_or_else(|| cursor.date(), Some)?;
        let (second_of_day, nanos) = cursor.time_of_day()?;
        let offset = cursor.zone()?;
        if !cursor.rest.is_empty() {
            return None;
        }
        // Local time is UTC plus the offset, so UTC is local time minus the offset.
        let seconds = date + second_of_day - offset;
        Some((Timestamp { seconds, nanos }, cursor.strict))
    }

    /// The last second that it can stand for. Midnight also stands for a date without a time: the whole day, in any zone.
    pub fn latest(self) -> i64 {
        let is_midnight = self.seconds.rem_euclid(DAY) == 0 && self.nanos == 0;
        if is_midnight { self.seconds + DAY + DAY / 2 } else { self.seconds }
    }

    /// True if it can stand for `other` or a later time: it may be written to the day or to the second alone.
    pub fn may_reach(self, other: Timestamp) -> bool {
        self >= other || self.nanos == 0 && self.latest() >= other.seconds
    }

    /// The machine's clock.
    pub fn now() -> Timestamp {
        Timestamp::from(SystemTime::now())
    }
}

/// The seconds of `YYYY-MM-DDTHH:MM:SSZ`, as nearly all are written; any other spelling is left to [`DatetimeCursor`].
fn seconds_of_usual(raw: &[u8; 20]) -> Option<i64> {
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':'), (19, b'Z')];
    if separators.iter().any(|(at, separator)| raw[*at] != *separator) {
        return None;
    }
    let mut all_digits = true;
    let mut two = |at: usize| {
        let (tens, ones) = (raw[at].wrapping_sub(b'0'), raw[at + 1].wrapping_sub(b'0'));
        all_digits &= tens < 10 && ones < 10;
        i64::from(tens) * 10 + i64::from(ones)
    };
    let (year, month, day) = (two(0) * 100 + two(2), two(5), two(8));
    let (hour, minute, second) = (two(11), two(14), two(17));
    let is_time = all_digits && hour < 24 && minute < 60 && second <= 60;
    let date = if is_time { seconds_of_date(year, month, day)? } else { return None };
    Some(date + hour * 3600 + minute * 60 + second)
}

/// The rest of a datetime; `strict` while all before it was spelt as W3C wants.
struct DatetimeCursor<'a> {
    rest: &'a [u8],
    strict: bool,
}

impl DatetimeCursor<'_> {
    /// Takes one byte if it is one of `wanted`.
    fn take(&mut self, wanted: &[u8]) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        wanted.contains(&first).then(|| {
            self.rest = rest;
            first
        })
    }

    /// Takes exactly `count` decimal digits.
    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.rest.split_at_checked(count)?;
        let value = digits
            .iter()
            .try_fold(0, |value, digit| digit.is_ascii_digit().then(|| value * 10 + i64::from(digit - b'0')))?;
        self.rest = rest;
        Some(value)
    }

    /// Takes one decimal digit, or two; one alone is not as W3C wants.
    fn one_or_two_digits(&mut self) -> Option<i64> {
        self.digits(2).or_else(|| {
            self.strict = false;
            self.digits(1)
        })
    }

    /// Takes `YYYY[-MM[-DD]]`: the seconds from the epoch to the day.
    fn date(&mut self) -> Option<i64> {
        let year = self.digits(4)?;
        let (mut month, mut day) = (1, 1);
        if let Some(separator) = self.take(b"-/.") {
            self.strict &= separator == b'-';
            month = self.one_or_two_digits()?;
            if self.take(&[separator]).is_some() {
                day = self.one_or_two_digits()?;
            }
        }
        seconds_of_date(year, month, day)
    }

    /// Takes `[Day, ]DD Mon YYYY` (RFC 5322, 3.3): the seconds from the epoch to the day. Where there is none, nothing is taken.
    fn date_of_mail(&mut self) -> Option<i64> {
        let text = std::str::from_utf8(self.rest).ok()?;
        let behind_day = text.trim_start_matches(|c: char| c.is_ascii_alphabetic()).trim_start_matches([',', ' ']);
        let mut fields = behind_day.splitn(3, [' ', '-']);
        let (day, month) = (fields.next()?, fields.next()?.get(..3)?);
        let rest = fields.next()?.trim_ascii_start();
        let year_length = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (year, rest) = rest.split_at(year_length);
        let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))? + 1;
        let century = match year_length {
            4 => 0,
            2 if year < "70" => 2000,
            2 => 1900,
            _ => return None,
        };
        let date = seconds_of_date(century + year.parse::<i64>().ok()?, month as i64, day.parse().ok()?)?;
        (self.rest, self.strict) = (rest.as_bytes(), false);
        Some(date)
    }

    /// Takes `THH[:MM[:SS[.fraction]]]` where there is one, with AM or PM behind it: seconds of the day and nanoseconds.
    fn time_of_day(&mut self) -> Option<(i64, u32)> {
        let Some(separator) = self.take(b"T t") else {
            return Some((0, 0));
        };
        self.strict &= separator == b'T';
        let mut hour = self.one_or_two_digits()?;
        let (mut minute, mut second, mut nanos) = (0, 0, 0);
        if self.take(b":").is_some() {
            minute = self.digits(2)?;
            if self.take(b":").is_some() {
                second = self.digits(2)?;
                if let Some(point) = self.take(b".,") {
                    self.strict &= point == b'.';
                    nanos = self.fraction()?;
                }
            }
        } else {
            self.strict = false;
        }
        if let Some(afternoon) = self.half_of_day() {
            hour = (1..=12).contains(&hour).then_some(hour % 12 + if afternoon { 12 } else { 0 })?;
        }
        let within = hour < 24 && minute < 60 && second <= 60;
        let midnight_at_the_end = hour == 24 && minute == 0 && second == 0;
        (within || midnight_at_the_end).then_some((hour * 3600 + minute * 60 + second, nanos))
    }

    /// Takes `AM`, `PM`, `a.m.` or `p.m.` after blanks: whether it is the second half of the day.
    fn half_of_day(&mut self) -> Option<bool> {
        let rest = self.rest.trim_ascii_start();
        let half = ["am", "pm", "a.m.", "p.m."]
            .into_iter()
            .find(|half| rest.get(..half.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(half.as_bytes())))?;
        (self.rest, self.strict) = (&rest[half.len()..], false);
        Some(half.starts_with('p'))
    }

    /// Takes at least one digit after the point: nanoseconds.
    fn fraction(&mut self) -> Option<u32> {
        let count = self.rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(count);
        self.rest = rest;
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        (count > 0).then(|| padded.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0')))
    }

    /// Takes `Z`, an offset or nothing: seconds east of Greenwich.
    fn zone(&mut self) -> Option<i64> {
        if self.take(b" ").is_some() {
            self.strict = false;
        }
        let is_here = |name: &&str| self.rest.eq_ignore_ascii_case(name.as_bytes());
        if let Some((hours, _)) = ZONES.iter().find(|(_, names)| names.iter().any(is_here)) {
            (self.rest, self.strict) = (&[], false);
            return Some(hours * 3600);
        }
        match self.take(b"Zz+-") {
            Some(zulu @ (b'Z' | b'z')) => {
                self.strict &= zulu == b'Z';
                Some(0)
            }
            Some(sign) => {
                let hours = self.digits(2)?;
                let colon = self.take(b":").is_some();
                let minutes = if colon || !self.rest.is_empty() { self.digits(2)? } else { 0 };
                self.strict &= colon;
                let offset = hours * 3600 + minutes * 60;
                (hours < 24 && minutes < 60).then_some(if sign == b'+' { offset } else { -offset })
            }
            None => {
                self.strict = false;
                Some(0)
            }
        }
    }
}

/// Months as mail and feeds write them.
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Zones by name (RFC 5322, 4.3), and their hours east of Greenwich.
const ZONES: [(i64, &[&str]); 6] = [
    (0, &["GMT", "UTC", "UT"]),
    (-4, &["EDT"]),
    (-5, &["EST", "CDT"]),
    (-6, &["CST", "MDT"]),
    (-7, &["MST", "PDT"]),
    (-8, &["PST"]),
];

/// The seconds from the epoch to a day, where there is such a day.
#[inline]
fn seconds_of_date(year: i64, month: i64, day: i64) -> Option<i64> {
    let date = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    Some(date.duration_since(EPOCH).as_secs())
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        // A time of the machine has 64 bits of seconds.
        let nanos = SignedDuration::system_until(UNIX_EPOCH, time).unwrap_or(SignedDuration::MAX).as_nanos();
        Timestamp { seconds: nanos.div_euclid(SECOND) as i64, nanos: nanos.rem_euclid(SECOND) as u32 }
    }
}

impl From<Timestamp> for jiff::Timestamp {
    /// Converts the time; one outside the years that jiff knows is its first or last.
    fn from(timestamp: Timestamp) -> jiff::Timestamp {
        let outside = if timestamp.seconds < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        let nanos = i32::try_from(timestamp.nanos).unwrap_or_default();
        jiff::Timestamp::new(timestamp.seconds, nanos).unwrap_or(outside)
    }
}

/// The epoch itself where the machine's clock cannot say it; the years end where those of jiff do.
impl From<Timestamp> for SystemTime {
    fn from(timestamp: Timestamp) -> SystemTime {
        SystemTime::try_from(jiff::Timestamp::from(timestamp)).unwrap_or(UNIX_EPOCH)
    }
}

/// `2013-01-03T09:00:00Z`, with a fraction only where there is one; years end with 9999.
impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let since_epoch = SignedDuration::new(self.seconds, i32::try_from(self.nanos).unwrap_or_default());
        write!(f, "{}Z", DateTime::from(EPOCH).saturating_add(since_epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn reads_as(raw: &str, utc: &str) {
        let timestamp = Timestamp::parse(raw).unwrap_or_else(|| panic!("{raw:?} is not understood"));
        assert_eq!(timestamp.to_string(), utc, "{raw:?}");
    }

    #[test]
    fn full_datetime() {
        reads_as("2013-01-03T09:00:00Z", "2013-01-03T09:00:00Z");
        assert_eq!(Timestamp::parse("2013-01-03T09:00:00Z"), Some(Timestamp { seconds: 1_357_203_600, nanos: 0 }));
    }

    #[test]
    fn date_only() {
        reads_as("2013-01-03", "2013-01-03T00:00:00Z");
    }

    #[test]
    fn year_or_month_only() {
        reads_as("2013", "2013-01-01T00:00:00Z");
        reads_as("2013-02", "2013-02-01T00:00:00Z");
    }

    #[test]
    fn minutes_only() {
        reads_as("2013-01-03T09:05Z", "2013-01-03T09:05:00Z");
        reads_as("2013-01-03T09:05+01:00", "2013-01-03T08:05:00Z");
    }

    #[test]
    fn one_to_nine_fraction_digits() {
        reads_as("2013-01-03T09:00:00.4Z", "2013-01-03T09:00:00.4Z");
        reads_as("2013-01-03T09:00:00.450Z", "2013-01-03T09:00:00.45Z");
        reads_as("2013-01-03T09:00:00.123456789Z", "2013-01-03T09:00:00.123456789Z");
        reads_as("2013-01-03T09:00:00.000000001", "2013-01-03T09:00:00.000000001Z");
        reads_as("2013-01-03T09:00:00.1234567899Z", "2013-01-03T09:00:00.123456789Z");
    }

    #[test]
    fn an_offset_is_subtracted_with_and_without_colon() {
        reads_as("1997-07-16T19:20:30+01:00", "1997-07-16T18:20:30Z");
        reads_as("1997-07-16T19:20:30.45+01:00", "1997-07-16T18:20:30.45Z");
        reads_as("1997-07-16T19:20:30+0100", "1997-07-16T18:20:30Z");
        reads_as("1997-07-16T19:20:30+01", "1997-07-16T18:20:30Z");
        reads_as("1997-07-16T19:20:30-05:30", "1997-07-17T00:50:30Z");
    }

    #[test]
    fn no_zone_is_utc() {
        reads_as("2013-01-03T09:00:00", "2013-01-03T09:00:00Z");
    }

    #[test]
    fn a_blank_for_the_t() {
        reads_as("2013-01-03 09:00:00", "2013-01-03T09:00:00Z");
        reads_as("2013-01-03 09:00:00 +02:00", "2013-01-03T07:00:00Z");
    }

    #[test]
    fn blanks_around() {
        reads_as("\n  2013-01-03T09:00:00Z\t", "2013-01-03T09:00:00Z");
    }

    #[test]
    fn other_spellings_of_dates_and_twelve_hours() {
        for raw in
            ["2013-1-3 9:05", "2013/01/03 09:05", "2013.1.03 09:05 UTC", "2013-01-03 9:05 AM", "2013-01-03T09:05:00am"]
        {
            reads_as(raw, "2013-01-03T09:05:00Z");
        }
        reads_as("2013-01-03 12:05 AM", "2013-01-03T00:05:00Z");
        reads_as("2013-01-03 12:05 p.m.", "2013-01-03T12:05:00Z");
        reads_as("2013-01-03T03:04:05.5 PM+01:00", "2013-01-03T14:04:05.5Z");
        reads_as("2013-01-03 11:59:59 PM", "2013-01-03T23:59:59Z");
    }

    #[test]
    fn dates_of_mail_and_feeds() {
        reads_as("Thu, 03 Jan 2013 09:00:00 GMT", "2013-01-03T09:00:00Z");
        reads_as("Thu, 3 Jan 2013 09:00 +0100", "2013-01-03T08:00:00Z");
        reads_as("3 january 13 9:00 EST", "2013-01-03T14:00:00Z");
        reads_as("Thursday, 03-Jan-99 09:00:00 GMT", "1999-01-03T09:00:00Z");
        reads_as("3 Jan 2013", "2013-01-03T00:00:00Z");
    }

    #[test]
    fn before_1970_and_after_2038() {
        reads_as("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.5Z");
        assert_eq!(Timestamp::parse("1969-12-31T23:59:59.5Z"), Some(Timestamp { seconds: -1, nanos: 500_000_000 }));
        reads_as("1789-07-14", "1789-07-14T00:00:00Z");
        reads_as("0000-01-01", "0000-01-01T00:00:00Z");
        reads_as("2106-02-07T06:28:16Z", "2106-02-07T06:28:16Z");
        reads_as("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z");
    }

    #[test]
    fn leap_days_and_leap_seconds() {
        reads_as("2012-02-29", "2012-02-29T00:00:00Z");
        reads_as("2000-02-29", "2000-02-29T00:00:00Z");
        assert_eq!(Timestamp::parse("1900-02-29"), None);
        assert_eq!(Timestamp::parse("2013-02-29"), None);
        reads_as("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z");
        reads_as("2016-12-31T24:00:00Z", "2017-01-01T00:00:00Z");
    }

    #[test]
    fn empty_and_nonsense_are_not_understood() {
        for raw in [
            "",
            " ",
            "today",
            "20130103",
            "2013-13-01",
            "2013-00-01",
            "2013-01-32",
            "03/01/2013",
            "2013-01/03",
            "2013-01-03T",
            "2013-01-",
            "2013-01-03T25:00:00Z",
            "2013-01-03T09:61:00Z",
            "2013-01-03T09:00:00.Z",
            "2013-01-03T09:00:00ZZ",
            "2013-01-03T09:00:00+1",
            "2013-01-03T09:00:00+24:00",
            "2013-01-03 13:00 PM",
            "2013-01-03 0:00 AM",
            "2013-01-03 AM",
            "Thu, 03 Jan 2013 09:00:00 LMT",
            "Thu, 03 Foo 2013 09:00:00 GMT",
            "32 Jan 2013",
            "3 Jan 213",
            "２０１３-01-03",
        ] {
            assert_eq!(Timestamp::parse(raw), None, "{raw:?}");
        }
    }

    #[test]
    fn only_the_letter_of_w3c_datetime_is_strict() {
        let strict = |raw| Timestamp::parse_noting(raw).map(|(_, strict)| strict);
        for raw in ["2013-01-03T09:00:00Z", "2013-01-03T09:00:00.5+01:00"] {
            assert_eq!(strict(raw), Some(true), "{raw:?}");
        }
        for raw in ["2013-01-03 09:00:00Z", "2013-01-03T09:00:00", "2013-01-03T09:00:00+0100", " 2013-01-03"] {
            assert_eq!(strict(raw), Some(false), "{raw:?}");
        }
    }

    proptest! {
        #![proptest_config(crate::document::fixed_cases(500))]

        #[test]
        fn what_is_written_is_read_back(seconds in -62_167_219_200i64..253_402_300_800, nanos in 0u32..1_000_000_000) {
            let timestamp = Timestamp { seconds, nanos };
            prop_assert_eq!(Timestamp::parse(&timestamp.to_string()), Some(timestamp));
        }

        #[test]
        fn the_usual_spelling_is_read_alike_by_both(raw in "[012][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9]Z|[-0-9:TZtz .]{20}") {
            let mut cursor = DatetimeCursor { rest: raw.as_bytes(), strict: true };
            let mut slowly = || {
                let seconds = cursor.date()? + cursor.time_of_day()?.0 - cursor.zone()?;
                cursor.rest.is_empty().then_some(seconds)
            };
            let seconds = slowly();
            if let Some(usual) = seconds_of_usual(raw.as_bytes().try_into().unwrap()) {
                prop_assert_eq!(Some(usual), seconds);
            }
            prop_assert_eq!(Timestamp::parse(&raw).map(|read| read.seconds), Timestamp::parse(&format!(" {raw}")).map(|read| read.seconds));
        }

        #[test]
        fn system_time_and_back(seconds in -62_167_219_200i64..253_402_200_000, nanos in 0u32..1_000_000_000) {
            let timestamp = Timestamp { seconds, nanos };
            prop_assert_eq!(Timestamp::from(SystemTime::from(timestamp)), timestamp);
        }

        #[test]
        fn any_text_is_read_or_refused(raw in "[0-9T:+Z. -]{0,40}|.{0,20}") {
            if let Some(timestamp) = Timestamp::parse(&raw) {
                prop_assert!(timestamp.nanos < 1_000_000_000);
            }
        }
    }
}
