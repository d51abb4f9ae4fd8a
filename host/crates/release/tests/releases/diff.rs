//! What a diff tells of files and tensors.

use std::collections::BTreeMap;

use reef_core::Release;
use reef_release::{ReleaseFile, Tensors};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::fixture::{Fixture, file, manifest};

/// A safetensors file of vectors.
fn weights(tensors: &[(&str, Dtype, Vec<u8>)]) -> Vec<u8> {
    let size = |dtype: Dtype| match dtype {
        Dtype::F32 => 4,
        Dtype::I64 => 8,
        _ => 2,
    };
    let views: BTreeMap<&str, TensorView<'_>> = tensors
        .iter()
        .map(|(name, dtype, data)| {
            (*name, TensorView::new(*dtype, vec![data.len() / size(*dtype)], data).expect("a tensor"))
        })
        .collect();
    safetensors::serialize(views, None).expect("a file")
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn halves(values: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let bytes = |bits: fn(f32) -> u16| values.iter().flat_map(move |value| bits(*value).to_le_bytes()).collect();
    (bytes(|value| half::f16::from_f32(value).to_bits()), bytes(|value| half::bf16::from_f32(value).to_bits()))
}

fn release(fixture: &Fixture, parent: Option<&Release>, files: &[ReleaseFile]) -> Release {
    fixture.repo.write(&manifest("spell", parent), files).expect("written")
}

#[test]
fn files_and_the_norm_of_each_tensors_change_are_told() {
    let fixture = Fixture::new();
    let ((f16_old, bf16_old), (f16_new, bf16_new)) = (halves(&[0.0, 8.0]), halves(&[0.0, 2.0]));
    let old = weights(&[
        ("f32", Dtype::F32, f32s(&[1.0, 2.0, 3.0])),
        ("f16", Dtype::F16, f16_old),
        ("bf16", Dtype::BF16, bf16_old),
        ("gone", Dtype::F32, f32s(&[3.0, 4.0])),
        ("reshaped", Dtype::F32, f32s(&[5.0])),
        ("same", Dtype::F32, f32s(&[9.0])),
        ("whole", Dtype::I64, 7_i64.to_le_bytes().to_vec()),
    ]);
    let new = weights(&[
        ("f32", Dtype::F32, f32s(&[1.0, 5.0, -1.0])),
        ("f16", Dtype::F16, f16_new),
        ("bf16", Dtype::BF16, bf16_new),
        ("new", Dtype::F32, f32s(&[6.0, 8.0])),
        ("reshaped", Dtype::F32, f32s(&[3.0, 4.0])),
        ("same", Dtype::F32, f32s(&[9.0])),
        ("whole", Dtype::I64, 8_i64.to_le_bytes().to_vec()),
    ]);
    let before = release(&fixture, None, &[file("a.safetensors", &old), file("gone.md", b"x"), file("same.md", b"y")]);
    let after =
        release(&fixture, Some(&before), &[file("a.safetensors", &new), file("new.md", b"xyz"), file("same.md", b"y")]);
    let diff = fixture.repo.diff(&before.release_id, &after.release_id).expect("compared");
    assert_eq!((&diff.before, &diff.after), (&before, &after));
    let sizes: Vec<_> = diff
        .files
        .iter()
        .map(|file| (file.path.as_str(), file.before.as_ref().map(|f| f.size), file.after.as_ref().map(|f| f.size)))
        .collect();
    let (old, new) = (Some(old.len() as u64), Some(new.len() as u64));
    assert_eq!(sizes, [("a.safetensors", old, new), ("gone.md", Some(1), None), ("new.md", None, Some(3))]);
    let Some(Tensors::Read { unchanged: 1, changed }) = &diff.files[0].tensors else { panic!("{diff:?}") };
    let told: Vec<_> = changed
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.norm_before, tensor.norm_after, tensor.norm_change))
        .collect();
    let expected = [
        ("bf16", Some(8.0), Some(2.0), Some(6.0)),
        ("f16", Some(8.0), Some(2.0), Some(6.0)),
        ("f32", Some(14f64.sqrt()), Some(27f64.sqrt()), Some(5.0)),
        ("gone", Some(5.0), None, Some(5.0)),
        ("new", None, Some(10.0), Some(10.0)),
        ("reshaped", Some(5.0), Some(5.0), None),
        ("whole", None, None, None),
    ];
    assert_eq!(told, expected);
    assert_eq!(changed[5].after.as_deref(), Some("F32 [2]"));
    assert_eq!(fixture.repo.diff(&after.release_id, &after.release_id).expect("compared").files, []);
}

#[test]
fn a_file_that_is_no_safetensors_file_is_told_and_not_an_error() {
    let fixture = Fixture::new();
    let before = release(&fixture, None, &[]);
    let after = release(&fixture, Some(&before), &[file("a.safetensors", b"not tensors at all")]);
    let diff = fixture.repo.diff(&before.release_id, &after.release_id).expect("compared");
    let Some(Tensors::Unread(why)) = &diff.files[0].tensors else { panic!("{diff:?}") };
    assert!(why.starts_with("the file after is no safetensors file: "), "{why}");
}
