//! Tensors from files that may be larger than memory, read on demand.
//!
//! A file is read, never mapped: each part is read directly into page-locked pieces and copied to the
//! device from there. A mapping would need the same copy, since a GPU cannot read pageable memory fast.
//! And if a mapped file is truncated, a signal ends the program; when reading, it is an error.

mod header;
#[cfg(test)]
#[cfg(not(any(loom, shuttle)))]
mod tests;

use std::any::TypeId;
use std::fs::File;
use std::io;
use std::ops::RangeBounds;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytemuck::Pod;

use super::ring::Ring;
use super::{HostPool, Loader};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::pool::{Pool, PoolBuf, bounds};

/// A tensor of a [`TensorFile`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name; empty for a raw file.
    pub name: String,
    /// Its format by the name in safetensors, such as `F32` or `BF16`; for a raw file, the Rust
    /// type's name.
    pub dtype: &'static str,
    /// Its dimensions, the outermost first; none for a scalar.
    pub shape: Vec<usize>,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its offset in the file.
    from: u64,
    /// The type to load its elements as, and that type's name.
    element: (TypeId, &'static str),
    rows: usize,
    /// Number of elements of that type in a row.
    row: usize,
}

/// A file of tensors that are loaded one by one, whole or by rows. The file may be larger than any
/// memory.
///
/// Opening it reads only the header. A tensor is read into four page-locked pieces of up to 2 MiB in
/// turn, and copied to the device from them. Numbers are little-endian, as in safetensors.
///
/// Types for loading: `u8` for `bool`, Rust's integers and floats, [`half::f16`], [`half::bf16`], the 8-bit
/// formats of [`convert`](crate::convert), and `[f32; 2]` for `C64`. Formats below one byte, and those
/// without a type here, are loaded as `u8`. If a row of them is not a whole number of bytes, the tensor is
/// one row.
///
/// If the file is truncated after opening, reading the missing part is an error. If it is written
/// to meanwhile, a read returns old or new bytes. Cheap to clone, safe to use from any thread.
///
/// ```
/// use warpool::{Device, Pool, PoolConfig, host::{HostPool, HostPoolConfig, TensorFile, TensorInfo}};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::host()?;
/// let (pool, stream) = (Pool::new(&device, PoolConfig::default())?, device.stream()?);
/// let host = HostPool::new(&device, HostPoolConfig::default());
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// # let header = br#"{"w":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}}"#;
/// # let size = (header.len() as u64).to_le_bytes();
/// # std::fs::write(&path, [&size[..], header, &[1, 2, 3, 4, 5, 6]].concat())?;
///
/// let file = TensorFile::open(&path)?;
/// let tensors: &[TensorInfo] = file.tensors();
/// for tensor in tensors {
///     println!("{} {} {:?}", tensor.name, tensor.dtype, tensor.shape); // w U8 [2, 3]
/// }
/// let whole = file.load::<u8>(&pool, &host, &stream, "w", ..)?;
/// let second_row = file.load::<u8>(&pool, &host, &stream, "w", 1..2)?;
/// assert_eq!(whole.download()?, [1, 2, 3, 4, 5, 6]);
/// assert_eq!(second_row.download()?, [4, 5, 6]);
///
/// // Reads the next rows during the work on these.
/// let rows = (0..2).map(|at| ("w", at..at + 1));
/// for row in file.load_ahead::<u8, _, _>(&pool, &host, 2, rows)? {
///     assert_eq!(row?.len(), 3);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[doc(alias = "safetensors")]
#[doc(alias = "memmap")]
pub struct TensorFile {
    inner: Arc<Opened>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// The path as the caller passed it.
    name: String,
    tensors: Vec<TensorInfo>,
    /// Indexes in the list, sorted by name.
    by_name: Vec<usize>,
}

/// A part of a tensor.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Its offset in the file.
    from: u64,
    /// Number of elements.
    len: usize,
}

impl TensorFile {
    /// Opens a safetensors file, and reads and checks its header.
    ///
    /// # Errors
    /// [`Error::Malformed`] if the header is damaged, has a name twice or names an unknown format, or if the
    /// tensors overlap, leave gaps, or do not end at the end of the file; [`Error::Os`] if the system cannot open
    /// or read the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let (file, name, bytes) = opened(path.as_ref())?;
        let tensors = header::read(&file, bytes).map_err(|why| why.of(&name))?;
        Ok(Self::of(file, name, tensors))
    }

    /// Opens a file of raw elements as one tensor of this shape without a name, starting at byte `from`.
    /// Bytes after the tensor are ignored.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the shape's bytes overflow; [`Error::Malformed`] if the file ends before
    /// the tensor does; [`Error::Os`] if the system cannot open the file.
    pub fn open_raw<T: Pod>(path: impl AsRef<Path>, from: u64, shape: &[usize]) -> Result<Self> {
        let (file, name, bytes) = opened(path.as_ref())?;
        let size = size_of::<T>();
        let told = header::extent(shape, 8 * size as u64).and_then(|told| told.checked_add(from));
        let Some(end) = told else {
            let why = format!("{shape:?} elements of {size} bytes from byte {from} overflow");
            return Err(Error::invalid("shape", why));
        };
        if end > bytes {
            let why = format!("it has {bytes} bytes, where the tensor ends at {end}");
            return Err(header::Why::Malformed(why).of(&name));
        }
        let (rows, row) = header::rows(shape);
        let tensor = TensorInfo {
            name: String::new(),
            dtype: std::any::type_name::<T>(),
            shape: shape.to_vec(),
            bytes: end - from,
            from,
            element: (TypeId::of::<T>(), std::any::type_name::<T>()),
            rows,
            row,
        };
        Ok(Self::of(file, name, vec![tensor]))
    }

    fn of(file: File, name: String, tensors: Vec<TensorInfo>) -> Self {
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_unstable_by(|&one, &other| tensors[one].name.cmp(&tensors[other].name));
        let inner = Opened {
            file,
            name,
            tensors,
            by_name,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The tensors, in the order of their offsets.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// Loads rows of a tensor into a new buffer on `stream`; `..` means all rows. Rows are counted along
    /// the first dimension. Returns once the file has been read; the last copies may still be under way,
    /// and work on any stream runs after them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the name or the rows do not exist, `T` is not the tensor's type, or the
    /// stream is under capture; [`Error::Malformed`] if the file was truncated; [`Error::Os`] if the
    /// system cannot read it. See also [`Pool::alloc_typed`] and [`HostPool::alloc_waiting`].
    pub fn load<T: Pod>(
        &self,
        pool: &Pool,
        host: &HostPool,
        stream: &Stream,
        name: &str,
        rows: impl RangeBounds<usize>,
    ) -> Result<PoolBuf<T>> {
        let part = self.part::<T>(name, &rows)?;
        // Before memory of the graph is taken.
        stream.core().refuse_under_capture()?;
        let mut buffer = pool.alloc_typed(stream, part.len)?;
        let fill = |at: usize, piece: &mut [T]| self.read(part, at, piece);
        Ring::new(host).upload(stream, buffer.view_mut(), fill)?;
        Ok(buffer)
    }

    /// A [`Loader`] of these parts, each a tensor's name and rows. Up to `depth` parts are read ahead. An
    /// error of [`TensorFile::load`] takes the place of its part.
    ///
    /// # Errors
    /// See [`Loader::new`].
    pub fn load_ahead<T: Pod + Send, N: AsRef<str>, R: RangeBounds<usize>>(
        &self,
        pool: &Pool,
        host: &HostPool,
        depth: usize,
        parts: impl IntoIterator<Item = (N, R), IntoIter: Send + 'static>,
    ) -> Result<Loader<T>> {
        let file = self.clone();
        let parts = parts.into_iter().map(move |(name, rows)| {
            let part = file.part::<T>(name.as_ref(), &rows)?;
            let file = file.clone();
            let fill = move |at: usize, piece: &mut [T]| file.read(part, at, piece);
            Ok((part.len, fill))
        });
        Loader::of_parts(pool, host, depth, parts)
    }

    fn part<T: Pod>(&self, name: &str, rows: &impl RangeBounds<usize>) -> Result<Part> {
        let Opened {
            tensors, by_name, ..
        } = &*self.inner;
        let found = by_name.binary_search_by(|&at| tensors[at].name.as_str().cmp(name));
        let Ok(found) = found else {
            let why = format!("{} has no tensor {name:?}", self.inner.name);
            return Err(Error::invalid("name", why));
        };
        let tensor = &tensors[by_name[found]];
        let (element, its_name) = tensor.element;
        if element != TypeId::of::<T>() {
            let (dtype, asked) = (tensor.dtype, std::any::type_name::<T>());
            let why = format!("{name:?} is of {dtype}: load it as {its_name}, not {asked}");
            return Err(Error::invalid("T", why));
        }
        let (first, end) = bounds(rows, tensor.rows)?;
        Ok(Part {
            from: tensor.from + (first * tensor.row * size_of::<T>()) as u64,
            len: (end - first) * tensor.row,
        })
    }

    /// Reads elements of a part, starting with the element `at`.
    fn read<T: Pod>(&self, part: Part, at: usize, piece: &mut [T]) -> Result<()> {
        let Opened { file, name, .. } = &*self.inner;
        let from = part.from + (at * size_of::<T>()) as u64;
        let read = file.read_exact_at(bytemuck::cast_slice_mut(piece), from);
        read.map_err(|error| header::Why::from(error).of(name))
    }
}

/// Opens a file; returns it with its name and its length.
fn opened(path: &Path) -> Result<(File, String, u64)> {
    let name = path.display().to_string();
    let of_system = |error: io::Error| Error::Os {
        call: "open",
        words: format!("{name}: {error}"),
    };
    let checked = |told: std::fs::Metadata| {
        let why = || String::from("it is no file of a length that is known");
        let bytes = told.is_file().then_some(told.len());
        bytes.ok_or_else(|| header::Why::Malformed(why()).of(&name))
    };
    // Checked before the open, which for a pipe may wait for a writer forever.
    checked(std::fs::metadata(path).map_err(of_system)?)?;
    let file = File::open(path).map_err(of_system)?;
    let bytes = checked(file.metadata().map_err(of_system)?)?;
    Ok((file, name, bytes))
}
