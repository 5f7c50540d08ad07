//! `cargo xtask …`: what the project does to itself.

mod aarch64;
mod bindgen;
mod bindings;
mod clients;
mod cuda;
mod debian;
mod deny;
mod dist;
mod dist_bindings;
mod faults;
mod fuzz;
mod gpu;
mod hub;
mod jsi;
mod mlx;
mod packages;
mod program;
mod python;
mod react_native;
mod real_model;
mod rooms;
mod suite;
mod swift;
mod systems;
mod tidy;
mod web;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test          everything that CI checks: format, rules, lints, licences, tests, other systems,
                aarch64, real model; tells at the end how long each took
  test --quick  format, rules, lints, and the tests that need neither GPU nor real model
  systems       the workspace, compiled for the systems that are not here
  aarch64       the CPU backend's NEON kernels, under an emulator where need be
  cuda          compile the CUDA kernels into their bundle; --check compares only
  mlx           bring MLX here (on Linux for the CPU), so that its backend can be tested
  tidy          the project's own rules: which room knows which, sizes, unsafe, names
  web           builds the web page into web/dist
  web --check   whether web/dist is what web/ builds
  web --test    the check, types, and tests of the page, also in Chromium
  web --test --served  the page as `lapidary serve` serves it, with pebble
  dist          what a release is made of, in target/dist: the command for Linux with glibc 2.28 or
                newer, packages for other languages, checksums, and a list of what is inside
  hub           names and downloads, with huggingface_hub as the judge of the cache
  bindings --kotlin    the Kotlin package's tests, on the JVM
  bindings --python    the Python package's tests, with its wheel installed in every Python that is found;
                       with the path of a wheel, that one
  bindings --ray       lapidary.ray on a Ray cluster of two workers
  bindings --react-native  the hook and the example, under jest and in Chromium
  bindings --jsi       the hook over React Native's own JSI and JavaScriptCore, in a Debian of its own
  bindings --all       all of these but Ray, and the Swift package's tests, where need be in that Debian
  bindings --events    what one event of an answer costs in Kotlin and Node, in microseconds
  bindings --generate  writes what UniFFI generates for Kotlin and Swift anew
  bindings --react-native --generate  the same for React Native, by a generator that takes minutes
  clients       clients as people use them, in Python and Node, against `lapidary serve`
  load          many clients at once and ten thousand requests, against an optimised server
  fuzz MINUTES [TARGET…]  each fuzz target for so long, under ASan, and the table in fuzz/README.md
  fuzz --build  builds all fuzz targets
  size          lines of each crate
  first-run     fetch the real Gemma 3 270M and ask it something
  real-model    compare the real Gemma 3 270M with llama.cpp in full (slow)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["test"] => suite::full(&root()),
        ["test", "--quick"] => suite::quick(&root()),
        ["systems"] => systems::check(&root()),
        ["aarch64"] => aarch64::test(&root()),
        ["cuda"] => cuda::build(&root()),
        ["cuda", "--check"] => cuda::check(&root()),
        ["mlx"] => mlx::build(&root()),
        ["tidy"] => suite::rules(&root()),
        ["web"] => web::build(&root()),
        ["web", "--check"] => web::check(&root()),
        ["web", "--test"] => web::test(&root()),
        ["web", "--test", "--served"] => web::test_served(&root(), program::Build::Dev),
        ["clients"] => {
            clients::test(&root(), real_model::fetched(&root()).as_deref(), program::Build::Dev)
        }
        ["load"] => clients::load(&root(), real_model::fetched(&root()).as_deref()),
        ["dist"] => dist::make(&root()),
        ["bindings", "--kotlin"] => bindings::test_kotlin(&root(), program::Build::Dev),
        ["bindings", "--python"] => wheel::test(&root(), program::Build::Dev, wheel::Pythons::All),
        ["bindings", "--python", wheel] => wheel::test_given(&root(), wheel),
        ["bindings", "--ray"] => wheel::test_ray(&root(), program::Build::Dev),
        ["bindings", "--react-native"] => {
            react_native::test(&root(), program::Build::Dev, react_native::Example::Browser)
        }
        ["bindings", "--react-native", "--generate"] => react_native::generate(&root()),
        ["bindings", "--jsi"] => jsi::test(&root()),
        ["bindings", "--all"] => bindings::test_kotlin(&root(), program::Build::Dev)
            .and_then(|()| wheel::test(&root(), program::Build::Dev, wheel::Pythons::All))
            .and_then(|()| {
                react_native::test(&root(), program::Build::Dev, react_native::Example::Browser)
            })
            .and_then(|()| jsi::test(&root()))
            .and_then(|()| swift::test(&root())),
        ["bindings", "--events"] => {
            bindings::time_kotlin(&root()).and_then(|()| react_native::time_events(&root()))
        }
        ["bindings", "--generate"] => bindgen::generate(&root()),
        ["hub"] => hub::test(&root()),
        ["fuzz", "--build"] => fuzz::build(&root()),
        ["fuzz", minutes, names @ ..] => fuzz::campaign(&root(), minutes, names),
        ["size"] => tidy::sizes(&root()),
        ["first-run"] => real_model::first_run(&root()),
        ["real-model"] => real_model::compare(&root(), real_model::Extent::Full),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's folder.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed with {status}");
    }
    Ok(())
}
