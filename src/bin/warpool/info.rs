//! `warpool info`.

use serde_json::{Value, json};
use warpool::device::{DeviceInfo, host_available_bytes};
use warpool::driver::build_info;
use warpool::observe::Bytes;
use warpool::{Device, Result};

use crate::args::Info;
use crate::outcome::{Console, Outcome};

/// Prints the devices and the build; a machine without a GPU is not a failure.
pub fn run(options: &Info, console: &mut Console<'_>) -> Outcome {
    if options.json {
        return console.say(as_json());
    }
    let mut lines = vec![
        line("warpool", env!("CARGO_PKG_VERSION")),
        line("features", features().join(", ")),
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

/// The same as JSON; missing values are `null`, or have a `reason`.
fn as_json() -> Value {
    let kernels = build_info::kernels();
    let (gpus, reason) = match Device::cuda_count() {
        Ok(count) => ((0..count).map(gpu).collect(), None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    json!({
        "warpool": env!("CARGO_PKG_VERSION"),
        "features": features(),
        "kernels": {
            "toolkit": kernels.toolkit,
            "architectures": kernels.architectures.split(',').filter(|name| !name.is_empty())
                .collect::<Vec<_>>(),
            "left_out": kernels.left_out,
        },
        "cuda": {"gpus": gpus, "reason": reason},
        "host": match Device::host() {
            Ok(device) => json!({
                "name": device.info().name,
                "cores": device.info().processors,
                "total_bytes": device.info().total_bytes,
                "real_free_bytes": host_available_bytes(),
            }),
            Err(error) => json!({"reason": error.to_string()}),
        },
    })
}

fn gpu(ordinal: u32) -> Value {
    let described = Device::cuda(ordinal).and_then(|device| {
        let info = device.info();
        Ok(json!({
            "ordinal": ordinal,
            "name": info.name,
            "total_bytes": info.total_bytes,
            "free_bytes": device.free_bytes()?,
            "compute_capability": format!("{}.{}", info.capability.0, info.capability.1),
            "multiprocessors": info.processors,
            "driver": driver(info),
        }))
    });
    described.unwrap_or_else(|error| json!({"ordinal": ordinal, "reason": error.to_string()}))
}

fn line(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name:<10}{value}")
}

/// All features of the crate, and whether this binary has them.
const FEATURES: [(&str, bool); 11] = [
    ("cli", cfg!(feature = "cli")),
    ("gzip", cfg!(feature = "gzip")),
    ("convert", cfg!(feature = "convert")),
    ("rustacuda", cfg!(feature = "rustacuda")),
    ("nccl", cfg!(feature = "nccl")),
    ("files", cfg!(feature = "files")),
    ("cudarc", cfg!(feature = "cudarc")),
    ("serde", cfg!(feature = "serde")),
    ("bindgen", cfg!(feature = "bindgen")),
    ("sanitize", cfg!(feature = "sanitize")),
    ("tracing", cfg!(feature = "tracing")),
];

fn features() -> Vec<&'static str> {
    let on = FEATURES.iter().filter(|(_, on)| *on);
    on.map(|(name, _)| *name).collect()
}

fn cuda(ordinal: u32) -> Vec<String> {
    let name = format!("cuda:{ordinal}");
    match describe(ordinal) {
        Ok((driver, device)) if ordinal == 0 => vec![line("driver", driver), line(&name, device)],
        Ok((_, device)) => vec![line(&name, device)],
        Err(error) => vec![line(&name, error)],
    }
}

/// `CUDA 13.0`: the CUDA version that the driver supports.
fn driver(info: &DeviceInfo) -> String {
    let version = info.driver_version;
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn describe(ordinal: u32) -> Result<(String, String)> {
    let device = Device::cuda(ordinal)?;
    let info = device.info();
    let (major, minor) = info.capability;
    Ok((
        driver(info),
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

#[cfg(test)]
mod tests {
    use super::FEATURES;

    #[test]
    fn every_feature_of_the_crate_is_listed() {
        let manifest = include_str!("../../../Cargo.toml");
        let (_, section) = manifest.split_once("[features]").expect("features");
        let (section, _) = section.split_once("\n[").expect("an end");
        let names = section.lines().filter_map(|line| line.split_once(" = "));
        let mut names: Vec<&str> = names.map(|(name, _)| name).collect();
        names.retain(|name| *name != "default");
        let mut listed = FEATURES.map(|(name, _)| name);
        names.sort_unstable();
        listed.sort_unstable();
        assert_eq!(names, listed);
    }
}
