//! Handles to shared values: numbers that are never reused.

use std::sync::{Arc, PoisonError, RwLock};

struct Slot<T> {
    /// Raised when the slot is emptied, so that an old number finds nothing.
    generation: u32,
    value: Option<Arc<T>>,
}

struct Slots<T> {
    slots: Vec<Slot<T>>,
    /// Empty slots whose generation can still be raised.
    free: Vec<u32>,
    len: u64,
}

/// Values by number. A number consists of a slot and its generation; 0 is never used.
pub(super) struct Table<T> {
    slots: RwLock<Slots<T>>,
}

fn split(key: u64) -> (usize, u32) {
    ((key & u64::from(u32::MAX)) as usize, (key >> 32) as u32)
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            slots: RwLock::new(Slots {
                slots: Vec::new(),
                free: Vec::new(),
                len: 0,
            }),
        }
    }

    /// Adds a value and returns its number; `None` if there are 2^32 values already.
    pub(super) fn insert(&self, value: Arc<T>) -> Option<u64> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let at = match table.free.pop() {
            Some(at) => at,
            None => {
                let at = u32::try_from(table.slots.len()).ok()?;
                table.slots.push(Slot {
                    generation: 1,
                    value: None,
                });
                at
            }
        };
        let slot = &mut table.slots[at as usize];
        slot.value = Some(value);
        let key = u64::from(slot.generation) << 32 | u64::from(at);
        table.len += 1;
        Some(key)
    }

    pub(super) fn get(&self, key: u64) -> Option<Arc<T>> {
        let (at, generation) = split(key);
        let table = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let slot = table
            .slots
            .get(at)
            .filter(|slot| slot.generation == generation)?;
        slot.value.clone()
    }

    pub(super) fn remove(&self, key: u64) -> Option<Arc<T>> {
        let (at, generation) = split(key);
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let slot = table
            .slots
            .get_mut(at)
            .filter(|slot| slot.generation == generation)?;
        let value = slot.value.take()?;
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            table.free.push(at as u32);
        }
        table.len -= 1;
        Some(value)
    }

    pub(super) fn len(&self) -> u64 {
        self.slots
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len
    }

    /// Removes and returns every value, for an owner that is being dropped.
    pub(super) fn drain(&self) -> Vec<Arc<T>> {
        let mut table = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        table.len = 0;
        table
            .slots
            .iter_mut()
            .filter_map(|slot| slot.value.take())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_number_finds_nothing_even_after_its_slot_is_used_again() {
        let table = Table::new();
        let first = table.insert(Arc::new("first")).unwrap();
        assert_eq!(table.remove(first).as_deref(), Some(&"first"));
        let second = table.insert(Arc::new("second")).unwrap();
        assert_ne!(first, second);
        assert_eq!(split(first).0, split(second).0);
        assert!(
            table.get(first).is_none() && table.remove(first).is_none() && table.get(0).is_none()
        );
        assert_eq!(table.get(second).as_deref(), Some(&"second"));
        assert_eq!(table.len(), 1);
    }
}
