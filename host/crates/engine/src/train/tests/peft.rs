//! Adapters against the real `peft`: `golden/peft`, written by the script beside it.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;

use super::*;
use crate::adapter::Lora;
use crate::checkpoint::Checkpoint;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/peft").join(file)
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

fn find<'a>(files: &'a [(String, Vec<u8>)], name: &str) -> &'a [u8] {
    &files.iter().find(|(known, _)| known == name).expect("written").1
}

#[test]
fn an_adapter_of_peft_speaks_here_as_it_does_there_and_is_written_as_it_was() {
    let checkpoint = Checkpoint::open(&golden("model")).expect("a model of transformers");
    let model = Arc::new(
        Model::load(&checkpoint, checkpoint.config().clone(), crate::Compute::default()).expect("its weights"),
    );
    let read = |name: &str| (name.to_owned(), std::fs::read(golden("adapter").join(name)).expect("a file of peft"));
    let files = [CONFIG_FILE, WEIGHTS_FILE].map(read);
    let said = json(&std::fs::read(golden("logprobs.json")).expect("log-probs"));
    let numbers = |name: &str| -> Vec<f32> { serde_json::from_value(said[name].clone()).expect("numbers") };

    let mut trainer = trainer_over(&model, Some(&files));
    let tokens: Vec<u32> = serde_json::from_value(said["tokens"].clone()).expect("tokens");
    let sample = sample(0, &tokens, tokens.len() - 1);
    for (policy, name) in [(Policy::Base, "base"), (Policy::Current, "adapted")] {
        let (here, there) = (trainer.forward(policy, &[&sample]).expect("log-probs"), numbers(name));
        assert_eq!(here.len(), there.len());
        let apart = here.iter().zip(&there).fold(0.0f32, |most, (here, there)| most.max((here - there).abs()));
        assert!(apart < 1e-5, "{name}: {apart} apart, {here:?} and {there:?}");
    }

    let written = Lora::from_files(model.config(), &files).expect("read").to_files().expect("written");
    let tensors = |bytes| SafeTensors::deserialize(bytes).expect("safetensors");
    let (ours, theirs) = (tensors(find(&written, WEIGHTS_FILE)), tensors(find(&files, WEIGHTS_FILE)));
    assert_eq!(ours.len(), theirs.len());
    for (name, theirs) in theirs.tensors() {
        let ours = ours.tensor(&name).expect("under the name of peft");
        assert!(ours.shape() == theirs.shape() && ours.data() == theirs.data(), "{name}");
    }
    let (ours, theirs) = (json(find(&written, CONFIG_FILE)), json(find(&files, CONFIG_FILE)));
    for (field, value) in ours.as_object().expect("fields") {
        match field.as_str() {
            "base_model_name_or_path" => {}
            "target_modules" => {
                let sorted = |value: &Value| {
                    let mut names: Vec<String> = serde_json::from_value(value.clone()).expect("names");
                    names.sort();
                    names
                };
                assert_eq!(sorted(value), sorted(&theirs[field]));
            }
            "lora_alpha" => assert_eq!(value.as_f64(), theirs[field].as_f64()),
            _ => assert_eq!(*value, theirs[field], "{field}"),
        }
    }
}
