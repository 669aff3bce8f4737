//! `[api]` and `[rpc]`: the control API, and SPDK's JSON-RPC.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use toml::Spanned;

use super::super::raw::{RawApi, RawRpc};
use super::defaults;
use crate::config::report::{Report, Span};
use crate::config::values::Key;
use crate::config::{Api, Rpc};

/// Maximum path length of a UNIX socket: `sun_path` less its terminator and the temporary suffix.
const SOCKET_MAX: usize = 107 - 8;
const SOCKET_FORM: &str = "allowed: a path of at most 99 bytes, in a folder that is there";
const LISTEN_FORM: &str = "allowed: an address and a port, as \"127.0.0.1:4480\" or \"[::1]:4480\"";
const MODE_FORM: &str = "allowed: octal digits from \"0600\" to \"0666\", as \"0660\"";
const TOKEN_FORM: &str =
    "allowed: a file with one line, the token: 16 to 256 printable ASCII characters";

/// Validates the section of the control API; without it, the API is not served.
pub(super) fn api(report: &mut Report<'_>, raw: Option<&Spanned<RawApi>>) -> Option<Api> {
    let raw = raw?.get_ref();
    let socket = socket(report, "api.socket", &raw.socket, defaults::API_SOCKET);
    let mut listen = Vec::new();
    for value in raw.listen.iter().flat_map(|list| list.get_ref()) {
        match value.get_ref().parse::<SocketAddr>() {
            Ok(address) if listen.contains(&address) => {
                let what = format!("{address} is listed twice");
                report.error(&value.span(), "api.listen", what, "remove one");
            }
            Ok(address) => listen.push(address),
            Err(_) => {
                let what = format!("\"{}\" is no address with a port", value.get_ref());
                report.error(&value.span(), "api.listen", what, LISTEN_FORM);
            }
        }
    }
    let token_file = raw.token_file.as_ref().map(|value| PathBuf::from(value.get_ref()));
    let insecure = raw.insecure.as_ref().is_some_and(|value| *value.get_ref());
    if let Some(list) = raw.listen.as_ref().filter(|_| !listen.is_empty()) {
        open_to_whom(report, &list.span(), &listen, token_file.is_some(), insecure);
    }
    if let (Some(value), true) = (&raw.token_file, listen.is_empty()) {
        let what = "the socket requires no token: the file mode controls the access";
        report.warning(&value.span(), "api.token-file", what, "remove it, or set listen");
    }
    if let Some(value) = raw.token_file.as_ref().filter(|value| value.get_ref().is_empty()) {
        report.error(&value.span(), "api.token-file", "file does not exist", TOKEN_FORM);
    }
    let mode = mode(report, "api.mode", &raw.mode, defaults::API_MODE);
    Some(Api { socket, mode, listen, token_file, insecure })
}

/// Validates the section of SPDK's JSON-RPC; without it, that is not served.
pub(super) fn rpc(
    report: &mut Report<'_>,
    raw: Option<&Spanned<RawRpc>>,
    api: Option<&Spanned<RawApi>>,
) -> Option<Rpc> {
    let (section, raw) = (raw?.span(), raw?.get_ref());
    let path = socket(report, "rpc.socket", &raw.socket, defaults::RPC_SOCKET);
    let of_api = api.map(|api| api.get_ref().socket.as_ref());
    let of_api = of_api.map(|key| key.map_or(defaults::API_SOCKET, |value| value.get_ref()));
    if of_api.is_some_and(|of_api| path == Path::new(of_api)) {
        let span = raw.socket.as_ref().map_or(section, Spanned::span);
        let what = "this is the socket of [api] already";
        report.error(&span, "rpc.socket", what, "give each its own path");
    }
    Some(Rpc { socket: path, mode: mode(report, "rpc.mode", &raw.mode, defaults::RPC_MODE) })
}

/// Validates the path of a socket.
fn socket(report: &mut Report<'_>, name: &str, key: &Key<String>, default: &str) -> PathBuf {
    let Some(value) = key else { return default.into() };
    let path = value.get_ref();
    if !(1..=SOCKET_MAX).contains(&path.len()) {
        let what = format!("\"{path}\" cannot be the path of a socket");
        report.error(&value.span(), name, what, SOCKET_FORM);
    }
    path.into()
}

/// Rejects addresses that anyone on the network can use without a token, unless `insecure` is set.
fn open_to_whom(
    report: &mut Report<'_>,
    span: &Span,
    listen: &[SocketAddr],
    has_token: bool,
    insecure: bool,
) {
    let is_far = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    match (listen.iter().find(is_far), has_token) {
        (Some(address), false) if !insecure => {
            let what = format!(
                "any client that reaches {address} can change and stop the target: no token is \
                 required"
            );
            let allowed =
                "set token-file, listen at 127.0.0.1 or [::1] only, or say insecure = true";
            report.error(span, "api.listen", what, allowed);
        }
        (_, false) => {
            let what = "any client that reaches these addresses can change and stop the target";
            let allowed = "leave listen out and use the socket, or set token-file";
            report.warning(span, "api.listen", what, allowed);
        }
        (Some(_), true) => {
            let what = "the token and all that is said can be read on the network";
            let allowed = "use the API on trusted networks, or through a tunnel";
            report.warning(span, "api.listen", what, allowed);
        }
        (None, true) => {}
    }
}

/// Validates the permission bits of a socket.
fn mode(report: &mut Report<'_>, name: &str, key: &Key<String>, default: u32) -> u32 {
    let Some(value) = key else { return default };
    let text = value.get_ref();
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| bits & 0o600 == 0o600);
    bits.filter(|bits| bits & !0o666 == 0).unwrap_or_else(|| {
        let what = format!("\"{text}\" is no mode of a socket");
        report.error(&value.span(), name, what, MODE_FORM);
        default
    })
}
