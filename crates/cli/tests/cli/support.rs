//! Runs the command and looks at what is left; makes models to run it on.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use lapidary_program::{blob, lap, method};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Families whose folders are models of their own; the assistants run only beside one of these.
pub const FAMILIES: &[&str] = &[
    "gemma3_text",
    "gemma3_text_sharded",
    "gemma4_text_plain",
    "gemma4_text_dense",
    "gemma4_text_e",
    "gemma4_text_moe",
    "gemma3_mm",
    "gemma4_mm_large",
    "gemma4_mm_e",
    "gemma4_unified",
];

/// What a finished command left.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// A subcommand, to be given its arguments.
pub fn lapidary(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapidary"));
    command.arg(subcommand);
    undisturbed(command)
}

/// A command free of the settings of whoever runs the tests, its output caught.
pub fn undisturbed(mut command: Command) -> Command {
    let flags = [
        "API_KEY",
        "BACKEND",
        "DEVICE",
        "THREADS",
        "CTX",
        "DEBUG",
        "PRECISION",
        "KV",
        "GPU_FEATURES",
    ];
    for name in flags.map(|flag| format!("LAPIDARY_{flag}")) {
        command.env_remove(name);
    }
    command.env("LAPIDARY_CACHE", cache());
    // No test asks the real hub, or finds what its owner downloaded.
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", cache().join("huggingface"));
    for name in ["HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The cache of these tests, emptied once for all of them.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli-cache");
        let _ = fs::remove_dir_all(&root);
        root
    })
}

/// Runs a command to its end. Nothing that it does may look like a panic.
pub fn run(command: &mut Command) -> Ran {
    Ran::of(command.output().expect("the command starts"))
}

/// Runs a command with something on its standard input.
pub fn piped(command: &mut Command, text: &str) -> Ran {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    // One that ends before it has read all says why.
    let _ = stdin.write_all(text.as_bytes());
    drop(stdin);
    Ran::of(child.wait_with_output().expect("it ends"))
}

/// What the built-in model has not seen.
pub fn heldout() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../pebble/heldout")
}

impl Ran {
    pub fn of(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("stderr is UTF-8");
        assert!(!stderr.contains("panicked"), "{stderr}");
        Ran { code: output.status.code(), stdout: output.stdout, stderr }
    }

    /// It did what it was asked.
    #[track_caller]
    pub fn done(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert!(!self.stderr.contains("error:"), "{}", self.stderr);
        self
    }

    /// It ended with a code and said why in one line, with nothing on standard output.
    #[track_caller]
    pub fn refused(self, code: i32, why: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        assert!(self.stdout.is_empty(), "{}", String::from_utf8_lossy(&self.stdout));
        let line = self.stderr.lines().find(|l| l.starts_with("error: "));
        let line = line.unwrap_or_else(|| panic!("no line says the error: {}", self.stderr));
        for part in why {
            assert!(line.contains(part), "`{part}` is not in: {line}");
        }
        self
    }

    /// Standard output as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("stdout is UTF-8")
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).expect("stdout is JSON")
    }
}

/// A file or folder of `testdata`.
pub fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata").join(path)
}

/// The folder of a tiny checkpoint, which has no tokenizer.
pub fn tiny(family: &str) -> PathBuf {
    testdata("tiny").join(family)
}

/// A tiny GGUF file, which has a tokenizer and a chat template.
pub fn gguf() -> PathBuf {
    testdata("gguf/gemma4_text_dense/model.gguf")
}

pub fn temp() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// The names in a folder, hidden ones too.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<String> =
        entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A copy of a tiny checkpoint.
pub fn copy_of(family: &str, to: &Path) -> PathBuf {
    let folder = to.join(family);
    fs::create_dir(&folder).expect("a new folder");
    for name in names(&tiny(family)) {
        fs::copy(tiny(family).join(&name), folder.join(&name)).expect("copied");
    }
    folder
}

/// A copy of `gemma4_text_dense` with a tokenizer and no chat template.
pub fn with_tokenizer(to: &Path) -> PathBuf {
    let folder = copy_of("gemma4_text_dense", to);
    give_tokenizer(&folder);
    folder
}

/// Gives a folder the tokenizer of the tiny GGUF file.
pub fn give_tokenizer(folder: &Path) {
    let twin = lapidary_gemma::open(&gguf(), &Default::default()).expect("it opens");
    let tokenizer = twin.blob(blob::TOKENIZER).expect("it is made").expect("it has a tokenizer");
    fs::write(folder.join("tokenizer.json"), tokenizer).expect("written");
}

/// The same, made to go on for thousands of tokens: no token ends the answer.
pub fn endless(to: &Path) -> PathBuf {
    let folder = with_tokenizer(to);
    edit_json(&folder.join("config.json"), |c| c["max_position_embeddings"] = json!(65536));
    edit_json(&folder.join("generation_config.json"), |c| c["eos_token_id"] = json!([]));
    folder
}

pub fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let bytes = fs::read(path).expect("the file is there");
    let mut value: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    edit(&mut value);
    fs::write(path, value.to_string()).expect("written");
}

/// Exports a model with the command.
pub fn export(model: &Path, out: &Path) -> PathBuf {
    run(lapidary("export").arg(model).arg("-o").arg(out)).done();
    out.to_path_buf()
}

/// Changes a `.lap` file's goldens, and its hashes with them.
pub fn with_goldens_of(weights: &Path, goldens: &Path, out: &Path) {
    let mut program = lapidary_gemma::open(weights, &Default::default()).expect("it opens");
    let other = lap::open(goldens, true).expect("it opens");
    program.set_blob(blob::GOLDEN, other.blobs()[blob::GOLDEN].clone());
    lap::write(&program, out, &mut |_, _| true).expect("written");
}

/// Where a tensor of a safetensors file stands in the file.
pub fn place(bytes: &[u8], tensor: &str) -> std::ops::Range<usize> {
    let (header, metadata) = SafeTensors::read_metadata(bytes).expect("a safetensors file");
    let info = metadata.info(tensor).unwrap_or_else(|| panic!("no tensor {tensor}"));
    8 + header + info.data_offsets.0..8 + header + info.data_offsets.1
}

/// Changes the bytes of one tensor.
pub fn edit_tensor(path: &Path, tensor: &str, edit: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).expect("the file is there");
    let place = place(&bytes, tensor);
    edit(&mut bytes[place]);
    fs::write(path, bytes).expect("written");
}

/// A tensor's shape and numbers.
pub fn f32s(path: &Path, tensor: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let view = file.tensor(tensor).expect("the tensor is there");
    assert_eq!(view.dtype(), Dtype::F32);
    let (values, _) = view.data().as_chunks::<4>();
    (view.shape().to_vec(), values.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

pub fn i64s(path: &Path, tensor: &str) -> (Vec<usize>, Vec<i64>) {
    let bytes = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let view = file.tensor(tensor).expect("the tensor is there");
    assert_eq!(view.dtype(), Dtype::I64);
    let (values, _) = view.data().as_chunks::<8>();
    (view.shape().to_vec(), values.iter().map(|b| i64::from_le_bytes(*b)).collect())
}

/// The largest difference of two rows of numbers.
#[track_caller]
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |worst, (a, b)| {
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { worst.max(d) }
    })
}

/// Ids as `--tokens` takes them.
pub fn joined(ids: &[i64], by: &str) -> String {
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(by)
}

/// Runs `logits` and returns the file it wrote.
pub fn logits<S: AsRef<OsStr>>(model: &Path, tokens: &str, more: &[S], out: &Path) -> PathBuf {
    let mut command = lapidary("logits");
    command.arg(model).args(["--tokens", tokens, "--force"]).args(more).arg("-o").arg(out);
    let ran = run(&mut command).done();
    assert!(ran.stdout.is_empty());
    out.to_path_buf()
}

/// The folder of a released size: its real configuration, and weights that are all hole.
/// Returns the bytes of the weights.
pub fn sparse(name: &str, folder: &Path) -> u64 {
    let released = lapidary_gemma::RELEASED.iter().find(|r| r.name == name).expect("released");
    let skeleton = released.skeleton().expect("it builds");
    // The text side: towers are stored in other shapes than they are used in.
    let forward = &skeleton.method(method::FORWARD).expect("a model").graph;
    let used: Vec<&str> = forward.nodes.iter().flat_map(|n| n.op.weights()).collect();
    let mut header = serde_json::Map::new();
    let mut end = 0u64;
    for (name, decl) in skeleton.weights().iter().filter(|(n, _)| used.contains(&n.as_str())) {
        let start = end;
        end += decl.size_bytes();
        let entry = json!({"dtype": "BF16", "shape": decl.shape, "data_offsets": [start, end]});
        header.insert(name.clone(), entry);
    }
    let mut bytes = Value::Object(header).to_string().into_bytes();
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    let mut file = (bytes.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&bytes);
    let path = folder.join("model.safetensors");
    fs::write(&path, &file).expect("written");
    let open = fs::OpenOptions::new().write(true).open(&path).expect("it opens");
    open.set_len(file.len() as u64 + end).expect("the file system knows holes");
    fs::write(folder.join("config.json"), released.config).expect("written");
    end
}
