//! NCCL's calls, from `libnccl.so.2`, which is opened when the first of them is needed.
//!
//! Declared by hand after its documentation. The library is never closed.

#![allow(non_snake_case, reason = "calls keep the library's own names")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use crate::error::{Error, Result};
use crate::sync::plain::lock;

/// `ncclComm_t`.
pub(super) type RawComm = *mut c_void;
/// `ncclInProgress`: the call has not finished.
pub(super) const IN_PROGRESS: c_int = 7;
/// The library's file name.
const NAME: &str = "libnccl.so.2";
/// Most blocks of one of our kernels. This is the default by NCCL's documentation; later versions use up to
/// 64.
pub(super) const MOST_BLOCKS: u32 = 32;
/// The oldest version with all needed calls, in NCCL's number format.
const OLDEST: c_int = 21_800;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

/// `ncclConfig_t` of 2.17; later versions accept it by its size and version fields.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
}

impl Config {
    /// Calls return when they are done, kernels have at most [`MOST_BLOCKS`] blocks; all other settings keep
    /// the library's defaults.
    pub(super) fn blocking() -> Self {
        // `NCCL_CONFIG_UNDEF_INT`: the library's default.
        const UNDEFINED: c_int = c_int::MIN;
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21_700,
            blocking: 1,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: MOST_BLOCKS as c_int,
            net_name: std::ptr::null(),
        }
    }
}

macro_rules! calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// The calls, resolved.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> $answer,)*
            /// Set for a replacement of NCCL in tests; its ranks are host devices.
            pub(super) stands_in: bool,
        }

        impl Library {
            fn resolve(file: &str, find: &dyn Fn(&CStr) -> *mut c_void) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let symbol = CString::new(stringify!($name)).unwrap_or_default();
                        let found = find(&symbol);
                        if found.is_null() {
                            return Err(failure(format!(
                                "{file} has no call {}: NCCL 2.18 or later is needed",
                                stringify!($name),
                            )));
                        }
                        // SAFETY: the library's call of this name has this signature.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($type),*) -> $answer,
                            >(found)
                        }
                    },)*
                    stands_in: !find(c"warpool_stands_in").is_null(),
                })
            }
        }
    };
}

calls! {
    ncclGetVersion(version: *mut c_int) -> c_int;
    ncclGetUniqueId(id: *mut UniqueId) -> c_int;
    ncclGetErrorString(code: c_int) -> *const c_char;
    ncclGetLastError(comm: RawComm) -> *const c_char;
    ncclCommInitRankConfig(comm: *mut RawComm, ranks: c_int, id: UniqueId, rank: c_int, config: *const Config) -> c_int;
    ncclCommSplit(comm: RawComm, color: c_int, key: c_int, made: *mut RawComm, config: *const Config) -> c_int;
    ncclCommCount(comm: RawComm, ranks: *mut c_int) -> c_int;
    ncclCommCuDevice(comm: RawComm, device: *mut c_int) -> c_int;
    ncclCommGetAsyncError(comm: RawComm, error: *mut c_int) -> c_int;
    ncclCommFinalize(comm: RawComm) -> c_int;
    ncclCommDestroy(comm: RawComm) -> c_int;
    ncclCommAbort(comm: RawComm) -> c_int;
    ncclGroupStart() -> c_int;
    ncclGroupEnd() -> c_int;
    ncclAllReduce(src: u64, dst: u64, count: usize, kind: c_int, op: c_int, comm: RawComm, stream: u64) -> c_int;
    ncclReduceScatter(src: u64, dst: u64, count: usize, kind: c_int, op: c_int, comm: RawComm, stream: u64) -> c_int;
    ncclAllGather(src: u64, dst: u64, count: usize, kind: c_int, comm: RawComm, stream: u64) -> c_int;
    ncclBroadcast(src: u64, dst: u64, count: usize, kind: c_int, root: c_int, comm: RawComm, stream: u64) -> c_int;
    ncclSend(src: u64, count: usize, kind: c_int, to: c_int, comm: RawComm, stream: u64) -> c_int;
    ncclRecv(dst: u64, count: usize, kind: c_int, from: c_int, comm: RawComm, stream: u64) -> c_int;
}

fn failure(words: String) -> Error {
    Error::Os {
        call: "opening NCCL",
        words,
    }
}

static LIBRARY: OnceLock<&'static Library> = OnceLock::new();

impl Library {
    /// NCCL, opened by the first call that finds it.
    pub(super) fn get() -> Result<&'static Self> {
        static OPENING: Mutex<()> = Mutex::new(());
        if let Some(library) = LIBRARY.get() {
            return Ok(library);
        }
        let _one = lock(&OPENING);
        let library = match LIBRARY.get() {
            Some(library) => library,
            None => Self::search(&places(&|name| std::env::var_os(name)))?,
        };
        Ok(LIBRARY.get_or_init(|| library))
    }

    /// Opens the library from the first place that has it.
    fn search(places: &[PathBuf]) -> Result<&'static Self> {
        let mut looked = Vec::new();
        for place in places {
            match open(place) {
                Ok(handle) => return Self::of(place, handle),
                Err(why) => looked.push(format!("{} ({why})", place.display())),
            }
        }
        Err(failure(format!(
            "{NAME} was looked for at {}; install NCCL, or name it in WARPOOL_NCCL",
            looked.join(", ")
        )))
    }

    fn of(place: &Path, handle: *mut c_void) -> Result<&'static Self> {
        // SAFETY: the library is open and stays so; symbols are C strings.
        let find = |symbol: &CStr| unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        let library = Self::resolve(&place.display().to_string(), &find)?;
        let version = library.version();
        if version < OLDEST {
            let why = format!(
                "{} is of version {version}: 2.18 or later is needed",
                place.display()
            );
            return Err(failure(why));
        }
        Ok(Box::leak(Box::new(library)))
    }

    /// The version in NCCL's number format.
    pub(super) fn version(&self) -> c_int {
        let mut version = 0;
        // SAFETY: the call writes one integer.
        unsafe { (self.ncclGetVersion)(&raw mut version) };
        version
    }

    /// An error with the call, the code and NCCL's message, unless the code is 0.
    pub(super) fn ok(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: both return C strings that are valid until the next call; they are copied before it.
        let words = unsafe {
            let text = |text: *const c_char| match text.is_null() {
                true => String::new(),
                false => CStr::from_ptr(text).to_string_lossy().into_owned(),
            };
            let last = text((self.ncclGetLastError)(std::ptr::null_mut()));
            let words = text((self.ncclGetErrorString)(code));
            match last.trim() {
                "" => words,
                last => format!("{words}; {last}"),
            }
        };
        Err(Error::Driver { call, code, words })
    }
}

/// Opens a library and returns its handle, or the loader's message.
fn open(path: &Path) -> std::result::Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: opening it runs its initialisers, which is the purpose.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: the loader's message is a C string until its next call on this thread.
    let words = unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => String::from("the loader does not say why"),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    };
    Err(words)
}

/// Opens the library of this file as NCCL, for the whole process.
///
/// # Errors
/// See [`Comm::nccl`](super::super::Comm::nccl); [`Error::Invalid`] if a library is open already.
pub fn open_library(path: &Path) -> Result<()> {
    let library = Library::search(&[path.to_owned()])?;
    LIBRARY
        .set(library)
        .map_err(|_| Error::invalid("path", "a library is open already"))
}

/// Where NCCL may be: only where `WARPOOL_NCCL` says, if set; otherwise on the loader's path or among
/// Python's packages.
fn places(get: &dyn Fn(&'static str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    let get = |name| {
        get(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(named) = get("WARPOOL_NCCL") {
        return match named.is_dir() {
            true => vec![named.join(NAME)],
            false => vec![named],
        };
    }
    let mut places = vec![PathBuf::from(NAME)];
    let roots = [get("VIRTUAL_ENV"), get("CONDA_PREFIX")]
        .into_iter()
        .flatten();
    let roots = roots.chain([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
    for root in roots {
        let Ok(entries) = std::fs::read_dir(root.join("lib")) else {
            continue;
        };
        let mut pythons: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_name().as_bytes().starts_with(b"python3"))
            .map(|entry| entry.path())
            .collect();
        pythons.sort();
        for python in pythons {
            for packages in ["site-packages", "dist-packages"] {
                let found = python.join(packages).join("nvidia/nccl/lib").join(NAME);
                places.extend(found.exists().then_some(found));
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn a_machine_without_nccl_is_told_which_library_and_where_it_was_looked_for() {
        let nowhere = [
            PathBuf::from("libnccl.so.none"),
            PathBuf::from("/nonexistent/libnccl.so.2"),
        ];
        let error = Library::search(&nowhere)
            .err()
            .expect("it is not there")
            .to_string();
        for part in [
            NAME,
            "libnccl.so.none",
            "/nonexistent/libnccl.so.2",
            "WARPOOL_NCCL",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_library_that_is_not_nccl_is_told_by_the_call_that_it_lacks() {
        let error = Library::resolve("libm.so", &|_| std::ptr::null_mut())
            .err()
            .unwrap();
        let words = error.to_string();
        assert!(
            words.contains("libm.so") && words.contains("ncclGetVersion"),
            "{words}"
        );
    }

    #[test]
    fn pythons_packages_are_looked_in_and_the_variable_goes_before_all() {
        let folder = tempfile::tempdir().unwrap();
        let packages = folder
            .path()
            .join("lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&packages).unwrap();
        std::fs::write(packages.join(NAME), []).unwrap();
        let of = |name: &'static str, value: &Path| {
            let value = OsString::from(value);
            places(&move |asked| (asked == name).then(|| value.clone()))
        };
        let found = of("VIRTUAL_ENV", folder.path());
        assert_eq!(found[..2], [PathBuf::from(NAME), packages.join(NAME)]);
        assert_eq!(of("WARPOOL_NCCL", &packages), [packages.join(NAME)]);
        let file = packages.join(NAME);
        assert_eq!(of("WARPOOL_NCCL", &file), [file]);
    }
}
