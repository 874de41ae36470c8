use super::*;

const PEAK: u64 = 1 << 40;

fn pace(configured: Option<f64>, kind: DeviceKind) -> Pace {
    let device = DeviceInfo::new(kind, 0, String::new(), DEVICE_PART << 20, 1);
    Pace::new(configured, &device)
}

#[test]
fn a_pool_grows_by_the_part_of_its_peak_that_is_configured() {
    for (configured, kind) in [
        (Some(0.03), DeviceKind::Cuda),
        (None, DeviceKind::Cuda),
        (None, DeviceKind::Host),
    ] {
        let part = configured.unwrap_or(LEAST_SLACK);
        let slack = pace(configured, kind).slack(PEAK, u64::MAX);
        assert_eq!(slack, (PEAK as f64 * part) as u64);
    }
}

#[test]
fn a_small_pool_of_a_large_device_grows_by_a_part_of_the_device() {
    let pace = pace(None, DeviceKind::Cuda);
    let slack = [0, 1, 2, 3, 16, 100].map(|mib| pace.slack(mib << 20, u64::MAX) >> 10);
    assert_eq!(slack, [512, 512, 512, 768, 1024, 1843]);
}

#[test]
fn caches_keep_more_of_what_a_device_has_to_spare_than_of_the_peaks_part() {
    let pace = pace(None, DeviceKind::Cuda);
    let cached = [0, 4, 16, 100, 1000].map(|mib| pace.cached(mib << 20, u64::MAX) >> 10);
    assert_eq!(cached, [102, 204, 204, 204, 921]);
}

#[test]
fn a_limited_pool_grows_by_half_of_what_its_limit_leaves_beyond_the_peak_and_a_part_of_it() {
    let pace = pace(None, DeviceKind::Cuda);
    let (peak, kept) = (10 << 20, (10 << 20) / LIMIT_PART as i64);
    let slack = |left| pace.slack(peak as u64, (peak + kept + left) as u64) >> 10;
    let left = [-kept - 1, -kept, 0, 400 << 10, 1800 << 10, 8 << 20];
    assert_eq!(left.map(slack), [184, 184, 184, 200, 900, 1024]);
}

#[test]
fn handles_take_a_limit_for_the_memory_of_a_gpu_and_nothing_is_where_slack_is_configured() {
    let bytes = |pace: &Pace, most: u64| (pace.slack(0, most), pace.handle(0, most));
    let device = DEVICE_PART << 20;
    let of = |limit: u64| (512 << 10, limit / DEVICE_PART / SPARE_HANDLES);
    let by_itself = pace(None, DeviceKind::Cuda);
    assert_eq!(bytes(&by_itself, u64::MAX), of(device));
    assert_eq!(bytes(&by_itself, device / 3), of(device / 3));
    for fixed in [
        pace(Some(0.5), DeviceKind::Cuda),
        pace(None, DeviceKind::Host),
    ] {
        assert_eq!(bytes(&fixed, u64::MAX), (0, 0));
        assert_eq!(fixed.handle(PEAK, u64::MAX), 0);
    }
}

#[test]
fn handles_are_a_part_of_what_there_is_to_spare_or_of_the_pool_with_two_thirds_of_a_gpu_to_spare() {
    let pace = pace(None, DeviceKind::Cuda);
    let handle = |held: u64, most| pace.handle(held << 20, most) >> 10;
    let held = [4, 16, 32, 64, 100];
    assert_eq!(
        held.map(|mib| handle(mib, u64::MAX)),
        [102, 256, 512, 1024, 1600]
    );
    let device = DEVICE_PART << 20;
    let whole = [100, 106, 107, 319].map(|mib| handle(mib, device));
    assert_eq!(whole, [1600, 1696, 102, 102]);
    let limited = device / 2;
    assert_eq!(held.map(|mib| handle(mib, limited)), [51; 5]);
}
