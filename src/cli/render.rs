//! How numbers, sizes, times and text of a Source are shown to a person. JSON keeps bytes and RFC 3339.

pub use crate::mount::units::size;

use crate::platform::text::is_hidden;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use rustix::termios::tcgetwinsize;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// `1 file`, `12,345 files`.
pub fn count(number: u64, what: &str) -> String {
    format!("{} {what}{}", thousands(number), if number == 1 { "" } else { "s" })
}

/// [`count`], where there is any.
pub fn some(number: u64, what: &str) -> Option<String> {
    (number > 0).then(|| count(number, what))
}

/// A duration in the largest unit that is exact enough: `90 ms`, `119 s`, `3 min`, `5 h`, `4 days`.
pub fn duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds @ 120..=7199 => format!("{} min", seconds / 60),
        seconds @ 7200..=172_799 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// `1234567` as `1,234,567`.
pub fn thousands(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", thousands(number / 1000), number % 1000),
    }
}

/// Text from a Source without what is hidden or what a terminal would obey; line ends and tabs stay.
pub fn printable(text: &str) -> String {
    let replaced = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    text.chars().map(|c| if replaced(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// A printable value within a line, which must not pretend to be lines of ours.
pub fn printable_value(value: &str) -> String {
    printable(&value.replace(['\n', '\t'], "\u{fffd}"))
}

/// Columns of a title and the blank behind it, on screens of titles and texts.
const TITLE: usize = 13;

/// Lines of a list that are shown; `--json` has all.
const MOST_SHOWN: usize = 20;

/// Lines of two columns: a title and its text. The text may be a Source's; its times are shown as a clock shows them.
pub struct Screen<'c> {
    /// The lines so far.
    pub text: String,
    clock: &'c Clock,
}

impl Screen<'_> {
    /// No lines yet.
    pub fn new(clock: &Clock) -> Screen<'_> {
        Screen { text: String::new(), clock }
    }

    /// A line without columns, whose times stay: a name may be one.
    pub fn row(&mut self, text: impl Display) {
        self.text += &(printable_value(&text.to_string()) + "\n");
    }

    /// A line.
    pub fn line(&mut self, title: &str, text: impl Display) {
        let text = self.clock.localized(&text.to_string());
        self.row(format!("{title:<0$} {text}", TITLE - 1));
    }

    /// The first line of a section, below an empty one.
    pub fn section(&mut self, title: &str, text: impl Display) {
        self.text.push('\n');
        self.line(title, text);
    }

    /// A further line of the last title.
    pub fn more(&mut self, text: impl Display) {
        self.line("", text);
    }

    /// A further line that quotes a document: its times stay.
    pub fn quote(&mut self, text: impl Display) {
        self.row(format!("{:TITLE$}{text}", ""));
    }

    /// Lines below one title, up to a number; none where there are none.
    pub fn list(&mut self, title: &str, lines: impl IntoIterator<Item: Display, IntoIter: ExactSizeIterator>) {
        let lines = lines.into_iter();
        let hidden = lines.len().saturating_sub(MOST_SHOWN);
        for (index, line) in lines.take(MOST_SHOWN).enumerate() {
            self.line(if index == 0 { title } else { "" }, line);
        }
        if hidden > 0 {
            self.more(format!("and {hidden} more (--json shows all)"));
        }
    }
}

/// Text as [`wrapped`] for the terminal on standard output; where there is none, as it is.
pub fn wrapped_here(text: &str, is_cut: bool) -> String {
    columns().map_or_else(|| text.to_owned(), |columns| wrapped(text, columns, is_cut))
}

/// Columns of the terminal on standard output; `None` where there is no terminal.
fn columns() -> Option<usize> {
    let size = io::stdout().is_terminal().then(|| tcgetwinsize(io::stdout()).ok())??;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 2 * TITLE)
}

/// Lines of titles and texts that go on below their texts, so that no word is broken at the edge of a terminal of so many columns. A word
/// longer than a line stays whole, for a terminal that goes on with it in the next line, or is broken where `is_cut` says that it would
/// be cut off.
fn wrapped(text: &str, columns: usize, is_cut: bool) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split_inclusive(' ') {
            let mut word = word.to_owned();
            if width > TITLE && width + word.trim_end().chars().count() > columns {
                wrapped.truncate(wrapped.trim_end().len());
                wrapped += &format!("\n{:TITLE$}", "");
                width = TITLE;
            }
            while is_cut && width + word.trim_end().chars().count() > columns {
                let end = word.char_indices().nth(columns - width).map_or(word.len(), |(end, _)| end);
                wrapped += &format!("{}\n{:TITLE$}", &word[..end], "");
                word.drain(..end);
                width = TITLE;
            }
            width += word.chars().count();
            wrapped += &word;
        }
        wrapped.push('\n');
    }
    wrapped
}

/// Shown for a time outside the years that a calendar has.
const UNKNOWN: &str = "unknown";

/// The zone in which this process shows times.
static ZONE: OnceLock<TimeZone> = OnceLock::new();

/// Shows all times in UTC from now on (`--utc`), not in the zone of this machine (`TZ`, `/etc/localtime`).
pub fn show_utc() {
    // It is called before the first time is shown.
    let _ = ZONE.set(TimeZone::UTC);
}

/// The time now, and the zone in which times are shown.
#[derive(Clone, Debug)]
pub struct Clock {
    now: SystemTime,
    zone: TimeZone,
}

impl Clock {
    /// Now.
    pub fn now() -> Clock {
        Clock { now: SystemTime::now(), zone: ZONE.get_or_init(TimeZone::system).clone() }
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

    /// The time of day so long after now.
    pub fn after(&self, wait: Duration) -> String {
        let Ok(time) = Timestamp::try_from(self.now + wait) else { return UNKNOWN.to_owned() };
        time.to_zoned_datetime(self.zone.clone()).strftime("%H:%M:%S").to_string()
    }

    /// A message with its times as this clock shows them. A time within an address or in quotes is not one of ours.
    pub fn localized(&self, message: &str) -> String {
        let shown = |word: &str| {
            let plain =
                word.trim_start_matches('(').trim_end_matches(|c: char| c.is_whitespace() || ",;:.)".contains(c));
            let time: Timestamp = plain.ends_with('Z').then(|| plain.parse().ok()).flatten()?;
            Some(word.replacen(plain, &self.time(time), 1))
        };
        message
            .split_inclusive(char::is_whitespace)
            .map(|word| shown(word).unwrap_or_else(|| word.to_owned()))
            .collect()
    }

    /// How long ago it was; zero where it was not yet.
    pub fn since(&self, time: Timestamp) -> Duration {
        let now = Timestamp::try_from(self.now).unwrap_or(Timestamp::MIN);
        now.duration_since(time).try_into().unwrap_or_default()
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

    #[test]
    fn a_duration_has_the_unit_that_fits_it() {
        let shown = [0.09, 1.5, 119.0, 120.0, 7200.0, 172_800.0].map(|it| duration(Duration::from_secs_f64(it)));

        assert_eq!(shown, ["90 ms", "1 s", "119 s", "2 min", "2 h", "2 days"]);
    }

    #[test]
    fn no_word_is_broken_at_the_edge_of_a_terminal() {
        let text =
            "Hosts        repo.example.org: 12 requests, 3 kB\nErrors       a word http://repo.example.org/long\n";

        let shown = "Hosts        repo.example.org: 12\n             requests, 3 kB\n\
                     Errors       a word\n             http://repo.example.org/long\n";
        assert_eq!(wrapped(text, 35, false), shown);
        let cut = "             http://repo.example.or\n             g/long\n";
        assert!(wrapped(text, 35, true).ends_with(cut), "{}", wrapped(text, 35, true));
        assert_eq!(wrapped(text, 80, true), text);
    }

    #[test]
    fn numbers_are_grouped_by_three() {
        assert_eq!([0, 999, 1000, 654_832].map(thousands), ["0", "999", "1,000", "654,832"]);
    }

    #[test]
    fn what_a_terminal_would_obey_is_not_printed() {
        assert_eq!(printable("a\x1b[31mb\u{9b}c\u{202e}\n"), "a\u{fffd}[31mb\u{fffd}c\u{fffd}\n");
        assert_eq!(printable("a\u{ad}\u{61c}\u{2028}\u{e0041}\té"), "a\u{fffd}\u{fffd}\u{fffd}\u{fffd}\té");
        assert_eq!(printable_value("a\nDeviations   none\t"), "a\u{fffd}Deviations   none\u{fffd}");
    }

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
    fn times_in_a_message_are_local_and_addresses_stay() {
        let clock = Clock { now: at(0), zone: TimeZone::fixed(jiff::tz::offset(2)) };
        let message = "http://h/2026-01-02T03:00:00Z.xml dates from 2026-01-02T03:00:00.123456789Z and is older than the list of \
                       2026-01-02T04:00:00Z (2026-01-02T05:00:00Z): at=2026-01-02T03:00:00Z";

        let shown = clock.localized(message);

        let expected = "http://h/2026-01-02T03:00:00Z.xml dates from 2026-01-02 05:00:00 and is older than the list of \
                        2026-01-02 06:00:00 (2026-01-02 07:00:00): at=2026-01-02T03:00:00Z";
        assert_eq!(shown, expected);
        assert_eq!(
            Clock::at(at(0)).localized("as of 2026-01-02T03:00:00Z:\n no"),
            "as of 2026-01-02 03:00:00 UTC:\n no"
        );
    }

    #[test]
    fn local_time_carries_no_mark_of_utc() {
        let clock = Clock { now: at(0), zone: TimeZone::fixed(jiff::tz::offset(2)) };

        assert_eq!(clock.time(at(1_767_322_800)), "2026-01-02 05:00:00");
    }
}
