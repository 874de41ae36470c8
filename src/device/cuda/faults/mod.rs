//! Every call of the driver's table fails, from every place of the crate that makes it.
//!
//! The paths of `tests/errors`, and some that only the CUDA device has, run over the fake driver
//! and, on a machine with a GPU, over the real one. A path first runs without a failure, which
//! records the uses of each call and the places that make them. Then it runs once per failure. Some
//! places run only after a failure: a mapping is removed because access to it was refused. They are
//! made to fail in runs with that failure first. The list of calls comes from the table and from the
//! crate's sources, so a call that no run made fail is reported.

mod found;
mod in_host_calls;
mod own;
#[path = "../../../../tests/errors/paths.rs"]
mod paths;
mod peers;
mod recorded;
#[path = "../../../../tests/common/variables.rs"]
mod variables;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::c_int;
use std::path::Path as FilePath;

use self::paths::{LIMIT, PATHS, Stage};
use super::kernels::Kernels;
use super::open_on;
use crate::device::Device;
use crate::driver::Driver;
use crate::driver::calls::CALLS;
use crate::driver::fake::{Left, Machine, run_kernel};
use crate::driver::faults::{Failure, Refusal, Site};
use crate::error::{Error, Result};

/// The code of made failures other than out-of-memory; no driver returns it.
const MADE_TO_FAIL: c_int = 31_337;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;

/// Calls that return out-of-memory when the device is full.
const EXHAUSTIBLE: &[&str] = &[
    "cuDevicePrimaryCtxRetain",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemHostAlloc",
    "cuMemSetAccess",
    "cuMemPoolCreate",
    "cuMemAllocFromPoolAsync",
    "cuStreamCreateWithPriority",
    "cuEventCreate",
    "cuEventRecord",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuLaunchHostFunc",
];

/// Calls that return the text of a code.
const WORDS: &[&str] = &["cuGetErrorName", "cuGetErrorString"];

/// A driver and how its device runs kernels.
#[derive(Clone, Copy)]
struct Rig {
    driver: &'static Driver,
    kernels: Kernels,
}

impl Rig {
    /// The fake driver before its initialisation, and the host builds of the kernels.
    fn of(machine: &Machine) -> Self {
        let kernels = Kernels {
            load: no_load,
            run: run_kernel,
        };
        Self {
            driver: machine.driver(),
            kernels,
        }
    }

    fn open(&self) -> Result<Device> {
        let backend = open_on(self.driver, Some(self.kernels), 0)?;
        Ok(Device::from_backend(backend))
    }
}

/// The GPU of a machine that notes which calls use a graph under capture.
pub(crate) fn gpu_of(machine: &Machine) -> Device {
    let rig = Rig::of(machine);
    rig.driver.init().unwrap();
    let device = rig.open().unwrap();
    machine.record_under(device.recording_is_held());
    device
}

#[derive(Clone, Copy)]
enum Path {
    Shared(paths::Path),
    Own(own::Path),
}

fn all_paths() -> Vec<(&'static str, Path)> {
    let shared = PATHS.iter().map(|&(name, path)| (name, Path::Shared(path)));
    let own = own::PATHS
        .iter()
        .map(|&(name, path)| (name, Path::Own(path)));
    shared.chain(own).collect()
}

/// The calls to fail: while the path runs (`early`), and while the device is dropped afterwards
/// (`late`).
#[derive(Debug, Clone, Default)]
struct Plan {
    early: Vec<Failure>,
    late: Vec<Failure>,
}

/// The uses of each call, while the path ran and while the device was dropped.
struct Seen {
    early: BTreeMap<&'static str, Vec<Site>>,
    late: BTreeMap<&'static str, Vec<Site>>,
    struck: BTreeSet<Site>,
    failures: u64,
    refusals: Vec<Refusal>,
}

fn run_on(rig: Rig, (name, path): (&str, Path), plan: &Plan) -> Seen {
    let faults = &rig.driver.faults;
    faults.plan(&plan.early);
    let mut errors = Vec::new();
    let opened = rig.driver.init().and_then(|()| rig.open());
    let device = opened.unwrap_or_else(|error| {
        errors.push(error);
        faults.heal();
        rig.driver.init().expect("it works again");
        rig.open().expect("it works again")
    });
    let mut stage = Stage {
        device: &device,
        heal: &|| faults.heal(),
        errors,
    };
    match path {
        Path::Shared(path) => path(&mut stage),
        Path::Own(path) => path(&mut stage, rig),
    }
    let errors = stage.errors;
    let early = faults.uses();
    let mut refusals = refused(rig.driver);
    faults.plan(&plan.late);
    drop(device);
    let late = faults.uses();
    refusals.extend(refused(rig.driver));
    faults.heal();
    for error in &errors {
        check_error(name, plan, error);
    }
    Seen {
        early,
        late,
        struck: faults.struck(),
        failures: CALLS.iter().map(|call| faults.strikes(call)).sum(),
        refusals,
    }
}

/// Checks that the error names a call that was made to fail, and its code.
fn check_error(name: &str, plan: &Plan, error: &Error) {
    let text = error.to_string();
    let named =
        |failure: &Failure| text.contains(failure.call) && text.contains(&failure.code.to_string());
    assert!(
        plan.early.iter().any(named) || error.is_out_of_memory(),
        "{name}: {plan:?} gave {text}"
    );
}

/// The calls that the driver refused since the last plan, except requests for the text of an unknown
/// code, and for memory that it does not have.
fn refused(driver: &Driver) -> Vec<Refusal> {
    let mut refusals = driver.faults.refusals();
    refusals.retain(|refusal| {
        let call = &refusal.site.call;
        let taken = refusal.code == OUT_OF_MEMORY && EXHAUSTIBLE.contains(call);
        !taken && !WORDS.contains(call)
    });
    refusals
}

/// Checks that the crate makes no invalid call after a failure: no second end of a capture, no wait
/// for a stream under capture, no release of mapped addresses.
fn check_refusals(name: &str, plan: &Plan, refusals: &[Refusal]) {
    assert!(
        refusals.is_empty(),
        "{name}: with {plan:?} the driver refused {refusals:#?}"
    );
}

/// Checks that the driver holds only what it refused to release.
fn check_left(name: &str, plan: &Plan, driver: &Driver, left: Left) {
    let refused = |calls: &[&'static str]| -> u64 {
        let each = calls.iter().map(|&call| driver.faults.strikes(call));
        each.sum()
    };
    // A device whose context cannot be entered releases nothing. A device whose work cannot be
    // waited for releases no memory.
    let late = |calls: &[&str]| {
        plan.late
            .iter()
            .any(|failure| calls.contains(&failure.call))
    };
    if late(&["cuCtxGetCurrent", "cuCtxPushCurrent"]) {
        return;
    }
    let memory = if late(&["cuCtxSynchronize"]) {
        u64::MAX
    } else {
        refused(&["cuMemUnmap"])
    };
    let counts = left.counts;
    let pairs = [
        ("streams", counts.streams, refused(&["cuStreamDestroy"])),
        ("events", counts.events, refused(&["cuEventDestroy"])),
        (
            "executable graphs",
            counts.graphs,
            refused(&["cuGraphExecDestroy", "cuGraphDestroy"]),
        ),
        ("graphs", left.graphs, refused(&["cuGraphDestroy"])),
        ("mappings", counts.mappings, memory),
        (
            "ranges",
            counts.ranges,
            memory.saturating_add(refused(&["cuMemAddressFree"])),
        ),
        (
            "handles",
            counts.handles,
            memory.saturating_add(refused(&["cuMemRelease"])),
        ),
        (
            "pools",
            left.pools,
            refused(&["cuMemPoolDestroy", "cuCtxGetCurrent", "cuCtxPushCurrent"]),
        ),
        ("contexts", left.contexts, refused(&["cuCtxPopCurrent"])),
    ];
    for (what, left, refused) in pairs {
        assert!(
            left <= refused,
            "{name}: {plan:?} left {left} {what} behind, of which {refused} were refused"
        );
    }
}

/// One run with a fresh fake driver, on a thread of its own.
fn on_the_fake(path: (&str, Path), plan: &Plan) -> Seen {
    let run = || {
        let machine = Machine::with_gpu(2 * LIMIT).expect("host memory");
        let rig = Rig::of(&machine);
        let seen = run_on(rig, path, plan);
        check_left(path.0, plan, rig.driver, machine.left());
        seen
    };
    in_a_thread(path.0, plan, run)
}

/// Runs on a thread of its own, which ends with any context still pushed.
fn in_a_thread(name: &str, plan: &Plan, run: impl FnOnce() -> Seen + Send) -> Seen {
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    ended.unwrap_or_else(|panic| {
        println!("{name}: failed with {plan:?}");
        std::panic::resume_unwind(panic)
    })
}

unsafe fn no_load() -> std::result::Result<(), (&'static str, c_int)> {
    Ok(())
}

/// The numbers of the uses to fail: the first ones, the first of each place, the last, and some in
/// between.
fn numbers(uses: &[Site], first: usize) -> BTreeSet<u64> {
    let mut numbers: BTreeSet<u64> = (1..=uses.len().min(first) as u64).collect();
    let mut places = BTreeSet::new();
    for (at, site) in uses.iter().enumerate() {
        if places.insert(site) {
            numbers.insert(at as u64 + 1);
        }
    }
    let between = (1..first).map(|part| (uses.len() * part / first) as u64);
    numbers.extend(between.filter(|&number| number > 0));
    numbers.insert(uses.len() as u64);
    numbers
}

/// Every failure to make, for the calls that were seen.
fn failures_of(uses: &BTreeMap<&'static str, Vec<Site>>, first: usize) -> Vec<Failure> {
    let brief = variables::is_on("WARPOOL_SANITIZER");
    let mut failures = Vec::new();
    for (&call, uses) in uses {
        let codes = [MADE_TO_FAIL, OUT_OF_MEMORY];
        for &code in &codes[..1 + usize::from(EXHAUSTIBLE.contains(&call))] {
            for number in numbers(uses, first) {
                for for_ever in [false, true] {
                    // Shortened under a sanitizer, which is slow: out-of-memory permanently, every
                    // other code once.
                    if brief && for_ever != (code == OUT_OF_MEMORY) {
                        continue;
                    }
                    failures.push(Failure {
                        call,
                        number,
                        for_ever,
                        code,
                    });
                }
            }
        }
    }
    failures
}

/// The number of first uses of a call to fail, and of the parts that the rest is divided into: 2, or
/// `WARPOOL_FAULT_USES` for the long form.
fn first_uses() -> usize {
    variables::number("WARPOOL_FAULT_USES", 2) as usize
}

/// The totals over all runs.
#[derive(Default)]
struct Total {
    runs: u64,
    failures: u64,
    struck: BTreeSet<Site>,
    /// Places that some run passed.
    seen: BTreeSet<Site>,
}

/// Runs every failure of a path, and every failure that occurs only after another one.
fn every_failure(
    total: &mut Total,
    path: (&'static str, Path),
    first: usize,
    run: &dyn Fn((&str, Path), &Plan) -> Seen,
) {
    let mut dry = run(path, &Plan::default());
    let mut plans: VecDeque<Plan> = VecDeque::new();
    for failure in failures_of(&dry.early, first) {
        plans.push_back(Plan {
            early: vec![failure],
            ..Plan::default()
        });
    }
    for failure in failures_of(&dry.late, first) {
        plans.push_back(Plan {
            late: vec![failure],
            ..Plan::default()
        });
    }
    for uses in dry.early.values_mut().chain(dry.late.values_mut()) {
        total.seen.extend(uses.drain(..));
    }
    while let Some(plan) = plans.pop_front() {
        let seen = run(path, &plan);
        total.runs += 1;
        check_refusals(path.0, &plan, &seen.refusals);
        total.failures += seen.failures;
        total.struck.extend(seen.struck);
        for (late, uses) in [(false, &seen.early), (true, &seen.late)] {
            for (&call, uses) in uses {
                for (at, &site) in uses.iter().enumerate() {
                    if total.seen.insert(site) {
                        plans.push_back(with_another(&plan, late, call, at as u64 + 1));
                    }
                }
            }
        }
    }
}

/// The plan with one more failure, of a use that occurs only under this plan.
fn with_another(plan: &Plan, late: bool, call: &'static str, number: u64) -> Plan {
    let mut plan = plan.clone();
    let phase = if late {
        &mut plan.late
    } else {
        &mut plan.early
    };
    phase.push(Failure {
        call,
        number,
        for_ever: false,
        code: MADE_TO_FAIL,
    });
    plan
}

/// The places in the crate's sources that make a call of the driver: call, file and line.
fn places_in_source() -> BTreeSet<(String, String, u32)> {
    let root = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| String::from(env!("CARGO_MANIFEST_DIR")));
    let root = FilePath::new(&root);
    let mut places = BTreeSet::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the crate's sources") {
            let path = entry.expect("the crate's sources").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("the crate's sources");
            let file = path
                .strip_prefix(root)
                .expect("below")
                .display()
                .to_string();
            for (at, line) in text.lines().enumerate() {
                if let Some(call) = called_in(line) {
                    places.insert((call.to_owned(), file.clone(), at as u32 + 1));
                }
            }
        }
    }
    places
}

/// The call of the driver that a line contains.
fn called_in(line: &str) -> Option<&'static str> {
    let code = line.trim_start();
    if code.starts_with("//") {
        return None;
    }
    let made = |call: &&&str| code.contains(&format!(".{call}("));
    CALLS.iter().find(made).copied()
}

/// Checks that every call failed, and from every place, except the calls in `unmade`, which this
/// machine does not make.
fn check_complete(total: &Total, unmade: &[(&str, &str)]) {
    let calls: BTreeSet<_> = total.struck.iter().map(|site| site.call).collect();
    let struck = |site: &Site| (site.call.to_owned(), site.file.to_owned(), site.line);
    let struck: BTreeSet<_> = total.struck.iter().map(struck).collect();
    let mut places = places_in_source();
    places.retain(|(call, file, _)| !unmade.contains(&(call, file)));
    println!(
        "{} failures in {} runs: {} of the table's {} calls, from {} of {} places",
        total.failures,
        total.runs,
        calls.len(),
        CALLS.len(),
        struck.intersection(&places).count(),
        places.len()
    );
    let is_made = |call: &&&str| {
        let elsewhere = places.iter().any(|(made, ..)| made == **call);
        elsewhere || unmade.iter().all(|(unmade, _)| unmade != *call)
    };
    let made = CALLS.iter().filter(is_made);
    let never: Vec<_> = made.filter(|call| !calls.contains(*call)).collect();
    assert!(never.is_empty(), "calls that never failed: {never:?}");
    let left: Vec<_> = places.difference(&struck).collect();
    assert!(left.is_empty(), "places whose call never failed: {left:#?}");
}

#[test]
fn every_call_of_the_drivers_table_fails_from_every_place_and_is_survived() {
    let mut total = Total::default();
    for path in all_paths() {
        every_failure(&mut total, path, first_uses(), &on_the_fake);
    }
    check_complete(&total, &[]);
}

/// The table that the machine's driver fills, with the kernels of this build.
fn real() -> Option<Rig> {
    let kernels = Kernels::of_this_build();
    let driver = Driver::of_this_machine();
    let required = variables::is_on("WARPOOL_REQUIRE_GPU");
    match (
        driver.and_then(|driver| driver.init().map(|()| driver)),
        kernels,
    ) {
        (Ok(driver), Some(kernels)) => Some(Rig { driver, kernels }),
        (driver, _) => {
            assert!(!required, "WARPOOL_REQUIRE_GPU=1, but {:?}", driver.err());
            println!("skipped: no CUDA device");
            None
        }
    }
}

#[test]
fn every_call_of_a_gpus_driver_fails_from_every_place_and_is_survived() {
    let Some(rig) = real() else {
        return;
    };
    // Peer access is queried only if there are several GPUs.
    let gpus = super::count_of(rig.driver).expect("it was there");
    let asked = "src/device/cuda/memory.rs";
    let unmade: &[_] = match gpus {
        1 => &[("cuDeviceGet", asked), ("cuDeviceCanAccessPeer", asked)],
        _ => &[],
    };
    let mut total = Total::default();
    for path in all_paths() {
        every_failure(&mut total, path, 1, &|path, plan| {
            let run = || run_on(real().expect("it was there"), path, plan);
            in_a_thread(path.0, plan, run)
        });
    }
    check_complete(&total, unmade);
}
