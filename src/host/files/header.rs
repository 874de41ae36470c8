//! The header of a safetensors file: its length in 8 bytes, then JSON with the format, shape and place of
//! each tensor. <https://github.com/huggingface/safetensors#format>

use std::any::{TypeId, type_name};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use half::{bf16, f16};
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::TensorInfo;
use crate::convert::{E4m3, E5m2, E8m0};
use crate::error::Error;

/// Longest header that the format allows.
const LONGEST: u64 = 100_000_000;

/// Most dimensions of a tensor.
const DIMENSIONS: usize = 1000;

/// Bytes quoted from the start and the end of an error text, which may contain words of the header, and be
/// as long.
const QUOTED: usize = 200;

/// Bytes of the header's length.
const LENGTH: u64 = 8;

/// The reason that a file cannot be read.
pub(super) enum Why {
    Malformed(String),
    System(io::Error),
}

impl Why {
    /// The error for the file with this name.
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

/// The tensors of a file of `bytes` bytes, by offset.
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
    let text = str::from_utf8(&text).map_err(|error| format!("its header: {error}"))?;
    let told: Header =
        serde_json::from_str(text).map_err(|error| format!("its header: {error}"))?;
    tensors(told, bytes - LENGTH - length, LENGTH + length)
}

/// The tensors of a header. They have to fill the `bytes` after it, which start at `data`.
fn tensors(told: Header, bytes: u64, data: u64) -> Result<Vec<TensorInfo>, Why> {
    let mut tensors: Vec<TensorInfo> = told.0.into_values().collect();
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
        // Cannot exceed the file: its end is checked below.
        tensor.from = from.saturating_add(data);
    }
    if end != bytes {
        return Err(format!("it has {bytes} bytes behind its header, its tensors {end}").into());
    }
    Ok(tensors)
}

/// The tensors of a header by name. Parsed without a tree of JSON values, which would take many times the
/// header's bytes.
struct Header(BTreeMap<String, TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self(BTreeMap::new()))
    }
}

impl<'de> Visitor<'de> for Header {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                let words: Result<Option<Words>, _> = map.next_value();
                let wrong =
                    |why| A::Error::custom(format!("its __metadata__ is no map of words: {why}"));
                once(&mut metadata, words.map_err(wrong)?, || name)?;
                continue;
            }
            let tensor = map.next_value_seed(Tensor(&name))?;
            if let Some(TensorInfo { name, .. }) = self.0.insert(name, tensor) {
                return Err(A::Error::custom(twice(format!("tensor {name:?}"))));
            }
        }
        Ok(self)
    }
}

/// Sets what the format allows once: of two, one reader takes the first, and another the last.
fn once<T, E: serde::de::Error>(
    place: &mut Option<T>,
    found: T,
    what: impl FnOnce() -> String,
) -> Result<(), E> {
    match place.replace(found) {
        None => Ok(()),
        Some(_) => Err(E::custom(twice(what()))),
    }
}

fn twice(what: String) -> String {
    format!("{what} is there twice")
}

/// Parses the tensor of this name.
struct Tensor<'n>(&'n str);

impl<'de> DeserializeSeed<'de> for Tensor<'_> {
    type Value = TensorInfo;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<TensorInfo, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Tensor<'_> {
    type Value = TensorInfo;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what tensor {:?} is", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TensorInfo, A::Error> {
        let (name, mut dtype, mut shape, mut offsets) = (self.0, None, None, None);
        let wrong =
            |why| move |error| A::Error::custom(format!("{why} of tensor {name:?}: {error}"));
        while let Some(field) = map.next_key::<String>()? {
            let what = |part: &str| format!("{part} of tensor {name:?}");
            match &*field {
                "dtype" => {
                    let found = map.next_value::<String>().map_err(wrong("the dtype"))?;
                    once(&mut dtype, found, || what("the dtype"))?;
                }
                "shape" => {
                    let found = map.next_value::<Row>().map_err(wrong("the shape"))?;
                    once(&mut shape, found.0, || what("the shape"))?;
                }
                "data_offsets" => {
                    let found = map.next_value::<Row>().map_err(wrong("data_offsets"))?;
                    once(&mut offsets, found.0, || what("data_offsets"))?;
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        let lacks = |field| A::Error::custom(format!("tensor {name:?} has no {field}"));
        let dtype = dtype.ok_or_else(|| lacks("dtype"))?;
        let shape = shape.ok_or_else(|| lacks("shape"))?;
        let offsets = offsets.ok_or_else(|| lacks("data_offsets"))?;
        tensor(name, &dtype, shape, &offsets).map_err(A::Error::custom)
    }
}

/// An array of numbers.
struct Row(Vec<usize>);

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Row {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a row of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Self, A::Error> {
        while let Some(number) = seq.next_element()? {
            if self.0.len() == DIMENSIONS {
                return Err(A::Error::custom(format!("more than {DIMENSIONS} numbers")));
            }
            self.0.push(number);
        }
        Ok(self)
    }
}

/// Strings that are checked and not kept.
struct Words;

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Self)
    }
}

impl<'de> Visitor<'de> for Words {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of words")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<String, String>()?.is_some() {}
        Ok(self)
    }
}

/// Makes a tensor from its fields in the header, or returns what is wrong with them.
fn tensor(
    name: &str,
    dtype: &str,
    shape: Vec<usize>,
    offsets: &[usize],
) -> Result<TensorInfo, String> {
    let format = format(dtype)
        .ok_or_else(|| format!("tensor {name:?} is of an unknown dtype, {dtype:?}"))?;
    let &[from, to] = offsets else {
        return Err(format!("tensor {name:?} has no two data_offsets"));
    };
    let (from, to) = (from as u64, to as u64);
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
        name: name.to_owned(),
        dtype: format.name,
        shape,
        bytes,
        from,
        element: format.element,
        rows,
        row,
    })
}

/// Bytes of a tensor; `None` if they overflow or are not whole.
pub(super) fn extent(shape: &[usize], bits: u64) -> Option<u64> {
    let mut sizes = shape.iter().map(|&size| size as u64);
    let elements = sizes.try_fold(1_u64, u64::checked_mul)?;
    let bits = elements.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Number of rows, and elements per row, of a shape whose elements do not overflow.
pub(super) fn rows(shape: &[usize]) -> (usize, usize) {
    let Some((&rows, inner)) = shape.split_first() else {
        return (1, 1);
    };
    // The product may overflow only if there are no rows; then it is never used.
    (
        rows,
        inner
            .iter()
            .fold(1, |all, &size| usize::saturating_mul(all, size)),
    )
}
