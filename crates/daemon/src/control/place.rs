//! Choice of the reactor that serves a connection.

use std::path::Path;
use std::sync::atomic::Ordering;

use crate::reactor::ReactorLoad;

/// Chooses the reactor for a new connection.
///
/// It is the reactor with the fewest connections on the NUMA node where the packets arrive, unless
/// that node is clearly busier than the rest.
///
/// If `number` identifies an I/O queue, only I/O queues count: the queue may never move again, and
/// admin queues are no load. Among equals, queue 1 goes to the second reactor, and so on. Hosts use
/// queue `i + 1` on their CPU `i`. A host on this machine therefore uses the first CPU while the
/// target works on the second. docs/performance.md contains measurements of both orders.
pub(crate) fn choose_reactor(
    loads: &[ReactorLoad],
    nodes: &[Option<usize>],
    arrives_at: Option<usize>,
    number: Option<u16>,
) -> usize {
    debug_assert!(!loads.is_empty(), "a daemon has at least one reactor");
    let own =
        number.and_then(|qid| qid.checked_sub(1)).map(|at| (usize::from(at) + 1) % loads.len());
    let count = |index: usize| match own {
        Some(_) => loads[index].io_queues.load(Ordering::Relaxed),
        None => loads[index].connections.load(Ordering::Relaxed),
    };
    let fewest = |wanted: &dyn Fn(usize) -> bool| {
        (0..loads.len())
            .filter(|&index| wanted(index))
            .min_by_key(|&index| (count(index), own != Some(index)))
    };
    let anywhere = fewest(&|_| true).unwrap_or(0);
    let near = arrives_at.and_then(|node| fewest(&|index| nodes[index] == Some(node)));
    match near {
        Some(near) if count(near) <= count(anywhere) + 1 => near,
        _ => anywhere,
    }
}

/// Returns a move `(from, to)` that evens out the I/O queues, if one is worthwhile.
pub(crate) fn rebalance(loads: &[ReactorLoad]) -> Option<(usize, usize)> {
    let queues = |index: &usize| loads[*index].io_queues.load(Ordering::Relaxed);
    let most = (0..loads.len()).max_by_key(queues)?;
    let least = (0..loads.len()).min_by_key(queues)?;
    (queues(&most) >= queues(&least) + 2).then_some((most, least))
}

/// Returns the NUMA node of a CPU, if the system reports one.
pub(crate) fn node_of(cpu: usize) -> Option<usize> {
    node_in(Path::new("/sys/devices/system/cpu"), cpu)
}

fn node_in(sysfs: &Path, cpu: usize) -> Option<usize> {
    let entries = std::fs::read_dir(sysfs.join(format!("cpu{cpu}"))).ok()?;
    entries
        .flatten()
        .find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(of: &[(usize, usize)]) -> Vec<ReactorLoad> {
        of.iter()
            .map(|&(connections, io_queues)| ReactorLoad {
                connections: connections.into(),
                io_queues: io_queues.into(),
                ..ReactorLoad::default()
            })
            .collect()
    }

    #[test]
    fn new_connections_go_where_there_are_fewest() {
        let nodes = [None, None, None];
        assert_eq!(choose_reactor(&loads(&[(3, 0), (1, 0), (2, 0)]), &nodes, None, None), 1);
        assert_eq!(choose_reactor(&loads(&[(0, 0), (0, 0), (0, 0)]), &nodes, Some(0), None), 0);
    }

    #[test]
    fn the_node_the_packets_arrive_at_is_preferred_until_it_is_busier() {
        let nodes = [Some(0), Some(0), Some(1), Some(1)];
        assert_eq!(
            choose_reactor(&loads(&[(2, 0), (2, 0), (3, 0), (4, 0)]), &nodes, Some(1), None),
            2
        );
        assert_eq!(
            choose_reactor(&loads(&[(2, 0), (1, 0), (4, 0), (4, 0)]), &nodes, Some(1), None),
            1
        );
    }

    #[test]
    fn numbered_queues_go_in_order_and_admin_queues_do_not_count() {
        let nodes = [None, None];
        // A host's admin queue is at the second reactor.
        assert_eq!(choose_reactor(&loads(&[(0, 0), (1, 0)]), &nodes, None, Some(1)), 1);
        assert_eq!(choose_reactor(&loads(&[(0, 0), (2, 1)]), &nodes, None, Some(2)), 0);
        assert_eq!(choose_reactor(&loads(&[(1, 1), (2, 1)]), &nodes, None, Some(3)), 1);
        // Hosts with one queue each.
        assert_eq!(choose_reactor(&loads(&[(0, 0), (2, 1)]), &nodes, None, Some(1)), 0);
        assert_eq!(choose_reactor(&loads(&[(0, 0), (2, 1)]), &nodes, None, Some(0)), 0);
        let nodes = [Some(0), Some(1)];
        assert_eq!(choose_reactor(&loads(&[(0, 0), (0, 0)]), &nodes, Some(1), Some(1)), 1);
    }

    #[test]
    fn queues_move_only_where_it_evens_out() {
        assert_eq!(rebalance(&loads(&[(0, 3), (0, 1)])), Some((0, 1)));
        assert_eq!(rebalance(&loads(&[(0, 2), (0, 1)])), None);
        assert_eq!(rebalance(&loads(&[(0, 5)])), None);
        assert_eq!(rebalance(&[]), None);
    }

    #[test]
    fn a_cpu_folder_names_its_node() {
        let dir = std::env::temp_dir().join(format!("nvmeof-tgt-node-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("cpu5/node3")).unwrap();
        assert_eq!(node_in(&dir, 5), Some(3));
        assert_eq!(node_in(&dir, 6), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
