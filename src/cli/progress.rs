//! The progress of a long command on standard error: one live line on a terminal, otherwise a line every 30 seconds.

use super::render::{Clock, count, duration, printable, printable_value, size, thousands};
use crate::mount::systemd::stderr_is_journal;
use crate::source::http::Pace;
use crate::sync::Stage;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two pictures of the live line.
const LIVE_STEP: Duration = Duration::from_millis(100);
/// Time between two lines where there is no terminal.
const LINE_STEP: Duration = Duration::from_secs(30);
/// A rate over less time is not shown.
const MEASURED: Duration = Duration::from_secs(1);

/// The state of one activity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// `downloading lists`
    pub activity: &'static str,
    /// The things that are counted, in the singular: `file`. Empty if nothing is counted.
    pub unit: &'static str,
    /// The number of things done.
    pub done: u64,
    /// The number of all, if it is known.
    pub of: Option<u64>,
    /// Bytes received.
    pub bytes: u64,
    /// The number of all, if it is known.
    pub of_bytes: Option<u64>,
    /// The host that paces it.
    pub pace: Option<Pace>,
}

impl Activity {
    /// An activity that counts nothing.
    pub fn of(activity: &'static str) -> Activity {
        Activity { activity, ..Activity::default() }
    }

    /// Landing pages that are read, of all that are to be.
    pub fn pages(read: u64, all: u64) -> Activity {
        Activity { activity: "reading landing pages", unit: "page", done: read, of: Some(all), ..Activity::default() }
    }

    /// A stage of a refresh; of one that is a message it has no more than that.
    pub fn of_stage(stage: &Stage) -> Activity {
        match stage {
            Stage::Unanswered(_) | Stage::Remark(_) => Activity::default(),
            Stage::Discovering => Activity::of("looking for the Source's documents"),
            Stage::Fetching(so_far) => Activity {
                activity: "downloading lists",
                unit: "document",
                done: so_far.documents,
                of: Some(so_far.known),
                bytes: so_far.bytes,
                of_bytes: so_far.of_bytes,
                pace: None,
            },
            Stage::Reading(entries) => {
                Activity { activity: "reading lists", unit: "resource", done: *entries, ..Activity::default() }
            }
            Stage::Committing => Activity::of("writing the catalog"),
        }
    }

    /// A line of the work done, its total, the rate, and the time left, `elapsed` after the activity began.
    pub fn line(&self, elapsed: Duration) -> String {
        let mut parts = Vec::new();
        if !self.unit.is_empty() {
            parts.push(match self.of {
                Some(of) => format!("{} of {}", thousands(self.done), count(of, self.unit)),
                None => count(self.done, self.unit),
            });
        }
        match self.of_bytes {
            Some(of) => parts.push(format!("{} of {}", size(self.bytes), size(of))),
            None if self.bytes > 0 => parts.push(size(self.bytes)),
            None => {}
        }
        if elapsed >= MEASURED {
            let rate = |amount: u64| (amount as f64 / elapsed.as_secs_f64()) as u64;
            match (rate(self.bytes), rate(self.done)) {
                (0, 0) => {}
                (0, done) => parts.push(format!("{}/s", thousands(done))),
                (bytes, _) => parts.push(format!("{}/s", size(bytes))),
            }
            parts.extend(self.time_left(elapsed).map(|left| format!("about {} left", duration(left))));
        }
        if let Some(Pace { host, requests_per_minute, .. }) = &self.pace {
            parts.push(format!("{host} allows {} a minute", count(*requests_per_minute, "request")));
        }
        if parts.is_empty() { self.activity.to_owned() } else { format!("{}: {}", self.activity, parts.join(", ")) }
    }

    /// True if the same activity began again since `before`, as with the next list. A file that fails takes its bytes back, and counts.
    fn begins_again(&self, before: &Activity) -> bool {
        self.done < before.done && self.bytes < before.bytes
    }

    /// The time left by what was done so far, and at least what the limit of the host needs. Nothing below a second.
    fn time_left(&self, elapsed: Duration) -> Option<Duration> {
        let least = self.pace.as_ref().map(|pace| Duration::from_secs(pace.least)).filter(|left| !left.is_zero());
        self.time_by_rate(elapsed).max(least)
    }

    /// The time left by bytes where their sum is known, else by the things counted.
    fn time_by_rate(&self, elapsed: Duration) -> Option<Duration> {
        let (done, of) = match (self.of_bytes, self.of) {
            (Some(of), _) => (self.bytes, of),
            (None, Some(of)) => (self.done, of),
            (None, None) => return None,
        };
        let left = of.checked_sub(done).filter(|_| done > 0)?;
        let left = Duration::try_from_secs_f64(elapsed.as_secs_f64() * left as f64 / done as f64).ok()?;
        (left >= Duration::from_secs(1)).then_some(left)
    }
}

/// Progress shown on standard error until the last clone is dropped, or [`Progress::finish`].
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Display>>);

impl Progress {
    /// Starts the display. `logs` says that log lines go to standard error too; then the progress is printed in whole lines.
    pub fn start(logs: bool) -> Progress {
        let is_live = !logs && std::io::stderr().is_terminal();
        let step = if is_live { LIVE_STEP } else { LINE_STEP };
        let display = Arc::new(Mutex::new(Display::new(is_live, Box::new(std::io::stderr()))));
        let drawn = Arc::downgrade(&display);
        let draw = move || loop {
            std::thread::sleep(step);
            let Some(display) = drawn.upgrade() else { return };
            let mut display = lock(&display);
            if display.is_over {
                return;
            }
            display.draw(Instant::now());
        };
        // Without that thread the command does its work all the same.
        let _ = std::thread::Builder::new().name("progress".into()).spawn(draw);
        Progress(display)
    }

    /// Shows `work` from now on.
    pub fn report(&self, work: Activity) {
        lock(&self.0).report(work, Instant::now());
    }

    /// The function that a refresh reports its stages to.
    pub fn stages(&self) -> impl Fn(Stage) + Send + Sync + 'static {
        let progress = self.clone();
        move |stage| progress.stage(stage)
    }

    /// Shows a stage of a refresh.
    pub fn stage(&self, stage: Stage) {
        match stage {
            Stage::Unanswered(why) => self.message(&format!("{why}; trying again")),
            Stage::Remark(remark) => lock(&self.0).remarks.push(remark),
            stage => self.report(Activity::of_stage(&stage)),
        }
    }

    /// Prints a whole line, which begins with the program's name.
    pub fn message(&self, text: &str) {
        lock(&self.0).message(text);
    }

    /// Runs `print`, which writes whole lines to the terminal, while no live line stands there.
    pub fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        let mut display = lock(&self.0);
        display.clear();
        print()
    }

    /// Ends the display.
    pub fn finish(&self) {
        lock(&self.0).end();
    }

    /// Prints the remarks on a new tree. The journal has them from the log.
    pub fn print_remarks(&self) {
        let mut display = lock(&self.0);
        let remarks = std::mem::take(&mut display.remarks);
        remarks.iter().filter(|_| !stderr_is_journal()).for_each(|remark| display.message(remark));
    }
}

fn lock(display: &Mutex<Display>) -> MutexGuard<'_, Display> {
    display.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The line that is shown, and the output it goes to.
struct Display {
    is_live: bool,
    output: Box<dyn Write + Send>,
    began: Instant,
    /// The work under way, and the time when it began.
    current: Option<(Activity, Instant)>,
    /// True while a live line is on the terminal.
    is_drawn: bool,
    /// Nothing more is drawn.
    is_over: bool,
    /// Remarks on the new tree for a person.
    remarks: Vec<Box<str>>,
}

impl Drop for Display {
    fn drop(&mut self) {
        self.end();
    }
}

impl Display {
    fn new(is_live: bool, output: Box<dyn Write + Send>) -> Display {
        let began = Instant::now();
        Display { is_live, output, began, current: None, is_drawn: false, is_over: false, remarks: Vec::new() }
    }

    fn report(&mut self, work: Activity, now: Instant) {
        let since = match &self.current {
            Some((before, since)) if before.activity == work.activity && !work.begins_again(before) => *since,
            _ => now,
        };
        self.current = Some((work, since));
    }

    fn draw(&mut self, now: Instant) {
        let Some((work, since)) = &self.current else { return };
        let line = printable_value(&work.line(now.duration_since(*since)));
        if self.is_live {
            self.is_drawn = true;
            // The line is cut at the edge: a terminal that wraps it could not clear it.
            self.write(&format!("\r\x1b[K\x1b[?7l{line}\x1b[?7h"));
        } else {
            let so_far = duration(now.duration_since(self.began));
            self.message(&format!("{line} (after {so_far})"));
        }
    }

    fn message(&mut self, text: &str) {
        self.clear();
        self.write(&format!("resyncfs: {}\n", printable(&Clock::now().localized(text))));
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            self.write("\r\x1b[K");
        }
    }

    fn end(&mut self) {
        self.is_over = true;
        self.clear();
    }

    /// A terminal that is gone must not end the command.
    fn write(&mut self, text: &str) {
        let _ = self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Screen {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[test]
    fn a_line_has_amount_rate_and_time_left() {
        let files =
            Activity { activity: "comparing", unit: "file", done: 2_000, of: Some(6_000), ..Activity::default() };
        let bytes = Activity { bytes: 1_000_000, of_bytes: Some(4_000_000), ..files.clone() };
        let unknown = Activity { of: None, of_bytes: None, ..bytes.clone() };
        let all = Activity { done: 6_000, ..files.clone() };
        let shown = |work: &Activity, seconds| work.line(Duration::from_secs(seconds));

        assert_eq!(shown(&files, 0), "comparing: 2,000 of 6,000 files", "nothing is measured at the beginning");
        assert_eq!(shown(&files, 10), "comparing: 2,000 of 6,000 files, 200/s, about 20 s left");
        assert_eq!(
            shown(&bytes, 100),
            "comparing: 2,000 of 6,000 files, 1.0 MB of 4.0 MB, 10.0 kB/s, about 5 min left",
            "bytes decide"
        );
        assert_eq!(shown(&unknown, 10), "comparing: 2,000 files, 1.0 MB, 100.0 kB/s");
        assert_eq!(shown(&all, 10), "comparing: 6,000 of 6,000 files, 600/s");
        assert_eq!(shown(&Activity { done: 0, ..files.clone() }, 10), "comparing: 0 of 6,000 files");
        assert_eq!(shown(&Activity::of("writing the catalog"), 10), "writing the catalog");
        let pace = |least| Some(Pace { host: "h".into(), requests_per_minute: 60, least });
        let paced = |least| shown(&Activity { pace: pace(least), ..files.clone() }, 10);
        assert_eq!(
            paced(4_000),
            "comparing: 2,000 of 6,000 files, 200/s, about 66 min left, h allows 60 requests a minute"
        );
        assert!(paced(0).contains("about 20 s left"), "the limit is no obstacle");
    }

    #[test]
    fn a_rate_is_that_of_the_present_activity() {
        let screen = Screen::default();
        let mut display = Display::new(false, Box::new(screen.clone()));
        let began = display.began;
        let at = |seconds| began + Duration::from_secs(seconds);
        let reading = |done| Activity { activity: "reading", unit: "list", done, ..Activity::default() };

        display.report(Activity::of("looking"), at(0));
        display.draw(at(30));
        display.report(reading(0), at(50));
        display.report(reading(30), at(60));
        display.draw(at(60));

        assert_eq!(screen.text(), "resyncfs: looking (after 30 s)\nresyncfs: reading: 30 lists, 3/s (after 60 s)\n");
    }

    #[test]
    fn the_next_list_has_a_rate_of_its_own() {
        let screen = Screen::default();
        let mut display = Display::new(false, Box::new(screen.clone()));
        let began = display.began;
        let at = |seconds| began + Duration::from_secs(seconds);
        let list =
            |done, bytes| Activity { activity: "list", done, bytes, of_bytes: Some(4_000_000), ..Activity::default() };

        display.report(list(0, 0), at(0));
        display.report(list(1, 4_000_000), at(90));
        display.report(list(0, 0), at(90));
        display.report(list(0, 1_000_000), at(100));
        display.draw(at(100));

        let text = screen.text();
        assert!(text.starts_with("resyncfs: list: 1.0 MB of 4.0 MB, 100.0 kB/s, about 30 s left ("), "{text}");
    }

    #[test]
    fn a_message_replaces_the_live_line() {
        let screen = Screen::default();
        let mut display = Display::new(true, Box::new(screen.clone()));

        display.report(Activity::of("looking"), display.began);
        display.draw(display.began);
        display.message("no\x1b answer");
        display.end();

        assert_eq!(screen.text(), "\r\x1b[K\x1b[?7llooking\x1b[?7h\r\x1b[Kresyncfs: no\u{fffd} answer\n");
    }
}
