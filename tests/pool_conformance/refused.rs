//! Requests while the device refuses a call: out of memory sends them down the ladder, and anything
//! else is what they answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::common::on_every_device;
use super::common::watched::{MADE_TO_FAIL, OUT_OF_MEMORY, Watched};
use super::{limited, whole};
use warpool::pool::Relief;
use warpool::{Block, Device, Error, Pool, Stream};

on_every_device! {
    a_device_without_memory_for_a_call_sends_the_request_to_the_application,
    any_other_failure_of_a_call_is_what_the_request_answers,
}

/// A pool that lacks a call of the device for the request of two granules that follows.
struct Lacking {
    watched: Arc<Watched>,
    pool: Pool,
    stream: Stream,
    asked: Arc<AtomicU64>,
    /// On another stream, where there are two.
    _others: Vec<Block>,
    granule: u64,
}

impl Lacking {
    /// With idle handles apart, or none; alone on the pool, or not.
    fn new(device: &Device, idle: bool, alone: bool) -> Self {
        let (device, watched) = Watched::over(device);
        let granule = device.info().granule;
        let pool = limited(&device, 5);
        let (stream, other) = (device.stream().unwrap(), device.stream().unwrap());
        let mut others = Vec::new();
        if !alone {
            others.push(pool.alloc(&other, granule).unwrap());
        }
        let blocks = [(); 3].map(|()| pool.alloc(&stream, granule).unwrap());
        let [one, two, three] = blocks;
        others.push(two);
        if idle {
            drop((one, three));
        } else {
            others.extend([one, three]);
        }
        let asked = Arc::<AtomicU64>::default();
        let counts = Arc::clone(&asked);
        pool.on_pressure(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            Relief::Exhausted
        });
        Self {
            watched,
            pool,
            stream,
            asked,
            _others: others,
            granule,
        }
    }

    /// What a request answers whose uses of `call` fail with `code`, once they do; and how often the
    /// application was asked.
    fn answer(&self, call: &'static str, code: i32) -> Option<(Error, u64)> {
        self.watched.fail_with(call, 1, true, code);
        let answer = self.pool.alloc(&self.stream, 2 * self.granule);
        let failed = self.watched.failures() > 0;
        self.watched.heal();
        whole(&self.pool);
        let error = answer.err().filter(|_| failed)?;
        Some((error, self.asked.load(Ordering::Relaxed)))
    }
}

/// Each pool and call of which one lacks the other.
fn each(device: &Device, code: i32, see: impl Fn(Error, u64)) {
    let mut seen = 0;
    for (idle, alone) in [(true, true), (true, false), (false, true), (false, false)] {
        for call in ["create", "map"] {
            let lacking = Lacking::new(device, idle, alone);
            if let Some((error, asked)) = lacking.answer(call, code) {
                see(error, asked);
                seen += 1;
            }
            // The device has it again.
            let works = lacking.pool.alloc(&lacking.stream, lacking.granule);
            drop(works.unwrap());
        }
    }
    assert!(seen >= 4, "{seen} were refused");
}

fn a_device_without_memory_for_a_call_sends_the_request_to_the_application(device: &Device) {
    each(device, OUT_OF_MEMORY, |error, asked| {
        assert!(error.is_out_of_memory(), "{error}");
        assert_eq!(asked, 1);
    });
}

fn any_other_failure_of_a_call_is_what_the_request_answers(device: &Device) {
    each(device, MADE_TO_FAIL, |error, asked| {
        let ours = matches!(
            error,
            Error::Driver {
                code: MADE_TO_FAIL,
                ..
            }
        );
        assert!(ours, "{error}");
        assert_eq!(asked, 0);
    });
}
