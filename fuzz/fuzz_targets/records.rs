#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| warpool_fuzz::targets::records(data));
