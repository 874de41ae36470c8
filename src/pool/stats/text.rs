//! The statistics as text: a table for a person, JSON for a program.

use std::fmt;

use super::{Counter, PoolStats, StreamStats};
use crate::device::stream_words;
use crate::error::Bytes;

/// A figure: its name, whether it counts bytes, and what there is in all, in small and in large blocks.
type Row = (&'static str, bool, [Counter; 3]);

macro_rules! rows {
    ($of:expr, $($name:literal, $is_bytes:literal: $field:ident);+) => {
        [$(($name, $is_bytes, [$of.$field, $of.small.$field, $of.large.$field])),+]
    };
}

impl PoolStats {
    fn rows(&self) -> [Row; 6] {
        rows!(self, "blocks", false: blocks; "allocated", true: allocated;
            "requested", true: requested; "active", true: active;
            "reserved", true: reserved; "inactive split", true: inactive_split)
    }
}

impl StreamStats {
    fn rows(&self) -> [Row; 3] {
        rows!(self, "blocks", false: blocks; "allocated", true: allocated;
            "requested", true: requested)
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Row]) -> fmt::Result {
    let [now, peak, allocated, freed] = ["current", "peak", "allocated", "freed"];
    write!(f, "{title:24}{now:>13}{peak:>13}{allocated:>13}{freed:>13}")?;
    for (name, is_bytes, classes) in rows {
        for (class, counter) in ["", ", small", ", large"].into_iter().zip(classes) {
            let text = |value: u64| match is_bytes {
                true => Bytes(value).to_string(),
                false => value.to_string(),
            };
            write!(f, "\n  {:22}", format!("{name}{class}"))?;
            let Counter { current, peak, .. } = *counter;
            for value in [current, peak, counter.allocated, counter.freed] {
                write!(f, "{:>13}", text(value))?;
            }
        }
    }
    Ok(())
}

impl fmt::Display for PoolStats {
    /// A table of what has a history, a line for each other figure, and a table a stream.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rows(f, "pool", &self.rows())?;
        let lines = [
            ("largest hole", Bytes(self.largest_hole).to_string()),
            ("holes", self.holes.to_string()),
            ("fragmentation", format!("{:.4}", self.fragmentation)),
            ("bytes moved", Bytes(self.bytes_moved).to_string()),
            ("compactions", self.compactions.to_string()),
            ("graphs", Bytes(self.graphs).to_string()),
            ("growing buffers", Bytes(self.grown).to_string()),
            ("sleeping", Bytes(self.sleeping).to_string()),
            ("spilled", Bytes(self.spilled.current).to_string()),
            ("overhead", Bytes(self.overhead).to_string()),
            ("retries", self.retries.to_string()),
            ("failures", self.failures.to_string()),
        ];
        for (name, value) in lines {
            write!(f, "\n  {name:22}{value:>13}")?;
        }
        for stream in &self.streams {
            writeln!(f)?;
            stream.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for StreamStats {
    /// A table of what has a history, and what is in the stream's cache.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = stream_words(self.stream, self.stream_name.as_deref());
        write_rows(f, &title, &self.rows())?;
        let cached = Bytes(self.cached_bytes).to_string();
        write!(f, "\n  {:22}{cached:>13}", "cached")
    }
}

#[cfg(feature = "cli")]
mod json {
    use serde_json::{Map, Value, json};

    use super::{Counter, PoolStats, Row, StreamStats};

    /// An object of the fields named.
    macro_rules! fields {
        ($of:ident: $($field:ident),+) => { json!({ $(stringify!($field): $of.$field),+ }) };
    }

    fn counter(counter: Counter) -> Value {
        fields!(counter: current, peak, allocated, freed)
    }

    fn rows(rows: &[Row]) -> Map<String, Value> {
        let figures = rows.iter().map(|(name, is_bytes, [all, small, large])| {
            let [all, small, large] = [all, small, large].map(|of| counter(*of));
            let classes = json!({ "all": all, "small": small, "large": large });
            let unit = if *is_bytes { "_bytes" } else { "" };
            (name.replace(' ', "_") + unit, classes)
        });
        figures.collect()
    }

    impl StreamStats {
        fn json(&self) -> Value {
            let mut value = rows(&self.rows());
            value.insert("stream".into(), self.stream.into());
            value.insert("stream_name".into(), self.stream_name.clone().into());
            value.insert("cached_bytes".into(), self.cached_bytes.into());
            value.into()
        }
    }

    impl PoolStats {
        /// The statistics as JSON: `{"allocated_bytes": {"all": {"current": .., "peak": ..,
        /// "allocated": .., "freed": ..}, "small": .., "large": ..}, .., "streams": [..]}`, numbers
        /// throughout.
        #[must_use]
        pub fn to_json(&self) -> String {
            let mut value = rows(&self.rows());
            let (steps, calls) = (self.steps, self.calls);
            let steps = fields!(steps: own_stream, ready_elsewhere, drain, stream_wait, waits,
                steal, grow, driver_ns, relieved, out_of_memory);
            let calls = fields!(calls: created, mapped, remapped, unmapped, released);
            let rest = [
                ("largest_hole_bytes", json!(self.largest_hole)),
                ("holes", json!(self.holes)),
                ("fragmentation", json!(self.fragmentation)),
                ("moved_bytes", json!(self.bytes_moved)),
                ("compactions", json!(self.compactions)),
                ("graphs_bytes", json!(self.graphs)),
                ("grown_bytes", json!(self.grown)),
                ("sleeping_bytes", json!(self.sleeping)),
                ("spilled_bytes", counter(self.spilled)),
                ("overhead_bytes", json!(self.overhead)),
                ("retries", json!(self.retries)),
                ("failures", json!(self.failures)),
                ("steps", steps),
                ("calls", calls),
            ];
            for (name, figure) in rest {
                value.insert(name.into(), figure);
            }
            let streams = self.streams.iter().map(StreamStats::json).collect();
            value.insert("streams".into(), Value::Array(streams));
            Value::Object(value).to_string()
        }
    }
}
