//! Steps of the reducer that are captured into a graph.
//!
//! The reducer has its own streams. With the first gradient of a step they join the capture of the stream
//! that the reducer was made on; at the step's end that stream waits for them, as a graph's first stream
//! must. All state that changes from step to step is in device memory, so that each launch is a step: the
//! scales, what rounding lost, and the largest average. The exception is the counter of stochastic rounding,
//! which is on the host: every launch would round with the same random numbers.
//!
//! The sums of a captured step follow one another, on the first communicator.

use std::sync::{Arc, Weak};

use super::Reducer;
use crate::convert::Rounding;
use crate::error::{Error, Result};

impl Reducer {
    /// If a capture is under way, makes the step that begins now part of it. Returns an error if a capture
    /// began or ended during the present step.
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
            for stream in self.shared.captured() {
                stream.wait_stream(&self.home)?;
            }
        }
        self.shared.is_captured = recorder.is_some();
        self.step = Some(now);
        Ok(())
    }

    /// Under capture, makes the stream that the capture began on wait for the whole step.
    pub(super) fn leave_capture(&self) -> Result<()> {
        if self.home.recorder().is_none() {
            return Ok(());
        }
        let mut streams = self.shared.captured().into_iter();
        streams.try_for_each(|stream| self.home.wait_stream(stream))
    }
}
