//! The token that clients send over TCP.

use std::fmt;
use std::fs::Metadata;
use std::io::{self, ErrorKind as Io, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use nvmeof_api::{ApiError, ErrorKind};

use super::error_response::ErrorResponse;
use crate::regular;

/// Permission bits of the group and of all users.
const OTHERS: u32 = 0o077;

/// A secret word.
#[derive(Clone)]
pub(super) struct Token(Arc<[u8]>);

impl Token {
    /// Reads the token in a file, which is its only line.
    ///
    /// Users other than the file's owner can have access to it only with `open`.
    ///
    /// # Errors
    /// The file cannot be read, other users have access to it without `open`, or it contains no
    /// valid token.
    pub(super) fn read(file: &Path, open: bool) -> anyhow::Result<Self> {
        let shown = file.display();
        let cannot = || {
            format!(
                "api.token-file {shown}: cannot be read; write one line of 16 to 256 printable \
                 ASCII characters to it, mode 0600, and give it to the daemon's user"
            )
        };
        let mut opened = regular::open(file).with_context(cannot)?;
        // Check the open file, because another file can replace it.
        check_mode(file, &opened.metadata().with_context(cannot)?, open)?;
        let mut text = String::new();
        opened.read_to_string(&mut text).with_context(cannot)?;
        let token = text.trim_end_matches(['\r', '\n']);
        let graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
        anyhow::ensure!(
            graphic && (16..=256).contains(&token.len()),
            "api.token-file {shown}: has to hold one line of 16 to 256 printable ASCII characters \
             without spaces"
        );
        Ok(Self(token.as_bytes().into()))
    }

    /// Checks a file like [`Token::read`].
    ///
    /// The user that checks a config may differ from the daemon's. If this user may not read the
    /// file, only its mode is checked.
    ///
    /// # Errors
    /// As [`Token::read`].
    pub(super) fn check(file: &Path, open: bool) -> anyhow::Result<()> {
        let Err(error) = Self::read(file, open) else { return Ok(()) };
        let is_denied = |error: &io::Error| error.kind() == Io::PermissionDenied;
        match error.downcast_ref().is_some_and(is_denied) {
            true => std::fs::metadata(file).map_or(Ok(()), |meta| check_mode(file, &meta, open)),
            false => Err(error),
        }
    }

    /// Requires the token from every client.
    pub(super) fn ask(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, guard))
    }

    /// Returns true if the header contains the token.
    fn is_shown(&self, header: Option<&HeaderValue>) -> bool {
        let shown = header.and_then(|value| value.as_bytes().split_at_checked(7));
        shown.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"Bearer ") && self.is(token)
        })
    }

    /// Compares all bytes in constant time.
    fn is(&self, other: &[u8]) -> bool {
        let differ = self.0.iter().zip(other).fold(0, |differ, (one, two)| differ | (one ^ two));
        self.0.len() == other.len() && differ == 0
    }
}

fn check_mode(file: &Path, meta: &Metadata, open: bool) -> anyhow::Result<()> {
    let (shown, mode) = (file.display(), meta.permissions().mode() & 0o777);
    anyhow::ensure!(
        open || mode & OTHERS == 0,
        "api.token-file {shown}: mode {mode:04o} gives other users access; chmod 0600 the file \
         and chown it to the daemon's user, or set insecure = true in [api]"
    );
    Ok(())
}

async fn guard(State(token): State<Token>, request: Request, next: Next) -> Response {
    // The page contains no secrets. It requests its data with a token that its user enters.
    let is_page = request.uri().path() == super::page::PATH;
    if is_page || token.is_shown(request.headers().get(AUTHORIZATION)) {
        return next.run(request).await;
    }
    let error = ApiError::new(ErrorKind::Unauthorized, "no token is shown, or a wrong one");
    let error = error.at("authorization").hint("send `authorization: Bearer TOKEN`");
    ([(WWW_AUTHENTICATE, "Bearer")], ErrorResponse(error)).into_response()
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line_and_equal_to_itself_alone() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let token = Token::read(file.path(), false).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        let header = |text| token.is_shown(Some(&HeaderValue::from_static(text)));
        assert!(header("bearer 0123456789abcdef") && !header("Bearer") && !token.is_shown(None));
        for other in [&b"0123456789abcdeF"[..], b"0123456789abcde", b"0123456789abcdef0", b""] {
            assert!(!token.is(other));
        }
        for wrong in ["", "short\n", "0123456789abcdef\nmore\n", "0123456789 abcdef\n"] {
            std::fs::write(&file, wrong).unwrap();
            for refused in
                [Token::read(file.path(), false).map(drop), Token::check(file.path(), false)]
            {
                assert!(refused.unwrap_err().to_string().contains("one line"));
            }
        }
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_token_that_others_can_read_is_none_unless_that_is_meant() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let set = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for mode in [0o640, 0o604, 0o660, 0o602, 0o644] {
            set(mode);
            let error = Token::read(file.path(), false).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")), "{error}");
            assert!(error.contains("chmod 0600") && error.contains("insecure = true"), "{error}");
            assert!(Token::read(file.path(), true).is_ok());
        }
        for mode in [0o600, 0o400] {
            set(mode);
            assert!(Token::read(file.path(), false).is_ok());
        }
    }
}
