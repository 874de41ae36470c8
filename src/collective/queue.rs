//! Groups of collectives, queued in the order that their memory requires.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;

use super::element::{BYTES, Kind, Op, Reduce, kind_of};
use super::transport::{Act, Call, Transport};
use crate::device::{Access, AccessKind, Checked, Note, OutsideCapture, Stream, Use, ordered};
use crate::error::{Error, Result, refuse};
use crate::pool::{View, ViewMut};

/// Collectives of one rank on one stream, which [`Collectives::run`] queues together;
/// [`Comm::on`](super::Comm::on) makes it. Put sends and receives that wait for each other into one group.
///
/// ```
/// # use std::time::Duration;
/// # use warpool::collective::Comm;
/// # use warpool::{Device, Pool, PoolConfig};
/// # fn main() -> warpool::Result<()> {
/// # let ends = Comm::simulated(&[Device::host()?], Duration::from_secs(10))?;
/// # let comm = &ends[0];
/// # let pool = Pool::new(comm.device(), PoolConfig::default())?;
/// # let stream = comm.device().stream()?;
/// // Round a ring: to the next rank, from the one before.
/// let (next, before) = ((comm.rank() + 1) % comm.size(), (comm.rank() + comm.size() - 1) % comm.size());
/// let mine = pool.alloc_filled(&stream, 100, comm.rank())?;
/// let mut theirs = pool.alloc_zeroed::<u32>(&stream, 100)?;
/// comm.on(&stream).send(&mine, next).recv(&mut theirs, before).run()?;
/// assert_eq!(theirs.download()?, [before; 100]);
///
/// // Each rank's part of the sums; then all parts, everywhere; then rank 0's, everywhere.
/// use warpool::collective::Op;
/// let ranks = comm.size() as usize;
/// let whole = pool.alloc_filled(&stream, 100 * ranks, 1.0f32)?;
/// let mut part = pool.alloc_typed::<f32>(&stream, 100)?;
/// let mut sums = pool.alloc_typed::<f32>(&stream, 100 * ranks)?;
/// comm.on(&stream).reduce_scatter(&whole, &mut part, Op::Sum).run()?;
/// comm.on(&stream).all_gather(&part, &mut sums).run()?;
/// comm.on(&stream).broadcast(&mut sums, 0).run()?;
/// assert_eq!(sums.download()?, vec![ranks as f32; 100 * ranks]);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is queued until `run` is called"]
pub struct Collectives<'a> {
    transport: &'a Arc<dyn Transport>,
    stream: &'a Stream,
    uses: Vec<Option<Use<'a>>>,
    accesses: Vec<Access>,
    calls: Vec<Call>,
    wrong: Option<Error>,
}

impl fmt::Debug for Collectives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collectives({:?} on {:?})", self.calls, self.stream)
    }
}

impl<'a> Collectives<'a> {
    pub(super) fn new(transport: &'a Arc<dyn Transport>, stream: &'a Stream) -> Self {
        Self {
            transport,
            stream,
            uses: Vec::new(),
            accesses: Vec::new(),
            calls: Vec::new(),
            wrong: None,
        }
    }

    fn refuse(&mut self, what: &'static str, why: String) {
        self.wrong.get_or_insert(Error::Invalid { what, why });
    }

    fn reads<T: Pod>(&mut self, view: &View<'a, T>) {
        self.uses.push(view.used());
        self.accesses.push(Access::read(view.addr(), view.bytes()));
    }

    fn writes<T: Pod>(&mut self, view: &ViewMut<'a, T>) {
        self.uses.push(view.used());
        self.accesses.push(Access::write(view.addr(), view.bytes()));
    }

    fn add(&mut self, act: Act, kind: Kind, places: (u64, u64), count: usize) {
        let (src, dst) = places;
        self.calls.push(Call {
            act,
            kind,
            src,
            dst,
            count,
        });
    }

    /// Records an error unless there is such a rank.
    fn check_rank(&mut self, what: &'static str, rank: u32) {
        let size = self.transport.size();
        if rank >= size {
            self.refuse(
                what,
                format!("{rank}: there are {size} ranks, numbered from 0"),
            );
        }
    }

    /// Records an error unless `whole` elements are `part` elements for each rank.
    fn check_parts(&mut self, what: &'static str, whole: usize, part: usize) {
        let size = self.transport.size();
        if part.checked_mul(size as usize) != Some(whole) {
            let why = format!("{whole} elements are not {part} for each of {size} ranks");
            self.refuse(what, why);
        }
    }

    /// Reduces the elements of all ranks in place: all ranks have the same result.
    pub fn all_reduce<T: Reduce>(mut self, data: impl Into<ViewMut<'a, T>>, op: Op) -> Self {
        let data = data.into();
        self.writes(&data);
        let places = (data.addr(), data.addr());
        self.add(Act::AllReduce(op), kind_of::<T>(), places, data.len());
        self
    }

    /// Reduces the elements of all ranks; rank *r* gets the *r*-th part of the result. `src` has one part per
    /// rank.
    pub fn reduce_scatter<T: Reduce>(
        mut self,
        src: impl Into<View<'a, T>>,
        dst: impl Into<ViewMut<'a, T>>,
        op: Op,
    ) -> Self {
        let (src, dst) = (src.into(), dst.into());
        self.check_parts("src", src.len(), dst.len());
        self.reads(&src);
        self.writes(&dst);
        let places = (src.addr(), dst.addr());
        self.add(Act::ReduceScatter(op), kind_of::<T>(), places, dst.len());
        self
    }

    /// Gathers the elements of all ranks on every rank, in the order of the ranks.
    pub fn all_gather<T: Pod>(
        mut self,
        src: impl Into<View<'a, T>>,
        dst: impl Into<ViewMut<'a, T>>,
    ) -> Self {
        let (src, dst) = (src.into(), dst.into());
        self.check_parts("dst", dst.len(), src.len());
        self.reads(&src);
        self.writes(&dst);
        let places = (src.addr(), dst.addr());
        self.add(Act::AllGather, BYTES, places, src.bytes() as usize);
        self
    }

    /// Copies the elements of rank `root` to all ranks, in place.
    pub fn broadcast<T: Pod>(mut self, data: impl Into<ViewMut<'a, T>>, root: u32) -> Self {
        let data = data.into();
        self.check_rank("root", root);
        self.writes(&data);
        let places = (data.addr(), data.addr());
        self.add(Act::Broadcast(root), BYTES, places, data.bytes() as usize);
        self
    }

    /// Sends these elements to rank `to`, which receives the same number.
    pub fn send<T: Pod>(mut self, src: impl Into<View<'a, T>>, to: u32) -> Self {
        let src = src.into();
        self.check_rank("to", to);
        self.reads(&src);
        self.add(Act::Send(to), BYTES, (src.addr(), 0), src.bytes() as usize);
        self
    }

    /// Receives elements from rank `from`, which sends the same number.
    pub fn recv<T: Pod>(mut self, dst: impl Into<ViewMut<'a, T>>, from: u32) -> Self {
        let dst = dst.into();
        self.check_rank("from", from);
        self.writes(&dst);
        self.add(
            Act::Recv(from),
            BYTES,
            (0, dst.addr()),
            dst.bytes() as usize,
        );
        self
    }

    /// Queues the whole group on the stream, after all conflicting work.
    ///
    /// # Errors
    /// [`Error::Invalid`] if lengths do not match, a rank does not exist, memory or the stream is of another
    /// device, a source is also written, the communicator's other GPUs have no access to the memory, or a
    /// capture cannot contain collectives. Nothing is then queued, and the communicator is unchanged. Also an
    /// earlier failure ([`Comm::check`](super::Comm::check)), and any error of NCCL.
    pub fn run(mut self) -> Result<()> {
        let transport = self.transport;
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        check_apart(&self.accesses)?;
        self.check_device(&**transport)?;
        let outside = self.outside()?;
        let Self {
            stream,
            uses,
            accesses,
            calls,
            ..
        } = self;
        let device = stream.device();
        let queued = ordered(stream.core(), &uses, || {
            device.backend().observe(&Note::Uses {
                what: "collective",
                stream: stream.raw(),
                accesses: &accesses,
            });
            let queue = || {
                // The capture of now, which may have begun since: it does not end before this returns.
                let end: Arc<dyn Checked> = Arc::clone(transport) as _;
                let keeps = || stream.recorder().is_some_and(|it| it.keep_checked(&end));
                refuse!(outside.is_none() && !keeps() => "stream",
                    "its capture has ended");
                // SAFETY: the views keep their memory until the work is done, or the caller that made them from
                // plain addresses guarantees it; `ordered` keeps the order.
                unsafe { transport.queue(stream, &calls) }
            };
            device.in_context(|| stream.core().timeline.queue(queue))
        });
        queued??
    }

    /// Outside of captures, none begins before the group is queued. A graph has to keep the transport.
    fn outside(&self) -> Result<Option<OutsideCapture<'a>>> {
        match self.stream.core().outside_capture() {
            Err(_) if self.stream.recorder().is_some() => {
                self.transport.check_capture().map(|()| None)
            }
            outside => outside.map(Some),
        }
    }

    /// Returns an error if the stream is of another device than the rank, or GPUs of this process have no
    /// access to the memory.
    fn check_device(&self, transport: &dyn Transport) -> Result<()> {
        let device = transport.device();
        if !device.same(self.stream.device()) {
            let why = "it is of another device than the communicator's end";
            return Err(Error::invalid("stream", why));
        }
        for access in &self.accesses {
            let (addr, is_empty) = (access.range.start, access.range.is_empty());
            let shared = |peer| device.backend().is_shared(addr, peer);
            if let Some(peer) = transport
                .peers()
                .iter()
                .find(|peer| !is_empty && !shared(peer))
            {
                let why = format!(
                    "GPU {} of this process may not use it: name it in PoolConfig::peers",
                    peer.ordinal
                );
                return Err(Error::invalid("data", why));
            }
        }
        Ok(())
    }
}

/// Returns an error if one collective of a group writes memory that another one uses.
fn check_apart(accesses: &[Access]) -> Result<()> {
    let mut parts: Vec<&Access> = accesses.iter().filter(|it| !it.range.is_empty()).collect();
    parts.sort_unstable_by_key(|part| part.range.start);
    // The furthest end so far, of written parts and of all.
    let (mut written_end, mut any_end) = (0, 0);
    for part in parts {
        let (start, is_written) = (part.range.start, part.kind == AccessKind::Write);
        if start < written_end || (is_written && start < any_end) {
            let why = format!("{start:#x} is used by another part too");
            return Err(Error::invalid("data", why));
        }
        any_end = any_end.max(part.range.end);
        if is_written {
            written_end = any_end;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::device::{Capture, Device, DeviceInfo, Graph};

    /// The end of a rank that another thread's end of a capture overtakes.
    struct Overtaken {
        device: Device,
        capture: Mutex<Option<Capture>>,
        /// The stream of a capture that begins at once, and the graph of the one before.
        next: Option<(Stream, Mutex<Option<Graph>>)>,
    }

    impl Transport for Overtaken {
        fn rank(&self) -> u32 {
            0
        }
        fn size(&self) -> u32 {
            1
        }
        fn device(&self) -> &Device {
            &self.device
        }
        fn peers(&self) -> &[DeviceInfo] {
            &[]
        }
        fn check_capture(&self) -> Result<()> {
            let mut capture = self.capture.lock().unwrap();
            let ended = capture.take();
            if let Some((stream, graph)) = &self.next {
                *graph.lock().unwrap() = Some(ended.unwrap().end()?);
                *capture = Some(stream.begin_capture()?);
            }
            Ok(())
        }
        unsafe fn queue(&self, _: &Stream, _: &[Call]) -> Result<()> {
            assert!(self.next.is_some(), "it is queued outside the graph");
            Ok(())
        }
        fn abort(&self) -> Result<()> {
            Ok(())
        }
        fn twin(self: Arc<Self>) -> Result<Option<Arc<dyn Transport>>> {
            Ok(None)
        }
    }

    impl Checked for Overtaken {
        fn check(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_collective_whose_capture_ends_meanwhile_is_refused_and_not_queued() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let capture = Mutex::new(Some(stream.begin_capture().unwrap()));
        let next = None;
        let transport = Arc::new(Overtaken {
            device,
            capture,
            next,
        });
        let kept: Arc<dyn Transport> = transport.clone();
        let refused = Collectives::new(&kept, &stream).run().unwrap_err();
        let words = refused.to_string();
        assert!(words.contains("its capture has ended"), "{words}");
        drop(kept);
        assert_eq!(Arc::strong_count(&transport), 1, "something keeps it");
    }

    #[test]
    fn a_graph_whose_capture_has_taken_the_place_of_another_keeps_the_end_of_its_collectives() {
        let device = Device::host().unwrap();
        let stream = device.stream().unwrap();
        let capture = Mutex::new(Some(stream.begin_capture().unwrap()));
        let next = Some((stream.clone(), Mutex::default()));
        let transport = Arc::new(Overtaken {
            device,
            capture,
            next,
        });
        let end: Arc<dyn Transport> = transport.clone();
        Collectives::new(&end, &stream).run().unwrap();
        drop(end);
        let (_, before) = transport.next.as_ref().unwrap();
        drop(before.lock().unwrap().take());
        let capture = transport.capture.lock().unwrap().take();
        let graph = capture.unwrap().end().unwrap();
        assert_eq!(Arc::strong_count(&transport), 2, "its runs have no end");
        drop(graph);
        assert_eq!(Arc::strong_count(&transport), 1, "something keeps it");
    }

    #[test]
    fn what_a_group_writes_is_used_by_no_other_part() {
        let [read, write] = [Access::read, Access::write];
        let apart = |accesses: &[Access]| check_apart(accesses).is_ok();
        assert!(apart(&[
            read(0, 10),
            read(5, 10),
            write(15, 5),
            write(20, 5)
        ]));
        assert!(!apart(&[write(0, 10), read(9, 10)]));
        assert!(!apart(&[read(9, 10), write(0, 10)]));
        assert!(!apart(&[read(0, 100), read(5, 1), write(50, 10)]));
        assert!(!apart(&[write(0, 100), read(5, 1), read(50, 10)]));
        assert!(!apart(&[write(7, 1), write(7, 1)]));
        assert!(apart(&[write(0, 10), write(4, 0), read(4, 0), read(10, 1)]));
    }

    #[test]
    fn a_group_of_very_many_parts_is_checked_soon() {
        let accesses: Vec<Access> = (0..300_000).map(|at| Access::write(16 * at, 16)).collect();
        let begun = std::time::Instant::now();
        assert!(check_apart(&accesses).is_ok());
        let took = begun.elapsed();
        assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    }
}
