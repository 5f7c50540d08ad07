//! The largest numbers of each row of an output: all that most ways of choosing a token look at.

/// One number of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The number; NaN stands for any that is not finite.
    pub value: f32,
    /// Where it stands in its row.
    pub index: u32,
}

/// The largest numbers of each row; reused from call to call.
///
/// Those of a row are sorted: largest first, and lowest index first among equals; −0 equals 0.
/// A number that is not finite comes before all that are, so the first of a row tells whether it
/// has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Largest {
    per_row: usize,
    found: Vec<Found>,
}

impl Largest {
    /// The largest of a row.
    pub fn row(&self, row: usize) -> &[Found] {
        &self.found[row * self.per_row..(row + 1) * self.per_row]
    }

    /// For backends: forgets an earlier call; so many are to come of each row.
    pub fn clear(&mut self, per_row: usize) {
        self.per_row = per_row;
        self.found.clear();
    }

    /// For backends: adds what was found, row after row.
    pub fn extend(&mut self, found: impl IntoIterator<Item = Found>) {
        self.found.extend(found);
    }
}
