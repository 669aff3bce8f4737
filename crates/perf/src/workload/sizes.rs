//! Block sizes and their shares, in fio's syntax.
//!
//! Examples are `4k` and `4k/70:64k/30`. Commas separate sizes of reads, writes and trims.

use nvmeof_random::SplitMix64;

use crate::units;

/// Maximum sizes of a direction.
const MOST: usize = 64;

/// Bytes of I/Os: one size, or several with their shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IoSizes(Vec<SizeShare>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SizeShare {
    bytes: u32,
    percent: u8,
}

/// Sizes of reads, writes and trims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockSplit {
    pub(crate) read: IoSizes,
    pub(crate) write: IoSizes,
    pub(crate) trim: IoSizes,
}

/// Parses `--bssplit`.
pub(crate) fn block_split(text: &str) -> Result<BlockSplit, String> {
    let wrong = |why: String| {
        format!(
            "`{text}` is not a split: {why}; write sizes with their shares in percent (4k/70:64k/30), and with a \
             comma others for writes, and for trims (4k/50:8k/50,64k/100)"
        )
    };
    let all: Vec<_> = text.split(',').map(sizes).collect::<Result<_, _>>().map_err(&wrong)?;
    match &all[..] {
        [all] => Ok(BlockSplit { read: all.clone(), write: all.clone(), trim: all.clone() }),
        [read, write] => {
            Ok(BlockSplit { read: read.clone(), write: write.clone(), trim: write.clone() })
        }
        [read, write, trim] => {
            Ok(BlockSplit { read: read.clone(), write: write.clone(), trim: trim.clone() })
        }
        _ => Err(wrong("there are reads, writes and trims, and no fourth kind".into())),
    }
}

fn sizes(text: &str) -> Result<IoSizes, String> {
    let mut shares = Vec::new();
    for part in text.split(':') {
        let (size, percent) = part.split_once('/').unwrap_or((part, ""));
        let bytes = u32::try_from(units::size(size)?).ok().filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| format!("`{size}` is no size of an I/O"))?;
        let percent = match percent {
            "" => None,
            percent => {
                let number = percent.parse::<u8>().ok().filter(|&percent| percent <= 100);
                Some(number.ok_or_else(|| format!("`{percent}` is no share of 0 to 100"))?)
            }
        };
        shares.push((bytes, percent));
    }
    if shares.len() > MOST {
        return Err(format!("{} sizes given, the maximum is {MOST}", shares.len()));
    }
    let named: u32 = shares.iter().filter_map(|(_, percent)| *percent).map(u32::from).sum();
    let unnamed = u32::try_from(shares.iter().filter(|(_, percent)| percent.is_none()).count());
    let unnamed = unnamed.unwrap_or(u32::MAX);
    if named > 100 || (unnamed == 0 && named != 100) {
        return Err(format!("the shares add up to {named} and not to 100"));
    }
    // Sizes without a share get the rest in equal parts; the remainder goes to the first ones.
    let (mut left, mut takers) = (100 - named, unnamed);
    let shares = shares.into_iter().map(|(bytes, percent)| {
        let percent = percent.unwrap_or_else(|| {
            let part = left.div_ceil(takers.max(1));
            (left, takers) = (left - part, takers - 1);
            u8::try_from(part).unwrap_or(100)
        });
        SizeShare { bytes, percent }
    });
    Ok(IoSizes(shares.filter(|share| share.percent > 0).collect()))
}

impl IoSizes {
    /// A single size for all I/Os.
    pub(crate) fn one(bytes: u32) -> Self {
        Self(vec![SizeShare { bytes, percent: 100 }])
    }

    /// The sizes, without shares.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|share| share.bytes)
    }

    /// Draws the size of the next I/O.
    #[inline]
    pub(crate) fn choose(&self, rng: &mut SplitMix64) -> u32 {
        if let [one] = self.0[..] {
            return one.bytes;
        }
        let mut at = rng.below(100);
        for share in &self.0 {
            let percent = u64::from(share.percent);
            if at < percent {
                return share.bytes;
            }
            at -= percent;
        }
        self.0.last().map_or(0, |share| share.bytes)
    }
}

impl std::fmt::Display for IoSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = self.0.iter().map(|share| format!("{}/{}", share.bytes, share.percent));
        f.write_str(&parts.collect::<Vec<_>>().join(":"))
    }
}

impl BlockSplit {
    /// A single size for all directions.
    pub(crate) fn one(bytes: u32) -> Self {
        let one = IoSizes::one(bytes);
        Self { read: one.clone(), write: one.clone(), trim: one }
    }
}

impl std::fmt::Display for BlockSplit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{},{},{}", self.read, self.write, self.trim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_as_fio_takes_them() {
        let split = |text: &str| block_split(text).unwrap().to_string();
        assert_eq!(split("4k/70:64k/30"), "4096/70:65536/30,4096/70:65536/30,4096/70:65536/30");
        assert_eq!(split("4k/50:8k/50,64k/100"), "4096/50:8192/50,65536/100,65536/100");
        assert_eq!(split("512,1k,2k"), "512/100,1024/100,2048/100");
        // Sizes without a share get equal parts of the rest.
        assert_eq!(
            block_split("4k/50:8k/:16k/").unwrap().read.to_string(),
            "4096/50:8192/25:16384/25"
        );
        assert_eq!(block_split("4k:8k:16k").unwrap().read.to_string(), "4096/34:8192/33:16384/33");
        assert_eq!(block_split("4k/0:8k/100").unwrap().read.to_string(), "8192/100");
        for (text, says) in [
            ("4k/70:64k/20", "add up to 90"),
            ("4k/70:64k/40", "add up to 110"),
            ("4k/x", "no share"),
            ("4q/100", "not a size"),
            ("0/100", "no size of an I/O"),
            ("4k,4k,4k,4k", "no fourth"),
        ] {
            let error = block_split(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_come_by_their_shares() {
        let split = block_split("4k/60:8k/30:64k/10").unwrap();
        let (seed, draws) = (7, 100_000);
        let mut rng = SplitMix64::stream(seed, 0);
        let mut seen = std::collections::BTreeMap::<u32, u64>::new();
        for _ in 0..draws {
            *seen.entry(split.read.choose(&mut rng)).or_default() += 1;
        }
        for (bytes, share) in [(4096, 60_000), (8192, 30_000), (65536, 10_000)] {
            assert!(seen[&bytes].abs_diff(share) < 600, "seed {seed}: {seen:?}");
        }
    }
}
