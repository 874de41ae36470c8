use super::{HandleSize, PoolConfig};

#[test]
fn each_setter_sets_what_it_names_and_leaves_the_rest() {
    let all = PoolConfig::default()
        .limit(1)
        .soft_limit(2)
        .preallocate(3)
        .slack(0.5)
        .remap(false)
        .overlap_bytes(4)
        .handles(HandleSize::Granule)
        .reuse(false, true)
        .cache_bytes(5)
        .slabs(false)
        .sleeps(true)
        .track(true)
        .backtraces(true)
        .record("log");
    let PoolConfig {
        limit,
        soft_limit,
        preallocate,
        slack,
        remap,
        overlap_bytes,
        handles,
        reuse,
        cache_bytes,
        slabs,
        sleeps,
        track,
        backtraces,
        record,
        peers,
    } = all;
    assert_eq!((limit, soft_limit, preallocate), (Some(1), Some(2), 3));
    assert_eq!((slack, remap, overlap_bytes), (Some(0.5), false, 4));
    assert_eq!((handles, cache_bytes), (HandleSize::Granule, Some(5)));
    assert_eq!((reuse.opportunistic, reuse.device_wait), (false, true));
    assert_eq!((slabs, sleeps), (false, true));
    assert_eq!((track, backtraces), (true, true));
    assert_eq!(record, Some("log".into()));
    assert!(peers.is_empty());
}
