//! Sums of tensors over the GPUs of one machine, by NCCL, whose library is loaded when it is asked for.
//! `Reduce` calls it once all ranks have said over their connection that they are there: NCCL itself waits for a rank that
//! died for ever. It knows no gradient.
#![expect(unsafe_code, reason = "NCCL takes addresses in the memory of a GPU")]

use std::ffi::{c_int, c_void};

use cudarc::driver;
use cudarc::nccl::{result, sys};
use tch::{Cuda, Device, Kind, Tensor};

use crate::error::EngineError;

/// Bytes of what names a group of ranks.
pub(super) const ID_BYTES: usize = 128;

/// One rank of a group.
#[derive(Debug)]
pub(super) struct Nccl {
    group: sys::ncclComm_t,
    index: usize,
}

// SAFETY: NCCL lets any thread use a group, one at a time, which `&mut self` and the lock around it see to.
unsafe impl Send for Nccl {}

fn refused(problem: impl std::fmt::Display) -> EngineError {
    let remedy = "see that libnccl.so is a link to libnccl.so.2 on the path of libraries, or use training.reduce: tcp";
    EngineError::Device { device: "nccl".to_owned(), problem: format!("{problem}; {remedy}") }
}

/// Is its library there?
fn present() -> Result<(), EngineError> {
    // SAFETY: it loads the library, whose initialisers are its own, or does not find it.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(refused("its library cannot be loaded"))
}

/// What names a new group, which every rank must get.
pub(super) fn new_id() -> Result<Vec<u8>, EngineError> {
    present()?;
    let id = result::get_uniqueid().map_err(|error| refused(format!("no group can be made ({:?})", error.0)))?;
    Ok(id.internal.iter().map(|byte| byte.to_ne_bytes()[0]).collect())
}

impl Nccl {
    /// Joins the group; waits until every rank has.
    pub fn join(id: &[u8], (rank, world): (usize, usize), device: Device) -> Result<Self, EngineError> {
        let Device::Cuda(index) = device else {
            return Err(refused("training.reduce: nccl needs training.device: cuda:N, a GPU for each worker"));
        };
        present()?;
        let bytes = <[u8; ID_BYTES]>::try_from(id).map_err(|_| refused("the group's id is no id"))?;
        let id = sys::ncclUniqueId { internal: bytes.map(|byte| std::ffi::c_char::from_ne_bytes([byte])) };
        let number = |number: usize| c_int::try_from(number).map_err(|_| refused("there are too many ranks"));
        let (rank, world, ordinal) = (number(rank)?, number(world)?, number(index)?);
        on_device(ordinal)?;
        let mut group = std::ptr::null_mut();
        // SAFETY: `group` is a place for the result; the calling thread's device is the tensors', see above.
        unsafe { result::comm_init_rank(&raw mut group, world, id, rank) }
            .map_err(|error| refused(format!("the group cannot be joined ({:?})", error.0)))?;
        Ok(Self { group, index })
    }

    /// Makes each tensor the sum of all ranks' tensors at its place.
    pub fn sum(&mut self, tensors: &mut [Tensor]) -> Result<(), EngineError> {
        let failed = |error: result::NcclError| refused(format!("a sum failed ({:?})", error.0));
        result::group_start().map_err(failed)?;
        for tensor in tensors.iter_mut() {
            let kind = match tensor.kind() {
                Kind::Float => sys::ncclDataType_t::ncclFloat32,
                Kind::Double => sys::ncclDataType_t::ncclFloat64,
                other => return Err(refused(format!("{other:?} is not added up"))),
            };
            if tensor.device() != Device::Cuda(self.index) || !tensor.is_contiguous() {
                return Err(refused(format!("a tensor on {:?} is not the group's", tensor.device())));
            }
            let place: *mut c_void = tensor.data_ptr();
            // SAFETY: the tensor has `numel` numbers of this kind, one after the other, on the group's device; it lives
            // until the device has done it, below. The stream is libtorch's own default one, so what wrote the tensor
            // is done before and what reads it comes after.
            unsafe {
                result::all_reduce(
                    place,
                    place,
                    tensor.numel(),
                    kind,
                    sys::ncclRedOp_t::ncclSum,
                    self.group,
                    std::ptr::null_mut(),
                )
            }
            .map_err(failed)?;
        }
        result::group_end().map_err(failed)?;
        Cuda::synchronize(i64::try_from(self.index).unwrap_or_default());
        Ok(())
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: the group is this rank's and is not used any more. Aborting waits for no other rank.
        let _ = unsafe { result::comm_abort(self.group) };
    }
}

/// Makes a GPU the one that this thread's calls of CUDA mean, as libtorch's own guard does for a while.
fn on_device(ordinal: c_int) -> Result<(), EngineError> {
    // SAFETY: it loads the driver's library, or does not find it.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err(refused("the driver of NVIDIA cannot be loaded"));
    }
    let failed = |error: driver::result::DriverError| refused(format!("the GPU cannot be used ({error:?})"));
    driver::result::init().map_err(failed)?;
    let device = driver::result::device::get(ordinal).map_err(failed)?;
    // SAFETY: the device was found; its context is the one that libtorch uses, and is kept for good.
    let context = unsafe { driver::result::primary_ctx::retain(device) }.map_err(failed)?;
    // SAFETY: the context is alive.
    unsafe { driver::result::ctx::set_current(context) }.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_of_its_own_or_the_library_is_told_to_be_absent() {
        match present() {
            Ok(()) => {
                let ids = [new_id().expect("an id"), new_id().expect("another")];
                assert!(ids.iter().all(|id| id.len() == ID_BYTES) && ids[0] != ids[1]);
            }
            Err(absent) => {
                let told = new_id().expect_err("no library").to_string();
                assert_eq!(told, absent.to_string());
                assert!(told.contains("libnccl.so.2") && told.contains("training.reduce: tcp"), "{told}");
            }
        }
    }

    #[test]
    fn the_processor_is_refused_before_anything_is_loaded() {
        let refused = Nccl::join(&[0; ID_BYTES], (0, 2), Device::Cpu).expect_err("no GPU").to_string();
        assert!(refused.contains("training.device: cuda:N"), "{refused}");
    }

    #[test]
    fn an_id_of_another_length_is_refused() {
        assert!(Nccl::join(&[0; 3], (0, 2), Device::Cuda(0)).is_err());
    }
}
