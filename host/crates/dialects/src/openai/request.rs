//! The request fields that chat completions and completions share, read and written.
//! A value out of range is refused by name here, so that no provider sees it.

use serde_json::{Map, Value, json};

use crate::ask::{Ask, Input, Refusal};
use crate::carry::carried;
use crate::dialect::Dialect;
use crate::fields::{decimal, flag, integer, model, number, present, split_unknown};
use crate::items::only;

/// Stop strings of one request, and bytes of each.
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
/// Choices of one answer, as in OpenAI's API.
pub(crate) const CHOICES_MAX: u64 = 128;
/// More would keep every vocabulary whole.
const TOP_K_MAX: u64 = 1 << 20;

const COMMON: [&str; 14] = [
    "model",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "max_tokens",
    "stop",
    "n",
    "stream",
    "stream_options",
    "return_token_ids",
];
/// Fields that describe the client or the billing; they are recorded with the body, and `carry` says what other
/// dialects make of them.
const DESCRIPTIVE: [&str; 8] = [
    "user",
    "metadata",
    "store",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "verbosity",
];
/// Options of a stream that change nothing in its text.
const STREAM_OPTIONS: [&str; 2] = ["include_usage", "include_obfuscation"];

/// Reads the common fields; `own` names the fields that the dialect reads itself.
pub(crate) fn read_common(
    body: &Map<String, Value>,
    (dialect, input): (Dialect, Input),
    own: &[&str],
) -> Result<Ask, Refusal> {
    let (descriptive, unknown) = split_unknown(body, &[&COMMON, own].concat(), &DESCRIPTIVE);
    Ok(Ask {
        dialect: Some(dialect),
        temperature: number(body, "temperature", 0.0, 2.0)?,
        top_p: share(body)?,
        top_k: integer(body, "top_k", 0, TOP_K_MAX)?.map(|k| k as u32),
        seed: seed(body)?,
        frequency_penalty: number(body, "frequency_penalty", -2.0, 2.0)?,
        presence_penalty: number(body, "presence_penalty", -2.0, 2.0)?,
        logit_bias: logit_bias(body)?,
        tokens_max: integer(body, "max_tokens", 1, u64::from(u32::MAX))?.map(|tokens| tokens as u32),
        stop: stops(body)?,
        n: integer(body, "n", 1, CHOICES_MAX)?.map_or(1, |n| n as u32),
        stream: flag(body, "stream")?.unwrap_or(false),
        include_usage: include_usage(body)?,
        return_token_ids: flag(body, "return_token_ids")?.unwrap_or(false),
        descriptive,
        unknown,
        ..Ask::new(model(body)?, input)
    })
}

/// Any whole number of 64 bits, with a sign or without.
fn seed(body: &Map<String, Value>) -> Result<Option<u64>, Refusal> {
    let Some(value) = present(body, "seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| Refusal::new("seed", "seed must be a whole number of 64 bits"))
}

fn share(body: &Map<String, Value>) -> Result<Option<f32>, Refusal> {
    match number(body, "top_p", 0.0, 1.0)? {
        Some(share) if share <= 0.0 => Err(Refusal::new("top_p", "top_p must be over 0 and up to 1")),
        share => Ok(share),
    }
}

fn logit_bias(body: &Map<String, Value>) -> Result<Vec<(u32, f32)>, Refusal> {
    let wrong = || Refusal::new("logit_bias", "logit_bias must be an object of token ids and numbers from -100 to 100");
    match present(body, "logit_bias") {
        None => Ok(Vec::new()),
        Some(Value::Object(biases)) => biases
            .iter()
            .map(|(token, bias)| match (token.parse(), bias.as_f64()) {
                (Ok(token), Some(bias)) if (-100.0..=100.0).contains(&bias) => Ok((token, bias as f32)),
                _ => Err(wrong()),
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn stops(body: &Map<String, Value>) -> Result<Vec<String>, Refusal> {
    let wrong = || {
        Refusal::new("stop", format!("stop must be a text or up to {STOPS_MAX} texts of 1 to {STOP_BYTES_MAX} bytes"))
    };
    let stops: Vec<String> = match present(body, "stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => {
            list.iter().map(|stop| stop.as_str().map(str::to_owned).ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong()),
    };
    let fits = stops.len() <= STOPS_MAX && stops.iter().all(|stop| (1..=STOP_BYTES_MAX).contains(&stop.len()));
    if fits { Ok(stops) } else { Err(wrong()) }
}

fn include_usage(body: &Map<String, Value>) -> Result<bool, Refusal> {
    match present(body, "stream_options") {
        None => Ok(false),
        Some(Value::Object(options)) => {
            only(options, &STREAM_OPTIONS, "stream_options")?;
            let wanted = flag(options, "include_usage").map_err(|refusal| refusal.under("stream_options"))?;
            Ok(wanted.unwrap_or(false))
        }
        Some(_) => Err(Refusal::new("stream_options", "stream_options must be an object")),
    }
}

/// Writes the common fields of a body in `dialect`. Fields that only the client's dialect knows go to an upstream of the
/// same dialect; to another one go those that `carried` lists, and an unknown one is a refusal.
pub(crate) fn write_common(
    ask: &Ask,
    model: &str,
    (dialect, same_dialect): (Dialect, bool),
) -> Result<Map<String, Value>, Refusal> {
    let mut body = Map::new();
    if same_dialect {
        body.extend(ask.descriptive.clone());
        body.extend(ask.unknown.clone());
    } else {
        ask.refuse_unknown()?;
        body.extend(carried(ask, dialect)?);
    }
    let mut put = |field: &str, value: Option<Value>| drop(value.map(|value| body.insert(field.to_owned(), value)));
    put("model", Some(json!(model)));
    put("temperature", ask.temperature.map(decimal));
    put("top_p", ask.top_p.map(decimal));
    put("top_k", ask.top_k.filter(|k| *k > 0).map(Value::from));
    put("seed", ask.seed.map(Value::from));
    put("frequency_penalty", ask.frequency_penalty.map(decimal));
    put("presence_penalty", ask.presence_penalty.map(decimal));
    let biases: Map<String, Value> = ask.logit_bias.iter().map(|(id, bias)| (id.to_string(), decimal(*bias))).collect();
    put("logit_bias", (!biases.is_empty()).then_some(Value::Object(biases)));
    put("stop", (!ask.stop.is_empty()).then(|| json!(ask.stop)));
    put("n", (ask.n != 1).then(|| json!(ask.n)));
    put("return_token_ids", ask.return_token_ids.then_some(Value::Bool(true)));
    put("stream", ask.stream.then_some(Value::Bool(true)));
    // The record wants usage whether the client does or not.
    put("stream_options", ask.stream.then(|| json!({ "include_usage": true })));
    Ok(body)
}
