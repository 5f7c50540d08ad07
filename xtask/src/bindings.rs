//! The package for Kotlin, and what the tests of all packages below `bindings/` share.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::web::Web;
use crate::{bindgen, packages, run};

/// Debian's packages: Java, what calls C from it, and a runner of tests.
const JAVA: [(&str, &str); 4] = [
    ("default-jre-headless", "/usr/bin/java"),
    ("libjna-java", "/usr/share/java/jna.jar"),
    ("libjna-jni", "/usr/share/doc/libjna-jni"),
    ("junit4", "/usr/share/java/junit4.jar"),
];
const JARS: [&str; 3] =
    ["/usr/share/java/jna.jar", "/usr/share/java/junit4.jar", "/usr/share/java/hamcrest-core.jar"];
/// Jars that come with the compiler.
const COMPILER_JARS: [&str; 4] = [
    "kotlin-stdlib.jar",
    "kotlinx-coroutines-core-jvm.jar",
    "kotlin-test.jar",
    "kotlin-test-junit.jar",
];
/// The package's sources, below the root.
const KOTLIN_SOURCES: &str = "bindings/kotlin/src";
/// The class that has the compiler's `main`.
const COMPILER: &str = "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler";
/// What the first example of a page ends with, when it is run.
pub const EXAMPLE_WORDS: &str = "fox";

/// What Kotlin needs here.
pub struct Kotlin {
    /// The folder of the compiler's jars.
    jars: PathBuf,
}

/// Brings the compiler and what it runs on.
pub fn prepare_kotlin(root: &Path) -> Result<Kotlin> {
    let missing = JAVA.iter().filter(|(_, file)| !Path::new(file).exists());
    let missing: Vec<&str> = missing.map(|(package, _)| *package).collect();
    if !missing.is_empty() {
        packages::install(&missing)?;
    }
    let tools = root.join("bindings/kotlin/tools");
    let jars = tools.join("node_modules/kotlin-compiler/lib");
    Web::open_at(root, tools)?;
    Ok(Kotlin { jars })
}

/// The Kotlin package's tests on the JVM, and the first example of its page.
pub fn test_kotlin(root: &Path, build: Build) -> Result<()> {
    let kotlin = match prepare_kotlin(root) {
        Ok(kotlin) => kotlin,
        Err(e) => {
            eprintln!("xtask: SKIPPED Kotlin: {e:#}");
            return Ok(());
        }
    };
    let library = program::library(root, build)?;
    bindgen::fill_uniffi(root, &library)?;
    let classes = root.join("target").join("kotlin");
    std::fs::create_dir_all(&classes)?;
    let example = classes.join("Example.kt");
    let page = root.join("docs/kotlin.md");
    std::fs::write(&example, first_example(&page, "kotlin")?)?;
    let jar = classes.join("tests.jar");
    kotlin.compile(root, &[&example, &root.join(KOTLIN_SOURCES).join("test/kotlin")], &jar)?;
    let java = |main: &str| kotlin.java(root, &library, &jar, main);
    run(java("org.junit.runner.JUnitCore")?.arg("rs.lapidary.LapidaryTest"))?;
    let output = java("ExampleKt")?.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || !said.contains(EXAMPLE_WORDS) {
        let wrong = String::from_utf8_lossy(&output.stderr);
        bail!("the first example of {} says: {said}{wrong}", page.display());
    }
    Ok(())
}

/// What an event costs on its way from the library, in Kotlin.
pub fn time_kotlin(root: &Path) -> Result<()> {
    let kotlin = prepare_kotlin(root)?;
    let library = program::library(root, Build::Release)?;
    bindgen::fill_uniffi(root, &library)?;
    let classes = root.join("target").join("kotlin");
    std::fs::create_dir_all(&classes)?;
    let jar = classes.join("events.jar");
    kotlin.compile(root, &[&root.join(KOTLIN_SOURCES).join("bench/kotlin")], &jar)?;
    run(&mut kotlin.java(root, &library, &jar, "rs.lapidary.EventsKt")?)
}

impl Kotlin {
    /// Compiles the package, with more sources.
    fn compile(&self, root: &Path, more: &[&Path], jar: &Path) -> Result<()> {
        let compiler = ["kotlin-compiler.jar", "kotlin-stdlib.jar", "kotlin-script-runtime.jar"];
        let compiler = [compiler.as_slice(), &["kotlinx-coroutines-core-jvm.jar"]].concat();
        let compiler: Vec<PathBuf> = compiler.iter().map(|jar| self.jars.join(jar)).collect();
        let mut compile = Command::new("java");
        compile.args(["-Xmx1g", "-cp"]).arg(class_path(&compiler)?).arg(COMPILER);
        compile.arg("-kotlin-home").arg(self.jars.parent().unwrap_or(&self.jars));
        compile.args(["-no-stdlib", "-no-reflect", "-nowarn"]);
        compile.arg("-cp").arg(class_path(&self.used())?).arg("-d").arg(jar);
        for sources in ["main/generated", "main/kotlin"] {
            compile.arg(root.join(KOTLIN_SOURCES).join(sources));
        }
        run(compile.args(more))
    }

    /// What the package and its tests use.
    fn used(&self) -> Vec<PathBuf> {
        let of_compiler = COMPILER_JARS.iter().map(|jar| self.jars.join(jar));
        of_compiler.chain(JARS.iter().map(PathBuf::from)).collect()
    }

    /// A class of a jar, run with a library.
    fn java(&self, root: &Path, library: &Path, jar: &Path, main: &str) -> Result<Command> {
        let folder = library.parent().context("the library lies in no folder")?;
        let mut jars = self.used();
        jars.push(jar.to_path_buf());
        let mut java = Command::new("java");
        // A small heap, so that what the library holds is most of what there is.
        java.args(["-Xmx256m", "-cp"]).arg(class_path(&jars)?);
        java.arg(define("jna.library.path", folder)).arg(define("lapidary.root", root));
        java.arg(main).current_dir(root);
        Ok(java)
    }
}

fn define(name: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(format!("-D{name}="));
    argument.push(path);
    argument
}

fn class_path(jars: &[PathBuf]) -> Result<OsString> {
    std::env::join_paths(jars).context("a path with a colon in it")
}

/// The first code in a page that is marked as of a language.
pub fn first_example(page: &Path, language: &str) -> Result<String> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    let begin = format!("```{language}\n");
    let code = text.split_once(&begin).and_then(|(_, rest)| rest.split_once("```"));
    let (code, _) = code.with_context(|| format!("{} has no example", page.display()))?;
    Ok(code.to_string())
}
