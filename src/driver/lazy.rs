//! Keeps the lazy libcuda in every program that links warpool.
//!
//! rustacuda's driver calls are resolved by trampolines in an archive inside warpool's rlib
//! (`build/lazy/resolve.c`). A linker takes an object from an archive only if one of its symbols is
//! undefined at that point. rustacuda refers to the symbols only after warpool's archive was
//! searched, so warpool refers to one itself.

unsafe extern "C" {
    /// The number of trampolines; defined beside them.
    static wp_lazy_cuda_functions: u32;
}

/// The reference that pulls the trampolines in; `#[used]` carries it through optimisation into the
/// final link.
#[used]
static TRAMPOLINES: Reference = Reference(&raw const wp_lazy_cuda_functions);

struct Reference(#[expect(dead_code, reason = "only its relocation matters")] *const u32);

// SAFETY: the address of a constant that nothing reads or writes through this.
unsafe impl Sync for Reference {}
