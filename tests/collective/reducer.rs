//! Gradients averaged in half the bytes, against sums in f64.

use std::time::Duration;

use proptest::prelude::*;
use warpool::collective::{Comm, Op, Reducer, ReducerConfig, Wire};
use warpool::convert::ScalerConfig;
use warpool::host::{Contents, HostPool, HostPoolConfig};
use warpool::{Pool, PoolConfig};

use crate::common::watched::Watched;
use crate::{PATIENCE, Rank, hosts, on_ranks, simulated};

const WIRES: [Wire; 4] = [Wire::F32, Wire::F16, Wire::Bf16, Wire::E4m3];
const LENS: [usize; 5] = [1000, 3, 0, 517, 64];

/// A number from 0 to 1.
fn drawn(seed: u64) -> f64 {
    let mut x = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

/// Element `at` of gradient `tensor` of a rank in a step.
fn given(rank: u32, step: u64, tensor: usize, at: usize) -> f32 {
    let place = ((tensor as u64) << 20) + at as u64;
    let seed = place + (u64::from(rank) << 40) + (step << 44);
    (0.02 * (drawn(seed) - 0.5)) as f32
}

fn gradient(rank: u32, step: u64, tensor: usize) -> Vec<f32> {
    (0..LENS[tensor])
        .map(|at| given(rank, step, tensor, at))
        .collect()
}

fn reducer(rank: &Rank, config: ReducerConfig) -> Reducer {
    Reducer::new(&rank.pool, &rank.stream, &rank.comm, &LENS, config).unwrap()
}

/// Takes a step whose gradients become ready in this order; the averages, one behind the other, and the largest.
fn step(
    rank: &Rank,
    reducer: &mut Reducer,
    order: &[usize],
    make: impl Fn(usize) -> Vec<f32>,
) -> (Vec<f32>, f32) {
    for &tensor in order {
        let gradient = reducer.gradients().swap_remove(tensor);
        gradient.upload(&rank.stream, &make(tensor)).unwrap();
        reducer.ready(tensor).unwrap();
    }
    reducer.finish().unwrap();
    let read = |view: warpool::ViewMut<'_, f32>| view.as_view().download(&rank.stream).unwrap();
    let all = reducer.gradients().into_iter().flat_map(read).collect();
    (all, reducer.largest().download(&rank.stream).unwrap()[0])
}

/// The averages in f64.
fn averages(ranks: u32, step: u64) -> Vec<f64> {
    let places = (0..LENS.len()).flat_map(|tensor| (0..LENS[tensor]).map(move |at| (tensor, at)));
    let average = |(tensor, at)| {
        let all = (0..ranks).map(|rank| f64::from(given(rank, step, tensor, at)));
        all.sum::<f64>() / f64::from(ranks)
    };
    places.map(average).collect()
}

fn furthest(found: &[f32], wanted: &[f64]) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let errors = found
        .iter()
        .zip(wanted)
        .map(|(&x, &y)| (f64::from(x) - y).abs());
    errors.fold(0.0, f64::max)
}

/// What one rounding, or addition, may lose of a value below 0.01, as a part of the largest value.
fn unit(wire: Wire) -> f64 {
    match wire {
        Wire::F32 => 2f64.powi(-24),
        Wire::F16 => 2f64.powi(-11),
        Wire::E4m3 => 2f64.powi(-4),
        _ => 2f64.powi(-8),
    }
}

#[test]
fn averages_are_those_of_f64_within_the_roundings_of_the_wire() {
    for wire in WIRES {
        for (feedback, stochastic) in [
            (false, None),
            (true, None),
            (true, Some(5)),
            (false, Some(5)),
        ] {
            for bucket_bytes in [256, 1024, 1 << 20] {
                let mut config = ReducerConfig::default().wire(wire).feedback(feedback);
                config = config.bucket_bytes(bucket_bytes);
                if let Some(seed) = stochastic {
                    config = config.stochastic(seed);
                }
                let outcome = simulated(3, |rank| {
                    let mut reducer = reducer(&rank, config);
                    let number = rank.number();
                    (0..3)
                        .map(|at| {
                            step(&rank, &mut reducer, &[0, 1, 2, 3, 4], |tensor| {
                                gradient(number, at, tensor)
                            })
                        })
                        .collect::<Vec<_>>()
                });
                for (at, (found, largest)) in outcome[0].iter().enumerate() {
                    let wanted = averages(3, at as u64);
                    // A code a rank, of a value and what it lacked, and two sums of up to three values; twice as
                    // much for a rounding that is not to nearest.
                    let bound = 0.01 * unit(wire) * (2.0 * 3.0 + 2.0 * 3.0) / 3.0 * 2.0;
                    let error = furthest(found, &wanted);
                    assert!(error <= bound, "{config:?}: {error:e} of {bound:e}");
                    let most = found.iter().fold(0f32, |most, x| most.max(x.abs()));
                    assert_eq!(*largest, most);
                }
                assert_eq!(outcome[0], outcome[1], "all ranks have the same");
                assert_eq!(outcome[0], outcome[2], "all ranks have the same");
            }
        }
    }
}

#[test]
fn feedback_sends_in_the_end_what_rounding_kept_back_and_its_error_does_not_grow() {
    const STEPS: u64 = 1000;
    // The same gradients in every step: without feedback the same error is made in each.
    let sums = |feedback, steps| {
        let config = ReducerConfig::default().wire(Wire::Bf16).feedback(feedback);
        let sums = simulated(2, |rank: Rank| {
            let mut reducer = reducer(&rank, config);
            let number = rank.number();
            let mut sums = vec![0f64; LENS.iter().sum()];
            for _ in 0..steps {
                // One gives, so that the ranks' sum is exact and all error is of the codes.
                let make = |tensor| match number {
                    0 => gradient(0, 0, tensor),
                    _ => vec![0.0; LENS[tensor]],
                };
                let (found, _) = step(&rank, &mut reducer, &[0, 1, 2, 3, 4], make);
                for (sum, x) in sums.iter_mut().zip(found) {
                    *sum += f64::from(x);
                }
            }
            sums
        });
        let wanted = (0..LENS.len()).flat_map(|tensor| gradient(0, 0, tensor));
        let wanted = wanted.map(|x| f64::from(x) / 2.0 * steps as f64);
        let errors = sums[0]
            .iter()
            .zip(wanted)
            .map(|(sum, wanted)| (sum - wanted).abs());
        errors.fold(0.0, f64::max)
    };
    let (short, long) = (sums(true, 10), sums(true, STEPS));
    let without = sums(false, STEPS);
    let rounding = 0.01 * unit(Wire::Bf16);
    assert!(
        short <= rounding && long <= rounding,
        "{short:e} {long:e} of {rounding:e}"
    );
    assert!(without > 100.0 * long, "{without:e} without, {long:e} with");
}

#[test]
fn what_every_rank_keeps_back_comes_too_where_all_give() {
    let config = ReducerConfig::default().feedback(true);
    let errors = simulated(4, |rank: Rank| {
        let mut reducer = reducer(&rank, config);
        let mut sums = vec![0f64; LENS.iter().sum()];
        let mut wanted = sums.clone();
        let mut errors = Vec::new();
        for at in 0..1000 {
            let number = rank.number();
            let (found, _) = step(&rank, &mut reducer, &[0, 1, 2, 3, 4], |tensor| {
                gradient(number, at, tensor)
            });
            for ((sum, all), (x, y)) in sums
                .iter_mut()
                .zip(&mut wanted)
                .zip(found.iter().zip(averages(4, at)))
            {
                *sum += f64::from(*x);
                *all += y;
            }
            if at == 9 || at == 999 {
                let error = sums
                    .iter()
                    .zip(&wanted)
                    .map(|(x, y)| (x - y).powi(2))
                    .sum::<f64>();
                errors.push((error / sums.len() as f64).sqrt());
            }
        }
        errors
    });
    // What the ranks' additions round is lost: it grows as a walk does, by 10 where the steps are 100 times as many.
    for error in errors {
        assert!(error[1] < 15.0 * error[0], "{error:?}");
        assert!(error[1] < 0.01 * unit(Wire::F16) * 32.0, "{error:?}");
    }
}

#[test]
fn an_infinity_or_nan_of_one_rank_reaches_all_and_the_next_step_is_sound() {
    for wire in WIRES {
        for feedback in [false, true] {
            for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let config = ReducerConfig::default()
                    .wire(wire)
                    .feedback(feedback)
                    .bucket_bytes(256);
                let found = simulated(3, |rank: Rank| {
                    let mut reducer = reducer(&rank, config);
                    let number = rank.number();
                    let spoilt = |tensor| {
                        let mut gradient = gradient(number, 0, tensor);
                        if number == 1 && tensor == 3 {
                            gradient[99] = bad;
                        }
                        gradient
                    };
                    let (_, worst) = step(&rank, &mut reducer, &[0, 1, 2, 3, 4], spoilt);
                    let sound = |tensor| gradient(number, 1, tensor);
                    (worst, step(&rank, &mut reducer, &[0, 1, 2, 3, 4], sound))
                });
                for (worst, (next, largest)) in found {
                    assert!(!worst.is_finite(), "{config:?} {bad}: {worst}");
                    assert!(largest.is_finite(), "{config:?} {bad}: {largest}");
                    let error = furthest(&next, &averages(3, 1));
                    assert!(error <= 0.01 * unit(wire) * 8.0, "{config:?}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn a_scale_under_which_sums_overflow_comes_down_on_all_ranks_until_they_do_not() {
    for feedback in [false, true] {
        let scale = ScalerConfig::default().scale(2f32.powi(30));
        let config = ReducerConfig::default().scale(scale).feedback(feedback);
        let found = simulated(2, |rank: Rank| {
            let mut reducer = reducer(&rank, config);
            let number = rank.number();
            let mut lost = 0;
            loop {
                let make = |tensor| gradient(number, 7, tensor);
                let (found, largest) = step(&rank, &mut reducer, &[0, 1, 2, 3, 4], make);
                if largest.is_finite() {
                    return (lost, found);
                }
                lost += 1;
                assert!(lost < 20);
            }
        });
        assert_eq!(found[0], found[1]);
        // 2^30 * 0.02 is 2^24.4, which 65504 has after eight or nine halvings.
        assert!((8..=9).contains(&found[0].0), "{}", found[0].0);
        assert!(furthest(&found[0].1, &averages(2, 7)) <= 0.01 * unit(Wire::F16) * 4.0);
    }
}

/// Gradients of one value on every rank, in a step after another; the averages of each.
fn same_everywhere(ranks: usize, config: ReducerConfig, values: &[f32]) -> Vec<Vec<f32>> {
    let found = simulated(ranks, |rank: Rank| {
        let mut reducer = reducer(&rank, config);
        let make = |value| move |tensor: usize| vec![value; LENS[tensor]];
        let mut one = |&value| step(&rank, &mut reducer, &[0, 1, 2, 3, 4], make(value)).0;
        values.iter().map(&mut one).collect::<Vec<_>>()
    });
    found.into_iter().next().unwrap()
}

#[test]
fn sums_of_8_bit_codes_never_reach_the_largest_whatever_the_ranks() {
    let config = ReducerConfig::default().wire(Wire::E4m3);
    for ranks in [1, 2, 3, 4, 5, 7, 8, 9, 16] {
        // Powers of two are exact where there are few, and far apart in magnitude.
        let values = [1.0, 2f32.powi(100), 2f32.powi(-100), 0.0, 0.96875];
        let found = same_everywhere(ranks, config, &values);
        for (value, found) in values.iter().zip(found) {
            for x in found {
                let is_near = (x - value).abs() <= value / 8.0;
                assert!(is_near, "{ranks} ranks: {x} for {value}");
                let is_power = value.to_bits() << 9 == 0 && ranks.is_power_of_two();
                assert!(!is_power || x == *value, "{ranks} ranks: {x} for {value}");
            }
        }
    }
}

#[test]
fn the_ranks_have_one_scale_whoever_has_the_largest_gradient() {
    let config = ReducerConfig::default().wire(Wire::E4m3);
    let found = simulated(3, |rank: Rank| {
        let mut reducer = reducer(&rank, config);
        let own = if rank.number() == 1 { 96.0 } else { 1.5 };
        step(&rank, &mut reducer, &[0, 1, 2, 3, 4], |tensor| {
            vec![own; LENS[tensor]]
        })
    });
    for (averages, largest) in found {
        assert!(
            averages.iter().all(|&x| (x - 33.0).abs() <= 2.0),
            "{averages:?}"
        );
        assert_eq!(largest, averages[0]);
    }
}

#[test]
fn what_8_bit_codes_lacked_comes_with_the_next_step_however_small_its_gradients() {
    for ranks in [1, 2] {
        let config = ReducerConfig::default().wire(Wire::E4m3).feedback(true);
        // 17 lies between the codes 16 and 18, and what is kept of it far above the next gradient.
        let little = 2f32.powi(-15);
        let found = same_everywhere(ranks, config, &[17.0, little, 0.0]);
        let sums: Vec<f32> = (0..found[0].len())
            .map(|at| found.iter().map(|step| step[at]).sum())
            .collect();
        assert!(found[0].iter().all(|&x| x == 16.0), "{:?}", &found[0][..3]);
        assert!(sums.iter().all(|&x| x == 17.0 + little), "{:?}", &sums[..3]);
    }
}

#[test]
fn a_step_with_an_infinity_leaves_what_8_bit_codes_lacked_as_it_was() {
    let config = ReducerConfig::default().wire(Wire::E4m3).feedback(true);
    let found = same_everywhere(2, config, &[17.0, f32::INFINITY, 0.0]);
    assert!(found[1].iter().all(|x| x.is_nan()));
    assert!(found[2].iter().all(|&x| x == 1.0), "{:?}", &found[2][..3]);
}

#[test]
fn buckets_are_reduced_while_the_backward_pass_goes_on() {
    simulated(2, |rank: Rank| {
        let lens = [64; 4];
        let config = ReducerConfig::default().bucket_bytes(256);
        let mut reducer =
            Reducer::new(&rank.pool, &rank.stream, &rank.comm, &lens, config).unwrap();
        reducer
            .gradients()
            .swap_remove(0)
            .fill(&rank.stream, 3.0)
            .unwrap();
        reducer.ready(0).unwrap();
        // The other gradients are not there yet, and the first is averaged all the same.
        let first = reducer
            .gradients()
            .swap_remove(0)
            .as_view()
            .download(&rank.stream)
            .unwrap();
        assert_eq!(first, [3.0; 64]);
        // That of the step before: there was none.
        assert_eq!(reducer.largest().download(&rank.stream).unwrap(), [0.0]);
        let words = reducer.finish().unwrap_err().to_string();
        assert!(words.contains("1 is not ready"), "{words}");
        let words = reducer.ready(0).unwrap_err().to_string();
        assert!(words.contains("0 is ready already"), "{words}");
        assert!(
            reducer
                .ready(4)
                .unwrap_err()
                .to_string()
                .contains("there are 4")
        );
        for tensor in [3, 2, 1] {
            reducer.ready(tensor).unwrap();
        }
        reducer.finish().unwrap();
        // The communicator goes on beside it.
        let mut other = rank.pool.alloc_filled(&rank.stream, 10, 1u32).unwrap();
        rank.comm
            .on(&rank.stream)
            .all_reduce(&mut other, Op::Sum)
            .run()
            .unwrap();
        assert_eq!(other.download().unwrap(), [2; 10]);
    });
}

#[test]
fn buckets_beside_each_other_have_the_bits_of_buckets_one_after_the_other() {
    for (feedback, stochastic) in [(false, None), (true, None), (true, Some(7))] {
        let mut config = ReducerConfig::default()
            .bucket_bytes(256)
            .feedback(feedback);
        if let Some(seed) = stochastic {
            config = config.stochastic(seed);
        }
        let run = |waits: bool| {
            simulated(3, |rank: Rank| {
                let mut reducer = reducer(&rank, config);
                let number = rank.number();
                let step = |at| {
                    for tensor in 0..LENS.len() {
                        let data = gradient(number, at, tensor);
                        let view = reducer.gradients().swap_remove(tensor);
                        view.upload(&rank.stream, &data).unwrap();
                        reducer.ready(tensor).unwrap();
                        if waits {
                            // Behind the averages of all that is queued.
                            reducer.largest().download(&rank.stream).unwrap();
                        }
                    }
                    reducer.finish().unwrap();
                    let read = |view: warpool::ViewMut<'_, f32>| {
                        view.as_view().download(&rank.stream).unwrap()
                    };
                    let all = reducer.gradients().into_iter().flat_map(read);
                    all.map(f32::to_bits).collect::<Vec<_>>()
                };
                (0..5).map(step).collect::<Vec<_>>()
            })
        };
        assert_eq!(run(false), run(true), "{config:?}");
    }
}

#[test]
fn a_bucket_takes_two_waits_on_the_device_and_one_alone_takes_none() {
    for (bucket_bytes, several) in [(256, true), (1 << 30, false)] {
        let (device, watched) = Watched::over(&crate::common::host());
        let comm = Comm::simulated(std::slice::from_ref(&device), PATIENCE).unwrap();
        let rank = Rank::of(comm.into_iter().next().unwrap());
        let config = ReducerConfig::default().bucket_bytes(bucket_bytes);
        let lens = [1000; 40];
        let mut reducer =
            Reducer::new(&rank.pool, &rank.stream, &rank.comm, &lens, config).unwrap();
        let words = format!("{reducer:?}");
        let buckets: u64 = words.split(' ').nth(3).unwrap().parse().unwrap();
        assert_eq!(buckets > 10, several, "{words}");
        let mut waits = Vec::new();
        for _ in 0..5 {
            let before = (watched.calls("event_record"), watched.calls("event_wait"));
            (0..lens.len()).for_each(|tensor| reducer.ready(tensor).unwrap());
            reducer.finish().unwrap();
            let records = watched.calls("event_record") - before.0;
            waits.push((records, watched.calls("event_wait") - before.1));
        }
        // Beside those the first cast waits for the step before.
        let most = if several { 2 * buckets + 2 } else { 0 };
        let last = waits[1..]
            .iter()
            .all(|&(records, waits)| records <= most && waits <= most);
        assert!(last, "{waits:?} records and waits, {buckets} buckets");
        reducer.largest().download(&rank.stream).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn averages_are_the_same_whatever_the_order_of_readiness_on_each_rank(
        orders in proptest::collection::vec(Just(vec![0usize, 1, 2, 3, 4]).prop_shuffle(), 3),
        bucket in 1u64..20,
        feedback: bool,
        wire in proptest::sample::select(&WIRES[..]),
    ) {
        let config = ReducerConfig::default().bucket_bytes(bucket * 256).feedback(feedback).wire(wire);
        let run = |orders: &[Vec<usize>]| simulated(3, |rank: Rank| {
            let mut reducer = reducer(&rank, config);
            let number = rank.number();
            let order = &orders[number as usize];
            [0, 1].map(|at| step(&rank, &mut reducer, order, |tensor| gradient(number, at, tensor)))
        });
        let sorted = vec![vec![0, 1, 2, 3, 4]; 3];
        prop_assert_eq!(run(&orders), run(&sorted));
    }

    #[test]
    fn averages_of_any_sizes_and_numbers_of_ranks_are_those_of_f64(
        lens in proptest::collection::vec(0usize..300, 1..8),
        ranks in 1usize..5,
        bucket in 1u64..20,
        power in -20i32..3,
        wire in proptest::sample::select(&WIRES[..]),
    ) {
        let config = ReducerConfig::default().bucket_bytes(bucket * 256).wire(wire);
        let value = |rank: u32, at: usize| (drawn(u64::from(rank) << 32 | at as u64) - 0.5) as f32 * 2f32.powi(power);
        let found = simulated(ranks, |rank: Rank| {
            let mut reducer = Reducer::new(&rank.pool, &rank.stream, &rank.comm, &lens, config).unwrap();
            let mut at = 0;
            for (tensor, &len) in lens.iter().enumerate() {
                let data: Vec<f32> = (at..at + len).map(|at| value(rank.number(), at)).collect();
                reducer.gradients().swap_remove(tensor).upload(&rank.stream, &data).unwrap();
                reducer.ready(tensor).unwrap();
                at += len;
            }
            reducer.finish().unwrap();
            let read = |view: warpool::ViewMut<'_, f32>| view.as_view().download(&rank.stream).unwrap();
            reducer.gradients().into_iter().flat_map(read).collect::<Vec<f32>>()
        });
        let bound = f64::from(2f32.powi(power)) * unit(wire) * 4.0 + f64::from(2f32.powi(-34));
        for (at, &x) in found[0].iter().enumerate() {
            let wanted = (0..ranks as u32).map(|rank| f64::from(value(rank, at))).sum::<f64>() / ranks as f64;
            prop_assert!((f64::from(x) - wanted).abs() <= bound, "{x} for {wanted}");
        }
    }
}

#[test]
fn every_rank_and_step_draws_its_own_roundings() {
    const LEN: usize = 1000;
    for feedback in [false, true] {
        let config = ReducerConfig::default().stochastic(5).feedback(feedback);
        let found = simulated(2, |rank: Rank| {
            let mut reducer =
                Reducer::new(&rank.pool, &rank.stream, &rank.comm, &[LEN], config).unwrap();
            // Half way between two codes. Where both ranks draw the same, nothing is left of it.
            let value = (1.0 + 1.0 / 2048.0) * if rank.number() == 0 { 1.0 } else { -1.0 };
            [(); 2].map(|()| step(&rank, &mut reducer, &[0], |_| vec![value; LEN]).0)
        });
        let [first, second] = &found[0];
        for step in [first, second] {
            let apart = step.iter().filter(|&&x| x != 0.0).count();
            assert!((LEN / 4..LEN).contains(&apart), "{apart} of {LEN} differ");
        }
        assert_ne!(first, second, "two steps draw alike");
    }
}

/// The second of four buckets is summed by another communicator than the first.
#[test]
fn a_rank_that_does_not_come_to_a_bucket_ends_both_communicators() {
    let ends = Comm::simulated(&hosts(2), Duration::from_millis(200)).unwrap();
    on_ranks(ends, |rank| {
        let config = ReducerConfig::default().bucket_bytes(256);
        let (pool, stream, comm) = (&rank.pool, &rank.stream, &rank.comm);
        let mut reducer = Reducer::new(pool, stream, comm, &[64; 4], config).unwrap();
        reducer.ready(0).unwrap();
        if rank.number() == 0 {
            reducer.ready(1).unwrap();
            reducer.ready(2).unwrap();
            reducer.gradients()[1].as_view().download(stream).unwrap();
        } else {
            while comm.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let words = comm.check().unwrap_err().to_string();
        assert!(words.contains("ranks [1] did not come"), "{words}");
        let mut other = pool.alloc_filled(stream, 10, 1u32).unwrap();
        let queued = comm.on(stream).all_reduce(&mut other, Op::Sum).run();
        assert_eq!(queued.unwrap_err().to_string(), words);
    });
}

/// A sum that is queued again would be summed with the next one of the other ranks.
#[test]
fn work_that_failed_is_not_queued_again() {
    let (device, watched) = Watched::over(&crate::common::host());
    let comm = Comm::simulated(std::slice::from_ref(&device), PATIENCE).unwrap();
    let rank = Rank::of(comm.into_iter().next().unwrap());
    let config = ReducerConfig::default();
    let mut reducer = Reducer::new(&rank.pool, &rank.stream, &rank.comm, &[64], config).unwrap();
    // The cast to codes, and the cast back behind the sum.
    watched.fail("launch", 2, false);
    let words = reducer.ready(0).unwrap_err().to_string();
    watched.heal();
    let sums = watched.calls("host_call");
    assert_eq!(sums, 1, "the test fails another launch: {words}");
    assert_eq!(reducer.finish().unwrap_err().to_string(), words);
    assert_eq!(watched.calls("host_call"), sums);
    assert_eq!(reducer.ready(0).unwrap_err().to_string(), words);
}

#[test]
fn memory_and_a_stream_of_another_device_than_the_communicators_are_refused() {
    simulated(1, |rank| {
        let there = Rank::of(Comm::simulated(&hosts(1), PATIENCE).unwrap().remove(0));
        for (pool, stream) in [
            (&there.pool, &there.stream),
            (&there.pool, &rank.stream),
            (&rank.pool, &there.stream),
        ] {
            let config = ReducerConfig::default();
            let refused = Reducer::new(pool, stream, &rank.comm, &LENS, config).map(drop);
            let words = refused.unwrap_err().to_string();
            assert!(words.starts_with("stream"), "{words}");
        }
    });
}

#[test]
fn a_step_goes_on_once_the_pool_that_slept_is_awake() {
    simulated(1, |rank: Rank| {
        let pool = Pool::new(rank.comm.device(), PoolConfig::default().sleeps(true)).unwrap();
        let host = HostPool::new(pool.device(), HostPoolConfig::default());
        let (on, config) = (&rank.stream, ReducerConfig::default());
        let mut reducer = Reducer::new(&pool, on, &rank.comm, &[64, 64], config).unwrap();
        let gradients = reducer.gradients().into_iter();
        gradients.for_each(|it| it.upload(on, &[0.5; 64]).unwrap());
        pool.sleep(&[], Contents::Saved(&host)).unwrap();
        assert!((0..2).all(|tensor| reducer.ready(tensor).is_err()));
        pool.wake(&[]).unwrap();
        (0..2).for_each(|tensor| reducer.ready(tensor).unwrap());
        reducer.finish().unwrap();
        let average = reducer.gradients().swap_remove(1);
        assert_eq!(average.as_view().download(on).unwrap(), [0.5; 64]);
    });
}

#[test]
fn a_gradient_has_4_bits_down_to_a_part_in_2_to_the_13_of_the_largest_and_is_0_below_2_to_the_18() {
    let config = ReducerConfig::default().wire(Wire::E4m3);
    // Codes of two ranks have sums without rounding.
    for (ranks, largest) in [(1, 1.0), (1, 1.0625), (1, 1.9375), (2, 1.0), (2, 1.9375)] {
        let found = simulated(ranks, |rank: Rank| {
            let mut reducer = reducer(&rank, config);
            let sent = |power: i32| largest * 2f32.powi(-power);
            let mut averages = |power| {
                let make =
                    |tensor: usize| vec![[largest, sent(power)][tensor.min(1)]; LENS[tensor]];
                step(&rank, &mut reducer, &[0, 1, 2, 3, 4], make).0
            };
            let error = |power| (averages(power)[1000] - sent(power)).abs() / sent(power);
            (0..24).map(error).collect::<Vec<_>>()
        });
        let beyond = ranks.ilog2() as usize;
        for (power, error) in found[0].iter().enumerate() {
            let (has_bits, is_none) = (power + beyond <= 13, power + beyond > 18);
            assert!(!has_bits || *error <= 2f32.powi(-4), "2^-{power}: {error}");
            assert!(!is_none || *error == 1.0, "2^-{power}: {error}");
        }
    }
}
