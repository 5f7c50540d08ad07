//! What was measured, as Markdown for people and as JSON for programs.

use std::fmt;

use serde::{Serialize, Serializer};

/// Everything of one call of the command. In every pair Lapidary comes first.
#[derive(Debug, Serialize)]
pub struct Report {
    pub cpu: String,
    pub threads: u16,
    pub repetitions: u16,
    /// What the engines say about themselves.
    pub engines: [String; 2],
    pub models: Vec<ModelReport>,
}

/// Everything about one file.
#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub name: String,
    pub file_bytes: u64,
    pub decode_bytes: u64,
    pub bandwidth: Option<Bandwidth>,
    /// The part of the machine that other programs used meanwhile.
    pub others_cpu: Option<f64>,
    pub rows: Vec<Row>,
}

/// How fast memory is read.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// A buffer that no cache holds.
    pub large_bytes: u64,
    pub large_bytes_per_s: f64,
    /// A buffer of as many bytes as a decoded token needs; caches may hold some of it.
    pub model_bytes_per_s: f64,
}

impl Bandwidth {
    /// The better of two measurements.
    pub fn best(self, other: Bandwidth) -> Bandwidth {
        Bandwidth {
            large_bytes: self.large_bytes,
            large_bytes_per_s: self.large_bytes_per_s.max(other.large_bytes_per_s),
            model_bytes_per_s: self.model_bytes_per_s.max(other.model_bytes_per_s),
        }
    }
}

/// One quantity, by repetition, for both engines.
#[derive(Debug)]
pub struct Row {
    pub test: String,
    pub unit: Unit,
    pub better: Better,
    pub values: [Vec<f64>; 2],
}

/// What a number counts. Values are kept in seconds, bytes and parts; only people see the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    TokensPerSecond,
    Tokens,
    Seconds,
    Milliseconds,
    Megabytes,
    Percent,
    Times,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Higher,
    Lower,
}

impl Row {
    /// How many times better Lapidary was, by repetition.
    pub fn ratios(&self) -> Vec<f64> {
        let pairs = self.values[0].iter().zip(&self.values[1]);
        pairs
            .map(|(ours, theirs)| match self.better {
                Better::Higher => ours / theirs,
                Better::Lower => theirs / ours,
            })
            .collect()
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::TokensPerSecond => format!("{value:.2} t/s"),
            Unit::Tokens => format!("{value:.0}"),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Milliseconds => format!("{:.1} ms", value * 1e3),
            Unit::Megabytes => format!("{:.0} MB", value / 1e6),
            Unit::Percent => format!("{:.0} %", value * 100.0),
            Unit::Times => format!("{value:.2} x"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} threads; in turn, {} times", self.cpu, self.threads, self.repetitions)?;
        writeln!(f)?;
        for engine in &self.engines {
            writeln!(f, "- {engine}")?;
        }
        writeln!(f)?;
        writeln!(f, "The ratio says how many times better Lapidary is; over 1 it wins.")?;
        for model in &self.models {
            write!(f, "\n{model}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let (file, decode) = (megabytes(self.file_bytes), megabytes(self.decode_bytes));
        writeln!(f, "### {}", self.name)?;
        writeln!(f)?;
        write!(f, "File {file:.0} MB; one token needs {decode:.0} MB of it.")?;
        if let Some(b) = &self.bandwidth {
            let (large, own) = (b.large_bytes_per_s / 1e9, b.model_bytes_per_s / 1e9);
            let of = megabytes(b.large_bytes);
            write!(
                f,
                " Read bandwidth {large:.1} GB/s ({of:.0} MB), {own:.1} GB/s ({decode:.0} MB)."
            )?;
        }
        if let Some(others) = self.others_cpu {
            write!(f, " Other programs used {:.0} % of the machine.", others * 100.0)?;
        }
        writeln!(f, "\n")?;
        writeln!(f, "| test | lapidary | llama.cpp | ratio | min … max | each |")?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | --- |")?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, theirs] = [0, 1].map(|i| self.unit.show(median(&self.values[i])));
        let ratios = self.ratios();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let each: Vec<String> = ratios.iter().map(|r| format!("{r:.2}")).collect();
        let (test, middle, each) = (&self.test, median(&ratios), each.join(" "));
        write!(
            f,
            "| {test} | {ours} | {theirs} | **{middle:.2}** | {low:.2} … {high:.2} | {each} |"
        )
    }
}

/// A row as JSON has it: programs should not have to know which way is better.
#[derive(Serialize)]
struct RowWithRatios<'a> {
    test: &'a str,
    unit: Unit,
    better: Better,
    lapidary: &'a [f64],
    llama: &'a [f64],
    ratios: Vec<f64>,
    median_ratio: f64,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ratios = self.ratios();
        let [lapidary, llama] = &self.values;
        let median_ratio = median(&ratios);
        let (test, unit, better) = (&self.test, self.unit, self.better);
        RowWithRatios { test, unit, better, lapidary, llama, ratios, median_ratio }
            .serialize(serializer)
    }
}

/// The middle value, or the mean of the two middle ones; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    match n {
        0 => 0.0,
        _ if n.is_multiple_of(2) => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
        _ => sorted[n / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better: Better) -> Row {
        let values = [vec![2.0, 4.0, 3.0], vec![1.0, 1.0, 2.0]];
        Row { test: "x".to_string(), unit: Unit::Seconds, better, values }
    }

    #[test]
    fn a_ratio_over_one_is_a_win_either_way() {
        assert_eq!(row(Better::Higher).ratios(), [2.0, 4.0, 1.5]);
        assert_eq!(row(Better::Lower).ratios(), [0.5, 0.25, 2.0 / 3.0]);
    }

    #[test]
    fn a_row_shows_medians_of_values_and_of_ratios() {
        let shown = row(Better::Higher).to_string();
        assert_eq!(shown, "| x | 3.00 s | 1.00 s | **2.00** | 1.50 … 4.00 | 2.00 4.00 1.50 |");
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
