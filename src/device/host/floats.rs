//! The mode of floating-point arithmetic that the kernels' source expects: round to nearest, nothing flushed to zero.
//!
//! A thread inherits the mode of the thread that started it. A library built with fast arithmetic changes the mode
//! of the thread that loads it.

/// The default mode on this thread, until it is dropped.
pub(super) struct DefaultFloats {
    /// The mode before, if it was another.
    before: Option<u64>,
}

impl DefaultFloats {
    pub(super) fn set() -> Self {
        let before = mode::get();
        let is_other = before & mode::CONTROL != mode::DEFAULT;
        if is_other {
            mode::set(before & !mode::CONTROL | mode::DEFAULT);
        }
        Self {
            before: is_other.then_some(before),
        }
    }
}

impl Drop for DefaultFloats {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            mode::set(before);
        }
    }
}

/// MXCSR: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.2.3.
#[cfg(target_arch = "x86_64")]
mod mode {
    use std::arch::asm;

    /// All exceptions masked.
    pub(super) const DEFAULT: u64 = 0x1F80;
    /// All control bits, without the six exception flags.
    pub(super) const CONTROL: u64 = 0xFFC0;

    pub(super) fn get() -> u64 {
        let mut mode = 0u32;
        // SAFETY: the register is stored to the word, and nothing else changes.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags)) };
        u64::from(mode)
    }

    pub(super) fn set(mode: u64) {
        let mode = mode as u32;
        // SAFETY: no reserved bit is set, as it comes from the register; Rust code runs in the default mode, or in
        // the one it was called in.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack)) };
    }
}

/// FPCR: Arm Architecture Reference Manual for A-profile, C5.2.8.
#[cfg(target_arch = "aarch64")]
mod mode {
    use std::arch::asm;

    pub(super) const DEFAULT: u64 = 0;
    pub(super) const CONTROL: u64 = u64::MAX;

    pub(super) fn get() -> u64 {
        let mode;
        // SAFETY: only reads the register.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nomem, nostack, preserves_flags)) };
        mode
    }

    pub(super) fn set(mode: u64) {
        // SAFETY: the same as on x86-64.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nomem, nostack, preserves_flags)) };
    }
}

/// On other processors the default mode is assumed.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mode {
    pub(super) const DEFAULT: u64 = 0;
    pub(super) const CONTROL: u64 = 0;

    pub(super) fn get() -> u64 {
        0
    }

    pub(super) fn set(_: u64) {}
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_is_the_default_for_as_long_as_is_asked_for_and_then_what_it_was() {
        let own = mode::get();
        // Flush to zero, denormals are zero, and rounding towards minus infinity.
        let fast = own | 0x8040 | 0x2000;
        for before in [own, fast] {
            mode::set(before);
            let default = DefaultFloats::set();
            let within = mode::get();
            drop(default);
            let after = mode::get();
            mode::set(own);
            assert_eq!(within & mode::CONTROL, mode::DEFAULT);
            assert_eq!(after & mode::CONTROL, before & mode::CONTROL);
        }
    }

    #[test]
    fn a_host_call_computes_in_the_default_mode_whatever_that_of_the_thread_that_made_its_stream() {
        let own = mode::get();
        mode::set(own | 0x8040);
        let device = crate::Device::host().expect("the host device");
        let stream = device.stream().expect("a stream");
        mode::set(own);
        let (tell, told) = std::sync::mpsc::channel();
        let work = Box::new(move || _ = tell.send(mode::get()));
        let queued = device.backend().host_call(stream.raw(), work);
        queued.expect("queued");
        assert_eq!(told.recv().expect("it runs") & mode::CONTROL, mode::DEFAULT);
    }
}
