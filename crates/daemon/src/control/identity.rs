//! Identities of namespaces, by which hosts know them. A namespace's UUID follows its bytes, not the names that the
//! config has for them:
//!
//! ```text
//!   uuid in the config, and its `medium` is the one there is (or none is said) --> that one
//!     (a `medium` of a file that does not say when the file was made is any at its path)
//!   else: the medium has an identity (drive, disk, and what stands on those) ----> of the medium alone
//!         it has none: a file's path and birth, a name in memory ----------------> of the place, and the subsystem
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use nvmeof_api::document::Document;
use nvmeof_wire::Nqn;

use super::devices::Open;
use crate::config::identity::{eui64, nguid, of_medium, of_place, show};
use crate::config::{Config, DeviceKind, Namespace};

/// The identifiers of a namespace, and what they follow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uuid: [u8; 16],
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
    /// What tells its bytes from others: of the medium, or of the place where they are and the file that is there.
    pub(crate) medium: String,
    /// The UUID follows from that, and is not in the config.
    is_derived: bool,
    /// What the config's UUID was saved for, where that is another medium.
    saved_for: Option<String>,
    /// The config's UUID is for its place, whatever file is there.
    is_for_place: bool,
    /// Another namespace seems to be on the same medium.
    is_shared: bool,
}

/// Identities of all namespaces, by subsystem and number.
pub(crate) type Identities = BTreeMap<(Nqn, u32), Identity>;

impl Identity {
    /// Whether the config does not have all of it.
    fn is_to_be_saved(&self) -> bool {
        self.is_derived || self.is_for_place
    }
}

/// Facts about an open device that its identity follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceFacts<'a> {
    kind: &'a DeviceKind,
    /// The medium's own identity.
    medium: Option<&'a str>,
    /// When a file was made.
    created: Option<SystemTime>,
}

impl<'a> DeviceFacts<'a> {
    pub(super) fn of(open: &'a Open) -> Self {
        let medium = open.device.info().medium.as_deref();
        Self { kind: &open.config.kind, medium, created: open.created }
    }
}

/// The source of a namespace's bytes: a medium, or a place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ByteSource {
    /// As the config names it.
    text: String,
    /// With what tells it from another that was put there before or after.
    full: String,
    /// It is the medium's own, wherever that is.
    is_own: bool,
}

/// The identities of the namespaces of `config` over devices that are open.
pub(super) fn identities<'a>(
    config: &Config,
    device: &impl Fn(&str) -> Option<DeviceFacts<'a>>,
) -> Identities {
    let all = config.subsystems.iter().flat_map(|subsystem| {
        subsystem.namespaces.iter().map(move |namespace| (&subsystem.nqn, namespace))
    });
    let sources: Vec<(&Nqn, &Namespace, ByteSource)> =
        all.filter_map(|(nqn, one)| Some((nqn, one, byte_source(&one.device, device)?))).collect();
    let mut media = BTreeMap::new();
    for (.., source) in sources.iter().filter(|(.., source)| source.is_own) {
        *media.entry(source.full.as_str()).or_insert(0) += 1;
    }
    let one = |(nqn, namespace, source): &(&Nqn, &Namespace, ByteSource)| {
        let is_shared = media.get(source.full.as_str()).is_some_and(|count| *count > 1);
        let key = ((*nqn).clone(), namespace.nsid);
        (key, identity(nqn, namespace, source, is_shared))
    };
    sources.iter().map(one).collect()
}

fn identity(nqn: &Nqn, namespace: &Namespace, source: &ByteSource, is_shared: bool) -> Identity {
    let saved = namespace.medium.as_deref().filter(|medium| *medium != source.full);
    let is_for_place = saved == Some(source.text.as_str());
    let saved_for = saved.filter(|_| !is_for_place).map(str::to_owned);
    let configured = namespace.uuid.filter(|_| saved_for.is_none());
    let uuid = configured.unwrap_or_else(|| match (source.is_own, is_shared) {
        (true, false) => of_medium(&source.full),
        // Hosts refuse two disks of one UUID; some drives are sold with the same identifiers.
        (true, true) => of_place(nqn.as_str(), &format!("{}\n{}", source.full, namespace.nsid)),
        (false, _) => of_place(nqn.as_str(), &source.full),
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

/// Finds the source of a device's bytes; none if it is not open.
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
        // The same bytes as its base's, and yet both may be served.
        DeviceKind::Delay { base, .. } | DeviceKind::Fault { base, .. } => {
            around(&format!("{name}:"), byte_source(base, device)?, "")
        }
        _ if let Some(medium) = facts.medium => {
            ByteSource { is_own: true, ..of(medium.to_owned()) }
        }
        DeviceKind::Null { .. } => of(format!("null:{name}")),
        DeviceKind::Ram { .. } => of(format!("ram:{name}")),
        DeviceKind::File(file) => {
            let text = format!("file:{}", file.path.display());
            ByteSource { full: format!("{text}{}", created(facts.created)), ..of(text) }
        }
        DeviceKind::Nvme(drive) => of(format!("nvme:{}/{}", drive.pci, drive.nsid)),
        // Not the size: a range that grew with its base is the same disk.
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
    })
}

/// When a file was made, as part of its place: another file of the same name was made at another time.
fn created(at: Option<SystemTime>) -> String {
    let since = at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    since.map_or_else(String::new, |since| {
        format!(" born {}.{:09}", since.as_secs(), since.subsec_nanos())
    })
}

/// Warnings about identities that changed, or did not although the bytes did: one line each.
pub(super) fn identity_warnings(before: &Identities, now: &Identities) -> Vec<String> {
    let one = |((nqn, nsid), now): (&(Nqn, u32), &Identity)| {
        let before = before.get(&(nqn.clone(), *nsid));
        if before == Some(now) {
            return None;
        }
        let medium = &now.medium;
        let uuid = show(&now.uuid);
        if let Some(saved_for) = &now.saved_for {
            return Some(format!(
                "namespace {nsid} of {nqn} is on {medium}, but its uuid was saved for {saved_for}: hosts see another \
                 disk, with UUID {uuid}; `save` keeps that; if it is the same disk, as a copy that was put back, \
                 remove `medium` from it in the config, and its uuid counts"
            ));
        }
        if now.is_for_place {
            return Some(format!(
                "namespace {nsid} of {nqn}: its uuid counts for any file at the path that `medium` names; `save` \
                 notes that it is for {medium}"
            ));
        }
        if now.is_shared {
            return Some(format!(
                "namespace {nsid} of {nqn}: another namespace is on {medium}, too, so its UUID {uuid} does not \
                 follow the medium alone; set uuid to tell them apart"
            ));
        }
        let kept = before.filter(|before| before.uuid == now.uuid && before.medium != *medium);
        kept.map(|before| {
            format!(
                "namespace {nsid} of {nqn} is on {medium} and was on {}, and keeps its uuid {uuid}, as the config \
                 says it: hosts take it for the same disk; set another uuid, or none, if it is not",
                before.medium
            )
        })
    };
    now.iter().filter_map(one).collect()
}

/// The document with each UUID that is in force and not in it (or not with its file), and the medium that it is of.
pub(super) fn with_uuids(document: &Document, identities: &Identities) -> Document {
    let mut document = document.clone();
    for subsystem in &mut document.subsystem {
        let Ok(nqn) = subsystem.nqn.parse::<Nqn>() else { continue };
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

/// The same in the config that was made of the document.
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
