//! The captures of a device of books, as CUDA has them: two calls that use one graph at once end the test with a
//! panic.

use std::collections::HashMap;

use warpool::device::{RawEvent, RawStream};
use warpool::{Error, Result};

#[derive(Default)]
pub struct Captures {
    last: u64,
    /// The capture of each stream, and of each event that was recorded in one that goes on.
    streams: HashMap<u64, u64>,
    events: HashMap<u64, u64>,
    /// The streams for which a thread is calling now.
    calling: Vec<u64>,
}

impl Captures {
    pub fn has(&self, stream: RawStream) -> bool {
        self.streams.contains_key(&stream.0)
    }

    /// No thread calls for a stream of the capture of `stream`, if it is under one.
    fn check(&self, capture: Option<&u64>) {
        let uses = |stream: &&u64| capture.is_some() && self.streams.get(stream) == capture;
        let other = self.calling.iter().find(uses);
        assert_eq!(other, None, "two threads use one graph");
    }

    /// A call for `stream` begins.
    pub fn enter(&mut self, stream: RawStream) {
        self.check(self.streams.get(&stream.0));
        self.calling.push(stream.0);
    }

    pub fn leave(&mut self, stream: RawStream) {
        let at = self.calling.iter().position(|one| *one == stream.0);
        self.calling.swap_remove(at.expect("it has begun"));
    }

    /// A call for `event` that records it elsewhere or destroys it.
    pub fn forget(&mut self, event: RawEvent) {
        self.check(self.events.get(&event.0));
        self.events.remove(&event.0);
    }

    /// `event` is recorded on `stream`; true if in a capture.
    pub fn record(&mut self, event: RawEvent, stream: RawStream) -> bool {
        let capture = self.streams.get(&stream.0).copied();
        if self.events.get(&event.0).copied() != capture {
            self.forget(event);
        }
        self.events
            .extend(capture.map(|capture| (event.0, capture)));
        capture.is_some()
    }

    /// `stream` waits for `event`; true if in a capture.
    pub fn wait(&mut self, stream: RawStream, event: RawEvent) -> Result<bool> {
        match (self.streams.get(&stream.0), self.events.get(&event.0)) {
            (None, None) => Ok(false),
            (None, Some(&capture)) => {
                self.join(stream, capture);
                Ok(true)
            }
            (ours, theirs) if ours == theirs => Ok(true),
            _ => Err(Error::invalid(
                "event",
                "it is of another capture, or of none",
            )),
        }
    }

    fn join(&mut self, stream: RawStream, capture: u64) {
        let calling = self.calling.contains(&stream.0);
        assert!(
            !calling,
            "a thread calls for the stream that enters a capture"
        );
        self.streams.insert(stream.0, capture);
    }

    pub fn begin(&mut self, stream: RawStream) -> Result<()> {
        if self.has(stream) {
            return Err(Error::invalid("stream", "it is being captured"));
        }
        self.last += 1;
        self.join(stream, self.last);
        Ok(())
    }

    /// The number of the capture that ends.
    pub fn end(&mut self, stream: RawStream) -> Result<u64> {
        let Some(&capture) = self.streams.get(&stream.0) else {
            return Err(Error::invalid("stream", "it is not being captured"));
        };
        self.check(Some(&capture));
        self.streams.retain(|_, of| *of != capture);
        self.events.retain(|_, of| *of != capture);
        Ok(capture)
    }
}
