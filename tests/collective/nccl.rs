//! NCCL's calls and errors, through a stand-in that notes them; NCCL itself where there are several GPUs.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use warpool::PoolBuf;
use warpool::collective::{Comm, Op, Ranks};
use warpool::half::bf16;

use crate::common::BackendOf;
use crate::{PATIENCE, hosts, on_ranks};

/// The stand-in, for one test at a time.
pub(crate) struct StandIn {
    handle: usize,
    _alone: MutexGuard<'static, ()>,
}

impl StandIn {
    /// `None`, said so, where there is no C compiler, or NCCL itself is to be used.
    pub(crate) fn get() -> Option<Self> {
        static ALONE: Mutex<()> = Mutex::new(());
        static OPENED: OnceLock<Option<usize>> = OnceLock::new();
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = (*OPENED.get_or_init(open))?;
        let it = Self {
            handle,
            _alone: alone,
        };
        it.reset();
        Some(it)
    }

    /// As if nothing had been called or asked for.
    pub(crate) fn reset(&self) {
        let reset = self.symbol(c"stand_in_reset");
        // SAFETY: a function of this signature.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(reset)() };
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the library stays open.
        let found = unsafe { libc::dlsym(self.handle as *mut c_void, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    /// The calls so far.
    pub(crate) fn notes(&self) -> Vec<String> {
        let notes = self.symbol(c"stand_in_notes");
        // SAFETY: a function of this signature, which gives a C string.
        let text = unsafe {
            let notes = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const c_char>(notes);
            CStr::from_ptr(notes())
        };
        text.to_str().unwrap().lines().map(str::to_owned).collect()
    }

    pub(crate) fn fail(&self, call: &str, code: c_int) {
        let call = CString::new(call).unwrap();
        let fail = self.symbol(c"stand_in_fail");
        // SAFETY: a function of this signature, which copies the name.
        unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(fail)(
                call.as_ptr(),
                code,
            );
        }
    }

    fn set(&self, name: &CStr, value: c_int) {
        let set = self.symbol(name);
        // SAFETY: a function of this signature.
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(c_int)>(set)(value) };
    }

    fn fail_behind(&self, code: c_int) {
        self.set(c"stand_in_async_error", code);
    }

    /// Calls that may wait for other ranks do not come back meanwhile.
    pub(crate) fn hold(&self, on: bool) {
        self.set(c"stand_in_hold", on.into());
    }

    /// So many ranks, from 0, take no part in a second communicator.
    #[cfg(feature = "convert")]
    pub(crate) fn keep_apart(&self, ranks: c_int) {
        self.set(c"stand_in_apart", ranks);
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        let notes = self.notes();
        notes.iter().filter(|note| note.starts_with(what)).count()
    }

    /// Waits until a call has been made so often.
    pub(crate) fn wait_for(&self, what: &str, times: usize) {
        let began = Instant::now();
        while self.count(what) < times {
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.notes());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Compiles the stand-in and opens it as NCCL.
fn open() -> Option<usize> {
    if warpool::Device::cuda(0).is_ok() {
        println!("skipped: NCCL itself is used where there is a GPU");
        return None;
    }
    // Not in folders of the build, which a machine that only runs the tests may lack.
    let folder = tempfile::tempdir().unwrap();
    let [file, source] = ["stand_in.so", "stand_in.c"].map(|name| folder.path().join(name));
    std::fs::write(&source, include_str!("stand_in.c")).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .args([&file, &source])
        .arg("-lpthread")
        .status();
    match made {
        Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        Err(why) => {
            println!("skipped: no C compiler: {why}");
            return None;
        }
    }
    warpool::collective::open_library(&file).unwrap();
    let path = CString::new(file.to_str().unwrap()).unwrap();
    // SAFETY: it is open already.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    Some(handle as usize)
}

#[test]
fn collectives_are_the_calls_of_nccl_that_they_are_called_after() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(1), PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        let (comm, stream) = (&rank.comm, &rank.stream);
        let mut floats = rank.pool.alloc_zeroed::<f32>(stream, 10).unwrap();
        let mut halves = rank.pool.alloc_zeroed::<bf16>(stream, 20).unwrap();
        let mut others = rank.pool.alloc_zeroed::<bf16>(stream, 20).unwrap();
        comm.on(stream)
            .all_reduce(&mut floats, Op::Sum)
            .run()
            .unwrap();
        let queue = comm
            .on(stream)
            .reduce_scatter(&halves, &mut others, Op::Max);
        queue.broadcast(&mut floats, 0).run().unwrap();
        comm.on(stream)
            .all_gather(&halves, &mut others)
            .run()
            .unwrap();
        comm.on(stream)
            .send(&halves, 0)
            .recv(&mut others, 0)
            .run()
            .unwrap();
        let (low, _) = halves.view_mut().split_at(0).unwrap();
        comm.on(stream).all_reduce(low, Op::Min).run().unwrap();
        comm.check().unwrap();
    });
    let wanted = "ncclGetUniqueId
ncclCommInitRankConfig 0/1 ok
ncclAllReduce 10 of 7, 0, rank 0
ncclGroupStart
ncclReduceScatter 20 of 9, 2, rank 0 of a group
ncclBroadcast 40 of 1, 0, rank 0 of a group
ncclGroupEnd
ncclAllGather 40 of 1, -1, rank 0
ncclGroupStart
ncclSend 40 of 1, 0, rank 0 of a group
ncclRecv 40 of 1, 0, rank 0 of a group
ncclGroupEnd
ncclAllReduce 0 of 9, 3, rank 0
ncclCommGetAsyncError
ncclCommFinalize
ncclCommDestroy";
    assert_eq!(it.notes(), wanted.lines().collect::<Vec<_>>());
}

#[test]
fn ranks_that_meet_make_one_communicator_and_one_that_fails_to_come_is_told_in_time() {
    let Some(it) = StandIn::get() else { return };
    let folder = tempfile::tempdir().unwrap();
    let ranks = |meet: &str, size| -> Vec<Ranks> {
        let of = |rank| Ranks {
            rank,
            size,
            local_rank: rank,
            meet: format!("file://{}/{meet}", folder.path().display()),
        };
        (0..size).map(of).collect()
    };
    let join = |ranks: &[Ranks], patience| {
        std::thread::scope(|scope| {
            let join =
                |ranks| scope.spawn(move || Comm::nccl(&crate::common::host(), ranks, patience));
            let threads: Vec<_> = ranks.iter().map(join).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<_>>()
        })
    };
    let ends = join(&ranks("all", 3), PATIENCE);
    let who: Vec<_> = ends
        .iter()
        .map(|end| end.as_ref().map(|end| (end.rank(), end.size())).unwrap())
        .collect();
    assert_eq!(who, [(0, 3), (1, 3), (2, 3)]);
    drop(ends);
    for error in join(&ranks("some", 3)[..2], Duration::from_millis(200)) {
        let words = error.unwrap_err().to_string();
        assert!(words.contains("ranks [2] of 3"), "{words}");
    }
    // One whose library fails once all have met: the others wait in NCCL, in vain, and not for ever.
    it.fail("ncclCommInitRankConfig", 2);
    let began = Instant::now();
    for error in join(&ranks("failing", 2), Duration::from_millis(200)) {
        let words = error.unwrap_err().to_string();
        assert!(
            words.contains("unhandled system error") && words.contains("the stand-in says so"),
            "{words}"
        );
    }
    assert!(began.elapsed() < PATIENCE);
    let aborts = it
        .notes()
        .iter()
        .filter(|note| *note == "ncclCommAbort")
        .count();
    assert_eq!(aborts, 2, "what was made of a communicator is given back");
}

#[test]
fn a_communicator_that_is_never_complete_is_an_error_within_the_time_given() {
    let Some(it) = StandIn::get() else { return };
    // Two ranks by the environment, of which one comes to the meeting and not to NCCL.
    it.hold(true);
    let alone = Ranks {
        rank: 0,
        size: 1,
        local_rank: 0,
        meet: String::from("file:///nonexistent/warpool"),
    };
    // A file that cannot be written is told too.
    let error = Comm::nccl(&crate::common::host(), &alone, Duration::from_millis(50)).unwrap_err();
    assert!(
        error.to_string().contains("/nonexistent/warpool"),
        "{error}"
    );
    let began = Instant::now();
    let error = Comm::nccl_all(&hosts(2), Duration::from_millis(100))
        .unwrap_err()
        .to_string();
    assert!(error.contains("not all of 2 ranks came"), "{error}");
    assert!(began.elapsed() < PATIENCE);
    // What comes too late is given back.
    it.hold(false);
    it.wait_for("ncclCommAbort", 2);
}

#[test]
fn an_abort_does_not_wait_for_the_first_call_that_it_ends() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), 3 * PATIENCE).unwrap();
    it.hold(true);
    let ((tell, told), mut others) = (std::sync::mpsc::channel(), Vec::new());
    for comm in ends {
        let (tell, other) = (tell.clone(), comm.clone());
        std::thread::spawn(move || {
            let stream = comm.device().stream().unwrap();
            let pool = warpool::Pool::new(comm.device(), warpool::PoolConfig::default()).unwrap();
            let mut data = pool.alloc_zeroed::<f32>(&stream, 10).unwrap();
            let queued = comm.on(&stream).all_reduce(&mut data, Op::Sum).run();
            tell.send(queued.unwrap_err().to_string()).unwrap();
        });
        others.push(other);
    }
    it.wait_for("held up", 2);
    for other in others {
        std::thread::spawn(move || other.abort().unwrap());
    }
    for _ in 0..2 {
        let words = told.recv_timeout(PATIENCE).expect("the call waits on");
        assert!(words.contains("aborted it"), "{words}");
    }
    it.hold(false);
    it.wait_for("ncclAllReduce", 2);
}

#[test]
fn every_error_of_nccl_is_told_and_ends_the_communicator() {
    let Some(it) = StandIn::get() else { return };
    for call in ["ncclGroupStart", "ncclAllReduce", "ncclGroupEnd"] {
        let ends = Comm::nccl_all(&hosts(1), PATIENCE).unwrap();
        on_ranks(ends, |rank| {
            let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
            let mut other = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
            it.fail(call, 2);
            let error = rank
                .comm
                .on(&rank.stream)
                .all_reduce(&mut data, Op::Sum)
                .broadcast(&mut other, 0)
                .run()
                .unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("{call} failed with code 2")),
                "{error}"
            );
            it.fail("", 0);
            assert_eq!(
                rank.comm.check().unwrap_err().to_string(),
                error.to_string()
            );
            let next = rank
                .comm
                .on(&rank.stream)
                .all_reduce(&mut data, Op::Sum)
                .run();
            assert_eq!(next.unwrap_err().to_string(), error.to_string());
        });
        let notes = it.notes();
        let count = |name: &str| notes.iter().filter(|note| *note == name).count();
        let begun = count("ncclGroupStart") - usize::from(call == "ncclGroupStart");
        assert_eq!(
            begun,
            count("ncclGroupEnd"),
            "a group is ended whatever became of it"
        );
        assert_eq!(notes.last().unwrap(), "ncclCommAbort");
        it.reset();
    }
}

#[test]
fn an_error_behind_queued_work_is_found_by_a_check_and_an_abort_gives_the_communicator_back() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(1), PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        it.fail_behind(6);
        let error = rank.comm.check().unwrap_err().to_string();
        assert!(error.contains("remote process exited"), "{error}");
        it.fail_behind(0);
        assert!(rank.comm.check().is_err(), "what failed stays failed");
        rank.comm.abort().unwrap();
        rank.comm.abort().unwrap();
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
        assert!(
            rank.comm
                .on(&rank.stream)
                .broadcast(&mut data, 0)
                .run()
                .is_err()
        );
    });
    let notes = it.notes();
    assert_eq!(
        notes.iter().filter(|note| *note == "ncclCommAbort").count(),
        1,
        "{notes:?}"
    );
    assert!(!notes.iter().any(|note| note == "ncclCommDestroy"));
}

/// A small sum takes as long as the calls around it.
#[test]
fn an_end_that_goes_in_a_host_call_waits_for_the_others_on_another_thread() {
    let Some(it) = StandIn::get() else { return };
    let comm = Comm::nccl_all(&hosts(1), PATIENCE).unwrap().remove(0);
    let stream = comm.device().stream().unwrap();
    it.hold(true);
    let (tell, told) = std::sync::mpsc::channel();
    let work = Box::new(move || {
        drop(comm);
        tell.send(()).unwrap();
    });
    (BackendOf::backend(stream.device()).host_call(stream.raw(), work)).unwrap();
    let ended = told.recv_timeout(Duration::from_secs(10));
    it.hold(false);
    it.wait_for("ncclCommDestroy", 1);
    ended.expect("the host call waits for other ranks");
}

#[test]
fn a_sum_is_one_call_of_nccl_and_nothing_is_asked_behind_it() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), PATIENCE).unwrap();
    on_ranks(ends, |rank| {
        let mut data = rank
            .pool
            .alloc_zeroed::<f32>(&rank.stream, 16 << 10)
            .unwrap();
        for _ in 0..10 {
            let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
            queue.run().unwrap();
        }
    });
    let notes = it.notes();
    let made = |note: &&String| !note.starts_with("ncclComm") && !note.starts_with("ncclGet");
    let calls: Vec<_> = notes.iter().filter(made).collect();
    assert_eq!(calls.len(), 2 * 10, "{notes:?}");
    assert_eq!(it.count("ncclAllReduce 16384 of 7"), 2 * 10);
    assert_eq!(it.count("ncclCommGetAsyncError"), 0);
}

#[test]
fn a_first_call_that_waits_for_a_rank_in_vain_is_an_error_within_the_time_given() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), Duration::from_millis(100)).unwrap();
    it.hold(true);
    let began = Instant::now();
    on_ranks(ends, |rank| {
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
        let sum = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        let error = sum.run().unwrap_err().to_string();
        assert!(error.contains("not all of 2 ranks came"), "{error}");
        assert_eq!(rank.comm.check().unwrap_err().to_string(), error);
    });
    assert!(began.elapsed() < PATIENCE);
    // Dropped, and the others are not waited for.
    assert_eq!(
        (it.count("ncclCommAbort"), it.count("ncclCommFinalize")),
        (2, 0)
    );
    it.hold(false);
    it.wait_for("ncclAllReduce", 2);
}

#[test]
fn a_communicator_whose_end_is_late_is_aborted_and_not_destroyed_as_well() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), Duration::from_millis(100)).unwrap();
    it.hold(true);
    on_ranks(ends, drop);
    assert_eq!(it.count("ncclCommAbort"), 2);
    it.hold(false);
    it.wait_for("ncclCommFinalize", 2);
    // Time to do more, which would be to destroy what is gone.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(it.count("ncclCommDestroy"), 0);
}

#[test]
fn a_check_does_not_wait_for_a_call_that_waits_for_other_ranks() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), PATIENCE).unwrap();
    let again = ends.clone();
    it.hold(true);
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_ranks(ends, |rank| {
                let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
                let sum = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
                sum.run().unwrap();
            })
        });
        scope.spawn(move || {
            // Long after the sums have begun.
            std::thread::sleep(Duration::from_millis(200));
            tell.send(again.iter().try_for_each(Comm::check)).unwrap();
        });
        let checked = told.recv_timeout(Duration::from_secs(10));
        it.hold(false);
        checked.expect("it waits for the sums").unwrap();
    });
}

/// NCCL connects the ranks for each algorithm when one is first taken, and takes one by the size.
#[test]
fn a_sum_of_another_size_has_a_time_limit_as_nccl_may_connect_for_it() {
    let Some(it) = StandIn::get() else { return };
    let ends = Comm::nccl_all(&hosts(2), Duration::from_millis(200)).unwrap();
    let both = std::sync::Barrier::new(2);
    on_ranks(ends, |rank| {
        let zeroed = |len| rank.pool.alloc_zeroed::<f32>(&rank.stream, len).unwrap();
        let (mut small, mut larger) = (zeroed(10), zeroed(12));
        let sum = |data: &mut PoolBuf<f32>| {
            let queue = rank.comm.on(&rank.stream).all_reduce(data, Op::Sum);
            queue.run()
        };
        sum(&mut small).unwrap();
        sum(&mut small).unwrap();
        both.wait();
        it.hold(true);
        let words = sum(&mut larger).unwrap_err().to_string();
        assert!(words.contains("not all of 2 ranks came"), "{words}");
    });
    it.hold(false);
    it.wait_for("ncclAllReduce 12", 2);
}

/// NCCL's own registration takes a pool's memory for one allocation.
#[test]
fn a_captured_sum_of_several_ranks_is_refused_unless_nccl_registers_nothing() {
    let Some(it) = StandIn::get() else { return };
    let is_off = std::env::var("NCCL_GRAPH_REGISTER").is_ok_and(|said| said.trim() == "0");
    for ranks in [1, 2] {
        let ends = Comm::nccl_all(&hosts(ranks), PATIENCE).unwrap();
        on_ranks(ends, |rank| {
            let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
            let capture = rank.stream.begin_capture().unwrap();
            let captured = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
            match captured.run() {
                Ok(()) => assert!(is_off || ranks == 1),
                Err(why) => {
                    assert!(!is_off && ranks == 2);
                    assert!(why.to_string().contains("NCCL_GRAPH_REGISTER=0"), "{why}");
                }
            }
            let graph = capture.end().unwrap();
            // The communicator is as before, and there for the graph when the application lets it go.
            let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
            queue.run().unwrap();
            let ends = it.count("ncclCommDestroy");
            drop(rank.comm);
            if ranks == 1 {
                assert_eq!(it.count("ncclCommDestroy"), ends, "the graph keeps it");
                drop(graph);
                assert_eq!(it.count("ncclCommDestroy"), ends + 1);
            }
        });
    }
}
