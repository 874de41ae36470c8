//! The header of a safetensors file: its length in 8 bytes, then JSON that gives of each tensor its format,
//! shape and place behind the header. <https://github.com/huggingface/safetensors#format>

use std::any::{TypeId, type_name};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use serde_json::{Map, Value};

use super::TensorInfo;
use crate::convert::{E4m3, E5m2, E8m0};
use crate::error::Error;

/// Longest header that the format allows.
const LONGEST: u64 = 100_000_000;

/// Bytes at the begin and at the end of what is told of a header: its words may be any, and as long as it.
const QUOTED: usize = 200;

/// Bytes of the header's length.
const LENGTH: u64 = 8;

/// Why a file cannot be read.
pub(super) enum Why {
    Malformed(String),
    System(io::Error),
}

impl Why {
    /// The error about the file of this name.
    pub(super) fn of(self, name: &str) -> Error {
        match self {
            Self::Malformed(why) => Error::Malformed {
                file: name.to_owned(),
                line: 0,
                why,
            },
            Self::System(error) => Error::Os {
                call: "read",
                words: format!("{name}: {error}"),
            },
        }
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::Malformed(String::from(
                "it ends before what was to be read: it was cut short",
            ));
        }
        Self::System(error)
    }
}

impl From<String> for Why {
    fn from(why: String) -> Self {
        let Some(tail) = why.len().checked_sub(QUOTED).filter(|&at| at > QUOTED) else {
            return Self::Malformed(why);
        };
        let [head, tail] = [QUOTED, tail].map(|at| {
            let mut before = (0..=at).rev();
            before.find(|&at| why.is_char_boundary(at)).unwrap_or(0)
        });
        Self::Malformed(format!("{} ... {}", &why[..head], &why[tail..]))
    }
}

/// A format of elements.
struct Format {
    name: &'static str,
    bits: u64,
    element: (TypeId, &'static str),
}

fn format(name: &str) -> Option<Format> {
    macro_rules! formats {
        ($($known:literal, $bits:literal, $element:ty;)*) => {
            match name {
                $($known => Some(Format {
                    name: $known,
                    bits: $bits,
                    element: (TypeId::of::<$element>(), type_name::<$element>()),
                }),)*
                _ => None,
            }
        };
    }
    formats! {
        "F4", 4, u8;
        "F6_E2M3", 6, u8;
        "F6_E3M2", 6, u8;
        "BOOL", 8, u8;
        "U8", 8, u8;
        "I8", 8, i8;
        "F8_E5M2", 8, E5m2;
        "F8_E4M3", 8, E4m3;
        "F8_E8M0", 8, E8m0;
        "F8_E4M3FNUZ", 8, u8;
        "F8_E5M2FNUZ", 8, u8;
        "I16", 16, i16;
        "U16", 16, u16;
        "F16", 16, f16;
        "BF16", 16, bf16;
        "I32", 32, i32;
        "U32", 32, u32;
        "F32", 32, f32;
        "C64", 64, [f32; 2];
        "F64", 64, f64;
        "I64", 64, i64;
        "U64", 64, u64;
    }
}

/// The tensors of a file of `bytes`, as they lie in it.
pub(super) fn read(file: &File, bytes: u64) -> Result<Vec<TensorInfo>, Why> {
    let mut length = [0; LENGTH as usize];
    file.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return Err(format!("its header is told to have {length} bytes, above {LONGEST}").into());
    }
    if LENGTH + length > bytes {
        let why = format!("its header is told to have {length} bytes, where the file has {bytes}");
        return Err(why.into());
    }
    let mut text = vec![0; length as usize];
    file.read_exact_at(&mut text, LENGTH)?;
    let told: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|error| format!("its header: {error}"))?;
    tensors(told, bytes - LENGTH - length, LENGTH + length)
}

/// The tensors that a header tells of, which have to fill the `bytes` behind it, from `data` on.
fn tensors(told: Map<String, Value>, bytes: u64, data: u64) -> Result<Vec<TensorInfo>, Why> {
    let mut tensors = Vec::with_capacity(told.len());
    for (name, value) in told {
        if name == "__metadata__" {
            let words = value
                .as_object()
                .map(|map| map.values().all(Value::is_string));
            if words != Some(true) && !value.is_null() {
                return Err(String::from("its __metadata__ is no map of words").into());
            }
            continue;
        }
        tensors.push(tensor(name, &value)?);
    }
    tensors.sort_by_key(|tensor| (tensor.from, tensor.bytes));
    let mut end = 0;
    for tensor in &mut tensors {
        let (name, from) = (&tensor.name, tensor.from);
        if from != end {
            let wrong = if from < end {
                "overlaps"
            } else {
                "leaves a gap behind"
            };
            return Err(
                format!("tensor {name:?} at {from} {wrong} the one that ends at {end}").into(),
            );
        }
        end = from
            .checked_add(tensor.bytes)
            .ok_or_else(|| format!("tensor {name:?} overflows"))?;
        // Within the file, as is checked below.
        tensor.from = from.saturating_add(data);
    }
    if end != bytes {
        return Err(format!("it has {bytes} bytes behind its header, its tensors {end}").into());
    }
    Ok(tensors)
}

/// What the header says of one tensor.
fn tensor(name: String, told: &Value) -> Result<TensorInfo, Why> {
    let field = |field| {
        let found = told.get(field);
        found.ok_or_else(|| format!("tensor {name:?} has no {field}"))
    };
    let dtype = field("dtype")?;
    let format = dtype.as_str().and_then(format);
    let format =
        format.ok_or_else(|| format!("tensor {name:?} is of an unknown dtype, {dtype}"))?;
    let shape = lengths(field("shape")?);
    let shape =
        shape.ok_or_else(|| format!("the shape of tensor {name:?} is no row of numbers"))?;
    let offsets = lengths(field("data_offsets")?).filter(|told| told.len() == 2);
    let offsets = offsets.ok_or_else(|| format!("tensor {name:?} has no two data_offsets"))?;
    let (from, to) = (offsets[0] as u64, offsets[1] as u64);
    let bytes = extent(&shape, format.bits);
    let bytes = bytes
        .filter(|&bytes| to.checked_sub(from) == Some(bytes))
        .ok_or_else(|| {
            format!(
                "tensor {name:?} of {} and shape {shape:?} is not what {from}..{to} holds",
                format.name
            )
        })?;
    let (mut rows, mut row) = rows(&shape);
    if format.bits < 8 {
        let whole = (row as u64)
            .checked_mul(format.bits)
            .filter(|bits| bits.is_multiple_of(8));
        (rows, row) = whole.map_or((1, bytes as usize), |bits| (rows, (bits / 8) as usize));
    }
    Ok(TensorInfo {
        name,
        dtype: format.name,
        shape,
        bytes,
        from,
        element: format.element,
        rows,
        row,
    })
}

/// A row of numbers.
fn lengths(told: &Value) -> Option<Vec<usize>> {
    let number = |value: &Value| value.as_u64().and_then(|value| usize::try_from(value).ok());
    told.as_array()?.iter().map(number).collect()
}

/// Whole bytes of a tensor; none where they overflow, or are no whole ones.
pub(super) fn extent(shape: &[usize], bits: u64) -> Option<u64> {
    let mut sizes = shape.iter().map(|&size| size as u64);
    let elements = sizes.try_fold(1_u64, u64::checked_mul)?;
    let bits = elements.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Rows of a shape whose elements do not overflow, and elements of a row.
pub(super) fn rows(shape: &[usize]) -> (usize, usize) {
    let Some((&rows, inner)) = shape.split_first() else {
        return (1, 1);
    };
    // The product with no rows may overflow: no row is ever asked for then.
    (
        rows,
        inner
            .iter()
            .fold(1, |all, &size| usize::saturating_mul(all, size)),
    )
}
