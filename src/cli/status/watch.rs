//! `resyncfs status --watch`: the screen every second, until a signal or the end of the mount.

use super::earlier::Earlier;
use super::screen::screen;
use super::{Answers, Which};
use crate::cli::render::{Clock, printable};
use crate::cli::{CliError, Exit};
use crate::mount::status::Status;
use futures_util::{StreamExt, stream};
use rustix::process::{getpid, kill_process};
use rustix::termios::tcgetwinsize;
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Between two drawings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The alternate screen, no cursor, and lines that are cut at its edge (xterm's control sequences; DEC private modes).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// All of that undone.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// To the upper left corner.
const HOME: &str = "\x1b[H";
/// Erases the rest of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Erases the lines below.
const END_OF_SCREEN: &str = "\x1b[J";

/// Draws until a signal (success) or until no mount answers (an error).
pub async fn run(which: &Which) -> Result<u8, CliError> {
    let failed = |cause: io::Error| CliError::of(Exit::Failure, &cause);
    let mut end = End::receive().map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let mut stopped = signal(SignalKind::from_raw(libc::SIGTSTP)).map_err(failed)?;
    let mut rates = Rates::default();
    // A failure before the first screen reads as without --watch.
    let mut text = rates.text(&which.ask().await?, &Clock::now());
    let terminal = Terminal::enter().map_err(failed)?;
    let mut polls = pin!(stream::unfold((), async |()| {
        tokio::time::sleep(INTERVAL).await;
        Some((which.ask().await, ()))
    }));
    let mut is_drawn = false;
    loop {
        // A stream has no size, so each text goes into it once.
        if terminal.is_screen || !is_drawn {
            match terminal.draw(&text) {
                Err(cause) if is_over(&cause) => return Ok(Exit::Success as u8),
                drawn => drawn.map_err(failed)?,
            }
        }
        is_drawn = true;
        tokio::select! {
            Some(answers) = polls.next() => {
                text = rates.text(&answers.map_err(ended)?, &Clock::now());
                is_drawn = false;
            }
            Some(()) = resized.recv() => terminal.erase(),
            Some(()) = stopped.recv() => terminal.stop().map_err(failed)?,
            () = end.come() => return Ok(Exit::Success as u8),
        }
    }
}

/// The failure of a mount that has answered before.
fn ended(failure: CliError) -> CliError {
    CliError::new(Exit::MountPoint, format!("the mount has ended or does not answer any more: {}", failure.message))
}

/// Whether the terminal or the reader of the pipe is gone.
fn is_over(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::BrokenPipe || cause.raw_os_error() == Some(libc::EIO)
}

/// The last status of each mount, by its folder and process, and when it arrived.
#[derive(Default)]
struct Rates(HashMap<(String, u32), (Instant, Status)>);

impl Rates {
    /// The text of all screens, with the rates since the last call.
    fn text(&mut self, answers: &Answers<Status>, clock: &Clock) -> String {
        let now = Instant::now();
        let before = std::mem::take(&mut self.0);
        let mut screens = Vec::new();
        for status in &answers.statuses {
            let mount = (status.directory.clone(), status.process);
            let earlier = before.get(&mount);
            let earlier = earlier.map(|(then, status)| Earlier { status, ago: now.duration_since(*then) });
            screens.push(screen(status, clock, earlier));
            self.0.insert(mount, (now, status.clone()));
        }
        screens.extend(Some(answers.notes()).filter(|notes| !notes.is_empty()));
        printable(&screens.join("\n"))
    }
}

/// The signals that end the program.
struct End([Signal; 3]);

impl End {
    fn receive() -> io::Result<End> {
        let [interrupt, terminate, hangup] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(End([signal(interrupt)?, signal(terminate)?, signal(hangup)?]))
    }

    async fn come(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Standard output: the alternate screen of a terminal, or a plain stream of screens.
struct Terminal {
    is_screen: bool,
}

impl Terminal {
    fn enter() -> io::Result<Terminal> {
        let terminal = Terminal { is_screen: io::stdout().is_terminal() };
        terminal.control(ENTER)?;
        Ok(terminal)
    }

    /// Writes a control sequence where the output is a terminal.
    fn control(&self, sequence: &str) -> io::Result<()> {
        if !self.is_screen {
            return Ok(());
        }
        let mut output = io::stdout().lock();
        output.write_all(sequence.as_bytes())?;
        output.flush()
    }

    /// Draws over the last screen.
    fn draw(&self, text: &str) -> io::Result<()> {
        let mut output = io::stdout().lock();
        if self.is_screen {
            output.write_all(fitted(text, rows()).as_bytes())?;
        } else {
            writeln!(output, "{text}")?;
        }
        output.flush()
    }

    /// Erases the screen of the old size.
    fn erase(&self) {
        // Where the terminal is gone, the next drawing fails.
        let _ = self.control("\x1b[2J");
    }

    /// Ctrl-Z: gives the screen to the shell until it continues this process.
    fn stop(&self) -> io::Result<()> {
        self.control(LEAVE)?;
        kill_process(getpid(), rustix::process::Signal::STOP)?;
        self.control(ENTER)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no repair.
        let _ = self.control(LEAVE);
    }
}

/// The screen for a terminal of `rows` rows; the last row counts the lines that do not fit.
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

/// Rows of the terminal; 24 where it has no size.
fn rows() -> usize {
    let rows = tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row);
    if rows > 0 { usize::from(rows) } else { 24 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_never_scrolls_and_counts_hidden_lines() {
        for (lines, rows) in [(3, 24), (24, 24), (25, 24), (100, 24), (5, 1)] {
            let text: String = (0..lines).map(|line| format!("line {line}\n")).collect();

            let drawn = fitted(&text, rows);

            assert!(drawn.matches("\r\n").count() < rows, "{lines} lines in {rows} rows");
            assert_eq!(drawn.contains("more lines"), lines > rows, "{lines} lines in {rows} rows");
            assert_eq!(drawn.contains(&format!("line {}\x1b", lines - 1)), lines <= rows);
        }
    }
}
