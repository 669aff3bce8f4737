//! Reader of the legacy config of SPDK before 20.07: sections of keys with values. It becomes the
//! calls of the JSON config, which `spdk` reads.
//!
//! Packages for INI files expect `KEY = VALUE`. Here blanks separate a key from several values with
//! quotes, keys repeat, and so do sections. `shlex` splits a line.

pub(crate) mod keys;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::json::ImportError;
use crate::keys::{KeyTable, Treatment, is_excepted, treatment};
use crate::note::Notes;
use keys::{Form, Rule};

/// Bytes of a MiB, the unit of sizes.
const MIB: u64 = 1 << 20;
/// Default bytes of a block.
const BLOCK: u64 = 512;

/// A key with its values.
#[derive(Debug)]
struct Item {
    line: usize,
    key: String,
    values: Vec<String>,
}

/// A section with its keys.
#[derive(Debug)]
struct Section {
    line: usize,
    name: String,
    items: Vec<Item>,
}

impl Section {
    /// Returns the name without its number.
    fn kind(&self) -> &str {
        self.name.trim_end_matches(|c: char| c.is_ascii_digit())
    }

    fn place(&self) -> String {
        format!("line {} ([{}])", self.line, self.name)
    }

    fn place_of(&self, item: &Item) -> String {
        format!("line {} ([{}] {})", item.line, self.name, item.key)
    }

    fn all(&self, key: &str) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.key == key)
    }
}

/// The calls of a legacy config, and the lines that they come from.
#[derive(Debug)]
pub(crate) struct LegacyConf {
    /// The JSON config.
    pub(crate) value: Value,
    places: BTreeMap<String, String>,
}

impl LegacyConf {
    /// Returns the line of the legacy config that a path of the JSON config comes from.
    pub(crate) fn place(&self, path: &str) -> String {
        if let Some(subsystem) = path.strip_prefix("$.subsystems (") {
            return format!("subsystem ({subsystem}");
        }
        let mut rest = path;
        while rest.starts_with('$') {
            if let Some(place) = self.places.get(rest) {
                return place.clone();
            }
            match rest.rfind(['.', '[']) {
                Some(end) => rest = &rest[..end],
                None => return "the file".into(),
            }
        }
        path.to_owned()
    }
}

/// Returns true if the first line with contents is the name of a section.
pub(crate) fn is_legacy(text: &str) -> bool {
    let lines = text.lines().map(str::trim);
    let first = lines.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
    let name = first.and_then(|line| line.strip_prefix('[')?.strip_suffix(']'));
    name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Reads a legacy config.
pub(crate) fn read(text: &str, notes: &mut Notes) -> Result<LegacyConf, ImportError> {
    let sections = sections(text)?;
    let kinds: Vec<&str> = sections.iter().map(Section::kind).collect();
    if !kinds.contains(&"Subsystem") {
        let what = "it has sections, and none is [Subsystem1]".into();
        return Err(ImportError::NeitherFormat { what });
    }
    let mut calls = Calls::default();
    let has_transports = kinds.contains(&"Transport");
    for section in &sections {
        calls.section(section, has_transports, notes)?;
    }
    calls.listen_everywhere();
    let value = json!({ "subsystems": [
        { "subsystem": "bdev", "config": calls.parts[0] },
        { "subsystem": "nvmf", "config": calls.parts[1] },
    ] });
    Ok(LegacyConf { value, places: calls.places })
}

/// Splits a text into sections. A backslash at the end continues a line.
fn sections(text: &str) -> Result<Vec<Section>, ImportError> {
    let mut sections: Vec<Section> = Vec::new();
    let mut lines = text.lines().zip(1..);
    while let Some((first, line)) = lines.next() {
        let mut whole = first.trim().to_owned();
        if whole.is_empty() || whole.starts_with('#') {
            continue;
        }
        while whole.ends_with('\\') {
            whole.pop();
            let Some((next, _)) = lines.next() else { break };
            whole.push_str(next.trim_end());
        }
        if let Some(name) = whole.strip_prefix('[') {
            let Some(name) = name.strip_suffix(']') else {
                return Err(wrong(line, "a section has no \"]\" at the end of its line"));
            };
            sections.push(Section { line, name: name.trim().into(), items: Vec::new() });
            continue;
        }
        let Some(mut words) = shlex::split(&whole).filter(|words| !words.is_empty()) else {
            return Err(wrong(line, "a quote has no end"));
        };
        let key = words.remove(0);
        let Some(section) = sections.last_mut() else {
            return Err(wrong(line, "a key comes before the first section"));
        };
        section.items.push(Item { line, key, values: words });
    }
    Ok(sections)
}

fn wrong(line: usize, what: &str) -> ImportError {
    ImportError::NotConf { line, what: what.into() }
}

/// A parameter: its name in the call, its value and its place.
type Param = (&'static str, Value, String);

/// Calls for block devices, and for the target.
#[derive(Debug, Default)]
struct Calls {
    parts: [Vec<Value>; 2],
    places: BTreeMap<String, String>,
    /// Addresses of listeners, and subsystems without one.
    addresses: Vec<(Value, String)>,
    unreached: Vec<(String, String)>,
}

const BDEV: usize = 0;
const NVMF: usize = 1;

impl Calls {
    fn push(&mut self, part: usize, method: &str, place: String, params: Vec<Param>) {
        let path = format!("$.subsystems[{part}].config[{}]", self.parts[part].len());
        let mut map = Map::new();
        for (key, value, place) in params {
            self.places.insert(format!("{path}.params.{key}"), place);
            map.insert(key.to_owned(), value);
        }
        self.places.insert(path, place);
        self.parts[part].push(json!({ "method": method, "params": map }));
    }

    /// Adds the calls of a section.
    fn section(
        &mut self,
        section: &Section,
        has_transports: bool,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        let place = section.place();
        match section.kind() {
            "Global" => {
                let params = params(section, keys::GLOBAL, keys::GLOBAL_REST, notes);
                self.push(NVMF, "nvmf_set_config", place, params);
            }
            "Nvmf" => {
                let params = params(section, keys::NVMF, keys::NVMF_REST, notes);
                // With a transport, SPDK ignores these.
                if !has_transports && !params.is_empty() {
                    self.push(NVMF, "set_nvmf_target_options", place, params);
                }
            }
            "Transport" => {
                let params = params(section, keys::TRANSPORT, &[], notes);
                self.push(NVMF, "nvmf_create_transport", place, params);
            }
            "Nvme" => self.drives(section, notes)?,
            "Malloc" => self.memory(section, notes)?,
            "RAID" => {
                let rest = &[("NumDevices", keys::COUNTED)];
                let params = params(section, keys::RAID, rest, notes);
                self.push(BDEV, "bdev_raid_create", place, params);
            }
            "Subsystem" => self.subsystem(section, notes)?,
            kind => match keys::LISTS.iter().find(|list| list.section == kind) {
                Some(list) => self.list(section, list, notes)?,
                None => note_section(section, notes),
            },
        }
        Ok(())
    }

    /// Adds one call for each line of a section whose lines have the same values.
    fn list(
        &mut self,
        section: &Section,
        list: &keys::LineList,
        notes: &mut Notes,
    ) -> Result<(), ImportError> {
        for item in &section.items {
            let Some((_, method, names)) = list.keys.iter().find(|(key, ..)| *key == item.key)
            else {
                note_key(section, item, &[], notes);
                continue;
            };
            let place = section.place_of(item);
            if item.values.len() < list.least {
                let what = format!("[{}] {} has too few values", section.name, item.key);
                return Err(wrong(item.line, &what));
            }
            let named = names.iter().zip(&item.values);
            let mut params: Vec<Param> =
                named.map(|(key, value)| (*key, json!(value), place.clone())).collect();
            for value in item.values.iter().skip(names.len()) {
                notes.unsupported(&place, format!("the value \"{value}\" has no counterpart"));
            }
            if *method == "bdev_null_create" {
                null_blocks(item, &mut params)?;
            }
            self.push(BDEV, method, place, params);
        }
        Ok(())
    }

    fn drives(&mut self, section: &Section, notes: &mut Notes) -> Result<(), ImportError> {
        let rest = &[("TransportID", Treatment::Taken), keys::HOST_NQN];
        let mut options = Vec::new();
        let mut hotplug = Vec::new();
        for param in params(section, keys::NVME, rest, notes) {
            match param.0 {
                "enable" | "period_us" => hotplug.push(param),
                "reset" if param.1 == json!(true) => {
                    options.push(("action_on_timeout", json!("reset"), param.2));
                }
                "reset" => {}
                _ => options.push(param),
            }
        }
        if !options.is_empty() {
            self.push(BDEV, "bdev_nvme_set_options", section.place(), options);
        }
        if hotplug.iter().any(|(key, ..)| *key == "enable") {
            self.push(BDEV, "bdev_nvme_set_hotplug", section.place(), hotplug);
        }
        for item in section.all("TransportID") {
            let place = section.place_of(item);
            let [id, name, more @ ..] = item.values.as_slice() else {
                return Err(wrong(item.line, "TransportID needs an address and a name"));
            };
            for value in more {
                notes.not_applicable(&place, format!("\"{value}\" concerns fabrics only"));
            }
            let mut params: Vec<Param> = vec![("name", json!(name), place.clone())];
            for pair in id.split_whitespace() {
                let Some((key, value)) = pair.split_once([':', '=']) else { continue };
                let known = ["trtype", "traddr", "adrfam", "trsvcid", "subnqn", "hostaddr"];
                match known.iter().find(|known| known.eq_ignore_ascii_case(key)) {
                    Some(key) => params.push((key, json!(value), place.clone())),
                    None => notes.unsupported(&place, format!("\"{pair}\" has no counterpart")),
                }
            }
            self.push(BDEV, "bdev_nvme_attach_controller", place, params);
        }
        Ok(())
    }

    fn memory(&mut self, section: &Section, notes: &mut Notes) -> Result<(), ImportError> {
        let params = params(section, keys::MALLOC, &[], notes);
        let number = |name: &str, default: u64| -> Result<u64, ImportError> {
            let Some((_, value, _)) = params.iter().find(|(key, ..)| *key == name) else {
                return Ok(default);
            };
            let number = value.as_str().and_then(|text| text.parse().ok());
            number.ok_or_else(|| wrong(section.line, "[Malloc] has a value that is no number"))
        };
        let (count, size) = (number("count", 0)?, number("size", 0)?);
        let block = number("block_size", BLOCK)?.max(1);
        let Some(bytes) = size.checked_mul(MIB) else {
            return Err(wrong(section.line, "LunSizeInMB is too large"));
        };
        for index in 0..count.min(keys::MALLOC_MAX) {
            let place = section.place();
            let params = vec![
                ("name", json!(format!("Malloc{index}")), place.clone()),
                ("num_blocks", json!(bytes / block), place.clone()),
                ("block_size", json!(block), place.clone()),
            ];
            self.push(BDEV, "bdev_malloc_create", place, params);
        }
        Ok(())
    }

    fn subsystem(&mut self, section: &Section, notes: &mut Notes) -> Result<(), ImportError> {
        let params = params(section, keys::SUBSYSTEM, keys::SUBSYSTEM_REST, notes);
        let nqn = params.iter().find(|(key, ..)| *key == "nqn").map(|(_, value, _)| value.clone());
        let Some(nqn) = nqn else {
            return Err(wrong(section.line, &format!("[{}] has no NQN", section.name)));
        };
        self.push(NVMF, "nvmf_create_subsystem", section.place(), params);
        for item in section.all("Namespace") {
            let place = section.place_of(item);
            let names = ["bdev_name", "nsid", "uuid"];
            let values = names.iter().zip(&item.values).map(|(key, value)| (*key, json!(value)));
            let namespace: Map<String, Value> =
                values.map(|(key, value)| (key.to_owned(), value)).collect();
            let params = vec![
                ("nqn", nqn.clone(), place.clone()),
                ("namespace", Value::Object(namespace), place.clone()),
            ];
            self.push(NVMF, "nvmf_subsystem_add_ns", place, params);
        }
        for item in section.all("Host") {
            let place = section.place_of(item);
            let host = json!(item.values.first().map_or("", String::as_str));
            let params = vec![("nqn", nqn.clone(), place.clone()), ("host", host, place.clone())];
            self.push(NVMF, "nvmf_subsystem_add_host", place, params);
        }
        let name = nqn.as_str().unwrap_or_default();
        for item in section.all("Listen") {
            let place = section.place_of(item);
            let [kind, address, ..] = item.values.as_slice() else {
                return Err(wrong(item.line, "Listen needs a transport and an address"));
            };
            let (address, port) = address_and_port(address);
            let address = json!({ "trtype": kind, "traddr": address, "trsvcid": port });
            self.listen(name, address.clone(), place.clone());
            self.addresses.push((address, place));
        }
        if section.all("Listen").next().is_none() {
            self.unreached.push((name.to_owned(), section.place()));
        }
        Ok(())
    }

    fn listen(&mut self, nqn: &str, address: Value, place: String) {
        let params =
            vec![("nqn", json!(nqn), place.clone()), ("listen_address", address, place.clone())];
        self.push(NVMF, "nvmf_subsystem_add_listener", place, params);
    }

    /// Adds all listeners to subsystems without one: hosts reach them at every listener.
    fn listen_everywhere(&mut self) {
        for (nqn, place) in std::mem::take(&mut self.unreached) {
            for (address, _) in self.addresses.clone() {
                self.listen(&nqn, address, place.clone());
            }
        }
    }
}

/// Converts the size of a null device from MiB to blocks.
fn null_blocks(item: &Item, params: &mut Vec<Param>) -> Result<(), ImportError> {
    let number = |at: usize, default: u64| match item.values.get(at) {
        Some(text) => text.parse().map_err(|_| wrong(item.line, "a value of Dev is no number")),
        None => Ok(default),
    };
    let (mebibytes, block) = (number(1, 0)?, number(2, BLOCK)?.max(1));
    let blocks = mebibytes.checked_mul(MIB).map(|bytes| bytes / block);
    let blocks = blocks.ok_or_else(|| wrong(item.line, "the size of Dev is too large"))?;
    let place = params.first().map(|(.., place)| place.clone()).unwrap_or_default();
    params.retain(|(key, ..)| *key != "num_blocks" && *key != "block_size");
    params.push(("num_blocks", json!(blocks), place.clone()));
    params.push(("block_size", json!(block), place));
    Ok(())
}

/// Splits `192.0.2.1:4420`, `[::1]:4420`, or an address without a port.
fn address_and_port(text: &str) -> (&str, &str) {
    match text.rsplit_once(':') {
        Some((address, port)) if !address.contains(':') || address.ends_with(']') => {
            (address, port)
        }
        _ => (text, ""),
    }
}

/// Returns the parameters of the keys with a rule, and adds the notes of the others. The first line
/// of a key counts, as in SPDK.
fn params(section: &Section, rules: &[Rule], rest: KeyTable, notes: &mut Notes) -> Vec<Param> {
    let mut params: Vec<Param> = Vec::new();
    for item in &section.items {
        let Some(rule) = rules.iter().find(|rule| rule.key == item.key) else {
            note_key(section, item, rest, notes);
            continue;
        };
        let place = section.place_of(item);
        if params.iter().any(|(key, ..)| *key == rule.param) {
            notes.converted(&place, "the first line with this key counts");
            continue;
        }
        let text = item.values.first().map_or("", String::as_str);
        let value = match rule.form {
            Form::Text => json!(text),
            Form::List => json!(item.values),
            Form::Flag => match text.to_ascii_lowercase().as_str() {
                "yes" | "y" | "true" => json!(true),
                "no" | "n" | "false" => json!(false),
                _ => json!(text),
            },
            Form::Seconds => match text.parse::<u64>() {
                Ok(seconds) => json!(seconds.saturating_mul(1_000_000)),
                Err(_) => json!(text),
            },
        };
        params.push((rule.param, value, place));
    }
    params
}

/// Adds the note of a key without a rule.
fn note_key(section: &Section, item: &Item, rest: KeyTable, notes: &mut Notes) {
    let values = item.values.join(" ");
    let what = match treatment(rest, &item.key) {
        Some(Treatment::Unnoticed(_) | Treatment::Taken) => return,
        Some(Treatment::Lost { except, .. }) if is_excepted(&json!(values), except) => return,
        Some(Treatment::Lost { consequence, .. }) => consequence,
        None => "this key has no counterpart",
    };
    notes.unsupported(&section.place_of(item), format!("{what} ({values})"));
}

/// Adds the note of a section that has no reader.
fn note_section(section: &Section, notes: &mut Notes) {
    if section.items.is_empty() {
        return;
    }
    let place = section.place();
    match treatment(keys::SECTIONS, section.kind()) {
        Some(Treatment::Unnoticed(reason)) => notes.not_applicable(&place, reason),
        Some(Treatment::Lost { consequence, .. }) => notes.unsupported(&place, consequence),
        Some(Treatment::Taken) | None => {
            notes.unsupported(&place, "this section has no counterpart");
        }
    }
}
