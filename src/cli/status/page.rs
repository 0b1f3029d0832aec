//! `resyncfs status --html`: the state of mounts as one page that needs nothing else: no script, no file, no network. It shows what a
//! person looks for first: is it well, what is downloading, how full is the cache, how do the hosts answer, what went wrong.

use super::check::{Level, judged};
use super::screen::contents;
use super::{Answers, CliError, Exit};
use crate::cli::progress::Activity;
use crate::cli::refresh::sentence;
use crate::cli::render::{Clock, count, duration, printable_value, size, some, thousands};
use crate::content::Metrics;
use crate::mount::status::{DownloadStatus, ErrorStatus, MinuteStatus, Status};
use crate::source::http::HostTraffic;
use crate::sync::status::SyncStatus;
use std::fmt::Write as _;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// The looks of the page, light and dark, on narrow and wide screens.
const STYLE: &str = include_str!("page.css");
/// Rows of a list.
const MOST_SHOWN: usize = 20;
/// The size of a curve in its own units.
const CURVE: (f64, f64) = (300.0, 60.0);

/// Writes the page to `file`, which is replaced as a whole: who loads it meanwhile gets the page before.
pub fn write(file: &Path, answers: &Result<Answers<Status>, CliError>, clock: &Clock) -> Result<(), CliError> {
    let failed = |cause: io::Error| CliError::at(Exit::Failure, file, format!("the page cannot be written: {cause}"));
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut new =
        tempfile::Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(folder).map_err(failed)?;
    new.write_all(page(answers, clock).as_bytes()).map_err(failed)?;
    new.persist(file).map_err(|cause| failed(cause.error))?;
    Ok(())
}

fn page(answers: &Result<Answers<Status>, CliError>, clock: &Clock) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (statuses, failures) = match answers {
        Ok(answers) => (&answers.statuses[..], &answers.failures[..]),
        Err(failure) => (&[][..], std::slice::from_ref(failure)),
    };
    let failed =
        failures.iter().map(|it| format!("<article><p class=\"critical\">{}</p></article>", text(&it.message)));
    let mut articles: String = failed.chain(statuses.iter().map(|status| article(status, clock))).collect();
    if articles.is_empty() {
        articles = "<article><p>No mounts.</p></article>".to_owned();
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>resyncfs on {host}</title><style>{STYLE}</style></head>\n<body><header><h1>resyncfs on {host}</h1></header>\n\
         <main>{articles}</main>\n<footer>Made {time}. Counters begin at zero with each mount.</footer></body></html>\n",
        host = text(&host),
        time = text(&clock.time(std::time::SystemTime::now()))
    )
}

/// One mount.
fn article(status: &Status, clock: &Clock) -> String {
    let (level, why) = judged(status, clock);
    let (class, state) = match level {
        Level::Ok => ("ok", "in step"),
        Level::Warning => ("warning", "warning"),
        Level::Critical => ("critical", "failing"),
    };
    let mut html = format!(
        "<article><div class=\"head\"><h2>{}</h2><span class=\"state {class}\">{state}</span></div>\n<p>{}</p>\n",
        text(&status.directory),
        link(&status.source)
    );
    if level != Level::Ok {
        let why = clock.localized(why.trim_start_matches(&*status.directory).trim_start_matches(": "));
        let _ = writeln!(html, "<p class=\"{class}\">{}</p>", text(&why));
    }
    let since = clock.when(status.mounted);
    let shown = match (&status.revision, &status.starting) {
        (_, Some(stage)) => format!("First tree, since {since}: {}", Activity::of_stage(stage).line(Duration::ZERO)),
        (Some(revision), _) => format!("{}; mounted since {since}", contents(revision)),
        (None, None) => format!("mounted since {since}"),
    };
    let _ = writeln!(html, "<p class=\"soft\">{}</p><div class=\"grid\">", text(&shown));
    html += &section("Cache", "", &cache(&status.cache));
    html += &curves(&status.minutes, status.cache.quota, clock);
    html += &section("Last refresh", "", &refreshes(&status.sync, clock));
    html += &list("Downloading now", status.downloads.iter().map(download));
    html += &hosts(&status.hosts);
    html += &list("Errors", status.errors.iter().map(|error| error_line(error, clock)));
    html + "</div></article>\n"
}

/// A section of HTML; none where its body is empty.
fn section(title: &str, class: &str, body: &str) -> String {
    match body {
        "" => String::new(),
        _ => format!("<section class=\"{class}\"><h3>{title}</h3>{body}</section>\n"),
    }
}

/// A section of lines of HTML; none where there are no lines.
fn list(title: &str, lines: impl ExactSizeIterator<Item = String>) -> String {
    let hidden = lines.len().saturating_sub(MOST_SHOWN);
    let mut items: String = lines.take(MOST_SHOWN).map(|line| format!("<li>{line}</li>")).collect();
    if hidden > 0 {
        let _ = write!(items, "<li class=\"soft\">and {hidden} more</li>");
    }
    if items.is_empty() { items } else { section(title, "wide", &format!("<ul>{items}</ul>")) }
}

fn cache(cache: &Metrics) -> String {
    let used = format!("{} of {}, {}", size(cache.bytes), size(cache.quota), count(cache.objects, "file"));
    let mut body = format!("{}<p>{}</p>", bar(cache.bytes, cache.quota, &used), text(&used));
    if let Some(rate) = cache.hit_rate() {
        let _ = write!(body, "<p>{:.0} % of reads answered from this machine</p>", rate * 100.0);
    }
    if let Some(failed) = some(cache.failed_reads, "read") {
        let _ = write!(body, "<p class=\"critical\">{failed} failed</p>");
    }
    body
}

/// A bar that is full where `part` is `all`.
fn bar(part: u64, all: u64, label: &str) -> String {
    let width = if all == 0 { 0.0 } else { 100.0 * (part as f64 / all as f64).min(1.0) };
    format!(
        "<svg class=\"bar\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 100 4\" preserveAspectRatio=\"none\">\
         <rect width=\"{width:.1}\" height=\"4\"/></svg>",
        text(label)
    )
}

/// Bytes a minute, and the use of the cache.
fn curves(minutes: &[MinuteStatus], quota: u64, clock: &Clock) -> String {
    let [first, .., last] = minutes else { return String::new() };
    let received = minutes.windows(2).filter_map(|pair| {
        let [before, now] = pair else { return None };
        let seconds = now.time.duration_since(before.time).as_secs_f64().max(1.0);
        Some(now.received_bytes.saturating_sub(before.received_bytes) as f64 * 60.0 / seconds)
    });
    let received: Vec<f64> = received.collect();
    let used: Vec<f64> = minutes.iter().map(|minute| minute.cache_bytes as f64).collect();
    let most = received.iter().copied().fold(0.0, f64::max);
    let ends =
        format!("<p class=\"ends\"><span>{}</span><span>{}</span></p>", clock.time(first.time), clock.time(last.time));
    let drawn = |title: &str, values: &[f64], top: f64, label: &str| {
        section(title, "", &format!("{}<p>{}</p>{ends}", curve(values, top, label), text(label)))
    };
    let (rate, now) = (format!("at most {} a minute", size(most as u64)), size(last.cache_bytes));
    drawn("Received", &received, most, &rate) + &drawn("Cache use", &used, quota as f64, &format!("now {now}"))
}

/// A curve of values up to `top`, from left to right.
fn curve(values: &[f64], top: f64, label: &str) -> String {
    let ((width, height), steps) = (CURVE, values.len().saturating_sub(1).max(1) as f64);
    // One value is a level line.
    let values = if let [only] = values { &[*only, *only] } else { values };
    let mut points = String::new();
    for (index, value) in values.iter().enumerate() {
        let part = if top > 0.0 { (value / top).clamp(0.0, 1.0) } else { 0.0 };
        let _ = write!(points, "{:.1},{:.1} ", index as f64 / steps * width, (1.0 - part) * (height - 2.0) + 1.0);
    }
    let points = points.trim_end();
    format!(
        "<svg class=\"curve\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\">\
         <path d=\"M0,{height} L{points} L{width},{height} Z\"/><polyline points=\"{points}\"/></svg>",
        text(label)
    )
}

fn refreshes(sync: &SyncStatus, clock: &Clock) -> String {
    let last = sync.last_refresh.as_ref();
    let last = last.map(|last| format!("{}: {}", clock.when(last.ended), sentence(&last.outcome, clock)));
    let next = sync.next_poll.map(|next| format!("Next: {}", clock.when(next)));
    let mut body: String = last.iter().chain(&next).map(|line| format!("<p>{}</p>", text(line))).collect();
    if let Some(pages) = sync.pages {
        let read = format!("{} of {} read", thousands(pages.read), count(pages.all, "landing page"));
        let _ = write!(body, "{}<p>{}</p>", bar(pages.read, pages.all, &read), text(&read));
    }
    body
}

fn download(download: &DownloadStatus) -> String {
    let of = download.of_bytes.map(|of| format!(" of {}", size(of))).unwrap_or_default();
    let far = format!("{}{of}", size(download.bytes));
    let drawn = download.of_bytes.map(|of| bar(download.bytes, of, &far)).unwrap_or_default();
    format!("{}, {}{drawn}", link(&download.uri), text(&far))
}

fn hosts(hosts: &[HostTraffic]) -> String {
    let row = |host: &HostTraffic| {
        let name = host.host.as_deref().unwrap_or("all others");
        let latency =
            host.latency.map_or_else(|| "?".to_owned(), |it| format!("{} ms", thousands(it.as_millis() as u64)));
        let limit = host.per_minute().map_or_else(String::new, |it| format!("{} a minute", thousands(it)));
        let pause = host.paused_for.or(host.paced_for).map(duration);
        let (class, state) = match pause {
            _ if host.is_failing() => ("critical", "does not answer".to_owned()),
            Some(pause) => ("warning", format!("waits {pause}")),
            None if host.is_slow() => ("warning", "slow".to_owned()),
            None => ("ok", "answers".to_owned()),
        };
        let errors = thousands(host.failures + host.refusals);
        let cells = [text(name), thousands(host.requests), size(host.bytes), latency, errors, limit];
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}<td class=\"{class}\">{state}</td></tr>")
    };
    if hosts.is_empty() {
        return String::new();
    }
    let rows: String = hosts.iter().take(MOST_SHOWN).map(row).collect();
    let head = ["Host", "Requests", "Received", "Answer time", "Errors", "Limit", "State"];
    let head: String = head.iter().map(|title| format!("<th>{title}</th>")).collect();
    section("Hosts", "wide", &format!("<table><tr>{head}</tr>{rows}</table>"))
}

fn error_line(error: &ErrorStatus, clock: &Clock) -> String {
    let uri = error.uri.as_deref().filter(|uri| !error.why.contains(uri)).map(|uri| format!("{}: ", link(uri)));
    format!(
        "<span class=\"soft\">{}</span> {}{}",
        text(&clock.when(error.time)),
        uri.unwrap_or_default(),
        text(&clock.localized(&error.why))
    )
}

/// An address as a link; a path as text.
fn link(address: &str) -> String {
    let shown = text(address);
    let is_web = ["http://", "https://"].iter().any(|scheme| address.starts_with(scheme));
    if is_web { format!("<a href=\"{shown}\" rel=\"noreferrer\">{shown}</a>") } else { shown }
}

/// Text of a Source as text of the page.
fn text(value: &str) -> String {
    printable_value(value).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::status::RevisionStatus;

    #[test]
    fn a_curve_goes_from_left_to_right_and_up_to_its_top() {
        let drawn = curve(&[0.0, 50.0, 100.0], 100.0, "x");

        assert!(drawn.contains("<polyline points=\"0.0,59.0 150.0,30.0 300.0,1.0\"/>"), "{drawn}");
        assert!(curve(&[5.0], 0.0, "x").contains("points=\"0.0,59.0 300.0,59.0\""), "a level line");
    }

    #[test]
    fn text_of_a_source_never_becomes_markup() {
        assert_eq!(text("<b a=\"1\">&\n"), "&lt;b a=&quot;1&quot;&gt;&amp;\u{fffd}");
        assert_eq!(link("javascript:alert(1)"), "javascript:alert(1)");
        assert!(link("http://h/\"x").starts_with("<a href=\"http://h/&quot;x\""));
        let failure = CliError::new(crate::cli::Exit::Failure, "<script>");
        assert!(page(&Err(failure), &Clock::now()).contains("&lt;script&gt;"));
    }

    #[test]
    fn an_unknown_size_is_not_zero_bytes() {
        let (number, committed, at) = (1, jiff::Timestamp::UNIX_EPOCH, None);
        let revision = RevisionStatus { number, committed, at, files: 3, folders: 1, bytes: 0, unsized_files: 3 };
        let status = Status { revision: Some(revision), ..Status::default() };

        let drawn = article(&status, &Clock::now());

        assert!(drawn.contains("3 files in 1 folder, size unknown; mounted since"), "{drawn}");
    }

    #[test]
    fn a_rate_is_that_of_a_minute() {
        let at = |seconds: i64, received_bytes| MinuteStatus {
            time: jiff::Timestamp::from_second(seconds).unwrap(),
            received_bytes,
            cache_bytes: 1_000_000,
        };
        let drawn = curves(&[at(0, 0), at(60, 3_000_000), at(90, 4_000_000)], 4_000_000, &Clock::now());

        assert!(drawn.contains("at most 3.0 MB a minute") && drawn.contains("now 1.0 MB"), "{drawn}");
    }
}
