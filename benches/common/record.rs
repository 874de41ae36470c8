//! The figures of a run side by side, printed and kept as a file of `benches/results/`.

use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::median;
use serde_json::{Map, Value, json};
use warpool::Device;
use warpool::device::DeviceKind;
use warpool::observe::device_name;

/// One line of the results: what was measured, and every contender's figure.
struct Row {
    bench: &'static str,
    case: String,
    figure: &'static str,
    /// A figure each round.
    values: Vec<(&'static str, Vec<f64>)>,
}

/// All lines, in the order measured.
#[derive(Default)]
pub struct Record {
    rows: Vec<Row>,
    ratios: Vec<(&'static str, &'static str)>,
}

/// What a file of results says of itself.
pub struct About {
    pub title: &'static str,
    pub command: String,
}

/// How many times better ours is, and by which name: than a contender, or than the first there is.
struct Ratio {
    name: &'static str,
    than: Option<&'static str>,
}

/// Whether more is better.
fn is_rate(figure: &str) -> bool {
    figure.ends_with("/s")
}

/// Three digits after the point say more than a repeated run would.
fn rounded(value: f64) -> Value {
    json!((value * 1e3).round() / 1e3)
}

impl Record {
    /// Adds a figure, or one more of a round to come later: their median counts.
    pub fn add(
        &mut self,
        bench: &'static str,
        case: &str,
        figure: &'static str,
        who: &'static str,
        value: f64,
    ) {
        let same = |row: &&mut Row| row.bench == bench && row.case == case && row.figure == figure;
        let Some(row) = self.rows.iter_mut().find(same) else {
            let (case, values) = (case.to_owned(), vec![(who, vec![value])]);
            self.rows.push(Row {
                bench,
                case,
                figure,
                values,
            });
            return;
        };
        match row.values.iter_mut().find(|(name, _)| *name == who) {
            Some((_, values)) => values.push(value),
            None => row.values.push((who, vec![value])),
        }
    }

    /// Compares ours with each contender named, in a column of its own (column, contender); without
    /// this, with the first there is, in the column `times`.
    pub fn compare(&mut self, ratios: &[(&'static str, &'static str)]) {
        self.ratios = ratios.to_vec();
    }

    fn ratios(&self) -> Vec<Ratio> {
        if self.ratios.is_empty() {
            let (name, than) = ("times", None);
            return vec![Ratio { name, than }];
        }
        let named = |&(name, than)| Ratio {
            name,
            than: Some(than),
        };
        self.ratios.iter().map(named).collect()
    }

    /// Names of all contenders, ours first.
    fn names(&self) -> Vec<&'static str> {
        let mut names = vec!["warpool"];
        for (name, _) in self.rows.iter().flat_map(|row| &row.values) {
            if !names.contains(name) {
                names.push(name);
            }
        }
        names
    }

    /// The table, for a person.
    pub fn print(&self) {
        let names = self.names();
        print!("\n{:<20}{:<30}{:<10}", "bench", "case", "figure");
        for name in &names {
            print!("{name:>17}");
        }
        let ratios = self.ratios();
        for ratio in &ratios {
            print!("{:>11}", ratio.name);
        }
        println!();
        for row in &self.rows {
            print!("{:<20}{:<30}{:<10}", row.bench, row.case, row.figure);
            for name in &names {
                match row.value(name) {
                    Some(value) => print!("{value:>17.2}"),
                    None => print!("{:>17}", "-"),
                }
            }
            for ratio in &ratios {
                match row.times(&names, ratio) {
                    Some(times) => print!("{times:>11.3}"),
                    None => print!("{:>11}", "-"),
                }
            }
            println!();
        }
    }

    /// Writes the file that `warpool benchmarks` reads.
    pub fn write(&self, path: &Path, device: &Device, about: &About) {
        let (names, ratios) = (self.names(), self.ratios());
        let mut columns = vec!["bench", "case", "figure"];
        columns.extend(&names);
        columns.extend(ratios.iter().map(|ratio| ratio.name));
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| row.json(&names, &ratios))
            .collect();
        let result = json!({
            "title": about.title,
            "gpu": device_name(device),
            "driver": driver(device),
            "commit": commit(),
            "date": today(),
            "command": about.command,
            "columns": columns,
            "rows": rows,
        });
        std::fs::write(path, format!("{result:#}\n")).expect("the results are written");
        println!("\nwritten to {}", path.display());
    }
}

impl Row {
    fn value(&self, who: &str) -> Option<f64> {
        let found = self.values.iter().find(|(name, _)| *name == who);
        found.and_then(|(_, values)| median(&mut values.clone()))
    }

    /// How many times better ours is than the other.
    fn times(&self, names: &[&str], ratio: &Ratio) -> Option<f64> {
        let ours = self.value(names[0])?;
        let theirs = match ratio.than {
            Some(name) => self.value(name)?,
            None => names[1..].iter().find_map(|name| self.value(name))?,
        };
        Some(if is_rate(self.figure) {
            ours / theirs
        } else {
            theirs / ours
        })
    }

    fn json(&self, names: &[&str], ratios: &[Ratio]) -> Value {
        let mut row = Map::new();
        row.insert("bench".into(), self.bench.into());
        row.insert("case".into(), self.case.as_str().into());
        row.insert("figure".into(), self.figure.into());
        for (name, _) in &self.values {
            let value = self.value(name).map_or(Value::Null, rounded);
            row.insert((*name).into(), value);
        }
        for ratio in ratios {
            if let Some(times) = self.times(names, ratio) {
                row.insert(ratio.name.into(), rounded(times));
            }
        }
        Value::Object(row)
    }
}

/// The driver's version as the system names it.
fn driver(device: &Device) -> String {
    if device.info().kind != DeviceKind::Cuda {
        return "none".to_owned();
    }
    let version = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let word = version
        .split_whitespace()
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()));
    match word {
        Some(version) => version.to_owned(),
        None => format!("for CUDA {}", f64::from(device.info().driver_version) / 1e3),
    }
}

/// The commit measured: a bundle's is in its file `commit`, a working tree's is git's.
fn commit() -> String {
    let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    if let Ok(text) = std::fs::read_to_string(Path::new(&root).join("commit")) {
        let mut lines = text.lines();
        let hash: String = lines.next().unwrap_or_default().chars().take(10).collect();
        return lines
            .next()
            .map_or(hash.clone(), |more| format!("{hash} {more}"));
    }
    let git = |args: &[&str]| Command::new("git").arg("-C").arg(&root).args(args).output();
    match git(&["rev-parse", "--short=10", "HEAD"]) {
        Ok(found) if found.status.success() => {
            let hash = String::from_utf8_lossy(&found.stdout).trim().to_owned();
            let clean = git(&["diff", "--quiet", "HEAD", "--", "src", "kernels"]);
            let clean = clean.is_ok_and(|found| found.status.success());
            hash + if clean { "" } else { " with changes" }
        }
        _ => "unknown".to_owned(),
    }
}

/// The date, UTC, as 2026-01-31: days since 1970-03-01 in eras of 400 years.
fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let days = now.map_or(0, |since| since.as_secs() / 86_400) + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let date = of_year - (153 * shifted + 2) / 5 + 1;
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{date:02}")
}
