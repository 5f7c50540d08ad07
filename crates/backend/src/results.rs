//! What comes out of a call.

use crate::call::Want;

/// The results of one call; keeps its storage from call to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Results {
    outputs: Vec<OutputResult>,
    /// How many of `outputs` belong to the latest call.
    used: usize,
}

/// What came of one output, as it was wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutputResult {
    /// The output's name.
    pub name: String,
    /// Its rows.
    pub rows: usize,
    /// Numbers of one row.
    pub channels: usize,
    /// All numbers, row after row, if it was wanted whole.
    pub data: Vec<f32>,
    /// Candidates of each row.
    pub per_row: usize,
    /// The largest numbers, row after row, if those were wanted.
    ///
    /// Those of a row are sorted: largest first, and lowest index first among equals; −0 equals 0.
    /// A number that is not finite comes before all that are, so the first of a row tells whether
    /// it has one. What a mask leaves out is not among them; places that nothing is left for have
    /// the value −∞.
    pub candidates: Vec<Candidate>,
    /// `ln Σ eˣ` of each row, if that was wanted.
    pub logsumexp: Vec<f32>,
    /// The token drawn from each row, if that was wanted.
    pub drawn: Vec<u32>,
}

/// One number of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The number; NaN stands for any that is not finite.
    pub value: f32,
    /// Where it stands in its row.
    pub index: u32,
}

impl Results {
    /// An output by name, if it was wanted.
    pub fn get(&self, name: &str) -> Option<&OutputResult> {
        self.outputs().iter().find(|o| o.name == name)
    }

    /// All outputs that were wanted, in the order of the graph.
    pub fn outputs(&self) -> &[OutputResult] {
        &self.outputs[..self.used]
    }

    /// For engines: forgets an earlier call.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// For engines: adds an output; its storage is empty, but allocated if it was before.
    pub fn add(&mut self, name: &str, rows: usize, channels: usize) -> &mut OutputResult {
        if self.outputs.len() == self.used {
            self.outputs.push(OutputResult::default());
        }
        let out = &mut self.outputs[self.used];
        self.used += 1;
        if out.name != name {
            out.name = name.to_string();
        }
        (out.rows, out.channels, out.per_row) = (rows, channels, 0);
        out.data.clear();
        out.candidates.clear();
        out.logsumexp.clear();
        out.drawn.clear();
        out
    }

    /// For engines: an output that was added, to be filled.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut OutputResult> {
        self.outputs[..self.used].iter_mut().find(|o| o.name == name)
    }
}

impl OutputResult {
    /// One row of an output that was wanted whole.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.channels..(row + 1) * self.channels]
    }

    /// The candidates of a row.
    pub fn candidates_of(&self, row: usize) -> &[Candidate] {
        &self.candidates[row * self.per_row..(row + 1) * self.per_row]
    }
}

impl Want<'_> {
    /// Whether anything of the output reaches the host.
    pub fn is_read(&self) -> bool {
        matches!(self, Want::Whole | Want::TopK(_) | Want::Draw(_))
    }

    /// Whether anything of the output stays on the device.
    pub fn is_kept(&self) -> bool {
        matches!(self, Want::Keep | Want::Draw(_))
    }
}
