//! Entries into their places.

use serde_json::{Map, Value, json};

use super::{Draft, LeftOut, RenderError};
use crate::adapter::{Form, Template, fill_document};
use crate::document;
use crate::entry::{Body, Entry, Mcp, Skill};
use crate::name::EntryKind;
use crate::tree::Tree;

/// Last key of a record that is appended to a list.
const APPEND: &str = "+";

impl Draft<'_> {
    pub(super) fn entries(&mut self, tree: &Tree) -> Result<(), RenderError> {
        self.empty_files();
        for entry in tree.entries() {
            let kind = entry.name().kind();
            if kind == EntryKind::Config || self.is_for_another(entry) {
                continue;
            }
            let adapter = self.adapter;
            let place = adapter.places.iter().find(|place| place.kind == kind && place.versions.matches(&self.version));
            match place {
                Some(place) => self.put(entry, &place.form)?,
                None => {
                    let reason = adapter.cannot.get(&kind).cloned();
                    let old = || format!("{} {} does not read this kind of entry", adapter.title, self.version);
                    let reason = reason.unwrap_or_else(old);
                    self.left_out.push(LeftOut { entry: entry.name().clone(), reason });
                }
            }
        }
        Ok(())
    }

    /// Code is written for one program; the others are not asked.
    fn is_for_another(&self, entry: &Entry) -> bool {
        matches!(entry.body(), Body::Code(code) if code.adapter != self.adapter.name)
    }

    /// Files that the program's arguments name whether or not there is an entry.
    fn empty_files(&mut self) {
        for place in self.adapter.places.iter().filter(|place| place.versions.matches(&self.version)) {
            if let Form::Joined { path, always: true } = &place.form {
                self.texts.entry(path.clone()).or_default();
            }
        }
    }

    fn put(&mut self, entry: &Entry, form: &Form) -> Result<(), RenderError> {
        let text = text_of(entry);
        match form {
            Form::Joined { path, .. } => {
                let joined = self.texts.entry(path.clone()).or_default();
                add_paragraph(joined, text);
                Ok(())
            }
            Form::Each { path, front_matter } => {
                let values = values_of(entry, None);
                let head: String = front_matter.iter().map(|(key, value)| line(key, value, &values)).collect();
                let head = if head.is_empty() { head } else { format!("---\n{head}---\n") };
                let path = path.replace("{{id}}", entry.name().id());
                self.file(&path, &format!("{head}{}", ended(text)))?;
                self.files_of_skill(entry, &path)
            }
            Form::Document { path, format, record } => {
                let path = path.replace("{{id}}", entry.name().id());
                let record = self.fill(&path, record, &values_of(entry, None))?;
                let text = format.write(&record).map_err(|problem| self.wrong(&path, problem))?;
                self.file(&path, &text)
            }
            Form::Record { file, at, record, remote, variable } => {
                let values = values_of(entry, variable.as_deref());
                let remote = remote.as_ref().filter(|_| matches!(entry.body(), Body::Mcp(Mcp { url: Some(_), .. })));
                let record = self.fill(file, remote.unwrap_or(record), &values)?;
                self.insert(file, &keys(at, &values), record)
            }
            Form::Value { file, at } => {
                let here = self.here(file, &keys(at, &Map::new()))?;
                let mut joined = here.as_str().unwrap_or("").to_owned();
                add_paragraph(&mut joined, text);
                *here = Value::String(joined);
                Ok(())
            }
        }
    }

    fn files_of_skill(&mut self, entry: &Entry, path: &str) -> Result<(), RenderError> {
        let Body::Skill(Skill { files, .. }) = entry.body() else { return Ok(()) };
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        files.iter().try_for_each(|(own, text)| self.file(&format!("{folder}/{own}"), &ended(text)))
    }

    fn file(&mut self, path: &str, text: &str) -> Result<(), RenderError> {
        match self.texts.insert(path.to_owned(), text.to_owned()) {
            Some(_) => Err(self.collision(path)),
            None => Ok(()),
        }
    }

    fn fill(&self, path: &str, record: &Value, values: &Map<String, Value>) -> Result<Value, RenderError> {
        let filled = fill_document(record, values).map_err(|problem| self.wrong(path, problem))?;
        Ok(filled.unwrap_or(Value::Null))
    }

    fn here(&mut self, file: &str, at: &[String]) -> Result<&mut Value, RenderError> {
        let wrong = self.wrong(file, format!("'{}' is not free", at.join(".")));
        let document = self.documents.get_mut(file);
        document.and_then(|document| document::place(&mut document.value, at)).ok_or(wrong)
    }

    fn insert(&mut self, file: &str, at: &[String], record: Value) -> Result<(), RenderError> {
        let list = at.last().is_some_and(|key| key == APPEND);
        let at = if list { at.split_last().map_or(at, |(_, rest)| rest) } else { at };
        let wrong = self.wrong(file, format!("'{}' is taken", at.join(".")));
        match self.here(file, at)? {
            here @ Value::Null if list => *here = json!([record]),
            here @ Value::Null => *here = record,
            Value::Array(items) if list => items.push(record),
            _ => return Err(wrong),
        }
        Ok(())
    }
}

fn keys(at: &[Template], values: &Map<String, Value>) -> Vec<String> {
    at.iter().map(|key| key.fill(values)).collect()
}

/// The text that the program reads as such.
fn text_of(entry: &Entry) -> &str {
    match entry.body() {
        Body::Text(body) => &body.text,
        Body::Command(body) => &body.text,
        Body::Subagent(body) => &body.text,
        Body::Skill(body) => &body.text,
        Body::Code(body) => &body.source,
        Body::Config(_) | Body::Hook(_) | Body::Mcp(_) => "",
    }
}

/// With a line end at its end, as text files have.
fn ended(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// Adds a text after a blank line.
fn add_paragraph(joined: &mut String, text: &str) {
    if !joined.is_empty() {
        joined.push('\n');
    }
    joined.push_str(&ended(text.trim_end_matches('\n')));
}

/// One line of front matter. A JSON string is a quoted string of YAML.
fn line(key: &str, value: &Template, values: &Map<String, Value>) -> String {
    format!("{key}: {}\n", Value::String(value.fill(values)))
}

/// The fields of an entry by the names that templates use; what it does not have is absent.
fn values_of(entry: &Entry, variable: Option<&str>) -> Map<String, Value> {
    let mut values = match entry.config() {
        Value::Object(values) => values,
        _ => Map::new(),
    };
    values.remove("files");
    if let Body::Mcp(mcp) = entry.body() {
        values.remove("command");
        values.remove("variables");
        mcp_values(mcp, variable.unwrap_or("*"), &mut values);
    }
    values.insert("id".to_owned(), Value::String(entry.name().id().to_owned()));
    values
}

fn mcp_values(mcp: &Mcp, variable: &str, values: &mut Map<String, Value>) {
    if let Some((program, arguments)) = mcp.command.split_first() {
        values.insert("program".to_owned(), json!(program));
        values.insert("argv".to_owned(), json!(mcp.command));
        if !arguments.is_empty() {
            values.insert("arguments".to_owned(), json!(arguments));
        }
    }
    if !mcp.variables.is_empty() {
        let named = mcp.variables.iter().map(|name| (name.clone(), json!(variable.replace('*', name))));
        values.insert("environment".to_owned(), Value::Object(named.collect()));
        values.insert("variables".to_owned(), json!(mcp.variables));
    }
}
