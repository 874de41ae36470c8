//! What is done without the pool's lock, between two looks at the heap under it.
//!
//! A job is *begun* under the lock: what it needs of the heap is held, so that nobody else has it, and new
//! bytes count against the limit from then on. It is *run* without the lock: all calls of the driver, and
//! all waits of the host, are here. Then it is *ended* under the lock: what came of it is booked, and what
//! was not done is as it was before. Several jobs may be under way at once, and end in any order.

use std::time::{Duration, Instant};

use super::ask::{self, Questions};
use super::core::Core;
use super::grow::{Mapped, Mapping};
use super::release::{Release, Released};
use crate::error::{Error, Result};
use crate::heap::Grant;

macro_rules! jobs {
    ($($kind:ident: $of:ident),+) => {
        /// See the module documentation.
        #[must_use = "what it holds stays held until it is run and ended"]
        pub(crate) enum Job {
            $($kind($of)),+
        }

        $(impl From<$of> for Job {
            fn from(begun: $of) -> Self {
                Self::$kind(begun)
            }
        })+
    };
}

jobs!(Ask: Questions, Map: Mapping, Release: Release);

/// What came of a job.
pub(crate) enum Outcome {
    /// Waits queued, and what stopped it.
    Asked(u64, Option<Error>),
    Mapped(Mapping, Mapped),
    Released(Release, Released),
}

impl Job {
    /// Calls the driver, and may wait on the host: for how long. Under no lock.
    pub(crate) fn run(self) -> (Outcome, Duration) {
        let begin = Instant::now();
        let outcome = match self {
            Self::Ask(questions) => {
                let mut waits = 0;
                let error = ask::put(&questions, &mut waits).err();
                Outcome::Asked(waits, error)
            }
            Self::Map(mapping) => {
                let mapped = mapping.make();
                Outcome::Mapped(mapping, mapped)
            }
            Self::Release(release) => {
                let released = release.make();
                Outcome::Released(release, released)
            }
        };
        (outcome, begin.elapsed())
    }
}

impl Core {
    /// Books what came of a job, and how long it took; gives the block of a request's mapping.
    ///
    /// # Errors
    /// What the driver said, unless it is that it has no more memory.
    pub(crate) fn end(&mut self, (outcome, spent): (Outcome, Duration)) -> Result<Option<Grant>> {
        self.steps.driver_ns += u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        match outcome {
            Outcome::Asked(waits, error) => {
                self.steps.waits += waits;
                error.map_or(Ok(None), Err)
            }
            Outcome::Mapped(mapping, mapped) => {
                if mapping.moves() {
                    self.pace.remapped(spent, Instant::now());
                }
                self.end_mapping(mapping, mapped)
            }
            Outcome::Released(release, released) => {
                self.end_release(release, released).map(|()| None)
            }
        }
    }
}
