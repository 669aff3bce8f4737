//! Fabrics commands (Base 6) except Connect.

use nvmeof_wire::Sqe;
use nvmeof_wire::fabrics::{Disconnect, PropertyGet, PropertySet};
use nvmeof_wire::opcode::FabricsType;
use nvmeof_wire::properties::{Cc, offset};

use super::{Outcome, Queue, State};
use crate::Nanos;
use crate::failure::Failure;

impl Queue {
    /// Handles opcode 7Fh on a queue that has not ended.
    pub(super) fn fabrics_command(
        &mut self,
        sqe: &Sqe,
        inline_len: u32,
        now: Nanos,
    ) -> Result<Outcome, Failure> {
        let fctype = sqe.fctype();
        match &mut self.state {
            State::Fresh { .. } if fctype == FabricsType::CONNECT => {
                self.begin_connect(sqe, inline_len)
            }
            State::Fresh { .. } | State::Ended(_) => Err(Failure::CommandSequence),
            // A queue is created once.
            State::Admin(_) if fctype == FabricsType::CONNECT => Err(Failure::CommandSequence),
            State::Admin(_) => self.admin_fabrics_command(sqe, now),
            State::Io(_) => self.io_fabrics_command(sqe),
        }
    }

    fn admin_fabrics_command(&mut self, sqe: &Sqe, now: Nanos) -> Result<Outcome, Failure> {
        match sqe.fctype() {
            FabricsType::PROPERTY_GET => self.property_get(PropertyGet::parse(sqe)),
            FabricsType::PROPERTY_SET => self.property_set(PropertySet::parse(sqe), now),
            // Disconnect deletes I/O queues only (Base 6.4).
            FabricsType::DISCONNECT => Err(Failure::InvalidQueueType),
            _ => Err(Failure::InvalidOpcode),
        }
    }

    fn io_fabrics_command(&mut self, sqe: &Sqe) -> Result<Outcome, Failure> {
        match sqe.fctype() {
            FabricsType::DISCONNECT => {
                if Disconnect::parse(sqe).recfmt != 0 {
                    return Err(Failure::ConnectFormat);
                }
                let State::Io(io) = &mut self.state else { return Err(Failure::Internal) };
                io.disconnecting = Some(sqe.cid.get());
                // `poll_disconnect` responds when every other command has completed.
                Ok(Outcome::Held)
            }
            // Also Connect: Linux's and SPDK's targets do not parse it here, and SPDK's tests send
            // opcode 7Fh as one that is not supported.
            _ => Err(Failure::InvalidOpcode),
        }
    }

    fn property_get(&self, get: PropertyGet) -> Result<Outcome, Failure> {
        let controller = self.controller().ok_or(Failure::Internal)?;
        let (value, size) = controller.property(get.offset).ok_or(Failure::InvalidField)?;
        if get.size.bytes() == Some(size) {
            Ok(Outcome::Done(value))
        } else {
            Err(Failure::InvalidField)
        }
    }

    fn property_set(&mut self, set: PropertySet, now: Nanos) -> Result<Outcome, Failure> {
        let State::Admin(admin) = &mut self.state else { return Err(Failure::Internal) };
        // Every other property is read-only here; for NSSR the reason is that CAP.NSSRS is 0.
        if set.offset != offset::CC || set.size.bytes() != Some(4) {
            return Err(Failure::InvalidField);
        }
        let cc = u32::try_from(set.value & 0xffff_ffff).map_err(|_| Failure::Internal)?;
        let change = admin.controller.set_cc(Cc::from_bits(cc))?;
        for cid in admin.configuration_changed(change, now) {
            self.slots.drop_command(cid);
            self.dropped.push(cid);
        }
        Ok(Outcome::Done(0))
    }
}
