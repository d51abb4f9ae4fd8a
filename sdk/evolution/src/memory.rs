//! JSON in the state of a recipe: one record, or a list that forgets its oldest. Every value stays below what the
//! host takes, whatever was written.

use reef_recipe::prelude::*;
use serde_json::Value;

/// Bytes of one value; the host takes 64 KiB.
pub const VALUE_BYTES_MAX: usize = 60_000;

/// The record of a key; `None` if there is none.
///
/// # Errors
/// The host's refusal, or `other` when the bytes are no JSON.
pub fn read(key: &str) -> Result<Option<Value>> {
    let Some(bytes) = state::get::<Vec<u8>>(key)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| Failure::other(format!("state {key}: it is not JSON: {error}; delete the key")))
}

/// Keeps a record.
///
/// # Errors
/// The host's refusal, e.g. of a record over 64 KiB.
pub fn write(key: &str, value: &Value) -> Result<()> {
    state::set(key, &value.to_string().into_bytes())
}

/// The list of a key, oldest first; empty if there is none.
///
/// # Errors
/// As [`read`].
pub fn list(key: &str) -> Result<Vec<Value>> {
    Ok(match read(key)? {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    })
}

/// Adds to a list; the oldest go when it holds more than `most` or more bytes than a value may have.
///
/// # Errors
/// As [`read`] and [`write`].
pub fn remember(key: &str, item: Value, most: usize) -> Result<()> {
    let mut items = list(key)?;
    items.push(item);
    write(key, &Value::Array(newest(items, most)))
}

fn newest(mut items: Vec<Value>, most: usize) -> Vec<Value> {
    let bytes = |items: &[Value]| items.iter().map(|item| item.to_string().len() + 1).sum::<usize>();
    while items.len() > most || (!items.is_empty() && bytes(&items) + 1 > VALUE_BYTES_MAX) {
        items.remove(0);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;
    use reef_recipe::testing::FakeHost;
    use serde_json::json;

    #[test]
    fn a_list_forgets_its_oldest() {
        let mut host = FakeHost::default();
        let kept = host.call(|| {
            for number in 0..4 {
                remember("list", json!(number), 2)?;
            }
            list("list")
        });
        assert_eq!(kept, Ok(vec![json!(2), json!(3)]));
    }

    #[test]
    fn a_list_stays_below_what_the_host_takes() {
        let long = json!("x".repeat(25_000));
        assert_eq!(newest(vec![long.clone(), long.clone(), long], 9).len(), 2);
        assert!(newest(vec![json!("x".repeat(VALUE_BYTES_MAX))], 9).is_empty());
    }

    #[test]
    fn bytes_that_are_no_json_name_the_key() {
        let mut host = FakeHost::default();
        host.state.insert("list".into(), b"[".to_vec());
        let failure = host.call(|| list("list")).expect_err("no JSON");
        assert!(failure.message().starts_with("state list: it is not JSON"), "{failure:?}");
    }
}
