//! Calls that may wait for other ranks, with a time limit.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use crate::collective::end_of;
use crate::device::Device;
use crate::error::{Error, Result};

/// The time between two looks at whether the result is still wanted.
const LOOK: Duration = Duration::from_millis(5);

/// Runs `work` with the device's context on a new thread and returns its result; `None` if it takes longer
/// than `patience`, or once it is not `wanted`. It then continues, and its result is passed to `too_late`.
///
/// # Errors
/// [`Error::Os`] if no thread can be started, or the work panicked; any error of the driver.
pub(super) fn in_time<R: Send + 'static>(
    device: &Device,
    patience: Duration,
    wanted: impl Fn() -> bool,
    work: impl FnOnce() -> R + Send + 'static,
    too_late: impl FnOnce(R) + Send + 'static,
) -> Result<Option<R>> {
    // Capacity 0: a result that is no longer waited for comes back to the thread.
    let (give, take) = sync_channel(0);
    let failure = |words| Error::Os {
        call: "a call of NCCL's on a thread of its own",
        words,
    };
    let device = device.clone();
    let its = move || {
        if let Err(late) = give.send(device.in_context(work))
            && let Ok(done) = late.0
        {
            // Without a context there is nothing to clean up either.
            let _ = device.in_context(|| too_late(done));
        }
    };
    std::thread::Builder::new()
        .name(String::from("warpool-nccl"))
        .spawn(its)
        .map_err(|error| failure(error.to_string()))?;
    let deadline = end_of(patience);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match take.recv_timeout(left.min(LOOK)) {
            Ok(done) => return done.map(Some),
            Err(RecvTimeoutError::Timeout) if left.is_zero() || !wanted() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failure(String::from("it panicked")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_done_in_time_is_given_and_what_is_late_goes_where_it_is_told() {
        let device = Device::host().unwrap();
        let (tell, told) = channel();
        let never = |_: i32| panic!("it came in time");
        let always = || true;
        let given = in_time(&device, PATIENCE, always, || 5, never);
        assert_eq!(given.unwrap(), Some(5));
        let (open, gate) = channel::<()>();
        let work = move || {
            let _ = gate.recv();
            7
        };
        let too_late = move |done: i32| tell.send(done).unwrap();
        let given = in_time(&device, Duration::from_millis(5), always, work, too_late);
        assert_eq!(given.unwrap(), None);
        drop(open);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), 7);
    }

    #[test]
    fn a_panic_is_an_error_at_once() {
        let device = Device::host().unwrap();
        let work = || -> i32 { panic!("of a test") };
        let words = in_time(&device, PATIENCE, || true, work, drop).unwrap_err();
        assert!(words.to_string().contains("panicked"), "{words}");
    }
}
