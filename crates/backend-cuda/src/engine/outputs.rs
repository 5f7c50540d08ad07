//! What becomes of outputs: brought to the host, kept, or made into candidates on the device.

use std::sync::Arc;

use lapidary_backend::{Call, Candidate, Error, Result, Results, Want};
use lapidary_program::{Method, ValueType};

use crate::driver::{Context, Memory, Pinned, args};
use crate::ops::Work;

/// The most candidates of a row: what `draw` of `top.cu` looks at.
pub(crate) const MOST_CANDIDATES: usize = 128;
/// Numbers that one block of `top.cu` looks at.
const STRETCH: usize = 2048;

/// What becomes of an output, apart from numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OutputUse {
    Skip,
    Whole,
    Keep,
    Top {
        /// Candidates of each row.
        k: usize,
        masks: bool,
        logsumexp: bool,
        draws: bool,
        rows: usize,
        channels: usize,
    },
}

/// Memory that candidates are found in.
#[derive(Default)]
pub(crate) struct TopRoom {
    memory: Option<Memory>,
}

/// Where things stand in [`TopRoom`], by output.
#[derive(Clone, Copy, Debug)]
struct TopPlaces {
    keys: [u64; 2],
    candidates: u64,
    sums: u64,
    drawn: u64,
}

/// An output that comes back.
#[derive(Debug)]
pub(crate) struct Coming {
    name: String,
    rows: usize,
    channels: usize,
    /// Where it stands among what comes back.
    at: usize,
    what: OutputUse,
    is_i32: bool,
}

impl OutputUse {
    /// What a call wants of an output.
    pub(crate) fn of(
        call: &Call<'_>,
        name: &str,
        (rows, channels): (usize, usize),
    ) -> Result<OutputUse> {
        let (top, draws) = match call.want(name) {
            Want::Skip => return Ok(OutputUse::Skip),
            Want::Whole => return Ok(OutputUse::Whole),
            Want::Keep => return Ok(OutputUse::Keep),
            Want::TopK(top) => (top, false),
            Want::Draw(draw) => (draw.top, true),
        };
        let k = top.k.min(channels);
        if k > MOST_CANDIDATES {
            let what = format!("{k} numbers of each row of `{name}`, at most {MOST_CANDIDATES}");
            return Err(Error::Feed { method: call.method.to_string(), what });
        }
        let masks = top.masks.iter().any(Option::is_some);
        Ok(OutputUse::Top { k, masks, logsumexp: top.logsumexp, draws, rows, channels })
    }

    /// Bytes that come back.
    fn bytes(&self, rows: usize, channels: usize) -> usize {
        match self {
            OutputUse::Skip | OutputUse::Keep => 0,
            OutputUse::Whole => 4 * rows * channels,
            OutputUse::Top { k, logsumexp, draws, .. } => {
                rows * (8 * k + 4 * usize::from(*logsumexp) + 4 * usize::from(*draws))
            }
        }
    }

    /// Bytes of memory that candidates are found in.
    fn room(&self) -> [usize; 5] {
        let OutputUse::Top { k, rows, channels, .. } = *self else { return [0; 5] };
        let keys = rows * channels.div_ceil(STRETCH) * k * 8;
        let later = rows * (channels.div_ceil(STRETCH) * k).div_ceil(STRETCH) * k * 8;
        [keys, later, rows * k * 8, rows * 4, rows * 4].map(|n| n.next_multiple_of(256))
    }
}

impl TopRoom {
    /// Makes room; whether memory has moved.
    pub(crate) fn make(&mut self, context: &Arc<Context>, uses: &[OutputUse]) -> Result<bool> {
        let need: usize = uses.iter().flat_map(OutputUse::room).sum();
        if need == 0 || self.memory.as_ref().is_some_and(|memory| memory.bytes >= need) {
            return Ok(false);
        }
        self.memory = None;
        self.memory = Some(Memory::new(context, need)?);
        Ok(true)
    }

    fn places(&self, uses: &[OutputUse], output: usize) -> TopPlaces {
        let start = self.memory.as_ref().map_or(0, Memory::at);
        let before: usize = uses[..output].iter().flat_map(OutputUse::room).sum();
        let mut at = start + before as u64;
        let [a, b, candidates, sums, drawn] = uses[output].room().map(|bytes| {
            let own = at;
            at += bytes as u64;
            own
        });
        TopPlaces { keys: [a, b], candidates, sums, drawn }
    }

    /// Where the tokens that were drawn stand.
    pub(crate) fn drawn(&self, uses: &[OutputUse], output: usize) -> u64 {
        self.places(uses, output).drawn
    }

    /// Starts the kernels that make candidates.
    pub(crate) fn find(&self, work: &Work<'_>, uses: &[OutputUse]) -> Result<()> {
        for (i, out) in work.method.graph.outputs.iter().enumerate() {
            let OutputUse::Top { k, masks, logsumexp, draws, rows, channels } = uses[i] else {
                continue;
            };
            let places = self.places(uses, i);
            let x = work.at(out.value);
            let masks = if masks { work.feeds + work.layout.masks[i] as u64 } else { 0 };
            let launch = |name: &str, grid, args| work.gpu.launch(work.stream, name, grid, args);
            let (n_rows, n) = (rows as u32, channels as u32);
            let mut stretches = channels.div_ceil(STRETCH);
            let grid = ([stretches as u32, n_rows, 1], 256, 0);
            launch("top_numbers", grid, args![x, masks, places.keys[0], n, k as u32])?;
            let mut turn = 0;
            while stretches > 1 {
                let n = stretches * k;
                stretches = n.div_ceil(STRETCH);
                let grid = ([stretches as u32, n_rows, 1], 256, 0);
                let (from, to) = (places.keys[turn], places.keys[1 - turn]);
                launch("top_keys", grid, args![from, to, n as u32, k as u32])?;
                turn = 1 - turn;
            }
            let n_candidates = rows * k;
            let grid = ([n_candidates.div_ceil(128) as u32, 1, 1], 128, 0);
            launch("candidates", grid, args![places.keys[turn], places.candidates, n_candidates])?;
            if logsumexp {
                let grid = ([n_rows, 1, 1], 1024, 0);
                launch("logsumexp", grid, args![x, masks, places.sums, n])?;
            }
            if draws {
                let rules = work.feeds + work.layout.rules[i] as u64;
                let args = args![places.candidates, rules, places.drawn, k as u32];
                launch("draw", ([n_rows, 1, 1], 128, 0), args)?;
            }
        }
        Ok(())
    }
}

/// The outputs that come back, and bytes of all of them.
pub(crate) fn coming(
    method: &Method,
    uses: &[OutputUse],
    lens: impl Fn(usize) -> (usize, usize),
) -> (Vec<Coming>, usize) {
    let (mut list, mut at) = (Vec::new(), 0);
    for (out, what) in method.graph.outputs.iter().zip(uses) {
        if matches!(what, OutputUse::Skip | OutputUse::Keep) {
            continue;
        }
        let (rows, channels) = lens(out.value.index());
        let is_i32 = matches!(method.types()[out.value.index()], ValueType::I32(_));
        let name = out.name.clone();
        list.push(Coming { name, rows, channels, at, what: *what, is_i32 });
        at += what.bytes(rows, channels);
    }
    (list, at)
}

/// Starts the copies of what comes back.
pub(crate) fn bring(
    work: &Work<'_>,
    room: &TopRoom,
    uses: &[OutputUse],
    list: &[Coming],
    to: &mut Pinned,
) -> Result<()> {
    let mut list = list.iter();
    for (i, out) in work.method.graph.outputs.iter().enumerate() {
        match uses[i] {
            OutputUse::Skip | OutputUse::Keep => continue,
            OutputUse::Whole => {
                let Some(coming) = list.next() else { continue };
                let bytes = 4 * coming.rows * coming.channels;
                work.stream.download(work.at(out.value), to, coming.at, bytes)?;
            }
            OutputUse::Top { k, logsumexp, draws, rows, .. } => {
                let Some(coming) = list.next() else { continue };
                let places = room.places(uses, i);
                let mut at = coming.at;
                work.stream.download(places.candidates, to, at, 8 * rows * k)?;
                at += 8 * rows * k;
                if logsumexp {
                    work.stream.download(places.sums, to, at, 4 * rows)?;
                    at += 4 * rows;
                }
                if draws {
                    work.stream.download(places.drawn, to, at, 4 * rows)?;
                }
            }
        }
    }
    Ok(())
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks::<4>().0.iter().copied()
}

/// Takes in what came back.
pub(crate) fn read(list: &[Coming], bytes: &[u8], results: &mut Results) {
    results.clear();
    for coming in list {
        let out = results.add(&coming.name, coming.rows, coming.channels);
        let own = &bytes[coming.at..];
        match coming.what {
            OutputUse::Skip | OutputUse::Keep => {}
            OutputUse::Whole => {
                let numbers = words(&own[..4 * coming.rows * coming.channels]);
                if coming.is_i32 {
                    out.data.extend(numbers.map(|w| i32::from_le_bytes(w) as f32));
                } else {
                    out.data.extend(numbers.map(f32::from_le_bytes));
                }
            }
            OutputUse::Top { k, logsumexp, draws, rows, .. } => {
                out.per_row = k;
                let (best, mut rest) = own.split_at(8 * rows * k);
                out.candidates.extend(best.as_chunks::<8>().0.iter().map(|pair| {
                    let [a, b, c, d, e, f, g, h] = *pair;
                    let value = f32::from_le_bytes([a, b, c, d]);
                    Candidate { value, index: u32::from_le_bytes([e, f, g, h]) }
                }));
                if logsumexp {
                    let (sums, after) = rest.split_at(4 * rows);
                    out.logsumexp.extend(words(sums).map(f32::from_le_bytes));
                    rest = after;
                }
                if draws {
                    out.drawn.extend(words(&rest[..4 * rows]).map(u32::from_le_bytes));
                }
            }
        }
    }
}
