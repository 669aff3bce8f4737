//! `[[device]]`: a block device, with the keys of its type.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::Size;
use super::tagged::{self, tagged};

/// `[[device]]`: a block device. Its keys depend on its type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its type, with the keys of the type.
    #[serde(flatten)]
    pub kind: DeviceConfig,
}

tagged! {
    /// Type of a device, with its keys.
    ///
    /// Every key is optional here: the daemon reports those that are missing.
    DeviceConfig by "type", default None, common &["name"];
    /// No storage: reads return zeroes, writes are discarded.
    "null" => Null(MemoryKeys),
    /// Memory.
    "ram" => Ram(MemoryKeys),
    /// A file or a block device.
    "file" => File(FileKeys),
    /// A namespace of a drive of the VFIO driver.
    "nvme" => Nvme(NvmeKeys),
    /// A range of another device.
    "split" => Split(SplitKeys),
    /// Several devices as one.
    "stripe" => Stripe(StripeKeys),
    /// Another device with added latency.
    "delay" => Delay(DelayKeys),
    /// Another device with injected faults.
    "fault" => Fault(FaultKeys),
}

impl DeviceConfig {
    /// Returns the names of the devices that this one is directly layered on.
    #[must_use]
    pub fn bases(&self) -> Vec<&str> {
        let base = match self {
            Self::Null(_) | Self::Ram(_) | Self::File(_) | Self::Nvme(_) => return Vec::new(),
            Self::Stripe(keys) => {
                return keys.members.iter().flatten().map(String::as_str).collect();
            }
            Self::Split(keys) => &keys.base,
            Self::Delay(keys) => &keys.base,
            Self::Fault(keys) => &keys.base,
        };
        base.iter().map(String::as_str).collect()
    }
}

/// Keys of types "null" and "ram".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct MemoryKeys {
    /// Bytes, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Bytes of a block: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<Size>,
}

/// Keys of type "file".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileKeys {
    /// Bytes, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Bytes of a block: 512 or 4096.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<Size>,
    /// The file or block device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Creates the file if it does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<bool>,
    /// Hosts cannot write to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Bypass of the page cache: `auto`, `on` or `off`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<String>,
}

/// Keys of type "nvme".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct NvmeKeys {
    /// The drive's PCI address: `0000:01:00.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Namespace ID on the drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub nsid: Option<i64>,
    /// Entries of a drive's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub queue_depth: Option<i64>,
    /// Timeout of a drive's command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_timeout: Option<String>,
}

/// Keys of type "split".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SplitKeys {
    /// The base device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Offset of a split.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<Size>,
    /// Bytes, in whole blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
}

/// Default bytes of a stripe's chunk.
pub const DEFAULT_CHUNK: u64 = 128 << 10;

/// Keys of type "stripe".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct StripeKeys {
    /// Members of a stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<String>>,
    /// Chunk size of a stripe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Size>,
}

/// Keys of type "delay".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct DelayKeys {
    /// The base device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Latency added to reads: `"1ms"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<String>,
    /// Latency added to all other commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<String>,
    /// Maximum jitter added to each read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_jitter: Option<String>,
    /// Maximum jitter added to each other command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_jitter: Option<String>,
    /// Seed of random faults and jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub seed: Option<i64>,
}

/// Keys of type "fault".
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FaultKeys {
    /// The base device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Commands per million that fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub errors: Option<i64>,
    /// Reads per million with one flipped bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub corruptions: Option<i64>,
    /// Commands per million that are rejected at first for lack of room.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub rejects: Option<i64>,
    /// Commands per million that stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub stalls: Option<i64>,
    /// Length of a stall.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<String>,
    /// True if commands complete in random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<bool>,
    /// Ranges that cannot be read or written: `"OFFSET+SIZE"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bad: Option<Vec<String>>,
    /// Seed of random faults and jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub seed: Option<i64>,
    /// True if the device is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone: Option<bool>,
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut common, kind) = tagged::deserialize(deserializer)?;
        Ok(Self { name: common.remove("name").unwrap_or_default(), kind })
    }
}

impl PartialSchema for Device {
    fn schema() -> RefOr<Schema> {
        let names: Vec<String> = tagged::names::<DeviceConfig>();
        tagged::schema::<DeviceConfig>(
            "`[[device]]`: a block device. Its keys depend on its type.",
            &[("name", "Its name.")],
            &format!("One of {}.", names.join(", ")),
        )
    }
}

impl ToSchema for Device {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Device")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        tagged::schemas::<DeviceConfig>(schemas);
    }
}
