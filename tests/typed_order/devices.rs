//! A view knows its device.

use super::common::on_every_device;
use super::{World, common};
use warpool::convert::{
    Conversion, ConvertTable, Fused, GradScaler, Gradients, Rounding, Rows, RowsMut, ScalerConfig,
    convert, convert_fused, convert_rows,
};
use warpool::{Device, Error};

on_every_device! {
    a_stream_of_another_device_is_refused_by_every_operation,
    one_row_with_any_pitch_is_converted,
}

fn refused<T>(outcome: warpool::Result<T>, what: &str) {
    match outcome {
        Err(Error::Invalid { what: "stream", .. }) => {}
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what} is taken"),
    }
}

fn a_stream_of_another_device_is_refused_by_every_operation(device: &Device) {
    let elsewhere = common::host();
    let (foreign, world) = (elsewhere.stream().unwrap(), World::new(device));
    let (mut src, mut dst) = (world.full(1.0), world.halves());
    let nearest = Conversion::from(Rounding::Nearest);
    let outcome = convert(&foreign, src.view(), dst.view_mut(), nearest);
    refused(outcome, "convert");
    let rows = Rows::new(src.view(), 10, 10, 10).unwrap();
    let rows_mut = RowsMut::new(dst.view_mut(), 10, 10, 10).unwrap();
    refused(
        convert_rows(&foreign, rows, rows_mut, nearest),
        "convert_rows",
    );
    let plain = Fused::default();
    let outcome = convert_fused(&foreign, src.view(), dst.view_mut(), nearest, plain);
    refused(outcome, "convert_fused");

    // Memory of the stream's own device, but for one part.
    let there = World::new(&elsewhere);
    let (mut near, mut flag) = (there.full(1.0), there.halves());
    let mut far = world.pool.alloc_typed::<u32>(&world.home, 1).unwrap();
    let fused = Fused::default().flag(far.view_mut());
    let outcome = convert_fused(&foreign, near.view(), flag.view_mut(), nearest, fused);
    refused(outcome, "a flag elsewhere");

    let config = ScalerConfig::default();
    let mut scaler = GradScaler::new(&world.pool, &world.home, config).unwrap();
    refused(scaler.update(&foreign), "update");
    refused(scaler.read(&foreign), "read");
    let tensors = vec![near.view_mut()];
    let built = Gradients::new(&world.pool, &world.home, tensors);
    refused(built, "gradients of another device than their table");
    let mut gradients = Gradients::new(&world.pool, &world.home, vec![src.view_mut()]).unwrap();
    refused(scaler.unscale(&foreign, &mut gradients), "unscale");
    let pairs = vec![(src.view(), dst.view_mut())];
    let mut table = ConvertTable::new(&world.pool, &world.home, pairs).unwrap();
    refused(table.convert(&foreign, nearest), "a table");
    let pairs = vec![(src.view(), dst.view_mut())];
    let built = ConvertTable::new(&there.pool, &there.home, pairs);
    refused(built, "a table of another device than its tensors");
    let kernel = foreign.kernel("own").reads(src.view());
    refused(kernel.launch(|_| panic!("called")), "a kernel");
    world.home.synchronize().unwrap();
}

fn one_row_with_any_pitch_is_converted(device: &Device) {
    let world = World::new(device);
    let (src, mut dst) = (world.full(1.5), world.halves());
    for rows in [1, 0] {
        let from = Rows::new(src.view(), rows, 100, usize::MAX).unwrap();
        let into = RowsMut::new(dst.view_mut(), rows, 100, usize::MAX - 1).unwrap();
        convert_rows(&world.home, from, into, Rounding::Nearest).unwrap();
    }
    let from = Rows::new(src.view(), 0, usize::MAX, usize::MAX).unwrap();
    let into = RowsMut::new(dst.view_mut(), 0, usize::MAX, usize::MAX).unwrap();
    convert_rows(&world.home, from, into, Rounding::Nearest).unwrap();
    super::assert_all(&dst.download().unwrap()[..100], 1.5, "one row");
}
