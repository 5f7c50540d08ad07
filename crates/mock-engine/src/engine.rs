//! The engine: cells instead of keys and values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lapidary_backend::{
    Abilities, Bound, Call, Engine, Error, Fed, LoadOptions, PAGE, PageId, Result, Results, Span,
    Ticket, Want, bind,
};
use lapidary_backend_kit::{TicketData, Tickets, answer};
use lapidary_program::{Program, input, method, output};

use crate::model::{fold, hidden, logits, soft_value, state, value};
use crate::program::CHANNELS;
use crate::{Fault, Mock};

/// What is known of a position: which it is, and what its token became.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cell {
    position: u32,
    state: u64,
    written: bool,
}

/// What the drafter's own rows hold.
const OWN: f32 = 77.0;

/// Bytes of a cell in a saved page.
const CELL_BYTES: usize = 13;

pub(crate) struct MockEngine {
    mock: Mock,
    program: Arc<Program>,
    /// For each group its pages.
    cells: Vec<Vec<[Cell; PAGE]>>,
    tickets: Tickets,
    /// Calls that were not taken yet.
    under_way: BTreeMap<Ticket, UnderWay>,
    /// Tokens that were drawn.
    drawn: usize,
    /// When the last call ends.
    end: Duration,
}

struct UnderWay {
    end: Duration,
    polls: usize,
    fails: bool,
}

impl MockEngine {
    pub(crate) fn new(mock: Mock, program: Arc<Program>) -> Self {
        let n_groups = program.kv_groups().len();
        let cells = (0..n_groups).map(|g| vec![[Cell::default(); PAGE]; mock.options.pages_of(g)]);
        MockEngine {
            cells: cells.collect(),
            program,
            tickets: Tickets::default(),
            under_way: BTreeMap::new(),
            drawn: 0,
            end: Duration::ZERO,
            mock,
        }
    }

    fn forward(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let program = self.program.clone();
        let bound = bind(&program, call, &self.mock.options)?;
        let inputs = &program.method(method::FORWARD)?.graph.inputs;
        let input = |name: &str| inputs.iter().zip(&bound.feeds).find(|(i, _)| i.name == name);
        let fed = |name: &str| input(name).map(|(_, fed)| *fed);
        let mut is_fed = false;
        let tokens: Vec<i32> = match input(input::TOKENS) {
            Some((_, Fed::I32(tokens))) => tokens.to_vec(),
            Some((tokens, Fed::Of(rows))) => {
                is_fed = true;
                match self.tickets.feed(&program, (method::FORWARD, tokens), rows)? {
                    TicketData::I32(tokens) => tokens,
                    TicketData::F32(_) => return Err(Error::Device("rows fed as tokens".into())),
                }
            }
            _ => return Err(Error::Device("no tokens".into())),
        };
        let mut values: Vec<u64> = tokens.iter().map(|token| value(*token as u32)).collect();
        if let (Some(Fed::I32(index)), Some(Fed::F32(soft))) =
            (fed(input::SOFT_INDEX), fed(input::SOFT))
        {
            let channels = CHANNELS as usize;
            for (value, index) in values.iter_mut().zip(index).filter(|(_, i)| **i >= 0) {
                let at = *index as usize * channels;
                *value = soft_value(&soft[at..at + channels]);
            }
        }
        let rows = match fed(input::ROWS) {
            Some(Fed::I32(rows)) => rows,
            _ => &[],
        };
        let fault = self.note(call, &bound, is_fed);
        match fault {
            Some(Fault::Panic) => panic!("mock panic"),
            Some(Fault::Error) => {
                self.run(&bound, &values, true);
                return Err(Error::Device("unplugged".into()));
            }
            Some(Fault::Nan | Fault::LateError) | None => {}
        }
        let states = self.run(&bound, &values, fault == Some(Fault::LateError));
        let vocab = program.metadata().vocab_size as usize;
        let mut data: Vec<f32> =
            rows.iter().flat_map(|row| logits(states[*row as usize], vocab)).collect();
        if fault == Some(Fault::Nan)
            && let Some(at) = data.len().checked_sub(vocab)
        {
            data[at + 7 % vocab] = f32::NAN;
        }
        let mut results = self.tickets.begin();
        answer(&mut results, (output::LOGITS, vocab), &data, &call.want(output::LOGITS));
        self.spoil(&mut results, vocab);
        if self.mock.hidden {
            let rows = rows.iter().flat_map(|row| hidden(states[*row as usize]));
            let rows: Vec<f32> = rows.collect();
            let want = call.want(output::HIDDEN);
            answer(&mut results, (output::HIDDEN, CHANNELS as usize), &rows, &want);
        }
        let ticket = self.tickets.end(call, results, vec![]);
        self.start(ticket, tokens.len(), fault == Some(Fault::LateError));
        Ok(ticket)
    }

    /// Writes down what a call is, and says what shall happen to it.
    fn note(&mut self, call: &Call<'_>, bound: &Bound<'_>, is_fed: bool) -> Option<Fault> {
        let mut log = self.mock.log();
        let number = log.calls.len();
        log.calls.push(bound.sizes.tokens);
        log.rows.push(bound.sizes.rows);
        log.fed += usize::from(is_fed);
        log.whole += usize::from(matches!(call.want(output::LOGITS), Want::Whole));
        let made = |name| !matches!(call.want(name), Want::Skip);
        log.hidden += usize::from(made(output::HIDDEN) && !made(output::LOGITS));
        log.in_flight = log.in_flight.max(self.under_way.len() + 1);
        for span in bound.spans {
            let (first, last) = (span.start as usize, (span.start + span.len) as usize - 1);
            log.pages_written += span.tables.len() * (last / PAGE - first / PAGE + 1);
        }
        drop(log);
        self.mock.fault(number)
    }

    /// Makes a wrong token of every so many-th that was drawn.
    fn spoil(&mut self, results: &mut Results, vocab: usize) {
        let Some(out) = results.get_mut(output::LOGITS) else { return };
        for token in &mut out.drawn {
            self.drawn += 1;
            if self.mock.wrong_draws > 0 && self.drawn.is_multiple_of(self.mock.wrong_draws) {
                *token = (*token + 1) % vocab as u32;
            }
        }
    }

    /// Begins a call of so many tokens; it ends after those before it.
    fn start(&mut self, ticket: Ticket, tokens: usize, fails: bool) {
        let most = self.mock.abilities.max_in_flight.max(1);
        assert!(self.under_way.len() < most, "more than {most} calls are under way");
        let (each_call, each_token) = self.mock.cost;
        let begin = self.end.max(self.mock.clock.now());
        self.end = begin + each_call + each_token * tokens as u32;
        let polls = self.mock.polls;
        self.under_way.insert(ticket, UnderWay { end: self.end, polls, fails });
    }

    /// What every token becomes. A call that fails writes garbage.
    fn run(&mut self, bound: &Bound<'_>, values: &[u64], fails: bool) -> Vec<u64> {
        let program = self.program.clone();
        let mut states = Vec::with_capacity(values.len());
        for (t, value) in values.iter().enumerate() {
            let span = &bound.spans[bound.sequences[t] as usize];
            let p = bound.positions[t] as usize;
            let seen: Vec<u64> = program
                .kv_groups()
                .iter()
                .enumerate()
                .map(|(g, group)| self.seen(g, span, p, group.window))
                .collect();
            let later = (bound.horizons[t] - bound.positions[t]) as usize;
            let ahead = values[t + 1..=t + later].iter().fold(0, |h, value| fold(h, *value));
            let state = state(*value, seen.into_iter(), ahead);
            states.push(state);
            let state = if fails { !state } else { state };
            for (g, cells) in self.cells.iter_mut().enumerate() {
                if let Some((page, place)) = span.tables[g].find(p) {
                    cells[page.index()][place] = Cell { position: p as u32, state, written: true };
                }
            }
        }
        states
    }

    /// The fold over all keys of a group that the query at `p` sees, but for its own.
    fn seen(&self, g: usize, span: &Span<'_>, p: usize, window: Option<u32>) -> u64 {
        let from = window.map_or(0, |window| (p + 1).saturating_sub(window as usize).min(p));
        let (mut h, mut stale) = (0, 0);
        for k in from..p {
            let held =
                span.tables[g].find(k).map(|(page, place)| self.cells[g][page.index()][place]);
            match held {
                Some(cell) if cell.written && cell.position as usize == k => {
                    h = fold(h, cell.state);
                }
                _ => {
                    stale += 1;
                    h = fold(h, !0);
                }
            }
        }
        if stale > 0 {
            self.mock.log().stale += stale;
        }
        h
    }

    /// What `forward` would say of the first guess; of later ones, something.
    fn draft(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let program = self.program.clone();
        let bound = bind(&program, call, &self.mock.options)?;
        let (Some(Fed::I32(tokens)), Some(Fed::F32(before))) =
            (bound.feeds.first(), bound.feeds.get(1))
        else {
            return Err(Error::Device("no tokens, or no rows to go on from".into()));
        };
        let mut states = Vec::with_capacity(tokens.len());
        let rows = before.chunks_exact(CHANNELS as usize);
        for ((t, token), before) in tokens.iter().enumerate().zip(rows) {
            let span = &bound.spans[bound.sequences[t] as usize];
            let p = bound.positions[t] as usize;
            let groups = program.kv_groups().iter().enumerate();
            let seen: Vec<u64> =
                groups.map(|(g, group)| self.seen(g, span, p, group.window)).collect();
            let last = span.tables[0].find(p.saturating_sub(1));
            let last = last.map(|(page, place)| self.cells[0][page.index()][place].state);
            // Later rows are the drafter's own.
            let is_own = before.first().is_some_and(|x| *x == OWN);
            if !is_own && last.is_none_or(|state| !hidden(state).eq(before.iter().copied())) {
                self.mock.log().wrong_hidden += 1;
            }
            states.push(state(value(*token as u32), seen.into_iter(), 0));
        }
        self.mock.log().drafts += 1;
        let vocab = program.metadata().vocab_size as usize;
        let data: Vec<f32> = states.iter().flat_map(|state| logits(*state, vocab)).collect();
        let own = vec![OWN; CHANNELS as usize * states.len()];
        let mut results = self.tickets.begin();
        answer(&mut results, (output::LOGITS, vocab), &data, &call.want(output::LOGITS));
        let want = call.want(output::HIDDEN);
        answer(&mut results, (output::HIDDEN, CHANNELS as usize), &own, &want);
        let ticket = self.tickets.end(call, results, vec![]);
        self.start(ticket, tokens.len(), false);
        Ok(ticket)
    }

    /// Soft rows that depend on the patches.
    fn see(&mut self, call: &Call<'_>) -> Result<Ticket> {
        let program = self.program.clone();
        let bound = bind(&program, call, &self.mock.options)?;
        self.mock.log().towers += 1;
        let patches = match bound.feeds.first() {
            Some(Fed::F32(patches)) => *patches,
            _ => &[],
        };
        let soft: Vec<f32> = patches
            .chunks_exact(3)
            .flat_map(|patch| (0..CHANNELS).map(|c| patch.iter().sum::<f32>() + c as f32))
            .collect();
        let mut results = self.tickets.begin();
        answer(&mut results, (output::SOFT, CHANNELS as usize), &soft, &call.want(output::SOFT));
        let ticket = self.tickets.end(call, results, vec![]);
        self.start(ticket, bound.sizes.patches, false);
        Ok(ticket)
    }
}

impl Engine for MockEngine {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn options(&self) -> &LoadOptions {
        &self.mock.options
    }

    fn describe(&self) -> String {
        "mock".into()
    }

    fn abilities(&self) -> Abilities {
        self.mock.abilities
    }

    fn submit(&mut self, call: &Call<'_>) -> Result<Ticket> {
        match call.method {
            method::FORWARD => self.forward(call),
            method::DRAFT => self.draft(call),
            _ => self.see(call),
        }
    }

    fn poll(&mut self, ticket: Ticket, results: &mut Results) -> Result<bool> {
        let unknown = Error::UnknownTicket(ticket.0);
        let Some(call) = self.under_way.get_mut(&ticket) else { return Err(unknown) };
        if call.polls > 0 {
            call.polls -= 1;
            return Ok(false);
        }
        let call = self.under_way.remove(&ticket).ok_or(unknown)?;
        self.mock.clock.advance_to(call.end);
        if call.fails {
            self.tickets.release(ticket);
            return Err(Error::Device("unplugged".into()));
        }
        self.tickets.take(ticket, results).map(|()| true)
    }

    fn release(&mut self, ticket: Ticket) {
        self.under_way.remove(&ticket);
        self.tickets.release(ticket);
    }

    fn copy_pages(&mut self, group: usize, pairs: &[(PageId, PageId)]) -> Result<()> {
        for (from, to) in pairs {
            self.cells[group][to.index()] = self.cells[group][from.index()];
        }
        self.mock.log().copied += pairs.len();
        Ok(())
    }

    fn page_bytes(&self, _group: usize) -> usize {
        PAGE * CELL_BYTES
    }

    fn read_page(&mut self, group: usize, page: PageId, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        for cell in &self.cells[group][page.index()] {
            bytes.extend(cell.position.to_le_bytes());
            bytes.extend(cell.state.to_le_bytes());
            bytes.push(u8::from(cell.written));
        }
        Ok(())
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<()> {
        let need = self.page_bytes(group);
        if bytes.len() != need {
            return Err(Error::Device(format!("a page of {} bytes, not {need}", bytes.len())));
        }
        let cells = bytes.as_chunks::<CELL_BYTES>().0.iter();
        for (cell, bytes) in self.cells[group][page.index()].iter_mut().zip(cells) {
            let [a, b, c, d, s @ .., written] = *bytes;
            let position = u32::from_le_bytes([a, b, c, d]);
            *cell = Cell { position, state: u64::from_le_bytes(s), written: written == 1 };
        }
        Ok(())
    }

    fn trace(&mut self, call: &Call<'_>, sink: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        bind(&self.program, call, &self.mock.options)?;
        self.mock.log().traces += 1;
        sink(0, &[1.0; 4]);
        sink(2, &[1.0, f32::INFINITY]);
        sink(4, &[f32::NAN]);
        Ok(())
    }
}
