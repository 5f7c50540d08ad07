//! The suite through MLX, on the first device that it was built for. Without MLX, its tests say that
//! they are skipped; `cargo xtask mlx` brings what is needed for MLX on the CPU.

mod checkpoints;
mod faults;

use std::process::ExitCode;

use checkpoints::{Extent, On};
use lapidary_backend_mlx::MlxBackend;
use lapidary_conformance::{Class, Suite};

const MLX: MlxBackend = MlxBackend;

fn main() -> ExitCode {
    let suite = Suite::new("mlx", &MLX, Class::AnyOrder).with_tests(|| {
        let (class, extent) = (Class::AnyOrder, Extent::Numbers);
        let mut tests = checkpoints::tests(On { backend: &MLX, class, extent });
        tests.extend(faults::tests(&MLX));
        tests
    });
    lapidary_conformance::run(vec![suite])
}
