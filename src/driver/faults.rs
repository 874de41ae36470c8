//! Driver calls that fail when a test plans it, in the driver's table itself.
//!
//! Every method of [`Driver`](super::Driver) checks the plan before its call, so every call of the
//! table can fail. Uses are recorded with the place in the crate that made them.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;
use std::sync::Mutex;

use super::code::NOT_READY;
use crate::sync::plain::lock;

/// A driver call and the place in the crate that makes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Site {
    pub(crate) call: &'static str,
    pub(crate) file: &'static str,
    pub(crate) line: u32,
}

impl Site {
    fn of(call: &'static str, place: &Location<'static>) -> Self {
        Self {
            call,
            file: place.file(),
            line: place.line(),
        }
    }
}

/// The uses of a call that fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    /// The first use that fails, counted from 1.
    pub(crate) number: u64,
    pub(crate) for_ever: bool,
    pub(crate) code: i32,
}

/// The recorded uses, and the planned failures.
#[derive(Default)]
pub(crate) struct Faults {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The places that used a call, in order.
    uses: BTreeMap<&'static str, Vec<Site>>,
    planned: Vec<Failure>,
    /// Places whose call was made to fail, and the number of made failures per call.
    struck: BTreeSet<Site>,
    strikes: BTreeMap<&'static str, u64>,
    /// Calls that the driver itself refused since the last plan.
    refusals: Vec<Refusal>,
}

/// A call that was made and that the driver refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Refusal {
    pub(crate) site: Site,
    pub(crate) code: i32,
}

impl Faults {
    /// Plans these failures and no others; uses are counted from now on.
    pub(crate) fn plan(&self, failures: &[Failure]) {
        let mut state = lock(&self.state);
        state.uses.clear();
        state.refusals.clear();
        state.planned = failures.to_vec();
    }

    /// Ends all planned failures.
    pub(crate) fn heal(&self) {
        lock(&self.state).planned.clear();
    }

    /// The uses since the last plan, by call.
    pub(crate) fn uses(&self) -> BTreeMap<&'static str, Vec<Site>> {
        lock(&self.state).uses.clone()
    }

    /// Calls that the driver itself refused since the last plan.
    pub(crate) fn refusals(&self) -> Vec<Refusal> {
        lock(&self.state).refusals.clone()
    }

    /// The places whose call was made to fail.
    pub(crate) fn struck(&self) -> BTreeSet<Site> {
        lock(&self.state).struck.clone()
    }

    /// The number of times that a call was made to fail.
    pub(crate) fn strikes(&self, call: &'static str) -> u64 {
        lock(&self.state).strikes.get(call).copied().unwrap_or(0)
    }

    /// Records the driver's result of a call.
    #[track_caller]
    pub(super) fn answered(&self, call: &'static str, code: i32) {
        // "Not ready" is a normal answer to a query.
        if code != 0 && code != NOT_READY {
            let site = Site::of(call, Location::caller());
            lock(&self.state).refusals.push(Refusal { site, code });
        }
    }

    /// Records a use of `call`; returns the code with which it is to fail, if any.
    #[track_caller]
    pub(super) fn strike(&self, call: &'static str) -> Option<i32> {
        let site = Site::of(call, Location::caller());
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
