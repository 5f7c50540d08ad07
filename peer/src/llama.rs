//! llama.cpp's side. Tests are those of llama-bench: no sampling, batches of 512.

use std::ffi::CStr;
use std::num::NonZeroU32;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::mtmd::{
    MtmdBitmap, MtmdContext, MtmdContextParams, MtmdInputChunk, MtmdInputChunkType, MtmdInputText,
    mtmd_default_marker,
};
use llama_cpp_2::token::LlamaToken;

use crate::args::EngineArgs;
use crate::machine;
use crate::media::{self, Cost};
use crate::protocol::{Test, arbitrary_tokens};
use crate::worker::Engine;

/// Tokens of one call, as llama-bench's physical batch.
const BATCH: u32 = 512;
/// Calls of one verifying measurement; their median counts.
const VERIFY_CALLS: usize = 7;

/// A model in llama.cpp.
pub struct Llama {
    model: &'static LlamaModel,
    context: LlamaContext<'static>,
    batch: LlamaBatch<'static>,
    towers: Option<MtmdContext>,
    build: String,
}

/// The most soft tokens of an image where a model leaves it open: Gemma 4's own default, which
/// Lapidary takes. llama.cpp would take up to 1120, and so do more work.
const IMAGE_TOKENS: i32 = 280;

/// Which tokens of a call reach the output head.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    Last,
    All,
}

impl Llama {
    /// Loads with llama.cpp's defaults: mapped file, repacked weights, flash attention where it
    /// helps; sliding layers keep their window only, as llama-cli has it.
    pub fn load(args: &EngineArgs) -> Result<Self> {
        let build = build()?;
        let mut backend = LlamaBackend::init()?;
        backend.void_logs();
        let model =
            LlamaModel::load_from_file(&backend, &args.model, &LlamaModelParams::default())?;
        // The context borrows the model; both live as long as this process.
        let model: &'static LlamaModel = Box::leak(Box::new(model));
        let n_threads = i32::from(args.threads);
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(args.context))
            .with_n_batch(BATCH)
            .with_n_ubatch(BATCH)
            .with_n_threads(n_threads)
            .with_n_threads_batch(n_threads)
            .with_swa_full(false);
        let context = model.new_context(&backend, params)?;
        std::mem::forget(backend);
        let towers = match &args.mmproj {
            Some(path) => {
                silence_towers();
                let params = MtmdContextParams {
                    use_gpu: false,
                    print_timings: false,
                    n_threads,
                    image_max_tokens: IMAGE_TOKENS,
                    ..MtmdContextParams::default()
                };
                let path = path.to_str().context("the path of the towers is not UTF-8")?;
                Some(MtmdContext::init_from_file(path, model, &params)?)
            }
            None => None,
        };
        Ok(Llama { model, context, batch: LlamaBatch::new(BATCH as usize, 1), towers, build })
    }

    fn clear(&mut self) {
        self.context.clear_kv_cache();
        self.context.synchronize();
    }

    /// Runs tokens from a position on and waits until their logits are there.
    fn decode(&mut self, tokens: &[u32], position: usize, rows: Rows) -> Result<()> {
        for (i, part) in tokens.chunks(BATCH as usize).enumerate() {
            let first = i * BATCH as usize;
            self.batch.clear();
            for (j, token) in part.iter().enumerate() {
                let at = first + j;
                let asked = rows == Rows::All || at + 1 == tokens.len();
                let token = LlamaToken::new(i32::try_from(*token)?);
                self.batch.add(token, i32::try_from(position + at)?, &[0], asked)?;
            }
            self.context.decode(&mut self.batch)?;
        }
        self.context.synchronize();
        Ok(())
    }

    fn verify(&mut self, tokens: &[u32], depth: usize) -> Result<f64> {
        let mut seconds = Vec::with_capacity(VERIFY_CALLS);
        for _ in 0..VERIFY_CALLS {
            let start = Instant::now();
            self.decode(tokens, depth, Rows::All)?;
            seconds.push(start.elapsed().as_secs_f64());
            self.context.kv_cache_seq_rm(0, Some(u32::try_from(depth)?), None)?;
        }
        Ok(crate::report::median(&seconds))
    }

    /// The lowest of the likeliest next tokens.
    fn best(&self) -> Result<u32> {
        let last = self.batch.n_tokens() - 1;
        let logits = self.context.get_logits_ith(last);
        let mut best = 0;
        for (i, x) in logits.iter().enumerate() {
            if *x > logits[best] {
                best = i;
            }
        }
        Ok(u32::try_from(best)?)
    }
}

impl Engine for Llama {
    fn describe(&self) -> String {
        self.build.clone()
    }

    fn measure(&mut self, test: Test) -> Result<f64> {
        let (Test::Prompt { n, depth } | Test::Generate { n, depth } | Test::Verify { n, depth }) =
            test
        else {
            return Ok(self.show(test)?.first_token_s);
        };
        let vocab_size = u32::try_from(self.model.n_vocab())?;
        let tokens = arbitrary_tokens(depth + n, vocab_size);
        let (before, measured) = tokens.split_at(depth);
        self.clear();
        self.decode(before, 0, Rows::Last)?;
        if matches!(test, Test::Verify { .. }) {
            return self.verify(measured, depth);
        }
        let start = Instant::now();
        match test {
            Test::Generate { .. } => {
                for (i, token) in measured.iter().enumerate() {
                    self.decode(&[*token], depth + i, Rows::Last)?;
                }
            }
            _ => self.decode(measured, depth, Rows::Last)?,
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn show(&mut self, test: Test) -> Result<Cost> {
        self.clear();
        let towers = self.towers.as_mut().context("no towers were given")?;
        let bitmap = match test {
            Test::Image { width, height } => {
                MtmdBitmap::from_image_data(width, height, &media::levels(width, height))?
            }
            Test::Audio { seconds } => {
                let rate = towers.get_audio_sample_rate().context("the model does not hear")?;
                MtmdBitmap::from_audio_data(&media::samples(seconds, rate))?
            }
            _ => bail!("{} shows nothing", test.name()),
        };
        let text = MtmdInputText {
            text: format!("{}{}", mtmd_default_marker(), media::TEXT),
            add_special: true,
            parse_special: true,
        };
        // What makes pixels and samples into what the towers take is not measured in either engine.
        let chunks = towers.tokenize(text, &[&bitmap])?;
        let shown: Vec<MtmdInputChunk<'_>> = (0..chunks.len())
            .filter_map(|i| chunks.get(i))
            .filter(|chunk| chunk.chunk_type() != MtmdInputChunkType::Text)
            .collect();
        let n_soft = shown.iter().map(MtmdInputChunk::n_tokens).sum();
        let start = Instant::now();
        for chunk in &shown {
            towers.encode_chunk(chunk)?;
        }
        let encode_s = start.elapsed().as_secs_f64();
        // This encodes once more.
        let start = Instant::now();
        chunks.eval_chunks(towers, &mut self.context, 0, 0, BATCH as i32, true)?;
        self.context.synchronize();
        Ok(Cost { encode_s, first_token_s: start.elapsed().as_secs_f64(), n_soft })
    }

    fn generate(&mut self, text: &str, n: usize, on_token: &mut dyn FnMut(u32)) -> Result<()> {
        let vocabulary = self.model.vocab();
        let prompt: Result<Vec<u32>, _> = vocabulary
            .tokenize(text.as_bytes(), true, false)
            .iter()
            .map(|t| u32::try_from(t.0))
            .collect();
        let prompt = prompt.context("a token has a negative id")?;
        self.decode(&prompt, 0, Rows::Last)?;
        for i in 0..n {
            let token = self.best()?;
            on_token(token);
            if i + 1 < n {
                self.decode(&[token], prompt.len() + i, Rows::Last)?;
            }
        }
        Ok(())
    }
}

/// The version and the instruction sets of the build; an error if it misses what the machine has,
/// because then the comparison would not be fair.
fn build() -> Result<String> {
    let (version, system) = raw_build();
    for (feature, has) in machine_features() {
        if has && !system.contains(&format!("{feature} = 1")) {
            bail!(
                "this llama.cpp was built without {feature}, which the machine has; build inside \
                 peer/, whose .cargo/config.toml asks for the machine's instruction set ({system})"
            );
        }
    }
    // `CPU : SSE3 = 1 | AVX = 1 | … | REPACK = 1 | `
    let on = system.split(['|', ':']).filter_map(|word| word.trim().strip_suffix(" = 1"));
    let mut line = format!("llama.cpp {version} · {}", on.collect::<Vec<_>>().join(" "));
    // Left out on purpose (.cargo/config.toml), so it is said and not refused.
    if machine::announces("amx_int8") && !line.contains("AMX_INT8") {
        line += " (without AMX, which this machine announces)";
    }
    // It changes what barriers cost on a machine that others use.
    if let Ok(policy) = std::env::var("OMP_WAIT_POLICY") {
        line += &format!(" (OMP_WAIT_POLICY={policy})");
    }
    Ok(line)
}

#[allow(unsafe_code)]
fn silence_towers() {
    unsafe extern "C" fn ignore(
        _level: llama_cpp_sys_2::ggml_log_level,
        _text: *const std::ffi::c_char,
        _data: *mut std::ffi::c_void,
    ) {
    }
    // SAFETY: the callback reads nothing; no other thread uses the towers yet.
    unsafe {
        llama_cpp_sys_2::mtmd_log_set(Some(ignore), std::ptr::null_mut());
        llama_cpp_sys_2::mtmd_helper_log_set(Some(ignore), std::ptr::null_mut());
    }
}

#[allow(unsafe_code)]
fn raw_build() -> (String, String) {
    // SAFETY: both functions take nothing and return a string that ends with NUL: a literal, and a
    // static buffer that only this function reads, before other threads exist.
    let (version, system) = unsafe {
        (
            CStr::from_ptr(llama_cpp_sys_2::llama_version()),
            CStr::from_ptr(llama_cpp_sys_2::llama_print_system_info()),
        )
    };
    (version.to_string_lossy().into_owned(), system.to_string_lossy().into_owned())
}

/// llama.cpp's names for the instruction sets that matter most, and whether this machine has them.
fn machine_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("FMA", std::is_x86_feature_detected!("fma")),
        ("AVX512", std::is_x86_feature_detected!("avx512f")),
        ("AVX512_VNNI", std::is_x86_feature_detected!("avx512vnni")),
        ("AVX512_VBMI", std::is_x86_feature_detected!("avx512vbmi")),
    ];
    #[cfg(target_arch = "aarch64")]
    return vec![
        ("DOTPROD", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("MATMUL_INT8", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return Vec::new();
}
