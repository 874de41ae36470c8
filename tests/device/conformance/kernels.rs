//! The crate's kernels as queued work.

use crate::common::BackendOf;
use warpool::convert::{Rounding, convert};
use warpool::device::{Addr, Launch};
use warpool::driver::abi::{self, wp_pattern, wp_pattern_report};
use warpool::{Device, Error, Stream};
use warpool::{View, ViewMut};

use crate::common::{Gate, Memory, fill, on_every_device, on_the_simulated_device, read};

on_every_device! {
    a_stamped_block_is_found_whole_and_a_changed_byte_is_found_where_it_lies,
    kernels_run_in_stream_order,
    a_conversion_reads_what_was_queued_before_it,
    a_wrong_launch_is_an_error_by_the_next_wait,
}

on_the_simulated_device! {
    a_stamped_block_is_found_whole_and_a_changed_byte_is_found_where_it_lies,
    a_wrong_launch_is_an_error_by_the_next_wait,
}

/// Queues a pattern operation over a whole range.
fn pattern(stream: &Stream, op: u32, addr: Addr, bytes: u64, seed: u64, report: Addr) {
    let args = wp_pattern {
        addr,
        bytes,
        seed,
        edge: 0,
        report,
        op,
        pad: 0,
    };
    // SAFETY: tests name memory they have mapped and keep it until the stream is done.
    unsafe {
        stream
            .device()
            .backend()
            .launch(&Launch::Pattern(args), stream.raw())
    }
    .unwrap();
}

/// Verified bytes, corrupt bytes and the first corrupt address of the report at `addr`.
fn report_at(stream: &Stream, addr: Addr) -> (u64, u64, u64) {
    let bytes = read(stream, addr, size_of::<wp_pattern_report>());
    let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
    (word(0), word(1), word(2))
}

fn a_stamped_block_is_found_whole_and_a_changed_byte_is_found_where_it_lies(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 20);
    let (report, block) = (memory.addr, memory.addr + 4096);
    for bytes in [1, 15, 16, 17, 4097, 100_003u64] {
        fill(&stream, memory.addr, 0, memory.bytes);
        pattern(&stream, abi::WP_STAMP, block, bytes, 42, 0);
        pattern(&stream, abi::WP_VERIFY, block, bytes, 42, report);
        assert_eq!(report_at(&stream, report), (bytes, 0, 0));
        assert_eq!(
            read(&stream, block + bytes, 64),
            [0; 64],
            "nothing behind the block was written"
        );
        let at = block + bytes / 2;
        let wrong = !read(&stream, at, 1)[0];
        fill(&stream, at, wrong, 1);
        pattern(&stream, abi::WP_VERIFY, block, bytes, 42, report);
        assert_eq!(report_at(&stream, report), (2 * bytes, 1, at));
    }
}

fn kernels_run_in_stream_order(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 20);
    let (report, block) = (memory.addr, memory.addr + 4096);
    fill(&stream, report, 0, 4096);
    // Kernels may be loaded at their first launch, which may wait for the device: not behind a gate.
    pattern(&stream, abi::WP_STAMP, block, 64, 0, 0);
    pattern(&stream, abi::WP_VERIFY, block, 64, 0, report);
    stream.synchronize().unwrap();
    fill(&stream, report, 0, 4096);
    let gate = Gate::close(&stream);
    for seed in 0..50 {
        pattern(&stream, abi::WP_STAMP, block, 70_001, seed, 0);
        pattern(&stream, abi::WP_VERIFY, block, 70_001, seed, report);
        pattern(&stream, abi::WP_POISON, block, 70_001, 0, 0);
    }
    gate.open();
    assert_eq!(report_at(&stream, report), (50 * 70_001, 0, 0));
    assert_eq!(read(&stream, block + 70_000, 1), [0xA5]);
}

fn a_conversion_reads_what_was_queued_before_it(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 1 << 20);
    let (src, dst, count) = (memory.addr, memory.addr + (1 << 19), 100_001u64);
    let queue = |byte: u8| {
        fill(&stream, src, byte, 4 * count);
        // SAFETY: both ranges are mapped until the end of the test, behind the last wait.
        let (from, to) = unsafe {
            (
                View::<f32>::from_raw(src, count as usize),
                ViewMut::<half::f16>::from_raw(dst, count as usize),
            )
        };
        convert(&stream, from.unwrap(), to.unwrap(), Rounding::Nearest).unwrap();
    };
    queue(0);
    assert_eq!(read(&stream, dst, 2), [0, 0]);
    let gate = Gate::close(&stream);
    queue(0x3E);
    fill(&stream, src, 0, 4 * count);
    gate.open();
    let expected = half::f16::from_f32(f32::from_bits(0x3E3E_3E3E)).to_le_bytes();
    assert!(
        read(&stream, dst, 2 * count as usize)
            .chunks(2)
            .all(|value| value == expected)
    );
}

fn a_wrong_launch_is_an_error_by_the_next_wait(device: &Device) {
    let stream = device.stream().unwrap();
    let memory = Memory::new(device, 4096);
    let args = wp_pattern {
        addr: memory.addr,
        bytes: 64,
        seed: 0,
        edge: 0,
        report: 0,
        op: abi::WP_POISON + 1,
        pad: 0,
    };
    // SAFETY: the range is mapped; the operation is one that does not exist.
    let queued = unsafe {
        device
            .backend()
            .launch(&Launch::Pattern(args), stream.raw())
    };
    let error = queued.and_then(|()| stream.synchronize()).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Launch {
                kernel: "wp_pattern",
                ..
            }
        ),
        "{error}"
    );
}
