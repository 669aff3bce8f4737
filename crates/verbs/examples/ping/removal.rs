//! A device that is removed while it is used.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use nvmeof_verbs::system::{ListenerEvent, SystemDevice};
use nvmeof_verbs::{ConnectionEvent, Device, VerbsError, WcStatus};

use super::checks;
use super::ends::{Ends, Shape, listen, until};

#[expect(clippy::print_stdout, reason = "a person reads it")]
pub(crate) fn there_and_back(address: IpAddr) -> Result<()> {
    let mut listener = listen(address)?;
    let name = listener.device().map(|device| device.name().to_owned()).unwrap_or_default();
    let mut pair = Ends::new(address, Shape::Own)?.pair;
    pair.answering.receive(1, 0, 64)?;
    println!("     remove {name}");
    until("the removal", || Ok(listener.next()))?.map(|event| match event {
        ListenerEvent::DeviceRemoved => Ok(()),
        other => anyhow::bail!("the listener got {other:?}"),
    })??;
    let (mut asking, mut answering) = (vec![], vec![]);
    until("the news", || {
        pair.pass();
        asking.extend(pair.asking.take_events());
        answering.extend(pair.answering.take_events());
        let told = |events: &[_]| events.contains(&ConnectionEvent::DeviceRemoved);
        Ok((told(&asking) && told(&answering)).then_some(()))
    })?;
    let came = pair.answering.take();
    ensure!(came.iter().all(|one| one.status != WcStatus::Success), "{came:?}");
    drop(pair);
    drop(listener);
    println!("     gave {name} back");
    until("the device to be gone", || match SystemDevice::list() {
        Err(VerbsError::NoDevice) => Ok(Some(())),
        Ok(list) => Ok((!list.contains(&name)).then_some(())),
        Err(error) => Err(error.into()),
    })?;
    println!("     add {name}");
    until("the device to come back", || Ok(listen(address).ok()))?;
    checks::private_data(address)
}
