//! The statistics as text: a table for a person, JSON for a program.

use std::fmt;

use super::{Counter, PoolStats, StreamStats};
use crate::error::Bytes;

/// A figure's name, and whether it counts bytes.
type Named = (&'static str, bool);

const BLOCKS: Named = ("blocks", false);
const ALLOCATED: Named = ("allocated", true);
const REQUESTED: Named = ("requested", true);
const ACTIVE: Named = ("active", true);
const RESERVED: Named = ("reserved", true);
const INACTIVE_SPLIT: Named = ("inactive split", true);

/// A figure: of all blocks, of small ones, of large ones.
type Row = (Named, [Counter; 3]);

/// The figures named, of a whole and of its two classes.
macro_rules! rows {
    ($of:expr, $($name:ident = $field:ident),+) => {
        [$(($name, [$of.$field, $of.small.$field, $of.large.$field])),+]
    };
}

impl PoolStats {
    fn rows(&self) -> [Row; 6] {
        rows!(
            self,
            BLOCKS = blocks,
            ALLOCATED = allocated,
            REQUESTED = requested,
            ACTIVE = active,
            RESERVED = reserved,
            INACTIVE_SPLIT = inactive_split
        )
    }
}

impl StreamStats {
    fn rows(&self) -> [Row; 3] {
        rows!(
            self,
            BLOCKS = blocks,
            ALLOCATED = allocated,
            REQUESTED = requested
        )
    }
}

fn write_rows(f: &mut fmt::Formatter<'_>, title: &str, rows: &[Row]) -> fmt::Result {
    let [now, peak, allocated, freed] = ["current", "peak", "allocated", "freed"];
    write!(f, "{title:24}{now:>13}{peak:>13}{allocated:>13}{freed:>13}")?;
    for ((name, is_bytes), classes) in rows {
        for (class, counter) in ["", ", small", ", large"].into_iter().zip(classes) {
            let text = |value: u64| match is_bytes {
                true => Bytes(value).to_string(),
                false => value.to_string(),
            };
            let Counter {
                current,
                peak,
                allocated,
                freed,
            } = *counter;
            write!(f, "\n  {:22}", format!("{name}{class}"))?;
            for value in [current, peak, allocated, freed] {
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
        write_rows(f, &format!("stream {}", self.stream), &self.rows())?;
        let cached = Bytes(self.cached_bytes).to_string();
        write!(f, "\n  {:22}{cached:>13}", "cached")
    }
}

#[cfg(feature = "cli")]
mod json {
    use serde_json::{Map, Value, json};

    use super::{Counter, PoolStats, Row, StreamStats};

    fn counter(counter: Counter) -> Value {
        json!({
            "current": counter.current,
            "peak": counter.peak,
            "allocated": counter.allocated,
            "freed": counter.freed,
        })
    }

    fn rows(rows: &[Row]) -> Map<String, Value> {
        let figures = rows.iter().map(|((name, is_bytes), [all, small, large])| {
            let classes = json!({
                "all": counter(*all),
                "small": counter(*small),
                "large": counter(*large),
            });
            let unit = if *is_bytes { "_bytes" } else { "" };
            (name.replace(' ', "_") + unit, classes)
        });
        figures.collect()
    }

    impl StreamStats {
        fn json(&self) -> Value {
            let mut value = rows(&self.rows());
            value.insert("stream".into(), self.stream.into());
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
            let rest = [
                ("largest_hole_bytes", json!(self.largest_hole)),
                ("holes", json!(self.holes)),
                ("fragmentation", json!(self.fragmentation)),
                ("moved_bytes", json!(self.bytes_moved)),
                ("compactions", json!(self.compactions)),
                ("graphs_bytes", json!(self.graphs)),
                ("overhead_bytes", json!(self.overhead)),
                ("retries", json!(self.retries)),
                ("failures", json!(self.failures)),
                (
                    "steps",
                    json!({
                        "own_stream": steps.own_stream,
                        "ready_elsewhere": steps.ready_elsewhere,
                        "drain": steps.drain,
                        "stream_wait": steps.stream_wait,
                        "waits": steps.waits,
                        "steal": steps.steal,
                        "grow": steps.grow,
                        "relieved": steps.relieved,
                        "out_of_memory": steps.out_of_memory,
                    }),
                ),
                (
                    "calls",
                    json!({
                        "created": calls.created,
                        "mapped": calls.mapped,
                        "remapped": calls.remapped,
                        "unmapped": calls.unmapped,
                        "released": calls.released,
                    }),
                ),
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
