//! From a call to what the device is given.

use std::collections::BTreeMap;
use std::time::Instant;

use lapidary_backend::{
    Bound, Call, DrawRule, Error, Fed, Mask, Result, Results, Sizes, Ticket, TopK, Want, bind,
};

use super::in_flight::{Coming, Outputs, decode};
use super::record::{CallShape, Commands, KeptRows, NextCall, OutputUse, Recorder};
use super::top::{MOST, TopUse};
use super::{Tables, WgpuEngine, newest_key, tokens_of};
use crate::host::{HostFeed, Out, Source};
use crate::profile::Doing;
use crate::step::{CompiledMethod, FeedSpec, Place};

/// What a caller wants of the outputs of a method.
struct Wishes<'a> {
    uses: Vec<OutputUse>,
    /// The outputs that are read, and the candidates that come of each row.
    read: Vec<(usize, usize)>,
    /// By output, with the candidates that tokens are drawn from.
    rules: Vec<(&'a [DrawRule], usize)>,
    masks: Vec<&'a [Mask<'a>]>,
}

impl<'a> Wishes<'a> {
    fn new(call: &Call<'a>, method: &CompiledMethod) -> Result<Self> {
        let n = method.outputs.len();
        let mut wishes = Wishes {
            uses: vec![OutputUse::Skip; n],
            read: Vec::new(),
            rules: vec![(&[], 0); n],
            masks: vec![&[]; n],
        };
        for (i, out) in method.outputs.iter().enumerate() {
            let wanted = call.wants.iter().find(|wanted| wanted.output == out.name);
            let want = wanted.map_or(Want::Skip, |wanted| wanted.want);
            let top = |top: TopK<'a>, draws: bool| {
                let fail = |what: String| Error::Feed { method: call.method.to_string(), what };
                if !(1..=MOST).contains(&top.k) {
                    let what =
                        format!("{} numbers of a row were asked for, not 1 to {MOST}", top.k);
                    return Err(fail(what));
                }
                if out.indices || out.value.buffer().is_none() {
                    return Err(fail(format!("`{}` has no candidates", out.name)));
                }
                if draws && !out.is_drawn_from() {
                    return Err(fail(format!("no token can be drawn from `{}`", out.name)));
                }
                let masks = top.masks.iter().any(Option::is_some);
                Ok(TopUse { k: TopUse::class(top.k), masks, logsumexp: top.logsumexp, draws })
            };
            wishes.uses[i] = match want {
                Want::Skip => OutputUse::Skip,
                Want::Whole => OutputUse::Whole,
                Want::Keep => OutputUse::Keep,
                Want::TopK(own) => OutputUse::Top(top(own, false)?),
                Want::Draw(draw) => OutputUse::Top(top(draw.top, true)?),
            };
            if let Want::Draw(draw) = want {
                wishes.rules[i] = (draw.rules, draw.top.k);
            }
            if let Want::TopK(own) | Want::Draw(lapidary_backend::Draw { top: own, .. }) = want {
                wishes.masks[i] = own.masks;
                wishes.read.push((i, own.k.min(out.value.channels)));
            } else if matches!(want, Want::Whole) {
                wishes.read.push((i, 0));
            }
        }
        Ok(wishes)
    }
}

/// The inputs of a call that come from earlier ones, a bit for each.
pub(super) fn of_bits(bound: &Bound<'_>) -> u64 {
    let of = |(i, fed): (usize, &Fed<'_>)| match fed {
        Fed::Of(_) if i < 64 => 1 << i,
        _ => 0,
    };
    bound.feeds.iter().enumerate().map(of).fold(0, |all, bit| all | bit)
}

/// Puts tokens in the place of those that are on the device.
pub(super) fn take_tokens<'a>(bound: &mut Bound<'a>, tokens: &'a [(usize, Vec<i32>)]) {
    for (input, ids) in tokens {
        bound.feeds[*input] = Fed::I32(ids);
    }
}

/// What the host feeds of a value, from its first row on.
pub(super) fn show_feed(
    method: &CompiledMethod,
    source: Source<'_>,
    feed: usize,
    out: &mut [f32],
) -> Result<()> {
    let spec = &method.feeds[feed];
    let mut indices = false;
    if let HostFeed::Input(i) = spec.source {
        match source.bound.feeds[i] {
            Fed::I32(_) => indices = true,
            Fed::F32(_) => {}
            Fed::Of(_) => {
                let what = "what an earlier call made can't be read as an output".to_string();
                return Err(Error::Feed { method: "a call".to_string(), what });
            }
        }
    }
    let mut bytes = vec![0; 4 * out.len()];
    spec.source.make(source, (0, spec.channels), Out::Here(&mut bytes))?;
    decode(&bytes, indices, out);
    Ok(())
}

impl WgpuEngine {
    pub(super) fn submit_call(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let mut bound = bind(&self.program, call, &self.options)?;
        self.fast.method(call.method)?;
        self.resources.gpu.check()?;
        let tokens = self.tokens_for_host(call.method, &bound)?;
        take_tokens(&mut bound, &tokens);
        let method = self.fast.method(call.method)?;
        let wishes = Wishes::new(call, method)?;
        let sizes = bound.sizes;
        let planned = self.fast.arena.sizes.rows;
        let window = if method.windows { sizes.rows.min(planned) } else { sizes.rows };
        let first = Sizes { rows: window, ..sizes };
        let spans = bound.spans.len();
        if self.fast.make_room(&self.resources, first, spans)? {
            self.buffers.forget_ahead();
            self.buffers.next = None;
        }
        let shape = CallShape {
            method: call.method.to_string(),
            sizes: first,
            spans,
            uses: wishes.uses.clone(),
            of: of_bits(&bound),
        };
        self.fast.make_tops(&self.resources, &shape)?;
        let source = Source {
            program: &self.program,
            tables: &self.resources.weights.tables,
            groups: &self.groups,
            bound: &bound,
            rules: &wishes.rules,
        };
        let recorder = Recorder {
            plan: &self.fast,
            resources: &self.resources,
            buffers: &mut self.buffers,
            shape,
            keys: newest_key(&bound),
            stop: call.stop,
        };
        let mut run = Run { recorder, source, wishes: &wishes, in_flight: &self.in_flight };
        if window < sizes.rows {
            return self.submit_windows(call, &bound, &wishes, window);
        }
        let outputs = run.outputs(sizes)?;
        let (commands, last) = run.submit_whole()?;
        let next = run.next(tokens_of(&self.program, call.method), self.tables);
        self.buffers.next = next;
        self.buffers.running.add(self.in_flight.next(), last, commands.work);
        let kept = named(&self.fast.methods[call.method], commands.kept);
        let gpu = &self.resources.gpu;
        Ok(match &commands.readback.buffer {
            Some(buffer) => {
                let mapping = gpu.map(buffer, commands.readback.size_bytes);
                let coming = Coming { mapping, readback: commands.readback, outputs };
                self.in_flight.coming(coming, kept)
            }
            None if !wishes.read.is_empty() => {
                // The host has all of it.
                let mut results = Results::default();
                outputs.prepare(&mut results);
                self.in_flight.ended(results, kept)
            }
            None => self.in_flight.silent(gpu, kept),
        })
    }

    /// Runs a call whose asked rows are too many for one window; all of it is done when this returns.
    fn submit_windows(
        &mut self,
        call: &Call<'_>,
        bound: &Bound<'_>,
        wishes: &Wishes<'_>,
        window: usize,
    ) -> Result<Ticket> {
        let whole = bound.sizes;
        let recorder = Recorder {
            plan: &self.fast,
            resources: &self.resources,
            buffers: &mut self.buffers,
            shape: CallShape {
                method: call.method.to_string(),
                sizes: Sizes { rows: window, ..whole },
                spans: bound.spans.len(),
                uses: wishes.uses.clone(),
                of: of_bits(bound),
            },
            keys: newest_key(bound),
            stop: call.stop,
        };
        let source = Source {
            program: &self.program,
            tables: &self.resources.weights.tables,
            groups: &self.groups,
            bound,
            rules: &wishes.rules,
        };
        let mut run = Run { recorder, source, wishes, in_flight: &self.in_flight };
        let outputs = run.outputs(whole)?;
        let mut results = Results::default();
        outputs.prepare(&mut results);
        let kept = run.recorder.take_kept(whole)?;
        let (method, mut from) = (run.recorder.method(), 0);
        while from < whole.rows {
            run.recorder.shape.sizes.rows = window.min(whole.rows - from);
            let steps = if from == 0 { 0 } else { method.n_once }..method.steps.len();
            let wanted = |feed: &FeedSpec| from == 0 || feed.is_asked();
            let (commands, _) = run.submit_window(steps, from, wanted, kept.clone())?;
            let gpu = run.recorder.gpu();
            if let Some(buffer) = commands.readback.buffer.clone() {
                let mapping = gpu.map(&buffer, commands.readback.size_bytes);
                let read =
                    &mut |bytes: &[u8]| outputs.read(&commands.readback, bytes, &mut results);
                mapping.wait(gpu, read)?;
                run.recorder.buffers.readbacks.give_back(buffer);
            }
            from += run.recorder.shape.sizes.rows;
        }
        self.buffers.next = None;
        let kept = named(&self.fast.methods[call.method], kept);
        Ok(self.in_flight.ended(results, kept))
    }

    /// Fails if what earlier calls made is not there, or can't be fed. Where the host looks tokens up
    /// in tables, gives those that were drawn on the device, by input: it waits for them.
    pub(super) fn tokens_for_host(
        &mut self,
        method: &str,
        bound: &Bound<'_>,
    ) -> Result<Vec<(usize, Vec<i32>)>> {
        let fail = |what: String| Error::Feed { method: method.to_string(), what };
        let inputs = &self.program.method(method)?.graph.inputs;
        let mut tokens = Vec::new();
        for (i, (input, fed)) in inputs.iter().zip(&bound.feeds).enumerate() {
            let Fed::Of(rows) = fed else { continue };
            let kept = self.in_flight.kept(rows)?;
            let is_index = matches!(input.value_type, lapidary_program::ValueType::I32(_));
            let channels = input.value_type.channels().max(1);
            if kept.drawn != is_index || kept.channels != channels {
                let what = format!("`{}` can't be fed with `{}`", input.name, rows.output);
                return Err(fail(what));
            }
            if is_index && self.tables == Tables::Host {
                let gpu = &self.resources.gpu;
                let size_bytes = (kept.rows * 4).max(4) as u64;
                let readback = self.buffers.readbacks.take(gpu, size_bytes)?;
                let mut encoder = gpu.encoder();
                encoder.copy_buffer_to_buffer(&kept.buffer, 0, &readback, 0, size_bytes);
                gpu.queue.submit([encoder.finish()]);
                let mut all: Vec<i32> = Vec::new();
                gpu.map(&readback, size_bytes).wait(gpu, &mut |bytes| {
                    all.extend(bytes.as_chunks::<4>().0.iter().map(|w| i32::from_le_bytes(*w)));
                })?;
                self.buffers.readbacks.give_back(readback);
                tokens.push((i, rows.rows.iter().map(|row| all[*row as usize]).collect()));
            }
        }
        Ok(tokens)
    }

    /// Waits for a call.
    pub(super) fn wait_for(&mut self, ticket: Ticket, results: &mut Results) -> Result<()> {
        let since = Instant::now();
        let gpu = &self.resources.gpu;
        self.in_flight.take(gpu, &mut self.buffers, ticket, results, true)?;
        if let Some(times) = &mut self.buffers.times {
            let tokens = self.buffers.next.as_ref().map_or(2, |next| next.shape.sizes.tokens);
            times.of(tokens).add(Doing::Waiting, since);
        }
        Ok(())
    }

    /// Records the commands of the call that is likely to come next, if nobody did.
    pub(super) fn record_ahead(&mut self) -> Result<()> {
        if self.buffers.ahead.is_some() {
            return Ok(());
        }
        let Some(NextCall { shape, keys }) = self.buffers.next.clone() else { return Ok(()) };
        // Once is enough, whether or not it can be done.
        self.buffers.next = None;
        if !self.fast.methods.contains_key(&shape.method) {
            return Ok(());
        }
        self.fast.make_tops(&self.resources, &shape)?;
        let recorder = Recorder {
            plan: &self.fast,
            resources: &self.resources,
            buffers: &mut self.buffers,
            shape,
            keys,
            stop: None,
        };
        recorder.record_ahead()
    }
}

/// One call on its way to the device.
struct Run<'a> {
    recorder: Recorder<'a>,
    source: Source<'a>,
    wishes: &'a Wishes<'a>,
    in_flight: &'a super::InFlight,
}

impl Run<'_> {
    /// What the caller will get; what the host has of it is here already.
    fn outputs(&self, whole: Sizes) -> Result<Outputs> {
        let method = self.recorder.method();
        let mut fed = BTreeMap::new();
        for (output, _) in &self.wishes.read {
            let value = method.outputs[*output].value;
            if let Place::Feed(feed) = value.place {
                let mut numbers = vec![0.0; value.len(whole)];
                show_feed(method, self.source, feed, &mut numbers)?;
                fed.insert(*output, numbers);
            }
        }
        Ok(Outputs::new(method, whole, &self.wishes.read, fed))
    }

    /// Submits all of a call, with commands that were recorded ahead if there are.
    fn submit_whole(&mut self) -> Result<(Commands, wgpu::SubmissionIndex)> {
        let Some(mut commands) = self.recorder.choose() else {
            let kept = self.recorder.take_kept(self.recorder.shape.sizes)?;
            let steps = 0..self.recorder.method().steps.len();
            return self.submit_window(steps, 0, |_| true, kept);
        };
        let mapped = commands.upload.as_ref().map(|upload| upload.buffer.clone());
        self.recorder.feed(self.source, mapped.as_ref(), |_| true, 0)?;
        self.write_masks(0);
        let first = (self.recorder.shape.of != 0).then(|| {
            let mut encoder = self.recorder.gpu().encoder();
            self.record_of(&mut encoder, 0).map(|()| encoder.finish())
        });
        let last = self.recorder.submit_ahead(first.transpose()?, &mut commands)?;
        Ok((commands, last))
    }

    /// Feeds and submits some steps.
    fn submit_window(
        &mut self,
        steps: std::ops::Range<usize>,
        from: usize,
        wanted: impl Fn(&FeedSpec) -> bool,
        kept: Vec<KeptRows>,
    ) -> Result<(Commands, wgpu::SubmissionIndex)> {
        self.recorder.feed(self.source, None, wanted, from)?;
        self.write_masks(from);
        let mut encoder = self.recorder.gpu().encoder();
        self.record_of(&mut encoder, from)?;
        self.recorder.submit_new(encoder, steps, from, kept)
    }

    fn record_of(&self, encoder: &mut wgpu::CommandEncoder, from: usize) -> Result<()> {
        self.recorder.record_of(encoder, self.source, from, &|rows| self.in_flight.kept(rows))
    }

    /// Writes which numbers of the rows of this window count.
    fn write_masks(&self, from: usize) {
        let (method, sizes) = (self.recorder.method(), self.recorder.shape.sizes);
        for (output, what) in self.wishes.uses.iter().enumerate() {
            let OutputUse::Top(what @ TopUse { masks: true, .. }) = what else { continue };
            let rows = sizes.len(method.outputs[output].value.rows);
            let top = self.recorder.top(output, *what);
            top.write_masks(self.recorder.gpu(), self.wishes.masks[output], from..from + rows);
        }
    }

    /// The call that is likely to come next: one more token for each asked row, drawn on the device if
    /// this call draws, and was itself fed so or is a prompt.
    fn next(&self, tokens: Option<usize>, tables: Tables) -> Option<NextCall> {
        let own = &self.recorder.shape;
        let Sizes { tokens: n, rows, .. } = own.sizes;
        if n == 0 || rows == 0 || self.wishes.read.is_empty() {
            return None;
        }
        let draws = |what: &OutputUse| matches!(what, OutputUse::Top(what) if what.draws);
        let of_tokens = tokens.map_or(0, |i| 1u64 << i.min(63));
        let is_fed = own.of & of_tokens != 0 || n > rows;
        let of = if own.uses.iter().any(draws) && is_fed && tables == Tables::Device {
            of_tokens
        } else {
            0
        };
        let spans = if own.spans == 0 { 0 } else { rows };
        let sizes = Sizes { tokens: rows, rows, ..Sizes::default() };
        let shape = CallShape { sizes, spans, of, ..own.clone() };
        (spans <= self.recorder.arena().spans)
            .then_some(NextCall { shape, keys: self.recorder.keys + 1 })
    }
}

/// What stays of outputs, by their names.
fn named(method: &CompiledMethod, kept: Vec<KeptRows>) -> Vec<(String, KeptRows)> {
    kept.into_iter().map(|kept| (method.outputs[kept.output].name.clone(), kept)).collect()
}
