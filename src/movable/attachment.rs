//! What the pool keeps of its movable memory: the registry, once there is one, and settings for it.

use std::sync::Arc;

use super::registry::{Registry, in_units};
use super::step_log::StepRecord;
use crate::compact::{self, Goal, Layout, Owners, Plan, Planner, layout_with};
use crate::device::{Timeline, lock, may_wait};
use crate::error::{Error, Result};
use crate::pool::{Attached, MOST_TURNS, Need, Pool};
use crate::sync::Mutex;

/// Rank of compaction among the steps of the out-of-memory ladder: before the application's callbacks.
const COMPACTION_RANK: u8 = 100;

/// A [`Registry`] as the pool keeps it. It is made with the pool's first movable block; until then this keeps
/// its settings. So asking what compaction would do allocates nothing on the device and changes nothing.
#[derive(Default)]
pub(super) struct Attachment(Mutex<Attach>);

#[derive(Default)]
struct Attach {
    registry: Option<Arc<Registry>>,
    planner: Option<Planner>,
    log: bool,
}

impl Attached for Attachment {
    fn pool_closed(&self) {
        // The pool's blocks keep the parts of the registry that they need.
        let registry = lock(&self.0).registry.take();
        drop(registry);
    }

    fn make_room(&self, bytes: u64, handles: u64) -> bool {
        let registry = lock(&self.0).registry.clone();
        registry.is_some_and(|registry| registry.make_room(bytes, handles))
    }
}

/// Owners that let no block move.
struct Immovable;

impl Owners for Immovable {
    fn may_move(&self, _: u64) -> bool {
        false
    }

    fn uses(&self, _: u64, _: &mut dyn FnMut(&Timeline, u64) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn moved(&mut self, _: &[compact::Move], _: &[u32], _: u64) {}
}

impl Attachment {
    pub(super) fn of(pool: &Pool) -> Result<Arc<Self>> {
        let attached = pool.shared().attached(|| Arc::new(Self::default()));
        attached.ok_or_else(|| Error::invalid("pool", "it has another layer attached"))
    }

    pub(super) fn record_steps(&self, on: bool) {
        let registry = {
            let mut state = lock(&self.0);
            state.log = on;
            state.registry.clone()
        };
        if let Some(registry) = registry {
            registry.record_steps(on);
        }
    }

    pub(super) fn take_steps(&self) -> Result<Vec<StepRecord>> {
        let registry = lock(&self.0).registry.clone();
        registry.map_or(Ok(Vec::new()), |registry| registry.take_steps())
    }

    pub(super) fn set_planner(&self, planner: Planner) {
        let mut state = lock(&self.0);
        if let Some(registry) = &state.registry {
            registry.set_planner(planner.clone());
        }
        state.planner = Some(planner);
    }

    /// The pool's present memory, as the planner's input.
    pub(super) fn layout(&self, pool: &Pool) -> Layout {
        let registry = lock(&self.0).registry.clone();
        match registry {
            Some(registry) => registry.layout(pool.shared()),
            None => (pool.shared()).look(|core, cached| layout_with(core, &Immovable, &cached)),
        }
    }

    pub(super) fn plan(&self, pool: &Pool, goal: &Goal) -> Option<Plan> {
        let layout = self.layout(pool);
        let planner = {
            let state = lock(&self.0);
            match &state.registry {
                Some(registry) => lock(&registry.state).planner.clone(),
                None => state.planner.clone().unwrap_or_default(),
            }
        };
        planner.plan(&layout, &in_units(goal))
    }
}
impl Registry {
    /// The registry of `pool`; makes it if there is none.
    pub(crate) fn of(pool: &Pool) -> Result<Arc<Self>> {
        with_room(pool, true, || Self::found(pool))
    }

    fn found(pool: &Pool) -> Result<Arc<Self>> {
        let shared = pool.shared();
        let attachment = Attachment::of(pool)?;
        let found = lock(&attachment.0).registry.clone();
        if let Some(registry) = found {
            return Ok(registry);
        }
        // Made, and dropped if another thread was first, without the lock: a driver that keeps a thread until a host
        // call has run, which may ask for the lock, makes no event meanwhile.
        let registry = Arc::new(Self::new(shared)?);
        let mut attached = lock(&attachment.0);
        if let Some(first) = attached.registry.clone() {
            drop(attached);
            return Ok(first);
        }
        if let Some(planner) = &attached.planner {
            registry.set_planner(planner.clone());
        }
        registry.record_steps(attached.log);
        let step = Arc::downgrade(&registry);
        let relieve = move |need: &Need<'_>| {
            step.upgrade()
                .is_some_and(|registry| registry.relieve(need))
        };
        shared.add_relief(COMPACTION_RANK, Arc::new(relieve));
        attached.registry = Some(Arc::clone(&registry));
        Ok(registry)
    }
}

/// Calls `make`, which allocates device memory beside the pool. While it fails for want of memory, the pool and the
/// other parts of the crate release idle memory; then, if `helped`, the steps of the out-of-memory ladder run.
pub(super) fn with_room<T>(
    pool: &Pool,
    helped: bool,
    mut make: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut turns = MOST_TURNS;
    loop {
        match make() {
            Err(error) if error.is_device_exhausted() => {}
            outcome => return outcome,
        }
        let (shared, granule) = (pool.shared(), pool.device().info().granule);
        may_wait()?;
        let is_idle = turns > 0 && (shared.trim(0).0 > 0 || pool.trim_others() > 0);
        turns = turns.saturating_sub(1);
        if !is_idle {
            // The steps of a pool that sleeps do nothing, and would be called without end.
            shared.awake.check()?;
        }
        let has_room = is_idle || helped && shared.relieve(0, granule, (true, false), &mut turns);
        if !has_room {
            return Err(shared.out_of_memory(granule));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::pool::PoolConfig;

    #[test]
    fn room_that_others_take_whenever_there_is_some_is_looked_for_but_not_for_ever() {
        let device = Device::host().unwrap();
        let pool = Pool::new(&device, PoolConfig::default()).unwrap();
        let stream = device.stream().unwrap();
        let mut tries = 0;
        let failed = with_room::<()>(&pool, false, || {
            tries += 1;
            assert!(tries < 5000, "it looks without an end");
            // What another thread leaves idle, and has taken again by the next try.
            drop(pool.alloc(&stream, 2 << 20)?);
            Err(Error::Driver {
                call: "create",
                code: 2,
                words: String::new(),
            })
        });
        assert!(failed.is_err_and(|error| error.is_out_of_memory()));
        assert!(tries > 500, "{tries}");
    }
}
