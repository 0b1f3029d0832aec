//! The text that Prometheus reads (exposition format 0.0.4): families of samples, each with HELP and TYPE, once.

use std::fmt::Write as _;

/// What a family of samples is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows while the mount lasts; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A `_sum` and a `_count`.
    Summary,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Summary => "summary",
        }
    }
}

/// The text as it grows.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// Begins a family; its samples follow at once.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        Family { text: &mut self.0, name }
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.family(name, kind, help).sample("", &[], value);
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// A family that is being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Family<'_> {
    /// Writes a sample; `suffix` is `_sum` or `_count` in a summary, else empty.
    pub fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (index, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_source_says_stays_within_its_label() {
        let mut exposition = Exposition::default();

        exposition.family("x_total", Kind::Counter, "a\\b\nc").sample("", &[("host", "h\"\n\\"), ("b", "")], 1.5);
        exposition.single("y", Kind::Gauge, "y", 3e9);

        assert_eq!(
            exposition.into_text(),
            "# HELP x_total a\\\\b\\nc\n# TYPE x_total counter\nx_total{host=\"h\\\"\\n\\\\\",b=\"\"} 1.5\n\
             # HELP y y\n# TYPE y gauge\ny 3000000000\n"
        );
    }
}
