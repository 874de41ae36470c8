//! The command line's arguments.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, Subcommand, ValueEnum};
use warpool::observe::{Peer, Share, Verify};

use crate::cap::Cap;

/// A stream-ordered pool allocator for device memory, tested on traces of real programs.
#[derive(Debug, Parser)]
#[command(
    name = "warpool",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Replay(Replay),
    /// Show the devices of this machine, the driver, and how this binary's kernels were built.
    Info(Info),
    #[cfg(feature = "convert")]
    Bench(Bench),
    /// Update the figures and plots of the documents from the recorded measurements.
    #[command(hide = true)]
    Benchmarks(Benchmarks),
}

#[derive(Debug, clap::Args)]
pub struct Info {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Measure the kernels of this build in comparison with a copy on the same device, and report problems.
///
/// A problem is a conversion slower than its required fraction of a copy's speed, or a GPU for whose compute
/// capability the build has no machine code. Exit code: 0 if everything was measured.
#[cfg(feature = "convert")]
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// The device: auto takes the first GPU, or the host if there is none.
    #[arg(long, value_name = "auto|host|cuda:N", default_value = "auto")]
    pub device: DeviceChoice,
    /// Use a quarter of the memory and fewer rounds; takes some seconds.
    #[arg(long)]
    pub quick: bool,
}

/// Play recorded allocation traces through a pool on a device and check every block.
///
/// Each trace has its own pool. Every block is allocated and freed in stream order on the stream that the
/// trace names. A kernel stamps it when it is allocated, and another verifies it before it is freed. The
/// replay ends with a report, or at the first request that does not fit.
///
/// A trace is the CSV log of RMM's logging resource (Thread,Time,Action,Pointer,Size,Stream),
/// plain or gzip.
///
/// Exit code: 0 if everything was verified, nothing was corrupt and nothing failed; 1 otherwise; 2 if an
/// argument, a trace or a device cannot be used or the report cannot be written.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The traces, one after another; - is standard input.
    #[arg(value_name = "TRACE", required = true)]
    pub traces: Vec<PathBuf>,

    /// The device: auto takes the first GPU, or the host if there is none, and prints its choice.
    #[arg(long, value_name = "auto|host|cuda:N", default_value = "auto")]
    pub device: DeviceChoice,

    /// Most physical memory that the pool may hold: a size (4G, 1.5GiB, or bytes without a unit), or a
    /// fraction of the trace's peak of live bytes (50%, 1.02x); rounded up to a mapping granule of the device
    /// (2 MiB).
    #[arg(long, value_name = "SIZE|50%|1.02x")]
    pub cap: Option<Cap>,

    /// Blocks that compaction may move when a request does not fit: none, all, or a fraction between 0 and 1,
    /// chosen at random.
    #[arg(long, value_name = "none|all|FRACTION", default_value = "none")]
    pub movable: MovableChoice,

    /// Seed of the random choice of movable blocks.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// How much of each block is stamped and verified. Default: full on a GPU, edges on the host.
    ///
    /// On the host device memory that is never written costs nothing: with edges or off, an 18 GiB trace runs
    /// in 4 GiB of real memory. With full it needs as much free memory as the pool reserves, a little more
    /// than the trace's peak of live bytes; it is refused if that peak is more than the free memory. If full
    /// will take long, the expected time is printed first.
    #[arg(long, value_name = "full|edges|off")]
    pub verify: Option<VerifyChoice>,

    /// Play each trace through another allocator too, on the same device, with the same cap and the same
    /// verification, and print its results next to ours. cuda-async is the CUDA driver's own pool
    /// (cudaMallocAsync), keeping all its memory; it needs a GPU.
    #[arg(long, value_name = "cuda-async")]
    pub versus: Option<PeerChoice>,

    /// Never map a handle elsewhere: the pool only grows. For measuring the cost and benefit of remaps.
    #[arg(long)]
    pub no_remap: bool,

    /// How far the pool grows before it maps handles elsewhere, as a fraction of the peak of live bytes: more
    /// memory for fewer driver calls. Default: 0.018; outside replays a pool on a GPU has more to
    /// spare.
    #[arg(long, value_name = "PART", conflicts_with = "no_remap")]
    pub slack: Option<Part>,

    /// Print one JSON object per trace on standard output, one per line, and nothing else there.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, clap::Args)]
pub struct Benchmarks {
    /// Root of the repository, with README.md, BENCHMARKS.md, docs and benches/results.
    #[arg(long, default_value = ".")]
    pub root: PathBuf,
    /// Change nothing; fail if a figure or plot differs from the recorded measurements.
    #[arg(long)]
    pub check: bool,
}

/// `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    Auto,
    Host,
    Cuda(u32),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "host" => Ok(Self::Host),
            "cuda" => Ok(Self::Cuda(0)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|ordinal| ordinal.parse().ok())
                .map(Self::Cuda)
                .ok_or_else(|| "expected auto, host or cuda:N with N from 0".to_owned()),
        }
    }
}

/// `--slack`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part(pub f64);

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let part = text.parse().ok().filter(|part: &f64| part.is_finite());
        part.filter(|&part| part >= 0.0)
            .map(Self)
            .ok_or_else(|| "expected a number from 0, such as 0.05".to_owned())
    }
}

/// `--movable`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovableChoice(pub Share);

impl FromStr for MovableChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = match text {
            "none" => Some(Share::NONE),
            "all" => Some(Share::ALL),
            _ => text.parse().ok().and_then(Share::of),
        };
        share
            .map(Self)
            .ok_or_else(|| "expected none, all or a part between 0 and 1 (0.5)".to_owned())
    }
}

/// `--verify`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VerifyChoice {
    /// Every byte.
    Full,
    /// The first and last 4 KiB of each block.
    Edges,
    /// Nothing.
    Off,
}

/// `--versus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PeerChoice {
    /// The CUDA driver's own pool.
    CudaAsync,
}

impl From<PeerChoice> for Peer {
    fn from(choice: PeerChoice) -> Self {
        match choice {
            PeerChoice::CudaAsync => Self::CudaAsync,
        }
    }
}

impl From<VerifyChoice> for Verify {
    fn from(choice: VerifyChoice) -> Self {
        match choice {
            VerifyChoice::Full => Self::Full,
            VerifyChoice::Edges => Self::Edges,
            VerifyChoice::Off => Self::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_device_is_auto_host_or_a_numbered_gpu() {
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("host".parse(), Ok(DeviceChoice::Host));
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "host:0"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn movable_is_none_all_or_a_part() {
        assert_eq!("none".parse(), Ok(MovableChoice(Share::NONE)));
        assert_eq!("all".parse(), Ok(MovableChoice(Share::ALL)));
        let half = Share::of(0.5).expect("a part");
        assert_eq!("0.5".parse(), Ok(MovableChoice(half)));
        for wrong in ["", "some", "1.5", "-1", "50%", "NaN"] {
            assert!(wrong.parse::<MovableChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_replay_has_the_documented_arguments() {
        let line = "warpool replay a.csv b.csv.gz --device cuda:1 --cap 1.02x --verify off --versus \
                    cuda-async --movable 0.25 --seed 9 --json";
        let args = Args::try_parse_from(line.split(' ')).expect("parses");
        let Command::Replay(replay) = args.command else {
            panic!("not a replay")
        };
        assert_eq!(replay.traces.len(), 2);
        assert_eq!(replay.device, DeviceChoice::Cuda(1));
        assert_eq!(replay.verify, Some(VerifyChoice::Off));
        assert_eq!(replay.versus, Some(PeerChoice::CudaAsync));
        assert_eq!((replay.movable.0.part(), replay.seed), (0.25, 9));
        assert!(replay.json && replay.cap.is_some());
    }
}
