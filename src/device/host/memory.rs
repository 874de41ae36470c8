//! The host device's memory: a sparse in-memory file, mapped and remapped.
//!
//! The device's physical memory is a memfd. A physical handle is a range of that file, so one
//! handle mapped at two addresses shows the same bytes at both, as on a GPU. The file is sparse: a
//! page that was never written costs nothing. The pages of a released handle are punched out, which
//! returns them to the operating system and makes the next handle there read as zero.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Mutex;

use crate::device::mapping_table::{Handle, MappingTable};
use crate::device::{Addr, HandleCounts, Phys};
use crate::error::{Error, Result, refuse};
use crate::sync::plain::lock;

/// Smallest size of a handle and alignment of a mapping, as on the GPUs that this device replaces.
pub(in crate::device) const GRANULE: u64 = 2 << 20;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// The error of the system call `call`, which has just failed.
fn os_error(call: &'static str) -> Error {
    Error::Os {
        call,
        words: std::io::Error::last_os_error().to_string(),
    }
}

/// The error of a handle that the device has no memory for.
pub(in crate::device) fn exhausted(bytes: u64, free: u64, capacity: u64) -> Error {
    let words = format!(
        "CUDA_ERROR_OUT_OF_MEMORY: {bytes} bytes requested, {free} of the host device's {capacity} free"
    );
    Error::Driver {
        call: "create",
        code: OUT_OF_MEMORY,
        words,
    }
}

/// Free ranges of the file below `end`; everything above `end` is free too.
#[derive(Debug, Default)]
struct FileSpace {
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl FileSpace {
    /// Takes the lowest free range of `bytes`; grows `end` if there is none.
    fn take(&mut self, bytes: u64) -> u64 {
        let Some((&at, &len)) = self.free.iter().find(|&(_, &len)| len >= bytes) else {
            let at = self.end;
            self.end += bytes;
            return at;
        };
        self.free.remove(&at);
        if len > bytes {
            self.free.insert(at + bytes, len - bytes);
        }
        at
    }

    /// Returns a range and joins it with its free neighbours.
    fn put(&mut self, mut at: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.free.range(..at).next_back()
            && before + len == at
        {
            self.free.remove(&before);
            at = before;
            bytes += len;
        }
        if let Some(len) = self.free.remove(&(at + bytes)) {
            bytes += len;
        }
        if at + bytes == self.end {
            self.end = at;
        } else {
            self.free.insert(at, bytes);
        }
    }
}

#[derive(Debug)]
struct State {
    table: MappingTable,
    space: FileSpace,
    /// Length of the file in bytes; it only grows, because the file is sparse.
    file_bytes: u64,
    /// Bytes of handles whose memory is not freed.
    used: u64,
}

/// The process that opened a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process(u32);

impl Process {
    pub(super) fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns an error in a child of `fork`, which has none of the device's threads, and whose mappings are its
    /// parent's memory.
    pub(super) fn refuse_child(self) -> Result<()> {
        refuse!(self.0 != std::process::id() => "device",
            "it was opened before the fork that made this process: open another");
        Ok(())
    }
}

/// The physical memory and the address ranges of one host device.
#[derive(Debug)]
pub(in crate::device) struct Memory {
    process: Process,
    file: File,
    capacity: u64,
    state: Mutex<State>,
}

impl Memory {
    pub(in crate::device) fn new(capacity: u64) -> Result<Self> {
        // SAFETY: the name is a C string and the flags are valid for the call.
        let fd = unsafe { libc::memfd_create(c"warpool-host-device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(os_error("memfd_create"));
        }
        // SAFETY: the descriptor has just been made and nothing else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        let state = State {
            table: MappingTable::new(GRANULE),
            space: FileSpace::default(),
            file_bytes: 0,
            used: 0,
        };
        Ok(Self {
            process: Process::this(),
            file,
            capacity,
            state: Mutex::new(state),
        })
    }

    pub(in crate::device) fn free_bytes(&self) -> u64 {
        self.capacity - lock(&self.state).used
    }

    pub(in crate::device) fn count(&self, counts: &mut HandleCounts) {
        lock(&self.state).table.count(counts);
    }

    pub(in crate::device) fn reserve(&self, bytes: u64) -> Result<Addr> {
        let mut state = lock(&self.state);
        state.table.check_bytes(bytes)?;
        let whole = bytes
            .checked_add(GRANULE)
            .filter(|&whole| isize::try_from(whole).is_ok())
            .ok_or_else(|| {
                Error::invalid("bytes", format!("{bytes} is more than there are addresses"))
            })?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the system chooses the address, so nothing of ours is mapped over.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole as usize,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(os_error("mmap"));
        }
        let start = start as u64;
        let addr = start.next_multiple_of(GRANULE);
        let (head, tail) = (addr - start, start + whole - (addr + bytes));
        for (at, len) in [(start, head), (addr + bytes, tail)] {
            if len > 0 {
                // SAFETY: the surplus on both sides of the aligned range, mapped just above. A
                // failure leaks addresses, which costs nothing.
                unsafe { libc::munmap(at as *mut _, len as usize) };
            }
        }
        state.table.note_range(addr, bytes);
        Ok(addr)
    }

    pub(in crate::device) fn unreserve(&self, addr: Addr, bytes: u64) -> Result<()> {
        let mut state = lock(&self.state);
        state.table.check_unreserve(addr, bytes)?;
        // SAFETY: the mapping table says that this is a whole range of ours with nothing mapped in it.
        if unsafe { libc::munmap(addr as *mut _, bytes as usize) } != 0 {
            return Err(os_error("munmap"));
        }
        state.table.note_unreserve(addr);
        Ok(())
    }

    pub(in crate::device) fn create(&self, bytes: u64) -> Result<Phys> {
        self.process.refuse_child()?;
        let mut state = lock(&self.state);
        state.table.check_bytes(bytes)?;
        let free = self.capacity - state.used;
        if bytes > free {
            return Err(exhausted(bytes, free, self.capacity));
        }
        let offset = state.space.take(bytes);
        if let Err(error) = self.grow(&mut state, offset + bytes) {
            state.space.put(offset, bytes);
            return Err(error);
        }
        state.used += bytes;
        Ok(state.table.note_create(bytes, offset))
    }

    /// Makes the file at least `bytes` long.
    fn grow(&self, state: &mut State, bytes: u64) -> Result<()> {
        if bytes > state.file_bytes {
            self.file.set_len(bytes).map_err(|error| Error::Os {
                call: "ftruncate",
                words: error.to_string(),
            })?;
            state.file_bytes = bytes;
        }
        Ok(())
    }

    pub(in crate::device) fn release(&self, phys: Phys) -> Result<()> {
        self.process.refuse_child()?;
        let mut state = lock(&self.state);
        let handle = state.table.live(phys)?;
        if state.table.is_unmapped(phys) {
            self.punch(&handle)?;
        }
        if state.table.note_release(phys) {
            state.used -= handle.bytes;
            state.space.put(handle.token, handle.bytes);
        }
        Ok(())
    }

    /// Returns the pages of a handle to the operating system; the range then reads as zero.
    fn punch(&self, handle: &Handle) -> Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (at, len) = (handle.token as libc::off_t, handle.bytes as libc::off_t);
        // SAFETY: a range of our own file that is not mapped.
        if unsafe { libc::fallocate(self.file.as_raw_fd(), mode, at, len) } != 0 {
            return Err(os_error("fallocate"));
        }
        Ok(())
    }

    pub(in crate::device) fn map(&self, addr: Addr, bytes: u64, phys: Phys) -> Result<()> {
        self.process.refuse_child()?;
        let mut state = lock(&self.state);
        let handle = state.table.check_map(addr, bytes, phys)?;
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
        );
        let (fd, offset) = (self.file.as_raw_fd(), handle.token as libc::off_t);
        // SAFETY: the mapping table says that the place lies in a range of ours with nothing mapped there,
        // so only reserved addresses are mapped over.
        let at = unsafe {
            libc::mmap(
                addr as *mut _,
                bytes as usize,
                protection,
                flags,
                fd,
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            let error = os_error("mmap");
            // A failed fixed mapping may have removed the reservation: restore it.
            let _ = hold(addr, bytes);
            return Err(error);
        }
        state.table.note_map(addr, bytes, phys);
        Ok(())
    }

    pub(in crate::device) fn unmap(&self, addr: Addr, bytes: u64) -> Result<()> {
        self.process.refuse_child()?;
        let mut state = lock(&self.state);
        state.table.check_unmap(addr, bytes)?;
        hold(addr, bytes)?;
        if let Some(gone) = state.table.note_unmap(addr) {
            // After a failure the range is never reused: its next handle would not read as zero.
            self.punch(&gone)?;
            state.used -= gone.bytes;
            state.space.put(gone.token, gone.bytes);
        }
        Ok(())
    }
}

/// Reserves addresses in a range again, without memory behind them.
fn hold(addr: Addr, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: callers pass a place inside a range of ours that no queued work uses.
    let at = unsafe {
        libc::mmap(
            addr as *mut _,
            bytes as usize,
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        Err(os_error("mmap"))
    } else {
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (addr, bytes) in lock(&self.state).table.ranges() {
            // SAFETY: a whole range of ours; the device and its stream threads, which could use it,
            // are gone. A failure leaks addresses.
            unsafe { libc::munmap(addr as *mut _, bytes as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of the file that really lie in memory.
    fn resident(memory: &Memory) -> u64 {
        use std::os::unix::fs::MetadataExt;
        memory.file.metadata().unwrap().blocks() * 512
    }

    fn write(addr: Addr, byte: u8) {
        // SAFETY: tests write only to mapped memory.
        unsafe { (addr as *mut u8).write_volatile(byte) }
    }

    fn read(addr: Addr) -> u8 {
        // SAFETY: tests read only mapped memory.
        unsafe { (addr as *const u8).read_volatile() }
    }

    #[test]
    fn a_tebibyte_of_addresses_is_reserved_aligned_and_given_back() {
        let memory = Memory::new(64 << 30).unwrap();
        let addr = memory.reserve(1 << 40).unwrap();
        assert_eq!(addr % GRANULE, 0);
        memory.unreserve(addr, 1 << 40).unwrap();
    }

    #[test]
    fn memory_never_written_costs_nothing_and_released_memory_comes_back_zeroed() {
        let memory = Memory::new(64 << 30).unwrap();
        let addr = memory.reserve(64 << 30).unwrap();
        let big = memory.create(60 << 30).unwrap();
        memory.map(addr, 60 << 30, big).unwrap();
        assert_eq!(resident(&memory), 0);
        write(addr + (30 << 30), 7);
        assert!((1..=GRANULE).contains(&resident(&memory)));
        memory.release(big).unwrap();
        assert_eq!(
            read(addr + (30 << 30)),
            7,
            "a mapping keeps released memory"
        );
        memory.unmap(addr, 60 << 30).unwrap();
        assert_eq!(resident(&memory), 0);
        assert_eq!(memory.free_bytes(), 64 << 30);
        let again = memory.create(60 << 30).unwrap();
        memory.map(addr, 60 << 30, again).unwrap();
        assert_eq!(read(addr + (30 << 30)), 0);
    }

    #[test]
    fn file_space_is_used_again_first_fit_and_joins_its_neighbours() {
        let mut space = FileSpace::default();
        let at: Vec<u64> = (0..4).map(|_| space.take(10)).collect();
        assert_eq!(at, [0, 10, 20, 30]);
        space.put(0, 10);
        space.put(20, 10);
        assert_eq!(space.take(20), 40, "two holes apart do not make one");
        space.put(10, 10);
        assert_eq!(space.take(25), 0);
        space.put(40, 20);
        space.put(30, 10);
        assert_eq!(
            (space.end, space.free.len()),
            (25, 0),
            "free space at the end is no hole"
        );
    }
}
