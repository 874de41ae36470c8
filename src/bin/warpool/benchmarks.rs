//! `warpool benchmarks`: makes the figures in the [`DOCUMENTS`] and the plots in docs/figures from the measurements
//! recorded in `benches/results`. `record.rs` describes the marks in a document.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpool::{Error, Result};

use crate::args::Benchmarks;
use crate::outcome::{Console, Outcome};
use crate::plot::{Bars, Lines, Scale};
use crate::record::{Record, Records, ask, fill, number, value};

const DOCUMENTS: [&str; 3] = ["README.md", "BENCHMARKS.md", "docs/experiments.md"];

/// Writes the figures and the plots, or checks that they are up to date.
pub fn run(options: &Benchmarks, console: &mut Console<'_>) -> Outcome {
    update(options, console).unwrap_or_else(|error| console.fail(&error))
}

fn update(options: &Benchmarks, console: &mut Console<'_>) -> Result<Outcome> {
    let records = records(&options.root.join("benches/results"))?;
    let mut made: BTreeMap<PathBuf, String> = BTreeMap::new();
    for document in DOCUMENTS {
        let path = options.root.join(document);
        let filled = fill(&read(&path)?, &records).map_err(|why| about(&path, why))?;
        made.insert(path, filled);
    }
    for (name, plot) in PLOTS {
        let path = options.root.join("docs/figures").join(name);
        let svg = plot(&records).map_err(|why| about(&path, why))?;
        made.insert(path, svg);
    }
    let mut outcome = Outcome::Ok;
    for (path, text) in made {
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        if options.check {
            let path = path.display();
            console.note(format_args!(
                "error: {path} differs from the recorded measurements: run `cargo run -- benchmarks`"
            ));
            outcome = Outcome::Failed;
            continue;
        }
        fs::write(&path, text).map_err(|error| about(&path, error.to_string()))?;
    }
    Ok(outcome)
}

fn about(path: &Path, why: String) -> Error {
    Error::Malformed {
        file: path.display().to_string(),
        line: 0,
        why,
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| about(path, error.to_string()))
}

fn records(folder: &Path) -> Result<Records> {
    let entries = fs::read_dir(folder).map_err(|error| about(folder, error.to_string()))?;
    let mut records = Records::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let record = match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => Record::from_json(&read(&path)?).map_err(|why| about(&path, why))?,
            Some("txt") => Record::from_text(&read(&path)?),
            _ => continue,
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        records.insert(name.into_owned(), record);
    }
    Ok(records)
}

/// The plots made from the records; an error is the query that has no answer.
type Plot = fn(&Records) -> std::result::Result<String, String>;

const PLOTS: [(&str, Plot); 4] = [
    ("reserved.svg", reserved),
    ("threads.svg", threads),
    ("moves.svg", moves),
    ("slack.svg", slack),
];

/// What [`reserved`] shows: each program's bars, with the series and the query of each.
const RESERVED: [(&str, &[(usize, &str)]); 5] = [
    (
        "GPT-2 124M training",
        &[
            (0, "programs-today-h200; program=gpt; reserved - 1"),
            (1, "pytorch-h200; program=gpt; expandable reserved - 1"),
            (2, "pytorch-h200; program=gpt; cuda-async reserved - 1"),
            (3, "pytorch-h200; program=gpt; native reserved - 1"),
        ],
    ),
    (
        "ResNet-50 training",
        &[
            (0, "replay-h200; trace=*resnet50*; reserved_ratio - 1"),
            (1, "pytorch-h200; program=resnet; expandable reserved - 1"),
            (2, "pytorch-h200; program=resnet; cuda-async reserved - 1"),
            (3, "pytorch-h200; program=resnet; native reserved - 1"),
        ],
    ),
    (
        "mixture-of-experts training",
        &[
            (0, "programs-today-h200; program=moe; reserved - 1"),
            (
                1,
                "programs-today-h200; program=moe; expandable reserved - 1",
            ),
        ],
    ),
    (
        "reinforcement learning",
        &[
            (0, "programs-today-h200; program=rl; reserved - 1"),
            (
                1,
                "programs-today-h200; program=rl; expandable reserved - 1",
            ),
        ],
    ),
    (
        "tables: sort, group, join",
        &[
            (0, "programs-today-h200; program=tables; reserved - 1"),
            (
                1,
                "programs-today-h200; program=tables; expandable reserved - 1",
            ),
        ],
    ),
];

/// Plots the memory that allocators hold in addition to the live bytes of real programs.
fn reserved(records: &Records) -> std::result::Result<String, String> {
    let mut groups = Vec::new();
    for (name, bars) in RESERVED {
        let bars: std::result::Result<Vec<_>, String> = bars
            .iter()
            .map(|(series, question)| Ok((*series, number(records, question)?)))
            .collect();
        groups.push((name, bars?));
    }
    let bars = Bars {
        title: "Memory held beyond the program's own peak (less is better)",
        unit: "%",
        series: &[
            "warpool",
            "PyTorch, expandable segments",
            "the driver's cudaMallocAsync",
            "PyTorch, default",
        ],
        groups,
    };
    Ok(bars.svg())
}

/// A line through the rows of a query, at positions 0, 1, 2, ….
fn in_turn(records: &Records, asked: &str) -> std::result::Result<Vec<(f64, f64)>, String> {
    let (rows, column) = ask(records, asked)?;
    let values = rows.iter().map(|row| value(row, column));
    let points = values
        .enumerate()
        .filter_map(|(at, y)| Some((at as f64, y?)));
    Ok(points.collect())
}

/// The texts in a column of the rows of a query.
fn names(records: &Records, asked: &str) -> std::result::Result<Vec<String>, String> {
    let (rows, column) = ask(records, asked)?;
    let texts = rows
        .iter()
        .map(|row| row.get(column).and_then(Value::as_str).unwrap_or_default());
    Ok(texts.map(str::to_owned).collect())
}

/// Plots allocations per second by the number of threads.
fn threads(records: &Records) -> std::result::Result<String, String> {
    let line = |question: &str| in_turn(records, question);
    let lines = Lines {
        title: "Allocation and free of 64 KiB, each thread on its own stream (more is better)",
        x: ("threads", Scale::Places),
        y: ("million pairs a second", Scale::Log),
        places: names(records, "alloc-h200; bench=threads; case")?,
        series: vec![
            ("warpool", line("alloc-h200; bench=threads; warpool")?),
            (
                "cudaMallocAsync",
                line("alloc-h200; bench=threads; cudaMallocAsync")?,
            ),
            (
                "arithmetic alone",
                line("alloc-h200; bench=threads; arithmetic")?,
            ),
        ],
    };
    Ok(lines.svg())
}

/// Plots the throughput of moves by the size of blocks.
fn moves(records: &Records) -> std::result::Result<String, String> {
    const SIZES: &str = "relocate-h200; bench=batched, case=256 B|4 KiB|64 KiB|1 MiB|16 MiB; ";
    let line = |column: &str| in_turn(records, &format!("{SIZES}{column}"));
    let lines = Lines {
        title: "Moving 1 GiB of live blocks (more is better)",
        x: ("size of a block", Scale::Places),
        y: ("GB/s, read and written", Scale::Linear),
        places: names(records, &format!("{SIZES}case"))?,
        series: vec![
            ("warpool", line("warpool")?),
            ("cub::DeviceMemcpy::Batched", line("CUB")?),
            ("one copy of 1 GiB", line("cudaMemcpyAsync")?),
        ],
    };
    Ok(lines.svg())
}

/// Plots remaps against memory held, by slack.
fn slack(records: &Records) -> std::result::Result<String, String> {
    let line = |trace: &'static str| {
        let asked = format!("slack-host; trace={trace}; remapped, reserved_ratio - 1");
        let (rows, _) = ask(records, &asked)?;
        let point = |row| Some((value(row, "remapped")?, value(row, "reserved_ratio - 1")?));
        let points: Vec<_> = rows.into_iter().filter_map(point).collect();
        Ok::<_, String>((trace, points))
    };
    let lines = Lines {
        title: "More memory for fewer remaps: each line is one program with slack 0 to 0.3",
        x: ("handles mapped elsewhere in the whole run", Scale::Linear),
        y: ("% held beyond the peak", Scale::Linear),
        places: Vec::new(),
        series: vec![
            line("rl")?,
            line("tables")?,
            line("llama")?,
            line("detect")?,
        ],
    };
    Ok(lines.svg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_without_the_column_of_names_has_an_empty_one() {
        let text = r#"{"gpu": "G", "driver": "none", "commit": "c", "date": "d", "command": "c",
            "rows": [{"case": "1"}, {"ns": 2}]}"#;
        let record = Record::from_json(text).expect("a record");
        let records = Records::from([("r".to_owned(), record)]);
        assert_eq!(
            names(&records, "r; *; case"),
            Ok(vec!["1".to_owned(), String::new()])
        );
    }
}
