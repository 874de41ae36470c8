//! The statistics as text: a table for a person, JSON for a program.

use std::fmt;

use super::{Counter, PoolStats, StreamStats};
use crate::device::stream_words;
use crate::error::Bytes;

/// A figure's name, and what there is in all, in small and in large blocks: bytes, but of "blocks".
type Row = (&'static str, [Counter; 3]);

macro_rules! rows {
    ($of:expr; $($field:ident),+) => {
        [$((stringify!($field), [$of.$field, $of.small.$field, $of.large.$field])),+]
    };
}

impl PoolStats {
    fn rows(&self) -> [Row; 6] {
        rows!(self; blocks, allocated, requested, active, reserved, inactive_split)
    }

    /// Plain numbers, with the name for a person, and that for a program, which says which are bytes.
    fn lines(&self) -> [(&'static str, &'static str, u64); 11] {
        [
            ("largest hole", "largest_hole_bytes", self.largest_hole),
            ("holes", "holes", self.holes),
            ("bytes moved", "moved_bytes", self.bytes_moved),
            ("compactions", "compactions", self.compactions),
            ("graphs", "graphs_bytes", self.graphs),
            ("growing buffers", "grown_bytes", self.grown),
            ("sleeping", "sleeping_bytes", self.sleeping),
            ("spilled", "spilled_bytes", self.spilled.current),
            ("overhead", "overhead_bytes", self.overhead),
            ("retries", "retries", self.retries),
            ("failures", "failures", self.failures),
        ]
    }
}

impl StreamStats {
    fn rows(&self) -> [Row; 3] {
        rows!(self; blocks, allocated, requested)
    }
}

fn text(value: u64, is_bytes: bool) -> String {
    match is_bytes {
        true => Bytes(value).to_string(),
        false => value.to_string(),
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Row]) -> fmt::Result {
    let [now, peak, allocated, freed] = ["current", "peak", "allocated", "freed"];
    write!(f, "{title:24}{now:>13}{peak:>13}{allocated:>13}{freed:>13}")?;
    for (name, classes) in rows {
        for (class, it) in ["", ", small", ", large"].into_iter().zip(classes) {
            write!(f, "\n  {:22}", name.replace('_', " ") + class)?;
            for value in [it.current, it.peak, it.allocated, it.freed] {
                write!(f, "{:>13}", text(value, *name != "blocks"))?;
            }
        }
    }
    Ok(())
}

impl fmt::Display for PoolStats {
    /// A table of what has a history, a line for each other figure, and a table a stream.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rows(f, "pool", &self.rows())?;
        for (name, key, value) in self.lines() {
            let value = text(value, key.ends_with("bytes"));
            write!(f, "\n  {name:22}{value:>13}")?;
        }
        write!(f, "\n  {:22}{:>13.4}", "fragmentation", self.fragmentation)?;
        (self.streams.iter()).try_for_each(|stream| write!(f, "\n{stream}"))
    }
}

impl fmt::Display for StreamStats {
    /// A table of what has a history, and what is in the stream's cache.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = stream_words(self.stream, self.stream_name.as_deref());
        write_rows(f, &title, &self.rows())?;
        write!(f, "\n  cached{:>29}", text(self.cached_bytes, true))
    }
}

#[cfg(feature = "cli")]
mod json {
    use serde_json::{Value, json};

    use super::{Counter, PoolStats, Row, StreamStats};

    /// An object of the fields named.
    macro_rules! fields {
        ($of:ident: $($field:ident),+) => { json!({ $(stringify!($field): $of.$field),+ }) };
    }

    fn counter(counter: Counter) -> Value {
        fields!(counter: current, peak, allocated, freed)
    }

    fn rows(rows: &[Row]) -> Value {
        let figures = rows.iter().map(|(name, classes)| {
            let [all, small, large] = classes.map(counter);
            let classes = json!({ "all": all, "small": small, "large": large });
            let unit = if *name == "blocks" { "" } else { "_bytes" };
            (name.to_string() + unit, classes)
        });
        figures.collect()
    }

    impl StreamStats {
        fn json(&self) -> Value {
            let mut value = rows(&self.rows());
            value["stream"] = self.stream.into();
            value["stream_name"] = self.stream_name.clone().into();
            value["cached_bytes"] = self.cached_bytes.into();
            value
        }
    }

    impl PoolStats {
        /// The statistics as JSON: `{"allocated_bytes": {"all": {"current": .., "peak": ..,
        /// "allocated": .., "freed": ..}, "small": .., "large": ..}, .., "streams": [..]}`, numbers
        /// throughout.
        #[must_use]
        pub fn to_json(&self) -> String {
            let mut value = rows(&self.rows());
            for (_, key, figure) in self.lines() {
                value[key] = figure.into();
            }
            value["spilled_bytes"] = counter(self.spilled);
            value["fragmentation"] = self.fragmentation.into();
            let (steps, calls) = (self.steps, self.calls);
            value["steps"] = fields!(steps: own_stream, ready_elsewhere, drain, stream_wait, waits,
                steal, grow, driver_ns, relieved, out_of_memory);
            value["calls"] = fields!(calls: created, mapped, remapped, unmapped, released);
            value["streams"] = self.streams.iter().map(StreamStats::json).collect();
            value.to_string()
        }
    }
}
