use super::{Epoch, FRESH};

#[test]
fn epochs_of_one_stream_join_to_the_later_and_those_of_two_do_not() {
    let [early, late, other] = [(1, 3), (1, 5), (2, 4)].map(|(s, t)| Epoch::new(s, t));
    assert_eq!([early.joined(late), late.joined(early)], [Some(late); 2]);
    assert_eq!(early.joined(other), None);
    assert_eq!([1, 2].map(|stream| early.is_own(stream)), [true, false]);
    assert!(Epoch::PAST.is_own(7) && Epoch::PAST.stream == FRESH);
}
