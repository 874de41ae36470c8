//! `warpool info`.

use warpool::device::{DeviceInfo, host_available_bytes};
use warpool::driver::build_info;
use warpool::observe::Bytes;
use warpool::{Device, Result};

use crate::outcome::{Console, Outcome};

/// Prints what there is; a machine without a GPU is no failure.
pub fn run(console: &mut Console<'_>) -> Outcome {
    let mut lines = vec![
        line("warpool", env!("CARGO_PKG_VERSION")),
        line("features", features()),
        line("kernels", build_info::kernels()),
    ];
    match Device::cuda_count() {
        Ok(count) => lines.extend((0..count).flat_map(cuda)),
        Err(error) => lines.push(line("cuda", error)),
    }
    lines.push(match Device::host() {
        Ok(device) => line("host", host(device.info())),
        Err(error) => line("host", error),
    });
    console.say(lines.join("\n"))
}

fn line(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name:<10}{value}")
}

fn features() -> String {
    let all = [
        ("cli", cfg!(feature = "cli")),
        ("rustacuda", cfg!(feature = "rustacuda")),
        ("tracing", cfg!(feature = "tracing")),
    ];
    let on: Vec<&str> = all
        .iter()
        .filter(|(_, on)| *on)
        .map(|(name, _)| *name)
        .collect();
    on.join(", ")
}

fn cuda(ordinal: u32) -> Vec<String> {
    let name = format!("cuda:{ordinal}");
    match describe(ordinal) {
        Ok((driver, device)) if ordinal == 0 => vec![line("driver", driver), line(&name, device)],
        Ok((_, device)) => vec![line(&name, device)],
        Err(error) => vec![line(&name, error)],
    }
}

fn describe(ordinal: u32) -> Result<(String, String)> {
    let device = Device::cuda(ordinal)?;
    let info = device.info();
    let version = info.driver_version;
    let driver = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
    let (major, minor) = info.capability;
    Ok((
        driver,
        format!(
            "{}, {} of {} free, compute capability {major}.{minor}, {} multiprocessors",
            info.name,
            Bytes(device.free_bytes()?),
            Bytes(info.total_bytes),
            info.processors
        ),
    ))
}

fn host(info: &DeviceInfo) -> String {
    let real =
        host_available_bytes().map_or_else(|| "unknown".to_owned(), |free| Bytes(free).to_string());
    format!(
        "{}, {} cores, capacity {}, real memory free {real}",
        info.name,
        info.processors,
        Bytes(info.total_bytes)
    )
}
