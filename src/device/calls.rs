//! Driver calls that queue work on a stream: under capture one at a time, otherwise only counted.
//!
//! A call of a captured stream records into a driver's graph, which is not synchronised (see the module `capture`), so
//! it holds the device's lock. Calls of other streams may be made at once, and none waits for another. A call first
//! adds itself to the count of its stream, and then looks whether the stream is under capture. A stream that enters a
//! capture does the reverse: it is under capture first, and then waits until no call is counted. So each call either
//! sees the capture, or has returned before the driver's capture begins.

use std::sync::atomic::Ordering;

use super::awake::Queueing;
use super::backend::Backend;
use super::host_call;
use super::raw::RawStream;
use super::structure::{StreamCore, Timeline};
use crate::error::Result;
use crate::sync::pause;

impl StreamCore {
    /// As [`Timeline::queue`], for a call of the stream's backend.
    #[inline]
    pub(crate) fn queue<R>(&self, call: impl FnOnce(&dyn Backend, RawStream) -> R) -> R {
        (self.timeline).queue(|| call(&**self.device.backend(), self.raw))
    }
}

impl Timeline {
    /// Makes a driver call that queues work on the stream: under capture, alone. `call` does not call the application.
    #[inline]
    pub(crate) fn queue<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut looks = 0;
        loop {
            let counted = Queueing::counted(&self.calls);
            // A capture that begins from now on waits for the call.
            let captures = self.captures.load(Ordering::SeqCst);
            if captures.is_multiple_of(2) {
                return call();
            }
            drop(counted);
            if let Some(recorder) = self.recorder() {
                let _recording = recorder.recording();
                // The stream is about to leave a capture that has ended, and may enter another one.
                let ended = recorder.has_ended();
                let _counted = ended.then(|| Queueing::counted(&self.calls));
                // A host call waits for no thread.
                let waits = recorder.is_ending() && !host_call::is_running();
                if !waits && self.captures.load(Ordering::SeqCst) == captures {
                    return host_call::without_any(call);
                }
            }
            pause(looks);
            looks += 1;
        }
    }

    /// Waits until no thread is making a driver call that queues work on the stream.
    ///
    /// # Errors
    /// [`Error::Invalid`] in a host call, which the driver may wait for in such a call.
    pub(super) fn wait_for_calls(&self) -> Result<()> {
        let mut looks = 0;
        while self.calls.load(Ordering::SeqCst) > 0 {
            host_call::may_wait()?;
            pause(looks);
            looks += 1;
        }
        Ok(())
    }
}
