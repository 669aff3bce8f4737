//! Numbers of drives in text form.

use std::str::FromStr;

/// Maximum drives of a machine.
const MOST: usize = 4096;

/// Numbers and ranges from 0 (`0-15,19-22`), each once, in the order written; or all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NumberRanges {
    /// All drives.
    All,
    /// These drives.
    Of(Vec<usize>),
}

impl FromStr for NumberRanges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let parse = || -> Option<Vec<usize>> {
            let mut numbers = Vec::new();
            for part in text.split(',') {
                let (first, last) = part.split_once('-').unwrap_or((part, part));
                let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
                if first > last || last >= MOST {
                    return None;
                }
                for number in first..=last {
                    if !numbers.contains(&number) {
                        numbers.push(number);
                    }
                }
            }
            Some(numbers)
        };
        parse().map(Self::Of).ok_or_else(|| {
            format!(
                "`{text}` are no drives: write numbers and ranges from 0 to {} (0-15,19-22), or all",
                MOST - 1
            )
        })
    }
}

impl NumberRanges {
    /// The numbers, out of `count` drives.
    ///
    /// # Errors
    /// A number without a drive.
    pub(crate) fn numbers(&self, count: usize) -> Result<Vec<usize>, String> {
        match self {
            Self::All => Ok((0..count).collect()),
            Self::Of(numbers) => match numbers.iter().find(|number| **number >= count) {
                None => Ok(numbers.clone()),
                Some(_) if count == 0 => Err("there are no NVMe drives here".to_owned()),
                Some(number) => Err(format!(
                    "there is no drive {number}: there are {count} here, numbered 0 to {}",
                    count - 1
                )),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!("0-2,5,1".parse(), Ok(NumberRanges::Of(vec![0, 1, 2, 5])));
        assert_eq!("all".parse(), Ok(NumberRanges::All));
        for bad in ["", "a", "3-1", "1,", "-1", "0-99999999"] {
            assert!(bad.parse::<NumberRanges>().unwrap_err().contains("0-15,19-22"), "{bad}");
        }
    }

    #[test]
    fn numbers_that_no_drive_has_are_told() {
        assert_eq!(NumberRanges::All.numbers(3), Ok(vec![0, 1, 2]));
        assert_eq!(NumberRanges::Of(vec![2, 0]).numbers(3), Ok(vec![2, 0]));
        let error = NumberRanges::Of(vec![3]).numbers(3).unwrap_err();
        assert_eq!(error, "there is no drive 3: there are 3 here, numbered 0 to 2");
        assert!(NumberRanges::Of(vec![0]).numbers(0).unwrap_err().contains("no NVMe drives"));
    }
}
