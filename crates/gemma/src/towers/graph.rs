//! The blocks that towers are built of.

use std::collections::BTreeMap;

use lapidary_program::{
    Activation, Graph, GraphBuilder, Op, ValueId, ValueType, WeightDecl, input,
};

use crate::error::{Error, Result};

/// A tower's graph in the making. Nodes are named after their weights.
pub(super) struct Tower<'a> {
    g: GraphBuilder<'a>,
    weights: &'a BTreeMap<String, WeightDecl>,
    eps: f32,
}

impl<'a> Tower<'a> {
    /// An empty graph; `eps` stands under the root of every norm.
    pub fn new(weights: &'a BTreeMap<String, WeightDecl>, eps: f32) -> Self {
        Tower { g: GraphBuilder::new(weights, &[]), weights, eps }
    }

    pub fn input(&mut self, name: &str, value_type: ValueType) -> ValueId {
        self.g.input(name, value_type)
    }

    /// The graph, whose one output is the soft rows.
    pub fn finish(mut self, soft: ValueId) -> Graph {
        self.g.output(input::SOFT, soft);
        self.g.finish()
    }

    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        Ok(self.g.node(name, op, inputs)?)
    }

    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.node(name, Op::Add, &[a, b])
    }

    pub fn scale(&mut self, name: &str, x: ValueId, factor: f32) -> Result<ValueId> {
        self.node(name, Op::Scale { factor }, &[x])
    }

    pub fn activate(&mut self, name: &str, x: ValueId, function: Activation) -> Result<ValueId> {
        self.node(name, Op::Activate { function }, &[x])
    }

    /// A linear, with a bias if the weights have one for it.
    pub fn linear(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let bias = format!("{name}.bias");
        let bias = self.weights.contains_key(&bias).then_some(bias);
        self.node(name, Op::Linear { weight: format!("{name}.weight"), bias }, &[x])
    }

    /// A linear one level deeper than its name, between the bounds that the checkpoint has.
    pub fn clipped(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let x = self.clamp(&format!("{name}.input"), x)?;
        let weight = format!("{name}.linear.weight");
        let y = self.node(name, Op::Linear { weight, bias: None }, &[x])?;
        self.clamp(&format!("{name}.output"), y)
    }

    fn clamp(&mut self, name: &str, x: ValueId) -> Result<ValueId> {
        let (low, high) = (format!("{name}_min"), format!("{name}_max"));
        match (self.weights.contains_key(&low), self.weights.contains_key(&high)) {
            (true, true) => self.node(&format!("{name}_clamp"), Op::Clamp { low, high }, &[x]),
            (false, false) => Ok(x),
            (there, _) => {
                let (there, missing) = if there { (low, high) } else { (high, low) };
                Err(Error::tensor(&missing, format!("it is missing, but `{there}` is there")))
            }
        }
    }

    /// A norm with a weight.
    pub fn rms_norm(&mut self, name: &str, x: ValueId, width: u32) -> Result<ValueId> {
        self.rms_norm_as(name, x, width, Some((format!("{name}.weight"), 0.0)))
    }

    /// A norm without one.
    pub fn bare_norm(&mut self, name: &str, x: ValueId, width: u32) -> Result<ValueId> {
        self.rms_norm_as(name, x, width, None)
    }

    /// A norm with a weight and what is added to it, or without.
    pub fn rms_norm_as(
        &mut self,
        name: &str,
        x: ValueId,
        width: u32,
        weight: Option<(String, f32)>,
    ) -> Result<ValueId> {
        let (weight, offset) = weight.map_or((None, 0.0), |(w, offset)| (Some(w), offset));
        self.node(name, Op::RmsNorm { weight, eps: self.eps, offset, width }, &[x])
    }

    /// A norm of mean and variance, with a bias if the weights have one for it.
    pub fn layer_norm(&mut self, name: &str, x: ValueId, width: u32, eps: f32) -> Result<ValueId> {
        let bias = format!("{name}.bias");
        let bias = self.weights.contains_key(&bias).then_some(bias);
        let weight = format!("{name}.weight");
        self.node(name, Op::LayerNorm { weight, bias, eps, width }, &[x])
    }

    /// Rows `start + stride·id` of a position table.
    pub fn positions(
        &mut self,
        name: &str,
        table: &str,
        ids: ValueId,
        (start, stride): (u32, u32),
    ) -> Result<ValueId> {
        let weight = table.to_string();
        self.node(name, Op::Embed { weight, scale: 1.0, start, stride, soft_id: None }, &[ids])
    }
}
