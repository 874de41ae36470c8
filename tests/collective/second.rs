//! The second communicator that a reducer makes, through the stand-in for NCCL.

use std::sync::mpsc;
use std::time::Duration;

use warpool::collective::{Comm, Op, Reducer, ReducerConfig};

use crate::common::BackendOf;
use crate::nccl::StandIn;
use crate::{PATIENCE, Rank, hosts, on_ranks};

/// A reducer of `buckets` buckets of 64 gradients, one a tensor.
fn reducer(rank: &Rank, buckets: usize) -> warpool::Result<Reducer> {
    let config = ReducerConfig::default().bucket_bytes(256);
    let lens = vec![64; buckets];
    Reducer::new(&rank.pool, &rank.stream, &rank.comm, &lens, config)
}

/// Number of sums whose note ends so.
fn sums(it: &StandIn, of: &str) -> usize {
    let is_one = |note: &&String| note.starts_with("ncclAllReduce") && note.ends_with(of);
    it.notes().iter().filter(is_one).count()
}

fn make_step(reducer: &mut Reducer, tensors: usize) -> warpool::Result<()> {
    (0..tensors).try_for_each(|tensor| reducer.ready(tensor))?;
    reducer.finish()
}

#[test]
fn sums_of_buckets_alternate_between_two_communicators_and_one_bucket_needs_no_second() {
    let Some(it) = StandIn::get() else { return };
    on_ranks(Comm::nccl_all(&hosts(2), PATIENCE).unwrap(), |rank| {
        make_step(&mut reducer(&rank, 1).unwrap(), 1).unwrap();
        assert_eq!(it.count("ncclCommSplit"), 0);
    });
    assert_eq!((sums(&it, "rank 0"), sums(&it, " of the twin")), (1, 0));
    on_ranks(Comm::nccl_all(&hosts(2), PATIENCE).unwrap(), |rank| {
        let mut first = reducer(&rank, 4).unwrap();
        let mut second = reducer(&rank, 4).unwrap();
        make_step(&mut first, 4).unwrap();
        make_step(&mut second, 4).unwrap();
        rank.comm.check().unwrap();
    });
    // One a rank, however many reducers there are.
    let splits: Vec<_> = [0, 1]
        .map(|rank| it.count(&format!("ncclCommSplit {rank} of 2")))
        .into();
    assert_eq!((splits, it.count("ncclCommSplit")), (vec![1, 1], 2));
    let of_rank = |rank: u32| {
        let ends = [format!("rank {rank}"), format!("rank {rank} of the twin")];
        ends.map(|end| sums(&it, &end))
    };
    // Of three buckets a step two, and the one between them; and those before.
    assert_eq!([of_rank(0), of_rank(1)], [[2 * 2 + 1, 2]; 2]);
    assert_eq!(it.count("ncclCommDestroy"), 2 + 4);
}

#[test]
fn a_second_communicator_that_fails_or_never_comes_is_an_error_and_ends_the_first() {
    let Some(it) = StandIn::get() else { return };
    it.fail("ncclCommSplit", 2);
    on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
        let words = reducer(&rank, 4).err().unwrap().to_string();
        assert!(
            words.contains("ncclCommSplit") && words.contains("unhandled"),
            "{words}"
        );
        assert!(
            rank.comm
                .check()
                .unwrap_err()
                .to_string()
                .contains("ncclCommSplit")
        );
    });
    it.fail("none", 0);
    let patience = Duration::from_millis(100);
    on_ranks(Comm::nccl_all(&hosts(1), patience).unwrap(), |rank| {
        it.hold(true);
        let words = reducer(&rank, 4).err().unwrap().to_string();
        it.hold(false);
        assert!(words.contains("not all of 1 ranks came"), "{words}");
        assert!(rank.comm.check().is_err());
    });
    // What a failure left, and what comes too late, is given back.
    it.wait_for("ncclCommAbort of the twin", 2);
    assert_eq!(it.count("ncclCommAbort"), 4);
}

#[test]
fn a_failure_or_an_abort_of_one_communicator_is_one_of_both() {
    let Some(it) = StandIn::get() else { return };
    on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
        let mut reducer = reducer(&rank, 4).unwrap();
        make_step(&mut reducer, 4).unwrap();
        rank.comm.abort().unwrap();
        assert_eq!(it.count("ncclCommAbort"), 2);
        assert!(rank.comm.check().is_err());
        let words = make_step(&mut reducer, 4).unwrap_err().to_string();
        assert!(words.contains("aborted"), "{words}");
    });
}

#[test]
fn a_failure_in_the_second_communicator_refuses_the_first_and_no_end_waits_for_others() {
    let Some(it) = StandIn::get() else { return };
    on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
        let mut reducer = reducer(&rank, 4).unwrap();
        it.fail("ncclAllReduce 128 of 6, 0, rank 0 of the twin", 2);
        let words = make_step(&mut reducer, 4).unwrap_err().to_string();
        assert!(words.contains("unhandled"), "{words}");
        it.fail("", 0);
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        assert_eq!(queue.run().unwrap_err().to_string(), words);
        assert_eq!(rank.comm.check().unwrap_err().to_string(), words);
    });
    assert_eq!(
        (it.count("ncclCommAbort"), it.count("ncclCommFinalize")),
        (2, 0)
    );
}

/// Each end waits for the other ranks, so a rank that ended them the other way round would wait for one that
/// waits for it.
#[test]
fn the_second_communicator_ends_before_the_first_whichever_is_let_go_first() {
    let Some(it) = StandIn::get() else { return };
    for reducer_first in [true, false] {
        it.reset();
        on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
            let reducer = reducer(&rank, 4).unwrap();
            match reducer_first {
                true => drop(reducer),
                false => {
                    drop(rank);
                    drop(reducer);
                }
            }
        });
        let notes = it.notes();
        let is_end = |note: &&String| {
            note.starts_with("ncclCommFinalize") || note.starts_with("ncclCommDestroy")
        };
        let ends: Vec<_> = notes.iter().filter(is_end).collect();
        let wanted = [
            "ncclCommFinalize of the twin",
            "ncclCommDestroy of the twin",
            "ncclCommFinalize",
            "ncclCommDestroy",
        ];
        assert_eq!(ends, wanted, "reducer first: {reducer_first}");
    }
}

/// NCCL may hang in a split if a collective of the communicator is running.
#[test]
fn a_second_communicator_is_made_once_the_collectives_of_the_first_are_done() {
    let Some(it) = StandIn::get() else { return };
    for is_dropped in [false, true] {
        it.reset();
        on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
            let mut other = Some(rank.comm.device().stream().unwrap());
            let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
            rank.stream.synchronize().unwrap();
            let on = other.as_ref().unwrap();
            let queue = rank.comm.on(on).all_reduce(&mut data, Op::Sum);
            queue.run().unwrap();
            let (open, wait) = mpsc::channel::<()>();
            let gate = Box::new(move || _ = wait.recv());
            let backend = rank.comm.device().backend();
            backend.host_call(on.raw(), gate).unwrap();
            other = other.filter(|_| !is_dropped);
            std::thread::scope(|scope| {
                let made = scope.spawn(|| reducer(&rank, 4).map(drop));
                std::thread::sleep(Duration::from_millis(50));
                let split = it.count("ncclCommSplit");
                open.send(()).unwrap();
                made.join().unwrap().unwrap();
                assert_eq!(split, 0, "a sum is running");
            });
            assert_eq!(it.count("ncclCommSplit"), 1);
            drop(other);
        });
    }
}

#[test]
fn collectives_that_are_never_done_end_the_wait_for_a_second_communicator() {
    let Some(it) = StandIn::get() else { return };
    let patience = Duration::from_millis(100);
    on_ranks(Comm::nccl_all(&hosts(1), patience).unwrap(), |rank| {
        let other = rank.comm.device().stream().unwrap();
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
        rank.stream.synchronize().unwrap();
        let queue = rank.comm.on(&other).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        let (open, wait) = mpsc::channel::<()>();
        let gate = Box::new(move || _ = wait.recv());
        let backend = rank.comm.device().backend();
        backend.host_call(other.raw(), gate).unwrap();
        let words = reducer(&rank, 4).err().unwrap().to_string();
        assert!(words.contains("not all of 1 ranks came"), "{words}");
        assert_eq!(
            (it.count("ncclCommSplit"), it.count("ncclCommAbort")),
            (0, 1)
        );
        open.send(()).unwrap();
    });
}

/// One that alternated, and one that did not, would wait for each other.
#[test]
fn a_second_communicator_refused_under_capture_is_made_after_it() {
    let Some(_it) = StandIn::get() else { return };
    on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
        let mut data = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10).unwrap();
        let queue = rank.comm.on(&rank.stream).all_reduce(&mut data, Op::Sum);
        queue.run().unwrap();
        let other = rank.comm.device().stream().unwrap();
        let make = || {
            let config = ReducerConfig::default().bucket_bytes(256);
            Reducer::new(&rank.pool, &other, &rank.comm, &[64; 4], config)
        };
        let capture = rank.stream.begin_capture().unwrap();
        let words = make().err().unwrap().to_string();
        assert!(words.contains("being captured"), "{words}");
        drop(capture);
        rank.comm.check().unwrap();
        make_step(&mut make().unwrap(), 4).unwrap();
    });
}

#[test]
fn no_rank_uses_a_second_communicator_if_one_takes_no_part() {
    let Some(it) = StandIn::get() else { return };
    it.keep_apart(1);
    on_ranks(Comm::nccl_all(&hosts(2), PATIENCE).unwrap(), |rank| {
        for _ in 0..2 {
            make_step(&mut reducer(&rank, 4).unwrap(), 4).unwrap();
        }
        rank.comm.check().unwrap();
    });
    // Asked once, and the one that rank 1 had to itself has ended.
    assert_eq!(it.count("ncclCommSplit"), 2);
    assert_eq!(it.count("ncclCommDestroy of the twin"), 1);
    assert_eq!(it.count("ncclCommDestroy"), 3);
    let of_rank = [0, 1].map(|rank| sums(&it, &format!("rank {rank}")));
    assert_eq!((of_rank, sums(&it, " of the twin")), ([6, 6], 0));
}

/// The branches of a graph begin in no order that the ranks share.
#[test]
fn a_captured_step_uses_the_first_communicator_alone() {
    let Some(it) = StandIn::get() else { return };
    on_ranks(Comm::nccl_all(&hosts(1), PATIENCE).unwrap(), |rank| {
        let mut reducer = reducer(&rank, 4).unwrap();
        let capture = rank.stream.begin_capture().unwrap();
        make_step(&mut reducer, 4).unwrap();
        let graph = capture.end().unwrap();
        let both = |it: &StandIn| (sums(it, "rank 0"), sums(it, " of the twin"));
        assert_eq!(both(&it), (3, 0));
        graph.launch(&rank.stream).unwrap();
        make_step(&mut reducer, 4).unwrap();
        assert_eq!(both(&it), (5, 1));
    });
}
