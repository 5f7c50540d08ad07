//! The tests of one backend.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;

use lapidary_backend::{Backend, LoadOptions};
use lapidary_program::Program;

use crate::case::{self, Case, Way};
use crate::cover::{self, Covered};
use crate::harness::{self, Checked, Group, Test};
use crate::models::Model;
use crate::properties::{self, PROPERTIES};
use crate::tolerance::Class;
use crate::{graphs, models, ops};

const GRAPHS: &str = "graphs";
const MODELS: &str = "models";

/// What a backend is tested with: at first, everything.
#[derive(Clone)]
pub struct Suite {
    name: &'static str,
    backend: &'static dyn Backend,
    class: Class,
    ignored: &'static [&'static str],
    ops: Vec<&'static str>,
    graphs: bool,
    /// Numbers of random models.
    models: Range<usize>,
    /// Ops of which only cases that cover all kernels are run, and what tells of kernels.
    covering: Option<(Vec<&'static str>, Kernels)>,
    /// Ops whose ways to round take turns.
    in_turns: Option<(Vec<&'static str>, Turns)>,
    more: Option<fn() -> Vec<Test>>,
}

/// Which ways to round a case is run in, where not all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// As it is, and in one of the ways that round, which take turns from case to case.
    Two,
    /// In one: as it is and the ways that round take turns.
    One,
}

impl Turns {
    fn take(self, case: usize, ways: &mut Vec<Way>) {
        let n = ways.len();
        let kept = match self {
            Turns::One => [case % n, case % n],
            Turns::Two => [0, if n > 1 { 1 + case % (n - 1) } else { 0 }],
        };
        let mut i = 0..n;
        ways.retain(|_| i.next().is_some_and(|i| kept.contains(&i)));
    }
}

/// The kernels that calls of some lengths run: names, then switches and constants.
pub type Kernels = fn(&Program, &LoadOptions, &[usize]) -> Vec<String>;

impl Suite {
    /// Everything, under a name that no other suite of the file has.
    pub fn new(name: &'static str, backend: &'static dyn Backend, class: Class) -> Self {
        let ops = ops::SUITES.map(|(kind, _)| kind).to_vec();
        Suite {
            name,
            backend,
            class,
            ignored: &[],
            ops,
            graphs: true,
            models: 0..usize::MAX,
            covering: None,
            in_turns: None,
            more: None,
        }
    }

    /// Only some of the ops.
    pub fn with_ops(mut self, kinds: &[&str]) -> Self {
        self.ops.retain(|kind| kinds.contains(kind));
        assert_eq!(self.ops.len(), kinds.len(), "not all of these are ops: {kinds:?}");
        self
    }

    /// Some ops only in cases that together run all of the op's kernels (`cover.rs`), for a backend
    /// that is slow to compile one. Cases that are left out can be run by `--exact` and their name.
    pub fn covering(self, kinds: &[&'static str], kernels: Kernels) -> Self {
        Suite { covering: Some((kinds.to_vec(), kernels)), ..self }
    }

    /// Some ops with each case in some of its ways to round only, for a backend that is slow to run
    /// them. As with [`Suite::covering`], the others can be run by their names.
    pub fn in_turns(self, kinds: &[&'static str], turns: Turns) -> Self {
        Suite { in_turns: Some((kinds.to_vec(), turns)), ..self }
    }

    /// No random graphs.
    pub fn without_graphs(self) -> Self {
        Suite { graphs: false, ..self }
    }

    /// Only some of the random models.
    pub fn with_models(self, models: Range<usize>) -> Self {
        Suite { models, ..self }
    }

    /// With more tests of the same backend.
    pub fn with_tests(self, more: fn() -> Vec<Test>) -> Self {
        Suite { more: Some(more), ..self }
    }

    /// With tests, named by how they begin, that are listed as ignored: what a young backend can't do
    /// yet.
    pub fn ignoring(self, ignored: &'static [&'static str]) -> Self {
        Suite { ignored, ..self }
    }

    /// The tests; if one is `wanted`, some others may be missing.
    fn group(&self, wanted: Option<&str>) -> Group {
        let wants = |of: &str| harness::is_wanted(wanted, &format!("{}/{of}/", self.name));
        let absent = harness::absence(self.backend);
        let is_all = absent.is_some() || wanted.is_some();
        let mut tests = Vec::new();
        for kind in self.ops.iter().chain(self.graphs.then_some(&GRAPHS)).filter(|k| wants(k)) {
            let runs = if is_all { self.runs(kind, None) } else { self.chosen(kind) };
            tests.extend(runs.into_iter().map(|run| self.test(kind, run)));
        }
        if !self.models.is_empty() && wants(MODELS) {
            for model in self.models() {
                let parts = [MODELS, model.name];
                let on = (self.backend, self.class);
                tests.extend(properties(&parts, on, &model.program, &model.tokens));
            }
        }
        tests.extend(self.more.into_iter().flat_map(|more| more()));
        Group { name: self.name, absent, ignored: self.ignored, tests }
    }

    /// Every case of an op in each of its ways, or in those whose turn it is.
    fn runs(&self, kind: &str, turns: Option<Turns>) -> Vec<Run> {
        let suite = ops::SUITES.iter().find(|(name, _)| *name == kind);
        let cases = suite.map_or(graphs::cases as ops::Cases, |(_, cases)| *cases)();
        let mut runs = Vec::new();
        for (i, case) in cases.into_iter().enumerate() {
            let mut ways = case::ways(self.backend, kind, &case);
            turns.inspect(|turns| turns.take(i, &mut ways));
            let case = Arc::new(case);
            runs.extend(ways.into_iter().map(|way| (case.clone(), way)));
        }
        runs
    }

    /// The runs of an op that the suite wants.
    fn chosen(&self, kind: &str) -> Vec<Run> {
        let turns = self.in_turns.as_ref().filter(|(kinds, _)| kinds.contains(&kind));
        let runs = self.runs(kind, turns.map(|(_, turns)| *turns));
        let covering = self.covering.as_ref().filter(|(kinds, _)| kinds.contains(&kind));
        let Some((_, kernels)) = covering else { return runs };
        let covered = |(case, way): &Run| {
            let kernels = kernels(&case.program, &way.options, &case.lengths());
            Covered::new(kernels.into_iter().chain(case.weights()))
        };
        let covered: Vec<Covered> = runs.iter().map(covered).collect();
        let chosen = cover::choose(&covered);
        let runs = runs.into_iter().enumerate();
        runs.filter(|(i, _)| chosen.contains(i)).map(|(_, run)| run).collect()
    }

    fn test(&self, kind: &str, (case, way): Run) -> Test {
        let backend = self.backend;
        let name = [case.name.as_str(), way.name.as_str()].map(str::to_string);
        let mut parts = vec![kind, &name[0]];
        parts.extend(Some(name[1].as_str()).filter(|name| !name.is_empty()));
        Test::new(&parts, move || case::run(backend, &case, &way))
    }

    fn models(&self) -> impl Iterator<Item = Model> {
        let wanted = self.models.clone();
        let all = models::all().into_iter().enumerate();
        all.filter(move |(i, _)| wanted.contains(i)).map(|(_, model)| model)
    }

    /// The kernels that its tests run, without their constants, as `kernels` tells.
    pub fn kernels(&self, kernels: Kernels) -> BTreeSet<String> {
        let mut all = Vec::new();
        for kind in self.ops.iter().chain(self.graphs.then_some(&GRAPHS)) {
            for (case, way) in self.chosen(kind) {
                all.extend(kernels(&case.program, &way.options, &case.lengths()));
            }
        }
        for model in self.models() {
            for run in properties::runs(self.backend, &model.program, &model.tokens, self.class) {
                let lengths = [&[1], properties::CHUNKS.as_slice(), &[run.tokens.len()]].concat();
                all.extend(kernels(&model.program, &run.options(), &lengths));
            }
        }
        all.iter().filter_map(|label| label.split_whitespace().next()).map(str::to_string).collect()
    }
}

/// A case in one of its ways.
type Run = (Arc<Case>, Way);

/// What must hold for any program with a `forward` method, on a prompt of these tokens: a test for
/// each property and each way to round, with names that begin with `parts`.
///
/// The prompt should be several times longer than the program's windows, and no longer than its
/// context.
pub fn properties(
    parts: &[&str],
    (backend, class): (&'static dyn Backend, Class),
    program: &Arc<Program>,
    tokens: &[i32],
) -> Vec<Test> {
    let mut tests = Vec::new();
    for run in properties::runs(backend, program, tokens, class) {
        let rounding = run.rounding.to_string();
        for (name, property) in PROPERTIES {
            let parts: Vec<&str> = parts.iter().copied().chain([rounding.as_str(), name]).collect();
            let run = run.clone();
            tests.push(Test::new(&parts, move || -> Checked { run.check(property) }));
        }
    }
    tests
}

/// Runs the tests of suites that the command line asks for.
pub fn run(suites: Vec<Suite>) -> ExitCode {
    let wanted = harness::wanted();
    harness::run(suites.iter().map(|suite| suite.group(wanted.as_deref())).collect())
}

#[cfg(test)]
mod tests {
    use lapidary_reference::ReferenceBackend;

    use super::{Suite, Turns};
    use crate::tolerance::Class;
    use lapidary_program::Op;

    use crate::ops::SUITES;

    /// Every kind of op, as serde tells who asks for one that is none.
    fn kinds() -> Vec<String> {
        let error = serde_json::from_str::<Op>(r#"{"kind": "none such"}"#).unwrap_err().to_string();
        let (_, kinds) = error.split_once("expected one of ").unwrap();
        let kinds = kinds.split('`').skip(1).step_by(2).map(str::to_string).collect::<Vec<_>>();
        assert!(kinds.contains(&"linear".to_string()), "{error}");
        kinds
    }

    #[test]
    fn turns_leave_no_case_out() {
        let suite = Suite::new("any", &ReferenceBackend, Class::OneOrder);
        let all = suite.runs("linear", None);
        let fast =
            |turns| suite.runs("linear", turns).iter().filter(|(_, w)| w.name == "fast").count();
        let (one, two) =
            (suite.runs("linear", Some(Turns::One)), suite.runs("linear", Some(Turns::Two)));
        let mut cases: Vec<&str> = all.iter().map(|(case, _)| case.name.as_str()).collect();
        cases.dedup();
        assert_eq!(one.len(), cases.len());
        assert_eq!(two.len(), all.len(), "there are two ways at most");
        assert!(fast(Some(Turns::One)).abs_diff(fast(None) / 2) < 3);
    }

    #[test]
    fn every_op_has_a_suite() {
        let mut kinds = kinds();
        kinds.sort();
        let suites: Vec<&str> = SUITES.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(suites, kinds, "left: suites of ops/mod.rs, right: ops of the program");
        for (kind, cases) in SUITES {
            let cases = cases();
            assert!(!cases.is_empty(), "{kind} has no case");
            for case in cases {
                let methods = case.program.methods().values();
                let mut nodes = methods.flat_map(|method| &method.graph.nodes);
                assert!(nodes.any(|node| node.op.kind() == kind), "{kind}/{}", case.name);
            }
        }
    }
}
