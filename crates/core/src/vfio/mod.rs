//! PCI functions handed to this process by VFIO.
