//! Identity of this host towards targets.

use std::fs;

use anyhow::{Context, Result};
use nvmeof_initiator::{Address, ConnectOptions, Fabric};
use nvmeof_wire::Nqn;

use crate::args::{HostArgs, uuid};
use crate::plan::usage_error;

const HOSTNQN_FILE: &str = "/etc/nvme/hostnqn";
const HOSTID_FILE: &str = "/etc/nvme/hostid";
const RANDOM_UUID: &str = "/proc/sys/kernel/random/uuid";
const UUID_MARK: &str = "uuid:";

/// Options for these targets: from the command line, else the host's files, else random.
pub(crate) fn options<'a>(
    args: &HostArgs,
    targets: impl IntoIterator<Item = &'a Address>,
) -> Result<ConnectOptions> {
    let rdma = targets.into_iter().find(|target| target.fabric == Fabric::Rdma);
    if let Some(rdma) = rdma.filter(|_| args.hdgst || args.ddgst) {
        usage_error!(
            true,
            "--hdgst and --ddgst are for tcp://, and {rdma} is not: RDMA protects its packets, so \
             omit both"
        );
    }
    let random = || -> Result<[u8; 16]> {
        let text = fs::read_to_string(RANDOM_UUID)
            .with_context(|| format!("cannot read {RANDOM_UUID}; pass --hostnqn and --hostid"))?;
        uuid(&text).map_err(anyhow::Error::msg)
    };
    let hostnqn = match &args.hostnqn {
        Some(nqn) => nqn.clone(),
        None => match from_file(HOSTNQN_FILE).and_then(|text| Nqn::new(&text).ok()) {
            Some(nqn) => nqn,
            None => Nqn::from_uuid(&random()?),
        },
    };
    // A host identifier belongs to one name: the one in the file belongs to the name in the file.
    let of_file = || from_file(HOSTID_FILE).filter(|_| args.hostnqn.is_none());
    let hostid = match (args.hostid, of_file().and_then(|text| uuid(&text).ok())) {
        (Some(id), _) | (None, Some(id)) => id,
        (None, None) => match hostnqn.as_str().split_once(UUID_MARK).map(|(_, id)| uuid(id)) {
            Some(Ok(id)) => id,
            _ => random()?,
        },
    };
    Ok(ConnectOptions {
        hostnqn,
        hostid,
        hdgst: args.hdgst,
        ddgst: args.ddgst,
        keep_alive: args.keep_alive,
        ..ConnectOptions::default()
    })
}

fn from_file(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_identifier_follows_the_name() {
        let id = [0x11; 16];
        let args = HostArgs {
            hostnqn: Some(Nqn::from_uuid(&id)),
            hostid: None,
            hdgst: true,
            ddgst: false,
            keep_alive: Duration::ZERO,
        };
        let options = options(&args, []).unwrap();
        assert_eq!(options.hostid, id);
        assert!(options.hdgst && !options.ddgst);
    }

    #[test]
    fn digests_are_for_tcp() {
        let args = HostArgs {
            hostnqn: Some(Nqn::from_uuid(&[1; 16])),
            hostid: None,
            hdgst: false,
            ddgst: true,
            keep_alive: Duration::ZERO,
        };
        let (tcp, rdma) = ("tcp://h:1".parse().unwrap(), "rdma://h:1".parse().unwrap());
        assert!(options(&args, [&tcp]).is_ok());
        let error = options(&args, [&tcp, &rdma]).unwrap_err();
        assert!(error.is::<crate::plan::UsageError>(), "{error}");
        assert!(error.to_string().contains("rdma://h:1"), "{error}");
        assert!(options(&HostArgs { ddgst: false, ..args }, [&rdma]).is_ok());
    }
}
