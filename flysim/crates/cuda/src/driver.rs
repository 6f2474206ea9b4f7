// SPDX-License-Identifier: Apache-2.0
//! The few calls of the CUDA driver that the backend needs, each behind a safe function.
//!
//! cudarc's own safe layer is not used: it cannot set the blocking-sync flag at CUDA 12.0, ties module loading to
//! NVRTC, and puts events around every copy.

use std::ffi::{CString, c_void};
use std::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// Numbers that may be copied to and from the device byte by byte.
pub(crate) trait Plain: Copy + 'static {}
impl Plain for u8 {}
impl Plain for i16 {}
impl Plain for i32 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for f64 {}

/// What a device says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) ordinal: i32,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) capability: (i32, i32),
}

/// One device: its context, a stream and a loaded module. Dropped last, after all memory on it.
pub(crate) struct Device {
    handle: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    module: sys::CUmodule,
}

// SAFETY: the handles are process-wide, and every function makes the context current on its own thread first.
unsafe impl Send for Device {}
// SAFETY: as above; the driver serialises calls on one context.
unsafe impl Sync for Device {}

/// True when libcuda can be opened. Must be asked before anything else here: cudarc panics without it.
pub(crate) fn is_present() -> bool {
    // SAFETY: opens and closes the library, whose initialisers are the driver's own.
    unsafe { sys::is_culib_present() }
}

/// All devices of this machine.
pub(crate) fn identities() -> Result<Vec<Identity>, DriverError> {
    result::init()?;
    (0..result::device::get_count()?).map(identity).collect()
}

/// CUDA version of the driver, for instance (12, 4).
pub(crate) fn version() -> Result<(i32, i32), DriverError> {
    let mut version = 0;
    // SAFETY: writes one int, to a live variable.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
    Ok((version / 1000, version % 1000 / 10))
}

fn identity(ordinal: i32) -> Result<Identity, DriverError> {
    let device = result::device::get(ordinal)?;
    let uuid: Vec<String> =
        result::device::get_uuid(device)?.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
    let part = |range: std::ops::Range<usize>| uuid[range].concat();
    let uuid = format!("GPU-{}-{}-{}-{}-{}", part(0..4), part(4..6), part(6..8), part(8..10), part(10..16));
    use sys::CUdevice_attribute_enum as Attribute;
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Identity { ordinal, name: result::device::get_name(device)?, uuid, capability: (major, minor) })
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute_enum) -> Result<i32, DriverError> {
    // SAFETY: `device` came from cuDeviceGet.
    unsafe { result::device::get_attribute(device, which) }
}

impl Device {
    /// Takes the device's primary context, with waits that block instead of spinning, and loads `ptx` into it.
    pub(crate) fn open(ordinal: i32, ptx: &str) -> Result<Arc<Device>, DriverError> {
        let image = CString::new(ptx).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_PTX))?;
        let handle = result::device::get(ordinal)?;
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: `handle` is a device; flags may be set before the context is retained.
        unsafe { sys::cuDevicePrimaryCtxSetFlags_v2(handle, flags) }.result()?;
        // SAFETY: released once, in Drop.
        let context = unsafe { result::primary_ctx::retain(handle) }?;
        let null = std::ptr::null_mut();
        let mut device = Device { handle, context, stream: null, module: std::ptr::null_mut() };
        device.bind()?;
        device.stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        // SAFETY: `image` ends with a zero byte and lives through the call.
        device.module = unsafe { result::module::load_data(image.as_ptr().cast()) }?;
        Ok(Arc::new(device))
    }

    fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context lives as long as self.
        unsafe { result::ctx::set_current(self.context) }
    }

    /// A kernel of the loaded module.
    pub(crate) fn kernel(self: &Arc<Device>, name: &str) -> Result<Kernel, DriverError> {
        self.bind()?;
        let name = CString::new(name).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
        // SAFETY: the module is loaded, and the kernel keeps the device that owns it.
        let function = unsafe { result::module::get_function(self.module, name) }?;
        Ok(Kernel { device: Arc::clone(self), function })
    }

    /// Number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> Result<u32, DriverError> {
        let which = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(attribute(self.handle, which)?.max(1) as u32)
    }

    /// True when a grid may wait for itself.
    pub(crate) fn is_cooperative(&self) -> Result<bool, DriverError> {
        let which = sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH;
        Ok(attribute(self.handle, which)? != 0)
    }

    /// Waits, asleep, until the stream is empty.
    pub(crate) fn wait(&self) -> Result<(), DriverError> {
        self.bind()?;
        // SAFETY: our stream.
        unsafe { result::stream::synchronize(self.stream) }
    }

    /// Memory of `len` items, all bytes zero. Only called at attach.
    pub(crate) fn alloc<T: Plain>(self: &Arc<Device>, len: usize) -> Result<Buffer<T>, DriverError> {
        self.bind()?;
        let bytes = (len * size_of::<T>()).max(16);
        // SAFETY: freed once, by the buffer; zeroed before anybody can read it.
        let pointer = unsafe { result::malloc_sync(bytes) }?;
        let buffer = Buffer { device: Arc::clone(self), pointer, len, of: PhantomData };
        // In our stream: the plain call runs in the default one, which a non-blocking stream does not wait for, and
        // could so erase what is uploaded next.
        // SAFETY: `bytes` were allocated at `pointer`.
        unsafe { result::memset_d8_async(pointer, 0, bytes, self.stream) }?;
        Ok(buffer)
    }

    /// As `alloc`, filled from the host.
    pub(crate) fn upload<T: Plain>(self: &Arc<Device>, from: &[T]) -> Result<Buffer<T>, DriverError> {
        let mut buffer = self.alloc(from.len())?;
        buffer.write(from)?;
        Ok(buffer)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A lost device answers every call with an error; there is nobody to tell, and nothing else to do.
        let _ = self.bind();
        // SAFETY: each handle is ours, is null or valid, and is given back once.
        unsafe {
            if !self.module.is_null() {
                let _ = result::module::unload(self.module);
            }
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            let _ = result::primary_ctx::release(self.handle);
        }
    }
}

/// Device memory of one type.
pub(crate) struct Buffer<T: Plain> {
    device: Arc<Device>,
    pointer: sys::CUdeviceptr,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Buffer<T> {
    /// Address on the device, for kernel arguments.
    pub(crate) fn address(&self) -> u64 {
        self.pointer
    }

    /// Copies from the host to the start of the buffer, after everything before it in the stream.
    pub(crate) fn write(&mut self, from: &[T]) -> Result<(), DriverError> {
        assert!(from.len() <= self.len, "{} items into a buffer of {}", from.len(), self.len);
        self.device.bind()?;
        // SAFETY: the length was checked; the wait keeps `from` alive until the copy is done.
        unsafe { result::memcpy_htod_async(self.pointer, from, self.device.stream) }?;
        self.device.wait()
    }

    /// Starts a copy of the first `to.len()` items; they are there after `Device::wait`.
    pub(crate) fn read_pinned(&self, to: &mut Pinned<T>, len: usize) -> Result<(), DriverError> {
        assert!(len <= self.len && len <= to.len, "{len} items from {} to {}", self.len, to.len);
        self.device.bind()?;
        // SAFETY: lengths were checked; pinned memory stays where it is, and is only read after a wait.
        unsafe {
            let slice = std::slice::from_raw_parts_mut(to.pointer, len);
            result::memcpy_dtoh_async(slice, self.pointer, self.device.stream)
        }
    }

    /// Copies the whole buffer to the host and waits.
    pub(crate) fn read(&self, default: T) -> Result<Vec<T>, DriverError> {
        let mut to = vec![default; self.len];
        self.device.bind()?;
        // SAFETY: `to` has the buffer's length and lives until the wait is over.
        unsafe { result::memcpy_dtoh_async(&mut to, self.pointer, self.device.stream) }?;
        self.device.wait()?;
        Ok(to)
    }

    /// Zeroes the first `len` items, in stream order.
    pub(crate) fn clear(&mut self, len: usize) -> Result<(), DriverError> {
        assert!(len <= self.len);
        self.device.bind()?;
        // SAFETY: the length was checked.
        unsafe { result::memset_d8_async(self.pointer, 0, len * size_of::<T>(), self.device.stream) }
    }
}

impl<T: Plain> Drop for Buffer<T> {
    fn drop(&mut self) {
        // As in Device::drop, an error here means that the device is gone and the memory with it.
        let _ = self.device.bind().and_then(|()| self.device.wait());
        // SAFETY: allocated in `alloc`, freed here only.
        let _ = unsafe { result::free_sync(self.pointer) };
    }
}

/// Page-locked host memory, so that small copies neither stage nor allocate.
pub(crate) struct Pinned<T: Plain> {
    device: Arc<Device>,
    pointer: *mut T,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl<T: Plain + Send> Send for Pinned<T> {}

impl<T: Plain> Pinned<T> {
    /// Zeroed memory of `len` items.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Pinned<T>, DriverError> {
        device.bind()?;
        // SAFETY: freed once, in Drop; zeroed here, and zero bytes are a value of every Plain type.
        let pointer = unsafe {
            let pointer = result::malloc_host(len * size_of::<T>(), 0)?.cast::<T>();
            pointer.write_bytes(0, len);
            pointer
        };
        Ok(Pinned { device: Arc::clone(device), pointer, len })
    }

    /// The items; call after `Device::wait`.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: `len` items were initialised in `new`; copies into them have ended with the wait.
        unsafe { std::slice::from_raw_parts(self.pointer, self.len) }
    }
}

impl<T: Plain> Drop for Pinned<T> {
    fn drop(&mut self) {
        // A copy may still be under way when an error ended the run early.
        let _ = self.device.wait();
        // SAFETY: allocated in `new`, freed here only.
        let _ = unsafe { result::free_host(self.pointer.cast()) };
    }
}

/// A function on the device.
pub(crate) struct Kernel {
    device: Arc<Device>,
    function: sys::CUfunction,
}

// SAFETY: as for Device; the handle is valid while the module is, which `device` keeps.
unsafe impl Send for Kernel {}

impl Kernel {
    /// Blocks of `threads` that fit one multiprocessor at a time.
    pub(crate) fn blocks_per_multiprocessor(&self, threads: u32) -> Result<u32, DriverError> {
        self.device.bind()?;
        // SAFETY: a function of a loaded module.
        let blocks = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(self.function, threads as i32, 0)
        }?;
        Ok(blocks.max(0) as u32)
    }

    /// Registers per thread, and bytes that did not fit into them.
    pub(crate) fn footprint(&self) -> Result<(i32, i32), DriverError> {
        use sys::CUfunction_attribute_enum as Attribute;
        // SAFETY: a function of a loaded module.
        let get = |which| unsafe { result::function::get_function_attribute(self.function, which) };
        Ok((get(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?, get(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?))
    }

    /// Launches a grid whose blocks are all resident, so that they may wait for one another.
    ///
    /// # Safety
    /// `params` must be the kernel's one parameter, and every address in it must be of live memory that is large
    /// enough for what the kernel does with it, until the next wait.
    pub(crate) unsafe fn launch_cooperative<P: Copy>(
        &self,
        blocks: u32,
        threads: u32,
        params: &P,
    ) -> Result<(), DriverError> {
        self.device.bind()?;
        let mut arguments = [std::ptr::from_ref(params).cast_mut().cast::<c_void>()];
        // SAFETY: the caller's promise; the driver copies the parameter before it returns.
        unsafe {
            result::launch_cooperative_kernel(
                self.function,
                (blocks, 1, 1),
                (threads, 1, 1),
                0,
                self.device.stream,
                &mut arguments,
            )
        }
    }

    /// Launches an ordinary grid of one parameter per argument.
    ///
    /// # Safety
    /// As `launch_cooperative`; `arguments` point at live values of the kernel's parameter types, in order.
    pub(crate) unsafe fn launch(
        &self,
        blocks: u32,
        threads: u32,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.device.bind()?;
        let (grid, block) = ((blocks, 1, 1), (threads, 1, 1));
        // SAFETY: the caller's promise.
        unsafe { result::launch_kernel(self.function, grid, block, 0, self.device.stream, arguments) }
    }
}
