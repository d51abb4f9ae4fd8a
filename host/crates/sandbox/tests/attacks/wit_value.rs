//! Values of WIT types laid out in linear memory: what a guest's answers look like before the host reads them.
//! Offsets come from the types themselves, so that a test says what it answers and not where the bytes lie.

use wit_parser::{Int, Resolve, SizeAlign, Type, TypeDefKind};

use crate::guest::Data;

/// A value of any WIT type.
#[derive(Clone)]
pub enum V {
    Number(f64),
    Text(String),
    List(Vec<V>),
    /// Of a record or a tuple, in order.
    Fields(Vec<V>),
    /// The case of a variant, an enum, an option or a result, and its payload.
    Case(u32, Option<Box<V>>),
}

pub fn n(number: impl Into<f64>) -> V {
    V::Number(number.into())
}

pub fn t(text: &str) -> V {
    V::Text(text.to_owned())
}

pub fn l(items: impl IntoIterator<Item = V>) -> V {
    V::List(items.into_iter().collect())
}

pub fn f(fields: impl IntoIterator<Item = V>) -> V {
    V::Fields(fields.into_iter().collect())
}

pub fn case(index: u32, payload: V) -> V {
    V::Case(index, Some(Box::new(payload)))
}

/// A case without a payload; `none` of an option.
pub fn bare(index: u32) -> V {
    V::Case(index, None)
}

pub fn some(value: V) -> V {
    case(1, value)
}

/// Of a result.
pub fn ok(value: V) -> V {
    case(0, value)
}

/// Lays values out.
pub struct Layout<'a> {
    resolve: &'a Resolve,
    sizes: SizeAlign,
}

impl<'a> Layout<'a> {
    pub fn new(resolve: &'a Resolve) -> Self {
        let mut sizes = SizeAlign::default();
        sizes.fill(resolve);
        Self { resolve, sizes }
    }

    /// Puts the value into the data; its address.
    pub fn put(&self, data: &mut Data, ty: &Type, value: &V) -> u32 {
        let mut bytes = vec![0; self.size(ty)];
        self.store(data, ty, value, &mut bytes);
        data.put(&bytes)
    }

    fn size(&self, ty: &Type) -> usize {
        self.sizes.size(ty).size_wasm32()
    }

    fn store(&self, data: &mut Data, ty: &Type, value: &V, at: &mut [u8]) {
        match (ty, value) {
            (Type::Id(id), _) => self.store_named(data, &self.resolve.types[*id].kind, value, at),
            (Type::String, V::Text(text)) => pair(data.text(text), at),
            (Type::Bool | Type::U8, V::Number(number)) => at[0] = *number as u8,
            (Type::U32, V::Number(number)) => at[..4].copy_from_slice(&(*number as u32).to_le_bytes()),
            (Type::F32, V::Number(number)) => at[..4].copy_from_slice(&(*number as f32).to_le_bytes()),
            (Type::F64, V::Number(number)) => at[..8].copy_from_slice(&number.to_le_bytes()),
            _ => panic!("the value is not of type {ty:?}"),
        }
    }

    fn store_named(&self, data: &mut Data, kind: &TypeDefKind, value: &V, at: &mut [u8]) {
        match (kind, value) {
            (TypeDefKind::Type(ty), _) => self.store(data, ty, value, at),
            (TypeDefKind::Record(record), V::Fields(values)) => {
                self.store_fields(data, record.fields.iter().map(|field| &field.ty).collect(), values, at);
            }
            (TypeDefKind::Tuple(tuple), V::Fields(values)) => {
                self.store_fields(data, tuple.types.iter().collect(), values, at);
            }
            (TypeDefKind::List(ty), V::List(values)) => {
                let each = self.size(ty);
                let mut bytes = vec![0; each * values.len()];
                for (value, at) in values.iter().zip(bytes.chunks_mut(each)) {
                    self.store(data, ty, value, at);
                }
                pair([data.put(&bytes), values.len() as u32], at);
            }
            (TypeDefKind::Variant(variant), V::Case(..)) => {
                let cases = variant.cases.iter().map(|case| case.ty.as_ref()).collect();
                self.store_case(data, (variant.tag(), cases), value, at);
            }
            (TypeDefKind::Enum(_), V::Case(index, None)) => at[0] = *index as u8,
            (TypeDefKind::Option(ty), V::Case(..)) => self.store_case(data, (Int::U8, vec![None, Some(ty)]), value, at),
            (TypeDefKind::Result(result), V::Case(..)) => {
                self.store_case(data, (Int::U8, vec![result.ok.as_ref(), result.err.as_ref()]), value, at);
            }
            _ => panic!("the value is not a {}", kind.as_str()),
        }
    }

    fn store_fields(&self, data: &mut Data, types: Vec<&Type>, values: &[V], at: &mut [u8]) {
        assert_eq!(types.len(), values.len(), "fields of a record");
        for ((offset, ty), value) in self.sizes.field_offsets(types).into_iter().zip(values) {
            self.store(data, ty, value, &mut at[offset.size_wasm32()..]);
        }
    }

    fn store_case(&self, data: &mut Data, cases: (Int, Vec<Option<&Type>>), value: &V, at: &mut [u8]) {
        let ((tag, cases), V::Case(index, payload)) = (cases, value) else { panic!("not a case") };
        at[0] = *index as u8;
        let offset = self.sizes.payload_offset(tag, cases.iter().copied()).size_wasm32();
        match (cases.get(*index as usize).copied().flatten(), payload) {
            (Some(ty), Some(payload)) => self.store(data, ty, payload, &mut at[offset..]),
            (None, None) => {}
            _ => panic!("case {index} has another payload"),
        }
    }
}

fn pair(words: [u32; 2], at: &mut [u8]) {
    at[..4].copy_from_slice(&words[0].to_le_bytes());
    at[4..8].copy_from_slice(&words[1].to_le_bytes());
}
