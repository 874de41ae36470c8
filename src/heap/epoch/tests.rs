use super::{Epoch, FRESH};

#[test]
fn work_of_the_stream_itself_and_past_work_need_no_wait() {
    let epoch = Epoch::new(1, 3);
    assert_eq!([1, 2].map(|stream| epoch.is_own(stream)), [true, false]);
    assert!(Epoch::PAST.is_own(7) && Epoch::PAST.stream == FRESH);
}
