//! What is refused before a constraint is compiled.
//! The compiler of grammars bounds its own work, but not its recursion, nor what it takes to read a text.

use serde_json::{Map, Value as Json};

/// Values of a schema, and bytes of all its strings.
const VALUES_MAX: usize = 10_000;
const STRINGS_MAX: usize = 256 * 1024;
/// Nesting of a schema, and of brackets in a grammar or expression.
const DEPTH_MAX: usize = 64;
/// Bytes of a grammar or expression.
const GRAMMAR_MAX: usize = 64 * 1024;
const REGEX_MAX: usize = 8 * 1024;
/// Names of properties in a schema: compiling takes time by their square, a fifth of a second for so many.
const PROPERTIES_MAX: usize = 500;
/// Bytes of all regular expressions of a schema, and escapes like `\p{L}` in them or in one grammar: each stands
/// for hundreds of ranges.
const PATTERNS_MAX: usize = 16 * 1024;
const CLASSES_MAX: usize = 100;
const TOO_MANY_CLASSES: &str = "it has more than 100 character classes like \\w and \\p{…}";
/// Alternatives of one `anyOf`, `oneOf` or `enum`: each is compared with each other.
const ALTERNATIVES_MAX: usize = 1_000;
/// Repetitions that a schema may count out.
const COUNT_MAX: u64 = 10_000;
/// Keywords whose values are data and no schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "example", "examples"];
/// Keywords whose values are schemas by name.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const COUNTS: [&str; 6] = ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];
/// `format`s that are compiled; any other is an annotation.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

/// A schema without what is not to be compiled, or why it is refused.
pub(super) fn schema(schema: &Json) -> Result<Json, String> {
    if let Json::Bool(true) = schema {
        return Ok(Json::Object(Map::new()));
    }
    if !schema.is_object() {
        return Err("it must be an object".to_owned());
    }
    let (mut values, mut strings) = (0, 0);
    measure(schema, DEPTH_MAX, &mut values, &mut strings)?;
    if values > VALUES_MAX || strings > STRINGS_MAX {
        return Err(format!(
            "it is too large; at most {VALUES_MAX} values and {STRINGS_MAX} bytes of text are compiled"
        ));
    }
    Budget::default().clean(schema)
}

/// Is the text of a grammar or expression short and shallow enough to be read?
pub(super) fn text(text: &str, grammar: bool) -> Result<(), String> {
    let max = if grammar { GRAMMAR_MAX } else { REGEX_MAX };
    if text.is_empty() || text.len() > max {
        return Err(format!("it has {} bytes; 1 to {max} are compiled", text.len()));
    }
    if classes(text) > CLASSES_MAX {
        return Err(TOO_MANY_CLASSES.to_owned());
    }
    let (mut depth, mut deepest) = (0usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > DEPTH_MAX { Err(format!("its brackets are nested more than {DEPTH_MAX} deep")) } else { Ok(()) }
}

fn measure(value: &Json, depth: usize, values: &mut usize, strings: &mut usize) -> Result<(), String> {
    *values += 1;
    let Some(deeper) = depth.checked_sub(1) else {
        return Err(format!("it is nested more than {DEPTH_MAX} deep"));
    };
    match value {
        Json::String(text) => *strings += text.len(),
        Json::Array(list) => list.iter().try_for_each(|value| measure(value, deeper, values, strings))?,
        Json::Object(map) => map.iter().try_for_each(|(key, value)| {
            *strings += key.len();
            measure(value, deeper, values, strings)
        })?,
        _ => {}
    }
    Ok(())
}

/// What was spent of the limits that hold for a whole schema.
#[derive(Default)]
struct Budget {
    properties: usize,
    patterns: usize,
    classes: usize,
}

impl Budget {
    /// Drops unknown formats and the compiler's own options; refuses what takes long to compile.
    fn clean(&mut self, schema: &Json) -> Result<Json, String> {
        match schema {
            Json::Array(list) => list.iter().map(|value| self.clean(value)).collect::<Result<_, _>>().map(Json::Array),
            Json::Object(map) => {
                let mut cleaned = Map::new();
                for (key, value) in map {
                    if let Some(value) = self.member(key, value)? {
                        cleaned.insert(key.clone(), value);
                    }
                }
                Ok(Json::Object(cleaned))
            }
            other => Ok(other.clone()),
        }
    }

    /// A keyword's value, or `None` if the keyword is dropped.
    fn member(&mut self, key: &str, value: &Json) -> Result<Option<Json>, String> {
        let count = value.as_u64().filter(|count| COUNTS.contains(&key) && *count > COUNT_MAX);
        if let Some(count) = count {
            return Err(format!("{key} {count} is too large; at most {COUNT_MAX} is compiled"));
        }
        let alternatives = value.as_array().map_or(0, Vec::len);
        if alternatives > ALTERNATIVES_MAX {
            return Err(format!("{key} has {alternatives} elements; at most {ALTERNATIVES_MAX} are compiled"));
        }
        Ok(Some(match value {
            Json::String(format) if key == "format" && !FORMATS.contains(&format.as_str()) => return Ok(None),
            _ if key == "x-guidance" => return Ok(None),
            Json::String(pattern) if key == "pattern" => {
                self.pattern(pattern)?;
                value.clone()
            }
            value if DATA.contains(&key) => {
                if matches!(key, "const" | "enum") {
                    self.names(keys(value))?;
                }
                value.clone()
            }
            Json::Object(named) if NAMED.contains(&key) => {
                self.names(named.len())?;
                let mut cleaned = Map::new();
                for (name, schema) in named {
                    if key == "patternProperties" {
                        self.pattern(name)?;
                    }
                    cleaned.insert(name.clone(), self.clean(schema)?);
                }
                Json::Object(cleaned)
            }
            value => self.clean(value)?,
        }))
    }

    fn names(&mut self, count: usize) -> Result<(), String> {
        self.properties += count;
        if self.properties > PROPERTIES_MAX {
            return Err(format!("it names more than {PROPERTIES_MAX} properties and definitions"));
        }
        Ok(())
    }

    fn pattern(&mut self, pattern: &str) -> Result<(), String> {
        self.patterns += pattern.len();
        self.classes += classes(pattern);
        if self.patterns > PATTERNS_MAX {
            return Err(format!("its patterns have more than {PATTERNS_MAX} bytes"));
        }
        if self.classes > CLASSES_MAX { Err(TOO_MANY_CLASSES.to_owned()) } else { Ok(()) }
    }
}

/// Keys of all objects in `value`.
fn keys(value: &Json) -> usize {
    match value {
        Json::Array(list) => list.iter().map(keys).sum(),
        Json::Object(map) => map.len() + map.values().map(keys).sum::<usize>(),
        _ => 0,
    }
}

/// Escapes that stand for large sets of characters.
fn classes(pattern: &str) -> usize {
    pattern.as_bytes().windows(2).filter(|pair| matches!(pair, [b'\\', class] if b"pPwWsSdDb".contains(class))).count()
}
