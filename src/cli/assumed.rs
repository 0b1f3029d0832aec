//! What was assumed of a SOURCE that says no scheme, for who meets a failure.

use super::{CliError, Exit};
use crate::source::EntryPoint;

impl CliError {
    /// The same failure, which tells that https was assumed of `source`, where it says no scheme and does not answer so.
    pub fn assuming(self, source: &str) -> CliError {
        match EntryPoint::over_http(source) {
            Some(http) if self.exit == Exit::Unreachable => {
                let told =
                    format!("{}; SOURCE says no scheme, so https was assumed: for http write {http}", self.message);
                CliError::new(self.exit, told)
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_says_no_scheme_and_gets_no_answer_is_told_what_was_assumed() {
        let told = |exit, source: &str| CliError::new(exit, "it failed").assuming(source).message;

        assert!(told(Exit::Unreachable, "h:81").ends_with("https was assumed: for http write http://h:81/"));
        assert_eq!(told(Exit::Unreachable, "https://h:81"), "it failed");
        assert_eq!(told(Exit::NoSource, "h:81"), "it failed");
    }
}
