//! Graphs in single-assignment form.
//!
//! Values are numbered: first the inputs, then the outputs of each node in turn.
//! A node may use only lower numbers, so there is no cycle to look for, and the order of the nodes
//! is the order of effects on state.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::op::Op;
use crate::rules::{Context, infer};
use crate::shape::{Dim, Shape, Sym};

/// The number of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ValueId(pub u32);

/// What a value is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "dtype", content = "shape", rename_all = "lowercase")]
pub enum ValueType {
    /// Activations.
    F32(Shape),
    /// Indices.
    I32(Shape),
}

/// A value that the caller feeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Its name, one of [`crate::input`] for the methods that the runner calls.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub value_type: ValueType,
}

/// One op with its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// A name for people and for `verify`, unique in its graph.
    pub name: String,
    /// The op.
    pub op: Op,
    /// The values that it reads.
    pub inputs: Vec<ValueId>,
}

/// A value that the caller gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Which value.
    pub value: ValueId,
}

/// Ops in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// What the caller feeds.
    pub inputs: Vec<Input>,
    /// The ops.
    pub nodes: Vec<Node>,
    /// What the caller gets.
    pub outputs: Vec<Output>,
}

impl ValueId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueType {
    /// An index vector of symbolic length.
    pub fn indices(len: Sym) -> Self {
        ValueType::I32(vec![Dim::Sym(len)])
    }

    /// Activations of symbolic length.
    pub fn rows(len: Sym, channels: u64) -> Self {
        ValueType::F32(vec![Dim::Sym(len), Dim::Fixed(channels)])
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        match self {
            ValueType::F32(s) | ValueType::I32(s) => s,
        }
    }

    /// Product of the lengths after the first: the channels of one row.
    pub fn channels(&self) -> usize {
        self.shape()
            .iter()
            .skip(1)
            .map(|d| match d {
                Dim::Fixed(n) => *n as usize,
                Dim::Sym(_) | Dim::Part { .. } => 1,
            })
            .product()
    }
}

impl Graph {
    /// The first value that each node makes, in node order, and the number of values.
    pub fn first_outputs(&self) -> (Vec<ValueId>, usize) {
        let mut next = self.inputs.len();
        let firsts = self
            .nodes
            .iter()
            .map(|n| {
                let first = ValueId(next as u32);
                next += n.op.n_outputs();
                first
            })
            .collect();
        (firsts, next)
    }
}

/// Builds a graph node by node, checking each against its shape rule as it is added.
pub struct GraphBuilder<'a> {
    graph: Graph,
    types: Vec<ValueType>,
    context: Context<'a>,
}

impl<'a> GraphBuilder<'a> {
    /// A builder over weight and state declarations that must already be there.
    pub fn new(
        weights: &'a std::collections::BTreeMap<String, crate::WeightDecl>,
        states: &'a [crate::StateDecl],
    ) -> Self {
        GraphBuilder {
            graph: Graph { inputs: vec![], nodes: vec![], outputs: vec![] },
            types: vec![],
            context: Context { weights, states },
        }
    }

    /// Adds an input. All inputs come before the first node.
    pub fn input(&mut self, name: &str, value_type: ValueType) -> ValueId {
        assert!(self.graph.nodes.is_empty(), "inputs come before nodes");
        let id = ValueId(self.types.len() as u32);
        self.types.push(value_type.clone());
        self.graph.inputs.push(Input { name: name.to_string(), value_type });
        id
    }

    /// Adds a node and returns the first value it makes.
    pub fn node(&mut self, name: impl Into<String>, op: Op, inputs: &[ValueId]) -> Result<ValueId> {
        let name = name.into();
        let input_types: Option<Vec<&ValueType>> =
            inputs.iter().map(|v| self.types.get(v.index())).collect();
        let made = input_types
            .ok_or_else(|| "an input is not a value of this graph".to_string())
            .and_then(|types| infer(&op, &types, &self.context))
            .map_err(|what| Error::Op { method: "(being built)".into(), op: name.clone(), what })?;
        let first = ValueId(self.types.len() as u32);
        self.types.extend(made);
        self.graph.nodes.push(Node { name, op, inputs: inputs.to_vec() });
        Ok(first)
    }

    /// The type of a value.
    pub fn value_type(&self, value: ValueId) -> &ValueType {
        &self.types[value.index()]
    }

    /// Names a value as an output.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.graph.outputs.push(Output { name: name.to_string(), value });
    }

    /// The graph.
    pub fn finish(self) -> Graph {
        self.graph
    }
}
