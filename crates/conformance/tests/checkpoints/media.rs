//! Tiny multimodal checkpoints, against what transformers computed: the rows that towers make of
//! images and audio, and the logits of prompts that hold them.
//!
//! `testdata/make.py` writes the folders, `testdata/make_mmproj.py` the same models as GGUF files.

use std::path::Path;
use std::sync::Arc;

use lapidary_backend::{Backend, Feed, LoadOptions, Precision, Results};
use lapidary_conformance::harness::Test;
use lapidary_conformance::{Paged, Place, limits};
use lapidary_gemma::{OpenOptions, recipes};
use lapidary_program::{ImageSpec, PatchLayout, Program, input, lap, method};
use lapidary_quantise::quantise;
use safetensors::SafeTensors;

use super::{Extent, On, test, testdata, tiny};

/// The most that a soft row or a logit may differ from transformers', both in f32.
const TOLERANCE: f32 = 1e-4;

const FAMILIES: &[&str] = &["gemma3_mm", "gemma4_mm_large", "gemma4_mm_e", "gemma4_unified"];
const IMAGE_CASES: &[&str] = &["image_first", "image_middle", "image_last", "images_in_a_row"];
const AUDIO_CASES: &[&str] = &["sound_short", "sound_long", "image_and_sound"];

fn hears(family: &str) -> bool {
    matches!(family, "gemma4_mm_e" | "gemma4_unified")
}

fn cases(family: &str) -> Vec<&'static str> {
    let clips = if hears(family) { AUDIO_CASES } else { &[] };
    IMAGE_CASES.iter().chain(clips).copied().collect()
}

/// Tensors that transformers made.
struct Expected(Vec<u8>);

impl Expected {
    fn beside(folder: &Path) -> Self {
        Expected(std::fs::read(folder.join("reference.safetensors")).unwrap())
    }

    fn tensor(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        (view.shape().to_vec(), view.data().to_vec())
    }

    fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    fn f32(&self, name: &str) -> Vec<f32> {
        let (_, bytes) = self.tensor(name);
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    fn ids(&self, name: &str) -> Vec<i32> {
        let (_, bytes) = self.tensor(name);
        let narrow = |b: &[u8; 8]| i32::try_from(i64::from_le_bytes(*b)).unwrap();
        bytes.as_chunks::<8>().0.iter().map(narrow).collect()
    }

    /// Frames of audio, which stand there as 32nds.
    fn frames(&self, name: &str) -> Vec<f32> {
        self.tensor(name).1.iter().map(|b| f32::from(b.cast_signed()) / 32.0).collect()
    }
}

/// One image as `vision` takes it.
#[derive(Default)]
struct Patches {
    values: Vec<f32>,
    index: Vec<i32>,
    x: Vec<i32>,
    y: Vec<i32>,
}

impl Patches {
    /// From the values of each patch, row by row in the image: cells of `pool × pool` patches
    /// follow each other.
    fn new(spec: &ImageSpec, columns: usize, patches: &[Vec<f32>]) -> Self {
        let pool = spec.pool as usize;
        let rows = patches.len() / columns;
        let mut made = Patches::default();
        for cell in 0..patches.len() / (pool * pool) {
            let (cell_y, cell_x) = (cell / (columns / pool), cell % (columns / pool));
            for within in 0..pool * pool {
                let (y, x) = (cell_y * pool + within / pool, cell_x * pool + within % pool);
                assert!(y < rows && x < columns);
                let index = y * columns + x;
                made.values.extend(&patches[index]);
                made.index.push(index as i32);
                made.x.push(x as i32);
                made.y.push(y as i32);
            }
        }
        made
    }
}

/// A patch whose pixels' channels stand together, in the order that the program asks for.
fn laid_out(spec: &ImageSpec, pixels: &[f32]) -> Vec<f32> {
    let levels = pixels.iter().map(|level| level * spec.scale + spec.shift);
    match spec.layout {
        PatchLayout::Interleaved => levels.collect(),
        PatchLayout::Planar => {
            let levels: Vec<f32> = levels.collect();
            (0..3)
                .flat_map(|c| levels.iter().skip(c).step_by(3).copied().collect::<Vec<_>>())
                .collect()
        }
    }
}

/// Image number `k` of a family.
fn image(spec: &ImageSpec, expected: &Expected, k: usize) -> Patches {
    let (shape, _) = expected.tensor(&format!("image.{k}.pixels"));
    let pixels = expected.f32(&format!("image.{k}.pixels"));
    if let [3, height, width] = shape[..] {
        // Normalised already, channel by channel.
        assert_eq!((spec.layout, spec.scale, spec.shift), (PatchLayout::Planar, 2.0, -1.0));
        let side = spec.patch as usize;
        let patch = |y0: usize, x0: usize| -> Vec<f32> {
            (0..3 * side * side)
                .map(|i| {
                    let (c, y, x) = (i / (side * side), i / side % side, i % side);
                    pixels[(c * height + y0 * side + y) * width + x0 * side + x]
                })
                .collect()
        };
        let columns = width / side;
        let all: Vec<_> =
            (0..height / side * columns).map(|i| patch(i / columns, i % columns)).collect();
        return Patches::new(spec, columns, &all);
    }
    let positions = expected.ids(&format!("image.{k}.positions"));
    let columns = positions.iter().step_by(2).max().unwrap() + 1;
    let all: Vec<_> = pixels.chunks_exact(shape[1]).map(|p| laid_out(spec, p)).collect();
    Patches::new(spec, columns as usize, &all)
}

fn load(backend: &dyn Backend, program: &Arc<Program>) -> Paged {
    let options = LoadOptions {
        max_context: 256,
        n_sequences: 1,
        limits: limits(256, 1),
        precision: Precision::Exact,
        max_patches: 64,
        max_frames: 64,
        ..LoadOptions::default()
    };
    Paged::load(backend, program, &options).unwrap()
}

fn see(engine: &mut Paged, p: &Patches) -> Vec<f32> {
    let mut out = Results::default();
    let feeds = [
        Feed::f32(input::PATCHES, &p.values),
        Feed::i32(input::PATCH_INDEX, &p.index),
        Feed::i32(input::PATCH_X, &p.x),
        Feed::i32(input::PATCH_Y, &p.y),
    ];
    engine.run(method::VISION, &feeds, &[], &mut out).unwrap();
    out.get(input::SOFT).unwrap().data.clone()
}

fn hear(engine: &mut Paged, frames: &[f32]) -> Vec<f32> {
    let mut out = Results::default();
    engine.run(method::AUDIO, &[Feed::f32(input::FRAMES, frames)], &[], &mut out).unwrap();
    out.get(input::SOFT).unwrap().data.clone()
}

/// The tokens of a prompt with what stands at soft positions.
struct Prompt {
    tokens: Vec<i32>,
    /// The soft row of each token, or −1.
    soft_index: Vec<i32>,
    horizons: Vec<i32>,
    soft: Vec<f32>,
    /// Whether a token is a soft one of an image.
    seen: Vec<bool>,
}

impl Prompt {
    /// `types` are 1 for images, 3 for audio; `soft` are the rows of all, in order.
    fn new(ids: &[i32], types: &[i32], soft: Vec<f32>) -> Self {
        let mut next = -1;
        let soft_index = types
            .iter()
            .map(|t| {
                if *t == 0 {
                    -1
                } else {
                    next += 1;
                    next
                }
            })
            .collect();
        let seen: Vec<bool> = types.iter().map(|t| *t == 1).collect();
        let horizons = (0..ids.len())
            .map(|i| {
                let last = seen[i..].iter().take_while(|s| **s).count();
                (i + last.max(1) - 1) as i32
            })
            .collect();
        // What stands at soft positions is the padding.
        let tokens = ids.iter().zip(types).map(|(id, t)| if *t == 0 { *id } else { 0 }).collect();
        Prompt { tokens, soft_index, horizons, soft, seen }
    }

    fn append(&mut self, token: i32) {
        self.horizons.push(self.tokens.len() as i32);
        self.tokens.push(token);
        self.soft_index.push(-1);
        self.seen.push(false);
    }

    /// Logits of all tokens of a range, which is fed in one call.
    fn feed(&self, engine: &mut Paged, range: std::ops::Range<usize>) -> Vec<f32> {
        let n = range.len();
        let n_soft = self.soft_index.iter().filter(|s| **s >= 0).count();
        let width = self.soft.len() / n_soft.max(1);
        // Only the rows of this call.
        let used: Vec<i32> =
            self.soft_index[range.clone()].iter().copied().filter(|s| *s >= 0).collect();
        let first = used.first().copied().unwrap_or(0);
        let soft = &self.soft[first as usize * width..(first as usize + used.len()) * width];
        let index: Vec<i32> = self.soft_index[range.clone()]
            .iter()
            .map(|s| if *s < 0 { -1 } else { s - first })
            .collect();
        let place = |p: usize| Place { sequence: 0, position: p as i32, horizon: self.horizons[p] };
        let places: Vec<Place> = range.clone().map(place).collect();
        let rows: Vec<i32> = (0..n as i32).collect();
        let feeds = [
            Feed::i32(input::TOKENS, &self.tokens[range]),
            Feed::i32(input::ROWS, &rows),
            Feed::i32(input::SOFT_INDEX, &index),
            Feed::f32(input::SOFT, soft),
        ];
        let mut out = Results::default();
        engine.run(method::FORWARD, &feeds, &places, &mut out).unwrap();
        out.get("logits").unwrap().data.clone()
    }

    /// Logits of the whole prompt, fed in chunks of at most `most` tokens; images stay whole.
    fn logits(&self, engine: &mut Paged, most: usize) -> Vec<f32> {
        let mut logits = Vec::new();
        let mut start = 0;
        while start < self.tokens.len() {
            let mut end = (start + most).min(self.tokens.len());
            while end < self.tokens.len() && self.seen[end - 1] && self.seen[end] {
                end += 1;
            }
            logits.extend(self.feed(engine, start..end));
            start = end;
        }
        logits
    }
}

fn argmax(row: &[f32]) -> i32 {
    let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|x| *x == best).unwrap() as i32
}

fn assert_close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= TOLERANCE, "{what}: differs by {worst}");
}

/// Media and prompts of one model on one backend.
struct Subject<'a> {
    engine: Paged,
    program: Arc<Program>,
    expected: &'a Expected,
    /// Where prompts are, if not beside the media.
    prompts: &'a Expected,
    what: String,
}

impl<'a> Subject<'a> {
    fn new(backend: &dyn Backend, program: Program, expected: &'a Expected, name: &str) -> Self {
        let program = Arc::new(program);
        let what = format!("{name} on {}", backend.name());
        Subject { engine: load(backend, &program), program, expected, prompts: expected, what }
    }

    fn image(&mut self, k: usize) -> Vec<f32> {
        let spec = self.program.metadata().media.image.as_ref().expect("it sees");
        see(&mut self.engine, &image(spec, self.expected, k))
    }

    fn audio(&mut self, k: usize) -> Vec<f32> {
        let frames = self.expected.frames(&format!("sound.{k}.levels"));
        hear(&mut self.engine, &frames)
    }

    /// The rows of each image and each audio clip.
    fn check_media(&mut self) {
        for k in 0.. {
            let name = format!("image.{k}.features");
            if !self.expected.has(&name) {
                assert!(k > 0);
                break;
            }
            let got = self.image(k);
            assert_close(&format!("{}, image {k}", self.what), &got, &self.expected.f32(&name));
        }
        for k in 0.. {
            let name = format!("sound.{k}.features");
            if !self.expected.has(&name) {
                break;
            }
            let got = self.audio(k);
            assert_close(&format!("{}, audio {k}", self.what), &got, &self.expected.f32(&name));
        }
    }

    /// A prompt with the rows that our own towers make.
    fn prompt(&mut self, case: &str) -> Prompt {
        let key = |name: &str| format!("case.{case}.{name}");
        let types = match self.prompts.has(&key("token_type_ids")) {
            true => self.prompts.ids(&key("token_type_ids")),
            false => self.prompts.ids(&key("mm_token_type_ids")),
        };
        let mut images = self.prompts.ids(&key("images")).into_iter();
        let mut clips = self.prompts.ids(&key("sounds")).into_iter();
        // Runs of soft tokens, in the order of the prompt.
        let mut soft = Vec::new();
        for (i, t) in types.iter().enumerate() {
            if *t != 0 && (i == 0 || types[i - 1] != *t) {
                soft.extend(match t {
                    1 => self.image(images.next().unwrap() as usize),
                    _ => self.audio(clips.next().unwrap() as usize),
                });
            }
        }
        Prompt::new(&self.prompts.ids(&key("input_ids")), &types, soft)
    }

    fn check_case(&mut self, case: &str) {
        let what = format!("{}, {case}", self.what);
        let mut prompt = self.prompt(case);
        let want = self.prompts.f32(&format!("case.{case}.logits"));
        for most in [256, 1, 5] {
            let logits = prompt.logits(&mut self.engine, most);
            assert_close(&format!("{what}, chunks of {most}"), &logits, &want);
        }
        let vocab = want.len() / prompt.tokens.len();
        let mut last = prompt.logits(&mut self.engine, 256);
        let mut got = Vec::new();
        let greedy = self.prompts.ids(&format!("case.{case}.greedy"));
        for _ in &greedy {
            let next = argmax(&last[last.len() - vocab..]);
            got.push(next);
            prompt.append(next);
            let n = prompt.tokens.len();
            last = prompt.feed(&mut self.engine, n - 1..n);
        }
        assert_eq!(got, greedy, "{what}: greedy tokens");
    }
}

fn open(path: &Path) -> Program {
    lapidary_gemma::open(path, &OpenOptions::default())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A folder like `family`'s whose `config.json` and tensor names are those of published ones.
fn as_published(family: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| {
        std::fs::copy(tiny(family).join(from), folder.path().join(to)).unwrap();
    };
    copy("config_hub_style.json", "config.json");
    copy("generation_config.json", "generation_config.json");
    let bytes = std::fs::read(tiny(family).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    // Published Gemma 3 files have one level more in their SigLIP.
    let tower = if family == "gemma3_mm" { "vision_tower.vision_model." } else { "vision_tower." };
    let tensors = file.tensors();
    let renamed = tensors.iter().map(|(name, view)| (name.replace("vision_tower.", tower), view));
    let path = folder.path().join("model.safetensors");
    safetensors::serialize_to_file(renamed, None, &path).unwrap();
    folder
}

/// The rows of each image and each audio clip.
fn towers(backend: &dyn Backend, family: &str) {
    let expected = Expected::beside(&tiny(family));
    Subject::new(backend, open(&tiny(family)), &expected, family).check_media();
}

fn published(backend: &dyn Backend, family: &str) {
    let expected = Expected::beside(&tiny(family));
    let published = as_published(family);
    Subject::new(backend, open(published.path()), &expected, "published").check_media();
}

/// Images first, in the middle, last and in a row, all of them longer than the window or not; audio;
/// both in one turn.
fn prompt(backend: &dyn Backend, family: &str, case: &str) {
    let expected = Expected::beside(&tiny(family));
    Subject::new(backend, open(&tiny(family)), &expected, family).check_case(case);
}

/// transformers pads audio clips of a batch and masks what it padded. Without the padding there is
/// nothing to mask.
fn unmasked(backend: &dyn Backend, family: &str) {
    let expected = Expected::beside(&tiny(family));
    let (shape, _) = expected.tensor("input_features");
    let features = expected.f32("input_features");
    let (_, mask) = expected.tensor("input_features_mask");
    let (out_shape, _) = expected.tensor("audio_features");
    let want = expected.f32("audio_features");
    let (frames, channels) = (shape[1], shape[2]);
    let (most, width) = (out_shape[1], out_shape[2]);
    let mut subject = Subject::new(backend, open(&tiny(family)), &expected, family);
    let stride = subject.program.metadata().media.audio.as_ref().unwrap().stride as usize;
    for k in 0..shape[0] {
        let valid = mask[k * frames..(k + 1) * frames].iter().filter(|m| **m != 0).count();
        let start = k * frames * channels;
        let got = hear(&mut subject.engine, &features[start..start + valid * channels]);
        let soft = valid.div_ceil(stride);
        let want = &want[k * most * width..(k * most + soft) * width];
        assert_close(&format!("{}, audio {k}", subject.what), &got, want);
    }
}

/// A `.lap` holds the towers and what is said of media; nothing changes on the way.
fn as_lap(backend: &dyn Backend, family: &str) {
    let folder = tempfile::tempdir().unwrap();
    let expected = Expected::beside(&tiny(family));
    let program = open(&tiny(family));
    let path = folder.path().join(format!("{family}.lap"));
    lap::write(&program, &path, &mut |_, _| true).unwrap();
    let again = open(&path);
    assert_eq!(again.metadata().media, program.metadata().media);
    assert_eq!(again.methods(), program.methods());
    let mut subject = Subject::new(backend, again, &expected, family);
    subject.check_media();
    subject.check_case("image_middle");
}

/// Towers in eight bits give nearly the rows of the checkpoint; what is not a linear is untouched.
fn quantised(backend: &dyn Backend, family: &str, recipe: &str) {
    let expected = Expected::beside(&tiny(family));
    let program = open(&tiny(family));
    let quantised = quantise(&program, &recipes::built_in(recipe, &program).unwrap()).unwrap();
    let mut subject = Subject::new(backend, quantised, &expected, family);
    let far = relative_distance(&subject.image(0), &expected.f32("image.0.features"));
    assert!(far < 0.05, "{}, {recipe}: image off by {far}", subject.what);
    if hears(family) {
        let far = relative_distance(&subject.audio(0), &expected.f32("sound.0.features"));
        assert!(far < 0.05, "{}, {recipe}: audio off by {far}", subject.what);
    }
}

/// The length of the difference over the length of what is wanted.
fn relative_distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let length = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    let apart = length(&mut got.iter().zip(want).map(|(a, b)| a - b));
    apart / length(&mut want.iter().copied())
}

/// Text files with the mmproj files that lie beside them.
fn gguf(backend: &dyn Backend, family: &str) {
    let folder = testdata().join("gguf").join(family);
    let media = Expected::beside(&tiny(family));
    let prompts = Expected::beside(&folder);
    let program = open(&folder.join("model.gguf"));
    let mut subject = Subject::new(backend, program, &media, &format!("{family}.gguf"));
    subject.check_media();
    // Not the folder's: GGUF loaders do not round the embedding's factor.
    subject.prompts = &prompts;
    subject.check_case(if hears(family) { "image_and_sound" } else { "image_middle" });
}

pub fn tests(on: On) -> Vec<Test> {
    let backend = on.backend;
    let mut tests = Vec::new();
    for family in FAMILIES.iter().copied() {
        tests.push(test(&["towers", family], move || towers(backend, family)));
        for case in cases(family) {
            tests.push(test(&["media", family, case], move || prompt(backend, family, case)));
        }
        if hears(family) {
            tests.push(test(&["unmasked", family], move || unmasked(backend, family)));
        }
        // Without the least, one recipe will do: what it adds to towers is `linear` over its codes.
        let recipes: &[&str] = match on.extent {
            Extent::Everything => &["int4-minmax", "int8", "q4_0"],
            Extent::Numbers => &["int8"],
            Extent::Least => &[],
        };
        for recipe in recipes.iter().copied() {
            let check = move || quantised(backend, family, recipe);
            tests.push(test(&["quantised media", family, recipe], check));
        }
        if on.extent == Extent::Everything {
            tests.push(test(&["published", family], move || published(backend, family)));
            tests.push(test(&["lap", family], move || as_lap(backend, family)));
            tests.push(test(&["mmproj", family], move || gguf(backend, family)));
        }
    }
    tests
}
