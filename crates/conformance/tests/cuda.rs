//! The suite on NVIDIA GPUs through CUDA. Without one, its tests say that they are skipped.

mod checkpoints;

use std::process::ExitCode;

use checkpoints::{Extent, On};
use lapidary_backend_cuda::CudaBackend;
use lapidary_conformance::{Class, Suite};

const GPU: CudaBackend = CudaBackend;

fn main() -> ExitCode {
    let suite = Suite::new("cuda", &GPU, Class::AnyOrder).with_tests(|| {
        let (class, extent) = (Class::AnyOrder, Extent::Numbers);
        checkpoints::tests(On { backend: &GPU, class, extent })
    });
    lapidary_conformance::run(vec![suite])
}
