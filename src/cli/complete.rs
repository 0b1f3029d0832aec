//! Completions of a shell. The shell runs this program, so that it completes the topics of help, the keys of `-o`, the NAMEs of mounts
//! and the folders that are mounted.

use super::{CliError, command};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use std::ffi::OsStr;

/// The script for bash: that of the crate does not join the words that bash splits at `=` and `:`.
const BASH: &str = include_str!("complete.bash");

/// The last line for zsh, which makes the file a function at the first completion (zshcompsys(1)): this one completes too.
const ZSH: &str = "[[ ${funcstack[1]} != _resyncfs ]] || _clap_dynamic_completer_resyncfs \"$@\"\n";

/// The variable by which the shell asks for completions.
const VARIABLE: &str = "RESYNCFS_COMPLETE";
const PROGRAM: &str = "resyncfs";

/// Answers a shell that asks for completions, and ends the process then.
pub fn answer_shell() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The script that makes a shell ask.
pub fn script(shell: &str) -> Result<Vec<u8>, CliError> {
    if shell == "bash" {
        return Ok(BASH.into());
    }
    let mut script = Vec::new();
    if let Some(shell) = Shells::builtins().completer(shell) {
        shell.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    }
    if shell == "zsh" {
        script.extend(ZSH.bytes());
    }
    Ok(script)
}

/// Candidates, each with its help, that begin with what is typed.
pub fn matching<S: AsRef<str>>(
    current: &OsStr,
    all: impl IntoIterator<Item = (S, String)>,
) -> Vec<CompletionCandidate> {
    let typed = current.to_string_lossy();
    let candidate = |(value, help): (S, String)| {
        let help = Some(help).filter(|help| !help.is_empty());
        CompletionCandidate::new(value.as_ref()).help(help.map(Into::into))
    };
    all.into_iter().filter(|(value, _)| value.as_ref().starts_with(&*typed)).map(candidate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shell_has_a_script_that_runs_the_program() {
        for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = String::from_utf8(script(shell).unwrap()).unwrap();
            assert!(script.contains(VARIABLE) && script.contains(PROGRAM), "{shell}: {script}");
        }
    }
}
