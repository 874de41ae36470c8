//! Recorded measurements, and the marks in a document that refer to them.
//!
//! A mark is a comment, ended by `<!-- end -->`; the text in between is replaced:
//!
//! | comment | becomes |
//! |---|---|
//! | `<!-- table NAME; key=value, key=a\|b*; column, Title = column -->` | the rows with these values, `*` for any text, and these columns of each; `*` alone is every row |
//! | `<!-- figure NAME; key=value; column -->` | a single cell |
//! | `<!-- record NAME -->` | where, when and with which command it was measured |
//! | `<!-- text NAME; 3-7 -->` | these lines of a text record |
//!
//! Numbers have three significant digits. A column `x - 1` shows a ratio as the percentage above 1; a column
//! named `…_bytes` or `bytes_…` gets a unit.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use warpool::observe::Grouped;

const END: &str = "<!-- end -->";

/// The error is a message.
type Result<T> = std::result::Result<T, String>;

/// The values of one row, by column.
pub type Row = Map<String, Value>;

/// One measurement: its origin, and rows of values.
#[derive(Debug, Clone, Default)]
pub struct Record {
    origin: String,
    lines: Vec<String>,
    rows: Vec<Row>,
}

impl Record {
    /// A record as `scripts/record-results.py` and the benches write it: an object with `gpu`, `driver`,
    /// `commit`, `date`, `command` and the list `rows`.
    ///
    /// # Errors
    /// The missing field.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let needed = |key: &str| {
            let found = value.get(key).and_then(Value::as_str);
            found.ok_or_else(|| format!("it lacks the text {key:?}"))
        };
        let rows = value.get("rows").and_then(Value::as_array);
        let rows = rows.ok_or("it lacks the list \"rows\"")?.iter();
        let rows: Option<Vec<Row>> = rows.map(|row| row.as_object().cloned()).collect();
        let driver = match needed("driver")? {
            "none" => String::new(),
            version => format!(", driver {version}"),
        };
        Ok(Self {
            origin: format!(
                "{}{driver}, commit {}, {}: `{}`",
                needed("gpu")?,
                needed("commit")?,
                needed("date")?,
                needed("command")?,
            ),
            lines: Vec::new(),
            rows: rows.ok_or("a row is not an object")?,
        })
    }

    /// A record that is the output of a bench. The first line has the place, time and method, `: `, and the
    /// command. A line with a name and three numbers is a row of time, throughput and fraction of a copy.
    pub fn from_text(text: &str) -> Self {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let first = lines.first().map_or("", String::as_str);
        let (origin, command) = first.rsplit_once(": ").unwrap_or((first, ""));
        let row = |line: &String| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, figures @ ..] = &words[..] else {
                return None;
            };
            let figures: Vec<f64> = figures
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect();
            let keys = ["us", "gb_per_s", "of_copy"];
            if figures.len() != keys.len() || words.len() != 1 + keys.len() {
                return None;
            }
            let mut row = Row::new();
            row.insert("conversion".to_owned(), Value::from(*name));
            row.extend(
                keys.iter()
                    .zip(figures)
                    .map(|(key, figure)| ((*key).to_owned(), figure.into())),
            );
            Some(row)
        };
        Self {
            origin: format!("{origin}: `{command}`"),
            rows: lines.iter().filter_map(row).collect(),
            lines,
        }
    }
}

/// All records, by the names of their files.
pub type Records = BTreeMap<String, Record>;

/// Replaces all marks of the document.
///
/// # Errors
/// A mark whose query has no answer, or that has no end.
pub fn fill(document: &str, records: &Records) -> Result<String> {
    let (mut made, mut rest) = (String::new(), document);
    while let Some(at) = rest.find("<!-- ") {
        let (before, mark) = rest.split_at(at);
        made.push_str(before);
        let inside = &mark["<!-- ".len()..];
        let (inside, after) = inside.split_once("-->").unwrap_or((inside, ""));
        match answer(inside.trim(), records)? {
            None => {
                made.push_str("<!-- ");
                rest = &mark["<!-- ".len()..];
            }
            Some(answer) => {
                let end = after.find(END);
                let end = end.ok_or_else(|| format!("{inside:?} lacks its {END}"))?;
                made.push_str(&format!("<!-- {} -->{answer}{END}", inside.trim()));
                rest = &after[end + END.len()..];
            }
        }
    }
    made.push_str(rest);
    Ok(made)
}

/// The answer to a comment's query; `None` if the comment is not a mark.
fn answer(comment: &str, records: &Records) -> Result<Option<String>> {
    let (word, asked) = comment.split_once(' ').unwrap_or((comment, ""));
    let named = |name: &str| {
        let found = records.get(name);
        found.ok_or_else(|| format!("{comment:?}: there is no record {name:?}"))
    };
    let answer = match word {
        "record" => format!("\n{}.\n", named(asked)?.origin),
        "figure" => figure(records, asked)?,
        "table" => table(records, asked)?,
        "text" => {
            let (name, lines) = asked.split_once("; ").unwrap_or((asked, ""));
            text(&named(name)?.lines, lines).ok_or_else(|| format!("{comment:?}: which lines?"))?
        }
        _ => return Ok(None),
    };
    // No answer contains a mark, so a second run finds the same marks.
    Ok(Some(answer.replace("<!--", "&lt;!--")))
}

fn text(lines: &[String], range: &str) -> Option<String> {
    let (from, to) = range.split_once('-')?;
    let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
    let lines = lines.get(from.checked_sub(1)?..to)?;
    Some(format!("\n\n```text\n{}\n```\n\n", lines.join("\n")))
}

fn table(records: &Records, asked: &str) -> Result<String> {
    let (rows, columns) = ask(records, asked)?;
    let columns: Vec<(&str, &str)> = columns
        .split(", ")
        .map(|column| column.split_once(" = ").unwrap_or((column, column)))
        .collect();
    let heads: Vec<&str> = columns.iter().map(|(title, _)| title.trim()).collect();
    let mut made = format!(
        "\n\n| {} |\n|{}\n",
        heads.join(" | "),
        "---|".repeat(heads.len())
    );
    for row in rows {
        let cells: Vec<String> = columns
            .iter()
            .map(|(_, column)| cell(row, column))
            .collect();
        made.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    Ok(made + "\n")
}

fn figure(records: &Records, asked: &str) -> Result<String> {
    let (rows, column) = ask(records, asked)?;
    match (rows.as_slice(), column.trim()) {
        ([row], column) if value(row, column).is_some() => Ok(cell(row, column)),
        (rows, _) => Err(format!("{asked:?}: not one figure but {} rows", rows.len())),
    }
}

/// The number that `NAME; key=value; column` asks for.
///
/// # Errors
/// The query does not match exactly one row, or its column is not a number.
pub fn number(records: &Records, asked: &str) -> Result<f64> {
    let (rows, column) = ask(records, asked)?;
    match rows.as_slice() {
        [row] => value(row, column).ok_or_else(|| format!("{asked:?} is no number")),
        rows => Err(format!("{asked:?}: {} rows", rows.len())),
    }
}

/// A row's number in a column; for `x - 1`, the percentage above 1.
pub fn value(row: &Row, column: &str) -> Option<f64> {
    match column.strip_suffix(" - 1") {
        Some(ratio) => Some((row.get(ratio)?.as_f64()? - 1.0) * 100.0),
        None => row.get(column)?.as_f64(),
    }
}

/// The rows that the query `NAME; key=value, …; columns` matches, and the columns.
///
/// # Errors
/// There is no such record, no such row, or no row has one of the columns.
pub fn ask<'r, 'a>(records: &'r Records, asked: &'a str) -> Result<(Vec<&'r Row>, &'a str)> {
    let mut parts = asked.splitn(3, "; ");
    let (Some(name), Some(wanted), Some(columns)) = (parts.next(), parts.next(), parts.next())
    else {
        return Err(format!("{asked:?} is not NAME; key=value; columns"));
    };
    let record = records.get(name);
    let record = record.ok_or_else(|| format!("{asked:?}: there is no record {name:?}"))?;
    let wanted: Vec<(&str, &str)> = wanted
        .split(", ")
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let fits = |row: &&Row| {
        wanted.iter().all(|(key, values)| {
            let text = row.get(*key).map(plain).unwrap_or_default();
            values.split('|').any(|pattern| matches(pattern, &text))
        })
    };
    let rows: Vec<&Row> = record.rows.iter().filter(fits).collect();
    if rows.is_empty() {
        return Err(format!("{asked:?}: no row matches"));
    }
    for column in columns.split(", ") {
        let column = column
            .split_once(" = ")
            .map_or(column, |(_, column)| column);
        let key = column.strip_suffix(" - 1").unwrap_or(column);
        if !rows.iter().any(|row| row.contains_key(key)) {
            return Err(format!("{asked:?}: no row has {key:?}"));
        }
    }
    Ok((rows, columns))
}

/// Whether a text matches a pattern, in which `*` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let Some(last) = parts.next_back() else {
        return rest.is_empty();
    };
    for part in parts {
        let Some(at) = rest.find(part) else {
            return false;
        };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// A row's value in a column, formatted for a document; empty if it has none.
pub fn cell(row: &Row, column: &str) -> String {
    match (row.get(column), value(row, column)) {
        (Some(Value::String(text)), _) => text.replace('|', "\\|"),
        (Some(_), Some(bytes)) if column.ends_with("_bytes") || column.starts_with("bytes_") => {
            with_unit(bytes)
        }
        (None, Some(percent)) => format!("{} %", digits(percent)),
        (Some(count), Some(number)) if count.is_u64() && number < 1000.0 => count.to_string(),
        (_, Some(number)) => digits(number),
        (Some(Value::Null) | None, None) => String::new(),
        (Some(other), None) => other.to_string(),
    }
}

fn with_unit(mut bytes: f64) -> String {
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB"].into_iter().peekable();
    let mut unit = units.next().unwrap_or_default();
    while bytes >= 1000.0
        && let Some(next) = units.next()
    {
        bytes /= 1024.0;
        unit = next;
    }
    format!("{} {unit}", digits(bytes))
}

/// A number with three significant digits, and commas: `0.0381`, `38.1`, `1,040`.
pub fn digits(number: f64) -> String {
    if number == 0.0 || !number.is_finite() {
        // Zero and values that are not finite have no digits to round.
        return number.to_string();
    }
    let rounded = format!("{number:.2e}");
    let (_, exponent) = rounded.split_once('e').unwrap_or_default();
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let rounded: f64 = rounded.parse().unwrap_or(number);
    if exponent >= 3 {
        let sign = if rounded < 0.0 { "-" } else { "" };
        return format!("{sign}{}", Grouped(rounded.abs() as u64));
    }
    let decimals = usize::try_from(2 - exponent).unwrap_or(0);
    format!("{rounded:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Records {
        let text = r#"{"gpu": "G", "driver": "1.2", "commit": "abc", "date": "2026-01-02",
            "command": "c", "rows": [
                {"trace": "a|b", "live_bytes": 3145728, "ns": 1234.56, "ratio": 1.0042},
                {"trace": "c", "ns": 0.012345, "left_out": 1}]}"#;
        let printed =
            "G, driver 2, 2026-01-03: run\non G\n   us  GB/s  of copy\nx_to_y 1.5 20 0.9\n";
        Records::from([
            ("r".to_owned(), Record::from_json(text).expect("a record")),
            ("t".to_owned(), Record::from_text(printed)),
        ])
    }

    fn filled(comment: &str) -> Result<String> {
        fill(&format!("a {comment}old<!-- end --> b"), &records())
    }

    #[test]
    fn a_table_has_the_asked_rows_and_columns_with_three_digits_and_units() {
        let made =
            filled("<!-- table r; *; trace, live = live_bytes, ns, over live = ratio - 1 -->");
        let made = made.expect("a table");
        let rows = "| trace | live | ns | over live |\n|---|---|---|---|\n\
                    | a\\|b | 3.00 MiB | 1,230 | 0.420 % |\n| c |  | 0.0123 |  |\n";
        assert!(made.contains(rows), "{made}");
        assert!(made.starts_with("a <!-- table r; ") && made.ends_with("<!-- end --> b"));
        assert!(!made.contains("old"));
        let one = filled("<!-- table r; trace=x|c; ns -->").expect("a table");
        assert!(
            one.contains("| 0.0123 |") && !one.contains("1,230"),
            "{one}"
        );
    }

    #[test]
    fn a_star_is_any_text() {
        for (pattern, text, fits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*_to_*_mx", "f32_to_e4m3_mx", true),
            ("*_to_*_mx", "f32_to_mx", false),
            ("*", "", true),
            ("aa*a", "aa", false),
        ] {
            assert_eq!(matches(pattern, text), fits, "{pattern} {text}");
        }
    }

    #[test]
    fn a_figure_stands_in_its_line() {
        let made = filled("<!-- figure r; trace=c; ns -->").expect("a figure");
        assert_eq!(made, "a <!-- figure r; trace=c; ns -->0.0123<!-- end --> b");
        let made = filled("<!-- figure t; conversion=*_y; of_copy -->").expect("a figure");
        assert!(made.contains("-->0.900<!--"), "{made}");
    }

    #[test]
    fn the_origin_and_lines_of_text_are_those_of_the_record() {
        let made = filled("<!-- record r -->").expect("an origin");
        assert!(
            made.contains("G, driver 1.2, commit abc, 2026-01-02: `c`."),
            "{made}"
        );
        let made = filled("<!-- text t; 1-2 -->").expect("lines");
        assert!(
            made.contains("G, driver 2, 2026-01-03: run\non G\n```"),
            "{made}"
        );
    }

    #[test]
    fn filling_twice_changes_nothing_and_other_comments_stay() {
        let once = filled("<!-- note --> <!-- record r -->").expect("filled");
        assert_eq!(fill(&once, &records()).as_ref(), Ok(&once));
        assert!(once.contains("<!-- note -->"));
    }

    #[test]
    fn a_question_without_an_answer_is_an_error_that_repeats_it() {
        for (wrong, part) in [
            ("<!-- table x; *; ns -->", "x; *; ns"),
            ("<!-- table r; trace=z; ns -->", "trace=z"),
            ("<!-- table r; *; nothing -->", "nothing"),
            ("<!-- figure r; *; ns -->", "2 rows"),
            ("<!-- figure r; trace=c; trace -->", "trace=c; trace"),
            ("<!-- record x -->", "record x"),
            ("<!-- text t; 3-99 -->", "3-99"),
        ] {
            let why = filled(wrong).expect_err(wrong);
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(fill("<!-- record r -->", &records()).is_err(), "no end");
    }

    #[test]
    fn a_measurement_that_lacks_something_says_what() {
        let whole = r#"{"gpu":"","driver":"","commit":"","date":"","command":"","rows":[]}"#;
        assert!(Record::from_json(whole).is_ok());
        for key in ["gpu", "driver", "commit", "date", "command", "rows"] {
            let lacking = whole.replace(&format!("\"{key}\""), "\"other\"");
            let why = Record::from_json(&lacking).expect_err(key);
            assert!(why.contains(key), "{why}");
        }
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (37.82, "37.8"),
            (999.6, "1,000"),
            (1041.676, "1,040"),
            (216_551.0, "217,000"),
            (0.98765, "0.988"),
            (9.996, "10.0"),
            (-1.234, "-1.23"),
            (100.0, "100"),
        ] {
            assert_eq!(digits(number), text, "{number}");
        }
    }
}
