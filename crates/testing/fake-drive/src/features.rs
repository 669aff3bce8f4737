//! Features (Base 5.15, 5.27): their values, and the two commands.

use std::collections::BTreeMap;

use nvmeof_wire::features::{
    AsyncEventConfig, FeatureCapabilities, Fid, GetFeatures, InterruptVector, NumberOfQueues,
    Select, SetFeatures, VolatileWriteCache,
};
use nvmeof_wire::identify::vwc;
use nvmeof_wire::{Sqe, Status};

use crate::controller::FakeController;
use crate::work::Outcome;

/// Values since the last reset.
#[derive(Debug)]
pub(crate) struct Features {
    /// Number of I/O queues of each kind that may be created.
    pub(crate) queues: u16,
    pub(crate) write_cache: bool,
    pub(crate) events: AsyncEventConfig,
    timestamp: [u8; 8],
    /// Other features, by identifier.
    others: BTreeMap<u8, u32>,
}

/// Features whose value in dword 11 has no effect on the fake.
const PLAIN: [Fid; 7] = [
    Fid::ARBITRATION,
    Fid::POWER_MANAGEMENT,
    Fid::TEMPERATURE_THRESHOLD,
    Fid::ERROR_RECOVERY,
    Fid::INTERRUPT_COALESCING,
    Fid::INTERRUPT_VECTOR,
    Fid::WRITE_ATOMICITY,
];

impl Features {
    pub(crate) fn new(queues: u16) -> Self {
        Self {
            queues,
            write_cache: true,
            events: AsyncEventConfig::new(),
            timestamp: [0; 8],
            others: BTreeMap::new(),
        }
    }
}

impl FakeController {
    pub(crate) fn get_features(&mut self, sqe: &Sqe) -> Outcome {
        let get = GetFeatures::parse(sqe);
        if get.select == Select::SUPPORTED_CAPABILITIES {
            let capabilities = FeatureCapabilities::new().with_changeable(true);
            return Outcome::success(capabilities.into_bits().into());
        }
        let value = match get.fid {
            Fid::NUMBER_OF_QUEUES => {
                let queues = self.features.queues;
                NumberOfQueues::from_counts(queues, queues).into_bits()
            }
            Fid::VOLATILE_WRITE_CACHE if self.has_write_cache() => self.features.write_cache.into(),
            Fid::ASYNC_EVENTS => self.features.events.into_bits(),
            Fid::TIMESTAMP => {
                let timestamp = self.features.timestamp;
                return self.return_data(0, sqe, &timestamp).into();
            }
            fid if PLAIN.contains(&fid) => self.features.others.get(&fid.0).copied().unwrap_or(0),
            _ => return Status::INVALID_FIELD.with_dnr().into(),
        };
        Outcome::success(value.into())
    }

    pub(crate) fn set_features(&mut self, sqe: &Sqe) -> Outcome {
        let set = SetFeatures::parse(sqe);
        if set.save {
            return Status::FEATURE_NOT_SAVEABLE.with_dnr().into();
        }
        match set.fid {
            Fid::NUMBER_OF_QUEUES => return self.set_queues(sqe, set.cdw11),
            Fid::VOLATILE_WRITE_CACHE if self.has_write_cache() => {
                self.features.write_cache = VolatileWriteCache::from_bits(set.cdw11).enabled();
                if !self.features.write_cache {
                    self.media.iter_mut().for_each(crate::media::Media::flush);
                }
            }
            Fid::ASYNC_EVENTS => {
                self.features.events = AsyncEventConfig::from_bits(set.cdw11);
            }
            Fid::TIMESTAMP => {
                let mut timestamp = [0; 8];
                let result = self.take_data(0, sqe, &mut timestamp);
                self.features.timestamp = timestamp;
                return result.into();
            }
            Fid::INTERRUPT_VECTOR
                if InterruptVector::from_bits(set.cdw11).vector() >= self.config.vectors =>
            {
                return Status::INVALID_FIELD.with_dnr().into();
            }
            fid if PLAIN.contains(&fid) => {
                self.features.others.insert(fid.0, set.cdw11);
            }
            _ => return Status::INVALID_FIELD.with_dnr().into(),
        }
        Outcome::success(0)
    }

    /// Sets Number of Queues, which is allowed only before I/O queues are created.
    fn set_queues(&mut self, sqe: &Sqe, cdw11: u32) -> Outcome {
        if self.sqs.len() + self.cqs.len() > 2 {
            self.broke(0, sqe, "the number of queues is set while there are I/O queues");
            return Status::COMMAND_SEQUENCE_ERROR.with_dnr().into();
        }
        let asked = NumberOfQueues::from_bits(cdw11);
        if asked.submission() == u16::MAX || asked.completion() == u16::MAX {
            self.broke(0, sqe, "65536 queues are asked for");
            return Status::INVALID_FIELD.with_dnr().into();
        }
        let most = self.config.io_queues;
        let submission = most.min(asked.submission() + 1);
        let completion = most.min(asked.completion() + 1);
        self.features.queues = submission.max(completion);
        Outcome::success(NumberOfQueues::from_counts(submission, completion).into_bits().into())
    }

    pub(crate) fn has_write_cache(&self) -> bool {
        self.config.identify.vwc & vwc::PRESENT != 0
    }
}
