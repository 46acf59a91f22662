//! Bodies in protobuf.
//!
//! The first byte chooses the kind. What follows is read twice: as a body, and as the object within an envelope, so
//! that no input is wasted on guessing one.

use crate::requests::assert_settled;
use pointsman_rules::decode::{self, BodyFormat};
use pointsman_rules::{Kind, kinds, schema};

pub(crate) fn run(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else {
        return;
    };
    let kind = kinds::ALL[usize::from(*choice) % kinds::ALL.len()];
    check(body, kind);
    check(&enveloped(body), kind);
}

fn check(body: &[u8], kind: &Kind) {
    if let Ok(decoded) = decode::decode(body, BodyFormat::Protobuf, schema::of(kind)) {
        assert!(decoded.object.is_object());
        assert_settled(&decoded.object, kind);
    }
}

/// The magic bytes and field 2 with its length.
fn enveloped(object: &[u8]) -> Vec<u8> {
    let mut body = b"k8s\0\x12".to_vec();
    let mut length = object.len();
    while length >= 0x80 {
        body.push(length as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
    body.extend_from_slice(object);
    body
}
