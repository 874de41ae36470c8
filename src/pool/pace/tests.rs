use super::*;

const MS: Duration = Duration::from_millis(1);

const PEAK: u64 = 1 << 40;
const ROOMY: u64 = (PEAK as f64 * ROOMY_SLACK) as u64;

fn pace(configured: Option<f64>, kind: DeviceKind) -> Pace {
    let device = DeviceInfo::new(kind, 0, String::new(), DEVICE_PART << 20, 1);
    Pace::new(configured, &device)
}

/// A step of the program: so long, with so much of it spent.
fn after(pace: &mut Pace, whole: Duration, spent: Duration) -> bool {
    pace.remapped(spent, pace.last + whole);
    pace.slack(PEAK, u64::MAX) == ROOMY
}

#[test]
fn a_pool_that_remaps_all_the_time_grows_by_more_and_one_in_a_burst_does_not() {
    let mut pace = pace(None, DeviceKind::Cuda);
    assert!(!after(&mut pace, MS, PACE_FULL), "a burst");
    assert!(after(&mut pace, MS, MS));
    assert!(after(&mut pace, Duration::from_secs(3600), MS), "it stays");
    let mut pace = self::pace(None, DeviceKind::Cuda);
    assert!(
        !after(&mut pace, Duration::ZERO, PACE_FULL),
        "a full account"
    );
    assert!(after(&mut pace, Duration::ZERO, Duration::from_nanos(1)));
}

#[test]
fn a_hundredth_of_the_time_is_free_and_idle_time_is_not_saved_up() {
    let mut pace = pace(None, DeviceKind::Cuda);
    (0..10_000).for_each(|_| assert!(!after(&mut pace, PACE_PART * MS, MS)));
    assert!(!after(&mut pace, Duration::from_secs(3600), MS));
    assert!(after(&mut pace, MS, 2 * PACE_FULL));
}

#[test]
fn what_is_configured_stays_and_so_does_the_slack_where_no_driver_maps() {
    for (configured, kind) in [(Some(0.03), DeviceKind::Cuda), (None, DeviceKind::Host)] {
        let mut pace = pace(configured, kind);
        let first = pace.slack(PEAK, u64::MAX);
        after(&mut pace, MS, 1000 * PACE_FULL);
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
    after(&mut pace, MS, 2 * PACE_FULL);
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
