//! The report: fields for a program, lines for a person.

use super::pace::{Pace, Validators};
use super::survey::Survey;
use crate::cli::render::{count, duration, printable_value, size, thousands};
use crate::document::Deviation;
use crate::source::{Set, Source};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Values shown of each kind.
const MOST_SHOWN: usize = 10;
/// Requests under way at once in the estimates: with so many a mount begins.
const CONNECTIONS: u32 = 16;

/// Everything that `explore` found.
#[derive(Serialize)]
pub struct Report {
    source: String,
    description: Option<String>,
    sets: Vec<SetReport>,
    #[serde(flatten)]
    survey: Survey,
    pace: PaceReport,
}

#[derive(Serialize)]
struct SetReport {
    capabilitylist: Option<String>,
    describedby: Option<String>,
    documents: Vec<Offered>,
    channels: Vec<Channel>,
}

#[derive(Serialize)]
struct Offered {
    capability: String,
    location: String,
}

#[derive(Serialize)]
struct Channel {
    capability: String,
    topic: String,
    hub: String,
}

/// The pace of the host, and what it means for the whole tree.
#[derive(Serialize)]
struct PaceReport {
    #[serde(flatten)]
    measured: Pace,
    /// The time in which all sizes that are not published are known.
    #[serde(rename = "listing_s", serialize_with = "seconds")]
    listing: Duration,
    /// The time in which every file is requested once.
    #[serde(rename = "reading_s", serialize_with = "seconds")]
    reading: Duration,
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.as_secs())
}

impl From<&Set> for SetReport {
    fn from(set: &Set) -> SetReport {
        let documents = set.documents.iter().map(|(capability, location)| Offered {
            capability: capability.as_str().to_owned(),
            location: location.to_string(),
        });
        let channels = set.channels.iter().map(|channel| Channel {
            capability: channel.capability.as_str().to_owned(),
            topic: channel.topic.to_string(),
            hub: channel.hub.to_string(),
        });
        SetReport {
            capabilitylist: set.capability_list.as_ref().map(ToString::to_string),
            describedby: set.described_by.as_ref().map(ToString::to_string),
            documents: documents.collect(),
            channels: channels.collect(),
        }
    }
}

impl Report {
    /// The report on `source`, which was found at `entry`.
    pub fn new(entry: String, source: &Source, survey: Survey, measured: Pace) -> Report {
        let time = |requests: u64| measured.median.mul_f64(requests as f64 / f64::from(CONNECTIONS));
        let (listing, reading) = (time(survey.resources - survey.with_length), time(survey.resources));
        Report {
            source: entry,
            description: source.description.as_ref().map(ToString::to_string),
            sets: source.sets.iter().map(SetReport::from).collect(),
            survey,
            pace: PaceReport { measured, listing, reading },
        }
    }

    /// Lines of text.
    pub fn text(&self) -> String {
        let mut text = format!("Source       {}\n", self.source);
        if let Some(description) = &self.description {
            let _ = writeln!(text, "Description  {description}");
        }
        for set in &self.sets {
            set.write(&mut text);
        }
        for (number, missing) in self.survey.missing.iter().enumerate() {
            let title = if number == 0 { "Missing" } else { "" };
            let _ = writeln!(text, "{title:<12} {}: {}", missing.location, missing.why);
        }
        self.write_counts(&mut text);
        self.write_pace(&mut text);
        self.write_deviations(&mut text);
        text
    }

    fn write_counts(&self, text: &mut String) {
        let survey = &self.survey;
        let read = match (survey.documents, survey.packages) {
            (0, packages) if packages > 0 => format!("in {}", count(packages, "package")),
            (lists, _) => format!("in {} ({})", count(lists, "list"), size(survey.document_bytes)),
        };
        let sum = match survey.with_length {
            0 => "the total size is unknown".to_owned(),
            all if all == survey.resources => format!("{} in all", size(survey.bytes)),
            _ => format!("{}; the other sizes are unknown", size(survey.bytes)),
        };
        let algorithms: Vec<_> =
            survey.hash_algorithms.iter().map(|(name, number)| format!("{name} {}", thousands(*number))).collect();
        let algorithms = if algorithms.is_empty() { "none".to_owned() } else { algorithms.join(", ") };
        let _ = writeln!(text, "\nResources    {} {read}", thousands(survey.resources));
        let _ = writeln!(text, "  length     {} ({sum})", self.share(survey.with_length));
        let _ = writeln!(text, "  hash       {} ({algorithms})", self.share(survey.with_hash));
        let _ = writeln!(text, "  lastmod    {}", self.share(survey.with_lastmod));
        write_values(text, "Hosts", &survey.hosts, "host=");
        write_values(text, "Types", &survey.types, "type=");
        write_values(text, "Collections", &survey.collections, "collection=");
        write_values(text, "Formats", &survey.formats, "conforms=");
    }

    fn write_pace(&self, text: &mut String) {
        let PaceReport { measured, listing, reading } = &self.pace;
        let Pace { asked, answered, pages, sized, validators, median, failure } = measured;
        if *asked == 0 {
            let why = if self.survey.packages > 0 { "the files are in packages" } else { "there are no files" };
            let _ = writeln!(text, "\nSpeed        not measured: {why}");
            return;
        }
        if *answered == 0 {
            let _ = writeln!(text, "\nSpeed        unknown: none of {asked} sample files can be downloaded");
            if let Some(failure) = failure {
                let _ = writeln!(text, "             {failure}");
            }
            return;
        }
        let _ = writeln!(
            text,
            "\nSpeed        {} per answer (median of {answered})",
            duration((*median).max(Duration::from_millis(1)))
        );
        let _ = write!(text, "  ls -l      about {}", estimate(*listing));
        if self.survey.with_length < self.survey.resources && sized < answered {
            let unsized_files = answered - sized;
            let _ = write!(
                text,
                ", plus the download of each file without a known size ({unsized_files} of {answered} sample files)"
            );
        }
        let _ = writeln!(text, "\n  grep -r    about {}, plus the time for the downloads", estimate(*reading));
        let Validators { strong, other, none } = validators;
        if strong < answered {
            let _ = writeln!(
                text,
                "  validators {strong} of {answered} have a strong ETag, {other} another validator, {none} none: \
                 only a file with a strong ETag can be downloaded in parts"
            );
        }
        if *pages > 0 {
            let _ = writeln!(text, "  pages      {pages} of {answered} sample files are web pages");
        }
    }

    fn write_deviations(&self, text: &mut String) {
        if self.survey.deviations.is_empty() {
            let _ = writeln!(text, "\nDeviations   none");
            return;
        }
        let _ = writeln!(text, "\nDeviations   rules that the Source breaks (a mount shows what it can understand)");
        for (rule, broken) in &self.survey.deviations {
            let (number, sentence) = (thousands(broken.count), rule.sentence());
            let _ = writeln!(text, "  {number:>9}  {sentence} [section {}]", rule.section());
            for (location, example) in &broken.examples {
                let _ = writeln!(text, "             {location}{}", place_and_value(example));
            }
        }
    }

    fn share(&self, part: u64) -> String {
        let all = self.survey.resources.max(1);
        format!("{:.0} %", 100.0 * part as f64 / all as f64)
    }
}

impl SetReport {
    fn write(&self, text: &mut String) {
        let name = self.capabilitylist.as_deref().unwrap_or("(no Capability List)");
        let _ = writeln!(text, "Set          {name}");
        for Offered { capability, location } in &self.documents {
            let _ = writeln!(text, "             {capability:<22} {location}");
        }
        for Channel { capability, topic, hub } in &self.channels {
            let _ = writeln!(text, "             {capability:<22} {topic} by {hub}");
        }
    }
}

/// An estimate is not exact enough for parts of a second.
fn estimate(time: Duration) -> String {
    if time < Duration::from_secs(1) { "a second or less".to_owned() } else { duration(time) }
}

fn write_values(text: &mut String, title: &str, values: &BTreeMap<String, u64>, option: &str) {
    if values.is_empty() {
        return;
    }
    let mut by_count: Vec<_> = values.iter().collect();
    by_count.sort_by_key(|(value, count)| (std::cmp::Reverse(**count), (*value).clone()));
    let _ = writeln!(text, "{title}");
    for (value, count) in by_count.iter().take(MOST_SHOWN) {
        let _ = writeln!(text, "  {:>9}  {option}{}", thousands(**count), printable_value(value));
    }
    if by_count.len() > MOST_SHOWN {
        let _ = writeln!(text, "             and {} more", by_count.len() - MOST_SHOWN);
    }
}

/// `, entry 4: 12 kB`. A deviation of the document itself has no entry, and one by absence no value.
fn place_and_value(example: &Deviation) -> String {
    let entry = if example.entry == 0 { String::new() } else { format!(", entry {}", example.entry) };
    let seen = printable_value(&example.seen);
    if seen.is_empty() { entry } else { format!("{entry}: {seen}") }
}
