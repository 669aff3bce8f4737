//! Requests in a stream of bytes.
//!
//! SPDK's clients send JSON objects and arrays without a delimiter, several of them on one
//! connection.

use serde_json::Value;

use crate::RpcError;

/// Maximum bytes of a request or a batch.
pub const REQUEST_MAX: usize = 4 << 20;

/// Splits a stream of bytes into JSON objects and arrays.
///
/// Each byte is scanned once: brackets outside of text determine where a value ends.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Number of scanned bytes of the first value.
    scanned: usize,
    /// Open brackets.
    depth: usize,
    in_text: bool,
    is_escaped: bool,
}

impl Frames {
    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next value if it is complete.
    ///
    /// # Errors
    /// The bytes are not JSON, or a value is too long. The stream has no next value then.
    pub fn next_value(&mut self) -> Result<Option<Value>, RpcError> {
        if self.scanned == 0 {
            let blank = self.bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            self.bytes.drain(..blank);
            match self.bytes.first() {
                None => return Ok(None),
                Some(b'{' | b'[') => {}
                Some(_) => return Err(RpcError::parse("a request is a JSON object")),
            }
        }
        let Some(end) = self.end() else {
            if self.bytes.len() > REQUEST_MAX {
                let most = REQUEST_MAX >> 20;
                return Err(RpcError::parse(format!("a request has at most {most} MiB")));
            }
            return Ok(None);
        };
        let value = serde_json::from_slice(&self.bytes[..end]).map_err(RpcError::parse);
        self.bytes.drain(..end);
        self.scanned = 0;
        value.map(Some)
    }

    /// Scans the new bytes; returns the end of the first value.
    fn end(&mut self) -> Option<usize> {
        while let Some(byte) = self.bytes.get(self.scanned) {
            self.scanned += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_text => self.is_escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.scanned);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Values of a stream that arrives in pieces of `size` bytes.
    fn values(text: &str, size: usize) -> Vec<Result<Value, i32>> {
        let mut frames = Frames::default();
        let mut all = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            frames.push(piece);
            loop {
                match frames.next_value() {
                    Ok(Some(value)) => all.push(Ok(value)),
                    Ok(None) => break,
                    Err(error) => {
                        all.push(Err(error.code));
                        return all;
                    }
                }
            }
        }
        all
    }

    #[test]
    fn values_end_where_their_brackets_close() {
        let text = " {\"a\": \"}\\\"]\\\\\"}{\"b\":[1,{}]}\n\n[{\"c\":\"\u{e9}\"}] {\"d\"";
        let expected =
            [json!({"a": "}\"]\\"}), json!({"b": [1, {}]}), json!([{"c": "\u{e9}"}])].map(Ok);
        for size in [1, 2, 7, 1000] {
            assert_eq!(values(text, size), expected, "{size}");
        }
    }

    #[test]
    fn a_stream_ends_at_what_is_no_json() {
        for text in ["{\"a\" 1}", "hello", "{]", "5", "\"a\"", "{\"a\":\u{1}}", "}"] {
            assert_eq!(values(text, 3), [Err(-32700)], "{text}");
        }
        let long = format!("{{}}[\"{}", "x".repeat(REQUEST_MAX));
        assert_eq!(values(&long, 65536), [Ok(json!({})), Err(-32700)]);
    }
}
