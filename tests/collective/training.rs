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
    for ranks in [2, 3, 4] {
        let part = example::apart(&wanted, &losses(ranks, plain));
        assert!(part < 1e-3, "f32, {ranks} ranks: {part}");
        let halves = ReducerConfig::default().feedback(true);
        let part = example::apart(&wanted, &losses(ranks, halves));
        assert!(part < 1e-2, "f16, {ranks} ranks: {part}");
        let part = example::apart(&wanted, &losses(ranks, halves.wire(Wire::E4m3)));
        assert!(part < 2e-2, "e4m3, {ranks} ranks: {part}");
    }
}
