//! Keeps the lazy libcuda in every program that links warpool.
//!
//! rustacuda's driver calls are resolved by trampolines in an archive inside warpool's rlib
//! (`build/lazy/resolve.c`). A linker takes an object from an archive only when something asks for
//! one of its symbols, and rustacuda's questions come after warpool's archive was searched: so
//! warpool asks.

unsafe extern "C" {
    /// Defined beside the trampolines: their number.
    static wp_lazy_cuda_functions: u32;
}

/// The reference that pulls the trampolines in; `#[used]` carries it through optimisation into the
/// final link.
#[used]
static TRAMPOLINES: Reference = Reference(&raw const wp_lazy_cuda_functions);

struct Reference(#[expect(dead_code, reason = "only its relocation matters")] *const u32);

// SAFETY: the address of a constant that nothing reads or writes through this.
unsafe impl Sync for Reference {}
