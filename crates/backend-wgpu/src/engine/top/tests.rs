use std::io::Write as _;
use std::sync::Arc;

use lapidary_backend::Found;

use super::{MOST, Sought, Top};
use crate::adapter::{Api, Switches};
use crate::device::Gpu;
use crate::engine::call::readback_buffer;

/// Numbers with many equals, zeros of both signs among them.
fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let number = |i: u32| {
        let x = (i.wrapping_add(seed)).wrapping_mul(2_654_435_761) >> 7;
        match x % 5 {
            0 => -0.0,
            1 => 0.0,
            _ => ((x % 1009) as f32 - 700.0) / 16.0,
        }
    };
    (0..len as u32).map(number).collect()
}

/// The definition: sort all.
fn sorted(row: &[f32], k: usize) -> Vec<Found> {
    let found = |(i, x): (usize, &f32)| Found { value: *x, index: i as u32 };
    let mut all: Vec<Found> = row.iter().enumerate().map(found).collect();
    all.sort_by(|a, b| b.value.partial_cmp(&a.value).unwrap().then(a.index.cmp(&b.index)));
    all.truncate(k);
    all
}

/// The `k` best of each row as a GPU has them.
fn on_device(gpu: &Gpu, rows: &[Vec<f32>], k: usize) -> Vec<Vec<Found>> {
    let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
    let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
    let numbers = gpu.buffer("numbers", bytes.len() as u64, usage).unwrap();
    gpu.queue.write_buffer(&numbers, 0, &bytes);
    let sought = Sought::new("forward", 0, k);
    let top = Top::new(gpu, sought, &numbers, (rows.len(), rows[0].len())).unwrap();
    assert!(top.stages.len() <= 3);
    let mut encoder = gpu.encoder();
    top.record(&mut encoder, rows.len());
    let size = top.size_bytes(rows.len());
    let readback = readback_buffer(gpu, size).unwrap();
    encoder.copy_buffer_to_buffer(&top.best, 0, &readback, 0, size);
    gpu.queue.submit([encoder.finish()]);
    let mut found = Vec::new();
    let of_row = k.min(rows[0].len());
    gpu.map(&readback, size)
        .wait(gpu, &mut |bytes| found.extend(top.found(bytes, of_row)))
        .unwrap();
    found.chunks(of_row).map(<[Found]>::to_vec).collect()
}

/// The GPU as it is, and with nothing but what every GPU has.
fn gpus() -> Vec<Arc<Gpu>> {
    let mut gpus = Vec::new();
    for switches in [Switches::ALL, Switches::NONE] {
        // Devices that no other test has, whose errors would be taken for ours.
        let switches = Switches { shard: Some(2 << 20), ..switches };
        match Api::Vulkan.adapters(Some(switches)) {
            Ok(adapters) => gpus.push(Gpu::open(Api::Vulkan, &adapters[0], None).unwrap()),
            Err(e) => _ = writeln!(std::io::stderr(), "SKIPPED: {e}"),
        }
    }
    gpus
}

#[test]
fn the_largest_are_those_of_a_sort() {
    for gpu in gpus() {
        for len in [1, 63, 2049, 262_144] {
            let rows = [numbers(len, 3), numbers(len, 1 << 20)];
            for k in [1, 4, 40, 64, MOST] {
                let found = on_device(&gpu, &rows, k);
                let wanted: Vec<_> = rows.iter().map(|row| sorted(row, k)).collect();
                assert_eq!(found, wanted, "{k} of {len} on {}", gpu.name);
            }
        }
    }
}

#[test]
fn what_is_not_finite_comes_first() {
    for gpu in gpus() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut rows = [numbers(5000, 1), numbers(5000, 2)];
            rows[1][4321] = bad;
            for k in [1, 64] {
                let found = on_device(&gpu, &rows, k);
                assert_eq!(found[0], sorted(&rows[0], k));
                assert!(found[1][0].value.is_nan() && found[1][0].index == 4321, "{bad}");
            }
        }
    }
}
