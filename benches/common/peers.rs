//! What moves and conversions are measured beside, from the library that `scripts/bench-peers.sh` builds.

use std::ffi::{CString, c_int, c_uint, c_void};
use std::path::Path;

use warpool::Stream;

type Batched = unsafe extern "C" fn(
    *mut c_void,
    *mut usize,
    *const *const c_void,
    *const *mut c_void,
    *const usize,
    c_uint,
    *mut c_void,
) -> c_int;
type UseMemory = unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> c_int;
type Compute = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_void) -> c_int;
type Transform =
    unsafe extern "C" fn(c_uint, *const c_void, *mut c_void, usize, *mut c_void) -> c_int;

/// The pairs that CUB's transform converts, by their numbers in benches/peers/peers.cu, with the bytes
/// of an element read and written.
pub const TRANSFORMS: [(&str, u64, u64); 8] = [
    ("f32_to_f16", 4, 2),
    ("f32_to_bf16", 4, 2),
    ("f32_to_e4m3", 4, 1),
    ("f16_to_f32", 2, 4),
    ("bf16_to_f32", 2, 4),
    ("bf16_to_e4m3", 2, 1),
    ("e4m3_to_f32", 1, 4),
    ("f64_to_f32", 8, 4),
];

/// The library's functions. They work in the context current on the calling thread.
pub struct Peers {
    batched: Batched,
    use_memory: UseMemory,
    compute: Compute,
    transform: Transform,
}

/// A table for `cub::DeviceMemcpy::Batched`: device addresses of three arrays of 8-byte words.
pub struct BatchedTable {
    pub from: u64,
    pub to: u64,
    pub bytes: u64,
    pub count: u32,
}

impl Peers {
    /// The library at `WARPOOL_BENCH_PEERS`, else where the script puts it; none if there is none.
    pub fn open() -> Option<Self> {
        let path = std::env::var("WARPOOL_BENCH_PEERS").unwrap_or_else(|_| {
            let root = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
            format!("{root}/target/bench-peers/peers.so")
        });
        if !Path::new(&path).is_file() {
            println!("no CUB to compare with: run scripts/bench-peers.sh");
            return None;
        }
        let path = CString::new(path).expect("a path");
        // SAFETY: a library whose loading runs nothing but the CUDA runtime's registration.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        // SAFETY: the functions have these signatures in benches/peers/peers.cu, and the library
        // stays loaded.
        unsafe {
            Some(Self {
                batched: std::mem::transmute::<*mut c_void, Batched>(symbol(
                    library,
                    c"peer_batched",
                )),
                use_memory: std::mem::transmute::<*mut c_void, UseMemory>(symbol(
                    library,
                    c"peer_use_memory",
                )),
                compute: std::mem::transmute::<*mut c_void, Compute>(symbol(
                    library,
                    c"peer_compute",
                )),
                transform: std::mem::transmute::<*mut c_void, Transform>(symbol(
                    library,
                    c"peer_transform",
                )),
            })
        }
    }

    /// Bytes that CUB needs beside the table.
    pub fn batched_needs(&self, table: &BatchedTable, stream: &Stream) -> u64 {
        let mut bytes = 0;
        self.call_batched(std::ptr::null_mut(), &mut bytes, table, stream);
        bytes as u64
    }

    /// Queues the copies of `table`; the `bytes` at `temp` are CUB's meanwhile.
    pub fn batched(&self, temp: u64, bytes: u64, table: &BatchedTable, stream: &Stream) {
        self.call_batched(temp as *mut c_void, &mut (bytes as usize), table, stream);
    }

    fn call_batched(
        &self,
        temp: *mut c_void,
        bytes: &mut usize,
        table: &BatchedTable,
        stream: &Stream,
    ) {
        // SAFETY: the callers' tables name mapped memory alone.
        let code = unsafe {
            (self.batched)(
                temp,
                bytes,
                table.from as *const *const c_void,
                table.to as *const *mut c_void,
                table.bytes as *const usize,
                table.count,
                stream.raw().0 as *mut c_void,
            )
        };
        assert_eq!(code, 0, "cub::DeviceMemcpy::Batched");
    }

    /// Queues a conversion by `cub::DeviceTransform`, of a pair by its place in [`TRANSFORMS`].
    pub fn transform(&self, pair: usize, from: u64, to: u64, count: u64, stream: &Stream) {
        // SAFETY: the callers' ranges are mapped, and have the bytes that the pair's elements take.
        let code = unsafe {
            (self.transform)(
                pair as c_uint,
                from as *const c_void,
                to as *mut c_void,
                count as usize,
                stream.raw().0 as *mut c_void,
            )
        };
        assert_eq!(code, 0, "cub::DeviceTransform");
    }

    /// Queues a kernel that reads and writes the range once.
    pub fn use_memory(&self, addr: u64, bytes: u64, stream: &Stream) {
        let raw = stream.raw().0 as *mut c_void;
        // SAFETY: the callers' ranges are mapped.
        let code = unsafe { (self.use_memory)(addr as *mut c_void, bytes as usize, raw) };
        assert_eq!(code, 0, "the kernel bound by memory");
    }

    /// Queues a kernel of `blocks` blocks that computes and touches no memory.
    pub fn compute(&self, addr: u64, blocks: u32, stream: &Stream) {
        let raw = stream.raw().0 as *mut c_void;
        // SAFETY: the address is mapped, and nothing is written there.
        let code = unsafe { (self.compute)(addr as *mut c_void, blocks, raw) };
        assert_eq!(code, 0, "the kernel bound by arithmetic");
    }
}

unsafe fn symbol(library: *mut c_void, name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: `library` is loaded.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!found.is_null(), "the library lacks {name:?}");
    found
}
