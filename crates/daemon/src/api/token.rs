//! The token that callers over TCP have to show.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use nvmeof_api::{ApiError, ErrorKind};

use super::refusal::Refusal;

/// A secret word.
#[derive(Clone)]
pub(super) struct Token(Arc<[u8]>);

impl Token {
    /// The token in a file: its only line.
    ///
    /// # Errors
    /// The file cannot be read, or there is no token in it that does.
    pub(super) fn read(file: &Path) -> anyhow::Result<Self> {
        let shown = file.display();
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("api.token-file {shown}: cannot be read"))?;
        let token = text.trim_end_matches(['\r', '\n']);
        let graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
        anyhow::ensure!(
            graphic && (16..=256).contains(&token.len()),
            "api.token-file {shown}: it has to hold one line of 16 to 256 printable ASCII characters \
             without spaces"
        );
        Ok(Self(token.as_bytes().into()))
    }

    /// Lets only those callers in who show the token.
    pub(super) fn ask(self, router: Router) -> Router {
        router.layer(from_fn_with_state(self, guard))
    }

    /// Whether the header shows it.
    fn is_shown(&self, header: Option<&HeaderValue>) -> bool {
        let shown = header.and_then(|value| value.as_bytes().split_at_checked(7));
        shown.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"Bearer ") && self.is(token)
        })
    }

    /// Compares all of it, whatever differs, so that time tells nothing.
    fn is(&self, other: &[u8]) -> bool {
        let differ = self.0.iter().zip(other).fold(0, |differ, (one, two)| differ | (one ^ two));
        self.0.len() == other.len() && differ == 0
    }
}

async fn guard(State(token): State<Token>, request: Request, next: Next) -> Response {
    // The page has nothing to hide; what it shows it asks for with a token that it asks its reader for.
    let is_page = request.uri().path() == super::page::PATH;
    if is_page || token.is_shown(request.headers().get(AUTHORIZATION)) {
        return next.run(request).await;
    }
    let error = ApiError::new(ErrorKind::Unauthorized, "no token is shown, or a wrong one");
    let error = error.at("authorization").hint("send `authorization: Bearer TOKEN`");
    ([(WWW_AUTHENTICATE, "Bearer")], Refusal(error)).into_response()
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
        let token = Token::read(file.path()).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        let header = |text| token.is_shown(Some(&HeaderValue::from_static(text)));
        assert!(header("bearer 0123456789abcdef") && !header("Bearer") && !token.is_shown(None));
        for other in [&b"0123456789abcdeF"[..], b"0123456789abcde", b"0123456789abcdef0", b""] {
            assert!(!token.is(other));
        }
        for wrong in ["", "short\n", "0123456789abcdef\nmore\n", "0123456789 abcdef\n"] {
            std::fs::write(&file, wrong).unwrap();
            assert!(Token::read(file.path()).unwrap_err().to_string().contains("one line"));
        }
        assert!(!format!("{token:?}").contains("0123"));
    }
}
