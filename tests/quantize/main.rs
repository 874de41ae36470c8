//! Formats with scales, casts that transpose, and the 8-bit formats' values on the host.

#[path = "../common/mod.rs"]
mod common;
#[path = "../convert/reference.rs"]
mod convert_reference;
mod fp8;
mod ground;
mod integer;
mod mx;
mod pairs;
mod reference;
mod transpose;
mod values;
