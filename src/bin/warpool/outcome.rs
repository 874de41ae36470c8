//! Outcomes of commands, and their output streams.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use warpool::Error;

/// The outcome of a command; the worst of several is the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Exit code 0.
    Ok,
    /// Exit code 1: the command ran and found a failure.
    Failed,
    /// Exit code 2: the command could not run on this input, or could not print its results.
    Unable,
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
                Self::Unable
            }
            _ => Self::Failed,
        }
    }
}

/// Where a command prints its results and its notes. A line that cannot be written is an error, so
/// that incomplete results are not taken for complete ones.
pub struct Console<'a> {
    results: &'a mut dyn Write,
    notes: &'a mut dyn Write,
}

impl<'a> Console<'a> {
    /// Writes results to `results`, and notes and errors to `notes`.
    pub fn new(results: &'a mut dyn Write, notes: &'a mut dyn Write) -> Self {
        Self { results, notes }
    }

    /// Prints a line of results.
    pub fn say(&mut self, line: impl Display) -> Outcome {
        let written = writeln!(self.results, "{line}").and_then(|()| self.results.flush());
        self.seen(written)
    }

    /// The outcome of a command that wrote results.
    pub fn seen(&mut self, written: std::io::Result<()>) -> Outcome {
        match written {
            Ok(()) => Outcome::Ok,
            Err(error) => {
                self.note(format_args!("error: standard output: {error}"));
                Outcome::Unable
            }
        }
    }

    /// Prints a note.
    pub fn note(&mut self, line: impl Display) -> Outcome {
        match writeln!(self.notes, "{line}").and_then(|()| self.notes.flush()) {
            Ok(()) => Outcome::Ok,
            // An error cannot be printed anywhere else.
            Err(_) => Outcome::Unable,
        }
    }

    /// Prints an error; returns its outcome.
    pub fn fail(&mut self, error: &Error) -> Outcome {
        self.note(format_args!("error: {error}")).max(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer that accepts this many bytes.
    struct Room(usize);

    impl Write for Room {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            match taken {
                0 => Err(std::io::ErrorKind::StorageFull.into()),
                _ => Ok(taken),
            }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_which_a_part_is_lost_ends_in_2_and_is_said() {
        for (room, outcome) in [(0, Outcome::Unable), (4, Outcome::Unable), (5, Outcome::Ok)] {
            let mut notes = Vec::new();
            assert_eq!(
                Console::new(&mut Room(room), &mut notes).say("line"),
                outcome
            );
            let notes = String::from_utf8(notes).expect("UTF-8");
            assert_eq!(
                notes.starts_with("error: standard output: "),
                room < 5,
                "{notes}"
            );
            let mut results = Vec::new();
            assert_eq!(
                Console::new(&mut results, &mut Room(room)).note("line"),
                outcome
            );
        }
    }

    #[test]
    fn errors_of_the_input_end_in_2_and_others_in_1() {
        let malformed = Error::Malformed {
            file: "t".into(),
            line: 1,
            why: "w".into(),
        };
        assert_eq!(Outcome::from(&malformed), Outcome::Unable);
        assert_eq!(Outcome::from(&Error::invalid("a", "b")), Outcome::Unable);
        let os = Error::Os {
            call: "mmap",
            words: "no".into(),
        };
        assert_eq!(Outcome::from(&os), Outcome::Failed);
        assert_eq!(
            Outcome::Ok.max(Outcome::Failed).max(Outcome::Unable) as u8,
            2
        );
    }
}
