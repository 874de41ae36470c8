//! The reference: what is live, where it is used, what is pinned. No addresses, no device.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::Union;
use proptest_state_machine::ReferenceStateMachine;
use warpool::pool::HandleSize;

pub const STREAMS: usize = 3;
pub const EVENTS: usize = 2;
const GRANULE: u64 = 2 << 20;
/// Granules of the device that others may have: nearly all of them.
const MOST_OF_OTHERS: usize = 20;

/// Which kinds of blocks a machine allocates, by weight.
pub trait Mix: Debug + Clone + 'static {
    const RAW: u32;
    const MOVABLE: u32;
}

/// Number of a block in a program.
pub type Id = u32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Raw,
    Movable,
}

/// A block that was asked for and not yet given up. Whether there was memory for it is the world's
/// to know.
#[derive(Debug, Clone)]
pub struct Live {
    pub kind: Kind,
    /// As asked for; a shrink leaves as many or fewer.
    pub bytes: u64,
    pub pins: u32,
}

/// What a pool is made with.
#[derive(Debug, Clone)]
pub struct Setup {
    pub handles: HandleSize,
    pub slack: f64,
    pub cache: u64,
    pub opportunistic: bool,
    pub device_wait: bool,
    pub preallocate: u64,
    pub soft_limit: Option<u64>,
    pub overlap: u64,
}

/// The state of the reference.
#[derive(Debug, Clone)]
pub struct Program {
    pub seed: u64,
    pub setup: Setup,
    pub limit: Option<u64>,
    pub live: BTreeMap<Id, Live>,
    next: Id,
}

#[derive(Debug, Clone)]
pub enum Step {
    Alloc(Kind, usize, u64),
    Free(Id),
    /// Handed to a stream, which uses and frees it.
    FreeOn(Id, usize),
    /// Read on a stream, and declared.
    Read(Id, usize),
    /// Rewritten on a stream, and declared.
    Write(Id, usize),
    Shrink(Id, u64),
    Pin(Id, usize),
    Unpin(Id),
    Record(usize, usize),
    Wait(usize, usize),
    WaitStream(usize, usize),
    Sync(usize),
    SyncEvent(usize),
    Query(usize),
    /// Dropped and made anew.
    Renew(usize),
    Trim(u64),
    Limit(Option<u64>),
    /// Others have so many granules of the device from now on, or what it has left.
    Others(usize),
    /// To a hole of so many bytes, or fully, in steps of so many bytes.
    Compact(Option<u64>, u64),
    Begin(Option<u64>, u64),
    /// One step of the pass begun last.
    Advance,
}

/// The reference machine of a mix.
pub struct Machine<M>(PhantomData<M>);

fn setups() -> impl Strategy<Value = Setup> {
    let handles = prop_oneof![
        2 => Just(HandleSize::Granule),
        1 => Just(HandleSize::UpTo(4 * GRANULE)),
        1 => Just(HandleSize::Adaptive),
    ];
    let soft = prop::option::weighted(0.2, select(vec![0, 6 * GRANULE]));
    (
        handles,
        select(vec![0.0, 0.004, 1.0]),
        select(vec![0, 64 << 10, 64 << 20]),
        prop::bool::weighted(0.8),
        prop::bool::weighted(0.8),
        select(vec![0, 0, 6 << 20]),
        soft,
        select(vec![0, 0, 64 << 20]),
    )
        .prop_map(
            |(
                handles,
                slack,
                cache,
                opportunistic,
                device_wait,
                preallocate,
                soft_limit,
                overlap,
            )| Setup {
                handles,
                slack,
                cache,
                opportunistic,
                device_wait,
                preallocate,
                soft_limit,
                overlap,
            },
        )
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..4096u64,
        3 => 1..GRANULE / 4,
        2 => 1..2 * GRANULE,
        1 => (1..5u64).prop_map(|granules| granules * GRANULE),
        1 => 1..5 * GRANULE,
    ]
}

fn limits() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.8, 3 * GRANULE..16 * GRANULE)
}

fn goals() -> impl Strategy<Value = Option<u64>> {
    prop::option::weighted(0.5, 1..12 * GRANULE)
}

/// Steps that name one of the blocks in `of`.
fn on(
    of: Vec<Id>,
    weight: u32,
    step: impl Strategy<Value = fn(Id, usize) -> Step> + 'static,
) -> Option<(u32, BoxedStrategy<Step>)> {
    (!of.is_empty()).then(|| {
        let steps = (select(of), 0..STREAMS, step);
        let steps = steps.prop_map(|(id, stream, step)| step(id, stream));
        (weight, steps.boxed())
    })
}

impl Program {
    fn ids(&self, wanted: impl Fn(&Live) -> bool) -> Vec<Id> {
        let wanted = self.live.iter().filter(|(_, live)| wanted(live));
        wanted.map(|(&id, _)| id).collect()
    }
}

fn with_blocks(program: &Program) -> Vec<(u32, BoxedStrategy<Step>)> {
    let any = program.ids(|_| true);
    let loose = program.ids(|live| live.pins == 0);
    let raw = program.ids(|live| live.kind == Kind::Raw);
    let movable = program.ids(|live| live.kind == Kind::Movable);
    let pinned = program.ids(|live| live.pins > 0);
    let sizes: Vec<(Id, u64)> = raw
        .iter()
        .map(|&id| (id, program.live[&id].bytes))
        .collect();
    let mut steps: Vec<_> = [
        on(
            loose,
            6,
            Just((|id, _| Step::Free(id)) as fn(Id, usize) -> Step),
        ),
        on(raw.clone(), 2, Just(Step::FreeOn as fn(Id, usize) -> Step)),
        on(any.clone(), 3, Just(Step::Read as fn(Id, usize) -> Step)),
        on(any, 3, Just(Step::Write as fn(Id, usize) -> Step)),
        on(movable, 1, Just(Step::Pin as fn(Id, usize) -> Step)),
        on(
            pinned,
            2,
            Just((|id, _| Step::Unpin(id)) as fn(Id, usize) -> Step),
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !sizes.is_empty() {
        let shrink = select(sizes).prop_flat_map(|(id, bytes)| (Just(id), 1..=bytes));
        let shrink = shrink.prop_map(|(id, bytes)| Step::Shrink(id, bytes));
        steps.push((1, shrink.boxed()));
    }
    steps
}

impl<M: Mix> ReferenceStateMachine for Machine<M> {
    type State = Program;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Program> {
        (any::<u64>(), setups(), limits())
            .prop_map(|(seed, setup, limit)| Program::new(seed, setup, limit))
            .boxed()
    }

    fn transitions(program: &Program) -> BoxedStrategy<Step> {
        let stream = || 0..STREAMS;
        let mut steps = with_blocks(program);
        let alloc = |kind| {
            (stream(), sizes()).prop_map(move |(stream, bytes)| Step::Alloc(kind, stream, bytes))
        };
        for (weight, kind) in [(M::RAW, Kind::Raw), (M::MOVABLE, Kind::Movable)] {
            if weight > 0 {
                steps.push((weight, alloc(kind).boxed()));
            }
        }
        if M::MOVABLE > 0 {
            let goal = || (goals(), 1..4 * GRANULE);
            let compact = goal().prop_map(|(goal, budget)| Step::Compact(goal, budget));
            let begin = goal().prop_map(|(goal, budget)| Step::Begin(goal, budget));
            steps.push((2, compact.boxed()));
            steps.push((1, begin.boxed()));
            steps.push((2, Just(Step::Advance).boxed()));
        }
        let pairs = || (0..EVENTS, stream());
        steps.extend([
            (1, pairs().prop_map(|(e, s)| Step::Record(e, s)).boxed()),
            (1, pairs().prop_map(|(e, s)| Step::Wait(e, s)).boxed()),
            (
                1,
                (stream(), stream())
                    .prop_map(|(a, b)| Step::WaitStream(a, b))
                    .boxed(),
            ),
            (1, stream().prop_map(Step::Sync).boxed()),
            (1, (0..EVENTS).prop_map(Step::SyncEvent).boxed()),
            (1, stream().prop_map(Step::Query).boxed()),
            (1, stream().prop_map(Step::Renew).boxed()),
            (1, select(vec![0, 4 << 20]).prop_map(Step::Trim).boxed()),
            (1, limits().prop_map(Step::Limit).boxed()),
            (1, (0..MOST_OF_OTHERS).prop_map(Step::Others).boxed()),
        ]);
        Union::new_weighted(steps).boxed()
    }

    fn preconditions(program: &Program, step: &Step) -> bool {
        let live = |id: &Id| program.live.get(id);
        match step {
            Step::Free(id) => live(id).is_some_and(|live| live.pins == 0),
            Step::FreeOn(id, _) => live(id).is_some_and(|live| live.kind == Kind::Raw),
            Step::Shrink(id, to) => {
                live(id).is_some_and(|live| live.kind == Kind::Raw && *to <= live.bytes)
            }
            Step::Read(id, _) | Step::Write(id, _) => live(id).is_some(),
            Step::Pin(id, _) => live(id).is_some_and(|live| live.kind == Kind::Movable),
            Step::Unpin(id) => live(id).is_some_and(|live| live.pins > 0),
            _ => true,
        }
    }

    fn apply(mut program: Program, step: &Step) -> Program {
        match *step {
            Step::Alloc(kind, _, bytes) => {
                let live = Live {
                    kind,
                    bytes,
                    pins: 0,
                };
                program.live.insert(program.next, live);
                program.next += 1;
            }
            Step::Free(id) | Step::FreeOn(id, _) => drop(program.live.remove(&id)),
            Step::Pin(id, _) => {
                if let Some(live) = program.live.get_mut(&id) {
                    live.pins += 1;
                }
            }
            Step::Unpin(id) => {
                if let Some(live) = program.live.get_mut(&id) {
                    live.pins -= 1;
                }
            }
            Step::Limit(limit) => program.limit = limit,
            _ => {}
        }
        program
    }
}

impl Program {
    /// Before the first step.
    pub fn new(seed: u64, setup: Setup, limit: Option<u64>) -> Self {
        Self {
            seed,
            setup,
            limit,
            live: BTreeMap::new(),
            next: 0,
        }
    }

    /// The block that the step applied last asked for.
    pub fn newest(&self) -> Id {
        self.next - 1
    }
}
