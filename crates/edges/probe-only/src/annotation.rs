//! What does a pod's annotation ask for?
//!
//! Its value is a probe as containers have it, in YAML or JSON, or `containers:` with one probe for
//! each container named. No API server has checked it, so everything is checked here.

use pointsman_objects::pod_manifest::Probe;
use pointsman_objects::probe::{Handler, MAX_OFFSET, MILLISECOND_FIELDS, Millis};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The annotation that holds the probe.
pub const ANNOTATION: &str = "probe.pointsman.io/readiness";

/// The name under which a probe of the whole pod is kept; no container can have it.
pub const WHOLE_POD: &str = "";

const WHOLE_FIELDS: [&str; 5] = [
    "initialDelaySeconds",
    "periodSeconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
];
const HANDLERS: [Handler; 3] = [Handler::HttpGet, Handler::TcpSocket, Handler::Grpc];

/// Why an annotation cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnnotation {
    /// Neither YAML nor JSON.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// Not a probe.
    #[error("{0}")]
    Probe(String),
    /// A container that the pod does not have.
    #[error("the pod has no container {0:?}")]
    Container(String),
    /// There is none, but the pod waits for our condition.
    #[error("the pod lists the readiness gate but has no annotation {ANNOTATION}")]
    Missing,
}

/// Reads an annotation: probes by container, or one for [`WHOLE_POD`].
pub fn parse(text: &str, containers: &[&str]) -> Result<Vec<(String, Probe)>, BadAnnotation> {
    let value: Value = serde_saphyr::from_str(text)
        .map_err(|error| BadAnnotation::Syntax(first_line(&error.to_string())))?;
    if let Some(fields) = value.as_object()
        && fields.len() == 1
        && let Some(each) = fields.get("containers")
    {
        let each = each.as_object().filter(|each| !each.is_empty());
        let each = each.ok_or_else(|| bad("containers: one probe for each container named"))?;
        let probe = |(name, probe): (&String, &Value)| {
            if !containers.contains(&name.as_str()) {
                return Err(BadAnnotation::Container(name.clone()));
            }
            Ok((name.clone(), read(probe)?))
        };
        return each.iter().map(probe).collect();
    }
    Ok(vec![(WHOLE_POD.to_owned(), read(&value)?)])
}

fn read(value: &Value) -> Result<Probe, BadAnnotation> {
    let fields = value
        .as_object()
        .ok_or_else(|| bad("a probe is a set of fields"))?;
    check_names(fields)?;
    check_numbers(fields)?;
    let probe = Probe::deserialize(value).map_err(|error| bad(&error.to_string()))?;
    check_sums(&probe)?;
    Ok(probe)
}

fn check_names(fields: &Map<String, Value>) -> Result<(), BadAnnotation> {
    if fields.contains_key("exec") {
        return Err(bad(
            "exec probes need the container runtime: use httpGet, tcpSocket or grpc",
        ));
    }
    let known = |field: &str| {
        WHOLE_FIELDS.contains(&field)
            || MILLISECOND_FIELDS.contains(&field)
            || HANDLERS.iter().any(|handler| handler.field() == field)
    };
    if let Some(field) = fields.keys().find(|field| !known(field)) {
        return Err(bad(&format!("unknown field {field:?}")));
    }
    let given = HANDLERS
        .iter()
        .filter(|handler| fields.contains_key(handler.field()));
    if given.count() != 1 {
        return Err(bad("exactly one of httpGet, tcpSocket and grpc is needed"));
    }
    Ok(())
}

fn check_numbers(fields: &Map<String, Value>) -> Result<(), BadAnnotation> {
    for (field, value) in fields {
        let range = if WHOLE_FIELDS.contains(&field.as_str()) {
            0..=i64::from(i32::MAX)
        } else if MILLISECOND_FIELDS.contains(&field.as_str()) {
            -MAX_OFFSET..=MAX_OFFSET
        } else {
            continue;
        };
        if !value.as_i64().is_some_and(|value| range.contains(&value)) {
            return Err(bad(&format!(
                "{field}: {value} is not a number from {} to {}",
                range.start(),
                range.end()
            )));
        }
    }
    Ok(())
}

fn check_sums(probe: &Probe) -> Result<(), BadAnnotation> {
    let sums = probe.effective();
    // The same for all handlers that an annotation can have.
    let least = Handler::HttpGet.shortest();
    for (what, length, least) in [
        ("initial delay", sums.initial_delay, Millis(0)),
        ("period", sums.period, least.period),
        ("timeout", sums.timeout, least.timeout),
    ] {
        if length < least {
            return Err(bad(&format!("the {what} is {length}, must be at least {least}")));
        }
    }
    Ok(())
}

fn bad(text: &str) -> BadAnnotation {
    BadAnnotation::Probe(text.to_owned())
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn says(text: &str) -> String {
        match parse(text, &["web", "side"]) {
            Ok(probes) => format!(
                "ok {:?}",
                probes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>()
            ),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_probe_may_be_yaml_or_json_for_the_pod_or_for_containers() {
        assert_eq!(
            says("httpGet: {port: 80}\nperiodSeconds: 1\nperiodMilliseconds: -800"),
            "ok [\"\"]"
        );
        assert_eq!(says(r#"{"tcpSocket": {"port": "web"}}"#), "ok [\"\"]");
        assert_eq!(
            says("containers: {web: {grpc: {port: 1}}, side: {tcpSocket: {port: 2}}}"),
            "ok [\"side\", \"web\"]"
        );
    }

    #[test]
    fn mistakes_are_named() {
        assert!(says("{").starts_with("not YAML: "));
        assert_eq!(says("80"), "a probe is a set of fields");
        assert_eq!(
            says("periodSeconds: 1"),
            "exactly one of httpGet, tcpSocket and grpc is needed"
        );
        assert_eq!(
            says("{httpGet: {port: 1}, grpc: {port: 1}}"),
            "exactly one of httpGet, tcpSocket and grpc is needed"
        );
        assert_eq!(
            says("exec: {command: [x]}"),
            "exec probes need the container runtime: use httpGet, tcpSocket or grpc"
        );
        assert_eq!(
            says("{httpGet: {port: 1}, periodMs: 1}"),
            "unknown field \"periodMs\""
        );
        assert_eq!(
            says("{httpGet: {port: 1}, periodMilliseconds: 1000}"),
            "periodMilliseconds: 1000 is not a number from -999 to 999"
        );
        assert_eq!(
            says("{httpGet: {port: 1}, periodSeconds: 1, periodMilliseconds: -900}"),
            "the period is 100ms, must be at least 200ms"
        );
        assert_eq!(
            says("{httpGet: {port: 1}, timeoutSeconds: -1}"),
            "timeoutSeconds: -1 is not a number from 0 to 2147483647"
        );
        assert_eq!(
            says("{httpGet: {port: 1}, initialDelayMilliseconds: -1}"),
            "the initial delay is -1ms, must be at least 0ms"
        );
        assert_eq!(
            says("{grpc: {port: 1}, timeoutSeconds: 1, timeoutMilliseconds: -901}"),
            "the timeout is 99ms, must be at least 100ms"
        );
        assert_eq!(
            says("{grpc: {port: 1}, timeoutSeconds: 1, timeoutMilliseconds: -900}"),
            "ok [\"\"]"
        );
        assert_eq!(
            says("containers: {other: {httpGet: {port: 1}}}"),
            "the pod has no container \"other\""
        );
        assert_eq!(
            says("containers: {}"),
            "containers: one probe for each container named"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_text_is_read_without_panic(text in "[ -~\n]{0,80}") {
            let _ = parse(&text, &["web"]);
        }
    }
}
