//! What a person sees while the first tree is being made: one live line on a terminal, plain lines otherwise; and what is to be
//! known of the tree once it is there.

use super::render::printable;
use crate::mount::service::stderr_is_journal;
use crate::sync::Stage;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause between two pictures on a terminal.
const LIVE_STEP: Duration = Duration::from_millis(100);
/// Pause between two plain lines.
const PLAIN_STEP: Duration = Duration::from_secs(10);

/// The progress of one baseline; clones share it.
#[derive(Clone)]
pub struct Progress {
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    live: bool,
    began: Instant,
    last: Option<Instant>,
    line: String,
    /// What is to be known of the tree.
    remarks: Vec<Box<str>>,
}

impl Progress {
    /// Progress on standard error.
    pub fn new() -> Progress {
        let (live, line, remarks) = (std::io::stderr().is_terminal(), String::new(), Vec::new());
        let shown = Shown { live, began: Instant::now(), last: None, line, remarks };
        Progress { shown: Arc::new(Mutex::new(shown)) }
    }

    /// The function that a refresh reports its stages to.
    pub fn shower(&self) -> impl Fn(Stage) + Send + Sync + 'static {
        let progress = self.clone();
        move |stage| progress.show(stage)
    }

    /// Clears the live line, and says what is to be known of the tree. In the foreground, and in the journal, the log has said it.
    pub fn finish(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.live && !shown.line.is_empty() {
            say(format_args!("\r\x1b[K"));
            shown.line.clear();
        }
        let remarks = shown.remarks.drain(..).filter(|_| !stderr_is_journal());
        remarks.for_each(|remark| say(format_args!("resyncfs: {}\n", printable(&remark))));
    }

    fn show(&self, stage: Stage) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Remark(remark) = stage {
            shown.remarks.push(remark);
            return;
        }
        let step = if shown.live { LIVE_STEP } else { PLAIN_STEP };
        // A plain log says nothing of a baseline that is over within the first step, but why nothing comes at once.
        let since = shown.last.unwrap_or(shown.began);
        if since.elapsed() < step && !matches!(stage, Stage::Unanswered(_)) {
            return;
        }
        shown.last = Some(Instant::now());
        shown.line = sentence(stage);
        if shown.live {
            say(format_args!("\r\x1b[K{}", shown.line));
        } else {
            say(format_args!("resyncfs: {} ({} s)\n", shown.line, shown.began.elapsed().as_secs()));
        }
    }
}

/// A terminal that is gone must not end a mount.
fn say(text: std::fmt::Arguments<'_>) {
    let mut output = std::io::stderr().lock();
    let _ = output.write_fmt(text).and_then(|()| output.flush());
}

fn sentence(stage: Stage) -> String {
    match stage {
        Stage::Discovering => "looking for the Source's documents".to_owned(),
        Stage::Unanswered(why) => format!("{}; it is asked again", printable(&why)),
        Stage::Remark(remark) => printable(&remark),
        Stage::Fetching(so_far) => {
            let size = so_far.bytes as f64 / 1e6;
            format!("fetching documents: {} of {}, {size:.1} MB", so_far.documents, so_far.known)
        }
        Stage::Reading(entries) => format!("reading lists: {entries} entries"),
        Stage::Committing => "writing the catalog".to_owned(),
    }
}
