//! Uses of a buffer by another library's launches, where the crate learns when a use begins but not when it
//! is queued.
//!
//! When a use *begins*, its stream waits for all conflicting work, and the use is stored with its bytes. The
//! borrow that the library holds keeps conflicting uses away until the launch is queued. So when another use
//! conflicts with it (a common byte, and one of the two writes), the launch has been queued. Only then does
//! the use enter the buffer's log, as ordered up to everything queued on its stream by that time. That may be
//! more than the launch itself, and is never less.
//!
//! A stream may have many pending uses that neither conflict nor repeat, for example reads of ever other
//! parts. Beyond [`MANY`] they are merged into one, from the first byte to the last. A conflict with a
//! merged use does not show that each of its parts is queued. So the merged use enters the log, and also
//! stays pending.

use std::sync::Arc;

use crate::device::{Held, Place, StreamCore, lock, note_behind, wait_before};
use crate::error::{Error, Result, refuse};
use crate::sync::Mutex;

/// Most separate pending uses of a stream, for reads and for writes.
const MANY: usize = 16;

/// Uses that have begun and are not yet in the buffer's log.
#[derive(Default)]
pub(super) struct Pending {
    begun: Mutex<Vec<Begun>>,
}

struct Begun {
    /// How often captures of the stream had begun and ended.
    captures: u64,
    stream: Arc<StreamCore>,
    span: Span,
    /// Whether this is several uses, and includes the bytes between them.
    merged: bool,
    held: Held,
}

/// A range of bytes of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) writes: bool,
}

impl Span {
    fn meets(self, other: Self) -> bool {
        let (from, to) = (self.from.max(other.from), self.to.min(other.to));
        (self.writes || other.writes) && from < to
    }

    fn covers(self, other: Self) -> bool {
        self.from <= other.from && other.to <= self.to
    }
}

impl Pending {
    /// Enters the uses that conflict with `span` into the log at `place`. The caller's borrow shows that they
    /// are queued. Those of streams that nobody has any more are queued too.
    pub(super) fn settle(&self, place: Place<'_>, span: Span) {
        let mut begun = lock(&self.begun);
        let entered = begun.extract_if(.., |begun| {
            let (meets, is_left) = (begun.span.meets(span), is_left(&begun.stream));
            if meets || is_left {
                let Span { from, to, writes } = begun.span;
                let used = place.offset(from).used(to - from, writes);
                note_behind(&begun.stream, used, false, begun.captures);
            }
            is_left || meets && (!begun.merged || span.covers(begun.span))
        });
        let entered: Vec<Begun> = entered.collect();
        drop(begun);
        // Without the lock: a stream may go with its last use, which calls the driver.
        drop(entered);
    }

    /// Begins a use of `span` on `stream`, which waits on the device for all conflicting work.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the stream is of another device or under capture; any
    /// error of the driver from a wait. The use has then not begun.
    pub(super) fn begin(
        &self,
        place: Place<'_>,
        stream: &Arc<StreamCore>,
        span: Span,
    ) -> Result<()> {
        let captures = stream.timeline.captures();
        // Until the stream waits: a capture's waits would be its launches'.
        let _outside = stream.outside_capture()?;
        self.settle(place, span);
        let Span { from, to, writes } = span;
        let held = wait_before(stream, place.offset(from).used(to - from, writes))?;
        if from < to {
            let stream = Arc::clone(stream);
            add(
                &mut lock(&self.begun),
                Begun {
                    captures,
                    stream,
                    span,
                    merged: false,
                    held,
                },
            );
        }
        Ok(())
    }
}

impl Pending {
    /// Waits on the host for all work that conflicts with a use of `span` on a stream that the crate does not know, and
    /// that is waited for once the use is queued.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a graph conflicts with the use; any error of the driver from a wait.
    pub(super) fn wait(&self, place: Place<'_>, span: Span) -> Result<()> {
        self.settle(place, span);
        let Span { from, to, writes } = span;
        let used = || place.offset(from).used(to - from, writes);
        let held = wait_before(place.home, used())?;
        refuse!(held.has_graphs() => "stream",
            "a graph uses the memory, and its launches would not wait for a stream that was not adopted");
        // One that went meanwhile may have been launched before.
        drop((held, wait_before(place.home, used())?));
        place.home.synchronize()
    }
}

/// Whether the application has let go of the stream, by both libraries. cudarc makes another handle of the default
/// stream whenever it is asked.
fn is_left(stream: &StreamCore) -> bool {
    let of_theirs = stream
        .owner
        .get()
        .is_none_or(|it| Arc::strong_count(it) == 1);
    stream.raw.0 != 0 && of_theirs && !stream.has_handle()
}

/// Adds a use, or merges it with one that is the same, or with another once there are [`MANY`].
fn add(begun: &mut Vec<Begun>, new: Begun) {
    let alike = |other: &&mut Begun| {
        Arc::ptr_eq(&other.stream, &new.stream) && other.span.writes == new.span.writes
    };
    if let Some(known) = begun
        .iter_mut()
        .filter(alike)
        .find(|other| other.span == new.span)
    {
        return known.held.join(new.held);
    }
    let count = begun.iter_mut().filter(alike).count();
    let first = begun
        .iter_mut()
        .filter(alike)
        .min_by_key(|other| !other.merged);
    match first.filter(|_| count >= MANY) {
        Some(other) => {
            other.merged = true;
            other.captures = other.captures.min(new.captures);
            other.span.from = other.span.from.min(new.span.from);
            other.span.to = other.span.to.max(new.span.to);
            other.held.join(new.held);
        }
        None => begun.push(new),
    }
}

#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::device::{Device, RawStream, Stream};
    use crate::pool::{Pool, PoolBuf, PoolConfig};
    use crate::sync::try_lock;

    const LEN: usize = 1000;

    struct World {
        buffer: PoolBuf<u32>,
        pending: Pending,
        home: Stream,
        theirs: Stream,
    }

    fn world() -> World {
        let device = Device::host().expect("the host device");
        let pool = Pool::new(&device, PoolConfig::default()).expect("a pool");
        let home = device.stream().expect("a stream");
        World {
            buffer: pool.alloc_filled(&home, LEN, 1).expect("a buffer"),
            pending: Pending::default(),
            theirs: device.stream().expect("a stream"),
            home,
        }
    }

    const fn bytes(from: u64, to: u64, writes: bool) -> Span {
        Span {
            from: 4 * from,
            to: 4 * to,
            writes,
        }
    }

    impl World {
        fn another(&self) -> PoolBuf<u32> {
            let pool = Pool::new(self.home.device(), PoolConfig::default()).expect("a pool");
            pool.alloc_filled(&self.home, LEN, 1).expect("a buffer")
        }

        fn begin(&self, span: Span) {
            let core = self.theirs.core();
            let begun = self.pending.begin(self.buffer.place(), core, span);
            begun.expect("it begins");
        }

        /// Another library's launch: blocked until the sender is dropped, then writes `value`
        /// everywhere.
        fn launch(&self, value: u32) -> Sender<()> {
            let (open, wait) = channel::<()>();
            let backend = self.theirs.device().backend();
            let held = Box::new(move || _ = wait.recv());
            backend.host_call(self.theirs.raw(), held).expect("queued");
            let (addr, bytes) = (self.buffer.addr(), 4 * LEN as u64);
            let [byte, ..] = value.to_ne_bytes();
            // SAFETY: the buffer outlives the work, which the test waits for.
            unsafe { backend.fill(addr, byte, bytes, self.theirs.raw()) }.expect("queued");
            open
        }
    }

    #[test]
    fn the_work_of_a_use_runs_behind_a_graph_that_was_launched_since_the_use_began() {
        let mut world = world();
        let other = world.home.device().stream().expect("a stream");
        let capture = other.begin_capture().expect("a capture");
        let captured = world.buffer.view_mut().fill(&other, 0x0101_0101);
        captured.expect("captured");
        let graph = capture.end().expect("a graph");
        world.begin(bytes(0, LEN as u64, true));
        let (open, wait) = channel::<()>();
        let held = Box::new(move || _ = wait.recv());
        let backend = other.device().backend();
        backend.host_call(other.raw(), held).expect("queued");
        graph.launch(&other).expect("queued");
        drop(world.launch(0x0202_0202));
        std::thread::sleep(std::time::Duration::from_millis(40));
        drop(open);
        world.theirs.synchronize().expect("done");
        other.synchronize().expect("done");
        let all = bytes(0, LEN as u64, true);
        world.pending.settle(world.buffer.place(), all);
        let found = world.buffer.download().expect("done");
        assert!(found == [0x0202_0202; LEN], "it ran beside the graph");
    }

    #[test]
    fn a_use_on_a_stream_that_is_not_known_is_refused_where_a_graph_may_be_launched_beside_it() {
        let mut world = world();
        let all = |writes| bytes(0, LEN as u64, writes);
        let waits = |world: &World, writes| world.pending.wait(world.buffer.place(), all(writes));
        let mut other = world.another();
        for written in [false, true] {
            let capture = world.home.begin_capture().expect("a capture");
            let captured = match written {
                true => world.buffer.view_mut().fill(&world.home, 0),
                false => other.view_mut().copy_from(&world.home, &world.buffer),
            };
            captured.expect("captured");
            let graph = capture.end().expect("a graph");
            graph.launch(&world.theirs).expect("queued");
            assert_eq!(waits(&world, false).is_err(), written, "a read");
            assert!(waits(&world, true).is_err(), "a write");
            drop(graph);
            waits(&world, true).expect("no graph");
        }
    }

    #[test]
    fn what_comes_next_waits_for_work_that_was_queued_after_its_use_began() {
        let mut world = world();
        world.begin(bytes(0, LEN as u64, true));
        // Another thread's wait for the stream closes its tick between the use and its work.
        world.home.wait_stream(&world.theirs).expect("a wait");
        let open = world.launch(0x0202_0202);
        let all = bytes(0, LEN as u64, true);
        world.pending.settle(world.buffer.place(), all);
        let threes = world.buffer.view_mut().fill(&world.home, 0x0303_0303);
        threes.expect("queued");
        std::thread::sleep(std::time::Duration::from_millis(40));
        drop(open);
        world.theirs.synchronize().expect("done");
        let found = world.buffer.download().expect("done");
        assert_eq!(found, [0x0303_0303; LEN], "the fill did not wait");
    }

    #[test]
    fn a_use_waits_for_what_the_buffer_s_own_stream_was_given() {
        let mut world = world();
        let (open, wait) = channel::<()>();
        let held = Box::new(move || _ = wait.recv());
        let backend = world.home.device().backend();
        backend.host_call(world.home.raw(), held).expect("queued");
        world
            .buffer
            .view_mut()
            .fill(&world.home, 0)
            .expect("queued");
        world.begin(bytes(0, LEN as u64, true));
        drop(world.launch(0x0202_0202));
        std::thread::sleep(std::time::Duration::from_millis(40));
        drop(open);
        world.theirs.synchronize().expect("done");
        world.home.synchronize().expect("done");
        world
            .pending
            .settle(world.buffer.place(), bytes(0, LEN as u64, true));
        assert_eq!(world.buffer.download().expect("done"), [0x0202_0202; LEN]);
    }

    #[test]
    fn a_use_that_has_begun_waited_on_its_stream_whatever_capture_begins_meanwhile() {
        let mut world = world();
        let (open, wait) = channel::<()>();
        let held = Box::new(move || _ = wait.recv());
        let backend = world.home.device().backend();
        backend.host_call(world.home.raw(), held).expect("queued");
        let zeros = world.buffer.view_mut().fill(&world.home, 0);
        zeros.expect("queued");
        let pause = || std::thread::sleep(std::time::Duration::from_millis(40));
        let all = bytes(0, LEN as u64, true);
        let pending = lock(&world.pending.begun);
        std::thread::scope(|scope| {
            let using = scope.spawn(|| world.begin(all));
            pause();
            let capturing = scope.spawn(|| world.theirs.begin_capture().expect("a capture"));
            pause();
            drop(pending);
            using.join().expect("it begins");
            drop(capturing.join().expect("a capture"));
        });
        drop(world.launch(0x0202_0202));
        pause();
        drop(open);
        world.theirs.synchronize().expect("done");
        world.home.synchronize().expect("done");
        world.pending.settle(world.buffer.place(), all);
        let found = world.buffer.download().expect("done");
        assert!(found == [0x0202_0202; LEN], "the launch did not wait");
    }

    #[test]
    fn only_what_is_met_is_entered() {
        let world = world();
        let count = |world: &World| lock(&world.pending.begun).len();
        world.begin(bytes(0, 10, false));
        world.begin(bytes(0, 10, false));
        world.begin(bytes(10, 20, true));
        world.begin(bytes(5, 5, true));
        assert_eq!(count(&world), 2);
        world
            .pending
            .settle(world.buffer.place(), bytes(0, 10, false));
        assert_eq!(count(&world), 2, "a read met a read");
        world
            .pending
            .settle(world.buffer.place(), bytes(20, 30, true));
        assert_eq!(count(&world), 2, "neighbours met");
        world
            .pending
            .settle(world.buffer.place(), bytes(9, 11, false));
        assert_eq!(count(&world), 1, "the read met no write");
        world
            .pending
            .settle(world.buffer.place(), bytes(0, 1, true));
        assert_eq!(count(&world), 0);
    }

    #[test]
    fn reads_that_nothing_meets_are_few_however_many_parts_are_read() {
        let world = world();
        for round in 0..3 {
            for at in 0..LEN as u64 {
                world.begin(bytes(at, at + 1 + round, false));
            }
        }
        let count = lock(&world.pending.begun).len();
        assert!(count <= 64, "{count} uses are kept");
    }

    #[test]
    fn reads_of_streams_that_are_gone_are_few_however_many_there_were() {
        let mut world = world();
        for _ in 0..100 {
            world.theirs = world.home.device().stream().expect("a stream");
            world.begin(bytes(0, 10, false));
        }
        let count = lock(&world.pending.begun).len();
        assert!(count <= 2, "{count} uses are kept, and their streams");
        let streams = world.home.device().counts().streams;
        assert!(streams <= 10, "{streams} streams");
    }

    #[test]
    fn a_use_of_the_default_stream_is_not_taken_for_queued_although_its_handles_are_gone() {
        let world = world();
        let stream = world.home.device().stream().expect("a stream");
        let mut core = Arc::clone(stream.core());
        drop(stream);
        let only = Arc::get_mut(&mut core).expect("all handles are gone");
        only.raw = RawStream(0);
        let (place, part) = (world.buffer.place(), bytes(0, 10, false));
        let begun = world.pending.begin(place, &core, part);
        begun.expect("it begins");
        world.pending.settle(place, part);
        let count = lock(&world.pending.begun).len();
        assert_eq!(count, 1, "another handle of it may be about to queue it");
    }

    /// What owns another library's stream; notes whether the lock of the uses is free as it goes.
    struct Owner(Arc<Pending>, Arc<AtomicBool>);

    impl Drop for Owner {
        fn drop(&mut self) {
            let free = try_lock(&self.0.begun).is_some();
            self.1.store(free, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_stream_that_goes_with_its_last_use_goes_without_the_lock_of_the_uses() {
        let world = world();
        let (pending, free) = (Arc::new(Pending::default()), Arc::default());
        let stream = world.home.device().stream().expect("a stream");
        let owner = Arc::new(Owner(Arc::clone(&pending), Arc::clone(&free)));
        assert!(stream.core().owner.set(owner).is_ok());
        let place = world.buffer.place();
        let begun = pending.begin(place, stream.core(), bytes(0, 10, false));
        begun.expect("it begins");
        drop(stream);
        pending.settle(place, bytes(0, 10, true));
        assert!(lock(&pending.begun).is_empty());
        assert!(free.load(Ordering::Relaxed), "its lock is held");
    }

    #[test]
    fn what_is_kept_as_one_stays_until_all_of_it_is_met() {
        let world = world();
        let count = |world: &World| lock(&world.pending.begun).len();
        let settle = |from, to| {
            let met = bytes(from, to, true);
            world.pending.settle(world.buffer.place(), met);
        };
        for at in 0..=MANY as u64 {
            world.begin(bytes(10 * at, 10 * at + 1, false));
        }
        // The first use is merged with the last, up to byte 161.
        let all = count(&world);
        settle(0, 100);
        assert_eq!(count(&world), all - 9, "those apart are met");
        settle(1, 160);
        assert_eq!(count(&world), 1, "the first and the last may not be queued");
        settle(0, 161);
        assert_eq!(count(&world), 0);
    }

    #[test]
    fn a_stream_under_capture_begins_nothing() {
        let world = world();
        let capture = world.theirs.begin_capture().expect("a capture");
        let core = world.theirs.core();
        let begun = (world.pending).begin(world.buffer.place(), core, bytes(0, 1, true));
        assert!(begun.is_err());
        assert!(lock(&world.pending.begun).is_empty());
        drop(capture);
    }
}
