//! Which frame is mapped at which granule.

use crate::device::Phys;

/// Number of a handle: no other of the arena has it or had it, unlike the driver's, which may come again
/// once a handle is released.
pub(crate) type HandleId = u64;

/// Number of a frame.
pub(crate) type FrameId = u32;

/// One physical handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// The handle, as the arena and as the driver number it.
    pub(crate) handle: HandleId,
    pub(crate) phys: Phys,
    /// Granule at which it is mapped (its newest mapping).
    pub(crate) home: u32,
    /// Its handle is there; not so while the memory sleeps, which keeps its place.
    pub(crate) awake: bool,
    /// Its length; 0 for a record that is free for use.
    pub(crate) granules: u32,
}

/// Frames by number and by granule.
pub(crate) struct Frames {
    frames: Vec<Frame>,
    spare: Vec<FrameId>,
    /// Frame number plus one by granule, 0 where nothing is mapped. Zeroed memory costs nothing
    /// until it is touched, so a large span is cheap.
    by_granule: Vec<u32>,
}

impl Frames {
    pub(crate) fn new(granules: usize) -> Self {
        Self {
            frames: Vec::new(),
            spare: Vec::new(),
            by_granule: vec![0; granules],
        }
    }

    pub(crate) fn get(&self, id: FrameId) -> Frame {
        self.frames[id as usize]
    }

    pub(crate) fn at(&self, granule: usize) -> Option<(FrameId, Frame)> {
        let id = self.by_granule.get(granule)?.checked_sub(1)?;
        Some((id, self.get(id)))
    }

    pub(crate) fn add(
        &mut self,
        (handle, phys): (HandleId, Phys),
        home: u32,
        granules: u32,
    ) -> FrameId {
        let frame = Frame {
            handle,
            phys,
            home,
            awake: true,
            granules,
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

    pub(crate) fn rehome(&mut self, id: FrameId, home: u32) {
        self.mark(id, 0);
        self.frames[id as usize].home = home;
        self.mark(id, id + 1);
    }

    /// Takes note that the frame's handle is gone, and its place is kept.
    pub(crate) fn sleep(&mut self, id: FrameId) {
        self.frames[id as usize].awake = false;
    }

    /// Takes note of a new handle of a frame that slept.
    pub(crate) fn wake(&mut self, id: FrameId, (handle, phys): (HandleId, Phys)) {
        let frame = &mut self.frames[id as usize];
        (frame.handle, frame.phys, frame.awake) = (handle, phys, true);
    }

    pub(crate) fn remove(&mut self, id: FrameId) {
        self.mark(id, 0);
        self.frames[id as usize].granules = 0;
        self.spare.push(id);
    }

    fn mark(&mut self, id: FrameId, value: u32) {
        let Frame { home, granules, .. } = self.get(id);
        self.by_granule[home as usize..(home + granules) as usize].fill(value);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (FrameId, Frame)> + '_ {
        let numbered = self.frames.iter().enumerate();
        numbered
            .filter(|(_, frame)| frame.granules > 0)
            .map(|(id, frame)| (id as FrameId, *frame))
    }

    /// Granules in all frames, if every frame is where the map says.
    pub(crate) fn check(&self) -> Result<u64, String> {
        let mut sum = 0;
        for (id, frame) in self.iter() {
            let range = frame.home as usize..(frame.home + frame.granules) as usize;
            if self.by_granule[range].iter().any(|&mark| mark != id + 1) {
                return Err(format!("frame {id} {frame:?} is not what the map says"));
            }
            sum += u64::from(frame.granules);
        }
        let mapped = self.by_granule.iter().filter(|&&mark| mark != 0).count() as u64;
        if mapped != sum {
            return Err(format!(
                "{mapped} granules are marked as mapped, frames hold {sum}"
            ));
        }
        Ok(sum)
    }
}
