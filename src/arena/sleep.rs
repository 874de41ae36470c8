//! Frames whose handles are gone for a while, and whose places are kept.

use super::{Arena, Frame, FrameId, Made};
use crate::error::Result;

impl Arena {
    /// Bytes of frames that sleep.
    pub(crate) fn asleep(&self) -> u64 {
        self.asleep
    }

    /// All frames, awake or asleep.
    pub(crate) fn frames(&self) -> impl Iterator<Item = (FrameId, Frame)> + '_ {
        self.frames.iter()
    }

    /// Books that the frame was unmapped and its handle offered to the device, as
    /// [`Arena::frame_gone`]; its place is kept.
    pub(crate) fn fell_asleep(&mut self, id: FrameId, released: bool) {
        let frame = self.frame(id);
        self.frames.sleep(id);
        self.asleep += frame.bytes;
        self.leave(frame, released);
    }

    /// Books the new handle of a frame that slept.
    ///
    /// # Errors
    /// As [`Arena::adopt`]; the frame sleeps on then.
    pub(crate) fn woke(&mut self, id: FrameId, made: Made) -> Result<()> {
        let bytes = made.bytes;
        let handle = self.enter(made)?;
        self.frames.wake(id, handle);
        self.asleep -= bytes;
        Ok(())
    }

    /// Books that nobody needs a frame that sleeps.
    pub(crate) fn forget_asleep(&mut self, id: FrameId) {
        self.asleep -= self.frame(id).bytes;
        self.frames.remove(id);
    }
}
