//! How is JSON indented while it passes?
//!
//! A list of any size is indented piece by piece, without being read into memory.

use super::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::BodyDataStream;

/// The same body with its JSON indented by two spaces; anything but valid JSON stays as wrong as it was.
pub fn indented(body: Body) -> Body {
    let mut indenter = Indenter::default();
    match body.into_whole() {
        Ok(bytes) => Body::whole(indenter.feed(&bytes)),
        Err(body) => {
            let pieces = BodyDataStream::new(body).map(move |piece| match piece {
                Ok(piece) => Bytes::from(indenter.feed(&piece)),
                Err(never) => match never {},
            });
            Body::stream(Box::pin(pieces))
        }
    }
}

/// Where in a JSON text we are.
#[derive(Debug, Default)]
struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Right after an opening bracket, which an empty list or map closes on the same line.
    opened: bool,
}

impl Indenter {
    fn feed(&mut self, json: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(json.len() * 3 / 2);
        for byte in json {
            match byte {
                _ if self.in_string => {
                    out.push(*byte);
                    match byte {
                        _ if self.escaped => self.escaped = false,
                        b'\\' => self.escaped = true,
                        b'"' => self.in_string = false,
                        _ => {}
                    }
                }
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.opened) {
                        self.line(&mut out);
                    }
                    out.push(*byte);
                }
                b',' => {
                    out.push(b',');
                    self.line(&mut out);
                }
                b':' => out.extend_from_slice(b": "),
                _ => {
                    if std::mem::take(&mut self.opened) {
                        self.line(&mut out);
                    }
                    out.push(*byte);
                    match byte {
                        b'{' | b'[' => {
                            self.depth += 1;
                            self.opened = true;
                        }
                        b'"' => self.in_string = true,
                        _ => {}
                    }
                }
            }
        }
        out
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn whole(text: &str, at: usize) -> Vec<u8> {
        let mut indenter = Indenter::default();
        let (left, right) = text.as_bytes().split_at(at.min(text.len()));
        [indenter.feed(left), indenter.feed(right)].concat()
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_indented_as_a_whole_one_is() {
        let value = json!({"items": [{}, {"a": "b"}, [], [1]], "kind": "List"});
        let expected = serde_json::to_vec_pretty(&value).unwrap();
        let text = value.to_string();
        let pieces = text.as_bytes().chunks(3).map(Bytes::copy_from_slice).collect();
        for body in [Body::whole(text.clone()), Body::pieces(pieces)] {
            assert_eq!(indented(body).collect().await.unwrap().to_bytes(), expected);
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 30, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_looks_as_serde_json_would_write_it(value in any_json(), at in 0usize..100) {
            let expected = serde_json::to_vec_pretty(&value).unwrap();
            prop_assert_eq!(whole(&value.to_string(), at), expected);
        }
    }
}
