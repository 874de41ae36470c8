use super::*;

#[test]
fn a_view_of_a_misaligned_address_is_an_error() {
    // SAFETY: nothing is queued with the view.
    let error = unsafe { View::<f32>::from_raw(0x1002, 4) }
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("0x1002") && error.contains("multiple of 4"),
        "{error}"
    );
}

#[test]
fn a_range_that_wraps_around_is_an_error() {
    // SAFETY: nothing is queued with the view.
    assert!(unsafe { View::<f64>::from_raw(u64::MAX - 7, 1) }.is_err());
}

#[test]
fn a_slice_keeps_the_element_size() {
    // SAFETY: nothing is queued with the view.
    let view = unsafe { View::<f64>::from_raw(0x1000, 10) }.unwrap();
    let part = view.slice(3..5).unwrap();
    assert_eq!((part.addr(), part.len(), part.bytes()), (0x1018, 2, 16));
    assert_eq!(view.slice(4..=9).map(|part| part.len()).unwrap(), 6);
    for empty in [view.slice(10..), view.slice(..0), view.slice(4..4)] {
        assert!(empty.unwrap().is_empty());
    }
    let behind = view.slice((Bound::Excluded(3), Bound::Included(4)));
    assert_eq!(behind.unwrap().addr(), 0x1020);
    let last = (Bound::Excluded(usize::MAX), Bound::Unbounded);
    assert!(view.slice(last).is_err());
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = view.slice(6..5);
    assert!(reversed.is_err());
    assert!(view.slice(5..11).is_err() && view.slice(..=10).is_err());
    assert!(view.slice(11..).is_err() && view.slice(..=usize::MAX).is_err());
    assert!(view.split_at(11).is_err());
}

#[test]
fn the_error_of_a_range_says_it_as_the_caller_wrote_it() {
    // SAFETY: nothing is queued with the view.
    let view = unsafe { View::<f64>::from_raw(0x1000, 10) }.unwrap();
    let said = |part: Result<View<'_, f64>>| part.unwrap_err().to_string();
    assert_eq!(said(view.slice(5..11)), "range: 5..11 is not within 0..10");
    assert_eq!(
        said(view.slice(5..=10)),
        "range: 5..=10 is not within 0..10"
    );
    assert_eq!(said(view.slice(11..)), "range: 11.. is not within 0..10");
    assert_eq!(said(view.slice(..11)), "range: ..11 is not within 0..10");
    let last = usize::MAX;
    let ends = said(view.slice(..=last));
    assert_eq!(ends, format!("range: ..={last} is not within 0..10"));
    let behind = said(view.slice((Bound::Excluded(10), Bound::Unbounded)));
    assert_eq!(behind, "range: 11.. is not within 0..10");
    let last = said(view.slice((Bound::Excluded(usize::MAX), Bound::Unbounded)));
    assert_eq!(last, "range: 18446744073709551616.. is not within 0..10");
}

#[test]
fn rows_that_overlap_or_reach_beyond_the_view_are_an_error() {
    // SAFETY: nothing is queued with the view.
    let view = unsafe { View::<f32>::from_raw(0x1000, 100) }.unwrap();
    assert!(Rows::new(view, 10, 10, 10).is_ok());
    assert!(Rows::new(view, 10, 10, 9).is_err());
    assert!(Rows::new(view, 10, 11, 11).is_err());
    assert!(Rows::new(view, usize::MAX, 1, usize::MAX).is_err());
}

#[test]
fn a_download_of_more_than_the_host_can_hold_is_an_error() {
    let stream = crate::Device::host().unwrap().stream().unwrap();
    for len in [1 << 50, usize::MAX >> 4] {
        // SAFETY: nothing is queued with the view, as the host has no memory for the elements.
        let view = unsafe { View::<u64>::from_raw(0x1000, len) }.unwrap();
        let error = view.download(&stream).unwrap_err().to_string();
        assert!(error.contains(&format!("{len} elements")), "{error}");
    }
}
