//! Reading of fields that outside programs wrote, for every dialect's `parse`.
//! Null means absent; a value of the wrong type or range is a refusal that names the field.

use serde_json::{Map, Value};

use crate::ask::Refusal;

/// Characters of an outside name that a message repeats.
const NAME_CHARS_MAX: usize = 64;
/// Above it, not every whole number is a floating-point number: 2^53.
const COUNT_MAX: f64 = 9_007_199_254_740_992.0;

/// The field, unless it is absent or null.
pub(crate) fn present<'a>(map: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    map.get(field).filter(|value| !value.is_null())
}

/// A text.
pub(crate) fn text(map: &Map<String, Value>, field: &str) -> Result<Option<String>, Refusal> {
    match present(map, field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Refusal::new(field, format!("{field} must be a text"))),
    }
}

/// A number from `low` to `high`.
pub(crate) fn number(map: &Map<String, Value>, field: &str, low: f64, high: f64) -> Result<Option<f32>, Refusal> {
    let Some(value) = present(map, field) else { return Ok(None) };
    match value.as_f64() {
        Some(number) if (low..=high).contains(&number) => Ok(Some(number as f32)),
        _ => Err(Refusal::new(field, format!("{field} must be a number from {low} to {high}"))),
    }
}

/// A whole number from `low` to `high`.
pub(crate) fn integer(map: &Map<String, Value>, field: &str, low: u64, high: u64) -> Result<Option<u64>, Refusal> {
    let Some(value) = present(map, field) else { return Ok(None) };
    match value.as_u64() {
        Some(number) if (low..=high).contains(&number) => Ok(Some(number)),
        _ => Err(Refusal::new(field, format!("{field} must be a whole number from {low} to {high}"))),
    }
}

/// A count that an upstream tells, as 5 or as 5.0; anything else is none.
pub(crate) fn count(value: &Value) -> Option<u64> {
    let whole = |number: &f64| number.fract() == 0.0 && (0.0..COUNT_MAX).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))
}

/// True or false.
pub(crate) fn flag(map: &Map<String, Value>, field: &str) -> Result<Option<bool>, Refusal> {
    match present(map, field) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Refusal::new(field, format!("{field} must be true or false"))),
    }
}

/// A number as JSON with the digits that a person would write: 0.7, where a plain widening says 0.699999988079071.
pub(crate) fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// An outside name as a message may repeat it: cut, and without control characters.
pub(crate) fn shown(name: &str) -> String {
    name.escape_debug().take(NAME_CHARS_MAX).collect()
}

/// `model`: a text that is not blank.
pub(crate) fn model(map: &Map<String, Value>) -> Result<String, Refusal> {
    match present(map, "model") {
        Some(Value::String(model)) if !model.trim().is_empty() => Ok(model.clone()),
        _ => Err(Refusal::new("model", "model must be the name of a model; GET /v1/models lists them")),
    }
}

/// The fields that `read` does not name and that are not null: those in `descriptive`, and those that nobody knows.
pub(crate) fn split_unknown(
    map: &Map<String, Value>,
    read: &[&str],
    descriptive: &[&str],
) -> (Map<String, Value>, Map<String, Value>) {
    map.iter()
        .filter(|(name, value)| !value.is_null() && !read.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .partition(|(name, _)| descriptive.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().expect("object").clone()
    }

    #[test]
    fn null_is_absent_for_every_reader() {
        for fields in [map(json!({})), map(json!({ "a": null }))] {
            assert_eq!(present(&fields, "a"), None);
            assert_eq!(text(&fields, "a"), Ok(None));
            assert_eq!(number(&fields, "a", 0.0, 1.0), Ok(None));
            assert_eq!(integer(&fields, "a", 0, 1), Ok(None));
            assert_eq!(flag(&fields, "a"), Ok(None));
        }
    }

    #[test]
    fn a_wrong_type_or_range_is_refused_by_name() {
        for bad in [json!(-1), json!(3), json!("1"), json!([1]), json!({}), json!(true), json!(1.5)] {
            let fields = map(json!({ "a": bad }));
            assert_eq!(integer(&fields, "a", 1, 2).expect_err("integer").param, "a");
        }
        for bad in [json!(-0.1), json!(1.1), json!("1"), json!(false)] {
            let fields = map(json!({ "a": bad }));
            assert_eq!(number(&fields, "a", 0.0, 1.0).expect_err("number").param, "a");
        }
        assert_eq!(text(&map(json!({ "a": 1 })), "a").expect_err("text").param, "a");
        assert_eq!(flag(&map(json!({ "a": 1 })), "a").expect_err("flag").param, "a");
        for bad in [json!(123), json!(null), json!(" "), json!([])] {
            assert_eq!(model(&map(json!({ "model": bad }))).expect_err("model").param, "model");
        }
    }

    #[test]
    fn a_count_may_be_written_with_a_point() {
        assert_eq!([json!(5), json!(5.0), json!(0)].map(|value| count(&value)), [Some(5), Some(5), Some(0)]);
        for other in [json!(-1), json!(-1.0), json!(5.5), json!(1e300), json!("5"), json!(null), json!([])] {
            assert_eq!(count(&other), None, "{other}");
        }
    }

    #[test]
    fn numbers_are_written_as_a_person_would() {
        assert_eq!(decimal(0.7).to_string(), "0.7");
        assert_eq!(decimal(-2.0).to_string(), "-2.0");
    }

    #[test]
    fn names_are_cut_and_escaped() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"x".repeat(1000)).len(), NAME_CHARS_MAX);
    }

    #[test]
    fn the_rest_is_split() {
        let fields = map(json!({ "a": 1, "user": "u", "b": 2, "c": null }));
        let (descriptive, unknown) = split_unknown(&fields, &["a"], &["user"]);
        assert_eq!((descriptive, unknown), (map(json!({ "user": "u" })), map(json!({ "b": 2 }))));
    }
}
