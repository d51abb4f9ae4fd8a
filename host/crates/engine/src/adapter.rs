//! LoRA adapters: the trainable form, its start values, and the form that serves.
//! The trainer owns a `Lora`; requests carry an `Arc<Adapter>`, which never changes. Both keep their matrices
//! in the layout of Hugging Face checkpoints, so that files are interchangeable with `peft` (`peft.rs`).
//!
//! Legend: `r` rank, `i` input width and `o` output width of one linear layer.

use std::sync::atomic::{AtomicU64, Ordering};

use rand::{RngExt, SeedableRng, rngs::ChaCha12Rng};
use reef_cpu::{Factors, Network};
use tch::{Device, Kind, TchError, Tensor, no_grad};

use crate::error::EngineError;
use crate::lora_config::LoraConfig;
use crate::model::ModelConfig;

/// Linear layers of one block that can carry a pair.
pub(crate) const PAIRS: usize = 7;

/// The two factors of one linear layer's delta: W + scale · B · A (Hu et al. 2021, eq. 3). A layer that carries none has
/// factors of rank 0.
#[derive(Debug)]
pub struct Pair {
    /// `[r, i]`.
    pub a: Tensor,
    /// `[o, r]`.
    pub b: Tensor,
}

impl Pair {
    /// Of a layer that carries none.
    pub(crate) fn none([input, output]: [i64; 2]) -> Result<Self, EngineError> {
        let empty = |shape: [i64; 2]| Tensor::f_zeros(shape, (Kind::Float, Device::Cpu));
        Ok(Self { a: empty([0, input])?, b: empty([output, 0])? })
    }

    /// Does its layer carry none?
    pub(crate) fn is_none(&self) -> bool {
        self.a.numel() == 0
    }
}

/// The seven pairs of one block.
#[derive(Debug)]
pub struct LayerLora {
    /// Query projection.
    pub q: Pair,
    /// Key projection.
    pub k: Pair,
    /// Value projection.
    pub v: Pair,
    /// Output projection of the attention.
    pub o: Pair,
    /// Gate of the feed-forward part.
    pub gate: Pair,
    /// Up projection.
    pub up: Pair,
    /// Down projection.
    pub down: Pair,
}

impl LayerLora {
    /// The pairs in their fixed order: q, k, v, o, gate, up, down.
    pub fn pairs(&self) -> [&Pair; PAIRS] {
        [&self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down]
    }
}

/// An adapter whose tensors may carry gradients. f32; made on the processor.
#[derive(Debug)]
pub struct Lora {
    /// Rank r.
    pub rank: i64,
    /// The delta is scaled by alpha / rank, or as `rslora` says.
    pub alpha: f64,
    /// The delta is scaled by alpha / √rank instead.
    pub rslora: bool,
    /// Name of the model it belongs to.
    pub base_model: String,
    /// One entry per block of the model.
    pub layers: Vec<LayerLora>,
}

impl Lora {
    /// Start values: A from U(−1/√i, 1/√i), which is Kaiming-uniform with a = √5, B zero. No gradients yet.
    pub fn init(model: &ModelConfig, config: &LoraConfig) -> Result<Self, EngineError> {
        config.check().map_err(EngineError::Adapter)?;
        let mut generator = ChaCha12Rng::seed_from_u64(config.seed);
        Self::build((config.rank, config.alpha, config.rslora), model, |_, pair, [input, output]| {
            if !config.targets.has(pair) {
                return Pair::none([input, output]);
            }
            let bound = 1.0 / (input as f32).sqrt();
            let values: Vec<f32> =
                (0..config.rank * input).map(|_| (generator.random::<f32>() * 2.0 - 1.0) * bound).collect();
            let a = Tensor::f_from_slice(&values)?.f_view([config.rank, input])?;
            Ok(Pair { a, b: Tensor::f_zeros([output, config.rank], (Kind::Float, Device::Cpu))? })
        })
    }

    /// Makes every pair with `make(layer, pair, [i, o])`, in the order of `parameters`.
    pub(crate) fn build(
        (rank, alpha, rslora): (i64, f64, bool),
        model: &ModelConfig,
        mut make: impl FnMut(usize, usize, [i64; 2]) -> Result<Pair, EngineError>,
    ) -> Result<Self, EngineError> {
        let [q, k, v, o, gate, up, down] = model.linear_shapes();
        let layer = |index| {
            Ok::<_, EngineError>(LayerLora {
                q: make(index, 0, q)?,
                k: make(index, 1, k)?,
                v: make(index, 2, v)?,
                o: make(index, 3, o)?,
                gate: make(index, 4, gate)?,
                up: make(index, 5, up)?,
                down: make(index, 6, down)?,
            })
        };
        Ok(Self {
            rank,
            alpha,
            rslora,
            base_model: model.name.clone(),
            layers: (0..model.layers).map(layer).collect::<Result<_, _>>()?,
        })
    }

    /// What B · A is multiplied with.
    pub fn scale(&self) -> f64 {
        scale((self.rank, self.alpha, self.rslora))
    }

    /// Every tensor that has numbers, in a fixed order: layers, then q, k, v, o, gate, up, down, then A before B.
    pub fn parameters(&self) -> Vec<&Tensor> {
        let pairs = self.layers.iter().flat_map(LayerLora::pairs).filter(|pair| !pair.is_none());
        pairs.flat_map(|pair| [&pair.a, &pair.b]).collect()
    }

    /// The pairs of each block in plain memory.
    #[cfg(test)]
    pub(crate) fn plain(&self) -> impl Iterator<Item = Result<PlainLayer, EngineError>> + '_ {
        let numbers = |tensor: &Tensor| {
            let mut values = vec![0f32; tensor.numel()];
            tensor.f_detach()?.f_contiguous()?.f_copy_data(&mut values, tensor.numel())?;
            Ok::<_, EngineError>(values)
        };
        let rank = usize::try_from(self.rank).unwrap_or(0);
        self.layers.iter().map(move |layer| {
            let pair = |pair: &Pair| {
                let rank = if pair.is_none() { 0 } else { rank };
                Ok::<_, EngineError>(PlainPair { rank, a: numbers(&pair.a)?, b: numbers(&pair.b)? })
            };
            let [q, k, v, o, gate, up, down] = layer.pairs().map(pair);
            Ok([q?, k?, v?, o?, gate?, up?, down?])
        })
    }

    /// A deep copy without gradients.
    pub fn duplicate(&self) -> Result<Self, EngineError> {
        self.with(&|tensor| no_grad(|| tensor.f_detach_copy()))
    }

    /// The same on a device.
    pub(crate) fn on(&self, device: Device) -> Result<Self, EngineError> {
        self.with(&|tensor| no_grad(|| tensor.f_detach()?.f_to_device(device)))
    }

    /// Every tensor through `copy`.
    fn with(&self, copy: &dyn Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Self, EngineError> {
        let pair = |pair: &Pair| Ok::<_, EngineError>(Pair { a: copy(&pair.a)?, b: copy(&pair.b)? });
        let layer = |layer: &LayerLora| {
            Ok::<_, EngineError>(LayerLora {
                q: pair(&layer.q)?,
                k: pair(&layer.k)?,
                v: pair(&layer.v)?,
                o: pair(&layer.o)?,
                gate: pair(&layer.gate)?,
                up: pair(&layer.up)?,
                down: pair(&layer.down)?,
            })
        };
        Ok(Self {
            rank: self.rank,
            alpha: self.alpha,
            rslora: self.rslora,
            base_model: self.base_model.clone(),
            layers: self.layers.iter().map(layer).collect::<Result<_, _>>()?,
        })
    }
}

/// alpha / rank, or alpha / √rank.
pub(crate) fn scale((rank, alpha, rslora): (i64, f64, bool)) -> f64 {
    alpha / if rslora { (rank as f64).sqrt() } else { rank as f64 }
}

/// An adapter prepared for serving. Immutable: requests keep the one they came with.
#[derive(Debug)]
pub struct Adapter {
    served: reef_cpu::Adapter,
    generation: u64,
}

impl Adapter {
    /// Prepares the pairs of each block for `network`.
    pub(crate) fn new(
        network: &Network,
        scale: f32,
        layers: impl IntoIterator<Item = Result<PlainLayer, EngineError>>,
    ) -> Result<Self, EngineError> {
        // Names what the cache keeps: no two adapters of a process share one, also when the files are equal.
        static GENERATION: AtomicU64 = AtomicU64::new(BASE_GENERATION + 1);
        let layers = layers.into_iter().map(|layer| Ok::<_, EngineError>(layer?.map(|pair| factors(pair, scale))));
        let served = reef_cpu::Adapter::new(network, layers)?
            .ok_or_else(|| EngineError::Adapter("its matrices do not fit this model".to_owned()))?;
        Ok(Self { served, generation: GENERATION.fetch_add(1, Ordering::Relaxed) })
    }

    /// The form that serves.
    pub(crate) fn served(&self) -> &reef_cpu::Adapter {
        &self.served
    }

    /// Its number; never used twice.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }
}

/// The number of the base model among generations.
pub(crate) const BASE_GENERATION: u64 = 0;

/// A pair in plain memory; of rank 0 where a layer carries none.
#[derive(Debug)]
pub(crate) struct PlainPair {
    /// Rank.
    pub rank: usize,
    /// `[r, i]`.
    pub a: Vec<f32>,
    /// `[o, r]`.
    pub b: Vec<f32>,
}

/// The pairs of one block, in their fixed order.
pub(crate) type PlainLayer = [PlainPair; PAIRS];

/// The scale goes into B. A projection whose B is zero has no factors.
fn factors(PlainPair { rank, a, mut b }: PlainPair, scale: f32) -> Option<Factors> {
    b.iter().any(|number| *number != 0.0).then(|| {
        b.iter_mut().for_each(|number| *number *= scale);
        Factors { rank, a, b }
    })
}
