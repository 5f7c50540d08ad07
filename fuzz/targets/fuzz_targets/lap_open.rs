#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lapidary_fuzz::lap_open(data));
