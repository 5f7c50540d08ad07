//! Runs a template: statements, names, loops and macros.
//!
//! The engine's own machine counts instructions and nothing else, so a template could take any
//! memory, time and stack within them. This one walks the engine's syntax tree, and every value
//! that it makes goes through a [`Meter`].

use std::collections::{BTreeMap, HashMap};

use minijinja::machinery::ast::{CallArg, Expr, ForLoop, Macro, Stmt};
use minijinja::value::ValueKind;
use minijinja::{Environment, Error as JinjaError, ErrorKind, State, Value};

use super::value::{self, Dict, Fail, Handle, List, Meter, Run, TEXT, invalid, limit};

/// Macro calls and loops inside one another.
const RECURSION: usize = 100;

/// A template that runs.
pub(super) struct Machine<'t> {
    pub(super) meter: Meter,
    /// The engine's filters, tests and methods.
    pub(super) state: State<'t, 't>,
    context: HashMap<String, Value>,
    scopes: Vec<Scope<'t>>,
    /// The text, and what is caught of it, innermost last.
    out: Vec<String>,
    macros: Vec<Known<'t>>,
    namespaces: Vec<BTreeMap<String, Value>>,
    loops: Vec<Loop<'t>>,
    loops_made: u64,
    calls: usize,
    depth: usize,
    max_depth: usize,
}

#[derive(Default)]
struct Scope<'t> {
    names: Vec<(&'t str, Value)>,
    /// A macro sees nothing of its caller but what stands outside of everything.
    sealed: bool,
}

struct Known<'t> {
    ast: &'t Macro<'t>,
    /// What it saw where it was made.
    seen: Vec<(&'t str, Value)>,
}

struct Loop<'t> {
    id: u64,
    ast: &'t ForLoop<'t>,
    /// A [`List`].
    items: Value,
    at: usize,
    level: usize,
    changed: Option<Vec<Value>>,
}

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

/// The arguments of a call.
pub(super) struct Args<'t> {
    pub(super) plain: Vec<Value>,
    pub(super) named: Vec<(std::borrow::Cow<'t, str>, Value)>,
}

impl<'t> Machine<'t> {
    pub(super) fn new(
        env: &'t Environment<'static>,
        context: HashMap<String, Value>,
        meter: Meter,
        max_depth: usize,
    ) -> Self {
        Machine {
            meter,
            state: env.empty_state(),
            context,
            scopes: vec![Scope::default()],
            out: vec![String::new()],
            macros: Vec::new(),
            namespaces: Vec::new(),
            loops: Vec::new(),
            loops_made: 0,
            calls: 0,
            depth: 0,
            max_depth,
        }
    }

    /// Renders the whole.
    pub(super) fn render(mut self, template: &'t Stmt<'t>) -> Run<String> {
        let Stmt::Template(template) = template else { return invalid("this is not a template") };
        self.body(&template.children)?;
        Ok(self.out.pop().unwrap_or_default())
    }

    fn body(&mut self, body: &'t [Stmt<'t>]) -> Run<Flow> {
        for statement in body {
            let flow = self.statement(statement)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &'t Stmt<'t>) -> Run<Flow> {
        self.deeper(|m| m.statement_here(statement)).map_err(|e| match e {
            Fail::Jinja(e, None) => Fail::Jinja(e, line(statement)),
            other => other,
        })
    }

    fn statement_here(&mut self, statement: &'t Stmt<'t>) -> Run<Flow> {
        match statement {
            Stmt::EmitRaw(raw) => self.write(raw.raw)?,
            Stmt::EmitExpr(emit) => {
                let value = self.eval(&emit.expr)?;
                match value.as_str() {
                    Some(text) => self.write(text)?,
                    None => {
                        if let Some(out) = self.out.last_mut() {
                            self.meter.print(&value, out)?;
                        }
                    }
                }
            }
            Stmt::IfCond(cond) => {
                let body = match self.eval(&cond.expr)?.is_true() {
                    true => &cond.true_body,
                    false => &cond.false_body,
                };
                return self.body(body);
            }
            Stmt::ForLoop(ast) => {
                let over = self.eval(&ast.iter)?;
                return self.run_loop(ast, &over, 0);
            }
            Stmt::Set(set) => {
                let value = self.eval(&set.expr)?;
                self.assign(&set.target, value)?;
            }
            Stmt::SetBlock(set) => {
                let (text, flow) = self.caught(|m| m.body(&set.body))?;
                let value = match &set.filter {
                    Some(filter) => self.filtered(filter, text)?,
                    None => text,
                };
                self.assign(&set.target, value)?;
                return Ok(flow);
            }
            Stmt::WithBlock(with) => {
                let values = with.assignments.iter().map(|(_, expr)| self.eval(expr));
                let values = values.collect::<Run<Vec<_>>>()?;
                self.scopes.push(Scope::default());
                for ((target, _), value) in with.assignments.iter().zip(values) {
                    self.assign(target, value)?;
                }
                let flow = self.body(&with.body)?;
                self.scopes.pop();
                return Ok(flow);
            }
            Stmt::FilterBlock(block) => {
                let (text, flow) = self.caught(|m| m.body(&block.body))?;
                let value = self.filtered(&block.filter, text)?;
                if let Some(out) = self.out.last_mut() {
                    self.meter.print(&value, out)?;
                }
                return Ok(flow);
            }
            // Text for a model has no HTML in it that would have to be escaped.
            Stmt::AutoEscape(block) => return self.body(&block.body),
            Stmt::Block(block) => return self.body(&block.body),
            Stmt::Macro(ast) => {
                let value = self.make_macro(ast)?;
                self.store(ast.name, value)?;
            }
            Stmt::CallBlock(block) => {
                let caller = self.make_macro(&block.macro_decl)?;
                let mut args = self.args(&block.call.args)?;
                args.named.push(("caller".into(), caller));
                let value = self.call_expr(&block.call.expr, args)?;
                if let Some(out) = self.out.last_mut() {
                    self.meter.print(&value, out)?;
                }
            }
            Stmt::Do(call) => {
                let args = self.args(&call.call.args)?;
                self.call_expr(&call.call.expr, args)?;
            }
            Stmt::Break(_) => return Ok(Flow::Break),
            Stmt::Continue(_) => return Ok(Flow::Continue),
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                return invalid("a chat template can't use other templates");
            }
            Stmt::Template(_) => return invalid("a template inside a template"),
        }
        Ok(Flow::On)
    }

    /// One more level of statements and expressions.
    pub(super) fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.meter.step(0)?;
        if self.depth >= self.max_depth {
            return limit("depth");
        }
        self.depth += 1;
        let done = run(self);
        self.depth -= 1;
        done
    }

    fn write(&mut self, text: &str) -> Run<()> {
        self.meter.emit(text.len(), TEXT)?;
        if let Some(out) = self.out.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    fn caught<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<(Value, T)> {
        self.meter.grow(64)?;
        self.out.push(String::new());
        let done = run(self);
        let text = self.out.pop().unwrap_or_default();
        Ok((self.meter.text(text)?, done?))
    }

    fn run_loop(&mut self, ast: &'t ForLoop<'t>, over: &Value, level: usize) -> Run<Flow> {
        let mut items = over.clone();
        if let Some(keep) = &ast.filter_expr {
            let mut kept = Vec::new();
            for item in self.items(over)? {
                self.scopes.push(Scope::default());
                self.assign(&ast.target, item.clone())?;
                if self.eval(keep)?.is_true() {
                    kept.push(item);
                }
                self.scopes.pop();
            }
            items = self.meter.list(kept, false)?;
        }
        // A list is gone over where it is: a loop in a loop takes no memory each time.
        if items.downcast_object_ref::<List>().is_none() {
            let all = self.items(&items)?;
            items = self.meter.list(all, false)?;
        }
        let n_items = entries(&items).len();
        if n_items == 0 {
            return self.body(&ast.else_body);
        }
        if self.loops.len() >= RECURSION {
            return limit("depth");
        }
        self.loops_made += 1;
        let handle = Handle::Loop(self.loops.len(), self.loops_made);
        self.loops.push(Loop { id: self.loops_made, ast, items, at: 0, level, changed: None });
        let n_loops = self.loops.len();
        for at in 0..n_items {
            let Some(this) = self.loops.last_mut() else { break };
            this.at = at;
            let Some(item) = entries(&this.items).get(at).cloned() else { break };
            self.scopes.push(Scope::default());
            self.store("loop", Value::from_object(handle))?;
            self.assign(&ast.target, item)?;
            let flow = self.body(&ast.body)?;
            self.scopes.pop();
            self.loops.truncate(n_loops);
            if flow == Flow::Break {
                break;
            }
        }
        self.loops.pop();
        Ok(Flow::On)
    }

    /// What a loop goes over.
    pub(super) fn items(&mut self, value: &Value) -> Run<Vec<Value>> {
        let items: Vec<Value> = match value.kind() {
            ValueKind::Undefined => Vec::new(),
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                self.meter.grow(text.chars().count().saturating_mul(32))?;
                text.chars().map(|c| Value::from(String::from(c))).collect()
            }
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => {
                let len = value.len().unwrap_or(0);
                self.meter.grow(len.saturating_mul(32))?;
                match value.downcast_object_ref::<List>() {
                    Some(list) => list.items.clone(),
                    None => value.try_iter()?.collect(),
                }
            }
            kind => return invalid(format!("a value of type {kind} can't be iterated over")),
        };
        Ok(items)
    }

    fn assign(&mut self, target: &'t Expr<'t>, value: Value) -> Run<()> {
        match target {
            Expr::Var(var) => self.store(var.id, value),
            Expr::List(list) => {
                let items = self.items(&value)?;
                if items.len() != list.items.len() {
                    return invalid(format!(
                        "{} names for {} values",
                        list.items.len(),
                        items.len()
                    ));
                }
                for (target, item) in list.items.iter().zip(items) {
                    self.deeper(|m| m.assign(target, item))?;
                }
                Ok(())
            }
            Expr::GetAttr(attr) => {
                let of = self.eval(&attr.expr)?;
                let Some(Handle::Namespace(n)) = of.downcast_object_ref::<Handle>() else {
                    return invalid(format!("`{}` can be set in a namespace only", attr.name));
                };
                self.meter.grow(attr.name.len() + 64)?;
                if let Some(namespace) = self.namespaces.get_mut(*n) {
                    namespace.insert(attr.name.to_string(), value);
                }
                Ok(())
            }
            _ => invalid("this can't be assigned to"),
        }
    }

    fn store(&mut self, name: &'t str, value: Value) -> Run<()> {
        let Some(scope) = self.scopes.last_mut() else { return Ok(()) };
        match scope.names.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => {
                self.meter.step(scope.names.len())?;
                scope.names.push((name, value));
            }
        }
        Ok(())
    }

    pub(super) fn lookup(&mut self, name: &str) -> Option<Value> {
        for scope in self.scopes.iter().rev() {
            if let Some((_, value)) = scope.names.iter().find(|(n, _)| *n == name) {
                return Some(value.clone());
            }
            if scope.sealed {
                break;
            }
        }
        let outside = self.scopes.first().and_then(|s| s.names.iter().find(|(n, _)| *n == name));
        let outside = outside.map(|(_, value)| value.clone());
        outside.or_else(|| self.context.get(name).cloned()).or_else(|| value::function(name))
    }

    fn make_macro(&mut self, ast: &'t Macro<'t>) -> Run<Value> {
        let mut seen: Vec<(&'t str, Value)> = Vec::new();
        let inner = self.scopes.iter().skip(1);
        let from = self.scopes.iter().rposition(|s| s.sealed).unwrap_or(1).max(1);
        for scope in inner.skip(from - 1) {
            seen.extend(scope.names.iter().cloned());
        }
        self.meter.grow(256 + seen.len().saturating_mul(64))?;
        self.macros.push(Known { ast, seen });
        Ok(Value::from_object(Handle::Macro(self.macros.len() - 1)))
    }

    pub(super) fn make_namespace(&mut self, names: BTreeMap<String, Value>) -> Run<Value> {
        self.meter.grow(256 + names.len().saturating_mul(128))?;
        self.namespaces.push(names);
        Ok(Value::from_object(Handle::Namespace(self.namespaces.len() - 1)))
    }

    /// Calls a macro, or a loop that is recursive.
    pub(super) fn call_handle(&mut self, handle: Handle, args: Args<'t>) -> Run<Value> {
        if self.calls >= RECURSION {
            return limit("depth");
        }
        self.calls += 1;
        let done = match handle {
            Handle::Function(name) => self.function(name, args),
            Handle::Macro(n) => self.call_macro(n, args),
            Handle::Loop(at, id) => self.call_loop(at, id, args),
            Handle::Namespace(_) => invalid("a namespace can't be called"),
        };
        self.calls -= 1;
        done
    }

    fn call_macro(&mut self, n: usize, args: Args<'t>) -> Run<Value> {
        let Some(Known { ast, seen }) = self.macros.get(n) else {
            return invalid("this macro is gone");
        };
        let ast: &'t Macro<'t> = ast;
        let mut names = seen.clone();
        let Args { plain, mut named } = args;
        if plain.len() > ast.args.len() {
            return Err(JinjaError::from(ErrorKind::TooManyArguments).into());
        }
        let caller = named.iter().position(|(name, _)| name == "caller");
        if let Some(caller) = caller {
            names.push(("caller", named.swap_remove(caller).1));
        }
        self.scopes.push(Scope { names: Vec::new(), sealed: true });
        for (name, value) in names {
            self.store(name, value)?;
        }
        let first_default = ast.args.len() - ast.defaults.len().min(ast.args.len());
        let mut plain = plain.into_iter();
        for (i, arg) in ast.args.iter().enumerate() {
            let Expr::Var(arg) = arg else { return invalid("an argument has no name") };
            let value = match plain.next() {
                Some(value) => value,
                None => match named.iter().position(|(name, _)| name == arg.id) {
                    Some(at) => named.swap_remove(at).1,
                    None => match i.checked_sub(first_default).and_then(|d| ast.defaults.get(d)) {
                        Some(default) => self.eval(default)?,
                        None => Value::UNDEFINED,
                    },
                },
            };
            self.store(arg.id, value)?;
        }
        if let Some((name, _)) = named.first() {
            return invalid(format!("`{}` takes no argument `{name}`", ast.name));
        }
        // Loops outside are none of its business.
        let (text, _) = self.caught(|m| m.body(&ast.body))?;
        self.scopes.pop();
        Ok(text)
    }

    fn call_loop(&mut self, at: usize, id: u64, args: Args<'t>) -> Run<Value> {
        let Some(this) = self.loops.get(at).filter(|l| l.id == id) else {
            return invalid("this loop is over");
        };
        let (ast, level) = (this.ast, this.level);
        let (true, [over]) = (ast.recursive, args.plain.as_slice()) else {
            return invalid("only a recursive loop can be called, with what it goes over");
        };
        let over = over.clone();
        let (text, _) = self.caught(|m| m.run_loop(ast, &over, level + 1))?;
        Ok(text)
    }

    /// What a namespace or a loop has under a name.
    pub(super) fn attribute(&mut self, handle: Handle, name: &str) -> Value {
        let (at, id) = match handle {
            Handle::Function(_) => return Value::UNDEFINED,
            Handle::Macro(n) => {
                return match (name, self.macros.get(n)) {
                    ("name", Some(known)) => Value::from(known.ast.name),
                    _ => Value::UNDEFINED,
                };
            }
            Handle::Namespace(n) => {
                let found = self.namespaces.get(n).and_then(|names| names.get(name));
                return found.cloned().unwrap_or(Value::UNDEFINED);
            }
            Handle::Loop(at, id) => (at, id),
        };
        let Some(this) = self.loops.get(at).filter(|l| l.id == id) else {
            return Value::UNDEFINED;
        };
        let (at, len) = (this.at, entries(&this.items).len());
        let item = |i: Option<usize>| i.and_then(|i| entries(&this.items).get(i)).cloned();
        match name {
            "index" => Value::from(at + 1),
            "index0" => Value::from(at),
            "revindex" => Value::from(len - at),
            "revindex0" => Value::from(len - at - 1),
            "first" => Value::from(at == 0),
            "last" => Value::from(at + 1 == len),
            "length" => Value::from(len),
            "depth" => Value::from(this.level + 1),
            "depth0" => Value::from(this.level),
            "previtem" => item(at.checked_sub(1)).unwrap_or(Value::UNDEFINED),
            "nextitem" => item(at.checked_add(1)).unwrap_or(Value::UNDEFINED),
            _ => Value::UNDEFINED,
        }
    }

    /// `loop.cycle` and `loop.changed`.
    pub(super) fn loop_method(
        &mut self,
        at: usize,
        id: u64,
        name: &str,
        args: Args<'t>,
    ) -> Run<Value> {
        let Some(this) = self.loops.get_mut(at).filter(|l| l.id == id) else {
            return invalid("this loop is over");
        };
        match (name, args.plain.len()) {
            ("cycle", 1..) => Ok(args.plain[this.at % args.plain.len()].clone()),
            ("changed", _) => {
                let same = this.changed.as_ref() == Some(&args.plain);
                this.changed = Some(args.plain);
                Ok(Value::from(!same))
            }
            _ => invalid(format!("a loop has no method `{name}`")),
        }
    }

    pub(super) fn args(&mut self, args: &'t [CallArg<'t>]) -> Run<Args<'t>> {
        let mut all = Args { plain: Vec::new(), named: Vec::new() };
        for arg in args {
            match arg {
                CallArg::Pos(expr) => all.plain.push(self.eval(expr)?),
                CallArg::Kwarg(name, expr) => {
                    let value = self.eval(expr)?;
                    all.named.push(((*name).into(), value));
                }
                CallArg::PosSplat(expr) => {
                    let value = self.eval(expr)?;
                    all.plain.extend(self.items(&value)?);
                }
                CallArg::KwargSplat(expr) => {
                    let value = self.eval(expr)?;
                    let Some(dict) = value.downcast_object_ref::<Dict>() else {
                        return invalid("`**` takes a map");
                    };
                    self.meter.grow(dict.map.len().saturating_mul(96))?;
                    for (key, value) in &dict.map {
                        let Some(key) = key.as_str() else {
                            return invalid("`**` takes a map with names");
                        };
                        all.named.push((key.to_string().into(), value.clone()));
                    }
                }
            }
        }
        Ok(all)
    }
}

/// The entries of a list.
fn entries(list: &Value) -> &[Value] {
    match list.downcast_object_ref::<List>() {
        Some(list) => &list.items,
        None => &[],
    }
}

fn line(statement: &Stmt<'_>) -> Option<u32> {
    let span = match statement {
        Stmt::EmitExpr(s) => s.span(),
        Stmt::ForLoop(s) => s.span(),
        Stmt::IfCond(s) => s.span(),
        Stmt::WithBlock(s) => s.span(),
        Stmt::Set(s) => s.span(),
        Stmt::SetBlock(s) => s.span(),
        Stmt::FilterBlock(s) => s.span(),
        Stmt::CallBlock(s) => s.span(),
        Stmt::Do(s) => s.span(),
        Stmt::Include(s) => s.span(),
        Stmt::Import(s) => s.span(),
        Stmt::FromImport(s) => s.span(),
        Stmt::Extends(s) => s.span(),
        _ => return None,
    };
    Some(span.start_line.into())
}
