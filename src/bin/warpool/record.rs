//! A measurement's record as a table, and a text between markers.

use serde_json::{Map, Value};
use warpool::observe::{Bytes, Grouped};

const BEGIN: &str = "<!-- results: made by `warpool readme-tables`, not by hand -->\n";

const END: &str = "<!-- end of results -->";

/// `readme` with `tables` between the markers.
pub fn splice(readme: &str, tables: &str) -> std::result::Result<String, String> {
    let between = readme.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some(format!("{before}{BEGIN}\n{tables}{END}{after}"))
    });
    between.ok_or_else(|| format!("it lacks the markers {} and {END}", BEGIN.trim_end()))
}

/// One measurement as Markdown: what, where and how it was measured, and the rows.
pub fn table(name: &str, result: &Value) -> std::result::Result<String, String> {
    let text = |key: &str| result.get(key).and_then(Value::as_str);
    let needed = |key: &str| text(key).ok_or_else(|| format!("it lacks the text {key:?}"));
    let rows = result
        .get("rows")
        .and_then(Value::as_array)
        .ok_or("it lacks the list \"rows\"")?;
    let rows: Vec<&Map<String, Value>> = rows
        .iter()
        .map(Value::as_object)
        .collect::<Option<_>>()
        .ok_or("a row is not an object")?;
    let columns = columns(result, &rows)?;
    let mut made = format!(
        "**{}.** {}, driver {}, commit {}, {}: `{}`\n\n",
        text("title").unwrap_or(name),
        needed("gpu")?,
        needed("driver")?,
        needed("commit")?,
        needed("date")?,
        needed("command")?,
    );
    let heads: Vec<String> = columns.iter().map(|column| head(column)).collect();
    made.push_str(&format!(
        "| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    ));
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|column| cell(column, row.get(column)))
            .collect();
        made.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    made.push('\n');
    Ok(made)
}

/// The columns the file names, or every key of a row.
fn columns(
    result: &Value,
    rows: &[&Map<String, Value>],
) -> std::result::Result<Vec<String>, String> {
    if let Some(columns) = result.get("columns") {
        let columns: Option<Vec<String>> = columns.as_array().and_then(|all| {
            all.iter()
                .map(|one| Some(one.as_str()?.to_owned()))
                .collect()
        });
        return columns.ok_or_else(|| "\"columns\" is not a list of texts".to_owned());
    }
    let mut columns: Vec<String> = rows.iter().flat_map(|row| row.keys().cloned()).collect();
    columns.sort();
    columns.dedup();
    Ok(columns)
}

fn head(column: &str) -> String {
    column
        .strip_suffix("_bytes")
        .unwrap_or(column)
        .replace('_', " ")
}

fn cell(column: &str, value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.replace('|', "\\|"),
        Some(value) => match value.as_u64() {
            Some(bytes) if column.ends_with("_bytes") => Bytes(bytes).to_string(),
            Some(number) => Grouped(number).to_string(),
            None => value.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> Value {
        serde_json::json!({
            "gpu": "G", "driver": "1.2", "commit": "abc", "date": "2026-01-02", "command": "c",
            "columns": ["trace", "peak_live_bytes", "alloc_ns_p50", "reserved_ratio"],
            "rows": [
                {"trace": "a|b", "peak_live_bytes": 3 << 20, "alloc_ns_p50": 1234, "reserved_ratio": 1.004},
                {"trace": "c", "left_out": 1},
            ],
        })
    }

    #[test]
    fn a_measurement_becomes_a_table_with_units() {
        assert_eq!(
            table("replay", &result()).expect("a table"),
            "**replay.** G, driver 1.2, commit abc, 2026-01-02: `c`\n\n\
             | trace | peak live | alloc ns p50 | reserved ratio |\n|---|---|---|---|\n\
             | a\\|b | 3.00 MiB | 1,234 | 1.004 |\n| c |  |  |  |\n\n"
        );
    }

    #[test]
    fn a_measurement_that_lacks_something_says_what() {
        for key in ["gpu", "driver", "commit", "date", "command", "rows"] {
            let mut lacking = result();
            lacking.as_object_mut().expect("an object").remove(key);
            let why = table("replay", &lacking).expect_err(key);
            assert!(why.contains(key), "{why}");
        }
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let readme = format!("before\n{BEGIN}old\n{END}\nafter\n");
        let made = splice(&readme, "new\n").expect("markers");
        assert_eq!(made, format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert_eq!(splice(&made, "new\n").expect("markers"), made);
        assert!(splice("no markers", "new").is_err());
    }
}
