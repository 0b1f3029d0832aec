//! A hint for failures of a SOURCE that is written without a scheme.

use super::{CliError, Exit};
use crate::source::EntryPoint;

impl CliError {
    /// Adds that https was assumed, where `source` has no scheme and did not answer.
    pub fn assuming(self, source: &str) -> CliError {
        match EntryPoint::over_http(source) {
            Some(http) if self.exit == Exit::Unreachable => {
                let message =
                    format!("{}; SOURCE has no scheme, so https was assumed: for http write {http}", self.message);
                CliError::new(self.exit, message)
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_needs_a_missing_scheme_and_a_missing_answer() {
        let message = |exit, source: &str| CliError::new(exit, "it failed").assuming(source).message;

        assert!(message(Exit::Unreachable, "h:81").ends_with("https was assumed: for http write http://h:81/"));
        assert_eq!(message(Exit::Unreachable, "https://h:81"), "it failed");
        assert_eq!(message(Exit::NoSource, "h:81"), "it failed");
    }
}
