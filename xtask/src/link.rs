//! Whether the library links where apps load it, and what it asks of those systems: nothing is run.
//!
//! Neither system's tools are here. A list of symbols for each (`xtask/link`) says what its libraries have
//! and the library may use; of that, libraries without contents are made for the linker. Whatever else is
//! used is not found. zig, which comes from PyPI, compiles the parts in C, for a system that is close.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, dist, run, systems};

const ANDROID: &str = "aarch64-linux-android";
/// The C library that zig has and that is closest to Android's.
const CLOSE: &str = "aarch64-linux-musl";
/// Sources of the unwinder, in zig's own folder, which is LLVM's.
const UNWINDER: [&str; 7] = [
    "libunwind.cpp",
    "Unwind-EHABI.cpp",
    "UnwindLevel1.c",
    "UnwindLevel1-gcc-ext.c",
    "Unwind-sjlj.c",
    "UnwindRegistersRestore.S",
    "UnwindRegistersSave.S",
];
/// Android refuses to load what is not made for pages of 16 KiB.
const PAGES: &str = "-zmax-page-size=16384";

/// Links the library for Android.
pub fn check(root: &Path) -> Result<()> {
    if !systems::add(ANDROID) {
        return Ok(());
    }
    let folder = root.join("target/link");
    std::fs::create_dir_all(&folder)?;
    let tools = Tools::new(root, &folder)?;
    let list = root.join("xtask/link").join(format!("{ANDROID}.txt"));
    let list = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    for (library, symbols) in libraries(&list)? {
        tools.stub(&folder, &library, &symbols)?;
    }
    tools.unwinder(&folder)?;

    let flags = [
        format!("-Clinker={}", tools.linker.display()),
        "-Clinker-flavor=ld.lld".into(),
        format!("-Lnative={}", folder.display()),
        "-Clink-arg=-zdefs".into(),
        format!("-Clink-arg={PAGES}"),
        "-Clink-arg=-soname=liblapidary_ffi.so".into(),
    ];
    let mut build = cargo(root);
    build.args(["rustc", "--quiet", "--package", "lapidary-ffi", "--no-default-features"]);
    build.args(["--features", "wgpu", "--lib", "--crate-type", "cdylib", "--target", ANDROID]);
    // What it asks for is the same without optimisation.
    build.args(["--config", "profile.dev.package.\"*\".opt-level=0"]);
    build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    let name = ANDROID.replace('-', "_");
    build.env(format!("CC_{name}"), &tools.cc).env(format!("AR_{name}"), &tools.ar);
    run(build.arg("--target-dir").arg(&folder))?;
    let library = folder.join(ANDROID).join("debug/liblapidary_ffi.so");
    let output = Command::new("readelf").args(["--wide", "-d"]).arg(&library).output()?;
    let needs: Vec<String> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1).map(String::from))
        .collect();
    if needs.is_empty() {
        bail!("readelf finds no libraries in {}", library.display());
    }
    eprintln!("xtask: for {ANDROID} it links, and needs {needs:?}");
    Ok(())
}

/// Each library of a list with the symbols that it has: a line for each, `name: symbol symbol …`.
fn libraries(list: &str) -> Result<Vec<(String, Vec<String>)>> {
    let mut found: Vec<(String, Vec<String>)> = vec![];
    for line in list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        match line.split_once(':') {
            Some((name, rest)) => {
                found.push((name.into(), rest.split_whitespace().map(String::from).collect()));
            }
            None => {
                let (_, symbols) = found.last_mut().context("the list begins with no library")?;
                symbols.extend(line.split_whitespace().map(String::from));
            }
        }
    }
    Ok(found)
}

struct Tools {
    /// Scripts, since cargo and build scripts take a program and no arguments.
    cc: PathBuf,
    ar: PathBuf,
    linker: PathBuf,
    zig: PathBuf,
}

impl Tools {
    fn new(root: &Path, folder: &Path) -> Result<Self> {
        let python = dist::zig(root)?;
        let script = |name: &str, body: &str| -> Result<PathBuf> {
            let path = folder.join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n"))?;
            run(Command::new("chmod").arg("+x").arg(&path))?;
            Ok(path)
        };
        let python = python.display();
        // Build scripts name the system that they compile for; zig knows it by another name.
        let cc = format!(
            "for a; do shift; case \"$a\" in --target=*) ;; *) set -- \"$@\" \"$a\" ;; esac; done\n\
             exec {python} -m ziglang cc -target {CLOSE} -fPIC \"$@\""
        );
        let ar = format!("exec {python} -m ziglang ar \"$@\"");
        let asked = "import ziglang, os; print(os.path.dirname(ziglang.__file__))";
        let zig = said(Command::new(dist::zig(root)?).args(["-c", asked]))?;
        let sysroot = said(Command::new("rustc").current_dir(root).args(["--print", "sysroot"]))?;
        let host = said(Command::new("rustc").args(["--print", "host-tuple"]))?;
        let linker = PathBuf::from(sysroot).join("lib/rustlib").join(host).join("bin/rust-lld");
        Ok(Tools { cc: script("cc", &cc)?, ar: script("ar", &ar)?, linker, zig: zig.into() })
    }

    /// A shared library with these symbols and nothing in them.
    fn stub(&self, folder: &Path, library: &str, symbols: &[String]) -> Result<()> {
        let mut text = String::from(".text\n");
        for symbol in symbols {
            writeln!(text, ".globl {symbol}\n.type {symbol}, %function\n{symbol}: ret")?;
        }
        let (source, object) =
            (folder.join(format!("{library}.s")), folder.join(format!("{library}.o")));
        std::fs::write(&source, text)?;
        run(Command::new(&self.cc).arg("-c").arg(&source).arg("-o").arg(&object))?;
        let mut link = Command::new(&self.linker);
        link.args(["-flavor", "gnu", "-shared", "-soname", &format!("{library}.so")]);
        run(link.arg(&object).arg("-o").arg(folder.join(format!("{library}.so"))))
    }

    /// The unwinder, which on Android is linked into every library.
    fn unwinder(&self, folder: &Path) -> Result<()> {
        let sources = self.zig.join("lib/libunwind");
        let mut objects = vec![];
        for name in UNWINDER {
            let object = folder.join(format!("{name}.o"));
            let mut compile = Command::new(&self.cc);
            compile.args(["-c", "-O1", "-fno-exceptions", "-D_LIBUNWIND_IS_NATIVE_ONLY"]);
            compile.args(["-D__errno_location=__errno", "-Wno-everything"]);
            compile.arg("-I").arg(sources.join("include")).arg(sources.join("src").join(name));
            run(compile.arg("-o").arg(&object))?;
            objects.push(object);
        }
        let archive = folder.join("libunwind.a");
        let _ = std::fs::remove_file(&archive);
        run(Command::new(&self.ar).arg("rcs").arg(&archive).args(&objects))
    }
}

/// What a command says.
fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed with {}", output.status);
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read() {
        let list = "# why\nlibc: abort\n  malloc free\nlibm: sin\n";
        let read = libraries(list).unwrap();
        let expected = [("libc", vec!["abort", "malloc", "free"]), ("libm", vec!["sin"])];
        let read: Vec<(&str, Vec<&str>)> = read
            .iter()
            .map(|(name, symbols)| (name.as_str(), symbols.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(read, expected);
        assert!(libraries("abort\n").is_err());
    }
}
