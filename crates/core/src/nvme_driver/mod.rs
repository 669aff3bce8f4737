//! The userspace NVMe driver.
//!
//! It knows a drive only through [`seam`]: registers, memory the drive reaches, interrupts, reset. What stands
//! behind the seam is a function handed over by VFIO ([`crate::vfio`]) or a controller in memory.

pub mod fake;
pub mod seam;
