//! Edits of a document, item by item.
//!
//! Each makes the whole edit or returns an error. The daemon validates the resulting document.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Device, Document, Listener, Namespace, Subsystem};
use crate::{ApiError, ErrorKind, Patch};

impl Document {
    /// Adds a device.
    ///
    /// # Errors
    /// The name is already in use.
    pub fn add_device(&mut self, device: Device) -> Result<(), ApiError> {
        if self.device(&device.name).is_some() {
            return Err(exists(format!("there is a device \"{}\" already", device.name), "name"));
        }
        self.device.push(device);
        Ok(())
    }

    /// Changes a device.
    ///
    /// # Errors
    /// The device does not exist, the patch is invalid, or it would change the name.
    pub fn patch_device(&mut self, name: &str, patch: &Patch<Device>) -> Result<(), ApiError> {
        let old = self.device.iter_mut().find(|one| one.name == name);
        let old = old.ok_or_else(|| no_device(name))?;
        let new = patched(old, patch)?;
        stays(new.name.as_str(), name, "name")?;
        *old = new;
        Ok(())
    }

    /// Removes a device.
    ///
    /// # Errors
    /// The device does not exist, or it is in use; the error names the users.
    pub fn remove_device(&mut self, name: &str) -> Result<(), ApiError> {
        self.device(name).ok_or_else(|| no_device(name))?;
        let users = self.users_of(name);
        if !users.is_empty() {
            let what = format!("device \"{name}\" is in use by {}", users.join(", "));
            return Err(ApiError::new(ErrorKind::Conflict, what).hint("remove these first"));
        }
        self.device.retain(|device| device.name != name);
        Ok(())
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// The name is already in use.
    pub fn add_subsystem(&mut self, subsystem: Subsystem) -> Result<(), ApiError> {
        if self.subsystem(&subsystem.nqn).is_some() {
            let what = format!("there is a subsystem {} already", subsystem.nqn);
            return Err(exists(what, "nqn"));
        }
        self.subsystem.push(subsystem);
        Ok(())
    }

    /// Changes a subsystem.
    ///
    /// # Errors
    /// The subsystem does not exist, the patch is invalid, or it would change the name.
    pub fn patch_subsystem(&mut self, nqn: &str, patch: &Patch<Subsystem>) -> Result<(), ApiError> {
        let old = self.subsystem_mut(nqn)?;
        let new = patched(old, patch)?;
        stays(new.nqn.as_str(), nqn, "nqn")?;
        *old = new;
        Ok(())
    }

    /// Removes a subsystem with its namespaces.
    ///
    /// # Errors
    /// The subsystem does not exist.
    pub fn remove_subsystem(&mut self, nqn: &str) -> Result<(), ApiError> {
        self.subsystem_mut(nqn)?;
        self.subsystem.retain(|subsystem| subsystem.nqn != nqn);
        for listener in &mut self.listener {
            // A listener that served only this subsystem serves discovery, at the same port.
            let port = listener.port();
            if let Some(served) = &mut listener.subsystems
                && served.iter().any(|served| served == nqn)
            {
                served.retain(|served| served != nqn);
                listener.port = Some(port);
            }
        }
        Ok(())
    }

    /// Adds a namespace.
    ///
    /// # Errors
    /// The subsystem or the device does not exist, or the NSID is already in use.
    pub fn add_namespace(&mut self, nqn: &str, namespace: Namespace) -> Result<(), ApiError> {
        let subsystem = self.subsystem_mut(nqn)?;
        if subsystem.namespace(namespace.nsid).is_some() {
            let what = format!("{nqn} has a namespace {} already", namespace.nsid);
            return Err(exists(what, "nsid"));
        }
        subsystem.namespace.push(namespace);
        Ok(())
    }

    /// Changes a namespace.
    ///
    /// # Errors
    /// The namespace does not exist, the patch is invalid, or it would change the NSID.
    pub fn patch_namespace(
        &mut self,
        nqn: &str,
        nsid: u32,
        patch: &Patch<Namespace>,
    ) -> Result<(), ApiError> {
        let mut all = self.subsystem_mut(nqn)?.namespace.iter_mut();
        let old = all.find(|one| one.nsid == nsid);
        let old = old.ok_or_else(|| no_namespace(nqn, nsid))?;
        let new = patched(old, patch)?;
        stays(&new.nsid, &nsid, "nsid")?;
        *old = new;
        Ok(())
    }

    /// Removes a namespace; its device stays.
    ///
    /// # Errors
    /// The namespace does not exist.
    pub fn remove_namespace(&mut self, nqn: &str, nsid: u32) -> Result<(), ApiError> {
        let subsystem = self.subsystem_mut(nqn)?;
        subsystem.namespace(nsid).ok_or_else(|| no_namespace(nqn, nsid))?;
        subsystem.namespace.retain(|namespace| namespace.nsid != nsid);
        Ok(())
    }

    /// Allows a host to connect; returns true if it was not listed before.
    ///
    /// # Errors
    /// The subsystem does not exist, or every host may connect to it.
    pub fn allow_host(&mut self, nqn: &str, host: &str) -> Result<bool, ApiError> {
        let hosts = self.hosts_mut(nqn)?;
        let is_new = !hosts.iter().any(|known| known == host);
        if is_new {
            hosts.push(host.to_owned());
        }
        Ok(is_new)
    }

    /// Removes a host from the hosts that may connect.
    ///
    /// # Errors
    /// The subsystem does not exist, every host may connect to it, or the host is not listed.
    pub fn forbid_host(&mut self, nqn: &str, host: &str) -> Result<(), ApiError> {
        let hosts = self.hosts_mut(nqn)?;
        if !hosts.iter().any(|known| known == host) {
            let what = format!("{host} is not among the hosts of {nqn}");
            return Err(ApiError::new(ErrorKind::NotFound, what));
        }
        hosts.retain(|known| known != host);
        Ok(())
    }

    /// Adds a listener.
    ///
    /// # Errors
    /// A listener with this type, address and port exists.
    pub fn add_listener(&mut self, listener: Listener) -> Result<(), ApiError> {
        if self.listener.iter().any(|one| one.id() == listener.id()) {
            let what = format!("there is a listener {} already", listener.id());
            return Err(exists(what, "address"));
        }
        self.listener.push(listener);
        Ok(())
    }

    /// Returns the subsystem with this name for editing.
    ///
    /// # Errors
    /// The subsystem does not exist.
    pub fn subsystem_mut(&mut self, nqn: &str) -> Result<&mut Subsystem, ApiError> {
        let found = self.subsystem.iter_mut().find(|subsystem| subsystem.nqn == nqn);
        found.ok_or_else(|| no_subsystem(nqn))
    }

    fn hosts_mut(&mut self, nqn: &str) -> Result<&mut Vec<String>, ApiError> {
        let subsystem = self.subsystem_mut(nqn)?;
        if subsystem.allow_any_host == Some(true) {
            let what = format!("every host may connect to {nqn}");
            let error = ApiError::new(ErrorKind::Conflict, what).at("allow-any-host");
            return Err(error.hint("set allow-any-host to null and hosts to a list first"));
        }
        Ok(subsystem.hosts.get_or_insert_default())
    }
}

/// Creates the error for an unknown subsystem.
#[must_use]
pub fn no_subsystem(nqn: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no subsystem {nqn}"))
}

/// Creates the error for an unknown namespace.
#[must_use]
pub fn no_namespace(nqn: &str, nsid: u32) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("{nqn} has no namespace {nsid}"))
}

/// Creates the error for an unknown device.
#[must_use]
pub fn no_device(name: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no device \"{name}\""))
}

fn exists(what: String, place: &str) -> ApiError {
    ApiError::new(ErrorKind::Conflict, what).at(place).hint("choose another, or change that one")
}

fn patched<T: Serialize + DeserializeOwned>(old: &T, patch: &Patch<T>) -> Result<T, ApiError> {
    patch.apply(old).map_err(|error| ApiError::new(ErrorKind::Malformed, error.to_string()))
}

/// Checks that a patch does not change a name; it may repeat it.
fn stays<T: PartialEq + ?Sized>(new: &T, old: &T, key: &str) -> Result<(), ApiError> {
    if new == old {
        return Ok(());
    }
    let error = ApiError::new(ErrorKind::Invalid, "it cannot be called otherwise").at(key);
    Err(error.hint("leave the key out, or remove it and add another"))
}

#[cfg(test)]
mod tests {
    use super::super::device::MemoryKeys;
    use super::super::{DeviceConfig, Size};
    use super::*;

    fn document() -> Document {
        let text = "[[listener]]\ntype = \"tcp\"\naddress = \"127.0.0.1\"\n\
                    [[device]]\nname = \"a\"\ntype = \"ram\"\nsize = 4096\n\
                    [[device]]\nname = \"b\"\ntype = \"split\"\nbase = \"a\"\n\
                    [[subsystem]]\nnqn = \"n\"\nhosts = []\n\
                    [[subsystem.namespace]]\nnsid = 1\ndevice = \"b\"\n\
                    [[subsystem]]\nnqn = \"open\"\nallow-any-host = true\n";
        Document::from_toml(text).unwrap()
    }

    fn patch<T: Serialize + DeserializeOwned>(text: &str) -> Patch<T> {
        serde_json::from_str(text).unwrap()
    }

    /// Asserts that the edit fails with this kind and changes nothing.
    fn refused(edit: impl Fn(&mut Document) -> Result<(), ApiError>, kind: ErrorKind) -> ApiError {
        let mut edited = document();
        let error = edit(&mut edited).unwrap_err();
        assert_eq!((error.error, &edited), (kind, &document()), "{error}");
        error
    }

    #[test]
    fn what_is_in_use_stays_and_it_is_said_by_whom() {
        let error = refused(|d| d.remove_device("a"), ErrorKind::Conflict);
        assert!(error.what.contains("device \"b\""), "{error}");
        let error = refused(|d| d.remove_device("b"), ErrorKind::Conflict);
        assert!(error.what.contains("namespace 1 of n"), "{error}");
        let mut edited = document();
        edited.remove_namespace("n", 1).unwrap();
        edited.remove_device("b").unwrap();
        edited.remove_device("a").unwrap();
        assert_eq!(edited.device, []);
    }

    #[test]
    fn names_that_do_not_exist_and_those_that_do() {
        let missing = ErrorKind::NotFound;
        refused(|d| d.remove_device("x"), missing);
        refused(|d| d.patch_device("x", &patch("{}")), missing);
        refused(|d| d.remove_subsystem("x"), missing);
        refused(|d| d.patch_subsystem("x", &patch("{}")), missing);
        refused(|d| d.remove_namespace("x", 1), missing);
        refused(|d| d.remove_namespace("n", 2), missing);
        refused(|d| d.patch_namespace("n", 2, &patch("{}")), missing);
        refused(|d| d.add_namespace("x", Namespace::default()), missing);
        refused(|d| d.allow_host("x", "h").map(drop), missing);
        refused(|d| d.forbid_host("n", "h"), missing);
        let there = ErrorKind::Conflict;
        refused(|d| d.add_device(document().device[0].clone()), there);
        refused(|d| d.add_subsystem(document().subsystem[0].clone()), there);
        refused(|d| d.add_namespace("n", document().subsystem[0].namespace[0].clone()), there);
        refused(|d| d.add_listener(document().listener[0].clone()), there);
        refused(|d| d.allow_host("open", "h").map(drop), there);
    }

    #[test]
    fn a_patch_changes_keys_and_never_a_name() {
        let mut edited = document();
        edited.patch_device("a", &patch(r#"{"name": "a", "size": "8KiB"}"#)).unwrap();
        let keys = MemoryKeys { size: Some(Size::Text("8KiB".into())), ..MemoryKeys::default() };
        assert_eq!(edited.device[0].kind, DeviceConfig::Ram(keys));
        edited.patch_namespace("n", 1, &patch(r#"{"weight": 3}"#)).unwrap();
        assert_eq!(edited.subsystem[0].namespace[0].weight, Some(3));
        refused(|d| d.patch_device("a", &patch(r#"{"name": "c"}"#)), ErrorKind::Invalid);
        refused(|d| d.patch_namespace("n", 1, &patch(r#"{"nsid": 2}"#)), ErrorKind::Invalid);
        refused(|d| d.patch_subsystem("n", &patch(r#"{"nqn": "m"}"#)), ErrorKind::Invalid);
        refused(|d| d.patch_device("a", &patch(r#"{"sice": 1}"#)), ErrorKind::Malformed);
    }

    #[test]
    fn hosts_come_and_go() {
        let mut edited = document();
        assert!(edited.allow_host("n", "h").unwrap());
        assert!(!edited.allow_host("n", "h").unwrap());
        edited.forbid_host("n", "h").unwrap();
        assert_eq!(edited, document());
    }
}
