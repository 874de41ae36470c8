//! Jobs: driver calls and host waits, without the pool's lock.
//!
//! A job *begins* under the lock: it holds the memory that it needs and counts new bytes against the limit. It *runs*
//! without the lock: only here is the driver called and does the host wait. It *ends* under the lock: it books the
//! outcome, and whatever was not done is as before. Several jobs may be under way, and end in any order.

use std::time::{Duration, Instant};

use super::ask::{self, Questions};
use super::core::Core;
use super::grow::Mapping;
use super::release::Release;
use crate::error::{Error, Result};
use crate::heap::Grant;

macro_rules! jobs {
    ($($kind:ident: $of:ident),+) => {
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

/// A job that has run, with its outcome.
pub(crate) struct Ran {
    job: Job,
    waits: u64,
    pub(super) spent: Duration,
    error: Option<Error>,
}

impl Job {
    /// Calls the driver, and may wait on the host. The caller has no lock.
    pub(crate) fn run(mut self) -> Ran {
        let (begin, mut waits) = (Instant::now(), 0);
        let done = match &mut self {
            Self::Ask(questions) => ask::put(questions, &mut waits),
            Self::Map(mapping) => mapping.make(&mut waits),
            Self::Release(release) => release.make(),
        };
        Ran {
            job: self,
            waits,
            spent: begin.elapsed(),
            error: done.err(),
        }
    }
}

impl Core {
    /// Books the outcome of a job; returns the block of a request's mapping. That the device has no more memory is no
    /// error.
    pub(crate) fn end(&mut self, ran: Ran) -> Result<Option<Grant>> {
        self.steps.driver_ns += u64::try_from(ran.spent.as_nanos()).unwrap_or(u64::MAX);
        self.steps.waits += ran.waits;
        match ran.job {
            Job::Ask(_) => (),
            Job::Map(mapping) => return self.end_mapping(mapping, ran.error),
            Job::Release(release) => self.end_release(release),
        }
        ran.error.map_or(Ok(None), Err)
    }
}
