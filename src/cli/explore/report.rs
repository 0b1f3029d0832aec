//! The report: fields for a program, lines for a person.

use super::pace::{MeasuredPace, ValidatorCounts};
use super::pages::{ExploredItem, Pages};
use super::survey::{NextToLists, Survey};
use crate::cli::CliError;
use crate::cli::render::{Clock, Screen, count, duration, size, thousands};
use crate::document::{Deviation, Uri};
use crate::source::http::per_minute;
use crate::source::{Channel, Set, Source};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Values shown of each kind.
const MOST_SHOWN: usize = 10;
/// Requests under way at once in the estimates: with so many a mount begins.
const CONNECTIONS: u32 = 16;

/// Everything that `explore` found.
pub struct Report {
    entry: String,
    source: Source,
    survey: Survey,
    pace: MeasuredPace,
    pages: Pages,
    /// The error of a mount, which has nothing to show.
    refusal: Option<CliError>,
    /// The time in which all sizes that are not published are known.
    listing: Duration,
    /// The time in which every file is requested once.
    reading: Duration,
}

impl Report {
    /// The report on `source`, which was found at `entry`.
    pub fn new(
        entry: String,
        source: Source,
        survey: Survey,
        pace: MeasuredPace,
        pages: Pages,
        refusal: Option<CliError>,
    ) -> Report {
        let time = |requests: u64| {
            let by_answers = pace.median.mul_f64(requests as f64 / f64::from(CONNECTIONS));
            by_answers.max(pace.least_time(requests).unwrap_or_default())
        };
        let (listing, reading) = (time(survey.resources - survey.with_length), time(survey.resources));
        Report { entry, source, survey, pace, pages, refusal, listing, reading }
    }

    /// One JSON object.
    pub fn json(&self) -> Value {
        let text = |location: &dyn ToString| location.to_string();
        let set = |set: &Set| {
            let documents = set.documents.iter().map(
                |(capability, location)| json!({ "capability": capability.as_str(), "location": location.to_string() }),
            );
            let channels = set.channels.iter().map(|channel| {
                let (topic, hub) = (channel.topic.to_string(), channel.hub.to_string());
                json!({ "capability": channel.capability.as_str(), "topic": topic, "hub": hub })
            });
            json!({
                "capabilitylist": set.capability_list.as_ref().map(|it| text(it)),
                "describedby": set.described_by.as_ref().map(|it| text(it)),
                "documents": documents.collect::<Vec<_>>(),
                "channels": channels.collect::<Vec<_>>(),
            })
        };
        let mut report = json!({
            "source": self.entry,
            "description": self.source.description.as_ref().map(|it| text(it)),
            "sets": self.source.sets.iter().map(set).collect::<Vec<_>>(),
        });
        let mut pace = json!(self.pace);
        pace["listing_s"] = json!(self.listing.as_secs());
        pace["reading_s"] = json!(self.reading.as_secs());
        if let (Value::Object(report), Value::Object(survey)) = (&mut report, json!(self.survey)) {
            report.extend(survey);
        }
        report["pace"] = pace;
        report["pages"] = json!(self.pages);
        if let Some(refusal) = &self.refusal {
            report["refusal"] = json!(refusal.message);
        }
        report
    }

    /// An error where a mount would be refused.
    pub fn usable(&self) -> Result<(), CliError> {
        match &self.refusal {
            Some(refused) => Err(CliError::new(refused.exit, format!("a mount would be refused: {}", refused.message))),
            None => Ok(()),
        }
    }

    /// The Source and the number of its files, in a line.
    pub fn summary(&self) -> String {
        let (files, sum) = match &self.source.page {
            Some(_) => (self.pages.items.len() as u64, String::new()),
            None => (self.survey.resources, format!(" ({})", self.sum())),
        };
        let pages = self.pages_among_files().map(|pages| format!(" {pages}.")).unwrap_or_default();
        format!("{} has {}{sum}.{pages}", self.entry, count(files, "file"))
    }

    /// The web pages among the files of the sample, and what they mean for a reader.
    fn pages_among_files(&self) -> Option<String> {
        let MeasuredPace { answered, pages, .. } = &self.pace;
        let only = if pages == answered { ": pages only" } else { "" };
        let loss = if self.pages.with_items > 0 { "" } else { "; their pictures and PDFs will not appear" };
        (*pages > 0).then(|| format!("{pages} of {answered} sample files are web pages{only}{loss}"))
    }

    /// The pages of the sample that link to files, where `items=follow` is not given.
    pub fn pages_with_items(&self) -> Option<String> {
        let Pages { asked, with_items, .. } = self.pages;
        (with_items > 0).then(|| format!("{with_items} of {} link to files", count(asked as u64, "sample page")))
    }

    /// Lines of text.
    pub fn text(&self) -> String {
        let clock = Clock::now();
        let mut screen = Screen::new(&clock);
        screen.line("Source", &self.entry);
        screen.list("Description", &self.source.description);
        for set in &self.source.sets {
            screen.list("Set", &set.capability_list);
            for (capability, location) in &set.documents {
                let offered = format!("{:<22} {location}", capability.as_str());
                match &set.capability_list {
                    Some(_) => screen.more(offered),
                    None if self.survey.sitemaps.contains(location) => screen.line("Sitemap", location),
                    None => screen.line("List", offered),
                }
            }
            for Channel { capability, topic, hub, .. } in &set.channels {
                screen.more(format!("{:<22} {topic} by {hub}", capability.as_str()));
            }
        }
        for (number, missing) in self.survey.missing.iter().enumerate() {
            screen.line(if number == 0 { "Missing" } else { "" }, format!("{}: {}", missing.location, missing.why));
        }
        let gap = self.survey.gap_since.as_ref().map(|since| format!("changes since {since} may be missing"));
        screen.list("Gap", gap.map(|gap| format!("{gap} from a mount: no document has them")));
        match &self.source.page {
            Some(page) => self.show_items(&mut screen, page),
            None => {
                self.show_counts(&mut screen);
                self.show_pace(&mut screen);
                self.show_deviations(&mut screen);
            }
        }
        screen.text
    }

    fn show_items(&self, screen: &mut Screen<'_>, page: &Uri) {
        screen.line("Page", page);
        screen.section("Items", thousands(self.pages.items.len() as u64));
        for ExploredItem { path, address, media_type, length } in &self.pages.items {
            let length = length.map_or_else(|| "?".to_owned(), size);
            let media_type = media_type.as_deref().unwrap_or("type unknown");
            screen.row(format!("  {length:>9}  {path}  ({media_type}, {address})"));
        }
    }

    fn show_counts(&self, screen: &mut Screen<'_>) {
        let survey = &self.survey;
        let read = match (survey.documents, survey.packages) {
            (0, packages) if packages > 0 => format!("in {}", count(packages, "package")),
            (lists, _) => format!("in {} ({})", count(lists, "list"), size(survey.document_bytes)),
        };
        if survey.resources == 0 {
            let would = if self.refusal.is_some() { "would be refused" } else { "would be empty" };
            return screen.section("Resources", format!("none {read}: a mount {would}"));
        }
        screen.section("Resources", format!("{} {read}", thousands(survey.resources)));
        screen.line("  length", format!("{} ({})", self.share(survey.with_length), self.sum()));
        let algorithms = survey.hash_algorithms.iter().map(|(name, number)| format!("{name} {}", thousands(*number)));
        let algorithms =
            if survey.with_hash == 0 { "none".to_owned() } else { algorithms.collect::<Vec<_>>().join(", ") };
        screen.line("  hash", format!("{} ({algorithms})", self.share(survey.with_hash)));
        screen.line("  lastmod", self.share(survey.with_lastmod));
        if let Some(NextToLists { packages, read, resources }) = survey.next_to_lists {
            let (files, all) = (count(resources, "file"), count(packages, "package"));
            screen.line("  packages", format!("{files} that no list has, in {} of {all}", thousands(read)));
        }
        show_values(screen, "Hosts", &survey.hosts, "host=");
        show_values(screen, "Types", &survey.types, "type=");
        show_values(screen, "Collections", &survey.collections, "collection=");
        show_values(screen, "Formats", &survey.formats, "conforms=");
    }

    fn show_pace(&self, screen: &mut Screen<'_>) {
        let MeasuredPace { asked, answered, sized, validators, median, failure, .. } = &self.pace;
        if *asked == 0 {
            let why = if self.survey.packages > 0 { "the files are in packages" } else { "there are no files" };
            return screen.section("Speed", format!("not measured: {why}"));
        }
        if *answered == 0 {
            let asked = count(*asked as u64, "sample file");
            screen.section("Speed", format!("unknown: {asked} requested, and none can be downloaded"));
            return screen.list("", failure);
        }
        let median = duration((*median).max(Duration::from_millis(1)));
        screen.section("Speed", format!("{median} per answer (median of {answered})"));
        let mut listing = estimate(self.listing);
        if self.survey.with_length < self.survey.resources && sized < answered {
            let unsized_files = answered - sized;
            listing += &format!(
                ", plus the download of each file without a known size ({unsized_files} of {answered} sample files)"
            );
        }
        screen.line("  ls -l", listing);
        let reading = estimate(self.reading);
        screen.line("  grep -r", format!("{reading}, plus the time for the downloads"));
        if let (Some(limit), Some(window)) = (self.pace.limit_requests, self.pace.limit_window) {
            let allowed = count(per_minute(limit, window), "request");
            screen.line("  limit", format!("this host allows {allowed} a minute; grep -r of all takes {reading}"));
        }
        let ValidatorCounts { strong, other, none } = validators;
        if strong < answered {
            let counts =
                format!("{strong} of {answered} have a strong ETag, {other} a weak one or a date, {none} neither");
            let effect = "the server must send a strong ETag for a file to be downloaded in parts, and resumed after an interruption";
            screen.line("  resuming", format!("{counts}: {effect}"));
        }
        screen.list("  pages", self.pages_among_files());
        let Pages { asked, with_items, .. } = self.pages;
        if with_items > 0 {
            screen.line("  items", format!("{with_items} of {asked} have files; mount with -o items=follow"));
        } else if asked > 0 {
            screen.line("  items", format!("none of {asked} says which files belong to it"));
        }
    }

    fn show_deviations(&self, screen: &mut Screen<'_>) {
        if self.survey.deviations.is_empty() {
            return screen.section("Deviations", "none");
        }
        screen.section("Deviations", "from the standard (a mount shows what it can understand)");
        for (rule, broken) in &self.survey.deviations {
            let section = if rule.section().is_empty() { "" } else { &format!(" [section {}]", rule.section()) };
            screen.row(format!("  {}: {}{section}", rule.name(), thousands(broken.count)));
            for (location, example) in &broken.examples {
                screen.quote(format!("{location}{}", place_and_value(example)));
            }
        }
    }

    /// The published sizes.
    fn sum(&self) -> String {
        let Survey { with_length, resources, bytes, .. } = &self.survey;
        match with_length {
            0 => "the total size is unknown".to_owned(),
            all if all == resources => format!("{} in all", size(*bytes)),
            _ => format!("{}; the other sizes are unknown", size(*bytes)),
        }
    }

    fn share(&self, part: u64) -> String {
        let all = self.survey.resources.max(1);
        format!("{:.0} %", 100.0 * part as f64 / all as f64)
    }
}

/// An estimate is not exact enough for parts of a second.
fn estimate(time: Duration) -> String {
    match time.as_secs() {
        0 => "a second or less".to_owned(),
        // Whole hours are too coarse where a limit makes the time certain.
        seconds @ 7200..=172_799 => format!("about {} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("about {}", duration(time)),
    }
}

fn show_values(screen: &mut Screen<'_>, title: &str, values: &BTreeMap<String, u64>, option: &str) {
    if values.is_empty() {
        return;
    }
    let mut by_count: Vec<_> = values.iter().collect();
    by_count.sort_by_key(|(value, count)| (std::cmp::Reverse(**count), (*value).clone()));
    screen.row(title);
    for (value, count) in by_count.iter().take(MOST_SHOWN) {
        screen.row(format!("  {:>9}  {option}{value}", thousands(**count)));
    }
    if by_count.len() > MOST_SHOWN {
        screen.more(format!("and {} more", by_count.len() - MOST_SHOWN));
    }
}

/// `, entry 4: 12 kB`. A deviation of the document itself has no entry, and one by absence no value.
fn place_and_value(example: &Deviation) -> String {
    let entry = if example.entry == 0 { String::new() } else { format!(", entry {}", example.entry) };
    if example.seen.is_empty() { entry } else { format!("{entry}: {}", example.seen) }
}
