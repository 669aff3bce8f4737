//! Identities of namespaces, by which hosts recognize them.
//!
//! The UUID of a namespace follows its bytes, not their names in the config:
//!
//! ```text
//!   uuid in the config, and its `medium` is the actual one (or not given) ------> that uuid
//!     (a `medium` of a file without its creation time matches any file at the path)
//!   otherwise: the medium has an identity (drive, disk, layers on them) --------> from the medium
//!              it has none: a file's path and creation time, a name in memory --> from the place
//!                                                                                 and subsystem
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use nvmeof_api::document::Document;
use nvmeof_wire::Nqn;

use super::devices::Open;
use crate::config::identity::{eui64, nguid, of_medium, of_place, show};
use crate::config::{Config, DeviceKind, Namespace};

/// The identifiers of a namespace and their source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
    /// Identity of its bytes: the medium, or the place and the file that is there.
    pub(crate) medium: String,
    /// The UUID is derived from `medium`, and is not in the config.
    is_derived: bool,
    /// Medium that the config's UUID was saved for, if that is another one.
    saved_for: Option<String>,
    /// The config's UUID applies to its place, for any file there.
    is_for_place: bool,
    /// Another namespace seems to be on the same medium.
    is_shared: bool,
}

/// Identities of all namespaces, by subsystem and number.
pub(crate) type Identities = BTreeMap<(Nqn, u32), Identity>;

impl Identity {
    /// Returns true if the config lacks part of it.
    fn is_to_be_saved(&self) -> bool {
        self.is_derived || self.is_for_place
    }

    /// Returns the keys of identifiers that do not follow from the UUID.
    fn own(&self) -> Vec<&'static str> {
        let nguid = (self.nguid != nguid(&self.uuid)).then_some("nguid");
        nguid.into_iter().chain((self.eui64 != eui64(&self.uuid)).then_some("eui64")).collect()
    }

    /// Returns the keys of identifiers that are the same as before.
    fn kept_from(&self, before: &Self) -> Vec<&'static str> {
        let is_same = |key: &&'static str| match *key {
            "nguid" => self.nguid == before.nguid,
            _ => self.eui64 == before.eui64,
        };
        let uuid = (self.uuid == before.uuid).then_some("uuid");
        uuid.into_iter().chain(self.own().into_iter().filter(is_same)).collect()
    }
}

/// Properties of an open device that determine its identity.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceFacts<'a> {
    kind: &'a DeviceKind,
    /// The medium's own identity.
    medium: Option<&'a str>,
    /// Distinguishes its file from another one at the same path.
    origin: &'a str,
}

impl<'a> DeviceFacts<'a> {
    pub(super) fn of(open: &'a Open) -> Self {
        let medium = open.device.info().medium.as_deref();
        Self { kind: &open.config.kind, medium, origin: &open.origin }
    }
}

/// The source of a namespace's bytes: a medium, or a place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ByteSource {
    /// Text that the config uses.
    text: String,
    /// The text, plus what distinguishes the source from an earlier or later one at the same place.
    full: String,
    /// The identity belongs to the medium, wherever the medium is.
    is_own: bool,
}

/// Returns the identities of the namespaces of `config` on the open devices.
pub(super) fn identities<'a>(
    config: &Config,
    device: &impl Fn(&str) -> Option<DeviceFacts<'a>>,
) -> Identities {
    let all = config.subsystems.iter().flat_map(|subsystem| {
        subsystem.namespaces.iter().map(move |namespace| (&subsystem.nqn, namespace))
    });
    let sources: Vec<(&Nqn, &Namespace, ByteSource)> =
        all.filter_map(|(nqn, one)| Some((nqn, one, byte_source(&one.device, device)?))).collect();
    let users = Users::of(&sources);
    let one = |(nqn, namespace, source): &(&Nqn, &Namespace, ByteSource)| {
        let key = ((*nqn).clone(), namespace.nsid);
        (key, identity(nqn, namespace, source, users.share(nqn, namespace, source)))
    };
    sources.iter().map(one).collect()
}

/// Users of each source.
///
/// Two namespaces must not have the same UUID, because hosts would take them for one disk.
struct Users<'s> {
    /// Number of namespaces on each medium.
    of_media: BTreeMap<&'s str, u32>,
    /// The first namespace at each place, by subsystem.
    at_places: BTreeMap<(&'s Nqn, &'s str), u32>,
    /// UUIDs of the config.
    configured: BTreeSet<[u8; 16]>,
}

impl<'s> Users<'s> {
    fn of(sources: &'s [(&'s Nqn, &'s Namespace, ByteSource)]) -> Self {
        let (mut of_media, mut at_places) = (BTreeMap::new(), BTreeMap::new());
        for (nqn, namespace, source) in sources {
            if source.is_own {
                *of_media.entry(source.full.as_str()).or_insert(0) += 1;
            } else {
                let first = at_places.entry((*nqn, source.full.as_str())).or_insert(u32::MAX);
                *first = namespace.nsid.min(*first);
            }
        }
        let configured = sources.iter().filter_map(|(_, one, source)| source.configured(one));
        Self { of_media, at_places, configured: configured.collect() }
    }

    /// Returns true if another namespace has the UUID of this source.
    ///
    /// At a place, the namespace with the lowest number keeps the UUID that it had when it was
    /// alone.
    fn share(&self, nqn: &Nqn, namespace: &Namespace, source: &ByteSource) -> bool {
        let full = source.full.as_str();
        if source.is_own {
            return self.of_media.get(full).is_some_and(|count| *count > 1);
        }
        self.at_places.get(&(nqn, full)).is_some_and(|first| *first != namespace.nsid)
            || self.configured.contains(&of_place(nqn.as_str(), full))
    }
}

impl ByteSource {
    /// Returns the UUID in the config for a namespace on this source, if that UUID applies.
    fn configured(&self, namespace: &Namespace) -> Option<[u8; 16]> {
        namespace.uuid.filter(|_| self.is_saved(namespace) || namespace.medium.is_none())
    }

    /// Returns true if the config's UUID was saved for this source, or for any file at its place.
    fn is_saved(&self, namespace: &Namespace) -> bool {
        namespace.medium.as_ref().is_some_and(|medium| [&self.full, &self.text].contains(&medium))
    }
}

fn identity(nqn: &Nqn, namespace: &Namespace, source: &ByteSource, is_shared: bool) -> Identity {
    let saved_for = namespace.medium.clone().filter(|_| !source.is_saved(namespace));
    let is_for_place = saved_for.is_none()
        && namespace.medium.as_ref().is_some_and(|medium| *medium != source.full);
    let configured = source.configured(namespace);
    let uuid = configured.unwrap_or_else(|| match (source.is_own, is_shared) {
        (true, false) => of_medium(&source.full),
        (false, false) => of_place(nqn.as_str(), &source.full),
        // Hosts reject two disks with one UUID, and some drives are sold with identical
        // identifiers.
        (_, true) => of_place(nqn.as_str(), &format!("{}\n{}", source.full, namespace.nsid)),
    });
    Identity {
        uuid,
        nguid: namespace.nguid.unwrap_or_else(|| nguid(&uuid)),
        eui64: namespace.eui64.unwrap_or_else(|| eui64(&uuid)),
        medium: source.full.clone(),
        is_derived: configured.is_none(),
        saved_for,
        is_for_place,
        is_shared: is_shared && configured.is_none(),
    }
}

/// Finds the source of a device's bytes; `None` if the device is not open.
fn byte_source<'a>(
    name: &str,
    device: &impl Fn(&str) -> Option<DeviceFacts<'a>>,
) -> Option<ByteSource> {
    let facts = device(name)?;
    let of = |text: String| ByteSource { full: text.clone(), text, is_own: false };
    let around = |what: &str, base: ByteSource, rest: &str| ByteSource {
        text: format!("{what}({}){rest}", base.text),
        full: format!("{what}({}){rest}", base.full),
        ..base
    };
    Some(match facts.kind {
        // A layer on one device has the bytes of its base, a split only a part of them. Both
        // devices can be served.
        kind if !matches!(kind, DeviceKind::Split { .. })
            && let [base] = kind.bases() =>
        {
            around(&format!("{name}:"), byte_source(base, device)?, "")
        }
        _ if let Some(medium) = facts.medium => {
            ByteSource { is_own: true, ..of(medium.to_owned()) }
        }
        DeviceKind::File(file) => {
            let text = format!("file:{}", file.path.display());
            ByteSource { full: format!("{text}{}", facts.origin), ..of(text) }
        }
        DeviceKind::Nvme(drive) => of(format!("nvme:{}/{}", drive.pci, drive.nsid)),
        // The size is not part of it: a range that grew with its base is the same disk.
        DeviceKind::Split { base, offset, .. } => {
            around("split", byte_source(base, device)?, &format!("+{offset}"))
        }
        DeviceKind::Stripe { members, chunk } => {
            let members: Vec<ByteSource> =
                members.iter().map(|member| byte_source(member, device)).collect::<Option<_>>()?;
            let join = |part: fn(&ByteSource) -> &str| {
                let parts: Vec<&str> = members.iter().map(part).collect();
                format!("stripe({chunk};{})", parts.join(";"))
            };
            ByteSource { text: join(|one| &one.text), full: join(|one| &one.full), is_own: false }
        }
        kind => of(format!("{}:{name}", kind.name())),
    })
}

/// Returns warnings, one line each, about identities.
///
/// They report identities that changed, or that stayed although the bytes changed.
pub(super) fn identity_warnings(before: &Identities, now: &Identities) -> Vec<String> {
    let changed = now.iter().filter(|(key, now)| before.get(*key) != Some(*now));
    changed.flat_map(|(key, now)| doubts(key, before.get(key), now)).collect()
}

/// Returns warnings about the identity of one namespace.
fn doubts((nqn, nsid): &(Nqn, u32), before: Option<&Identity>, now: &Identity) -> Vec<String> {
    let (medium, uuid) = (&now.medium, show(&now.uuid));
    let mut said = Vec::new();
    if let Some(saved_for) = &now.saved_for {
        said.push(format!(
            "namespace {nsid} of {nqn} is on {medium}, but its uuid was saved for {saved_for}: hosts see another \
             disk, with UUID {uuid}; `save` keeps that; if this is the same disk, as a restored \
             copy, remove `medium` of the namespace in the config, so that its uuid is used"
        ));
    }
    if now.is_for_place {
        said.push(format!(
            "namespace {nsid} of {nqn}: its uuid counts for any file at the path that `medium` names; `save` \
             notes that it is for {medium}"
        ));
    }
    if now.is_shared {
        said.push(format!(
            "namespace {nsid} of {nqn}: another namespace is on {medium}, too, so UUID {uuid} \
             does not follow the medium alone; set uuid to distinguish them"
        ));
    }
    if let Some(before) = before.filter(|before| before.medium != *medium) {
        let kept = now.kept_from(before);
        if !kept.is_empty() {
            said.push(format!(
                "namespace {nsid} of {nqn} is on {medium} and was on {}, and keeps its {}, as the config says it: \
                 hosts take it for the same disk; set another {}, or none, if it is not",
                before.medium,
                kept.join(" and "),
                kept.join(" and ")
            ));
        }
    } else if now.saved_for.is_some() && !now.own().is_empty() {
        said.push(format!(
            "namespace {nsid} of {nqn}: its {} are as the config says it, and may be those of the disk that was there \
             before; set others, or none",
            now.own().join(" and ")
        ));
    }
    said
}

/// Adds the UUIDs in force to the document, with their media.
///
/// A UUID is written if the document lacks it, or does not name its file.
pub(super) fn with_uuids(document: &Document, identities: &Identities) -> Document {
    let mut document = document.clone();
    for subsystem in &mut document.subsystem {
        let Ok(nqn) = subsystem.nqn.parse::<Nqn>() else {
            debug_assert!(false, "a document that runs has valid NQNs");
            continue;
        };
        for namespace in &mut subsystem.namespace {
            let identity = identities.get(&(nqn.clone(), namespace.nsid));
            if let Some(identity) = identity.filter(|identity| identity.is_to_be_saved()) {
                namespace.uuid = Some(show(&identity.uuid));
                namespace.medium = Some(identity.medium.clone());
            }
        }
    }
    document
}

/// Makes the same changes to the config that belongs to the document.
pub(super) fn set_uuids(config: &mut Config, identities: &Identities) {
    for subsystem in &mut config.subsystems {
        for namespace in &mut subsystem.namespaces {
            let identity = identities.get(&(subsystem.nqn.clone(), namespace.nsid));
            if let Some(identity) = identity.filter(|identity| identity.is_to_be_saved()) {
                namespace.uuid = Some(identity.uuid);
                namespace.medium = Some(identity.medium.clone());
            }
        }
    }
}
