//! How is JSON indented while it passes?
//!
//! A list of any size is indented piece by piece, without being read into memory, and by turns: somebody's list of
//! megabytes must not hold up the connections of others.

use super::body::Body;
use crate::work::Work;
use bytes::Bytes;
use http_body_util::BodyExt;
use memchr::memchr2;
use std::sync::Arc;

/// The same body with its JSON indented by two spaces; anything but valid JSON stays as wrong as it was.
pub async fn indented(body: Body, work: Arc<Work>) -> Body {
    let mut indenter = Indenter::default();
    match body.into_whole() {
        Ok(bytes) => Body::whole(work.on(bytes.len(), || indenter.feed(&bytes)).await),
        Err(body) => {
            let pieces = futures::stream::unfold((body, indenter), move |(mut body, mut indenter)| {
                let work = work.clone();
                async move {
                    let Ok(frame) = body.frame().await?;
                    let piece = frame.into_data().unwrap_or_default();
                    let lines = work.on(piece.len(), || indenter.feed(&piece)).await;
                    Some((Bytes::from(lines), (body, indenter)))
                }
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
    fn feed(&mut self, mut json: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(json.len() * 3 / 2);
        while let [byte, rest @ ..] = json {
            if self.in_string {
                // Most of what is sent is in strings: they are copied as they are.
                let (string, rest) = json.split_at(self.string_length(json));
                out.extend_from_slice(string);
                json = rest;
                continue;
            }
            json = rest;
            match byte {
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

    /// How much of `json`, which begins in a string, belongs to it.
    fn string_length(&mut self, json: &[u8]) -> usize {
        let mut at = usize::from(std::mem::take(&mut self.escaped));
        while let Some(found) = json.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
            at += found + 1;
            if json[at - 1] == b'"' {
                self.in_string = false;
                return at;
            }
            if at == json.len() {
                self.escaped = true;
                return at;
            }
            at += 1;
        }
        json.len()
    }

    fn line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::super::body::FRAME;
    use super::*;
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
            let indented = indented(body, Arc::default()).await;
            assert_eq!(indented.collect().await.unwrap().to_bytes(), expected);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_piece_of_a_list_waits_for_its_turn() {
        let work: Arc<Work> = Arc::default();
        let piece = Bytes::from(vec![b'1'; FRAME]);
        let mut list = indented(Body::pieces(vec![piece; 3]), work.clone()).await;
        assert_eq!(
            list.frame().await.unwrap().unwrap().into_data().unwrap().len(),
            FRAME
        );
        let all = work.all_turns().await;
        let mut second = std::pin::pin!(list.frame());
        assert!(futures::poll!(&mut second).is_pending());
        drop(all);
        assert_eq!(second.await.unwrap().unwrap().into_data().unwrap().len(), FRAME);
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
