//! `kernels/warpool.h` as Rust sees it, made by bindgen or from the committed copy.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    reason = "generated from the C header, which documents every item"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Has launches from now on be cut for a GPU of at most so many multiprocessors, threads on each and bytes of
/// L2; 0 is no bound. For tests: a slice of a GPU gives the same bits. Without kernels for GPUs it does nothing.
pub fn limit_launches(processors: i32, threads: i32, cache: i32) {
    #[cfg(warpool_cuda)]
    // SAFETY: the call stores three numbers.
    unsafe {
        wp_cuda_limit(processors, threads, cache);
    }
    #[cfg(not(warpool_cuda))]
    let _ = (processors, threads, cache);
}
