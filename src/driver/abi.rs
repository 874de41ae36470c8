//! `kernels/warpool.h` as Rust sees it, made by bindgen or from the committed copy.
#![allow(
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    dead_code,
    reason = "generated from the C header, which documents every item"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
