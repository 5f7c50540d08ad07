//! A short way to write a kernel with its operands down.

use crate::compile::MethodCompiler;
use crate::device::Access;
use crate::shader::Shader;
use crate::step::{Binding, Count, Dispatch, Grid, Value, When, Work};

/// Invocations of a workgroup of the kernels that go over elements.
const ELEMENTS: u64 = 256;

/// A kernel that is being written down. Operands stand in the order of their bindings.
pub(super) struct Kernel {
    shader: Shader,
    words: Vec<u32>,
    bindings: Vec<(Binding, Access)>,
    when: Option<When>,
}

impl Kernel {
    pub(super) fn new(shader: Shader) -> Self {
        Kernel { shader, words: vec![], bindings: vec![], when: None }
    }

    /// A kernel over the elements of a value: its length and its channels come first.
    pub(super) fn over(cx: &mut MethodCompiler<'_>, shader: Shader, y: Value) -> Self {
        let len = cx.len(y.rows);
        Self::new(shader).words(&[len, y.channels as u32])
    }

    /// Numbers of the kernel's `Params`, after those that are there.
    pub(super) fn words(mut self, words: &[u32]) -> Self {
        self.words.extend(words);
        self
    }

    /// Reads a value.
    pub(super) fn read(self, value: Value) -> Self {
        self.reads(Binding::Value(value.place))
    }

    /// Reads a buffer.
    pub(super) fn reads(mut self, binding: Binding) -> Self {
        self.bindings.push((binding, Access::Read));
        self
    }

    /// Writes a value, and may read it.
    pub(super) fn write(self, value: Value) -> Self {
        self.writes(Binding::Value(value.place))
    }

    /// Writes a buffer, and may read it.
    pub(super) fn writes(mut self, binding: Binding) -> Self {
        self.bindings.push((binding, Access::Write));
        self
    }

    /// For some lengths only.
    pub(super) fn when(mut self, when: When) -> Self {
        self.when = Some(when);
        self
    }

    /// One invocation for each element of a value.
    pub(super) fn elements(self, cx: &mut MethodCompiler<'_>, y: Value) {
        let work = Work::Rows(y.rows, y.channels as u64);
        self.groups(cx, Count::of(y.rows, y.channels, ELEMENTS), work);
    }

    /// Workgroups in one direction.
    pub(super) fn groups(self, cx: &mut MethodCompiler<'_>, count: Count, work: Work) {
        self.grid(cx, Grid::flat(count), work);
    }

    /// Workgroups in one direction or two.
    pub(super) fn grid(self, cx: &mut MethodCompiler<'_>, grid: Grid, work: Work) {
        let Kernel { shader, words, bindings, when } = self;
        cx.push(Dispatch { shader, words, bindings, grid, when, work });
    }
}
