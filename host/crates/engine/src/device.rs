//! Where training computes: the processor, or a GPU of NVIDIA.
//! The engine asks it when it reads the weights that train. Reef links libtorch's part for the processor only; the part for
//! CUDA is a library beside it, which is loaded when it is asked for and registers itself. Serving computes on the
//! processor in any case.
#![expect(unsafe_code, reason = "a library registers itself by being loaded, which tch has no call for")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::EngineError;

/// libtorch's part for CUDA, where the others of libtorch are.
const CUDA_LIBRARY: &CStr = c"libtorch_cuda.so";
/// Devices of one machine.
const DEVICES_MAX: usize = 64;

/// What training is to compute on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TrainingDevice {
    /// The first GPU that can be used, else the processor.
    Auto,
    /// The processor.
    #[default]
    Cpu,
    /// This GPU.
    Cuda(usize),
}

impl fmt::Display for TrainingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl FromStr for TrainingDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let index = |text: &str| text.parse().ok().filter(|index| *index < DEVICES_MAX);
        match (text, text.strip_prefix("cuda:").and_then(index)) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            (_, Some(index)) => Ok(Self::Cuda(index)),
            _ => Err(format!("'{text}' is no device; use auto, cpu or cuda:N, as in cuda:0")),
        }
    }
}

impl From<TrainingDevice> for String {
    fn from(device: TrainingDevice) -> Self {
        device.to_string()
    }
}

impl TryFrom<String> for TrainingDevice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl TrainingDevice {
    /// The device of one of several ranks: each has a GPU of its own, beginning with this one.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        match self {
            Self::Cuda(first) => Self::Cuda(first + rank),
            other => other,
        }
    }

    /// The device, ready to compute on.
    ///
    /// # Errors
    /// `Device` when a GPU is asked for and cannot be used.
    pub(crate) fn ready(self) -> Result<tch::Device, EngineError> {
        match self {
            Self::Cpu => Ok(tch::Device::Cpu),
            Self::Cuda(index) => {
                cuda(index).map_err(|problem| EngineError::Device { device: self.to_string(), problem })
            }
            Self::Auto => Ok(cuda(0).unwrap_or_else(|problem| {
                tracing::info!(problem, "training.device auto: training computes on the processor");
                tch::Device::Cpu
            })),
        }
    }
}

fn cuda(index: usize) -> Result<tch::Device, String> {
    load(CUDA_LIBRARY)?;
    let count = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    match count {
        0 => Err("libtorch finds no GPU; see that `nvidia-smi` lists one".to_owned()),
        count if index < count => Ok(tch::Device::Cuda(index)),
        count => Err(format!("this machine has {count} of them; use one below cuda:{count}")),
    }
}

unsafe extern "C" {
    /// POSIX: loads a library into the process, or finds it there.
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    /// POSIX: why the last `dlopen` of this thread failed.
    fn dlerror() -> *const c_char;
}

/// Resolve all symbols now, and offer those of the library to others: `RTLD_NOW | RTLD_GLOBAL` of Linux.
const NOW_AND_GLOBAL: c_int = 0x2 | 0x100;

/// Loads a library for good.
fn load(library: &CStr) -> Result<(), String> {
    // SAFETY: the name is a C string that outlives the call. Libraries run code of their own when they are loaded; this
    // one is libtorch's and is found on the path that the program's other libraries were found on.
    if !unsafe { dlopen(library.as_ptr(), NOW_AND_GLOBAL) }.is_null() {
        return Ok(());
    }
    // SAFETY: after a failure `dlerror` gives a C string of this thread that lives until its next call here.
    let told = unsafe { dlerror() };
    // SAFETY: as above, and it was checked not to be null.
    let told =
        if told.is_null() { "no reason given".into() } else { unsafe { CStr::from_ptr(told) }.to_string_lossy() };
    let name = library.to_string_lossy();
    Err(format!(
        "{name} cannot be loaded ({told}); put libtorch with CUDA where LIBTORCH points, or use training.device: cpu"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_read_and_written_by_name() {
        for text in ["auto", "cpu", "cuda:0", "cuda:7"] {
            assert_eq!(text.parse::<TrainingDevice>().expect(text).to_string(), text);
        }
        for wrong in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:64", "CPU"] {
            assert!(wrong.parse::<TrainingDevice>().expect_err(wrong).contains("cuda:0"), "{wrong}");
        }
        assert_eq!(TrainingDevice::default(), TrainingDevice::Cpu);
        assert_eq!(TrainingDevice::Cuda(1).of_rank(2), TrainingDevice::Cuda(3));
        assert_eq!(TrainingDevice::Auto.of_rank(2), TrainingDevice::Auto);
    }

    #[test]
    fn a_library_that_is_not_there_is_named_with_the_remedy() {
        let told = load(c"libreef_no_such_library.so").expect_err("it is not there");
        assert!(told.contains("libreef_no_such_library.so") && told.contains("training.device: cpu"), "{told}");
        assert_eq!(load(c"libc.so.6"), Ok(()));
    }

    #[test]
    fn a_gpu_is_used_or_refused_and_auto_never_fails() {
        let some = TrainingDevice::Auto.ready().expect("auto");
        match TrainingDevice::Cuda(0).ready() {
            Ok(device) => assert_eq!(some, device),
            Err(refused) => {
                assert_eq!(some, tch::Device::Cpu);
                assert!(refused.to_string().starts_with("device cuda:0: "), "{refused}");
            }
        }
        assert!(TrainingDevice::Cuda(DEVICES_MAX - 1).ready().is_err(), "no machine has so many");
        assert_eq!(TrainingDevice::Cpu.ready().expect("cpu"), tch::Device::Cpu);
    }
}
