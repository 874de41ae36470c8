//! No pool at all: lists of parts of one size and stream, taken from what the driver gives and never
//! given back. What a program takes with it is what PyTorch and the plug cost by themselves.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};

use parking_lot::Mutex;

const CHUNK: u64 = 2 << 30;

/// (stream, bytes) that a part serves.
pub(crate) type Part = (u64, u64);

type MemAlloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[derive(Default)]
struct State {
    free: HashMap<Part, Vec<u64>>,
    next: u64,
    end: u64,
}

pub(crate) struct Empty {
    mem_alloc: MemAlloc,
    state: Mutex<State>,
}

fn symbol(name: &CStr) -> *mut c_void {
    const RTLD_NOW: c_int = 2;
    // SAFETY: both names end with a zero; the driver is loaded and stays.
    let found = unsafe { dlsym(dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the driver has no {name:?}");
    found
}

impl Empty {
    pub(crate) fn new() -> Self {
        // SAFETY: the driver's function has this type.
        let mem_alloc =
            unsafe { std::mem::transmute::<*mut c_void, MemAlloc>(symbol(c"cuMemAlloc_v2")) };
        Self {
            mem_alloc,
            state: Mutex::default(),
        }
    }

    pub(crate) fn take(&self, stream: u64, bytes: u64) -> (u64, Part) {
        // Large parts are few sizes, so that programs whose sizes change find those of before.
        let size = match bytes < 1 << 20 {
            true => bytes.next_multiple_of(512),
            false => bytes.next_power_of_two(),
        };
        let part = (stream, size);
        let mut state = self.state.lock();
        if let Some(addr) = state.free.get_mut(&part).and_then(Vec::pop) {
            return (addr, part);
        }
        if state.end - state.next < part.1 {
            let bytes = part.1.max(CHUNK);
            // SAFETY: PyTorch has made the context current; the word is there.
            let code = unsafe { (self.mem_alloc)(&raw mut state.next, bytes as usize) };
            assert!(code == 0, "the driver has no memory left: {code}");
            state.end = state.next + bytes;
        }
        let addr = state.next;
        state.next += part.1;
        (addr, part)
    }

    pub(crate) fn give(&self, addr: u64, part: Part) {
        self.state.lock().free.entry(part).or_default().push(addr);
    }
}
