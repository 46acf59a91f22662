//! What must hold of whatever a runtime answers? For those who search for bytes that break it.

use super::messages::*;
use super::{config, container, pod, stats, streams};
use prost::Message;

/// Reads bytes as each answer, and takes of it what the agent does.
///
/// # Panics
/// If an answer that can be read is not the same when it is written and read again.
pub fn check(bytes: &[u8]) {
    written_alike::<VersionResponse>(bytes);
    written_alike::<StatusResponse>(bytes);
    written_alike::<ImageStatusResponse>(bytes);
    written_alike::<ExecSyncResponse>(bytes);
    if let Some(answer) = written_alike::<PodSandboxStatusResponse>(bytes) {
        pod::addresses(&answer.status.unwrap_or_default());
    }
    if let Some(answer) = written_alike::<ListPodSandboxResponse>(bytes) {
        answer.items.iter().for_each(|sandbox| drop(pod::uid(sandbox)));
    }
    if let Some(answer) = written_alike::<ListContainersResponse>(bytes) {
        answer
            .containers
            .iter()
            .for_each(|it| drop(config::container_id(it)));
    }
    if let Some(answer) = written_alike::<ListContainerStatsResponse>(bytes) {
        answer.stats.iter().for_each(|it| {
            drop(stats::layer(it));
            drop(stats::usage_of(it, std::time::SystemTime::UNIX_EPOCH));
        });
    }
    if let Some(answer) = written_alike::<ContainerStatusResponse>(bytes) {
        let seen = answer.status.unwrap_or_default();
        let _ = container::exit(&seen, None);
    }
    if let Some(answer) = written_alike::<StreamsResponse>(bytes) {
        streams::check(answer.url.as_bytes());
    }
    streams::check(bytes);
    if let Some(event) = written_alike::<Envelope>(bytes).and_then(|envelope| envelope.event) {
        written_alike::<TaskExit>(&event.value);
    }
}

fn written_alike<T: Message + Default>(bytes: &[u8]) -> Option<T> {
    let written = T::decode(bytes).ok()?.encode_to_vec();
    let again = T::decode(&*written).expect("what was written can be read");
    assert!(again.encode_to_vec() == written, "it reads as something else");
    Some(again)
}
