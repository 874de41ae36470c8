use super::*;

const PEAK: u64 = 1 << 40;
const ROOMY: u64 = (PEAK as f64 * ROOMY_SLACK) as u64;

fn pace(configured: Option<f64>, kind: DeviceKind) -> Pace {
    let device = DeviceInfo::new(kind, 0, String::new(), DEVICE_PART << 20, 1);
    Pace::new(configured, &device)
}

#[test]
fn handles_mapped_elsewhere_earn_a_part_of_their_bytes_up_to_a_roomy_slack() {
    let mut pace = pace(None, DeviceKind::Cuda);
    let least = pace.slack(PEAK, u64::MAX);
    assert_eq!(least, (PEAK as f64 * LEAST_SLACK) as u64);
    for handle in [1 << 20, 1 << 30, 3 << 30] {
        let before = pace.slack(PEAK, u64::MAX);
        pace.remapped(handle * EARNED_PART);
        assert_eq!(pace.slack(PEAK, u64::MAX), before + handle);
    }
    for bytes in [(ROOMY - least) * EARNED_PART, u64::MAX, 1] {
        pace.remapped(bytes);
        assert_eq!(pace.slack(PEAK, u64::MAX), ROOMY, "no more than that");
    }
}

#[test]
fn what_is_configured_stays_and_so_does_the_slack_where_no_driver_maps() {
    for (configured, kind) in [(Some(0.03), DeviceKind::Cuda), (None, DeviceKind::Host)] {
        let mut pace = pace(configured, kind);
        let first = pace.slack(PEAK, u64::MAX);
        pace.remapped(u64::MAX);
        assert_eq!(pace.slack(PEAK, u64::MAX), first);
        let part = configured.unwrap_or(LEAST_SLACK);
        assert_eq!(first, (PEAK as f64 * part) as u64);
    }
}

#[test]
fn a_small_pool_of_a_large_device_grows_by_a_part_of_the_device() {
    let mut pace = pace(None, DeviceKind::Cuda);
    let most = u64::MAX;
    let slack = |pace: &Pace| [0, 10, 20, 55, 100].map(|mib| pace.slack(mib << 20, most) >> 20);
    assert_eq!(slack(&pace), [1, 1, 1, 1, 1]);
    pace.remapped(u64::MAX);
    assert_eq!(slack(&pace), [1, 1, 2, 5, 10]);
}

#[test]
fn a_limit_is_taken_for_the_memory_of_a_gpu_and_nothing_is_where_slack_is_configured() {
    let bytes = |pace: &Pace, most: u64| (pace.slack(0, most), pace.handle(0, most));
    let of = |device: u64| {
        let spare = device / DEVICE_PART;
        (spare, spare / SPARE_HANDLES)
    };
    let device = DEVICE_PART << 20;
    let by_itself = pace(None, DeviceKind::Cuda);
    assert_eq!(bytes(&by_itself, u64::MAX), of(device));
    assert_eq!(bytes(&by_itself, device / 3), of(device / 3));
    let mut refused = pace(None, DeviceKind::Cuda);
    refused.exhausted();
    for fixed in [
        pace(Some(0.5), DeviceKind::Cuda),
        pace(None, DeviceKind::Host),
        refused,
    ] {
        assert_eq!(bytes(&fixed, u64::MAX), (0, 0));
        assert_eq!(fixed.handle(PEAK, u64::MAX), 0);
    }
}

#[test]
fn handles_are_a_part_of_what_there_is_to_spare_or_of_the_pool_where_that_is_more_and_no_limit_near()
 {
    let pace = pace(None, DeviceKind::Cuda);
    let handle = |held: u64, most| pace.handle(held << 20, most) >> 10;
    let held = [12, 16, 32, 64, 100];
    assert_eq!(
        held.map(|mib| handle(mib, u64::MAX)),
        [204, 256, 512, 1024, 1600]
    );
    let device = DEVICE_PART << 20;
    assert_eq!(held.map(|mib| handle(mib, device))[2], 512);
    let limited = device / 2;
    assert_eq!(held.map(|mib| handle(mib, limited)), [102; 5]);
}
