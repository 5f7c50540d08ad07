#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lapidary_fuzz::pack_cache(data));
