//! Options as they were given, on a command line or in a file, before they become one [`Options`].

use super::passed_over::{is_passed_over, is_vfs_default, refusal};
use super::table::OptionSpec;
use super::{Options, escape};
use crate::cli::{CliError, Exit};

/// Who wrote the values of `-o`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A person, for `resyncfs mount`.
    Person,
    /// mount(8), for its helper: `rw` is in front of everything unless somebody said `ro`, whoever typed what.
    Mount8 {
        /// `-s`: what is not known is passed over.
        sloppy: bool,
    },
}

/// One option as it was given; its value is understood later.
#[derive(Clone, Debug)]
struct Setting {
    spec: &'static OptionSpec,
    /// `None` for a switch that is said to be off.
    value: Option<String>,
    /// How messages call it: `-o poll=soon`, `--poll soon`, `/etc/resyncfs/x.toml:3: poll`.
    origin: String,
}

/// Options in the order in which they were given: of two that cannot both be, the later one counts.
#[derive(Clone, Debug, Default)]
pub struct Settings(Vec<Setting>);

impl Settings {
    /// Adds one; no `value` is a switch that is off.
    pub fn push(&mut self, spec: &'static OptionSpec, value: Option<String>, origin: String) {
        self.0.push(Setting { spec, value, origin });
    }

    /// Adds what stands behind a `-o`.
    pub fn push_mount_options(&mut self, text: &str, dialect: Dialect) -> Result<(), CliError> {
        let usage = |given: &str, what: String| CliError::new(Exit::Usage, format!("-o {given}: {what}"));
        for given in escape::split(text).map_err(|what| usage(text, what))? {
            let (name, value) =
                given.split_once('=').map_or((given.as_str(), None), |(name, value)| (name, Some(value)));
            if given.is_empty() {
                continue;
            }
            if name == "noexec"
                && let Some(exec) = OptionSpec::find("exec")
            {
                self.push(exec, None, format!("-o {given}"));
            } else if is_passed_over(name) || (matches!(dialect, Dialect::Mount8 { .. }) && is_vfs_default(name)) {
                tracing::trace!(given, "means nothing here");
            } else if let Some(reason) = refusal(name) {
                // Without the value, which may be a secret.
                return Err(usage(name, reason.to_owned()));
            } else if let Some(spec) = OptionSpec::find(name) {
                match (spec.value.is_empty(), value) {
                    (true, Some(_)) => return Err(usage(&given, "takes no value".to_owned())),
                    (false, None) => {
                        return Err(usage(&given, format!("needs a value: {}={}", spec.name, spec.value)));
                    }
                    (_, value) => {
                        let value = Some(value.unwrap_or_default().to_owned());
                        self.push(spec, value, format!("-o {given}"));
                    }
                }
            } else if dialect != (Dialect::Mount8 { sloppy: true }) {
                return Err(usage(&given, unknown(name)));
            }
        }
        Ok(())
    }

    /// These, and of `beneath` whatever these do not name.
    pub fn over(self, mut beneath: Settings) -> Settings {
        beneath.0.retain(|below| !self.0.iter().any(|above| above.spec.name == below.spec.name));
        beneath.0.extend(self.0);
        beneath
    }

    /// All of them understood.
    pub fn options(&self) -> Result<Options, CliError> {
        let mut options = Options::default();
        for (at, setting) in self.0.iter().enumerate() {
            let is_last = !self.0[at + 1..].iter().any(|later| later.spec.name == setting.spec.name);
            // A value is looked at although a later one counts; a switch is as it was last said to be.
            if let Some(value) = &setting.value
                && (is_last || !setting.spec.value.is_empty())
            {
                (setting.spec.set)(&mut options, value)
                    .map_err(|what| CliError::new(Exit::Usage, format!("{}: {what}", setting.origin)))?;
            }
        }
        Ok(options)
    }
}

/// What to say of a name that is no option.
fn unknown(name: &str) -> String {
    match OptionSpec::nearest(name) {
        Some(near) => format!("there is no such option; did you mean {near}?"),
        None => "there is no such option; see: resyncfs mount --help".to_owned(),
    }
}
