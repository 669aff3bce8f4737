//! Pooled values, returned to their pool on drop.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pool of the values not in use.
#[derive(Debug)]
pub(super) struct FreePool<T>(Mutex<Vec<T>>);

impl<T> FreePool<T> {
    pub(super) fn new(values: Vec<T>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(values)))
    }

    /// Takes a value, if one is available; dropping the guard returns it.
    pub(super) fn take(self: &Arc<Self>) -> Option<Pooled<T>> {
        let value = ManuallyDrop::new(self.values().pop()?);
        Some(Pooled { value, shelf: Arc::clone(self) })
    }

    fn values(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pooled value, used as if it were owned.
pub(super) struct Pooled<T> {
    value: ManuallyDrop<T>,
    shelf: Arc<FreePool<T>>,
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Pooled<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Pooled<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and nothing uses `self` afterwards. An `Option` would be
        // checked at every access of the I/O path.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        self.shelf.values().push(value);
    }
}

impl<T: fmt::Debug> fmt::Debug for Pooled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loan").field(&*self.value).finish()
    }
}
