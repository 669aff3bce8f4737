//! Private data of the RDMA connection manager (RDMA 3.1, Figures 5 to 7).
//!
//! A host sends it in the request for the queue pair of an NVMe queue, the controller in the reply.
//! The connection manager pads private data with zeroes, so its length shows only what is certainly
//! missing.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::open::open_enum;

/// Maximum keyed descriptors in the capsule of a command (MSDBD, our choice).
pub const DESCRIPTORS: u8 = 16;

/// The only record format.
pub const RECFMT: u16 = 0;

/// RDMA_CM_REQUEST private data as on the wire (RDMA Figure 5).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RequestData {
    /// RECFMT: record format.
    pub recfmt: U16,
    /// QID: queue the connection is for; 0 for the admin queue.
    pub qid: U16,
    /// HRQSIZE: the host's receives on this queue pair.
    pub hrqsize: U16,
    /// HSQSIZE: entries of the host's submission queue, 0's based.
    pub hsqsize: U16,
    /// CNTLID: controller of an I/O queue; 0 if the host does not specify it.
    pub cntlid: U16,
    /// Reserved.
    pub reserved: [u8; 22],
}
const _: () = assert!(size_of::<RequestData>() == 32);

/// RDMA_CM_ACCEPT private data as on the wire (RDMA Figure 6).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AcceptData {
    /// RECFMT: record format.
    pub recfmt: U16,
    /// CRQSIZE: the controller's receives on this queue pair.
    pub crqsize: U16,
    /// Reserved.
    pub reserved: [u8; 28],
}
const _: () = assert!(size_of::<AcceptData>() == 32);

/// RDMA_CM_REJECT private data as on the wire (RDMA Figure 7).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct RejectData {
    /// RECFMT: record format.
    pub recfmt: U16,
    /// STS: the reason.
    pub sts: U16,
}
const _: () = assert!(size_of::<RejectData>() == 4);

open_enum! {
    /// Reason of a rejected connection (STS, RDMA Figure 11).
    pub struct RejectStatus(pub u16) {
        INVALID_LENGTH = 0x01 => "invalid private data length",
        INVALID_RECFMT = 0x02 => "invalid record format",
        INVALID_QID = 0x03 => "invalid queue identifier",
        /// HSQSIZE.
        INVALID_HSQSIZE = 0x04 => "invalid host submission queue size",
        /// HRQSIZE.
        INVALID_HRQSIZE = 0x05 => "invalid host receive queue size",
        NO_RESOURCES = 0x06 => "out of resources",
        /// Concurrent RDMA READs that the host serves.
        INVALID_IRD = 0x07 => "invalid responder resources (IRD)",
        /// RDMA READs that the host issues concurrently.
        INVALID_ORD = 0x08 => "invalid initiator depth (ORD)",
        INVALID_CNTLID = 0x09 => "invalid controller identifier",
    }
}

/// Request of a host, in counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Queue; 0 for the admin queue.
    pub qid: u16,
    /// The host's receives: the maximum of responses in transit to it.
    pub host_receives: u16,
    /// Entries of the host's submission queue: the maximum of commands in transit to us, 2 to
    /// 65536.
    pub entries: u32,
    /// Controller of an I/O queue, if the host specifies it.
    pub cntlid: Option<u16>,
}

impl Request {
    /// Parses the private data of a connection request; bytes behind it are padding.
    ///
    /// # Errors
    /// The reason for rejecting the connection.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectStatus> {
        let (data, _) =
            RequestData::ref_from_prefix(bytes).map_err(|_| RejectStatus::INVALID_LENGTH)?;
        if data.recfmt.get() != RECFMT {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        // A queue has at least two entries, and the response to each command needs a receive.
        let entries = u32::from(data.hsqsize.get()) + 1;
        if entries < 2 {
            return Err(RejectStatus::INVALID_HSQSIZE);
        }
        let host_receives = data.hrqsize.get();
        if host_receives == 0 {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        let cntlid = Some(data.cntlid.get()).filter(|cntlid| *cntlid != 0);
        Ok(Self { qid: data.qid.get(), host_receives, entries, cntlid })
    }

    /// Returns the private data of the request. More than 65536 entries count as 65536.
    #[must_use]
    pub fn encode(&self) -> RequestData {
        let last = self.entries.saturating_sub(1).min(u32::from(u16::MAX));
        RequestData {
            recfmt: U16::new(RECFMT),
            qid: U16::new(self.qid),
            hrqsize: U16::new(self.host_receives),
            hsqsize: U16::new(u16::try_from(last).unwrap_or(u16::MAX)),
            cntlid: U16::new(self.cntlid.unwrap_or(0)),
            reserved: [0; 22],
        }
    }
}

impl AcceptData {
    /// Creates the private data of an acceptance, with the controller's number of receives.
    #[must_use]
    pub fn new(receives: u16) -> Self {
        Self { recfmt: U16::new(RECFMT), crqsize: U16::new(receives), reserved: [0; 28] }
    }

    /// Returns the controller's receives from the private data of an acceptance; `None` if it has
    /// no known format.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<u16> {
        let (data, _) = Self::ref_from_prefix(bytes).ok()?;
        (data.recfmt.get() == RECFMT).then(|| data.crqsize.get())
    }
}

impl RejectData {
    /// Creates the private data of a rejection.
    #[must_use]
    pub fn new(status: RejectStatus) -> Self {
        Self { recfmt: U16::new(RECFMT), sts: U16::new(status.0) }
    }

    /// Returns the reason from the private data of a rejection; `None` if it has no known format.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<RejectStatus> {
        let (data, _) = Self::ref_from_prefix(bytes).ok()?;
        (data.recfmt.get() == RECFMT && data.sts.get() != 0).then(|| RejectStatus(data.sts.get()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden;

    fn request(change: impl Fn(&mut [u8; 32])) -> Result<Request, RejectStatus> {
        let mut bytes = golden::bytes(&[(2, &[3, 0, 0x80, 0, 0x7f, 0, 5, 0])]);
        change(&mut bytes);
        Request::parse(&bytes)
    }

    #[test]
    fn request_bytes() {
        let asked = Request { qid: 3, host_receives: 128, entries: 128, cntlid: Some(5) };
        let bytes: [u8; 32] = golden::bytes(&[(2, &[3, 0, 0x80, 0, 0x7f, 0, 5, 0])]);
        assert_eq!(asked.encode().as_bytes(), bytes);
        let mut padded = bytes.to_vec();
        padded.resize(56, 0);
        assert_eq!(Request::parse(&padded), Ok(asked));
        assert_eq!(request(|bytes| bytes[8] = 0).unwrap().cntlid, None);
        let most = Request { qid: 0, host_receives: 1, entries: 65536, cntlid: None };
        assert_eq!(Request::parse(most.encode().as_bytes()), Ok(most));
    }

    #[test]
    fn what_is_wrong_has_its_status() {
        assert_eq!(Request::parse(&[0; 31]), Err(RejectStatus::INVALID_LENGTH));
        assert_eq!(request(|bytes| bytes[1] = 1), Err(RejectStatus::INVALID_RECFMT));
        assert_eq!(request(|bytes| bytes[6] = 0), Err(RejectStatus::INVALID_HSQSIZE));
        assert_eq!(request(|bytes| bytes[4] = 0), Err(RejectStatus::INVALID_HRQSIZE));
    }

    #[test]
    fn answer_bytes() {
        let bytes: [u8; 32] = golden::bytes(&[(2, &[0x02, 0x01])]);
        assert_eq!(AcceptData::new(0x0102).as_bytes(), bytes);
        assert_eq!(AcceptData::parse(&bytes), Some(0x0102));
        assert_eq!(AcceptData::parse(&bytes[..31]), None);
        assert_eq!(RejectData::new(RejectStatus::INVALID_QID).as_bytes(), [0, 0, 3, 0]);
        let mut padded = [0; 148];
        padded[2] = 9;
        assert_eq!(RejectData::parse(&padded), Some(RejectStatus::INVALID_CNTLID));
        assert_eq!(RejectData::parse(&[0; 148]), None);
        assert_eq!(RejectData::parse(&[1, 0, 3, 0]), None);
        assert_eq!(RejectStatus(77).to_string(), "0x4d");
    }

    /// RDMA Figure 5: place and byte order of each field, with only padding behind them.
    #[test]
    fn request_fields_are_where_the_figure_has_them() {
        let asked =
            Request { qid: 0x0302, host_receives: 0x0504, entries: 0x0707, cntlid: Some(0x0908) };
        let mut bytes: [u8; 32] = golden::bytes(&[(2, &[2, 3, 4, 5, 6, 7, 8, 9])]);
        assert_eq!(asked.encode().as_bytes(), bytes);
        // Reserved bytes and the connection manager's padding have no effect.
        bytes[10..].fill(0xff);
        assert_eq!(Request::parse(&bytes), Ok(asked));
        assert_eq!(Request::parse(&[&bytes[..], &[0xff; 192]].concat()), Ok(asked));
    }

    /// RDMA Figure 11.
    #[test]
    fn each_reject_status_has_its_number() {
        let statuses = [
            RejectStatus::INVALID_LENGTH,
            RejectStatus::INVALID_RECFMT,
            RejectStatus::INVALID_QID,
            RejectStatus::INVALID_HSQSIZE,
            RejectStatus::INVALID_HRQSIZE,
            RejectStatus::NO_RESOURCES,
            RejectStatus::INVALID_IRD,
            RejectStatus::INVALID_ORD,
            RejectStatus::INVALID_CNTLID,
        ];
        for (number, status) in (1..).zip(statuses) {
            let data = RejectData::new(status);
            assert_eq!(data.as_bytes(), [0, 0, number, 0]);
            assert_eq!(RejectData::parse(data.as_bytes()), Some(status));
            assert!(status.name().is_some());
        }
        let strange = RejectStatus(0x0201);
        assert_eq!(RejectData::new(strange).as_bytes(), [0, 0, 1, 2]);
        assert_eq!(RejectData::parse(&[0, 0, 1, 2]), Some(strange));
        assert_eq!(RejectData::parse(&[0, 0, 1]), None);
    }

    #[test]
    fn the_reserved_bytes_of_an_acceptance_mean_nothing() {
        let mut bytes = [0xff; 196];
        bytes[..4].copy_from_slice(&[0, 0, 4, 3]);
        assert_eq!(AcceptData::parse(&bytes), Some(0x0304));
        bytes[1] = 1;
        assert_eq!(AcceptData::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn any_request_comes_back(
            qid: u16, host_receives in 1u16.., entries in 2u32..=65_536, cntlid in 0u16..
        ) {
            let cntlid = Some(cntlid).filter(|cntlid| *cntlid != 0);
            let asked = Request { qid, host_receives, entries, cntlid };
            prop_assert_eq!(Request::parse(asked.encode().as_bytes()), Ok(asked));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..224)) {
            match Request::parse(&bytes) {
                Ok(request) => {
                    prop_assert!(bytes.len() >= 32);
                    let again = request.encode();
                    prop_assert_eq!(&again.as_bytes()[..10], &bytes[..10]);
                }
                Err(status) => {
                    prop_assert_eq!(bytes.len() < 32, status == RejectStatus::INVALID_LENGTH);
                }
            }
        }
    }
}
