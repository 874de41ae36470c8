//! Tables of many tensors, and loss scaling.

use super::common::{Gate, on_every_device};
use super::{LEN, World, assert_all, assert_singles, assert_untouched, settle, to_half};
use warpool::Device;
use warpool::convert::{
    ConvertTable, E4m3, GradScaler, Gradients, Quantize, Rounding, ScalerConfig, ScalesMut,
    quantize,
};

on_every_device! {
    a_table_used_on_another_stream_is_freed_behind_that,
    tensors_of_a_table_are_freed_behind_its_launches,
    a_scaler_used_on_another_stream_is_freed_behind_that,
    a_scaler_is_updated_behind_what_other_streams_found,
    the_maximum_of_what_is_quantised_is_read_behind_that,
}

fn a_table_used_on_another_stream_is_freed_behind_that(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(&world.pool, &world.home, pairs).unwrap();
    let gate = Gate::close(&world.other);
    table.convert(&world.other, Rounding::Nearest).unwrap();
    drop(table);
    let _next = world.small_blocks();
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_all(&dst.download().unwrap(), 1.5, "the table was overwritten");
}

fn tensors_of_a_table_are_freed_behind_its_launches(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(&world.pool, &world.home, pairs).unwrap();
    table.convert(&world.home, Rounding::Nearest).unwrap();
    let gate = Gate::close(&world.other);
    table.convert(&world.other, Rounding::Nearest).unwrap();
    drop(table);
    drop(dst);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

/// By itself: the table's memory, and the pool with it, is never given back.
#[test]
fn a_table_that_was_forgotten_still_orders_its_tensors() {
    let world = World::new(&super::common::host());
    let (src, mut dst) = (world.full(1.5), world.halves());
    let (addr, bytes) = (dst.addr(), dst.block().bytes());
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(&world.pool, &world.home, pairs).unwrap();
    let gate = Gate::close(&world.other);
    table.convert(&world.other, Rounding::Nearest).unwrap();
    std::mem::forget(table);
    drop(dst);
    let next = world.next_owner(bytes, addr);
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_untouched(&world.home, &next);
}

fn the_maximum_of_what_is_quantised_is_read_behind_that(device: &Device) {
    let world = World::new(device);
    let (src, scale) = (world.full(1.5), world.full(1.0));
    let mut codes = world.pool.alloc_typed::<E4m3>(&world.home, LEN).unwrap();
    let (mut most, mut seen) = (world.full(0.0), world.halves());
    let gate = Gate::close(&world.other);
    let how = Quantize::default().amax(most.view_mut());
    let scales = ScalesMut::Tensor(scale.view());
    quantize(&world.other, src.view(), codes.view_mut(), scales, how).unwrap();
    to_half(&world.third, most.view(), seen.view_mut());
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    assert_eq!(seen.download().unwrap()[0].to_f32(), 1.5);
}

fn a_scaler_used_on_another_stream_is_freed_behind_that(device: &Device) {
    let world = World::new(device);
    let mut values = world.full(4.0);
    let config = ScalerConfig::default();
    let mut scaler = GradScaler::new(&world.pool, &world.home, config).unwrap();
    let mut gradients = Gradients::new(&world.pool, &world.home, vec![values.view_mut()]).unwrap();
    let gate = Gate::close(&world.other);
    scaler.unscale(&world.other, &mut gradients).unwrap();
    drop((scaler, gradients));
    let _next = world.small_blocks();
    settle(&world.home);
    gate.open();
    world.other.synchronize().unwrap();
    assert_singles(&values, 4.0 / 65536.0);
}

fn a_scaler_is_updated_behind_what_other_streams_found(device: &Device) {
    let world = World::new(device);
    let mut values = world.full(f32::INFINITY);
    let config = ScalerConfig::default();
    let mut scaler = GradScaler::new(&world.pool, &world.home, config).unwrap();
    let mut gradients = Gradients::new(&world.pool, &world.home, vec![values.view_mut()]).unwrap();
    let gate = Gate::close(&world.other);
    scaler.unscale(&world.other, &mut gradients).unwrap();
    scaler.update(&world.third).unwrap();
    settle(&world.third);
    gate.open();
    world.other.synchronize().unwrap();
    let state = scaler.read(&world.home).unwrap().wait().unwrap();
    assert_eq!((state.scale, state.updates, state.skipped), (32768.0, 1, 1));
}
