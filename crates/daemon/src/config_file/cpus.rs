//! CPU lists: "0-3,8", or "auto".

/// Maximum number of reactors of "auto".
pub(super) const AUTO_MAX: usize = 8;

/// Syntax of a CPU list.
pub(super) const FORM: &str = "allowed: \"auto\", or CPU numbers and ranges as in \"0-3,8\"";

/// Parses a CPU list into CPUs in order, each once; `cpus` are those that the process may run on.
pub(super) fn parse(text: &str, cpus: &[usize]) -> Result<Vec<usize>, String> {
    if text == "auto" {
        return Ok(cpus.iter().copied().take(AUTO_MAX).collect());
    }
    let mut chosen = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let text = text.trim();
            text.parse::<u16>().map(usize::from).map_err(|_| format!("\"{text}\" is no CPU number"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(format!("the range {first}-{last} runs backwards"));
        }
        for cpu in first..=last {
            if !cpus.contains(&cpu) {
                return Err(format!(
                    "CPU {cpu} is not there or not for this process, which may run on {}",
                    show(cpus)
                ));
            }
            if chosen.contains(&cpu) {
                return Err(format!("CPU {cpu} is named twice"));
            }
            chosen.push(cpu);
        }
    }
    chosen.sort_unstable();
    Ok(chosen)
}

/// Formats a CPU list.
pub(super) fn show(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown = ranges.iter().map(|(first, last)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let cpus = [0, 1, 2, 3, 8, 9];
        assert_eq!(parse("0-3,8", &cpus), Ok(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse("9, 1", &cpus), Ok(vec![1, 9]));
        assert_eq!(parse("auto", &cpus), Ok(cpus.to_vec()));
        let many: Vec<usize> = (4..200).collect();
        assert_eq!(parse("auto", &many), Ok((4..12).collect()));
        assert_eq!(show(&cpus), "0-3,8-9");
        for (text, why) in [
            ("", "no CPU number"),
            ("0,", "no CPU number"),
            ("all", "no CPU number"),
            ("0-", "no CPU number"),
            ("-1", "no CPU number"),
            ("3-1", "backwards"),
            ("0-4", "CPU 4 is not there or not for this process, which may run on 0-3,8-9"),
            ("1,0-2", "CPU 1 is named twice"),
            ("0-65535", "CPU 4 is not"),
            ("70000", "no CPU number"),
        ] {
            let error = parse(text, &cpus).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
