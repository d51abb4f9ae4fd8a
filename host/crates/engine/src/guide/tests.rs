//! Random walks through masks: every text is of its constraint.

use super::*;

/// All bytes, some longer tokens, a control token and two end tokens.
fn vocabulary() -> Vocabulary {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    for text in ["{\"", "\":", "\",\"", "\"}", "true", " the", "é", "12", "}}", "[[", "  ", "\"a\": 1", "null,"] {
        tokens.push(text.as_bytes().to_vec());
    }
    let control = tokens.len();
    tokens.extend([Vec::new(), Vec::new(), b"</s>".to_vec()]);
    Vocabulary::of(tokens, vec![control as u32 + 1, control as u32 + 2]).expect("vocabulary")
}

fn guide(vocabulary: &Vocabulary, constraint: &Constraint) -> Guide {
    Guide::new(vocabulary, constraint).unwrap_or_else(|error| panic!("{constraint:?}: {error}"))
}

fn allowed(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect()
}

/// Follows masks with a generator; whole text and whether it ended within `steps`. Closes brackets more and more.
fn walk(vocabulary: &Vocabulary, constraint: &Constraint, seed: u64, steps: usize) -> (Vec<u8>, bool) {
    let (mut guide, mut text, mut state) = (guide(vocabulary, constraint), Vec::new(), seed);
    let mut mask = vec![0; vocabulary.usable.len()];
    let trie = vocabulary.factory.tok_env().tok_trie();
    for step in 0..steps {
        guide.mask(&mut mask).expect("mask");
        let mut choices = allowed(&mask);
        assert!(choices.iter().all(|id| vocabulary.eos.contains(id) || !trie.token(*id).is_empty()));
        assert!(!guide.ended() || choices == vocabulary.eos);
        let closing: Vec<u32> =
            choices.iter().copied().filter(|id| matches!(trie.token(*id), [b'"' | b'}' | b']'] | [])).collect();
        if step > steps / 4 && !closing.is_empty() {
            choices = closing;
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = choices[(state >> 33) as usize % choices.len()];
        guide.take(id).expect("allowed");
        if vocabulary.eos.contains(&id) {
            assert!(guide.ended());
            return (text, true);
        }
        text.extend_from_slice(trie.token(id));
    }
    (text, false)
}

/// Walks with many seeds; each text that ended passes `check`, and most end.
fn walks(constraint: &Constraint, check: impl Fn(&Json) -> bool) {
    let vocabulary = vocabulary();
    let mut ended = 0;
    for seed in 0..40 {
        let (text, end) = walk(&vocabulary, constraint, seed, 600);
        assert_eq!(walk(&vocabulary, constraint, seed, 600), (text.clone(), end), "not deterministic");
        if end {
            let value: Json = match serde_json::from_slice(&text) {
                Ok(value) => value,
                // 1e999 is JSON too.
                Err(error) if error.to_string().starts_with("number out of range") => continue,
                Err(error) => panic!("{}: {error}", String::from_utf8_lossy(&text)),
            };
            assert!(check(&value), "{value}");
            ended += 1;
        }
    }
    assert!(ended >= 20, "{ended} of 40 ended");
}

#[test]
fn a_json_object_is_one() {
    walks(&Constraint::JsonObject, Json::is_object);
}

#[test]
fn text_of_a_schema_is_of_the_schema() {
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "minLength": 1, "maxLength": 5 },
            "age": { "type": "integer", "minimum": 0, "maximum": 99 },
            "kind": { "enum": ["a", "b\"c"] },
            "tags": { "type": "array", "items": { "type": "boolean" }, "minItems": 1, "maxItems": 3 },
            "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/node" }] },
            "format": { "type": "string", "format": "no such format" },
        },
        "required": ["name", "age", "kind", "tags", "next"],
        "additionalProperties": false,
        "$defs": { "node": {
            "type": "object",
            "properties": { "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/node" }] } },
            "required": ["next"],
            "additionalProperties": false,
        } },
    });
    fn node(value: &Json) -> bool {
        value.is_null()
            || value.as_object().is_some_and(|node| node.len() == 1 && node.get("next").is_some_and(self::node_of))
    }
    walks(&Constraint::JsonSchema(schema), |value| {
        let name = value["name"].as_str().is_some_and(|name| (1..=5).contains(&name.chars().count()));
        let age = value["age"].as_u64().is_some_and(|age| age <= 99);
        let kind = value["kind"] == "a" || value["kind"] == "b\"c";
        let tags = value["tags"]
            .as_array()
            .is_some_and(|tags| (1..=3).contains(&tags.len()) && tags.iter().all(Json::is_boolean));
        let keys = value.as_object().is_some_and(|map| map.len() == 5 || (map.len() == 6 && map["format"].is_string()));
        name && age && kind && tags && keys && node(&value["next"])
    });
}

fn node_of(value: &Json) -> bool {
    value.is_null() || value.as_object().is_some_and(|node| node.len() == 1 && node.get("next").is_some_and(node_of))
}

#[test]
fn expressions_and_grammars_are_followed() {
    let vocabulary = vocabulary();
    for seed in 0..20 {
        let (text, end) = walk(&vocabulary, &Constraint::Regex("[ab]{2,4}c?".to_owned()), seed, 20);
        assert!(end && text.len() <= 5 && text.iter().all(|byte| b"abc".contains(byte)), "{text:?}");
        let grammar = "start: \"yes\" | \"no\" | \"(\" start \")\"".to_owned();
        let (text, end) = walk(&vocabulary, &Constraint::Lark(grammar), seed, 200);
        let text = String::from_utf8(text).expect("text");
        assert!(!end || ["yes", "no"].contains(&text.trim_matches(['(', ')'])), "{text}");
    }
}

#[test]
fn a_complete_text_allows_end_tokens_alone() {
    let vocabulary = vocabulary();
    let mut guide = guide(&vocabulary, &Constraint::Regex("ab".to_owned()));
    let mut mask = vec![u32::MAX; vocabulary.usable.len()];
    for (token, ended) in [(b'a', false), (b'b', true)] {
        guide.mask(&mut mask).expect("mask");
        assert_eq!(allowed(&mask), [u32::from(token)]);
        assert!(!guide.ended());
        guide.take(u32::from(token)).expect("allowed");
        assert_eq!(guide.ended(), ended);
    }
    guide.mask(&mut mask).expect("mask");
    assert_eq!(allowed(&mask), vocabulary.eos);
    assert!(guide.take(u32::from(b'c')).is_err());
    guide.take(vocabulary.eos[1]).expect("ends");
    assert!(guide.ended());
}

#[test]
fn a_token_outside_of_the_mask_is_refused() {
    let vocabulary = vocabulary();
    for token in [u32::from(b'c'), vocabulary.eos[0], vocabulary.eos[0] - 1, 5_000_000] {
        assert!(guide(&vocabulary, &Constraint::Regex("ab".to_owned())).take(token).is_err(), "{token}");
    }
}

#[test]
fn control_tokens_are_never_allowed() {
    let vocabulary = vocabulary();
    let control = vocabulary.eos[0] - 1;
    let grammar = format!("start: \"a\" | <[{control}]> \"b\"");
    if let Ok(mut guide) = Guide::new(&vocabulary, &Constraint::Lark(grammar)) {
        let mut mask = vec![0; vocabulary.usable.len()];
        guide.mask(&mut mask).expect("mask");
        assert_eq!(allowed(&mask), [u32::from(b'a')]);
    }
}

#[test]
fn guides_may_move_between_threads() {
    fn sent<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    sent::<Guide>();
    shared::<Vocabulary>();
}

/// Deeply nested, exponentially large, contradictory or endless: each is compiled or refused at once.
fn hostile_schemas() -> Vec<Constraint> {
    let mut deep = json!({ "type": "string" });
    for _ in 0..100 {
        deep = json!({ "type": "array", "items": deep });
    }
    let options =
        |n: usize| (0..n).map(|i| json!({ "properties": { format!("p{i}"): { "const": i } } })).collect::<Vec<_>>();
    let exponential = json!({ "allOf": (0..12).map(|_| json!({ "anyOf": options(8) })).collect::<Vec<_>>() });
    let wide: serde_json::Map<_, _> =
        (0..5_000).map(|i| (format!("property{i}"), json!({ "type": "string", "pattern": "^[a-z]{3,50}$" }))).collect();
    let names: serde_json::Map<_, _> = (0..500).map(|i| (format!("p{i}"), json!({ "type": "string" }))).collect();
    let lengths: Vec<_> = (0..4)
        .map(|i| (0..900).map(|j| json!({ "type": "string", "maxLength": 900 * i + j })).collect::<Vec<_>>())
        .collect();
    let lengths: Vec<_> = lengths.into_iter().map(|items| json!({ "prefixItems": items, "type": "array" })).collect();
    let many: Vec<_> = (0..1_000).map(|i| json!({ "type": "object", "properties": { format!("p{i}"): {} } })).collect();
    let doubling: serde_json::Map<_, _> = (0..50)
        .map(|i| {
            let next = format!("#/$defs/d{}", i + 1);
            (format!("d{i}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }], "type": "object" }))
        })
        .chain([("d50".to_owned(), json!({ "type": "object" }))])
        .collect();
    let schemas = [
        deep,
        exponential,
        json!({ "type": "object", "properties": wide }),
        json!({ "type": "object", "properties": names }),
        json!({ "anyOf": lengths }),
        json!({ "enum": (0..100).map(|i| json!({ format!("a{i}"): i, format!("b{i}"): [i], format!("c{i}"): {} })).collect::<Vec<_>>() }),
        json!({ "oneOf": many }),
        json!({ "$ref": "#/$defs/d0", "$defs": doubling }),
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }], "type": "object" }),
        json!({ "$ref": "http://example.com/schema" }),
        json!({ "type": "string", "minLength": 4_000_000_000u64 }),
        json!({ "type": "array", "minItems": 10_000, "maxItems": 10_000, "items": { "type": "array", "minItems": 10_000, "items": {} } }),
        json!({ "type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}" }),
        json!({ "type": "string", "pattern": "(a|b)*a(a|b){500}" }),
        json!({ "type": "string", "pattern": "(?=a" }),
        json!({ "type": "string", "minLength": 10_000, "maxLength": 10_000, "pattern": "(a.*b.*c.*d)+" }),
        json!({ "type": "number", "multipleOf": 1e-300 }),
        json!({ "type": "integer", "multipleOf": 999_999_937, "minimum": -1e300, "maximum": 1e300 }),
        json!({ "type": "object", "minProperties": 10_000, "maxProperties": 10_000 }),
        json!({ "patternProperties": (0..60).map(|i| (format!("a.*{i}.*b"), json!({}))).collect::<serde_json::Map<_, _>>() }),
        json!({ "not": {} }),
        json!({ "type": 7 }),
        json!({ "enum": [] }),
        json!([]),
        json!(false),
        json!({ "x-guidance": { "no such option": 1 } }),
    ];
    schemas.into_iter().map(Constraint::JsonSchema).collect()
}

fn hostile_grammars() -> Vec<Constraint> {
    let regexes = ["((a{1,1000}){1,1000}){1,1000}", "(a|b)*a(a|b){1000}", "(", "", "[a-z", "(?<=a)b", "a{1000000000}"];
    let larks = [
        "",
        "start: start",
        "start: \"a\" start start start | \"a\"",
        "start: x",
        "start: /(a|b)*a(a|b){1000}/",
        "start: (",
        "start: \"a\"{1,1000000}",
        "start: %json { \"type\": \"no\" }",
        "start: @other",
        "start: <|im_end|>",
    ];
    let texts = ["(".repeat(60_000), "a|".repeat(4_000), "(?:".repeat(60) + &")".repeat(60), "\\p{L}*".repeat(1_000)];
    let grammars = [
        format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000)),
        "start: \"a\"\n".repeat(5_000),
        format!("start: {}", "\"a\" ".repeat(15_000)),
        format!("start: {}\"a\"", "!".repeat(30_000)),
        format!("start: {}", "~".repeat(30_000)),
    ];
    (regexes.into_iter().map(|text| Constraint::Regex(text.to_owned())))
        .chain(larks.map(|text| Constraint::Lark(text.to_owned())))
        .chain(texts.map(Constraint::Regex))
        .chain(grammars.map(Constraint::Lark))
        .collect()
}

#[test]
fn hostile_constraints_are_compiled_or_refused() {
    let vocabulary = vocabulary();
    for constraint in hostile_schemas().into_iter().chain(hostile_grammars()) {
        match Guide::new(&vocabulary, &constraint) {
            Ok(mut guide) => {
                let mut mask = vec![0; vocabulary.usable.len()];
                for _ in 0..20 {
                    let Ok(()) = guide.mask(&mut mask) else { break };
                    let choices = allowed(&mask);
                    if guide.take(choices[choices.len() / 2]).is_err() {
                        break;
                    }
                }
            }
            Err(EngineError::Invalid(sentence)) => {
                assert!(sentence.len() < 400 && !sentence.contains('\n') && !sentence.contains("panic"), "{sentence}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// Bytes that any text may go on with.
const FREE: [u32; 4] = [b'a' as u32, b'<' as u32, b'(' as u32, b'\n' as u32];

#[test]
fn free_text_is_free_until_a_tag_and_after_what_the_tag_wants() {
    let grammar = "start: tagged* /(?s:.*)/\ntagged: tag \"(\" /[0-9]{1,3}/ \")\"\ntag[suffix=\"<f>\"]: /(?s:.*)/";
    let vocabulary = vocabulary();
    let mut guide = guide(&vocabulary, &Constraint::Lark(grammar.to_owned()));
    let mut mask = vec![0; vocabulary.usable.len()];
    let mut may_follow = |guide: &mut Guide, text: &str| {
        for byte in text.bytes() {
            guide.take(u32::from(byte)).expect("allowed");
        }
        guide.mask(&mut mask).expect("mask");
        allowed(&mask)
    };
    for _ in 0..2 {
        let free = may_follow(&mut guide, "no <f here> yet\n");
        assert!(FREE.iter().chain(&vocabulary.eos).all(|id| free.contains(id)), "{free:?}");
        assert_eq!(may_follow(&mut guide, "<f>"), [u32::from(b'(')]);
        assert_eq!(may_follow(&mut guide, "(123"), [u32::from(b')')]);
        let after = may_follow(&mut guide, ")");
        assert!(FREE.iter().chain(&vocabulary.eos).all(|id| after.contains(id)), "{after:?}");
    }
}
