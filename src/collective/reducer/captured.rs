//! Steps that are captured into a graph.
//!
//! The reducer has streams of its own. They join the capture of the stream that the reducer was made on with the
//! first gradient of a step, and that stream waits for them at its end, as a graph's first stream has to. All that
//! moves from step to step is in device memory, so that a launch is a step: the scales, what rounding kept back,
//! the largest average. But for the numbers that stochastic rounding draws by, which the host counts: every launch
//! would round by the same draws.

use std::sync::{Arc, Weak};

use super::Reducer;
use crate::convert::Rounding;
use crate::error::{Error, Result};

impl Reducer {
    /// Makes the step that begins a part of the capture that goes on, if one does; an error where that is not so
    /// for the step under way.
    pub(super) fn join_capture(&mut self) -> Result<()> {
        let recorder = self.home.recorder();
        let now = recorder.as_ref().map_or_else(Weak::new, Arc::downgrade);
        match &self.step {
            Some(begun) if begun.ptr_eq(&now) => return Ok(()),
            Some(_) => {
                let why = "its capture began or ended within a step: capture whole steps; one that was begun in a \
                           capture that is gone is never ended, make another reducer";
                return Err(Error::invalid("stream", why));
            }
            None => {}
        }
        if recorder.is_some() {
            if let Rounding::Stochastic { .. } = self.shared.rounding {
                let why = "it is being captured, and every launch would round by the same draws: round to nearest";
                return Err(Error::invalid("stream", why));
            }
            let shared = &self.shared;
            for stream in [&shared.narrow, &shared.link, &shared.widen] {
                stream.wait_stream(&self.home)?;
            }
        }
        self.step = Some(now);
        Ok(())
    }

    /// Under capture: makes the stream that the capture began on wait for all of the step.
    pub(super) fn leave_capture(&self) -> Result<()> {
        if self.home.recorder().is_none() {
            return Ok(());
        }
        let shared = &self.shared;
        let mut streams = [&shared.narrow, &shared.link, &shared.widen].into_iter();
        streams.try_for_each(|stream| self.home.wait_stream(stream))
    }
}
