//! Expressions of a template: operators, lookups and calls.

use std::collections::BTreeMap;

use minijinja::machinery::ast::{BinOpKind, Call, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::ValueKind;
use minijinja::{Error as JinjaError, ErrorKind, Value};

use super::machine::{Args, Machine};
use super::value::{Dict, Handle, List, Run, invalid, weight};

impl<'t> Machine<'t> {
    pub(super) fn eval(&mut self, expr: &'t Expr<'t>) -> Run<Value> {
        self.deeper(|m| m.eval_here(expr))
    }

    fn eval_here(&mut self, expr: &'t Expr<'t>) -> Run<Value> {
        match expr {
            Expr::Var(var) => Ok(self.lookup(var.id).unwrap_or(Value::UNDEFINED)),
            Expr::Const(constant) => Ok(constant.value.clone()),
            Expr::List(list) => {
                let items = self.eval_all(&list.items)?;
                self.meter.list(items, false)
            }
            Expr::Tuple(tuple) => {
                let items = self.eval_all(&tuple.items)?;
                self.meter.list(items, true)
            }
            Expr::Map(map) => {
                let mut entries = BTreeMap::new();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = self.eval(key)?;
                    entries.insert(key, self.eval(value)?);
                }
                self.meter.map(entries)
            }
            Expr::UnaryOp(unary) => {
                let value = self.eval(&unary.expr)?;
                match unary.op {
                    UnaryOpKind::Not => Ok(Value::from(!value.is_true())),
                    UnaryOpKind::Neg => arithmetic(BinOpKind::Sub, &Value::from(0), &value),
                }
            }
            Expr::BinOp(binary) => self.binary(binary.op, &binary.left, &binary.right),
            Expr::Compare(compare) => {
                let mut left = self.eval(&compare.expr)?;
                for op in &compare.ops {
                    let right = self.eval(&op.expr)?;
                    if !self.compare(op.op, &left, &right)? {
                        return Ok(Value::from(false));
                    }
                    left = right;
                }
                Ok(Value::from(true))
            }
            Expr::IfExpr(cond) => match (self.eval(&cond.test_expr)?.is_true(), &cond.false_expr) {
                (true, _) => self.eval(&cond.true_expr),
                (false, Some(other)) => self.eval(other),
                (false, None) => Ok(Value::UNDEFINED),
            },
            Expr::GetAttr(attr) => {
                let of = self.eval(&attr.expr)?;
                self.get(&of, &Value::from(attr.name))
            }
            Expr::GetItem(item) => {
                let of = self.eval(&item.expr)?;
                let key = self.eval(&item.subscript_expr)?;
                self.get(&of, &key)
            }
            Expr::Slice(slice) => {
                let of = self.eval(&slice.expr)?;
                let mut bound = |expr: &'t Option<Expr<'t>>| -> Run<Option<i64>> {
                    let Some(expr) = expr else { return Ok(None) };
                    let value = self.eval(expr)?;
                    if value.is_none() { Ok(None) } else { Ok(Some(i64::try_from(value)?)) }
                };
                let (start, stop) = (bound(&slice.start)?, bound(&slice.stop)?);
                let step = bound(&slice.step)?.unwrap_or(1);
                self.slice(&of, start, stop, step)
            }
            Expr::Filter(filter) => {
                let value = match &filter.expr {
                    Some(expr) => self.eval(expr)?,
                    None => return invalid("a filter without a value"),
                };
                let args = self.args(&filter.args)?;
                self.filter(filter.name, value, args)
            }
            Expr::Test(test) => {
                let value = self.eval(&test.expr)?;
                let args = self.args(&test.args)?;
                self.test(test.name, value, args).map(Value::from)
            }
            Expr::Call(call) => self.call(call),
        }
    }

    fn eval_all(&mut self, exprs: &'t [Expr<'t>]) -> Run<Vec<Value>> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    /// The filters of a block, for its text.
    pub(super) fn filtered(&mut self, filter: &'t Expr<'t>, text: Value) -> Run<Value> {
        let Expr::Filter(filter) = filter else { return invalid("this is no filter") };
        let value = match &filter.expr {
            Some(inner) => self.deeper(|m| m.filtered(inner, text))?,
            None => text,
        };
        let args = self.args(&filter.args)?;
        self.filter(filter.name, value, args)
    }

    fn binary(&mut self, op: BinOpKind, left: &'t Expr<'t>, right: &'t Expr<'t>) -> Run<Value> {
        let left = self.eval(left)?;
        match op {
            BinOpKind::ScAnd if !left.is_true() => return Ok(left),
            BinOpKind::ScOr if left.is_true() => return Ok(left),
            _ => {}
        }
        let right = self.eval(right)?;
        let compared = match op {
            BinOpKind::ScAnd | BinOpKind::ScOr => return Ok(right),
            BinOpKind::Concat => {
                let mut text = String::new();
                self.meter.print(&left, &mut text)?;
                self.meter.print(&right, &mut text)?;
                return Ok(Value::from(text));
            }
            BinOpKind::Eq => CompareOpKind::Eq,
            BinOpKind::Ne => CompareOpKind::Ne,
            BinOpKind::Lt => CompareOpKind::Lt,
            BinOpKind::Lte => CompareOpKind::Lte,
            BinOpKind::Gt => CompareOpKind::Gt,
            BinOpKind::Gte => CompareOpKind::Gte,
            BinOpKind::In => CompareOpKind::In,
            BinOpKind::Add => return self.add(&left, &right),
            BinOpKind::Mul => return self.multiply(&left, &right),
            BinOpKind::Rem if left.as_str().is_some() => {
                let plain = match right.downcast_object_ref::<List>() {
                    Some(list) if list.tuple => list.items.clone(),
                    _ => vec![right],
                };
                return self.filter("format", left, Args { plain, named: Vec::new() });
            }
            BinOpKind::Sub
            | BinOpKind::Div
            | BinOpKind::FloorDiv
            | BinOpKind::Rem
            | BinOpKind::Pow => return arithmetic(op, &left, &right),
        };
        self.compare(compared, &left, &right).map(Value::from)
    }

    /// `left + right`.
    pub(super) fn add(&mut self, left: &Value, right: &Value) -> Run<Value> {
        if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
            self.meter.grow(a.len().saturating_add(b.len()))?;
            return Ok(Value::from([a, b].concat()));
        }
        if let (Some(a), Some(b)) =
            (left.downcast_object_ref::<List>(), right.downcast_object_ref::<List>())
        {
            self.meter.grow(a.items.len().saturating_add(b.items.len()).saturating_mul(32))?;
            let items = a.items.iter().chain(&b.items).cloned().collect();
            return self.meter.list(items, a.tuple && b.tuple);
        }
        arithmetic(BinOpKind::Add, left, right)
    }

    fn multiply(&mut self, left: &Value, right: &Value) -> Run<Value> {
        let repeated =
            |v: &Value| v.as_str().is_some() || v.downcast_object_ref::<List>().is_some();
        let (of, times) = match (repeated(left), repeated(right)) {
            (true, false) => (left, right),
            (false, true) => (right, left),
            _ => return arithmetic(BinOpKind::Mul, left, right),
        };
        if !times.is_integer() {
            return invalid("only a whole number can repeat a value");
        }
        let times = usize::try_from(i64::try_from(times.clone())?.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = of.as_str() {
            self.meter.grow(text.len().saturating_mul(times))?;
            return Ok(Value::from(text.repeat(times)));
        }
        let Some(list) = of.downcast_object_ref::<List>() else { return Ok(Value::UNDEFINED) };
        let n = list.items.len().saturating_mul(times);
        self.meter.grow(n.saturating_mul(32))?;
        let items = list.items.iter().cycle().take(n).cloned().collect();
        self.meter.list(items, list.tuple)
    }

    pub(super) fn compare(&mut self, op: CompareOpKind, left: &Value, right: &Value) -> Run<bool> {
        self.meter.step((weight(left).saturating_add(weight(right))) / 64)?;
        Ok(match op {
            CompareOpKind::Eq => left == right,
            CompareOpKind::Ne => left != right,
            CompareOpKind::Lt => left < right,
            CompareOpKind::Lte => left <= right,
            CompareOpKind::Gt => left > right,
            CompareOpKind::Gte => left >= right,
            CompareOpKind::In => self.contains(right, left)?,
            CompareOpKind::NotIn => !self.contains(right, left)?,
        })
    }

    fn contains(&mut self, all: &Value, one: &Value) -> Run<bool> {
        if all.is_undefined() {
            return Ok(false);
        }
        if let Some(text) = all.as_str() {
            if let Some(part) = one.as_str() {
                return Ok(text.contains(part));
            }
            let mut part = String::new();
            self.meter.print(one, &mut part)?;
            return Ok(text.contains(&part));
        }
        if let Some(list) = all.downcast_object_ref::<List>() {
            self.meter.step(list.items.len())?;
            return Ok(list.items.contains(one));
        }
        if let Some(dict) = all.downcast_object_ref::<Dict>() {
            return Ok(dict.map.contains_key(one));
        }
        if let (Some(Handle::Namespace(_)), Some(name)) =
            (all.downcast_object_ref::<Handle>(), one.as_str())
        {
            return Ok(!self.get(all, &Value::from(name))?.is_undefined());
        }
        invalid(format!("a value of type {} holds nothing", all.kind()))
    }

    /// `of.key` and `of[key]`.
    pub(super) fn get(&mut self, of: &Value, key: &Value) -> Run<Value> {
        if of.is_undefined() {
            return Err(JinjaError::from(ErrorKind::UndefinedError).into());
        }
        if let Some(handle) = of.downcast_object_ref::<Handle>() {
            return Ok(key.as_str().map_or(Value::UNDEFINED, |name| self.attribute(*handle, name)));
        }
        if let Some(dict) = of.downcast_object_ref::<Dict>() {
            return Ok(dict.map.get(key).cloned().unwrap_or(Value::UNDEFINED));
        }
        let at = match i64::try_from(key.clone()) {
            Ok(at) if key.kind() == ValueKind::Number => at,
            _ => return Ok(Value::UNDEFINED),
        };
        let place = |len: usize| {
            let len = i64::try_from(len).unwrap_or(i64::MAX);
            usize::try_from(if at < 0 { at.saturating_add(len) } else { at }).ok()
        };
        if let Some(list) = of.downcast_object_ref::<List>() {
            let found = place(list.items.len()).and_then(|i| list.items.get(i));
            return Ok(found.cloned().unwrap_or(Value::UNDEFINED));
        }
        if let Some(text) = of.as_str() {
            self.meter.step(text.len() / 16)?;
            let found = place(if at < 0 { text.chars().count() } else { 0 });
            let found = found.and_then(|i| text.chars().nth(i));
            return Ok(found.map_or(Value::UNDEFINED, |c| Value::from(String::from(c))));
        }
        Ok(Value::UNDEFINED)
    }

    fn slice(
        &mut self,
        of: &Value,
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    ) -> Run<Value> {
        if step == 0 {
            return invalid("a slice can't have a step of 0");
        }
        if let Some(text) = of.as_str() {
            self.meter.grow(text.len())?;
            let len = text.chars().count();
            if step == 1 {
                let mut at = places(len, start, stop, 1);
                let from = at.next();
                let n = from.map_or(0, |_| at.count() + 1);
                let sliced: String = text.chars().skip(from.unwrap_or(0)).take(n).collect();
                return Ok(Value::from(sliced));
            }
            self.meter.grow(text.len().saturating_mul(4))?;
            let chars: Vec<char> = text.chars().collect();
            let sliced: String =
                places(len, start, stop, step).filter_map(|i| chars.get(i)).collect();
            return Ok(Value::from(sliced));
        }
        if let Some(list) = of.downcast_object_ref::<List>() {
            self.meter.step(list.items.len())?;
            let items = places(list.items.len(), start, stop, step);
            let items: Vec<Value> = items.filter_map(|i| list.items.get(i)).cloned().collect();
            return self.meter.list(items, list.tuple);
        }
        match of.kind() {
            ValueKind::Undefined | ValueKind::None => self.meter.list(Vec::new(), false),
            kind => invalid(format!("a value of type {kind} can't be sliced")),
        }
    }

    fn call(&mut self, call: &'t Call<'t>) -> Run<Value> {
        let args = self.args(&call.args)?;
        self.call_expr(&call.expr, args)
    }

    pub(super) fn call_expr(&mut self, called: &'t Expr<'t>, args: Args<'t>) -> Run<Value> {
        match called {
            Expr::Var(var) => match self.lookup(var.id) {
                Some(value) => match value.downcast_object_ref::<Handle>() {
                    Some(handle) => self.deeper(|m| m.call_handle(*handle, args)),
                    None => invalid(format!("`{}` can't be called", var.id)),
                },
                None => self.function(var.id, args),
            },
            Expr::GetAttr(attr) => {
                let of = self.eval(&attr.expr)?;
                if let Some(handle) = of.downcast_object_ref::<Handle>() {
                    if let Handle::Loop(at, id) = handle {
                        return self.loop_method(*at, *id, attr.name, args);
                    }
                    let value = self.attribute(*handle, attr.name);
                    return match value.downcast_object_ref::<Handle>() {
                        Some(handle) => self.deeper(|m| m.call_handle(*handle, args)),
                        None => invalid(format!("`{}` can't be called", attr.name)),
                    };
                }
                self.method(&of, attr.name, args)
            }
            other => match self.eval(other)?.downcast_object_ref::<Handle>() {
                Some(handle) => self.deeper(|m| m.call_handle(*handle, args)),
                None => invalid("this can't be called"),
            },
        }
    }
}

/// The places that `[start:stop:step]` takes of so many, as Python has it.
fn places(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let (least, most) = if step > 0 { (0, len) } else { (-1, len.saturating_sub(1)) };
    let bound = |at: Option<i64>, other: i64| match at {
        None => other,
        Some(at) if at < 0 => at.saturating_add(len).max(least),
        Some(at) => at.min(most),
    };
    let (start, stop) = match step > 0 {
        true => (bound(start, 0), bound(stop, len)),
        false => (bound(start, most), bound(stop, -1)),
    };
    let more = move |at: &i64| if step > 0 { *at < stop } else { *at > stop };
    std::iter::successors(Some(start).filter(more), move |at| at.checked_add(step).filter(more))
        .filter_map(|at| usize::try_from(at).ok())
}

/// Numbers, as Python computes with them.
fn arithmetic(op: BinOpKind, left: &Value, right: &Value) -> Run<Value> {
    let number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    let sign = match op {
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        _ => return invalid("this is not arithmetic"),
    };
    if !number(left) || !number(right) {
        let (a, b) = (left.kind(), right.kind());
        return invalid(format!("`{sign}` is not for values of types {a} and {b}"));
    }
    let whole = |v: &Value| v.is_integer() || v.kind() == ValueKind::Bool;
    let int = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(i128::from(v.is_true())),
        _ => i128::try_from(v.clone()).ok(),
    };
    let float = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(v.is_true()))),
        _ => f64::try_from(v.clone()).ok(),
    };
    let negative_power = matches!(op, BinOpKind::Pow) && int(right).is_some_and(|n| n < 0);
    if whole(left) && whole(right) && !matches!(op, BinOpKind::Div) && !negative_power {
        let found = int(left).zip(int(right)).and_then(|(a, b)| match op {
            BinOpKind::Add => a.checked_add(b),
            BinOpKind::Sub => a.checked_sub(b),
            BinOpKind::Mul => a.checked_mul(b),
            BinOpKind::FloorDiv => floor_div(a, b),
            BinOpKind::Rem => {
                floor_div(a, b).and_then(|q| q.checked_mul(b)).and_then(|p| a.checked_sub(p))
            }
            _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
        });
        return match found {
            Some(n) => Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)),
            None => invalid(format!("`{sign}` has no result for these numbers")),
        };
    }
    let Some((a, b)) = float(left).zip(float(right)) else {
        return invalid(format!("`{sign}` has no result for these numbers"));
    };
    if b == 0.0 && matches!(op, BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem) {
        return invalid("division by zero");
    }
    Ok(Value::from(match op {
        BinOpKind::Add => a + b,
        BinOpKind::Sub => a - b,
        BinOpKind::Mul => a * b,
        BinOpKind::Div => a / b,
        BinOpKind::FloorDiv => (a / b).floor(),
        BinOpKind::Rem => a - (a / b).floor() * b,
        _ => a.powf(b),
    }))
}

fn floor_div(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    let exact = quotient.checked_mul(b)? == a;
    if exact || (a < 0) == (b < 0) { Some(quotient) } else { quotient.checked_sub(1) }
}
