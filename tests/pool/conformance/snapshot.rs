//! The pool's memory piece by piece.

use super::common::{Gate, on_every_device};
use super::{MIB, small_handles, whole};
use warpool::pool::{Piece, PieceState};
use warpool::{Device, Pool};

on_every_device! {
    a_snapshot_names_every_mapped_byte_once,
    a_snapshot_tells_a_graphs_memory,
}

fn a_snapshot_names_every_mapped_byte_once(device: &Device) {
    let granule = device.info().granule;
    let config = small_handles().track(true).preallocate(8 * granule);
    let pool = Pool::new(device, config.cache_bytes(granule)).unwrap();
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let weights = crate::tagged(&pool, &first, 100_000, "weights").unwrap();
    let movable = pool.alloc_movable::<u8>(&second, MIB as usize).unwrap();
    let hole = pool.alloc(&second, 2 * granule).unwrap();
    let other = pool.alloc(&second, 4096).unwrap();
    let gate = Gate::close(&second);
    drop(hole);
    drop(pool.alloc(&first, 64 << 10).unwrap());
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.reserved, pool.stats().reserved.current);
    let physical = snapshot.pieces.iter();
    let physical = physical.filter(|piece| piece.state != PieceState::Retiring);
    assert_eq!(
        physical.map(|piece| piece.bytes).sum::<u64>(),
        snapshot.reserved
    );
    let mut end = 0;
    for piece in &snapshot.pieces {
        assert!(piece.addr >= end, "in address order, apart");
        end = piece.addr + piece.bytes;
    }
    let at = |addr| -> &Piece { snapshot.pieces.iter().find(|p| p.addr == addr).unwrap() };
    let piece = at(weights.addr());
    assert_eq!(
        (piece.state, piece.bytes),
        (PieceState::Live, weights.capacity())
    );
    assert_eq!(
        (piece.stream, piece.tag),
        (Some(first.id()), Some("weights"))
    );
    assert!(!piece.movable);
    assert_eq!(at(other.addr()).tag, Some("untagged"));
    assert_eq!(
        snapshot.bytes(PieceState::Live),
        pool.stats().allocated.current
    );
    assert!(snapshot.pieces.iter().any(|piece| piece.movable));
    assert!(snapshot.bytes(PieceState::Cached) > 0);
    let text = snapshot.to_string();
    assert!(text.contains("weights") && text.contains("hole"), "{text}");
    gate.open();
    drop((weights, movable, other));
    whole(&pool);
}

fn a_snapshot_tells_a_graphs_memory(device: &Device) {
    let pool = Pool::new(device, small_handles()).unwrap();
    let stream = device.stream().unwrap();
    let capture = stream.begin_capture().unwrap();
    drop(pool.alloc(&stream, 3 * MIB).unwrap());
    let graph = capture.end().unwrap();
    let kept: Vec<Piece> = pool.snapshot().pieces;
    let kept = kept
        .iter()
        .filter(|piece| piece.tag == Some("graph memory"));
    assert_eq!(kept.map(|piece| piece.bytes).sum::<u64>(), 3 * MIB);
    drop(graph);
    assert!(
        pool.snapshot()
            .pieces
            .iter()
            .all(|piece| piece.tag.is_none())
    );
}

#[cfg(feature = "cli")]
#[test]
fn a_snapshot_is_valid_json_with_all_its_pieces() {
    let device = super::common::host();
    let pool = Pool::new(&device, small_handles().track(true)).unwrap();
    let stream = device.stream().unwrap();
    let _block = crate::tagged(&pool, &stream, 5000, "a \"quoted\" tag").unwrap();
    let snapshot = pool.snapshot();
    let text = snapshot.to_json();
    assert_eq!(text.matches("\"addr\":").count(), snapshot.pieces.len());
    assert!(text.contains(r#""tag":"a \"quoted\" tag""#), "{text}");
    assert!(
        text.contains(&format!("\"reserved\":{}", snapshot.reserved)),
        "{text}"
    );
}
