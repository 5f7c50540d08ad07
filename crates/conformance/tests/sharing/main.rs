//! What the runner promises of pages, prefixes and time, on the mock and on real engines: each
//! property is written once, over any engine.
//!
//! `mock` is exact and quick. `reference` is a tiny checkpoint. `cpu` and `vulkan` are pebble, whose
//! context is made as long as a property asks for. What a GPU that is software can't do in time, it
//! does with fewer tokens.

mod ask;
mod engines;
mod prefixes;
mod schedule;

use std::process::ExitCode;

use lapidary_conformance::harness::{self, Group, Test};

use engines::{Kept, Kind, On, Room, Sizes};

const FULL: Sizes = Sizes {
    prefix: 4096,
    own: 30,
    history: 3000,
    question: 2000,
    thinking: 300,
    after: 100,
    long: 8000,
    arrives: 20,
    crowd: 64,
    room_for: 8,
    common: 0,
    answer: 40,
    trunk: 400,
    forks: &[1, 8, 15, 64, 99, 127, 128, 129, 192, 255, 256, 257, 300, 383, 384, 385, 399],
    saved: &[1, 127, 128, 129, 500],
    operations: 10_000,
    lengths: &[5, 110, 128, 250, 400],
    check_each: 1,
};

/// Texts of a page and a little more.
const SMALL: Sizes = Sizes {
    prefix: 140,
    own: 6,
    history: 200,
    question: 140,
    thinking: 12,
    after: 6,
    long: 300,
    arrives: 6,
    crowd: 8,
    room_for: 2,
    common: 112,
    answer: 4,
    trunk: 140,
    forks: &[128, 130],
    saved: &[130],
    operations: 80,
    lengths: &[5, 60, 126],
    check_each: 8,
};

static MOCK: On = On { name: "mock", kind: Kind::Mock, sizes: FULL, tolerance: 0.0, kept: None };

static CPU: On = On {
    name: "cpu",
    kind: Kind::Backend(&lapidary_backend_cpu::CpuBackend, engines::pebble),
    sizes: Sizes { operations: 600, answer: 24, check_each: 4, ..FULL },
    tolerance: 0.0,
    kept: None,
};

static REFERENCE: On = On {
    name: "reference",
    kind: Kind::Backend(&lapidary_reference::ReferenceBackend, engines::tiny),
    sizes: Sizes {
        prefix: 512,
        history: 400,
        long: 1000,
        crowd: 64,
        room_for: 8,
        forks: &[1, 64, 127, 128, 129, 139],
        operations: 300,
        ..SMALL
    },
    tolerance: 0.0,
    kept: None,
};

static GPU: On = On {
    name: "vulkan",
    kind: Kind::Backend(&lapidary_backend_wgpu::WgpuBackend::VULKAN, engines::pebble),
    sizes: SMALL,
    // A GPU has other kernels for few tokens than for many, and they sum in another order.
    tolerance: 2e-3,
    // Software compiles its kernels anew for each engine.
    kept: Some(&KEPT),
};

static KEPT: Kept = Kept::new(Room { context: 700, chunk: 256, sequences: 12, pages: Some(32) });

type Property = fn(&On);

const PROPERTIES: &[(&str, Property)] = &[
    ("many in pages for few all finish as they would alone", schedule::a_crowd),
    ("a shared prefix is run once", prefixes::shared),
    ("an answer again runs at most a page", prefixes::regenerated),
    ("thinking that was cut costs what comes after it", prefixes::thinking),
    ("a fork at any position is as a fresh run", prefixes::forks),
    ("what was saved is as good as run", prefixes::saved),
    ("a long prompt does not hold up answers", schedule::time),
    ("cancelling at any time returns every page", schedule::cancelled),
];

fn main() -> ExitCode {
    let group = |on: &'static On| {
        let test = |(name, property): &(&str, Property)| {
            let property = *property;
            Test::new(&[name], move || {
                let _turn = on.turn();
                property(on);
                Ok(())
            })
        };
        let tests = PROPERTIES.iter().map(test).collect();
        Group { name: on.name, absent: on.absent(), ignored: &[], tests }
    };
    harness::run([&MOCK, &REFERENCE, &CPU, &GPU].map(group).into())
}
