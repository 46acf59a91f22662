//! What roles say to each other: lines of watermarks, clocks, the questions of collectors and of gates.

use pointsman_protocol::watermark::{self, Encoder};
use pointsman_protocol::{clock, gate, relay};

pub(crate) fn run(input: &[u8]) {
    if let Some(line) = watermark::decode(input) {
        let mut text = String::new();
        let report = line.report;
        Encoder::new(&line.node, report.generation).encode(report.progress, report.time, &mut text);
        assert_eq!(watermark::decode(text.as_bytes()), Some(line), "{text}");
    }
    if let Some(time) = clock::decode(input) {
        assert_eq!(clock::decode(clock::encode(time).as_bytes()), Some(time));
    }
    if let Ok(answer) = gate::Answer::decode(input) {
        let again = gate::Answer::decode(answer.encode().as_bytes());
        assert_eq!(again.expect("an answer can be read").outcome, answer.outcome);
    }
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Some(share) = relay::Share::parse(text) {
        assert_eq!(relay::Share::parse(&share.to_string()), Some(share));
    }
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    if let Ok(question) = gate::Question::decode(path, query) {
        let target = question.encode();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        assert_eq!(
            gate::Question::decode(path, query).as_ref(),
            Ok(&question),
            "{target}"
        );
    }
}
