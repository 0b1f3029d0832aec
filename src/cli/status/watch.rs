//! `resyncfs status --watch`: the screen every second, until somebody ends it or the mount ends.

use super::screen::screen;
use super::{Heard, Which};
use crate::cli::render::printable;
use crate::cli::{CliError, Exit};
use crate::mount::status::Status;
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Between two drawings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The other screen, no cursor, and lines that are cut at its edge (xterm's control sequences; DEC private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// All of that undone.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Away with the rest of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Away with what is below.
const END_OF_SCREEN: &str = "\x1b[J";

/// An earlier status, for rates.
#[derive(Clone, Debug)]
pub struct Earlier {
    /// What it was.
    pub status: Status,
    /// How long ago.
    pub ago: Duration,
}

/// Draws until a signal ends it (success) or nothing is mounted any more (an error that says so).
pub async fn run(which: &Which) -> Result<u8, CliError> {
    let failed = |cause: io::Error| CliError::of(Exit::Failure, &cause);
    let mut signals = Signals::receive().map_err(failed)?;
    // What is wrong from the first is said as without --watch.
    let mut heard: Heard<Status> = which.ask().await?;
    let mut before = HashMap::new();
    let mut terminal = Terminal::enter().map_err(failed)?;
    loop {
        let text = drawn(&heard, &mut before);
        let next = tokio::time::Instant::now() + INTERVAL;
        loop {
            match terminal.draw(&text) {
                Err(cause) if is_over(&cause) => return Ok(Exit::Success as u8),
                drawn => drawn.map_err(failed)?,
            }
            match signals.next_until(next).await {
                Happened::Time => break,
                Happened::Resized => terminal.has_another_size(),
                Happened::Stopped => terminal.stop().map_err(failed)?,
                Happened::Ended => return Ok(Exit::Success as u8),
            }
            if !terminal.is_screen {
                break;
            }
        }
        heard = tokio::select! {
            heard = which.ask() => heard.map_err(ended)?,
            () = signals.ended() => return Ok(Exit::Success as u8),
        };
    }
}

/// What a mount's silence means after it has answered once.
fn ended(silent: CliError) -> CliError {
    CliError::new(Exit::MountPoint, format!("the mount has ended or does not answer any more: {}", silent.message))
}

/// Whether nobody reads any more.
fn is_over(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::BrokenPipe || cause.raw_os_error() == Some(libc::EIO)
}

/// The text of all screens; what is told now is what was told `before` to the next.
fn drawn(heard: &Heard<Status>, before: &mut HashMap<(String, u32), (Instant, Status)>) -> String {
    let (now, clock) = (Instant::now(), SystemTime::now());
    let mut screens = Vec::new();
    let mut seen = HashMap::new();
    for status in &heard.told {
        let mount = (status.directory.clone(), status.process);
        let earlier = before.remove(&mount).map(|(then, status)| Earlier { status, ago: now.duration_since(then) });
        screens.push(screen(status, clock, earlier.as_ref()));
        seen.insert(mount, (now, status.clone()));
    }
    *before = seen;
    screens.extend(Some(heard.notes()).filter(|notes| !notes.is_empty()));
    printable(&screens.join("\n"))
}

enum Happened {
    Time,
    Resized,
    Stopped,
    Ended,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    resized: Signal,
    stop: Signal,
}

impl Signals {
    fn receive() -> io::Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
        })
    }

    async fn next_until(&mut self, time: tokio::time::Instant) -> Happened {
        tokio::select! {
            _ = self.interrupt.recv() => Happened::Ended,
            _ = self.terminate.recv() => Happened::Ended,
            _ = self.hangup.recv() => Happened::Ended,
            _ = self.resized.recv() => Happened::Resized,
            _ = self.stop.recv() => Happened::Stopped,
            () = tokio::time::sleep_until(time) => Happened::Time,
        }
    }

    async fn ended(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Standard output: a terminal's other screen, or a plain stream of screens.
struct Terminal {
    is_screen: bool,
}

impl Terminal {
    fn enter() -> io::Result<Terminal> {
        let terminal = Terminal { is_screen: io::stdout().is_terminal() };
        terminal.say(ENTER)?;
        Ok(terminal)
    }

    /// Writes to a terminal and to nothing else.
    fn say(&self, sequence: &str) -> io::Result<()> {
        if !self.is_screen {
            return Ok(());
        }
        let mut output = io::stdout().lock();
        output.write_all(sequence.as_bytes())?;
        output.flush()
    }

    /// Draws over what was there.
    fn draw(&mut self, text: &str) -> io::Result<()> {
        let mut output = io::stdout().lock();
        if self.is_screen {
            output.write_all(fitted(text, rows()).as_bytes())?;
        } else {
            writeln!(output, "{text}")?;
        }
        output.flush()
    }

    /// Wipes what another width has left.
    fn has_another_size(&self) {
        // The next drawing finds out whether there still is a terminal.
        let _ = self.say("\x1b[2J");
    }

    /// ^Z: the shell gets its screen, until it wakes us.
    fn stop(&self) -> io::Result<()> {
        self.say(LEAVE)?;
        // SAFETY: raise(3) has no memory preconditions.
        unsafe { libc::raise(libc::SIGSTOP) };
        self.say(ENTER)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing undone.
        let _ = self.say(LEAVE);
    }
}

/// The screen for a terminal of so many rows; what does not fit is told of in the last.
fn fitted(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() > rows { rows.saturating_sub(1) } else { lines.len() };
    let mut drawn = String::from(HOME);
    for (index, line) in lines[..shown].iter().enumerate() {
        let end = if index + 1 < rows { "\r\n" } else { "" };
        drawn.push_str(&format!("{line}{END_OF_LINE}{end}"));
    }
    if shown < lines.len() {
        let more = lines.len() - shown;
        drawn.push_str(&format!("… and {more} more lines (a taller window, or without --watch){END_OF_LINE}"));
    } else {
        drawn.push_str(END_OF_SCREEN);
    }
    drawn
}

/// Rows of the terminal (tty_ioctl(4)); 24 where it does not tell.
fn rows() -> usize {
    // SAFETY: all zeros is a valid winsize, a plain C struct of numbers.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: `size` is a winsize for TIOCGWINSZ to fill in, living through the call.
    let told = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    if told == 0 && size.ws_row > 0 { usize::from(size.ws_row) } else { 24 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_never_scrolls_and_tells_what_does_not_fit() {
        for (lines, rows) in [(3, 24), (24, 24), (25, 24), (100, 24), (5, 1)] {
            let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();

            let drawn = fitted(&text, rows);

            assert!(drawn.matches("\r\n").count() < rows, "{lines} lines in {rows} rows");
            assert_eq!(drawn.contains("more lines"), lines > rows, "{lines} lines in {rows} rows");
            assert_eq!(drawn.contains(&format!("line {}\x1b", lines - 1)), lines <= rows);
        }
    }
}
