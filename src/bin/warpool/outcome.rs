//! How a command ends, and where its words go.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use warpool::Error;

/// How a command ended; the worst of several is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Exit code 0.
    Ok,
    /// Exit code 1: it ran and what it found is bad.
    Failed,
    /// Exit code 2: it could not run on this input.
    BadInput,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome as u8)
    }
}

impl From<&Error> for Outcome {
    fn from(error: &Error) -> Self {
        match error {
            Error::Malformed { .. } | Error::Invalid { .. } | Error::Unavailable { .. } => {
                Self::BadInput
            }
            _ => Self::Failed,
        }
    }
}

/// Prints a line on standard output. A reader that went away is no error of ours.
pub fn say(line: impl Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Prints a line on standard error.
pub fn note(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints an error on standard error and gives the way to end.
pub fn fail(error: &Error) -> Outcome {
    note(format_args!("error: {error}"));
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_input_end_in_2_and_others_in_1() {
        let malformed = Error::Malformed {
            file: "t".into(),
            line: 1,
            why: "w".into(),
        };
        assert_eq!(Outcome::from(&malformed), Outcome::BadInput);
        assert_eq!(Outcome::from(&Error::invalid("a", "b")), Outcome::BadInput);
        let os = Error::Os {
            call: "mmap",
            words: "no".into(),
        };
        assert_eq!(Outcome::from(&os), Outcome::Failed);
        assert_eq!(
            Outcome::Ok.max(Outcome::Failed).max(Outcome::BadInput) as u8,
            2
        );
    }
}
