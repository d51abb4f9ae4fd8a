//! The trainer's own file in a release, `trainer_state.safetensors`: moments and step counts of the adapter's
//! optimizer, the critic's head and its moments. Equal state gives equal bytes, and a trainer read from them
//! continues as if it had never stopped. The adapter itself lies in its two PEFT files.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use tch::{Kind, Tensor, no_grad};

use super::critic::Critic;
use super::optimizer::AdamW;
use crate::error::EngineError;

/// Name of the file.
pub const TRAINER_STATE_FILE: &str = "trainer_state.safetensors";
/// Name of the critic's own file.
pub const CRITIC_FILE: &str = "critic.safetensors";

/// All tensors of the file with their names, in a fixed order.
fn entries(adam: &AdamW, critic: &Critic) -> Vec<(String, Tensor)> {
    let mut entries = Vec::new();
    for (owner, moments) in [("adapter", adam), ("critic", &critic.adam)] {
        for (kind, tensors) in [("first", &moments.first), ("second", &moments.second)] {
            let named = |(index, tensor): (usize, &Tensor)| (format!("{owner}.{kind}.{index:05}"), tensor.shallow_clone());
            entries.extend(tensors.iter().enumerate().map(named));
        }
    }
    for (name, tensor) in ["critic.weight", "critic.bias"].into_iter().zip(&critic.head) {
        entries.push((name.to_owned(), tensor.shallow_clone()));
    }
    entries
}

/// Step counts with their names.
fn counts(adam: &AdamW, critic: &Critic) -> [(&'static str, i64); 2] {
    [("adapter.steps", adam.steps), ("critic.steps", critic.adam.steps)]
}

/// The bytes of the file.
pub(super) fn write(adam: &AdamW, critic: &Critic) -> Result<Vec<u8>, EngineError> {
    let mut stored: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, tensor) in entries(adam, critic) {
        let tensor = tensor.f_detach()?.f_contiguous()?;
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        let mut bytes = vec![0; tensor.numel() * size_of::<f32>()];
        tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
        stored.push((name, Dtype::F32, shape, bytes));
    }
    for (name, count) in counts(adam, critic) {
        stored.push((name.to_owned(), Dtype::I64, vec![1], count.to_le_bytes().to_vec()));
    }
    let mut views = Vec::with_capacity(stored.len());
    for (name, dtype, shape, bytes) in &stored {
        let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| bad(name, &e.to_string()))?;
        views.push((name.as_str(), view));
    }
    serialize(views, None).map_err(|e| bad("all tensors", &e.to_string()))
}

/// Fills `adam` and `critic`, whose shapes say what the file must hold.
pub(super) fn read(bytes: &[u8], adam: &mut AdamW, critic: &mut Critic) -> Result<(), EngineError> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| bad("header", &e.to_string()))?;
    for (name, mut target) in entries(adam, critic) {
        let view = file.tensor(&name).map_err(|e| bad(&name, &e.to_string()))?;
        let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
        if view.dtype() != Dtype::F32 || shape != target.size() {
            return Err(bad(&name, &format!("{:?} {shape:?} instead of F32 {:?}", view.dtype(), target.size())));
        }
        let source = Tensor::f_from_data_size(view.data(), &shape, Kind::Float)?;
        if !bool::try_from(&source.f_isfinite()?.f_all()?)? {
            return Err(bad(&name, "it holds numbers that are not finite"));
        }
        no_grad(|| target.f_copy_(&source))?;
    }
    adam.steps = count(&file, "adapter.steps")?;
    critic.adam.steps = count(&file, "critic.steps")?;
    Ok(())
}

fn count(file: &SafeTensors<'_>, name: &str) -> Result<i64, EngineError> {
    let view = file.tensor(name).map_err(|e| bad(name, &e.to_string()))?;
    let bytes = <[u8; 8]>::try_from(view.data()).map_err(|_| bad(name, "it is not one 64-bit number"))?;
    match i64::from_le_bytes(bytes) {
        count if count >= 0 => Ok(count),
        count => Err(bad(name, &format!("{count} is negative"))),
    }
}

fn bad(tensor: &str, problem: &str) -> EngineError {
    EngineError::Adapter(format!("{TRAINER_STATE_FILE}: {tensor}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::super::optimizer::gradient_norm;
    use super::*;

    fn state(fill: f64) -> (AdamW, Critic) {
        let parameters = [Tensor::from_slice(&[1.0f32, 2.0]), Tensor::from_slice(&[3.0f32]).view([1, 1])];
        let mut adam = AdamW::new(&parameters).expect("moments");
        for moment in adam.first.iter_mut().chain(&mut adam.second) {
            let _ = moment.fill_(fill);
        }
        adam.steps = 7;
        (adam, Critic::new(3).expect("critic"))
    }

    #[test]
    fn state_comes_back_equal_and_equal_state_gives_equal_bytes() {
        let (adam, critic) = state(0.25);
        let bytes = write(&adam, &critic).expect("bytes");
        assert_eq!(bytes, write(&adam, &critic).expect("bytes"));
        let (mut other, mut other_critic) = state(0.0);
        other.steps = 0;
        read(&bytes, &mut other, &mut other_critic).expect("read");
        assert_eq!(other.steps, 7);
        assert_eq!(bytes, write(&other, &other_critic).expect("bytes"));
        assert_eq!(gradient_norm(&other_critic.head).expect("norm"), 0.0);
    }

    #[test]
    fn damaged_files_are_refused_with_the_tensor() {
        let (mut adam, mut critic) = state(0.25);
        assert!(read(b"no safetensors", &mut adam, &mut critic).is_err());
        let (wild, _) = state(f64::NAN);
        let bytes = write(&wild, &critic).expect("bytes");
        assert!(read(&bytes, &mut adam, &mut critic).expect_err("not finite").to_string().contains("adapter.first.00000"));
        let bytes = write(&adam, &Critic::new(4).expect("critic")).expect("bytes");
        assert!(read(&bytes, &mut adam, &mut critic).expect_err("shape").to_string().contains("critic.first.00000"));
    }
}
