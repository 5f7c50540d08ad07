//! Clients as people use them, unmodified, against `lapidary serve` over a socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::program::{self, Build};
use crate::web::Web;
use crate::{python, run};

/// The source distribution carries the JSON-Schema-Test-Suite, which the wheel does not.
const SUITE_PACKAGE: &str = "jsonschema";
const SUITE: &str = "json/tests/draft2020-12";
const KEY: &str = "sesame";
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long schemathesis tries what `/openapi.json` describes.
const TRY_SECONDS: &str = "30";
/// What its script does.
const SCHEMATHESIS: &str = "from schemathesis.cli import schemathesis; schemathesis()";
/// For one program with tests, which takes half a minute where nothing else runs.
const RUN_LIMIT: Duration = Duration::from_secs(300);
/// For one kind of load.
const LOAD_LIMIT: Duration = Duration::from_secs(3600);

/// The tests of `clients/`, each against pebble; the real model is asked where it was fetched.
pub fn test(root: &Path, weights: Option<&Path>, build: Build) -> Result<()> {
    let tools = match prepare(root) {
        Ok(tools) => tools,
        Err(e) => {
            eprintln!("xtask: SKIPPED clients of the server: {e:#}");
            return Ok(());
        }
    };
    let program = program::build(root, build)?;
    let folder = root.join("target").join("clients");
    let serve = |name: &str, arguments: &[&str]| Server::start(&program, &folder, name, arguments);
    let pebble = serve("pebble", &["pebble"])?;
    let keyed = serve("keyed", &["pebble", "--api-key", KEY])?;
    let real = match weights.and_then(Path::to_str) {
        Some(path) => Some(serve("real", &[&format!("gemma-3-270m={path}"), "--ctx", "2048"])?),
        None => {
            eprintln!("xtask: SKIPPED clients of the real model: it was not fetched");
            None
        }
    };
    let with_servers = |mut command: Command| {
        command.env("LAPIDARY_URL", &pebble.url).env("LAPIDARY_KEYED_URL", &keyed.url);
        command.env("LAPIDARY_KEY", KEY).env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
        match &real {
            Some(real) => command.env("LAPIDARY_REAL_URL", &real.url),
            None => command.env_remove("LAPIDARY_REAL_URL"),
        };
        command
    };
    let python = |arguments: &[&str]| {
        let mut command = with_servers(Command::new(&tools.python));
        command.current_dir(root.join("clients").join("python")).args(arguments);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUTF8", "1");
        command
    };
    let mut schemas = python(&["schemas.py"]);
    if let Some(suite) = &tools.suite {
        schemas.arg("--suite").arg(suite);
    }
    let mut node = with_servers(tools.node.command());
    // One file after another: some tests read what the server counts.
    node.args(["--test", "--test-concurrency=1", "--test-reporter", "spec"]);
    let pytest = python(&["-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]);
    let mut described = python(&["-c", SCHEMATHESIS, "run"]);
    described.arg(format!("{}/openapi.json", pebble.url)).current_dir(&folder);
    described.env("PYTHONPATH", root.join("clients").join("python"));
    described.env("SCHEMATHESIS_HOOKS", "openapi_hooks");
    described.args(["--checks", "not_a_server_error", "--max-time", TRY_SECONDS, "--seed", "1"]);
    described.args(["--request-timeout", "60", "--generation-database", "none"]);
    described.args(["--warnings", "off", "--no-color"]);
    let burst = python(&["load.py", "burst", "--requests", "2", "--distinct", "48"]);
    let mut all = [pytest, schemas, burst, described, node];
    let tested = all.iter_mut().try_for_each(|test| run_within_limit(test, RUN_LIMIT));
    tested.with_context(|| format!("what the servers said is in {}", folder.display()))
}

/// Many clients at once, and ten thousand requests one after another, against the optimised program.
pub fn load(root: &Path, weights: Option<&Path>) -> Result<()> {
    let tools = prepare(root)?;
    let program = program::build(root, Build::Release)?;
    let folder = root.join("target").join("clients");
    let under = |name: &str, model: &str, pid: bool, arguments: &[&str]| -> Result<()> {
        let server = Server::start(&program, &folder, name, &[model, "--ctx", "4096"])?;
        let mut command = Command::new(&tools.python);
        command.current_dir(root.join("clients").join("python")).arg("load.py").args(arguments);
        let model = model.split_once('=').map_or(model, |(name, _)| name);
        command.env("LAPIDARY_URL", &server.url).env("LAPIDARY_MODEL", model);
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        if pid {
            command.args(["--pid", &server.process.id().to_string()]);
        }
        run_within_limit(&mut command, LOAD_LIMIT)
    };
    under("burst", "pebble", false, &["burst"])?;
    under("soak", "pebble", true, &["soak", "--clients", "8", "--requests", "10000"])?;
    match weights.and_then(Path::to_str) {
        Some(path) => under("burst-real", &format!("gemma-3-270m={path}"), false, &["burst"]),
        None => bail!("the real model was not fetched: cargo xtask first-run"),
    }
}

/// Runs a command, and ends it where it hangs.
fn run_within_limit(command: &mut Command, limit: Duration) -> Result<()> {
    let mut process = command.spawn().with_context(|| format!("{command:?}"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = process.try_wait()? {
            return if status.success() {
                Ok(())
            } else {
                bail!("{command:?} failed with {status}")
            };
        }
        if start.elapsed() > limit {
            process.kill()?;
            process.wait()?;
            bail!("{command:?} does not end within {} s", limit.as_secs());
        }
        sleep(Duration::from_millis(50));
    }
}

/// What runs the tests.
pub struct Tools {
    python: PathBuf,
    node: Web,
    suite: Option<PathBuf>,
}

/// Installs the clients.
pub fn prepare(root: &Path) -> Result<Tools> {
    let requirements = root.join("clients").join("python").join("requirements.txt");
    let python = python::venv(root, "clients/venv", &requirements)?;
    let node = Web::open_at(root, root.join("clients").join("node"))?;
    let suite = fetch_suite(root, &python, &requirements).inspect_err(|e| {
        eprintln!("xtask: SKIPPED the schemas of the JSON-Schema-Test-Suite: {e:#}")
    });
    Ok(Tools { python, node, suite: suite.ok() })
}

/// The folder with the suite's schemas.
fn fetch_suite(root: &Path, python: &Path, requirements: &Path) -> Result<PathBuf> {
    let wanted = std::fs::read_to_string(requirements)?;
    let package = wanted
        .lines()
        .find(|line| line.split("==").next() == Some(SUITE_PACKAGE))
        .with_context(|| format!("{} does not name {SUITE_PACKAGE}", requirements.display()))?;
    let name = package.replace("==", "-");
    let folder = root.join("target").join("clients").join("suite");
    let suite = folder.join(&name).join(SUITE);
    if !suite.is_dir() {
        let mut pip = python::pip(python);
        pip.args(["download", "--no-deps", "--no-binary", ":all:", package, "--dest"]);
        run(pip.arg(&folder))?;
        let archive = folder.join(format!("{name}.tar.gz"));
        run(Command::new(python).args(["-m", "tarfile", "--extract"]).arg(archive).arg(&folder))?;
    }
    if !suite.is_dir() {
        bail!("{name} has no folder {SUITE}");
    }
    Ok(suite)
}

/// A server that ends with this.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    /// Starts one at a free port of this machine, and waits until it listens.
    fn start(program: &Path, folder: &Path, name: &str, arguments: &[&str]) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = std::fs::File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new(program);
        command.arg("serve").args(arguments).args(["--port", "0"]).stdin(Stdio::null());
        command.stdout(out.try_clone()?).stderr(out);
        let process = command.spawn().with_context(|| format!("{command:?}"))?;
        let mut server = Server { process, url: String::new() };
        let start = Instant::now();
        while start.elapsed() < START_LIMIT {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let at = said.lines().find_map(|line| line.strip_prefix("serving at "));
            if let Some(url) = at.and_then(|line| line.split_once(' ')) {
                server.url = url.0.to_string();
                return Ok(server);
            }
            if let Some(status) = server.process.try_wait()? {
                bail!("{command:?} ended with {status}: {said}");
            }
            sleep(Duration::from_millis(50));
        }
        bail!("{command:?} does not listen after {} s", START_LIMIT.as_secs())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended of itself, which the tests have noticed.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
