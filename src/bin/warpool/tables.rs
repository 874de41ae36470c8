//! `warpool readme-tables`: the README's figures, made from the kept measurements.
//!
//! A measurement is one JSON file in `benches/results/`:
//!
//! ```json
//! {"title": "Replay", "gpu": "…", "driver": "…", "commit": "…", "date": "…", "command": "…",
//!  "columns": ["trace", "reserved_ratio"], "rows": [{"trace": "…", "reserved_ratio": 1.004}]}
//! ```
//!
//! `title` and `columns` may be left out: the file's name is the title then, and every key of a
//! row a column, by name. Figures named `…_bytes` are printed with a unit, other whole numbers in
//! groups of three digits. The tables stand in file name order between two markers in the README.

use std::fs;
use std::path::Path;

use warpool::{Error, Result};

use crate::args::ReadmeTables;
use crate::outcome::{Console, Outcome};
use crate::record::{splice, table};

/// Writes the tables into the README, or checks that they are there.
pub fn run(options: &ReadmeTables, console: &mut Console<'_>) -> Outcome {
    update(options, console).unwrap_or_else(|error| console.fail(&error))
}

fn update(options: &ReadmeTables, console: &mut Console<'_>) -> Result<Outcome> {
    let readme = read(&options.readme)?;
    let made =
        splice(&readme, &tables(&options.results)?).map_err(|why| about(&options.readme, why))?;
    if made == readme {
        return Ok(Outcome::Ok);
    }
    if options.check {
        let readme = options.readme.display();
        console.note(format_args!(
            "error: the tables in {readme} are not those of the measurements: make them anew"
        ));
        return Ok(Outcome::Failed);
    }
    fs::write(&options.readme, made).map_err(|error| about(&options.readme, error.to_string()))?;
    Ok(Outcome::Ok)
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

fn tables(folder: &Path) -> Result<String> {
    let entries = fs::read_dir(folder).map_err(|error| about(folder, error.to_string()))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    let mut all = String::new();
    for path in files {
        let value =
            serde_json::from_str(&read(&path)?).map_err(|error| about(&path, error.to_string()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        all.push_str(&table(&name, &value).map_err(|why| about(&path, why))?);
    }
    Ok(all)
}
