//! Driver calls that fail when a test says so, in the driver's table itself.
//!
//! Every method of [`Driver`](super::Driver) asks here before it calls, so that what can fail is
//! what the table holds. Uses are noted with the place in the crate that made them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Mutex;

use crate::sync::plain::lock;

/// A driver call and the place in the crate that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) call: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

/// Which uses of a call fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    /// The first use that fails, counted from 1.
    pub(crate) number: u64,
    pub(crate) for_ever: bool,
    pub(crate) code: i32,
}

/// What was used, and what is to fail.
#[derive(Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The places that used a call, in order.
    uses: BTreeMap<&'static str, Vec<Site>>,
    planned: Vec<Failure>,
    /// Places whose call was made to fail, and how often each call was.
    struck: BTreeSet<Site>,
    strikes: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// From now on these fail, and no others; uses are counted from here.
    pub(crate) fn plan(&self, failures: &[Failure]) {
        let mut state = lock(&self.state);
        state.uses.clear();
        state.planned = failures.to_vec();
    }

    /// Nothing fails from now on.
    pub(crate) fn heal(&self) {
        lock(&self.state).planned.clear();
    }

    /// The uses since the last plan, by call.
    pub(crate) fn uses(&self) -> BTreeMap<&'static str, Vec<Site>> {
        lock(&self.state).uses.clone()
    }

    /// The places whose call was made to fail.
    pub(crate) fn struck(&self) -> BTreeSet<Site> {
        lock(&self.state).struck.clone()
    }

    /// How often a call was made to fail.
    pub(crate) fn strikes(&self, call: &'static str) -> u64 {
        lock(&self.state).strikes.get(call).copied().unwrap_or(0)
    }

    /// Notes a use of `call`, and gives the code that it fails with, if it does.
    #[track_caller]
    pub(super) fn strike(&self, call: &'static str) -> Option<i32> {
        let place = Location::caller();
        let site = Site {
            call,
            file: place.file(),
            line: place.line(),
        };
        let mut state = lock(&self.state);
        let uses = state.uses.entry(call).or_default();
        uses.push(site);
        let number = uses.len() as u64;
        let fails = |failure: &&Failure| {
            failure.call == call
                && (number == failure.number || number > failure.number && failure.for_ever)
        };
        let code = state.planned.iter().find(fails)?.code;
        state.struck.insert(site);
        *state.strikes.entry(call).or_default() += 1;
        Some(code)
    }
}
