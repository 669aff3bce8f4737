//! PCI functions as the system knows them: where they hang, what drives them, who uses them.
