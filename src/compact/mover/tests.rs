//! How moves are split into launches, and when the place of a table may be overwritten.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use super::*;
use crate::device::sim::SimConfig;

fn at(src: u64, dst: u64, bytes: u64) -> Move {
    Move { src, dst, bytes }
}

fn mover() -> Mover {
    Mover::new(&Device::host().expect("host"), &Overhead::default()).expect("a mover")
}

/// The moves of each launch that `batch` takes.
fn cut<'a>(mover: &mut Mover, batch: &'a Batch) -> Vec<&'a [Move]> {
    let parts = mover.parts(batch, 0);
    parts.into_iter().map(|part| part.moves).collect()
}

fn lengths(mover: &mut Mover, batch: &Batch) -> Vec<usize> {
    cut(mover, batch).iter().map(|part| part.len()).collect()
}

#[test]
fn a_part_holds_what_one_table_holds_and_every_move_is_in_one_part() {
    let mut mover = mover();
    let most = (mover.place_bytes / MOVE_BYTES) as usize;
    let small: Vec<Move> = (0..3 * most as u64)
        .map(|i| at(i << 20, i << 10, 512))
        .collect();
    let large: Vec<Move> = (0..100)
        .map(|i| at(i << 40, 0, mover.place_bytes << 14))
        .collect();
    for moves in [small, large] {
        let batch = Batch::Disjoint(moves.clone());
        let parts = cut(&mut mover, &batch);
        assert!(parts.len() > 1);
        for part in &parts {
            let table = MoveTable::new(part).expect("a table");
            assert!(table.bytes() as u64 <= mover.place_bytes, "{}", part.len());
        }
        assert_eq!(parts.concat(), moves);
    }
}

#[test]
fn parts_of_a_slide_fit_the_flags_and_go_in_its_direction() {
    let mut mover = mover();
    for upward in [false, true] {
        let moves: Vec<Move> = (1..40u64)
            .map(|i| at(i << 34, (i << 34) + 512 * u64::from(upward), 1 << 20))
            .collect();
        let batch = Batch::Slide { upward, moves };
        let parts = cut(&mut mover, &batch);
        assert!(parts.len() > 1);
        for part in &parts {
            let table = SlideTable::new(part, upward).expect("a table");
            assert!(table.scratch_bytes() <= mover.flags_bytes());
            let args = table.args(0, 0, 0).expect("few moves");
            let tiles = (args.hi - args.lo).div_ceil(u64::from(abi::WP_SLIDE_TILE));
            assert!(table.scratch_bytes() > 4 * tiles, "a flag a tile");
        }
        let ascending = parts.windows(2).all(|two| two[0][0].src < two[1][0].src);
        let descending = parts.windows(2).all(|two| two[0][0].src > two[1][0].src);
        assert!(if upward { descending } else { ascending });
    }
}

/// A slide of three blocks of 1 MiB downwards, with `void` bytes between the second and the third.
fn three(void: u64) -> Vec<Move> {
    const MIB: u64 = 1 << 20;
    let third = 3 * MIB + void;
    [MIB, 2 * MIB, third]
        .map(|src| at(src, src - 512, MIB))
        .to_vec()
}

#[test]
fn a_slide_whose_flags_there_is_memory_for_is_one_part_up_to_a_void() {
    for (void, expected) in [(0, vec![3]), (VOID, vec![3]), (VOID + 512, vec![2, 1])] {
        let mut mover = mover();
        let batch = Batch::Slide {
            upward: false,
            moves: three(void),
        };
        let parts = cut(&mut mover, &batch);
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        assert_eq!(lengths, expected, "{void} bytes between");
    }
}

#[test]
fn a_span_ends_at_a_void() {
    assert_eq!(longest_span(&three(0)), 3 << 20);
    assert_eq!(longest_span(&three(VOID)), (3 << 20) + VOID);
    assert_eq!(longest_span(&three(VOID + 512)), 2 << 20);
}

#[test]
fn a_block_larger_than_the_flags_allow_is_one_part() {
    let mut mover = mover();
    let behind = (1 << 20) + (512 << 30);
    let moves = vec![at(1 << 20, 0, 512 << 30), at(behind, 512 << 30, 512)];
    let batch = Batch::Slide {
        upward: false,
        moves,
    };
    let parts = cut(&mut mover, &batch);
    assert_eq!(
        parts.iter().map(|part| part.len()).collect::<Vec<_>>(),
        [1, 1]
    );
}

#[test]
fn a_part_ends_where_its_table_is_full_and_no_move_before() {
    let mut mover = mover();
    let room = mover.place_bytes;
    // The index of one large move leaves space for `more` small moves and `beside` bytes.
    for (more, beside) in [(9, 0), (9, 4), (9, 20), (9, 24), (300, 0)] {
        let index = (room - 4 - MOVE_BYTES - more * (MOVE_BYTES + 4) - beside) / 4;
        let large = at(1 << 45, 0, index * GROUP_SPAN);
        let small = (0..3 * room / MOVE_BYTES).map(|i| at(i << 10, 1 << 40 | i << 10, 512));
        let batch = Batch::Disjoint(std::iter::once(large).chain(small).collect());
        let lengths = lengths(&mut mover, &batch);
        let first = 1 + more as usize + usize::from(beside >= MOVE_BYTES + 4);
        assert_eq!(lengths[0], first, "{more} and {beside} bytes");
        // The first table takes no space of the second.
        assert_eq!(lengths[1] as u64, (room - 4) / (MOVE_BYTES + 4));
    }
}

#[test]
fn a_part_of_a_slide_ends_where_its_flags_do_or_its_table_is_full() {
    let mut mover = mover();
    mover.flags(MOST_FLAGS).expect("flags");
    let span = (MOST_FLAGS / 4 - FLAGS_BESIDE) * u64::from(abi::WP_SLIDE_TILE);
    let half = span / 2;
    for (last, expected) in [(half, vec![2, 1]), (half + 16, vec![1, 2])] {
        let starts = [1 << 20, (1 << 20) + half, (1 << 20) + half + last];
        let moves = starts.into_iter().zip([half, last, 512]);
        let moves = moves
            .map(|(src, bytes)| at(src, src - 512, bytes))
            .collect();
        let upward = false;
        let batch = Batch::Slide { upward, moves };
        assert_eq!(lengths(&mut mover, &batch), expected, "{last}");
    }
    let most = mover.most_ranges();
    assert_eq!(most as u64, mover.place_bytes / 24);
    let moves = (1..=most as u64 + 1).map(|i| at(i << 9, (i << 9) - 16, 512));
    let (upward, moves) = (false, moves.collect());
    let batch = Batch::Slide { upward, moves };
    assert_eq!(lengths(&mut mover, &batch), [most, 1]);
}

#[test]
fn flags_grow_to_what_a_slide_asks_for_or_to_twice_what_there_are_and_stay() {
    let mut mover = mover();
    let before = mover.flags_bytes();
    let first = mover.flags(before).expect("flags");
    assert_eq!((mover.flags_bytes(), mover.flags.len()), (before, 1));
    let twice = mover.flags(before + 1).expect("flags");
    assert_ne!(first, twice);
    assert_eq!(mover.flags_bytes(), 2 * before);
    let more = mover.flags(5 * before).expect("flags");
    assert_eq!((mover.flags_bytes(), mover.flags.len()), (5 * before, 3));
    assert_eq!(mover.flags(0).expect("flags"), more);
    mover.flags(5 * before + 1).expect("flags");
    assert_eq!(mover.flags_bytes(), 10 * before);
}

#[test]
fn flags_are_made_without_a_wait_for_the_device() {
    for seed in 0..20 {
        let device = Device::sim(&SimConfig::default().with_seed(seed)).expect("a device");
        let mut mover = Mover::new(&device, &Overhead::default()).expect("a mover");
        let memory = Scratch::zeroed(&device, 1).expect("memory");
        let other = device.stream().expect("a stream");
        // SAFETY: the memory is mapped until the stream is done.
        unsafe { (device.backend()).fill(memory.addr(), 7, 1, other.raw()) }.expect("queued");
        let bytes = 3 * mover.flags_bytes();
        mover.flags(bytes).expect("flags");
        // SAFETY: as above; nothing runs while it is read.
        let seen = unsafe { (memory.addr() as *const u8).read_volatile() };
        assert_eq!(seen, 0, "queued work ran under seed {seed}");
        other.synchronize().expect("it runs");
        mover.stream.synchronize().expect("it runs");
        let flags = mover.flags[1].read(bytes as usize).expect("it is read");
        assert!(flags.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_slide_asks_for_flags_of_what_it_spans_or_of_what_the_pool_holds() {
    let flags = |span: u64| (span / u64::from(abi::WP_SLIDE_TILE) + FLAGS_BESIDE) * 4;
    // Flags grow in multiples of the smallest mapping.
    let step = mover().flags_bytes();
    let spanned = (step / 4) * u64::from(abi::WP_SLIDE_TILE);
    let most = (1 << 20) * spanned;
    for (bytes, reserved, grown) in [
        (spanned - (spanned >> 8), most, step),
        (spanned, 0, 2 * step),
        (spanned, 3 * spanned, flags(3 * spanned)),
        (9 * spanned, 3 * spanned, flags(9 * spanned)),
        (9 * spanned, most, MOST_FLAGS),
    ] {
        let mut mover = mover();
        let (upward, moves) = (false, vec![at(512, 0, bytes)]);
        mover.parts(&Batch::Slide { upward, moves }, reserved);
        let grown = grown.next_multiple_of(step);
        assert_eq!(mover.flags_bytes(), grown, "{bytes} of {reserved}");
    }
}

/// Bytes of device memory as they are once everything queued on `stream` is done.
fn read(stream: &Stream, addr: Addr, bytes: usize) -> Vec<u8> {
    // SAFETY: tests name memory of the mover, which outlives the call.
    unsafe { stream.core().read(addr, bytes) }.expect("read")
}

#[test]
fn tables_of_several_parts_stand_one_behind_the_other_in_a_place() {
    let mut mover = mover();
    let base = 1 << 44;
    let slide = |i: u64| {
        vec![
            at(i << 30, (i << 30) - 512, 512),
            at((i << 30) + 1024, i << 30, 512),
        ]
    };
    let disjoint = |i: u64| vec![at(i << 30, i << 20, 16 << (10 * (i % 2)))];
    let moves: Vec<(Option<bool>, Vec<Move>)> = (1..9)
        .map(|i| match i % 3 {
            0 => (Some(false), slide(i)),
            _ => (None, disjoint(i)),
        })
        .collect();
    let parts: Vec<Part> = moves
        .iter()
        .map(|(slide, moves)| Part {
            slide: *slide,
            moves,
        })
        .collect();
    let launches = mover.prepare(&parts, base).expect("tables");
    assert_eq!(launches.len(), parts.len());
    let mut end = mover.tables.addr();
    for (launch, part) in launches.iter().zip(&parts) {
        let based: Vec<Move> = part.moves.iter().map(|m| based(m, base)).collect();
        let (at, image) = match launch {
            Launch::Relocate(args) => {
                let table = MoveTable::new(&based).expect("a table");
                assert_eq!(args.max_blocks, 0, "no bound");
                (args.moves, table.image())
            }
            Launch::Slide(args) => {
                let table = SlideTable::new(&based, false).expect("a table");
                assert_eq!((args.max_blocks, args.count), (0, 2));
                (args.moves, table.image().to_vec())
            }
            other => panic!("{other:?}"),
        };
        assert!(at >= end && at < end + TABLE_ALIGN as u64, "side by side");
        assert_eq!(at % TABLE_ALIGN as u64, 0);
        assert_eq!(read(&mover.stream, at, image.len()), image);
        end = at + image.len() as u64;
    }
}

#[test]
fn only_the_first_tables_are_put_in_place_where_a_place_has_no_room_for_all() {
    let mut mover = mover();
    // A slide takes 24 bytes per move. The counts fill a place exactly, or exceed it by 48 bytes.
    let most = mover.most_ranges() as u64;
    let slide = |count: u64| -> Vec<Move> {
        let moves = (1..=count).map(|i| at(i << 9, (i << 9) - 16, 512));
        moves.collect()
    };
    let slack = mover.place_bytes - 24 * most;
    for (first, second, launches) in [(most - 2, 2, 2), (most - 2, 4, 1), (most, 1, 1)] {
        // After an odd number of moves, the next table has to be aligned by 8 bytes.
        assert!((24 * first) % 16 == 0 || slack < 16);
        let moves = [slide(first), slide(second)];
        let parts = moves.each_ref().map(|moves| Part {
            slide: Some(false),
            moves,
        });
        let made = mover.prepare(&parts, 1 << 40).expect("tables");
        assert_eq!(made.len(), launches, "{first} and {second}");
    }
}

/// Blocks the stream until the sender is dropped.
fn closed(stream: &Stream) -> Sender<()> {
    let (open, wait) = channel();
    let work = Box::new(move || {
        let _ = wait.recv();
    });
    let backend = stream.device().backend();
    backend.host_call(stream.raw(), work).expect("a host call");
    open
}

/// Makes the moving stream read the word at `addr`, in place of a launch.
fn reads(mover: &Mover, addr: Addr, word: &mut u64) {
    let backend = mover.stream.device().backend();
    let to = std::ptr::from_mut(word).cast();
    // SAFETY: the word outlives the wait at the test's end, and the place has as many bytes.
    unsafe { backend.copy_out(to, addr, 8, mover.stream.raw()) }.expect("a copy");
}

#[test]
fn a_place_is_written_again_only_behind_the_launch_that_reads_it() {
    let mut mover = mover();
    let mut seen = [0; 3 * PLACES];
    let open = closed(&mover.stream);
    for (at, word) in (1u64..).zip(&mut seen) {
        let addr = mover.upload(at.to_le_bytes().to_vec()).expect("an upload");
        reads(&mover, addr, word);
    }
    // Leaves time for an upload that wrongly does not wait.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(20) && !mover.upload.is_idle().expect("a query") {
        std::thread::yield_now();
    }
    drop(open);
    mover.stream.synchronize().expect("the reads");
    assert!(seen.iter().copied().eq(1..=3 * PLACES as u64), "{seen:?}");
}

#[test]
fn an_upload_waits_for_the_launch_that_read_its_place_and_for_no_later_one() {
    for round in 0..2 * PLACES {
        let mut mover = mover();
        let mut seen = [0; 3 * PLACES];
        let (done, queued) = seen.split_at_mut(round + 1);
        let upload = |mover: &mut Mover| mover.upload(vec![1; 8]).expect("an upload");
        for word in done {
            let addr = upload(&mut mover);
            reads(&mover, addr, word);
        }
        // Everything queued from here on is blocked, except the upload of the next table.
        let mut addr = upload(&mut mover);
        let open = closed(&mover.stream);
        for word in &mut queued[..PLACES - 2] {
            reads(&mover, addr, word);
            addr = upload(&mut mover);
        }
        reads(&mover, addr, &mut queued[PLACES - 2]);
        // Overwrites the place that was read last before the stream was blocked.
        let addr = mover.upload(vec![2; 8]).expect("an upload");
        let begin = Instant::now();
        while !mover.upload.is_idle().expect("a query") {
            assert!(begin.elapsed() < Duration::from_secs(20), "round {round}");
            std::thread::yield_now();
        }
        drop(open);
        assert_eq!(read(&mover.stream, addr, 8), [2; 8]);
    }
}

#[test]
fn words_are_stored_whatever_their_number() {
    let mut mover = mover();
    let a_place = (mover.place_bytes / WORD_BYTES) as usize;
    let memory =
        Scratch::zeroed(mover.stream.device(), 8 * (2 * a_place as u64 + 1)).expect("memory");
    for count in [1, a_place, a_place + 1, 2 * a_place + 1] {
        let words: Vec<[u64; 2]> = (0..count as u64)
            .map(|at| [memory.addr() + 8 * at, at << 32 | count as u64])
            .collect();
        // SAFETY: the addresses lie in `memory`, and each occurs once.
        unsafe { mover.store(&words) }.expect("stored");
        let seen = read(&mover.stream, memory.addr(), 8 * count);
        let said: Vec<u64> = words.iter().map(|word| word[1]).collect();
        assert!(seen == bytemuck::cast_slice::<u64, u8>(&said), "{count}");
    }
    mover.stream.synchronize().expect("the stores");
}
