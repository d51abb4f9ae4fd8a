//! What a trainer keeps beside its adapter: `trainer_state.safetensors` with the moments and the step count of
//! the adapter's optimizer, `critic.safetensors` with the critic's head, its moments and its step count, and
//! `ema.safetensors` with the moving average of the adapter.
//! Equal state gives equal bytes, and a trainer read from them continues as if it had never stopped.

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use tch::{Device, Kind, Tensor, no_grad};

use super::critic::Critic;
use super::optimizer::AdamW;
use crate::adapter::Lora;
use crate::error::EngineError;

/// Name of the file with the adapter's optimizer.
pub const TRAINER_STATE_FILE: &str = "trainer_state.safetensors";
/// Name of the critic's own file.
pub const CRITIC_FILE: &str = "critic.safetensors";
/// Name of the file with the moving average of the adapter.
pub const EMA_FILE: &str = "ema.safetensors";
/// Name of a step count.
const STEPS: &str = "steps";

/// Moments with their names, in a fixed order.
fn moments(adam: &AdamW) -> Vec<(String, Tensor)> {
    let both = [("first", &adam.first), ("second", &adam.second)];
    let named = |kind: &str, (index, tensor): (usize, &Tensor)| (format!("{kind}.{index:05}"), tensor.shallow_clone());
    both.into_iter()
        .flat_map(|(kind, tensors)| tensors.iter().enumerate().map(move |entry| named(kind, entry)))
        .collect()
}

/// Everything of the critic with its names, in a fixed order.
fn critic_entries(critic: &Critic) -> Vec<(String, Tensor)> {
    let head = ["weight", "bias"]
        .into_iter()
        .zip(&critic.head)
        .map(|(name, tensor)| (name.to_owned(), tensor.shallow_clone()));
    moments(&critic.adam).into_iter().chain(head).collect()
}

/// The tensors of an adapter with names, in their fixed order.
fn ema_entries(ema: &Lora) -> Vec<(String, Tensor)> {
    let named = |(index, tensor): (usize, &Tensor)| (format!("parameter.{index:05}"), tensor.shallow_clone());
    ema.parameters().into_iter().enumerate().map(named).collect()
}

/// The bytes of `trainer_state.safetensors`.
pub(super) fn write_optimizer(adam: &AdamW) -> Result<Vec<u8>, EngineError> {
    write(TRAINER_STATE_FILE, moments(adam), Some(adam.steps))
}

/// The bytes of `critic.safetensors`.
pub(super) fn write_critic(critic: &Critic) -> Result<Vec<u8>, EngineError> {
    write(CRITIC_FILE, critic_entries(critic), Some(critic.adam.steps))
}

/// The bytes of `ema.safetensors`.
pub(super) fn write_ema(ema: &Lora) -> Result<Vec<u8>, EngineError> {
    write(EMA_FILE, ema_entries(ema), None)
}

/// Fills `adam`, whose shapes say what the file must hold.
pub(super) fn read_optimizer(bytes: &[u8], adam: &mut AdamW) -> Result<(), EngineError> {
    adam.steps = steps(TRAINER_STATE_FILE, &read(TRAINER_STATE_FILE, bytes, moments(adam))?)?;
    Ok(())
}

/// Fills `critic`, whose shapes say what the file must hold.
pub(super) fn read_critic(bytes: &[u8], critic: &mut Critic) -> Result<(), EngineError> {
    critic.adam.steps = steps(CRITIC_FILE, &read(CRITIC_FILE, bytes, critic_entries(critic))?)?;
    Ok(())
}

/// Fills `ema`, whose shapes say what the file must hold.
pub(super) fn read_ema(bytes: &[u8], ema: &Lora) -> Result<(), EngineError> {
    read(EMA_FILE, bytes, ema_entries(ema)).map(drop)
}

fn write(file: &str, entries: Vec<(String, Tensor)>, steps: Option<i64>) -> Result<Vec<u8>, EngineError> {
    let mut stored: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, tensor) in entries {
        let tensor = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?;
        let shape = tensor.size().iter().map(|&size| size as usize).collect();
        let mut bytes = vec![0; tensor.numel() * size_of::<f32>()];
        tensor.f_copy_data_u8(&mut bytes, tensor.numel())?;
        stored.push((name, Dtype::F32, shape, bytes));
    }
    stored.extend(steps.map(|steps| (STEPS.to_owned(), Dtype::I64, vec![1], steps.to_le_bytes().to_vec())));
    let mut views = Vec::with_capacity(stored.len());
    for (name, dtype, shape, bytes) in &stored {
        let view = TensorView::new(*dtype, shape.clone(), bytes).map_err(|e| bad(file, name, &e.to_string()))?;
        views.push((name.as_str(), view));
    }
    serialize(views, None).map_err(|e| bad(file, "all tensors", &e.to_string()))
}

/// Fills the targets; what the file holds beside them is for the caller.
fn read<'a>(file: &str, bytes: &'a [u8], targets: Vec<(String, Tensor)>) -> Result<SafeTensors<'a>, EngineError> {
    let stored = SafeTensors::deserialize(bytes).map_err(|e| bad(file, "header", &e.to_string()))?;
    for (name, mut target) in targets {
        let view = stored.tensor(&name).map_err(|e| bad(file, &name, &e.to_string()))?;
        let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
        if view.dtype() != Dtype::F32 || shape != target.size() {
            let problem = format!("{:?} {shape:?} instead of F32 {:?}", view.dtype(), target.size());
            return Err(bad(file, &name, &problem));
        }
        let source = Tensor::f_from_data_size(view.data(), &shape, Kind::Float)?;
        if !bool::try_from(&source.f_isfinite()?.f_all()?)? {
            return Err(bad(file, &name, "it holds numbers that are not finite"));
        }
        no_grad(|| target.f_copy_(&source))?;
    }
    Ok(stored)
}

fn steps(file: &str, stored: &SafeTensors<'_>) -> Result<i64, EngineError> {
    let view = stored.tensor(STEPS).map_err(|e| bad(file, STEPS, &e.to_string()))?;
    let count = <[u8; 8]>::try_from(view.data()).map_err(|_| bad(file, STEPS, "it is not one 64-bit number"))?;
    match i64::from_le_bytes(count) {
        count if count >= 0 => Ok(count),
        count => Err(bad(file, STEPS, &format!("{count} is negative"))),
    }
}

fn bad(file: &str, tensor: &str, problem: &str) -> EngineError {
    EngineError::Adapter(format!("{file}: {tensor}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::super::optimizer::gradient_norm;
    use super::*;

    fn optimizer(fill: f64) -> AdamW {
        let parameters = [Tensor::from_slice(&[1.0f32, 2.0]), Tensor::from_slice(&[3.0f32]).view([1, 1])];
        let mut adam = AdamW::new(&parameters).expect("moments");
        for moment in adam.first.iter_mut().chain(&mut adam.second) {
            let _ = moment.fill_(fill);
        }
        adam.steps = 7;
        adam
    }

    #[test]
    fn state_comes_back_equal_and_equal_state_gives_equal_bytes() {
        let adam = optimizer(0.25);
        let bytes = write_optimizer(&adam).expect("bytes");
        assert_eq!(bytes, write_optimizer(&adam).expect("bytes"));
        let mut other = optimizer(0.0);
        other.steps = 0;
        read_optimizer(&bytes, &mut other).expect("read");
        assert_eq!(other.steps, 7);
        assert_eq!(bytes, write_optimizer(&other).expect("bytes"));
    }

    #[test]
    fn a_critic_comes_back_equal() {
        let mut critic = Critic::new(3, Device::Cpu).expect("critic");
        critic.adam.steps = 2;
        let _ = no_grad(|| critic.head[0].fill_(0.5));
        let bytes = write_critic(&critic).expect("bytes");
        let mut other = Critic::new(3, Device::Cpu).expect("critic");
        assert_eq!(gradient_norm(&other.head).expect("norm"), 0.0);
        read_critic(&bytes, &mut other).expect("read");
        assert_eq!(bytes, write_critic(&other).expect("bytes"));
    }

    #[test]
    fn damaged_files_are_refused_with_the_tensor() {
        let mut adam = optimizer(0.25);
        assert!(read_optimizer(b"no safetensors", &mut adam).is_err());
        let bytes = write_optimizer(&optimizer(f64::NAN)).expect("bytes");
        assert!(read_optimizer(&bytes, &mut adam).expect_err("not finite").to_string().contains("first.00000"));
        let bytes = write_critic(&Critic::new(4, Device::Cpu).expect("critic")).expect("bytes");
        let refusal = read_critic(&bytes, &mut Critic::new(3, Device::Cpu).expect("critic")).expect_err("shape");
        assert!(refusal.to_string().contains("critic.safetensors: first.00000"), "{refusal}");
    }
}
