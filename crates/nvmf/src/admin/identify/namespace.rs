//! Properties of a namespace: CNS 00h, 03h and 08h.

use nvmeof_wire::U16;
use nvmeof_wire::identify::{
    Csi, IndependentNamespace, LbaFormat, Namespace as Structure, NamespaceId, PreferredSizes,
    dlfeat, nmic, nsattr, nstat,
};

use crate::controller::Controller;
use crate::namespace::Namespace;

/// Identify Namespace (NVM 4.1.5.1): one LBA format, no metadata, no protection information.
///
/// Writes of one block are atomic, which 0 in the atomicity fields means.
pub(super) fn identify(controller: &Controller, namespace: &Namespace) -> Structure {
    let spec = &namespace.spec;
    let mut id = Structure::default();
    id.nsze.set(spec.blocks);
    id.ncap.set(spec.blocks);
    id.nuse.set(spec.blocks);
    id.nmic = nmic::SHARED;
    id.dlfeat = deallocate_features(namespace);
    id.nvmcap.set(u128::from(spec.blocks) * u128::from(spec.block_size));
    id.nsattr = attributes(namespace);
    id.nguid = spec.nguid;
    id.eui64 = spec.eui64;
    let max_blocks = controller.limits.max_transfer() >> namespace.block_shift;
    id.set_preferred_sizes(&within(&spec.preferred, max_blocks));
    id.lbaf[0] = LbaFormat { ms: U16::ZERO, lbads: namespace.block_shift, rp: 0 };
    id
}

/// The preferred sizes that a read or write of at most `max_blocks` blocks (MDTS) can have.
///
/// Some versions of Linux send commands beyond MDTS if NOIOB exceeds it.
fn within(sizes: &PreferredSizes, max_blocks: u32) -> PreferredSizes {
    let fits = |blocks: Option<u32>| blocks.filter(|blocks| *blocks <= max_blocks);
    PreferredSizes {
        write_granularity: fits(sizes.write_granularity),
        write_alignment: fits(sizes.write_alignment),
        optimal_write: fits(sizes.optimal_write),
        boundary: sizes.boundary.filter(|blocks| u32::from(*blocks) <= max_blocks),
        ..*sizes
    }
}

/// I/O Command Set Independent Identify Namespace (Base 5.17.2.8).
pub(super) fn independent(namespace: &Namespace) -> IndependentNamespace {
    IndependentNamespace {
        nmic: nmic::SHARED,
        nsattr: attributes(namespace),
        nstat: nstat::READY,
        ..IndependentNamespace::default()
    }
}

/// Namespace Identification Descriptors (Base 5.17.2.3): its identifiers and its command set.
pub(super) fn identifiers(namespace: &Namespace) -> Vec<NamespaceId> {
    let spec = &namespace.spec;
    let mut ids = Vec::with_capacity(4);
    if spec.eui64 != [0; 8] {
        ids.push(NamespaceId::Eui64(spec.eui64));
    }
    if spec.nguid != [0; 16] {
        ids.push(NamespaceId::Nguid(spec.nguid));
    }
    if spec.uuid != [0; 16] {
        ids.push(NamespaceId::Uuid(spec.uuid));
    }
    ids.push(NamespaceId::Csi(Csi::NVM));
    ids
}

/// DLFEAT: the value of deallocated blocks, and if Write Zeroes may deallocate.
fn deallocate_features(namespace: &Namespace) -> u8 {
    let spec = &namespace.spec;
    let mut features = 0;
    if spec.deallocate && spec.deallocate_reads_zero {
        features |= dlfeat::READ_ZEROES;
        if spec.write_zeroes {
            features |= dlfeat::WRITE_ZEROES_DEALLOCATES;
        }
    }
    features
}

fn attributes(namespace: &Namespace) -> u8 {
    if namespace.spec.read_only { nsattr::WRITE_PROTECTED } else { 0 }
}
