//! Frames whose handles are released for a while, and whose places are kept.

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

    /// Records that the frame was unmapped and its handle offered to the device, as
    /// [`Arena::frame_gone`] does, but keeps its place.
    pub(crate) fn fell_asleep(&mut self, id: FrameId, released: bool) {
        let frame = self.frame(id);
        self.frames.sleep(id);
        self.asleep += frame.bytes;
        self.leave(frame, released);
    }

    /// Records the new handle of a frame that slept.
    ///
    /// # Errors
    /// See [`Arena::adopt`]; the frame then stays asleep.
    pub(crate) fn woke(&mut self, id: FrameId, made: Made) -> Result<()> {
        let bytes = made.bytes;
        let handle = self.enter(made)?;
        self.frames.wake(id, handle);
        self.asleep -= bytes;
        Ok(())
    }

    /// Removes a sleeping frame that is not needed any more.
    pub(crate) fn forget_asleep(&mut self, id: FrameId) {
        self.asleep -= self.frame(id).bytes;
        self.frames.remove(id);
    }
}
