//! Formats with scales, casts that transpose, and the 8-bit formats' values on the host.

#[path = "../common/mod.rs"]
mod common;
#[path = "../convert/reference.rs"]
mod convert_reference;
mod empty;
mod fp8;
mod ground;
#[path = "../common/heap_calls.rs"]
mod heap_calls;
mod integer;
mod launch_path;
mod mx;
mod pairs;
mod reference;
mod tables;
mod training;
mod transpose;
mod values;
