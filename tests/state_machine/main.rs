//! Pool, movable memory and compaction as state machines against a reference model, the same
//! programs on the host device, the simulated one and, where there is one, the GPU.
//!
//! The model (`model`) knows what is live, who uses it and what is pinned; the world (`world`) does
//! the same on a device, stamps every block and verifies it by kernels in stream order, and compares
//! after every step. `WARPOOL_CASES` sets the number of programs a device.

#[path = "../common/mod.rs"]
mod common;
mod model;
mod world;

use std::marker::PhantomData;

use model::{Machine, Mix, Program};
use proptest::prelude::ProptestConfig;
use proptest_state_machine::{StateMachineTest, prop_state_machine};
use warpool::Device;
use warpool::device::sim::{SimConfig, Strategy};
use world::World;

/// Physical bytes of the devices made here.
const CAPACITY: u64 = 48 << 20;

/// Where a program runs.
trait Place {
    /// `None` where there is no such device.
    fn open(program: &Program) -> Option<Device>;
}

struct Host;
struct Sim;
struct Cuda;

impl Place for Host {
    fn open(_: &Program) -> Option<Device> {
        Some(Device::host_with_capacity(CAPACITY).unwrap())
    }
}

impl Place for Sim {
    fn open(program: &Program) -> Option<Device> {
        let strategy = match program.seed % 3 {
            0 => Strategy::Random,
            changes => Strategy::Pct {
                changes: changes as u32 * 2 - 1,
                steps: 160,
            },
        };
        let config = SimConfig::default().with_capacity(CAPACITY);
        Some(Device::sim(&config.with_seed(program.seed).with_strategy(strategy)).unwrap())
    }
}

impl Place for Cuda {
    fn open(_: &Program) -> Option<Device> {
        common::cuda()
    }
}

/// Only blocks that stay where they are.
#[derive(Debug, Clone)]
struct Raw;
/// Only movable ones, and compaction.
#[derive(Debug, Clone)]
struct Movable;
/// Both, and compaction under way.
#[derive(Debug, Clone)]
struct Both;

impl Mix for Raw {
    const RAW: u32 = 8;
    const MOVABLE: u32 = 0;
}

impl Mix for Movable {
    const RAW: u32 = 0;
    const MOVABLE: u32 = 8;
}

impl Mix for Both {
    const RAW: u32 = 4;
    const MOVABLE: u32 = 5;
}

/// A program of one mix at one place.
struct Run<M, P>(PhantomData<(M, P)>);

impl<M: Mix, P: Place> StateMachineTest for Run<M, P> {
    type SystemUnderTest = Option<World>;
    type Reference = Machine<M>;

    fn init_test(program: &Program) -> Option<World> {
        let device = P::open(program)?;
        Some(World::new(&device, program))
    }

    fn apply(world: Option<World>, program: &Program, step: model::Step) -> Option<World> {
        let mut world = world?;
        world.step(program, &step);
        Some(world)
    }

    fn check_invariants(world: &Option<World>, program: &Program) {
        if let Some(world) = world {
            world.check(program);
        }
    }

    fn teardown(world: Option<World>, _: Program) {
        if let Some(world) = world {
            world.finish();
        }
    }
}

/// `quick` programs, or as many as `WARPOOL_CASES` says.
fn config(quick: u32) -> ProptestConfig {
    let quick = common::rounds(quick as usize) as u64;
    let cases = common::variables::number("WARPOOL_CASES", quick);
    ProptestConfig {
        cases: u32::try_from(cases).expect("WARPOOL_CASES is below 2^32"),
        ..ProptestConfig::default()
    }
}

mod sim {
    use super::*;
    prop_state_machine! {
        #![proptest_config(config(250))]
        #[test]
        fn the_pool_agrees_with_the_model(sequential 1..60 => Run<Raw, Sim>);
        #[test]
        fn movable_memory_agrees_with_the_model(sequential 1..60 => Run<Movable, Sim>);
        #[test]
        fn compaction_agrees_with_the_model(sequential 1..80 => Run<Both, Sim>);
    }
}

mod host {
    use super::*;
    prop_state_machine! {
        #![proptest_config(config(60))]
        #[test]
        fn the_pool_agrees_with_the_model(sequential 1..60 => Run<Raw, Host>);
        #[test]
        fn movable_memory_agrees_with_the_model(sequential 1..60 => Run<Movable, Host>);
        #[test]
        fn compaction_agrees_with_the_model(sequential 1..80 => Run<Both, Host>);
    }
}

mod cuda {
    use super::*;

    /// Runs `test` where there is a GPU, alone on it.
    fn alone(test: fn()) {
        if common::cuda().is_some() {
            test();
        }
    }

    prop_state_machine! {
        #![proptest_config(config(60))]
        fn pool(sequential 1..60 => Run<Raw, Cuda>);
        fn movable(sequential 1..60 => Run<Movable, Cuda>);
        fn compaction(sequential 1..80 => Run<Both, Cuda>);
    }

    #[test]
    fn the_pool_agrees_with_the_model() {
        alone(pool);
    }

    #[test]
    fn movable_memory_agrees_with_the_model() {
        alone(movable);
    }

    #[test]
    fn compaction_agrees_with_the_model() {
        alone(compaction);
    }
}
