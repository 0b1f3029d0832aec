//! `resyncfs status --watch`: the screen every second, until a signal or the end of the mount.

use super::screen::{Earlier, screen};
use super::{Answers, ask};
use crate::cli::render::{Clock, wrapped_here};
use crate::cli::{CliError, Exit};
use crate::mount::status::Status;
use rustix::process::{getpid, kill_process};
use rustix::termios::tcgetwinsize;
use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Between two drawings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The alternate screen, no cursor, and lines that end at its edge (xterm's control sequences; DEC private modes).
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
pub async fn run(directory: Option<&Path>) -> Result<Exit, CliError> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut stopped = signal(SignalKind::from_raw(libc::SIGTSTP))?;
    let mut rates = Rates::default();
    // A failure before the first screen reads as without --watch.
    let answers = ask(directory).await?;
    if answers.statuses.is_empty() {
        answers.report_none();
        return Ok(Exit::Success);
    }
    let mut text = rates.text(&answers);
    let terminal = Terminal::enter()?;
    loop {
        match terminal.draw(&text) {
            Err(cause) if is_over(&cause) => return Ok(Exit::Success),
            drawn => drawn?,
        }
        let next = async {
            tokio::time::sleep(INTERVAL).await;
            ask(directory).await
        };
        tokio::select! {
            answers = next => text = rates.text(&answers.map_err(ended)?),
            _ = stopped.recv() => terminal.stop()?,
            _ = interrupt.recv() => return Ok(Exit::Success),
            _ = terminate.recv() => return Ok(Exit::Success),
            _ = hangup.recv() => return Ok(Exit::Success),
        }
    }
}

/// The failure of a mount that has answered before.
fn ended(failure: CliError) -> CliError {
    CliError::new(Exit::MountPoint, format!("the mount has ended or does not answer any more: {}", failure.message))
}

/// True if the terminal or the reader of the pipe is gone.
fn is_over(cause: &io::Error) -> bool {
    cause.kind() == io::ErrorKind::BrokenPipe || cause.raw_os_error() == Some(libc::EIO)
}

/// The last status of each mount, by its folder and process, and when it arrived.
#[derive(Default)]
struct Rates(HashMap<(String, u32), (Instant, Status)>);

impl Rates {
    /// The text of all screens, with the rates since the last call.
    fn text(&mut self, answers: &Answers<Status>) -> String {
        let (now, clock) = (Instant::now(), Clock::now());
        let before = std::mem::take(&mut self.0);
        answers.text(|status| {
            let mount = (status.directory.clone(), status.process);
            let earlier = before.get(&mount);
            let earlier = earlier.map(|(then, status)| Earlier { status, ago: now.duration_since(*then) });
            self.0.insert(mount, (now, status.clone()));
            screen(status, &clock, earlier)
        })
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
            output.write_all(fitted(&wrapped_here(text, true), rows()).as_bytes())?;
        } else {
            writeln!(output, "{text}")?;
        }
        output.flush()
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
    let mut lines: Vec<_> = text.lines().map(|line| format!("{line}{END_OF_LINE}")).collect();
    let hidden = lines.split_off(lines.len().min(rows)).len();
    if let Some(last) = lines.last_mut().filter(|_| hidden > 0) {
        *last = format!("… and {} more lines (a taller window, or without --watch){END_OF_LINE}", hidden + 1);
    }
    format!("{HOME}{}{END_OF_SCREEN}", lines.join("\r\n"))
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
