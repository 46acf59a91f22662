//! When is an answer worth compressing?
//!
//! Upstream compresses every large answer for every client that accepts it. On loopback that only costs
//! time on both sides, so there it is left out.

use super::body::Body;
use crate::work::Work;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::BodyExt;
use std::io::Write;
use std::sync::Arc;

/// Smaller answers are sent as they are. Upstream's number.
const WORTH_IT: u64 = 128 << 10;

/// Whether an answer of `size` bytes (`None` for streams) is compressed for a client that sent this
/// `Accept-Encoding`.
pub fn worth_it(accept_encoding: Option<&str>, loopback: bool, size: Option<u64>) -> bool {
    let accepted = accept_encoding.unwrap_or("").split(',').any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        parts.next() == Some("gzip") && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0" | "q=0.00"))
    });
    accepted && !loopback && size.is_some_and(|size| size > WORTH_IT)
}

/// The body, compressed at upstream's level while it is sent.
pub fn gzip(body: Body, work: Arc<Work>) -> Body {
    let encoder = GzEncoder::new(Vec::new(), Compression::new(1));
    let packed = futures::stream::unfold(Some((body, encoder)), move |state| {
        let work = work.clone();
        async move {
            let (mut body, mut encoder) = state?;
            while let Some(Ok(frame)) = body.frame().await {
                let plain = frame.into_data().unwrap_or_default();
                // A large list takes a while, which other requests must not wait for.
                work.on(plain.len(), || encoder.write_all(&plain).expect(TO_MEMORY))
                    .await;
                let packed = std::mem::take(encoder.get_mut());
                if !packed.is_empty() {
                    return Some((Bytes::from(packed), Some((body, encoder))));
                }
            }
            Some((Bytes::from(encoder.finish().expect(TO_MEMORY)), None))
        }
    });
    Body::stream(Box::pin(packed))
}

const TO_MEMORY: &str = "writing to memory does not fail";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn only_large_answers_to_distant_clients_that_accept_it_are_compressed() {
        let large = Some(WORTH_IT + 1);
        assert!(worth_it(Some("gzip, deflate"), false, large));
        assert!(!worth_it(Some("gzip"), true, large));
        assert!(!worth_it(Some("gzip;q=0"), false, large));
        assert!(!worth_it(Some("br"), false, large));
        assert!(!worth_it(None, false, large));
        assert!(!worth_it(Some("gzip"), false, Some(10)));
        assert!(!worth_it(Some("gzip"), false, None));
    }

    #[tokio::test]
    async fn what_is_unpacked_is_what_was_packed() {
        let text = "pointsman ".repeat(50_000);
        let pieces = text
            .as_bytes()
            .chunks(70_000)
            .map(Bytes::copy_from_slice)
            .collect();
        let packed = gzip(Body::pieces(pieces), Arc::default());
        let packed = packed.collect().await.unwrap().to_bytes();
        let mut unpacked = String::new();
        flate2::read::GzDecoder::new(&packed[..])
            .read_to_string(&mut unpacked)
            .unwrap();
        assert!(packed.len() < text.len() / 10 && unpacked == text);
    }
}
