//! The bridges above the drives as a tree, in the manner of `lspci -tv`.

use nvmeof_core::pci::{Address, PciLocation};

/// A bridge, a drive, or a root complex.
struct TreeNode {
    /// Address within its bus, or the root complex.
    name: String,
    /// Key of a bridge's place on its bus.
    key: Option<Address>,
    children: Vec<Self>,
}

/// Draws drives with their names, one root complex after the other.
///
/// ```text
/// -[0000:60]-+-01.1---00.0  /dev/nvme0n1
///            \-03.1---00.0-+-00.0---00.0  /dev/nvme1n1
///                          \-01.0---00.0  /dev/nvme2n1
/// ```
pub(super) fn tree(drives: &[(&PciLocation, &str)]) -> Vec<String> {
    let mut sorted: Vec<_> = drives.to_vec();
    sorted.sort_by_key(|(place, _)| (place.root_complex, place.ports.clone(), place.function));
    let mut roots: Vec<TreeNode> = Vec::new();
    for (place, drive) in sorted {
        let root = format!("-[{}]", place.root_complex);
        if roots.last().is_none_or(|last| last.name != root) {
            roots.push(TreeNode { name: root, key: None, children: Vec::new() });
        }
        let Some(mut node) = roots.last_mut() else { continue };
        for port in &place.ports {
            if node.children.last().is_none_or(|last| last.key != Some(*port)) {
                let (name, key) = (on_its_bus(*port), Some(*port));
                node.children.push(TreeNode { name, key, children: Vec::new() });
            }
            let at = node.children.len() - 1;
            node = &mut node.children[at];
        }
        let name = format!("{}  {drive}", on_its_bus(place.function));
        node.children.push(TreeNode { name, key: None, children: Vec::new() });
    }
    let mut lines = Vec::new();
    for root in &roots {
        draw(root, String::new(), &mut lines);
    }
    lines
}

fn on_its_bus(address: Address) -> String {
    format!("{:02x}.{:x}", address.device, address.function)
}

/// Draws a node and its children. `line` is the text before it; later lines have the bars of the
/// branches that continue.
fn draw(node: &TreeNode, mut line: String, lines: &mut Vec<String>) {
    line.push_str(&node.name);
    let [children @ .., last] = &node.children[..] else {
        lines.push(line);
        return;
    };
    if children.is_empty() {
        return draw(last, line + "---", lines);
    }
    let bars: String = line
        .char_indices()
        .map(|(at, c)| match c {
            '+' if line[at..].starts_with("+-") => '|',
            '|' => '|',
            _ => ' ',
        })
        .collect();
    let mut start = line + "-+-";
    for child in children {
        draw(child, start, lines);
        start = format!("{bars} +-");
    }
    draw(last, format!("{bars} \\-"), lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_and_ports_branch_as_they_are_connected() {
        let places = [
            ("pci0000:60/0000:60:03.1/0000:65:00.0/0000:66:00.0/0000:67:00.0", "n1"),
            ("pci0000:60/0000:60:01.1/0000:61:00.0", "n0"),
            ("pci0000:60/0000:60:03.1/0000:65:00.0/0000:66:01.0/0000:68:00.0", "n2"),
            ("pci0000:60/0000:60:03.2/0000:69:00.0", "n3"),
            ("pci0000:00/0000:00:01.1/0000:01:00.0", "n4"),
        ];
        let places =
            places.map(|(path, name)| (PciLocation::from_path(path.as_ref()).unwrap(), name));
        let drives: Vec<_> = places.iter().map(|(place, name)| (place, *name)).collect();
        let expected = "\
-[0000:00]---01.1---00.0  n4
-[0000:60]-+-01.1---00.0  n0
           +-03.1---00.0-+-00.0---00.0  n1
           |             \\-01.0---00.0  n2
           \\-03.2---00.0  n3";
        assert_eq!(tree(&drives).join("\n"), expected);
    }
}
