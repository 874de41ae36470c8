//! One line of an allocation log.

/// The event in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Alloc {
        pointer: u64,
        bytes: u64,
        stream: u64,
    },
    Free {
        pointer: u64,
        bytes: u64,
        stream: u64,
    },
    /// An allocation that failed: nothing to replay.
    Failure,
}

/// The columns that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Action,
    Pointer,
    Size,
    Stream,
}

const NEEDED: [(Column, &str); 4] = [
    (Column::Action, "Action"),
    (Column::Pointer, "Pointer"),
    (Column::Size, "Size"),
    (Column::Stream, "Stream"),
];

/// The position of each column, from the header.
#[derive(Debug)]
pub(super) struct Columns {
    /// The column at each position; `None` if it is ignored.
    places: Vec<Option<Column>>,
}

impl Columns {
    pub(super) fn from_header(line: &[u8]) -> Result<Self, String> {
        // Spreadsheets may write a byte order mark.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let places: Vec<Option<Column>> = line
            .split(|&byte| byte == b',')
            .map(|name| {
                let name = name.trim_ascii();
                NEEDED
                    .iter()
                    .find(|(_, known)| known.as_bytes() == name)
                    .map(|(column, _)| *column)
            })
            .collect();
        for (column, name) in NEEDED {
            let count = places
                .iter()
                .filter(|place| **place == Some(column))
                .count();
            if count != 1 {
                return Err(format!(
                    "the header has {count} columns named {name}; \
                     expected Thread,Time,Action,Pointer,Size,Stream, found {}",
                    quoted(line)
                ));
            }
        }
        Ok(Self { places })
    }

    pub(super) fn row(&self, line: &[u8]) -> Result<Row, String> {
        let (mut action, mut pointer, mut size, mut stream) =
            (&b""[..], &b""[..], &b""[..], &b""[..]);
        let mut found = 0;
        for field in line.split(|&byte| byte == b',') {
            match self.places.get(found) {
                Some(Some(Column::Action)) => action = field.trim_ascii(),
                Some(Some(Column::Pointer)) => pointer = field.trim_ascii(),
                Some(Some(Column::Size)) => size = field.trim_ascii(),
                Some(Some(Column::Stream)) => stream = field.trim_ascii(),
                Some(None) | None => {}
            }
            found += 1;
        }
        if found != self.places.len() {
            let needed = self.places.len();
            return Err(format!(
                "{found} fields where the header has {needed}: {}",
                quoted(line)
            ));
        }
        let of = |bytes: &[u8], name: &str| number(bytes).map_err(|why| format!("{name} {why}"));
        match action {
            b"allocate" => Ok(Row::Alloc {
                pointer: of(pointer, "Pointer")?,
                bytes: of(size, "Size")?,
                stream: of(stream, "Stream")?,
            }),
            b"free" | b"deallocate" => Ok(Row::Free {
                pointer: of(pointer, "Pointer")?,
                bytes: of(size, "Size")?,
                stream: of(stream, "Stream")?,
            }),
            b"allocate failure" => Ok(Row::Failure),
            other => Err(format!(
                "unknown action {}; expected allocate, free, deallocate or allocate failure",
                quoted(other)
            )),
        }
    }
}

/// A hexadecimal number with `0x`, a decimal one, or `(nil)`.
fn number(field: &[u8]) -> Result<u64, String> {
    if field == b"(nil)" {
        return Ok(0);
    }
    let (digits, radix) = match field {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        digits => (digits, 10),
    };
    if digits.is_empty() {
        return Err(format!("{} is not a number", quoted(field)));
    }
    digits.iter().try_fold(0u64, |value, &byte| {
        let digit = char::from(byte).to_digit(radix);
        let digit = digit.ok_or_else(|| format!("{} is not a number", quoted(field)))?;
        value
            .checked_mul(u64::from(radix))
            .and_then(|value| value.checked_add(u64::from(digit)))
            .ok_or_else(|| format!("{} does not fit in 64 bits", quoted(field)))
    })
}

/// At most 48 of the `bytes`, as shown in a message.
fn quoted(bytes: &[u8]) -> String {
    const SHOWN: usize = 48;
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { "…" } else { "" };
    format!("{:?}{more}", String::from_utf8_lossy(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"Thread,Time,Action,Pointer,Size,Stream";

    fn row(line: &[u8]) -> Result<Row, String> {
        Columns::from_header(HEADER).expect("the header").row(line)
    }

    #[test]
    fn a_row_is_read_in_hexadecimal_and_in_decimal() {
        let expected = Row::Alloc {
            pointer: 0x7f00,
            bytes: 512,
            stream: 2,
        };
        assert_eq!(row(b"1,0,allocate,0x7f00,512,0x2"), Ok(expected));
        assert_eq!(row(b"1,0,allocate,32512,0X200,2"), Ok(expected));
        assert_eq!(row(b" 1 , 0 , allocate , 32512 , 512 , 2 "), Ok(expected));
    }

    #[test]
    fn free_and_deallocate_are_the_same() {
        let expected = Row::Free {
            pointer: 1,
            bytes: 2,
            stream: 3,
        };
        assert_eq!(row(b"1,0,free,1,2,3"), Ok(expected));
        assert_eq!(row(b"1,0,deallocate,1,2,3"), Ok(expected));
    }

    #[test]
    fn a_failed_allocation_is_told_apart_whatever_its_pointer() {
        assert_eq!(row(b"1,0,allocate failure,(nil),99,0x0"), Ok(Row::Failure));
        assert_eq!(
            row(b"1,0,allocate,(nil),0,0"),
            Ok(Row::Alloc {
                pointer: 0,
                bytes: 0,
                stream: 0
            })
        );
    }

    #[test]
    fn columns_may_stand_in_any_order_and_others_are_ignored() {
        let columns = Columns::from_header(b"Size,Stream,Note,Pointer,Action").expect("the header");
        let expected = Row::Free {
            pointer: 7,
            bytes: 64,
            stream: 1,
        };
        assert_eq!(columns.row(b"64,1,anything,7,free"), Ok(expected));
    }

    #[test]
    fn a_header_that_lacks_or_repeats_a_column_names_it() {
        let why = Columns::from_header(b"Thread,Time,Action,Pointer,Size").expect_err("no stream");
        assert!(why.contains("0 columns named Stream"), "{why}");
        let why = Columns::from_header(b"Action,Pointer,Size,Size,Stream").expect_err("two sizes");
        assert!(why.contains("2 columns named Size"), "{why}");
    }

    #[test]
    fn a_field_that_is_no_number_is_named_and_shown() {
        for (line, part) in [
            (
                &b"1,0,allocate,0xzz,1,0"[..],
                "Pointer \"0xzz\" is not a number",
            ),
            (b"1,0,allocate,0x,1,0", "Pointer \"0x\" is not a number"),
            (b"1,0,allocate,1,-5,0", "Size \"-5\" is not a number"),
            (b"1,0,allocate,1,,0", "Size \"\" is not a number"),
            (b"1,0,free,1,1,\xff", "Stream"),
            (
                b"1,0,free,1,18446744073709551616,0",
                "does not fit in 64 bits",
            ),
            (b"1,0,realloc,1,1,0", "unknown action \"realloc\""),
            (b"1,0,free,1,1", "5 fields where the header has 6"),
            (b"1,0,free,1,1,0,9", "7 fields where the header has 6"),
        ] {
            let why = row(line).expect_err("malformed");
            assert!(why.contains(part), "{why}");
        }
    }
}
