//! Log lines in the journal, by its native protocol (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).
//!
//! Each value is a field of its own and stands in the message too, which is all that `journalctl` and `systemctl status` show.

use std::fmt::{Debug, Write as _};
use std::io;
use std::os::unix::net::UnixDatagram;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The socket of the journal.
const SOCKET: &str = "/run/systemd/journal/socket";

/// `SYSLOG_IDENTIFIER`, also of `mount.resyncfs`.
const IDENTIFIER: &str = "resyncfs";

/// A field `uri` of a line is `RESYNCFS_URI`.
const FIELD_PREFIX: &str = "RESYNCFS_";

/// Bytes sent of one value; a datagram holds some hundred kilobytes in all.
const LONGEST: usize = 16 << 10;

/// The journal as a target of log lines.
pub struct Journal(UnixDatagram);

impl Journal {
    /// The journal, if it listens.
    pub fn connect() -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(SOCKET)?;
        Ok(Journal(socket))
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        // A line that the journal refuses is lost: there is no other place to report it.
        let _ = self.0.send(&line.entry(*event.metadata().level(), event.metadata().target()));
    }
}

/// One log line.
#[derive(Default)]
struct Line {
    message: String,
    /// ` name=value` of each field.
    values: String,
    fields: Vec<u8>,
}

impl Line {
    fn entry(mut self, level: Level, target: &str) -> Vec<u8> {
        // syslog(3): err, warning, info, debug.
        let priority = match level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        self.message.push_str(&self.values);
        let mut entry = self.fields;
        put(&mut entry, "PRIORITY", priority);
        put(&mut entry, "SYSLOG_IDENTIFIER", IDENTIFIER);
        put(&mut entry, "TARGET", target);
        put(&mut entry, "MESSAGE", &self.message);
        entry
    }

    fn take(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
            return;
        }
        // Names of fields are capitals, digits and `_`.
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        let name: String = FIELD_PREFIX.chars().chain(field.name().chars().map(plain)).collect();
        put(&mut self.fields, &name, value);
        // Writing to a string cannot fail.
        let _ = write!(self.values, " {}={value}", field.name());
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field, &format!("{value:?}"));
    }
}

/// One field in the form that allows line breaks: name, line break, length as 64 bits, little-endian, value, line break.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    let mut end = value.len().min(LONGEST);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    entry.extend_from_slice(name.as_bytes());
    entry.push(b'\n');
    entry.extend_from_slice(&(end as u64).to_le_bytes());
    entry.extend_from_slice(&value.as_bytes()[..end]);
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt as _;

    /// A journal that keeps the entry instead of sending it.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl<S: Subscriber> Layer<S> for Kept {
        fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
            let mut line = Line::default();
            event.record(&mut line);
            *self.0.lock().unwrap() = line.entry(*event.metadata().level(), "a target");
        }
    }

    fn field(name: &str, value: &str) -> Vec<u8> {
        let mut field = Vec::new();
        put(&mut field, name, value);
        field
    }

    #[test]
    fn each_value_is_a_field_and_stands_in_the_message() {
        let kept = Kept::default();
        let log = tracing_subscriber::registry().with(kept.clone());

        tracing::subscriber::with_default(log, || {
            tracing::warn!(uri = %"http://h/a", tries = 3, "cannot\nbe fetched");
        });

        let entry = kept.0.lock().unwrap().clone();
        let holds = |field: Vec<u8>| entry.windows(field.len()).any(|part| part == field);
        assert!(holds(field("MESSAGE", "cannot\nbe fetched uri=http://h/a tries=3")), "{}", entry.escape_ascii());
        assert!(holds(field("RESYNCFS_URI", "http://h/a")) && holds(field("RESYNCFS_TRIES", "3")));
        assert!(holds(field("PRIORITY", "4")) && holds(field("SYSLOG_IDENTIFIER", "resyncfs")));
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let cut = field("X", &"ä".repeat(LONGEST));
        let length = u64::from_le_bytes(cut[2..10].try_into().unwrap());

        assert_eq!(length as usize, LONGEST);
        assert!(std::str::from_utf8(&cut[10..]).is_ok());
    }
}
