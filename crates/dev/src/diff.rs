//! Where two JSON values differ.

use serde_json::Value;

/// One place: its path, with list positions as `[]` so that like places have one name, and what each side has there.
#[derive(Debug, PartialEq)]
pub struct Difference {
    pub path: String,
    pub left: Option<Value>,
    pub right: Option<Value>,
}

/// All places where `left` and `right` differ; keys may stand in any order, numbers and strings are never alike.
pub fn differences(left: &Value, right: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    walk(String::new(), Some(left), Some(right), &mut found);
    found
}

fn walk(path: String, left: Option<&Value>, right: Option<&Value>, found: &mut Vec<Difference>) {
    match (left, right) {
        (Some(l), Some(r)) if l == r => {}
        (Some(Value::Object(l)), Some(Value::Object(r))) => {
            for key in l.keys().chain(r.keys().filter(|key| !l.contains_key(*key))) {
                walk(format!("{path}.{key}"), l.get(key), r.get(key), found);
            }
        }
        (Some(Value::Array(l)), Some(Value::Array(r))) if l.len() == r.len() => {
            for (l, r) in l.iter().zip(r) {
                walk(format!("{path}[]"), Some(l), Some(r), found);
            }
        }
        (Some(Value::Array(l)), Some(Value::Array(r))) => {
            found.push(Difference {
                path: format!("{path}.length"),
                left: Some(l.len().into()),
                right: Some(r.len().into()),
            });
        }
        // One number, written with and without a fraction.
        (Some(Value::Number(l)), Some(Value::Number(r)))
            if (l.is_f64() || r.is_f64()) && l.as_f64() == r.as_f64() => {}
        (l, r) => found.push(Difference { path, left: l.cloned(), right: r.cloned() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_of_keys_does_not_matter_and_everything_else_does() {
        assert_eq!(differences(&json!({"a": 1, "b": 2}), &json!({"b": 2, "a": 1})), []);
        let places = |l, r| differences(&l, &r).into_iter().map(|d| d.path).collect::<Vec<_>>();
        assert_eq!(places(json!({"a": 1}), json!({"a": "1"})), [".a"]);
        assert_eq!(places(json!({"a": null}), json!({})), [".a"]);
        assert_eq!(places(json!([{"x": 1}, {"x": 2}]), json!([{"x": 1}, {"x": 3}])), ["[].x"]);
        assert_eq!(places(json!(0.0), json!(0)), [""; 0]);
        assert_eq!(places(json!(0.5), json!(0)), [""]);
        assert_eq!(places(json!({"l": [1]}), json!({"l": [1, 2]})), [".l.length"]);
    }
}
