//! The example `data_parallel`, with one to four ranks on the host device.

#[path = "../../examples/data_parallel.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod example;

use warpool::collective::{Comm, ReducerConfig, Wire};

use crate::{PATIENCE, hosts};

fn losses(ranks: usize, config: ReducerConfig) -> Vec<f32> {
    let ends = Comm::simulated(&hosts(ranks), PATIENCE).unwrap();
    example::train_all(&ends, config, 200).unwrap()
}

#[test]
fn ranks_that_share_a_batch_learn_as_one_that_has_all_of_it() {
    let plain = ReducerConfig::default().wire(Wire::F32);
    let wanted = losses(1, plain);
    assert!(
        wanted[199] < 0.5 * wanted[0],
        "{} to {}",
        wanted[0],
        wanted[199]
    );
    let plain = plain.bucket_bytes(example::BUCKET);
    for ranks in [2, 3, 4] {
        let part = example::apart(&wanted, &losses(ranks, plain));
        assert!(part < 1e-3, "f32, {ranks} ranks: {part}");
        let halves = plain.wire(Wire::F16).feedback(true);
        let part = example::apart(&wanted, &losses(ranks, halves));
        assert!(part < 1e-2, "f16, {ranks} ranks: {part}");
        let part = example::apart(&wanted, &losses(ranks, halves.wire(Wire::E4m3)));
        assert!(part < 2e-2, "e4m3, {ranks} ranks: {part}");
    }
}

/// The large network, small: what each rank's share gives is what one has of the whole batch.
#[test]
fn the_large_network_of_several_ranks_learns_as_that_of_one() {
    use example::large::math::{OnHost, Outcome};
    use example::large::network::{Shape, Sums};
    use example::large::{Outcomes, train};

    let shape = Shape {
        inputs: 6,
        width: 16,
        hidden: 2,
        outputs: 4,
        batch: 24,
        batches: 2,
    };
    let task = shape.task();
    let losses = |ranks: usize, sums: Option<Sums>| -> Vec<f32> {
        let ends = Comm::simulated(&hosts(ranks), PATIENCE).unwrap();
        let open: fn(&warpool::Stream) -> Outcome<OnHost> = |_| Ok(OnHost);
        let trained: Outcomes = train(&ends, (shape, &task), sums, (40, 1), open).unwrap();
        trained.losses
    };
    let wanted = losses(1, None);
    assert!(
        wanted[39] < 0.7 * wanted[1],
        "{} to {}",
        wanted[1],
        wanted[39]
    );
    let config = ReducerConfig::default().bucket_bytes(256);
    for (ranks, wire, feedback, bound) in [
        (1, Wire::F32, false, 1e-4),
        (2, Wire::F32, false, 1e-4),
        (3, Wire::F16, true, 1e-2),
        (2, Wire::E4m3, true, 5e-2),
    ] {
        let config = config.wire(wire).feedback(feedback);
        for overlap in [false, true] {
            let sums = Sums { config, overlap };
            let part = example::apart(&wanted, &losses(ranks, Some(sums)));
            assert!(part < bound, "{wire:?}, {ranks} ranks: {part}");
        }
    }
}
