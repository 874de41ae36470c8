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

    /// A frame, and where it begins and its bytes.
    pub(crate) fn frame_and_extent(&self, id: FrameId) -> (Frame, (u64, u64)) {
        let frame = self.frame(id);
        (frame, self.extent_of(&frame))
    }

    /// Books that the frame was unmapped and its handle offered to the device, as
    /// [`Arena::frame_gone`]; its place is kept.
    pub(crate) fn fell_asleep(&mut self, id: FrameId, released: bool) {
        let frame = self.frame(id);
        let (_, bytes) = self.extent_of(&frame);
        self.calls.unmapped += 1;
        self.frames.sleep(id);
        self.mapped -= bytes;
        self.asleep += bytes;
        self.give_up(frame.handle, bytes);
        self.offered(frame.handle, frame.phys, released);
    }

    /// Books the new handle of a frame that slept.
    ///
    /// # Errors
    /// As [`Arena::adopt`]; the frame sleeps on then.
    pub(crate) fn woke(&mut self, id: FrameId, made: Made) -> Result<()> {
        let bytes = made.bytes;
        self.calls.created += 1;
        let handle = self.new_handle();
        if let Some((error, given_back)) = made.unmapped {
            self.give_up(handle, bytes);
            self.offered(handle, made.phys, given_back);
            return Err(error);
        }
        self.calls.mapped += 1;
        self.frames.wake(id, (handle, made.phys));
        self.asleep -= bytes;
        self.mapped += bytes;
        Ok(())
    }

    /// Books that nobody needs a frame that sleeps.
    pub(crate) fn forget_asleep(&mut self, id: FrameId) {
        let (_, bytes) = self.extent_of(&self.frame(id));
        self.frames.remove(id);
        self.asleep -= bytes;
    }
}
