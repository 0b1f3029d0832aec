//! The survey as a person reads it, and as a program does.

use super::Pace;
use super::survey::Survey;
use crate::cli::render::{count, duration, printable_value, size, thousands};
use crate::document::Deviation;
use crate::source::Source;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Values shown of each kind.
const MOST_SHOWN: usize = 10;
/// Requests under way at once in the estimates: what a mount does by default.
const CONNECTIONS: u32 = 16;

/// Everything `explore` found.
pub struct Report {
    /// What was asked about.
    pub entry: String,
    /// Sets and capabilities.
    pub source: Source,
    /// Counts.
    pub survey: Survey,
    /// The host's pace.
    pub pace: Pace,
}

impl Report {
    /// Lines of text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let survey = &self.survey;
        let _ = writeln!(text, "Source       {}", self.entry);
        if let Some(description) = &self.source.description {
            let _ = writeln!(text, "Description  {description}");
        }
        for set in &self.source.sets {
            let name = set.capability_list.as_ref().map_or("(no Capability List)".to_owned(), ToString::to_string);
            let _ = writeln!(text, "Set          {name}");
            for (capability, location) in &set.documents {
                let _ = writeln!(text, "             {:<22} {location}", capability.as_str());
            }
            for channel in &set.channels {
                let _ = writeln!(
                    text,
                    "             {:<22} {} by {}",
                    channel.capability.as_str(),
                    channel.topic,
                    channel.hub
                );
            }
        }
        for (number, missing) in survey.missing.iter().enumerate() {
            let title = if number == 0 { "Missing" } else { "" };
            let _ = writeln!(text, "{title:<12} {}: {}", missing.location, missing.why);
        }
        let lists = match (survey.documents, survey.packages) {
            (0, packages) if packages > 0 => format!("in {}", count(packages, "package")),
            (lists, _) => format!("in {} ({} of lists)", count(lists, "list"), size(survey.document_octets)),
        };
        let _ = writeln!(text, "\nResources    {} {lists}", thousands(survey.entries));
        let _ = writeln!(text, "  length     {} ({} in all)", self.share(survey.with_length), size(survey.octets));
        let algorithms: Vec<_> =
            survey.algorithms.iter().map(|(algorithm, n)| format!("{} {}", algorithm.name(), thousands(*n))).collect();
        let _ =
            writeln!(text, "  hash       {} ({})", self.share(survey.with_hash), none_if_empty(algorithms.join(", ")));
        let _ = writeln!(text, "  lastmod    {}", self.share(survey.with_lastmod));
        table(&mut text, "Hosts", &survey.hosts, "host=");
        table(&mut text, "Types", &survey.types, "type=");
        table(&mut text, "Collections", &survey.collections, "collection=");
        table(&mut text, "Formats", &survey.formats, "conforms=");
        self.write_pace(&mut text);
        self.write_deviations(&mut text);
        text
    }

    fn write_pace(&self, text: &mut String) {
        let Pace { asked, answered, pages, validators, median, failure, .. } = &self.pace;
        if *asked == 0 && self.survey.packages > 0 {
            let _ = writeln!(text, "\nPace         not measured: the files lie in packages");
            return;
        }
        if *answered == 0 {
            let _ = writeln!(text, "\nPace         none of {asked} resources asked for can be fetched");
            if let Some(failure) = failure {
                let _ = writeln!(text, "             {failure}");
            }
            return;
        }
        let _ = writeln!(text, "\nPace         {} ms an answer (median of {answered})", median.as_millis());
        let _ = writeln!(text, "  ls -l      about {}{}", duration(self.listing_time()), self.downloads());
        let _ = writeln!(
            text,
            "  grep -r    about {} and the time the bytes take",
            duration(self.requests(self.survey.entries))
        );
        let [strong, weak, none] = validators;
        if *strong < *answered {
            let _ = writeln!(
                text,
                "  validators {strong} of {answered} have a strong ETag, {weak} another, {none} none: without a strong one a file comes in one piece"
            );
        }
        if *pages > 0 {
            let _ = writeln!(
                text,
                "  pages      {pages} of {answered} resources asked for are web pages rather than files"
            );
        }
    }

    fn write_deviations(&self, text: &mut String) {
        if self.survey.deviations.is_empty() {
            let _ = writeln!(text, "\nDeviations   none");
            return;
        }
        let _ = writeln!(text, "\nDeviations   (read all the same)");
        for (rule, breaches) in &self.survey.deviations {
            let _ = writeln!(text, "  {:>9}  {} [section {}]", thousands(*breaches), rule.sentence(), rule.section());
            for (location, example) in self.survey.examples.iter().filter(|(_, example)| example.rule == *rule) {
                let _ = writeln!(text, "             {location}{}", where_and_what(example));
            }
        }
    }

    /// One JSON object.
    pub fn json(&self) -> serde_json::Value {
        let survey = &self.survey;
        let sets: Vec<_> = self
            .source
            .sets
            .iter()
            .map(|set| {
                let documents: Vec<_> = set
                    .documents
                    .iter()
                    .map(|(capability, location)| {
                        serde_json::json!({"capability": capability.as_str(), "location": location.to_string()})
                    })
                    .collect();
                let channels: Vec<_> = set
                    .channels
                    .iter()
                    .map(|channel| {
                        serde_json::json!({
                            "capability": channel.capability.as_str(),
                            "topic": channel.topic.as_str(),
                            "hub": channel.hub.as_str(),
                        })
                    })
                    .collect();
                serde_json::json!({
                    "capabilitylist": set.capability_list.as_ref().map(ToString::to_string),
                    "describedby": set.described_by.as_ref().map(ToString::to_string),
                    "documents": documents,
                    "channels": channels,
                })
            })
            .collect();
        let deviations: Vec<_> = survey
            .deviations
            .iter()
            .map(|(rule, count)| {
                let examples: Vec<_> = survey
                    .examples
                    .iter()
                    .filter(|(_, example)| example.rule == *rule)
                    .map(|(location, example)| {
                        serde_json::json!({"document": location.to_string(), "entry": example.entry, "seen": example.seen})
                    })
                    .collect();
                serde_json::json!({"rule": rule.sentence(), "section": rule.section(), "count": count, "examples": examples})
            })
            .collect();
        let missing: Vec<_> = survey
            .missing
            .iter()
            .map(|it| serde_json::json!({"location": it.location.to_string(), "entries": it.entries, "why": it.why}))
            .collect();
        let algorithms: BTreeMap<_, _> = survey.algorithms.iter().map(|(algorithm, n)| (algorithm.name(), n)).collect();
        serde_json::json!({
            "source": self.entry,
            "description": self.source.description.as_ref().map(ToString::to_string),
            "sets": sets,
            "missing": missing,
            "packages": survey.packages,
            "documents": survey.documents,
            "document_octets": survey.document_octets,
            "resources": survey.entries,
            "with_length": survey.with_length,
            "octets": survey.octets,
            "with_hash": survey.with_hash,
            "hash_algorithms": algorithms,
            "with_lastmod": survey.with_lastmod,
            "hosts": survey.hosts,
            "types": survey.types,
            "collections": survey.collections,
            "formats": survey.formats,
            "pace": {
                "asked": self.pace.asked,
                "answered": self.pace.answered,
                "pages": self.pace.pages,
                "sized": self.pace.sized,
                "validators": {
                    "strong": self.pace.validators[0],
                    "other": self.pace.validators[1],
                    "none": self.pace.validators[2],
                },
                "median_ms": self.pace.median.as_millis() as u64,
                "failure": self.pace.failure,
                "listing_s": self.listing_time().as_secs(),
                "reading_s": self.requests(survey.entries).as_secs(),
            },
            "deviations": deviations,
        })
    }

    fn share(&self, part: u64) -> String {
        let percent = if self.survey.entries == 0 { 0.0 } else { 100.0 * part as f64 / self.survey.entries as f64 };
        format!("{percent:.0} %")
    }

    /// What `ls -l` downloads on top of its requests: files of no published length whose server does not say it either.
    fn downloads(&self) -> String {
        let Pace { answered, sized, .. } = self.pace;
        if self.survey.with_length == self.survey.entries || sized == answered {
            return String::new();
        }
        format!(
            ", and the download of each file whose server does not tell its size: {} of {answered}",
            answered - sized
        )
    }

    /// How long sizes of names without published length take.
    fn listing_time(&self) -> Duration {
        self.requests(self.survey.entries - self.survey.with_length)
    }

    fn requests(&self, number: u64) -> Duration {
        self.pace.median.mul_f64(number as f64 / f64::from(CONNECTIONS))
    }
}

fn table(text: &mut String, title: &str, values: &BTreeMap<String, u64>, option: &str) {
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

/// `, entry 4: 12 kB`; what is missing, or wrong with the document itself, has less to show.
fn where_and_what(example: &Deviation) -> String {
    let entry = if example.entry == 0 { String::new() } else { format!(", entry {}", example.entry) };
    let seen = printable_value(&example.seen);
    if seen.is_empty() { entry } else { format!("{entry}: {seen}") }
}

fn none_if_empty(text: String) -> String {
    if text.is_empty() { "none".to_owned() } else { text }
}
