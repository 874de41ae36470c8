//! The map from granules to the frames mapped there.

use std::ops::Range;

use crate::device::Phys;

/// A handle's number, never reused in this arena. A driver may reuse its own value once a handle is released.
pub(crate) type HandleId = u64;

/// Number of a frame.
pub(crate) type FrameId = u32;

/// One physical handle that is mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// The handle, by the arena's number and the driver's.
    pub(crate) handle: HandleId,
    pub(crate) phys: Phys,
    /// Offset of its newest mapping.
    pub(crate) start: u64,
    /// 0 if the record is unused.
    pub(crate) bytes: u64,
    /// Whether it has a handle; while the memory sleeps it has only its place.
    pub(crate) awake: bool,
}

impl Frame {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// Frames by number and, within the arena's range, by granule.
pub(crate) struct Frames {
    frames: Vec<Frame>,
    spare: Vec<FrameId>,
    granule: u64,
    /// Frame number plus one, by granule; 0 if nothing is mapped. Zeroed memory costs nothing until it is
    /// written, so a large span is cheap.
    by_granule: Vec<u32>,
}

impl Frames {
    pub(crate) fn new(span: u64, granule: u64) -> Self {
        Self {
            frames: Vec::new(),
            spare: Vec::new(),
            granule,
            by_granule: vec![0; (span / granule) as usize],
        }
    }

    pub(crate) fn get(&self, id: FrameId) -> Frame {
        self.frames[id as usize]
    }

    pub(crate) fn at(&self, offset: u64) -> Option<(FrameId, Frame)> {
        let granule = (offset / self.granule) as usize;
        let id = self.by_granule.get(granule)?.checked_sub(1)?;
        Some((id, self.get(id)))
    }

    pub(crate) fn add(
        &mut self,
        (handle, phys): (HandleId, Phys),
        start: u64,
        bytes: u64,
    ) -> FrameId {
        let frame = Frame {
            handle,
            phys,
            start,
            bytes,
            awake: true,
        };
        let id = match self.spare.pop() {
            Some(id) => {
                self.frames[id as usize] = frame;
                id
            }
            None => {
                self.frames.push(frame);
                (self.frames.len() - 1) as FrameId
            }
        };
        self.mark(id, id + 1);
        id
    }

    pub(crate) fn rehome(&mut self, id: FrameId, start: u64) {
        self.mark(id, 0);
        self.frames[id as usize].start = start;
        self.mark(id, id + 1);
    }

    /// Records that the frame's handle is gone; its place is kept.
    pub(crate) fn sleep(&mut self, id: FrameId) {
        self.frames[id as usize].awake = false;
    }

    /// Records the new handle of a frame that slept.
    pub(crate) fn wake(&mut self, id: FrameId, (handle, phys): (HandleId, Phys)) {
        let frame = &mut self.frames[id as usize];
        (frame.handle, frame.phys, frame.awake) = (handle, phys, true);
    }

    pub(crate) fn remove(&mut self, id: FrameId) {
        self.mark(id, 0);
        self.frames[id as usize].bytes = 0;
        self.spare.push(id);
    }

    fn mark(&mut self, id: FrameId, value: u32) {
        let marks = self.range(&self.get(id));
        self.by_granule[marks].fill(value);
    }

    /// The granules of a frame; empty outside the arena's range.
    fn range(&self, frame: &Frame) -> Range<usize> {
        let first = (frame.start / self.granule) as usize;
        match first < self.by_granule.len() {
            true => first..first + (frame.bytes / self.granule) as usize,
            false => 0..0,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FrameId, Frame)> + '_ {
        let numbered = self.frames.iter().enumerate();
        numbered
            .filter(|(_, frame)| frame.bytes > 0)
            .map(|(id, frame)| (id as FrameId, *frame))
    }

    /// Checks the map. Returns the bytes of all frames, and those of frames within the range.
    pub(crate) fn check(&self) -> Result<(u64, u64), String> {
        let (mut all, mut within) = (0, 0);
        for (id, frame) in self.iter() {
            let marks = &self.by_granule[self.range(&frame)];
            if marks.iter().any(|&mark| mark != id + 1) {
                return Err(format!("frame {id} {frame:?} is not what the map says"));
            }
            all += frame.bytes;
            within += marks.len() as u64 * self.granule;
        }
        let marked = self.by_granule.iter().filter(|&&mark| mark != 0).count() as u64;
        match marked * self.granule == within {
            true => Ok((all, within)),
            false => Err(format!(
                "{marked} granules are marked as mapped, frames hold {within} bytes"
            )),
        }
    }
}
