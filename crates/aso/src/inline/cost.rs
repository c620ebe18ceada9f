//! What an expression costs at most, before it is evaluated: every value that it can come to is bounded by what it is made of. Pure.

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, MapExpr, StructExpr};
use serde_json::Value;

/// How many bytes of text that are put together count as a step.
const BYTES_A_STEP: u64 = 64;

/// How many steps an expression takes at most over these variables.
pub(super) fn steps<'a>(expression: &'a IdedExpr, variables: &[(&'a str, &Value)]) -> u64 {
    let bounded = variables.iter().map(|(name, value)| (*name, Bound::of(value)));
    let mut estimate = Estimate {
        steps: 0,
        variables: bounded.collect(),
    };
    let found = estimate.visit(expression);
    estimate.steps.saturating_add(found.weight)
}

/// How large a value is at most.
#[derive(Clone, Copy, Default)]
struct Bound {
    /// Members of the list or map that it is, and of any below it.
    members: u64,
    below: u64,
    /// Everything in it: one for each value, and for each so many bytes of text.
    weight: u64,
}

impl Bound {
    const ONE: Self = Self {
        members: 1,
        below: 0,
        weight: 1,
    };

    fn of(value: &Value) -> Self {
        let text = |text: &str| 1 + text.len() as u64 / BYTES_A_STEP;
        match value {
            Value::String(found) => Self {
                weight: text(found),
                ..Self::ONE
            },
            Value::Array(items) => Self::holding(items.iter().map(Self::of)),
            Value::Object(members) => {
                let keys: u64 = members.keys().map(|key| text(key)).sum();
                let held = Self::holding(members.values().map(Self::of));
                Self {
                    weight: held.weight + keys,
                    ..held
                }
            }
            _ => Self::ONE,
        }
    }

    /// A list or map that holds these.
    fn holding(items: impl Iterator<Item = Self>) -> Self {
        items.fold(
            Self {
                weight: 1,
                ..Self::default()
            },
            |sum, item| Self {
                members: sum.members.saturating_add(1),
                below: sum.below.max(item.members).max(item.below),
                weight: sum.weight.saturating_add(item.weight),
            },
        )
    }

    /// Something in it.
    fn member(self) -> Self {
        Self {
            members: self.below.max(1),
            ..self
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            members: self.members.saturating_add(other.members),
            below: self.below.max(other.below),
            weight: self.weight.saturating_add(other.weight),
        }
    }

    fn times(self, rounds: u64) -> Self {
        Self {
            members: self.members.saturating_mul(rounds),
            below: self.below,
            weight: self.weight.saturating_mul(rounds),
        }
    }
}

/// What an expression comes to at most, counted while it is walked.
struct Estimate<'a> {
    steps: u64,
    variables: Vec<(&'a str, Bound)>,
}

impl<'a> Estimate<'a> {
    fn all(&mut self, items: impl IntoIterator<Item = &'a IdedExpr>) -> Vec<Bound> {
        items.into_iter().map(|item| self.visit(item)).collect()
    }

    fn visit(&mut self, expression: &'a IdedExpr) -> Bound {
        self.steps = self.steps.saturating_add(1);
        match &expression.expr {
            Expr::Ident(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                known.map_or(Bound::ONE, |(_, bound)| *bound)
            }
            Expr::Literal(LiteralValue::String(text)) => Bound {
                weight: 1 + text.inner().len() as u64 / BYTES_A_STEP,
                ..Bound::ONE
            },
            Expr::Select(select) => self.visit(&select.operand).member(),
            Expr::List(list) => Bound::holding(self.all(&list.elements).into_iter()),
            Expr::Map(MapExpr { entries }) | Expr::Struct(StructExpr { entries, .. }) => {
                let mut held = Vec::new();
                for entry in entries {
                    held.push(match &entry.expr {
                        EntryExpr::StructField(field) => self.visit(&field.value),
                        EntryExpr::MapEntry(entry) => self.visit(&entry.key).plus(self.visit(&entry.value)),
                    });
                }
                Bound::holding(held.into_iter())
            }
            Expr::Call(call) => {
                let arguments = self.all(call.target.as_deref().into_iter().chain(&call.args));
                let sum = arguments.into_iter().fold(Bound::default(), Bound::plus);
                // What is put together is copied.
                self.steps = self.steps.saturating_add(sum.weight);
                if call.func_name == "_[_]" {
                    sum.member()
                } else {
                    sum
                }
            }
            Expr::Comprehension(found) => self.rounds(found),
            _ => Bound::ONE,
        }
    }

    /// The macros of CEL add to what they gather in each round, or replace it by a truth value.
    fn rounds(&mut self, found: &'a ComprehensionExpr) -> Bound {
        let range = self.visit(&found.iter_range);
        let initial = self.visit(&found.accu_init);
        let (before, known) = (self.steps, self.variables.len());
        self.variables.push((&found.iter_var, range.member()));
        if let Some(second) = &found.iter_var2 {
            self.variables.push((second, range.member()));
        }
        self.variables.push((&found.accu_var, Bound::default()));
        self.visit(&found.loop_cond);
        let added = self.visit(&found.loop_step);
        self.variables.truncate(known);
        let each = self.steps - before;
        self.steps = before.saturating_add(each.saturating_mul(range.members));
        let gathered = initial.plus(added.times(range.members));
        self.variables.push((&found.accu_var, gathered));
        let result = self.visit(&found.result);
        self.variables.truncate(known);
        result
    }
}
