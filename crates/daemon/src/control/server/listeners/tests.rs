//! Changes of listeners, without hosts: a listener listens if the system accepts connections.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::config_file::Machine;

/// Returns a config with these listeners and the additional text.
fn config(listeners: &[(&str, u16)], more: &str) -> Config {
    let machine = Machine { cpus: vec![0], open_files: 4096, memory: 8 << 30, open: Vec::new() };
    let one = |(address, port): &(&str, u16)| {
        format!("[[listener]]\ntype = \"tcp\"\naddress = \"{address}\"\nport = {port}\n")
    };
    let text = listeners.iter().map(one).collect::<String>() + more;
    Config::parse("t.toml", &text, &machine).unwrap_or_else(|error| panic!("{error}"))
}

async fn start(config: Config) -> Server {
    Server::start(config, |_| anyhow::bail!("there is no drive")).await.unwrap()
}

async fn reload(server: &mut Server, config: Config) -> anyhow::Result<String> {
    reload_with(server, config, BindPolicy::Required).await
}

async fn reload_with(
    server: &mut Server,
    config: Config,
    listeners: BindPolicy,
) -> anyhow::Result<String> {
    let preopened = server.begin(&config, None).done().await;
    let reloaded = server.reload(config, preopened, listeners).await?;
    Ok(reloaded.summary)
}

/// Returns a port of 127.0.0.2 that another socket occupies.
fn taken() -> (TcpListener, u16) {
    let other = TcpListener::bind(("127.0.0.2", 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    (other, port)
}

/// Retries listeners until all of them listen.
async fn heal(server: &mut Server) {
    while !server.waiting().is_empty() {
        server.listeners_due().await;
        server.retry_listeners().await;
    }
}

/// Returns the port ID and the address of the only listener.
fn only(server: &Server) -> (PortId, SocketAddr) {
    let all: Vec<_> = server.listeners().collect();
    assert_eq!(all.len(), 1);
    (all[0].0, all[0].2)
}

fn listens(address: &str, port: u16) -> bool {
    TcpStream::connect((address, port)).is_ok()
}

#[tokio::test]
async fn an_address_that_one_of_ours_is_in_the_way_of_is_taken_from_it() {
    let mut server = start(config(&[("127.0.0.1", 0)], "")).await;
    let (chosen, address) = only(&server);
    let port = address.port();
    // The port that the system chose, named explicitly.
    reload(&mut server, config(&[("127.0.0.1", port)], "")).await.unwrap();
    assert!(listens("127.0.0.1", port) && !listens("127.0.0.2", port));
    assert_ne!(only(&server).0, chosen);
    let said = reload(&mut server, config(&[("0.0.0.0", port)], "")).await.unwrap();
    assert!(said.contains("1 listeners started, 1 ended"), "{said}");
    assert!(listens("127.0.0.1", port) && listens("127.0.0.2", port));
    // One listener is replaced by two.
    let two = [("127.0.0.1", port), ("127.0.0.2", port)];
    let said = reload(&mut server, config(&two, "")).await.unwrap();
    assert!(said.contains("2 listeners started, 1 ended"), "{said}");
    assert!(listens("127.0.0.1", port) && listens("127.0.0.2", port));
    assert!(!listens("127.0.0.3", port));
    // Two listeners are replaced by one.
    let said = reload(&mut server, config(&[("0.0.0.0", port)], "")).await.unwrap();
    assert!(said.contains("1 listeners started, 2 ended"), "{said}");
    assert!(listens("127.0.0.3", port));
    server.stop(Duration::ZERO).await;
    assert!(!listens("127.0.0.1", port));
}

#[tokio::test]
async fn a_listener_that_made_way_in_vain_is_had_back() {
    let mut server = start(config(&[("127.0.0.1", 0)], "")).await;
    let before = only(&server);
    let port = before.1.port();
    let is_as_it_was = |server: &Server| {
        assert_eq!(only(server), before);
        assert!(listens("127.0.0.1", port) && !listens("127.0.0.3", port));
    };
    // Another socket also blocks the address.
    let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let everywhere = [("0.0.0.0", port)];
    let error = reload(&mut server, config(&everywhere, "")).await.unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains(&format!("something else listens at 0.0.0.0:{port}")), "{said}");
    is_as_it_was(&server);
    drop(other);
    // The bind succeeds, but a later step fails.
    let drive = "[[device]]\nname = \"d\"\ntype = \"nvme\"\npci = \"0000:6f:00.0\"\n";
    let error = reload(&mut server, config(&everywhere, drive)).await.unwrap_err();
    assert_eq!(format!("{error:#}"), "device \"d\": there is no drive");
    is_as_it_was(&server);
    // Now the same change succeeds, and so does its reverse.
    reload(&mut server, config(&everywhere, "")).await.unwrap();
    reload(&mut server, config(&[("127.0.0.1", port)], "")).await.unwrap();
    assert!(listens("127.0.0.1", port) && !listens("127.0.0.3", port));
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn other_keys_at_the_same_address_leave_the_port_its_number() {
    let mut server = start(config(&[("127.0.0.1", 0)], "")).await;
    let port = only(&server).1.port();
    let same = || config(&[("127.0.0.1", port)], "");
    reload(&mut server, same()).await.unwrap();
    let before = only(&server);
    // Simulate a difference in a key that only RDMA has.
    for serving in server.listeners.values_mut() {
        serving.wanted.rdma.traffic_class = Some(8);
    }
    server.config.listeners[0].rdma.traffic_class = Some(8);
    let said = reload(&mut server, same()).await.unwrap();
    assert!(said.contains("0 controllers ended, 1 listeners started, 1 ended"), "{said}");
    assert_eq!(only(&server), before);
    assert!(listens("127.0.0.1", port));
    assert!(server.listeners().all(|(_, wanted, ..)| wanted.rdma.traffic_class.is_none()));
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_listener_that_cannot_listen_waits_and_is_tried_until_it_does() {
    let (other, port) = taken();
    let late = || config(&[("127.0.0.1", 0), ("127.0.0.2", port)], "");
    let mut server = start(late()).await;
    let url = format!("tcp://127.0.0.2:{port}");
    let waiting = server.waiting();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].url, url);
    assert!(waiting[0].error.contains("something else listens at"), "{waiting:?}");
    assert!(!server.urls().contains(&url) && !server.ready_line().contains(&url));
    // A retry fails: the listener still waits, and its pause is longer.
    let due = |server: &Server| {
        server.listeners.values().find_map(|one| Some(one.state.waiting()?.due())).unwrap()
    };
    let first = due(&server);
    server.listeners_due().await;
    assert!(!server.retry_listeners().await);
    assert!(due(&server) > first);
    // A reload of the same config changes nothing, and retries the listener.
    reload(&mut server, late()).await.unwrap();
    assert_eq!(server.waiting().len(), 1);
    drop(other);
    heal(&mut server).await;
    assert!(server.urls().contains(&url) && listens("127.0.0.2", port));
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_reload_tries_what_waits_at_once_and_removes_what_is_no_longer_wanted() {
    let (other, port) = taken();
    let (near, far) = (("127.0.0.1", 0), ("127.0.0.2", port));
    let mut server = start(config(&[near], "")).await;
    // The API rejects a listener that fails to bind; SIGHUP has no caller to notify.
    let error = reload(&mut server, config(&[near, far], "")).await.unwrap_err();
    assert!(error.to_string().contains("something else listens at"), "{error}");
    assert!(server.waiting().is_empty());
    let both = config(&[near, far], "");
    let said = reload_with(&mut server, both, BindPolicy::Optional).await.unwrap();
    assert!(said.contains("0 listeners started, 0 ended"), "{said}");
    assert_eq!(server.waiting().len(), 1);
    let said = reload(&mut server, config(&[near], "")).await.unwrap();
    assert!(said.contains("0 listeners started, 1 ended"), "{said}");
    assert!(server.waiting().is_empty());
    reload_with(&mut server, config(&[near, far], ""), BindPolicy::Optional).await.unwrap();
    drop(other);
    let said = reload(&mut server, config(&[near, far], "")).await.unwrap();
    assert!(said.contains("1 listeners started, 0 ended"), "{said}");
    assert!(server.waiting().is_empty() && listens("127.0.0.2", port));
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_listener_that_waits_waits_on_at_another_port() {
    let (other, port) = taken();
    let near = ("127.0.0.1", 0);
    let mut server = start(config(&[near, ("127.0.0.2", port)], "")).await;
    let (another, next) = taken();
    let changed = config(&[near, ("127.0.0.2", next)], "");
    let said = reload(&mut server, changed).await.unwrap();
    assert!(said.contains("0 listeners started, 1 ended"), "{said}");
    assert_eq!(server.waiting()[0].url, format!("tcp://127.0.0.2:{next}"));
    // A new listener in the same change has to bind.
    let both = config(&[near, ("127.0.0.2", next), ("127.0.0.2", port)], "");
    reload(&mut server, both).await.unwrap_err();
    assert_eq!(server.waiting().len(), 1);
    drop(another);
    heal(&mut server).await;
    assert!(listens("127.0.0.2", next));
    drop(other);
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_signal_takes_no_listener_away_for_one_that_would_wait() {
    let mut server = start(config(&[("127.0.0.1", 0)], "")).await;
    let before = only(&server);
    let port = before.1.port();
    let _other = TcpListener::bind(("127.0.0.2", port)).unwrap();
    let everywhere = config(&[("0.0.0.0", port)], "");
    reload_with(&mut server, everywhere, BindPolicy::Optional).await.unwrap_err();
    assert_eq!(only(&server), before);
    assert!(listens("127.0.0.1", port) && server.waiting().is_empty());
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_listener_whose_socket_breaks_waits_and_is_had_back_at_its_port() {
    let mut server = start(config(&[("127.0.0.1", 0)], "")).await;
    let before = only(&server);
    let port = before.1.port();
    for serving in server.listeners.values() {
        let State::Listening(listening) = &serving.state else { panic!("it listens") };
        listening.break_off();
    }
    server.listeners_due().await;
    assert!(server.retry_listeners().await);
    assert!(!listens("127.0.0.1", port) && server.urls().is_empty());
    assert_eq!(server.waiting()[0].url, format!("tcp://127.0.0.1:{port}"));
    heal(&mut server).await;
    assert_eq!(only(&server), before, "hosts find it where it was");
    assert!(listens("127.0.0.1", port));
    server.stop(Duration::ZERO).await;
}
