//! Configuration keys and report fields: a constant that carries name, type, default, range and
//! documentation, so that the manifest, the check and the use of a value cannot disagree.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{ConfigKey, Failure, ReportField, Result, Sample, ValueKind, json};

/// A type that configuration values and report fields may have: `u32`, `f64`, `bool`, `&'static str`.
pub trait Value: Copy {
    /// What reading gives.
    type Owned: Clone;
    /// The kind in the manifest.
    const KIND: ValueKind;
    /// What a person is told that the value must be.
    const WANTED: &'static str;
    /// The value as JSON.
    fn to_json(self) -> String;
    /// Reads JSON; `None` if it is of another type.
    fn from_json(text: &str) -> Option<Self::Owned>;
    /// The number that a range limits, if it is a number.
    fn number(value: &Self::Owned) -> Option<f64>;
}

impl Value for f64 {
    type Owned = Self;
    const KIND: ValueKind = ValueKind::Number;
    const WANTED: &'static str = "a number";
    fn to_json(self) -> String {
        self.to_string()
    }
    fn from_json(text: &str) -> Option<Self> {
        json::number(text)
    }
    fn number(value: &Self) -> Option<f64> {
        Some(*value)
    }
}

impl Value for u32 {
    type Owned = Self;
    const KIND: ValueKind = ValueKind::Number;
    const WANTED: &'static str = "a whole number";
    fn to_json(self) -> String {
        self.to_string()
    }
    fn from_json(text: &str) -> Option<Self> {
        // `32.0` and `3.2e1` are whole numbers too; the conversion saturates, so the comparison is exact.
        let number = json::number(text)?;
        let whole = number as Self;
        (f64::from(whole) == number).then_some(whole)
    }
    fn number(value: &Self) -> Option<f64> {
        Some(f64::from(*value))
    }
}

impl Value for bool {
    type Owned = Self;
    const KIND: ValueKind = ValueKind::Boolean;
    const WANTED: &'static str = "true or false";
    fn to_json(self) -> String {
        self.to_string()
    }
    fn from_json(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }
    fn number(_: &Self) -> Option<f64> {
        None
    }
}

impl Value for &'static str {
    type Owned = String;
    const KIND: ValueKind = ValueKind::Text;
    const WANTED: &'static str = "a text";
    fn to_json(self) -> String {
        json::quoted(self)
    }
    fn from_json(text: &str) -> Option<String> {
        json::text(text)
    }
    fn number(_: &String) -> Option<f64> {
        None
    }
}

/// A configuration key of a recipe.
///
/// ```
/// use reef_recipe::prelude::*;
/// const BATCH_SIZE: Key<u32> = Key::count("batch_size", 32, "samples per step").within(1.0, 512.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Key<T> {
    /// Name in the configuration file.
    pub name: &'static str,
    /// Value when the operator sets none.
    pub default: T,
    /// One clause for people.
    pub doc: &'static str,
    minimum: Option<f64>,
    maximum: Option<f64>,
}

impl Key<u32> {
    /// A whole number.
    pub const fn count(name: &'static str, default: u32, doc: &'static str) -> Self {
        Self { name, default, doc, minimum: Some(0.0), maximum: None }
    }
}

impl Key<f64> {
    /// A finite number.
    pub const fn number(name: &'static str, default: f64, doc: &'static str) -> Self {
        Self { name, default, doc, minimum: None, maximum: None }
    }
}

impl Key<bool> {
    /// A switch.
    pub const fn flag(name: &'static str, default: bool, doc: &'static str) -> Self {
        Self { name, default, doc, minimum: None, maximum: None }
    }
}

impl Key<&'static str> {
    /// A text.
    pub const fn text(name: &'static str, default: &'static str, doc: &'static str) -> Self {
        Self { name, default, doc, minimum: None, maximum: None }
    }
}

impl<T: Value> Key<T> {
    /// Limits a number to `low ..= high`. The host refuses others before any call, and so does [`Key::get`].
    #[must_use]
    pub const fn within(mut self, low: f64, high: f64) -> Self {
        self.minimum = Some(low);
        self.maximum = Some(high);
        self
    }

    /// The operator's value, else the default.
    ///
    /// # Errors
    /// `invalid-config` naming the key when the value has another type or is out of range.
    pub fn get(&self) -> Result<T::Owned> {
        let text = host::call(|host| Host::config(host, self.name))?.unwrap_or_else(|| self.default.to_json());
        let value =
            T::from_json(&text).ok_or_else(|| Failure::config(self.name, &format!("{text} is not {}", T::WANTED)))?;
        match T::number(&value) {
            Some(number) if !self.holds(number) => {
                Err(Failure::config(self.name, &format!("{text} is not {}", self.range())))
            }
            _ => Ok(value),
        }
    }

    fn holds(&self, number: f64) -> bool {
        self.minimum.is_none_or(|low| number >= low) && self.maximum.is_none_or(|high| number <= high)
    }

    fn range(&self) -> String {
        match (self.minimum, self.maximum) {
            (Some(low), Some(high)) => format!("{} from {low} to {high}", T::WANTED),
            (Some(low), None) => format!("{} from {low}", T::WANTED),
            (None, Some(high)) => format!("{} up to {high}", T::WANTED),
            (None, None) => T::WANTED.to_string(),
        }
    }
}

impl<T: Value> From<Key<T>> for ConfigKey {
    fn from(key: Key<T>) -> Self {
        Self {
            name: key.name.to_string(),
            kind: T::KIND,
            default_value: key.default.to_json(),
            minimum: key.minimum,
            maximum: key.maximum,
            doc: key.doc.to_string(),
        }
    }
}

/// Every declared key with its value as JSON, sorted by key.
///
/// # Errors
/// The host's refusal.
pub fn get_all() -> Result<Vec<(String, String)>> {
    host::call(Host::config_all)
}

/// A field of the `metadata` of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<T> {
    /// Name in `metadata`.
    pub name: &'static str,
    /// One clause for people.
    pub doc: &'static str,
    required: bool,
    of_type: core::marker::PhantomData<T>,
}

impl<T: Value> Field<T> {
    /// A field that a report may carry.
    pub const fn new(name: &'static str, doc: &'static str) -> Self {
        Self { name, doc, required: false, of_type: core::marker::PhantomData }
    }

    /// A report without the field is refused.
    #[must_use]
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// The value in the report of `sample`; `None` if absent or of another type.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn of(&self, sample: Sample) -> Result<Option<T::Owned>> {
        let text = host::call(|host| Host::report_field(host, sample, self.name))?;
        Ok(text.and_then(|text| T::from_json(&text)))
    }
}

impl<T: Value> From<Field<T>> for ReportField {
    fn from(field: Field<T>) -> Self {
        Self { name: field.name.to_string(), kind: T::KIND, required: field.required, doc: field.doc.to_string() }
    }
}
