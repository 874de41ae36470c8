//! What every entry point of the kernels owes the application that it is called from.

use std::path::{Path, PathBuf};

/// Every file of the device kernels, with its text.
fn kernel_files() -> Vec<(PathBuf, String)> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("kernels");
    let mut folders = vec![root];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "cu" || e == "cuh") {
                let text = std::fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(files.len() > 20, "only {} files of kernels", files.len());
    files
}

/// The runtime's last error is the application's: `<<<>>>` has no outcome but that, asking for it
/// takes an older error for the launch's own, and `cudaFuncSetAttribute` clears it when all is well.
#[test]
fn no_kernel_file_asks_for_or_clears_the_last_error_of_the_thread() {
    for (path, text) in kernel_files() {
        for (call, instead) in [
            ("<<<", "wp::launch"),
            ("cudaGetLastError(", "wp::launch"),
            ("cudaPeekAtLastError(", "wp::launch"),
            ("cudaFuncSetAttribute(", "wp::allow_shared"),
        ] {
            let path = path.display();
            assert!(!text.contains(call), "{path} has {call}: use {instead}");
        }
    }
}

/// The names of the kernels that a file defines.
fn kernels_of(text: &str) -> Vec<String> {
    let name = |rest: &str| {
        // Behind its bounds, whose brackets may nest.
        let rest = match rest.trim_start().strip_prefix("void __launch_bounds__(") {
            Some(bounds) => {
                let mut depth = 1;
                let end = bounds.find(|c| {
                    depth += i32::from(c == '(') - i32::from(c == ')');
                    depth == 0
                });
                bounds[end.unwrap() + 1..].trim_start()
            }
            None => rest.trim_start().strip_prefix("void ").unwrap(),
        };
        rest.split('(').next().unwrap().trim().to_owned()
    };
    text.split("__global__").skip(1).map(name).collect()
}

/// `wp::launch` and what else names a kernel enters it into the list of those that opening a device
/// loads: `kernels/device/launch.cuh`.
#[test]
fn every_kernel_is_launched_by_its_name_and_so_loaded_when_a_device_is_opened() {
    let files = kernel_files();
    let all: String = files.iter().map(|(_, text)| text.as_str()).collect();
    let mut count = 0;
    for (path, text) in &files {
        let path = path.display();
        assert!(
            path.to_string().ends_with("launch.cuh") || !text.contains("cudaLaunch"),
            "{path} launches by itself: use wp::launch"
        );
        for kernel in kernels_of(text) {
            let named = [
                "launch<",
                "launch<wp::",
                "launch_shared<",
                "launch_shared<wp::",
            ]
            .into_iter()
            .chain(["constexpr auto KERNEL = ", "constexpr auto kernel = wp::"])
            .any(|before| {
                let named = format!("{before}{kernel}");
                all.match_indices(&named).any(|(at, _)| {
                    let next = all[at + named.len()..].chars().next();
                    matches!(next, Some('<' | '>' | ';'))
                })
            });
            assert!(named, "{path}: {kernel} is not launched by name");
            count += 1;
        }
    }
    assert!(count >= 15, "only {count} kernels found");
}

#[test]
fn the_host_kernels_are_of_this_header() {
    // SAFETY: the call takes nothing.
    let abi = unsafe { warpool::driver::abi::wp_host_abi() };
    assert_eq!(abi, warpool::driver::abi::WP_ABI_VERSION);
}

#[cfg(warpool_cuda)]
mod gpu {
    use std::ffi::{c_int, c_void};
    use std::ptr::null_mut;

    use crate::common::{self, BackendOf};
    use warpool::Stream;
    use warpool::device::Launch;
    use warpool::driver::abi;

    // The runtime that the kernels are linked with, as an application in the same program uses it.
    unsafe extern "C" {
        fn cudaPeekAtLastError() -> c_int;
        fn cudaGetLastError() -> c_int;
        fn cudaSetDevice(device: c_int) -> c_int;
        fn cudaEventCreate(event: *mut *mut c_void) -> c_int;
        fn cudaEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int;
        fn cudaEventQuery(event: *mut c_void) -> c_int;
        fn cudaEventDestroy(event: *mut c_void) -> c_int;
    }

    const INVALID_DEVICE: c_int = 101;
    const NOT_READY: c_int = 600;

    const DATA: u64 = 1 << 20;
    const TABLES: u64 = 8 << 20;

    /// Arguments that are all zero.
    fn zeroed<T>() -> T {
        // SAFETY: the argument structures are plain numbers, for which zero is a value.
        unsafe { std::mem::zeroed() }
    }

    /// A conversion of `count` elements, f32 to f16, aligned.
    fn convert(base: u64, count: u64) -> abi::wp_convert {
        abi::wp_convert {
            src: base,
            dst: base + DATA,
            count,
            rows: 1,
            scale: 1.0,
            bias: -0.0,
            src_type: abi::WP_F32,
            dst_type: abi::WP_F16,
            ..zeroed()
        }
    }

    /// Tables at `base` + `TABLES`, and a launch of every operation, in each of the ways that it has
    /// of launching.
    fn every_launch(stream: &Stream, base: u64) -> Vec<Launch> {
        let tables = base + TABLES;
        let put = |at: u64, words: &[u64]| {
            common::write(stream, tables + at, bytemuck::cast_slice(words));
            tables + at
        };
        let packed = |src: u64, dst: u64, bytes: u64| [(src / 16) | ((bytes / 16) << 44), dst / 16];
        let (small, large) = (
            packed(base, base + DATA, 64),
            packed(base, base + DATA + 64, 8192),
        );
        let moves = put(0, &[small, large].concat());
        let zeros = put(64, &[0, 0]);
        let relocate = abi::wp_relocate {
            moves,
            first_tile: zeros,
            group_move: zeros,
            small: 1,
            large: 1,
            tiles: 2,
            max_blocks: 0,
        };
        let slide = abi::wp_slide {
            moves: put(128, &[base + 16, base, 65_536]),
            lo: base,
            hi: base + 65_536 + 16,
            scratch: tables + 65_536,
            count: 1,
            ..zeroed()
        };
        let patch = abi::wp_patch {
            slots: zeros,
            slot_count: 2,
            ranges: put(192, &[base, base + DATA, 64]),
            range_count: 1,
            max_blocks: 0,
        };
        let word = put(256, &[base + 8, 7]);
        let tile = put(320, &[base, base + DATA, 0, 1000]);
        let scaler = put(384, &[0; 6]);
        let aligned = convert(base, 4096);
        let rows = abi::wp_convert {
            rows: 4,
            src_pitch: 32_768,
            dst_pitch: 16_384,
            ..aligned
        };
        let shifted = abi::wp_convert {
            src: base + 4,
            ..aligned
        };
        let table = abi::wp_convert {
            tiles: tile,
            rows: 1,
            ..aligned
        };
        let fused = abi::wp_convert {
            fused: 1,
            ..aligned
        };
        let blocks = abi::wp_convert {
            block_amax: tables + 131_072,
            ..fused
        };
        let widened = abi::wp_convert {
            src_type: abi::WP_F16,
            dst_type: abi::WP_F32,
            ..aligned
        };
        let pattern = abi::wp_pattern {
            addr: base,
            bytes: DATA,
            seed: 1,
            ..zeroed()
        };
        let verify = abi::wp_pattern {
            op: abi::WP_VERIFY,
            report: scaler,
            ..pattern
        };
        let inplace = abi::wp_inplace {
            addr: base,
            count: 4096,
            scratch: tables + 65_536,
            dst_type: abi::WP_F16,
            ..zeroed()
        };
        vec![
            Launch::Pattern(pattern),
            Launch::Pattern(verify),
            Launch::Convert(aligned),
            Launch::Convert(rows),
            Launch::Convert(shifted),
            Launch::Convert(table),
            Launch::Convert(fused),
            Launch::Convert(blocks),
            Launch::Convert(widened),
            // So long that the launch asks for facts of its kernel.
            Launch::Convert(abi::wp_convert {
                count: 1 << 19,
                ..widened
            }),
            Launch::Inplace(inplace),
            Launch::Unscale(abi::wp_unscale {
                tiles: tile,
                count: 1,
                scaler,
                ..zeroed()
            }),
            Launch::ScalerUpdate(abi::wp_scaler_update { scaler, ..zeroed() }),
            Launch::ScalerUpdate(abi::wp_scaler_update {
                scaler,
                most: base,
                largest: base + 8,
                top: 8,
                ..zeroed()
            }),
            Launch::Feedback(abi::wp_feedback {
                src: base,
                residual: base + 4096,
                dst: base + 8192,
                scale: scaler,
                inverse: scaler + 4,
                count: 1021,
                type_: abi::WP_F16,
                ..zeroed()
            }),
            Launch::Relocate(relocate),
            Launch::Relocate(abi::wp_relocate {
                max_blocks: 1,
                ..relocate
            }),
            Launch::Slide(slide),
            Launch::Slide(abi::wp_slide {
                max_blocks: 1,
                ..slide
            }),
            Launch::Slide(abi::wp_slide {
                fenced: 1,
                max_blocks: 1,
                ..slide
            }),
            Launch::Patch(patch),
            Launch::Patch(abi::wp_patch {
                max_blocks: 1,
                ..patch
            }),
            Launch::Scatter(abi::wp_scatter {
                words: word,
                count: 1,
            }),
        ]
    }

    /// The thread's last error, which stays what it is.
    fn last_error() -> c_int {
        // SAFETY: takes and touches nothing.
        unsafe { cudaPeekAtLastError() }
    }

    /// Every launch is Ok while the thread's last error is `older`, and leaves it there.
    fn leaves_the_older_error(stream: &Stream, launches: &[Launch], older: c_int) {
        for launch in launches {
            assert_eq!(last_error(), older, "before {}", launch.name());
            // SAFETY: every range lies in memory that lives until the stream is done.
            let outcome = unsafe { stream.device().backend().launch(launch, stream.raw()) };
            assert!(outcome.is_ok(), "{}: {outcome:?}", launch.name());
            assert_eq!(last_error(), older, "behind {}", launch.name());
        }
    }

    /// The first launch of a kernel that is not loaded would wait for all work of the context. The
    /// first of this process are these: one test, so that no other is before it.
    fn no_first_launch_waits_for_a_held_stream(device: &warpool::Device) {
        let memory = common::Memory::new(device, 2 * TABLES);
        let streams = [device.stream().unwrap(), device.stream().unwrap()];
        let launches = every_launch(&streams[0], memory.addr);
        let gate = common::Gate::close(&streams[1]);
        for launch in &launches {
            // SAFETY: every range lies in memory that lives until the stream is done.
            unsafe { device.backend().launch(launch, streams[0].raw()) }.unwrap();
        }
        streams[0].synchronize().unwrap();
        gate.open();
        streams[1].synchronize().unwrap();
    }

    /// At once, and beside an older error of the application's, which stays.
    fn all_kernels_load_again_at_once() {
        let started = std::time::Instant::now();
        let mut kernels = 0;
        // SAFETY: a context of the device's is current to the runtime, and the call writes a number.
        unsafe {
            assert_eq!(cudaSetDevice(9999), INVALID_DEVICE);
            assert_eq!(abi::wp_cuda_load(&raw mut kernels), 0);
            assert_eq!(cudaGetLastError(), INVALID_DEVICE);
        }
        println!(
            "{kernels} kernels, asked for again in {:?}",
            started.elapsed()
        );
        assert!(kernels > 100, "{kernels} kernels in the list");
    }

    fn launches_beside_older_errors(device: &warpool::Device) {
        let memory = common::Memory::new(device, 2 * TABLES);
        let stream = device.stream().unwrap();
        let launches = every_launch(&stream, memory.addr);
        // A call of the application's that failed.
        // SAFETY: the runtime's calls, as documented; no device has the number.
        unsafe {
            let _ = cudaGetLastError();
            assert_eq!(cudaSetDevice(9999), INVALID_DEVICE);
        }
        leaves_the_older_error(&stream, &launches, INVALID_DEVICE);
        stream.synchronize().unwrap();
        // An event of the application's that is not there yet: the stream is held.
        // SAFETY: the event lives until the end.
        unsafe {
            let _ = cudaGetLastError();
            let mut event = null_mut();
            assert_eq!(cudaEventCreate(&raw mut event), 0);
            let gate = common::Gate::close(&stream);
            assert_eq!(cudaEventRecord(event, stream.raw().0 as *mut c_void), 0);
            assert_eq!(cudaEventQuery(event), NOT_READY);
            leaves_the_older_error(&stream, &launches, cudaPeekAtLastError());
            gate.open();
            stream.synchronize().unwrap();
            let _ = cudaGetLastError();
            assert_eq!(cudaEventDestroy(event), 0);
        }
    }

    #[test]
    fn no_launch_waits_for_a_held_stream_or_takes_an_older_error_for_its_own() {
        let started = std::time::Instant::now();
        if let Some(device) = common::cuda() {
            println!("the device was opened in {:?}", started.elapsed());
            common::leaving_nothing(device, |device| {
                no_first_launch_waits_for_a_held_stream(device);
                launches_beside_older_errors(device);
                all_kernels_load_again_at_once();
            });
        }
    }
}
