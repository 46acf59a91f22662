//! What is in an object at a JSONPath?
//!
//! The part of JSONPath that printer columns use: `.a.b`, `['a.b']`, `[0]`, `[*]` and `[?(@.type=="Ready")]`.

use serde_json::Value;
use std::fmt;

/// A path that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Field(String),
    /// From the end if negative.
    Index(i64),
    Every,
    /// Items whose value at the path is this text.
    Where(Vec<String>, String),
}

/// Steps that a path may have; upstream's columns have fewer than ten.
const MAX_STEPS: usize = 64;

/// Values that a path may lead to; a table cell has no room for more.
const MAX_FOUND: usize = 256;

impl JsonPath {
    /// Reads a path. The error says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let mut rest = inner.unwrap_or(text);
        rest = rest.strip_prefix('$').unwrap_or(rest);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if steps.len() == MAX_STEPS {
                return Err(format!("it has more than {MAX_STEPS} steps"));
            }
            let (step, after) = if let Some(bracket) = rest.strip_prefix('[') {
                bracketed(bracket)?
            } else if let Some(field) = rest.strip_prefix('.') {
                dotted(field)?
            } else {
                return Err(format!("{rest:?} should start with `.` or `[`"));
            };
            steps.extend(step);
            rest = after;
        }
        Ok(Self(steps))
    }

    /// What the path leads to, in order.
    pub fn find<'a>(&self, object: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![object];
        for step in &self.0 {
            let mut next = Vec::new();
            for value in found {
                if next.len() < MAX_FOUND {
                    step.follow(value, &mut next);
                }
            }
            next.truncate(MAX_FOUND);
            found = next;
        }
        found
    }

    /// The names on the way, if the path is nothing but names.
    pub fn fields(&self) -> Option<Vec<&str>> {
        let mut names = Vec::new();
        for step in &self.0 {
            let Step::Field(name) = step else { return None };
            names.push(name.as_str());
        }
        Some(names)
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value, next: &mut Vec<&'a Value>) {
        match (self, value) {
            (Self::Field(name), Value::Object(map)) => next.extend(map.get(name)),
            (Self::Index(at), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let at = if *at < 0 { at.saturating_add(length) } else { *at };
                next.extend(usize::try_from(at).ok().and_then(|at| items.get(at)));
            }
            (Self::Every, Value::Array(items)) => next.extend(items),
            (Self::Every, Value::Object(map)) => next.extend(map.values()),
            (Self::Where(path, text), Value::Array(items)) => {
                let matches = |item: &&Value| {
                    let found = path.iter().try_fold(*item, |value, name| value.get(name));
                    found.is_some_and(|found| Shown(found).to_string() == *text)
                };
                next.extend(items.iter().filter(matches));
            }
            _ => {}
        }
    }
}

type Read<'a> = Result<(Option<Step>, &'a str), String>;

fn dotted(text: &str) -> Read<'_> {
    let mut name = String::new();
    let mut rest = text.char_indices();
    while let Some((at, letter)) = rest.next() {
        match letter {
            '.' | '[' => return Ok((field(name), &text[at..])),
            '\\' => name.extend(rest.next().map(|(_, escaped)| escaped)),
            '*' if name.is_empty() => return Ok((Some(Step::Every), &text[1..])),
            letter if letter.is_alphanumeric() || "-_/$".contains(letter) => name.push(letter),
            other => return Err(format!("{other:?} is not understood; write ['name'] instead")),
        }
    }
    Ok((field(name), ""))
}

/// A dot alone is the object itself.
fn field(name: String) -> Option<Step> {
    (!name.is_empty()).then_some(Step::Field(name))
}

fn bracketed(text: &str) -> Read<'_> {
    let unclosed = || format!("[{text} is not closed");
    if let Some(filter) = text.strip_prefix("?(") {
        let (condition, rest) = filter.split_once(")]").ok_or_else(unclosed)?;
        let (path, wanted) = condition
            .split_once("==")
            .ok_or_else(|| format!("{condition:?} should compare with =="))?;
        let path = path
            .trim()
            .strip_prefix("@.")
            .ok_or("a condition starts with @.")?;
        let wanted = wanted.trim().trim_matches(['"', '\'']);
        let names = path.split('.').map(str::to_owned).collect();
        return Ok((Some(Step::Where(names, wanted.to_owned())), rest));
    }
    for quote in ['\'', '"'] {
        if let Some(quoted) = text.strip_prefix(quote) {
            let (name, rest) = quoted.split_once(quote).ok_or_else(unclosed)?;
            let rest = rest.strip_prefix(']').ok_or_else(unclosed)?;
            return Ok((Some(Step::Field(name.to_owned())), rest));
        }
    }
    let (inside, rest) = text.split_once(']').ok_or_else(unclosed)?;
    let step = match inside.trim() {
        "*" => Step::Every,
        number => Step::Index(
            number
                .parse()
                .map_err(|_| format!("[{number}] is not an index"))?,
        ),
    };
    Ok((Some(step), rest))
}

/// A value as a cell shows it.
pub(super) struct Shown<'a>(pub &'a Value);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => f.write_str(text),
            other => write!(f, "{other}"),
        }
    }
}

/// What was found, as one text; `None` if nothing was.
pub(super) fn joined(found: &[&Value], separator: &str) -> Option<String> {
    let texts: Vec<String> = found.iter().map(|value| Shown(value).to_string()).collect();
    (!texts.is_empty()).then(|| texts.join(separator))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn found(path: &str) -> String {
        let object = json!({
            "spec": {"a.b/c": 1, "list": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "No"}]},
        });
        let path = JsonPath::parse(path).unwrap();
        joined(&path.find(&object), ",").unwrap_or_default()
    }

    #[test]
    fn paths_lead_to_values() {
        assert_eq!(found(".spec.list[?(@.type==\"Ready\")].status"), "True");
        assert_eq!(found("{.spec.list[*].type}"), "Ready,Other");
        assert_eq!(found(".spec.list[-1].type"), "Other");
        assert_eq!(found(".spec['a.b/c']"), "1");
        assert_eq!(found(".spec.a\\.b/c"), "1");
        assert_eq!(found(".spec.nothing[0].x"), "");
    }

    #[test]
    fn what_is_not_understood_is_refused_with_a_reason() {
        for path in ["spec", ".a[", ".a[x]", ".a[?(@.b>1)]", ".a[?(b==1)]", ".a(b)"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
        assert!(JsonPath::parse(&".a".repeat(65)).is_err());
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "[.\\[\\]{}$?@()='\"*a0-9\\\\-]{0,24}") {
            if let Ok(path) = JsonPath::parse(&path) {
                path.find(&json!({"a": [{"a": 1}, [0]], "0": {}}));
            }
        }
    }
}
